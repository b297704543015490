//! Encodes rows on all cores while they are read, and returns the results in file order.
//!
//! The caller's thread reads batches and sends them to the worker threads through a bounded queue, and waits
//! while the rows under way take too many bytes, so that memory use does not grow with the file. Batches that
//! finish out of order wait for the earlier ones. Encoding stops at the first error in file order.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use crate::error::{Result, RowLocation};

/// Number of rows per batch, unless they are large.
const BATCH: usize = 128;
/// The bytes after which a batch is sent.
const BATCH_BYTES: usize = 4 << 20;
/// The most bytes of rows that are under way. A larger batch is under way alone.
const BYTES_UNDER_WAY: usize = 256 << 20;

/// A batch with its index in the file.
type Batch<S> = (usize, Vec<(RowLocation, S)>);

/// The sources of a row, and their bytes in memory.
type SizedRow<S> = (RowLocation, Vec<S>, usize);

/// Encodes every source of every row and passes the results to `take` in order. A row has any number of
/// sources.
pub(super) fn encode<S: Send, F: Send>(
    rows: impl Iterator<Item = Result<SizedRow<S>>>,
    encode: &(impl Fn(&(RowLocation, S)) -> Result<F> + Sync),
    take: impl FnMut(Vec<F>),
) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let (to_workers, batches) = sync_channel::<Batch<S>>(2 * threads);
        let (to_caller, encoded) = channel();
        let batches = std::sync::Arc::new(Mutex::new(batches));
        for _ in 0..threads {
            let (batches, to_caller) = (std::sync::Arc::clone(&batches), to_caller.clone());
            scope.spawn(move || work(&batches, &to_caller, encode));
        }
        // The workers hold the only other handles, so the queues close when the workers end.
        drop((batches, to_caller));
        feed(rows, to_workers, &encoded, take)
    })
}

/// Encodes batches until the queue is closed.
fn work<S, F>(
    batches: &Mutex<Receiver<Batch<S>>>,
    to_caller: &Sender<(usize, Result<Vec<F>>)>,
    encode: &impl Fn(&(RowLocation, S)) -> Result<F>,
) {
    loop {
        let next = batches.lock().expect("no worker panics while it takes a batch").recv();
        let Ok((place, batch)) = next else { return };
        let encoded = batch.iter().map(encode).collect();
        if to_caller.send((place, encoded)).is_err() {
            return;
        }
    }
}

/// Reads batches, sends them to the workers and passes the results on in order.
fn feed<S, F>(
    mut rows: impl Iterator<Item = Result<SizedRow<S>>>,
    to_workers: SyncSender<Batch<S>>,
    encoded: &Receiver<(usize, Result<Vec<F>>)>,
    mut take: impl FnMut(Vec<F>),
) -> Result<()> {
    let mut sent = 0;
    let mut order = InOrder { waiting: BTreeMap::new(), next: 0 };
    let mut under_way = UnderWay::default();
    let mut failed = None;

    while failed.is_none() {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            match rows.next() {
                None => break,
                Some(Ok((at, sources, size))) => {
                    bytes += if sources.is_empty() { 0 } else { size };
                    batch.extend(sources.into_iter().map(|source| (at.clone(), source)));
                }
                Some(Err(error)) => {
                    // Report this error last: the rows before it may contain an earlier error.
                    failed = Some(error);
                    break;
                }
            }
        }

        if batch.is_empty() {
            break;
        }
        while under_way.is_full(bytes) {
            let Ok((place, result)) = encoded.recv() else { break };
            under_way.remove(place);
            order.hand_on(place, result, &mut take)?;
        }
        if to_workers.send((sent, batch)).is_err() {
            break;
        }
        under_way.add(sent, bytes);
        sent += 1;
        while let Ok((place, result)) = encoded.try_recv() {
            under_way.remove(place);
            order.hand_on(place, result, &mut take)?;
        }
    }

    // Closing the queue ends the workers, which closes `encoded` after the last result.
    drop(to_workers);
    for (place, result) in encoded {
        order.hand_on(place, result, &mut take)?;
    }
    failed.map_or(Ok(()), Err)
}

/// The results that wait for those of earlier batches.
struct InOrder<F> {
    waiting: BTreeMap<usize, Result<Vec<F>>>,
    next: usize,
}

impl<F> InOrder<F> {
    fn hand_on(&mut self, place: usize, result: Result<Vec<F>>, take: &mut impl FnMut(Vec<F>)) -> Result<()> {
        self.waiting.insert(place, result);
        while let Some(result) = self.waiting.remove(&self.next) {
            take(result?);
            self.next += 1;
        }
        Ok(())
    }
}

/// The bytes of the batches that were sent and have not come back.
#[derive(Default)]
struct UnderWay {
    batches: BTreeMap<usize, usize>,
    bytes: usize,
}

impl UnderWay {
    /// Whether a batch must wait for others.
    fn is_full(&self, bytes: usize) -> bool {
        !self.batches.is_empty() && self.bytes.saturating_add(bytes) > BYTES_UNDER_WAY
    }

    fn add(&mut self, place: usize, bytes: usize) {
        self.batches.insert(place, bytes);
        self.bytes += bytes;
    }

    fn remove(&mut self, place: usize) {
        self.bytes -= self.batches.remove(&place).unwrap_or(0);
    }
}
