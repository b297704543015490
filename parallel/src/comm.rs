//! Collectives among the ranks of a group.
//!
//! A [`ProcessGroup`] is one rank's end of a group. What moves its bytes is a [`Backend`]: shared memory where all ranks live on one host
//! ([`shared`]), Gloo over TCP elsewhere ([`gloo`]), nothing at all for a group of one. Which one it is shows in no number. Tensors of
//! a GPU go over NCCL ([`nccl`]), which the ranks of a group join when the first of them comes.
//!
//! Every rank calls the collectives of a group in the same order. A collective that was started is done when its [`Work`] was waited
//! for; until then its tensors are not touched. A failure names rank, group, collective and cause.
//!
//! The bytes that a rank sends are counted by the optimal algorithm, `P` ranks and `n` bytes on each: all-reduce `2 n (P - 1) / P`,
//! reduce-scatter `n (P - 1) / P`, all-gather `n (P - 1)`, all-to-all what is for others, broadcast and send `n` at the root.

pub mod gloo;
pub mod nccl;
pub mod shared;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use parallel_sys::c10d;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Kind, Tensor};

pub use parallel_sys::c10d::Reduction;

use crate::{Error, SysError};

/// What moves bytes between ranks. Tensors are contiguous.
pub trait Backend: Debug + Send {
    /// The name for people.
    fn name(&self) -> &'static str;

    /// Every rank's `tensor` becomes the reduction of all.
    fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<Work, SysError>;

    /// `output` becomes the inputs of all ranks, end to end.
    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Work, SysError>;

    /// `output` becomes this rank's part of the sum of all inputs.
    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Work, SysError>;

    /// Rank `i` receives the `i`-th part of every input; `counts` are the rows that come from, and go to, each rank.
    fn all_to_all(&mut self, output: &Tensor, input: &Tensor, counts: [&[i64]; 2]) -> Result<Work, SysError>;

    /// Every rank's `tensor` becomes that of `root`.
    fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<Work, SysError>;

    /// Sends `tensor` from the first of two ranks to the second, which receives it; waits for nobody before the work is waited for.
    fn send_or_recv(&mut self, tensor: &Tensor) -> Result<Work, SysError> {
        self.broadcast(tensor, 0)
    }

    /// Returns once every rank has called it.
    fn barrier(&mut self) -> Result<(), SysError>;
}

/// Joins a communicator of some ranks of a group, under a name, for tensors of a device.
pub(crate) type Connect = dyn Fn(&str, &[usize], Device) -> Result<Box<dyn Backend>, Error> + Send + Sync;

/// A collective under way.
#[derive(Debug)]
#[must_use = "a collective is done once it was waited for"]
pub enum Work {
    /// It is done.
    Done,
    /// Gloo's threads do it.
    Gloo(c10d::Work),
    /// Gloo's threads bring `[P, ...]` parts of every rank, whose sum is the output.
    AllToAllThenSum {
        /// Brings them.
        work: c10d::Work,
        /// One a rank.
        parts: Tensor,
        /// Their sum.
        output: Tensor,
    },
    /// A GPU does it.
    Nccl(parallel_sys::nccl::Work),
    /// A thread of this process does it.
    Thread(mpsc::Receiver<Result<(), SysError>>),
}

impl Work {
    /// Returns once the tensors hold the result, for whoever reads them by way of torch.
    pub fn wait(self) -> Result<(), SysError> {
        match self {
            Self::Done => Ok(()),
            Self::Gloo(work) => work.wait(),
            Self::AllToAllThenSum { work, parts, mut output } => {
                work.wait()?;
                // As over shared memory: in the order of the ranks, bf16 reckoned in fp32.
                let wide = if output.kind() == Kind::BFloat16 { Kind::Float } else { output.kind() };
                let mut sum = parts.select(0, 0).to_kind(wide);
                for rank in 1..parts.size()[0] {
                    sum += parts.select(0, rank).to_kind(wide);
                }
                output.copy_(&sum);
                Ok(())
            }
            Self::Nccl(work) => work.wait(),
            Self::Thread(answer) => answer.recv().unwrap_or_else(|_| {
                let (call, problem) = ("collective".to_owned(), "its thread ended".to_owned());
                Err(SysError::Shared { call, problem })
            }),
        }
    }

    /// This work if it is still under way; nothing if the tensors hold the result.
    fn try_wait(self) -> Result<Option<Self>, SysError> {
        match self {
            Self::Gloo(work) if !work.is_done()? => Ok(Some(Self::Gloo(work))),
            Self::Thread(answer) => match answer.try_recv() {
                Ok(result) => result.map(|()| None),
                Err(mpsc::TryRecvError::Empty) => Ok(Some(Self::Thread(answer))),
                Err(mpsc::TryRecvError::Disconnected) => Self::Thread(answer).wait().map(|()| None),
            },
            other => other.wait().map(|()| None),
        }
    }
}

