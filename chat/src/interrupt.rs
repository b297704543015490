//! Ctrl-C as a flag: the first one asks the work at hand to end, a second one before it has ended ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit;

/// What Ctrl-C (SIGINT) and a request to end (SIGTERM) have asked for.
pub(crate) struct Interrupt {
    stop: Arc<AtomicBool>,
    idle: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on. Call once.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let (stop, idle) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for signal in [SIGINT, SIGTERM] {
            let register = || {
                // In this order: the flags are looked at before this signal sets one.
                flag::register_conditional_shutdown(signal, exit::INTERRUPTED.into(), Arc::clone(&idle))?;
                flag::register_conditional_shutdown(signal, exit::INTERRUPTED.into(), Arc::clone(&stop))?;
                flag::register(signal, Arc::clone(&stop))
            };
            register().context("cannot listen for Ctrl-C")?;
        }
        Ok(Self { stop, idle })
    }

    /// The flag that a stage looks at after each step.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.stop
    }

    /// Whether somebody asked.
    pub(crate) fn is_set(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Work begins: what was asked before is forgotten, and Ctrl-C asks.
    pub(crate) fn begin(&self) {
        self.stop.store(false, Ordering::Relaxed);
        self.idle.store(false, Ordering::Relaxed);
    }

    /// No work is at hand: Ctrl-C ends the program.
    pub(crate) fn wait(&self) {
        self.idle.store(true, Ordering::Relaxed);
    }
}
