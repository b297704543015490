//! Requests through a pool of threads that block in `pread` and `pwrite`, where `io_uring` is not allowed.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::request::Request;

/// The answer to a request.
type Answer = (Request, io::Result<usize>);

/// A pool of threads.
pub(super) struct Threads {
    /// Closed to end the threads.
    requests: Option<Sender<Request>>,
    answers: Receiver<Answer>,
    workers: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts `count` threads, at least one.
    pub(super) fn open(count: usize) -> io::Result<Self> {
        let (requests, waiting) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let mut pool = Self { requests: Some(requests), answers, workers: Vec::new() };
        for index in 0..count.max(1) {
            let (waiting, answer) = (Arc::clone(&waiting), answer.clone());
            let worker =
                Builder::new().name(format!("disk-{index}")).spawn(move || work(&waiting, &answer))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Starts a request.
    pub(super) fn submit(&mut self, request: Request) -> io::Result<()> {
        let requests = self.requests.as_ref().ok_or_else(ended)?;
        requests.send(request).map_err(|_| ended())
    }

    /// Adds the finished requests and their answers to `finished`. Blocks for one if `is_blocking`.
    pub(super) fn complete(&mut self, is_blocking: bool, finished: &mut Vec<Answer>) -> io::Result<()> {
        if is_blocking {
            finished.push(self.answers.recv().map_err(|_| ended())?);
        }
        loop {
            match self.answers.try_recv() {
                Ok(answer) => finished.push(answer),
                Err(TryRecvError::Empty) => return Ok(()),
                // What was received before is handed on first.
                Err(TryRecvError::Disconnected) if !finished.is_empty() => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(ended()),
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.requests = None;
        for worker in self.workers.drain(..) {
            // A worker that panicked has no request any more.
            let _ = worker.join();
        }
    }
}

/// Answers requests until the pool is dropped.
fn work(waiting: &Mutex<Receiver<Request>>, answer: &Sender<Answer>) {
    loop {
        let request = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(request) = request else { return };
        let count = request.run();
        if answer.send((request, count)).is_err() {
            return;
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the threads have ended")
}
