//! Rows encoded on all cores while they are read, and handed on in the order of the file.
//!
//! The caller's thread reads batches and hands them to the workers through a short queue, so that memory does
//! not grow with the file; what comes back out of order waits. The first error, in the order of the file,
//! ends it.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use crate::error::{Result, RowLocation};

/// Rows that a worker takes at a time.
const BATCH: usize = 128;

/// A batch with its place.
type Batch<S> = (usize, Vec<(RowLocation, S)>);

/// Encodes every row of `rows`, each of which gives any number of sources, and hands the results to `take` in
/// order.
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
        // The workers hold the only other ends: when they are gone, the queues close.
        drop((batches, to_caller));
        feed(rows, to_workers, &encoded, take)
    })
}

/// Encodes batches until there are no more.
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

/// Reads batches for the workers and hands on what comes back.
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
                    // The rows before it may hold an earlier error.
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
    drop(to_workers);
    for (place, result) in encoded {
        hand_on(place, result)?;
    }
    failed.map_or(Ok(()), Err)
}
