//! How far a file has been read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The read progress of a file. It may be read from another thread.
#[derive(Clone, Debug)]
pub struct Position {
    done: Arc<AtomicU64>,
    whole: u64,
}

impl Position {
    pub(super) fn new(whole: u64) -> Self {
        Self { done: Arc::default(), whole }
    }

    pub(super) fn add(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the units that have been read.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns the fraction of the file that has been read, from 0 to 1.
    pub fn share(&self) -> f64 {
        (self.done() as f64 / self.whole.max(1) as f64).min(1.0)
    }
}
