//! Encodes rows on all cores while they are read, and returns the results in file order.
//!
//! The caller's thread reads batches and sends them to the worker threads through a bounded queue, so that
//! memory use does not grow with the file. Batches that finish out of order wait for the earlier ones.
//! Encoding stops at the first error in file order.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use crate::error::{Result, RowLocation};

/// Number of rows per batch.
const BATCH: usize = 128;

/// A batch with its index in the file.
type Batch<S> = (usize, Vec<(RowLocation, S)>);

/// Encodes every source of every row and passes the results to `take` in order. A row has any number of
/// sources.
pub(super) fn encode<S: Send, F: Send>(
    rows: impl Iterator<Item = Result<(RowLocation, Vec<S>)>>,
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
    mut rows: impl Iterator<Item = Result<(RowLocation, Vec<S>)>>,
    to_workers: SyncSender<Batch<S>>,
    encoded: &Receiver<(usize, Result<Vec<F>>)>,
    mut take: impl FnMut(Vec<F>),
) -> Result<()> {
    let (mut sent, mut taken) = (0, 0);
    let mut waiting = BTreeMap::new();
    let mut failed = None;

    let mut hand_on = |place: usize, result: Result<Vec<F>>| -> Result<()> {
        waiting.insert(place, result);
        while let Some(result) = waiting.remove(&taken) {
            take(result?);
            taken += 1;
        }
        Ok(())
    };

    while failed.is_none() {
        let mut batch = Vec::new();
        while batch.len() < BATCH {
            match rows.next() {
                None => break,
                Some(Ok((at, sources))) => {
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
        if to_workers.send((sent, batch)).is_err() {
            break;
        }
        sent += 1;
        while let Ok((place, result)) = encoded.try_recv() {
            hand_on(place, result)?;
        }
    }

    // Closing the queue ends the workers, which closes `encoded` after the last result.
    drop(to_workers);
    for (place, result) in encoded {
        hand_on(place, result)?;
    }
    failed.map_or(Ok(()), Err)
}
