//! The recorder that appends the events of a run to `live/events.jsonl`. Only rank 0 records.
//!
//! What only observers read must not end a training run: where nothing can be written, a warning says what
//! and why, and the run trains on without observers.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use rlhf::Error;
use rlhf::event::{Event, Recorder};

use super::files;
use super::format::{EventRow, events_path};
use super::shared::Shared;
use crate::console::print_stderr;
use crate::own_file::{self, io_error};

/// Appends the events of a run to `live/events.jsonl`.
pub(crate) struct EventLog {
    shared: Arc<Shared>,
    /// None before the run begins, and after a failed write.
    file: Option<File>,
}

impl EventLog {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), file: None }
    }

    /// Prepares the folder for this run: nothing that an earlier run left there is taken for this run. A
    /// resumed run keeps the events of the run before it.
    fn start(&mut self, stage: &str, total_steps: u64, step: u64) {
        let mut row = EventRow::new("started", Some(step));
        row.run = Some(self.shared.run.clone());
        row.stage = Some(stage.to_owned());
        row.total_steps = Some(total_steps);
        row.processes = Some(self.shared.ranks);

        let path = events_path(&self.shared.out);
        let open = || match step {
            // By its rename, the file appears together with its first row.
            0 => own_file::replace(&path, |file| append(file, &row)),
            _ => own_file::open_to_append(&path).and_then(|mut file| append(&mut file, &row).map(|()| file)),
        };
        match files::prepare(&self.shared.out).and_then(|()| open().map_err(io_error(&path))) {
            Ok(file) => self.file = Some(file),
            Err(error) => {
                self.shared.lock().is_watched = false;
                print_stderr(&format!(
                    "warning: this run cannot be watched and takes no requests, but it trains: {error}"
                ));
            }
        }
    }

    fn append(&mut self, row: &EventRow) -> Result<(), Error> {
        let Some(file) = &mut self.file else { return Ok(()) };
        append(file, row).map_err(io_error(&events_path(&self.shared.out)))
    }

    /// Appends how the run has ended.
    pub(crate) fn end(&mut self, outcome: &Result<(), Error>) {
        let step = self.shared.lock().step;
        let row = match outcome {
            Ok(()) => EventRow::new("finished", None),
            Err(Error::Interrupted { path }) => {
                EventRow::new("stopped", Some(step)).text(&path.display().to_string())
            }
            Err(error) => EventRow::new("failed", Some(step)).text(&error.to_string()),
        };
        if let Err(error) = self.append(&row) {
            print_stderr(&format!("warning: {error}: the end of this run is not noted"));
        }
    }
}

fn append(file: &mut File, row: &EventRow) -> io::Result<()> {
    let mut line = serde_json::to_string(row)?;
    line.push('\n');
    file.write_all(line.as_bytes()).and_then(|()| file.sync_data())
}

impl Recorder for EventLog {
    fn record(&mut self, event: &Event<'_>) -> Result<(), Error> {
        let row = match event {
            Event::Started { stage, total_steps, step } => {
                self.start(stage, *total_steps, *step);
                return Ok(());
            }
            Event::Checkpoint { step, path } => {
                EventRow::new("checkpoint", Some(*step)).text(&path.display().to_string())
            }
            Event::Paused { step } => EventRow::new("paused", Some(*step)),
            Event::Continued { step } => EventRow::new("continued", Some(*step)),
            Event::Message(text) => EventRow::new("message", None).text(text),
            Event::Step { .. } | Event::Evaluated { .. } | Event::Sample { .. } | Event::Finished => {
                return Ok(());
            }
        };
        // A full disk, for example.
        if let Err(error) = self.append(&row) {
            print_stderr(&format!("warning: {error}: observers are told no more of this run"));
            self.file = None;
        }
        Ok(())
    }
}