/// A collective of a group that was started.
#[derive(Debug)]
#[must_use = "a collective is done once it was waited for"]
pub struct PendingCollective {
    rank: usize,
    group: Arc<str>,
    collective: &'static str,
    work: Work,
}

impl PendingCollective {
    /// Returns once the tensors hold the result.
    pub fn wait(self) -> Result<(), Error> {
        let Self { rank, group, collective, work } = self;
        work.wait().map_err(|cause| Error::Collective { rank, group: group.to_string(), collective, cause })
    }

    /// This collective if it is still under way; nothing if the tensors hold the result. What goes over a GPU's queue or is summed at
    /// the end is waited for.
    pub fn try_wait(self) -> Result<Option<Self>, Error> {
        let Self { rank, group, collective, work } = self;
        match work.try_wait() {
            Ok(work) => Ok(work.map(|work| Self { rank, group, collective, work })),
            Err(cause) => Err(Error::Collective { rank, group: group.to_string(), collective, cause }),
        }
    }
}

/// Sender and receiver, and a tag.
type P2pKey = ([usize; 2], usize);

/// One rank's end of a group.
pub struct ProcessGroup {
    name: Arc<str>,
    /// The ranks of the world that belong to it, in order.
    ranks: Vec<usize>,
    rank: usize,
    /// For tensors of the host; `None` for a group of one.
    communicator: Option<Mutex<Box<dyn Backend>>>,
    /// For tensors of a GPU, once there was one.
    gpu: Mutex<Option<Box<dyn Backend>>>,
    /// How its ranks find each other once more; `None` for a group of one.
    connect: Option<Box<Connect>>,
    /// Between this rank and another.
    channels: Mutex<HashMap<P2pKey, Box<dyn Backend>>>,
    sent_bytes_total: AtomicU64,
}

impl Debug for ProcessGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} of {:?}", self.name, self.rank, self.ranks)
    }
}

impl ProcessGroup {
    /// The group of one rank, which has nobody to talk to.
    pub fn single(name: &str, rank: usize) -> Self {
        Self::new(name, vec![rank], 0, None, None)
    }

    /// The group of `ranks` as a plan has it, seen from the `rank`-th: it has sizes and places, and nobody to talk to.
    pub(crate) fn fake(name: &str, ranks: Vec<usize>, rank: usize) -> Self {
        Self::new(name, ranks, rank, None, None)
    }

    /// The group of `ranks`, of which this process is the `rank`-th.
    pub(crate) fn new(
        name: &str,
        ranks: Vec<usize>,
        rank: usize,
        communicator: Option<Box<dyn Backend>>,
        connect: Option<Box<Connect>>,
    ) -> Self {
        let communicator = communicator.map(Mutex::new);
        let (gpu, channels, sent_bytes_total) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Self { name: name.into(), ranks, rank, communicator, gpu, connect, channels, sent_bytes_total }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This process' place among its ranks.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Its ranks.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// The ranks of the world that belong to it, in order.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// What moves the bytes of the host.
    pub fn transport(&self) -> &'static str {
        self.communicator.as_ref().map_or("none", |communicator| lock(communicator).name())
    }

