//! The shared-memory backend between the ranks of one host.
//!
//! The calling thread runs a small collective itself, which is faster than sending it to another thread. A
//! worker thread runs a large one (`ASYNC_THRESHOLD_BYTES`), so that computation continues meanwhile. Either
//! way, collectives run in the order in which they were started.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use parallel_sys::c10d::{Reduction, Store};
use parallel_sys::shared::SharedMemory;
use tch::Tensor;

use super::{Backend, Work};
use crate::SysError;

/// The number of bytes from which a collective goes to the worker thread.
const ASYNC_THRESHOLD_BYTES: usize = 256 << 10;

/// A group of ranks connected by shared memory.
#[derive(Debug)]
pub struct SharedGroup {
    memory: Arc<Mutex<SharedMemory>>,
    queue: Sender<QueuedCollective>,
    /// Completion channels of the collectives that may still be in the queue.
    in_flight: Vec<Receiver<()>>,
}

type Task = Box<dyn FnOnce(&mut SharedMemory) -> Result<(), SysError> + Send>;

/// A collective in the queue of the worker thread, and the channel for its result.
struct QueuedCollective {
    task: Task,
    result: Sender<Result<(), SysError>>,
    /// Dropped when the collective is done.
    _done: Sender<()>,
}

impl SharedGroup {
    /// Joins the group `name`, which its ranks find through the store, with `[rank, size]`. `owner` is the
    /// process id of the group's rank 0.
    pub fn join(
        store: &Store,
        name: &str,
        owner: u32,
        [rank, size]: [usize; 2],
        timeout: Duration,
    ) -> Result<Self, SysError> {
        let key = format!("shared/{name}");
        let file = format!("colossal-chat-{}", store.token(&key));
        let memory = if rank == 0 {
            let memory = SharedMemory::create(&file, size, timeout)?;
            store.set(&key, memory.address().as_bytes())?;
            memory
        } else {
            let address = String::from_utf8_lossy(&store.get(&key, timeout)?).into_owned();
            SharedMemory::open(&address, &file, owner, [rank, size], timeout)?
        };
        let mut group = Self::with_worker_thread(memory)?;
        // Rank 0 must keep the file open until all ranks have mapped it.
        group.barrier()?;
        Ok(group)
    }

    fn with_worker_thread(memory: SharedMemory) -> Result<Self, SysError> {
        let memory = Arc::new(Mutex::new(memory));
        let (queue, queued) = mpsc::channel::<QueuedCollective>();
        let shared = Arc::clone(&memory);
        let worker = move || {
            for QueuedCollective { task, result, _done } in queued {
                // The receiver is gone if the caller has dropped the work.
                let _ = result.send(task(&mut lock(&shared)));
            }
        };
        thread::Builder::new().spawn(worker).map_err(|error| SysError::Shared {
            call: "join".to_owned(),
            problem: format!("the system cannot start a thread: {error}"),
        })?;
        Ok(Self { memory, queue, in_flight: Vec::new() })
    }

    /// Runs a collective over `bytes` bytes on this thread or sends it to the worker thread.
    fn run(&mut self, bytes: usize, task: Task) -> Result<Work, SysError> {
        self.in_flight.retain(|is_done| matches!(is_done.try_recv(), Err(mpsc::TryRecvError::Empty)));
        if bytes < ASYNC_THRESHOLD_BYTES && self.in_flight.is_empty() {
            return task(&mut lock(&self.memory)).map(|()| Work::Done);
        }
        let (result, answered) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        self.in_flight.push(is_done);
        let job = QueuedCollective { task, result, _done: done };
        self.queue.send(job).map_err(|_| SysError::Shared {
            call: "collective".to_owned(),
            problem: "its thread ended".to_owned(),
        })?;
        Ok(Work::Thread(answered))
    }
}

impl Backend for SharedGroup {
    fn name(&self) -> &'static str {
        "shared memory"
    }

    fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<Work, SysError> {
        let handle = tensor.shallow_clone();
        self.run(bytes_of(tensor), Box::new(move |memory| memory.all_reduce(&handle, reduction)))
    }

    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Work, SysError> {
        let (bytes, output, input) = (bytes_of(output), output.shallow_clone(), input.shallow_clone());
        self.run(bytes, Box::new(move |memory| memory.all_gather(&output, &input)))
    }

    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Work, SysError> {
        let (bytes, output, input) = (bytes_of(input), output.shallow_clone(), input.shallow_clone());
        self.run(bytes, Box::new(move |memory| memory.reduce_scatter(&output, &input)))
    }

    fn all_gather_in_place(&mut self, tensor: &Tensor, [_, size]: [usize; 2]) -> Result<Work, SysError> {
        let handle = tensor.shallow_clone();
        let task = move |memory: &mut SharedMemory| memory.all_gather_in_place(&handle);
        self.run(bytes_of(tensor) / size, Box::new(task))
    }

    fn reduce_scatter_in_place(&mut self, tensor: &Tensor, _: [usize; 2]) -> Result<Work, SysError> {
        let handle = tensor.shallow_clone();
        let task = move |memory: &mut SharedMemory| memory.reduce_scatter_in_place(&handle);
        self.run(bytes_of(tensor), Box::new(task))
    }

    fn all_to_all(&mut self, output: &Tensor, input: &Tensor, counts: [&[i64]; 2]) -> Result<Work, SysError> {
        // The row width comes from the shape, because a rank may send no rows.
        let row = input.size()[1..].iter().product::<i64>() as usize * input.kind().elt_size_in_bytes();
        let [output_bytes, input_bytes]: [Vec<usize>; 2] =
            counts.map(|counts| counts.iter().map(|&rows| rows as usize * row).collect());
        let (output, input) = (output.shallow_clone(), input.shallow_clone());
        // Ranks send different numbers of bytes, so the choice of the thread must not depend on them.
        self.run(0, Box::new(move |memory| memory.all_to_all(&output, &input, [&output_bytes, &input_bytes])))
    }

    fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<Work, SysError> {
        let handle = tensor.shallow_clone();
        self.run(bytes_of(tensor), Box::new(move |memory| memory.broadcast(&handle, root)))
    }

    fn send_or_recv(&mut self, tensor: &Tensor) -> Result<Work, SysError> {
        let handle = tensor.shallow_clone();
        // A message of any size goes to the worker thread, because the other rank may be busy.
        self.run(ASYNC_THRESHOLD_BYTES, Box::new(move |memory| memory.broadcast(&handle, 0)))
    }

    fn barrier(&mut self) -> Result<(), SysError> {
        self.run(0, Box::new(SharedMemory::barrier))?.wait()
    }
}

fn lock(memory: &Mutex<SharedMemory>) -> MutexGuard<'_, SharedMemory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}