    /// Bytes that this rank has sent.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes_total.load(Ordering::Relaxed)
    }

    /// Every rank's `tensor` becomes the reduction of all, in place.
    pub fn all_reduce(&self, tensor: &Tensor, reduction: Reduction) -> Result<(), Error> {
        self.start_all_reduce(tensor, reduction)?.wait()
    }

    /// [`all_reduce`](Self::all_reduce), started.
    pub fn start_all_reduce(
        &self,
        tensor: &Tensor,
        reduction: Reduction,
    ) -> Result<PendingCollective, Error> {
        self.count_sent_bytes(2 * bytes_of(tensor) * (self.size() as u64 - 1) / self.size() as u64);
        self.start("all_reduce", tensor.device(), |communicator| communicator.all_reduce(tensor, reduction))
    }

    /// `[n, ...]` on each rank to `[n P, ...]` on every rank, in the order of the ranks.
    pub fn all_gather(&self, input: &Tensor) -> Result<Tensor, Error> {
        let input = input.contiguous();
        let mut shape = input.size();
        shape[0] *= self.size() as i64;
        if self.size() == 1 {
            return Ok(input);
        }
        let output = self.empty_output(&shape, (input.kind(), input.device()), "all_gather")?;
        self.all_gather_into(&output, &input)?;
        Ok(output)
    }

    /// [`all_gather`](Self::all_gather) into a tensor that is there already; both are contiguous.
    pub fn all_gather_into(&self, output: &Tensor, input: &Tensor) -> Result<(), Error> {
        self.count_sent_bytes(bytes_of(input) * (self.size() as u64 - 1));
        self.start("all_gather", input.device(), |communicator| communicator.all_gather(output, input))?
            .wait()
    }

    /// `[n P, ...]` on each rank to this rank's `[n, ...]` of the sum.
    pub fn reduce_scatter(&self, input: &Tensor) -> Result<Tensor, Error> {
        let input = input.contiguous();
        let mut shape = input.size();
        assert!(shape[0] % self.size() as i64 == 0, "the first dimension is a multiple of the ranks");
        shape[0] /= self.size() as i64;
        if self.size() == 1 {
            return Ok(input.copy());
        }
        let output = self.empty_output(&shape, (input.kind(), input.device()), "reduce_scatter")?;
        self.count_sent_bytes(bytes_of(&output) * (self.size() as u64 - 1));
        self.start("reduce_scatter", input.device(), |communicator| {
            communicator.reduce_scatter(&output, &input)
        })?
        .wait()?;
        Ok(output)
    }

    /// Rows of `input` `[n, ...]` go out, `sent[i]` to rank `i`; what comes in, `received[i]` rows from rank `i`, end to end.
    pub fn all_to_all(&self, input: &Tensor, [received, sent]: [&[i64]; 2]) -> Result<Tensor, Error> {
        let input = input.contiguous();
        if self.size() == 1 {
            return Ok(input);
        }
        let mut shape = input.size();
        let row = bytes_of(&input) / shape[0].max(1) as u64;
        shape[0] = received.iter().sum();
        let output = self.empty_output(&shape, (input.kind(), input.device()), "all_to_all")?;
        self.count_sent_bytes(row * (sent.iter().sum::<i64>() - sent[self.rank]) as u64);
        self.start("all_to_all", input.device(), |communicator| {
            communicator.all_to_all(&output, &input, [received, sent])
        })?
        .wait()?;
        Ok(output)
    }

    /// Every rank's `tensor` becomes that of the group's rank `root`, in place.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<(), Error> {
        if self.rank == root {
            self.count_sent_bytes(bytes_of(tensor));
        }
        self.start("broadcast", tensor.device(), |communicator| communicator.broadcast(tensor, root))?.wait()
    }

    /// Starts to send `tensor` to the group's rank `to`, which [receives](Self::recv) what is sent under a tag in order. `tensor` stays
    /// as it is until the work was waited for. One of a GPU goes by way of the host.
    pub fn send(&self, tensor: &Tensor, to: usize, tag: usize) -> Result<PendingCollective, Error> {
        self.count_sent_bytes(bytes_of(tensor));
        self.send_or_recv(&tensor.to_device(Device::Cpu), [self.rank, to], tag, "send")
    }

    /// What the group's rank `from` sends under `tag`.
    pub fn recv(
        &self,
        shape: &[i64],
        (kind, device): (Kind, Device),
        from: usize,
        tag: usize,
    ) -> Result<Tensor, Error> {
        let tensor = self.empty_output(shape, (kind, Device::Cpu), "receive")?;
        self.send_or_recv(&tensor, [from, self.rank], tag, "receive")?.wait()?;
        Ok(tensor.to_device(device))
    }

    fn send_or_recv(
        &self,
        tensor: &Tensor,
        endpoints: [usize; 2],
        tag: usize,
        collective: &'static str,
    ) -> Result<PendingCollective, Error> {
        let mut channels = lock(&self.channels);
        let channel = match channels.entry((endpoints, tag)) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(new) => {
                let name = format!("{}-{}/{tag}", endpoints[0], endpoints[1]);
                new.insert(self.connect(&name, &endpoints, Device::Cpu)?)
            }
        };
        let (rank, group) = (self.ranks[self.rank], Arc::clone(&self.name));
        let work = channel.send_or_recv(tensor).map_err(|cause| Error::Collective {
            rank,
            group: group.to_string(),
            collective,
            cause,
        })?;
        Ok(PendingCollective { rank, group, collective, work })
    }

    /// Returns once every rank has called it.
    pub fn barrier(&self) -> Result<(), Error> {
        self.start("barrier", Device::Cpu, |communicator| communicator.barrier().map(|()| Work::Done))?.wait()
    }

    /// The sum of each number over the ranks, in fp64.
    pub fn all_reduce_sum<const N: usize>(&self, numbers: [f64; N]) -> Result<[f64; N], Error> {
        self.all_reduce_scalars(numbers, Reduction::Sum)
    }

    /// The largest of each number over the ranks.
    pub fn all_reduce_max<const N: usize>(&self, numbers: [f64; N]) -> Result<[f64; N], Error> {
        self.all_reduce_scalars(numbers, Reduction::Max)
    }

    /// What each rank says, in their order: bytes of any length.
    pub fn all_gather_bytes(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let options = (Kind::Int64, tch::Device::Cpu);
        let lengths = self.all_gather(&Tensor::full([1], own.len() as i64, options))?;
        let lengths: Vec<i64> = Vec::try_from(&lengths).expect("one length a rank");
        let sent = vec![own.len() as i64; self.size()];
        let copies = Tensor::from_slice(own).repeat([self.size() as i64]);
        let all = self.all_to_all(&copies, [&lengths, &sent])?;
        let mut rest: &[u8] = &Vec::<u8>::try_from(&all).expect("bytes");
        let mut parts = Vec::with_capacity(self.size());
        for length in lengths {
            let (part, behind) = rest.split_at(length as usize);
            parts.push(part.to_vec());
            rest = behind;
        }
        Ok(parts)
    }

    /// The items that are this rank's when `items` are dealt out in turn: the first to rank 0, the second to rank 1, and so on.
    pub fn round_robin<T>(&self, items: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        items.into_iter().skip(self.rank).step_by(self.size())
    }

    /// The places that are this rank's when `length` places are cut into one run a rank, as even as can be.
    pub fn shard_range(&self, length: usize) -> Range<usize> {
        let cut = |rank: usize| length * rank / self.size();
        cut(self.rank)..cut(self.rank + 1)
    }

    /// The items of all ranks, in the order of the ranks.
    pub fn all_gather_object<T: Serialize + DeserializeOwned>(&self, own: Vec<T>) -> Result<Vec<T>, Error> {
        if self.size() == 1 {
            return Ok(own);
        }
        let bytes = postcard::to_allocvec(&own).expect("plain data has a binary form");
        let mut all = Vec::new();
        for (place, bytes) in self.all_gather_bytes(&bytes)?.into_iter().enumerate() {
            let foreign = |_| Error::VersionMismatch { rank: self.ranks[place] };
            all.extend(postcard::from_bytes::<Vec<T>>(&bytes).map_err(foreign)?);
        }
        Ok(all)
    }

    /// Room for what comes in. Memory that the system does not give is an error and no panic.
    fn empty_output(
        &self,
        shape: &[i64],
        options: (Kind, Device),
        collective: &'static str,
    ) -> Result<Tensor, Error> {
        Tensor::f_empty(shape, options).map_err(|error| Error::Collective {
            rank: self.ranks[self.rank],
            group: self.name.to_string(),
            collective,
            cause: SysError::Torch { call: "empty".to_owned(), message: error.to_string() },
        })
    }

    fn all_reduce_scalars<const N: usize>(
        &self,
        numbers: [f64; N],
        reduction: Reduction,
    ) -> Result<[f64; N], Error> {
        if self.size() == 1 {
            return Ok(numbers);
        }
        let tensor = Tensor::from_slice(&numbers);
        self.all_reduce(&tensor, reduction)?;
        let reduced = Vec::<f64>::try_from(&tensor).expect("a vector of numbers");
        Ok(reduced.try_into().expect("as many numbers as were given"))
    }

    fn start(
        &self,
        collective: &'static str,
        device: Device,
        start: impl FnOnce(&mut dyn Backend) -> Result<Work, SysError>,
    ) -> Result<PendingCollective, Error> {
        let (rank, group) = (self.ranks[self.rank], Arc::clone(&self.name));
        let work = match &self.communicator {
            None => {
                assert_eq!(self.size(), 1, "a planned group has nobody to talk to");
                Ok(Work::Done)
            }
            Some(_) if device.is_cuda() => start(self.gpu(device)?.as_mut().expect("was joined").as_mut()),
            Some(communicator) => start(lock(communicator).as_mut()),
        };
        let work =
            work.map_err(|cause| Error::Collective { rank, group: group.to_string(), collective, cause })?;
        Ok(PendingCollective { rank, group, collective, work })
    }

    /// What moves the bytes of GPUs: all ranks of the group have tensors there, or none.
    fn gpu(&self, device: Device) -> Result<MutexGuard<'_, Option<Box<dyn Backend>>>, Error> {
        let mut gpu = lock(&self.gpu);
        if gpu.is_none() {
            let everyone: Vec<usize> = (0..self.size()).collect();
            *gpu = Some(self.connect("all", &everyone, device)?);
        }
        Ok(gpu)
    }

    fn connect(&self, name: &str, ranks: &[usize], device: Device) -> Result<Box<dyn Backend>, Error> {
        self.connect.as_ref().expect("a rank by itself has nobody to talk to")(name, ranks, device)
    }

    fn count_sent_bytes(&self, bytes: u64) {
        self.sent_bytes_total.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn bytes_of(tensor: &Tensor) -> u64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64
}

/// A communicator after a panic is as good as before: it fails by itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
