//! The recorders of a stage: the files in the run folder to which its events are written.
//!
//! ```text
//! out/metrics.jsonl     one row per logged step or evaluation: `step`, then the metrics; NaN and inf: null
//!     samples.jsonl     replies: `step`, `prompt`, `reply`, `score`
//!     tensorboard/      the same metrics as event files
//! ```
//! Every row is written (but not synced) before the next step begins. A resumed run first drops the rows
//! after the step from which it continues, so that the file contains each step only once.

mod tensorboard;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use parallel::regular_file;
use rlhf::Error;
use rlhf::event::{Event, Metrics, Recorder};
use serde_json::{Map, Value};
use tensorboard::EventWriter;

use crate::own_file::{self, io_error};

/// No file of rows is longer, in bytes.
const LARGEST_ROWS: u64 = 4 << 30;

/// Several recorders that receive every event in order.
pub(crate) struct MultiRecorder<'a>(pub(crate) Vec<Box<dyn Recorder + 'a>>);

impl Recorder for MultiRecorder<'_> {
    fn record(&mut self, event: &Event<'_>) -> Result<(), Error> {
        self.0.iter_mut().try_for_each(|recorder| recorder.record(event))
    }
}

/// Opens the run folder when the stage starts: by then nothing can refuse the run any more.
pub(crate) struct FolderRecorder<F>(pub(crate) F);

impl<F: FnMut() -> anyhow::Result<()>> Recorder for FolderRecorder<F> {
    fn record(&mut self, event: &Event<'_>) -> Result<(), Error> {
        match event {
            Event::Started { .. } => (self.0)().map_err(|error| {
                // The plain conversion hides the type of the error, which decides the exit code.
                Error::Recorder(error.reallocate_into_boxed_dyn_error_without_backtrace())
            }),
            _ => Ok(()),
        }
    }
}

/// Writes `metrics.jsonl` and `samples.jsonl`.
pub(crate) struct JsonlRecorder {
    metrics: PathBuf,
    samples: PathBuf,
    open: Option<(File, File)>,
}

impl JsonlRecorder {
    /// A recorder for the run folder `out`. The files are opened when the stage starts.
    pub(crate) fn new(out: &Path) -> Self {
        Self { metrics: out.join("metrics.jsonl"), samples: out.join("samples.jsonl"), open: None }
    }

    /// Opens both files and keeps their rows up to `step`, after which the stage continues.
    fn start(&mut self, step: u64) -> Result<(), Error> {
        self.open = Some((truncate_after(&self.metrics, step)?, truncate_after(&self.samples, step)?));
        Ok(())
    }

    fn metrics(&mut self, step: u64, metrics: &Metrics) -> Result<(), Error> {
        let mut row = Map::from_iter([("step".to_owned(), step.into())]);
        row.extend(metrics.0.iter().map(|(name, number)| (name.clone(), Value::from(*number))));
        self.started()?;
        let Some((file, _)) = &mut self.open else { return Ok(()) };
        append(file, &self.metrics, row)
    }

    fn sample(&mut self, step: u64, texts: [(&str, &str); 2], score: f64) -> Result<(), Error> {
        let mut row = Map::from_iter([("step".to_owned(), step.into())]);
        row.extend(texts.map(|(name, text)| (name.to_owned(), text.into())));
        row.insert("score".to_owned(), score.into());
        self.started()?;
        let Some((_, file)) = &mut self.open else { return Ok(()) };
        append(file, &self.samples, row)
    }

    /// Opens the files if no `Started` event has arrived yet, as for a stage that starts at step 0.
    fn started(&mut self) -> Result<(), Error> {
        if self.open.is_none() { self.start(0) } else { Ok(()) }
    }
}

impl Recorder for JsonlRecorder {
    fn record(&mut self, event: &Event<'_>) -> Result<(), Error> {
        match event {
            Event::Started { step, .. } => self.start(*step),
            Event::Step { step, metrics, .. } | Event::Evaluated { step, metrics } => {
                self.metrics(*step, metrics)
            }
            Event::Sample { step, prompt, reply, score } => {
                self.sample(*step, [("prompt", prompt), ("reply", reply)], *score)
            }
            _ => Ok(()),
        }
    }
}

/// Writes TensorBoard event files under `tensorboard/`.
pub(crate) struct TensorboardRecorder {
    folder: PathBuf,
    writer: Option<EventWriter>,
}

impl TensorboardRecorder {
    /// A recorder for the run folder `out`.
    pub(crate) fn new(out: &Path) -> Self {
        Self { folder: out.join("tensorboard"), writer: None }
    }

    fn start(&mut self, step: u64) -> Result<(), Error> {
        if step == 0 {
            tensorboard::remove_events(&self.folder)?;
        }
        self.writer = Some(EventWriter::create(&self.folder, (step > 0).then_some(step))?);
        Ok(())
    }
}

impl Recorder for TensorboardRecorder {
    fn record(&mut self, event: &Event<'_>) -> Result<(), Error> {
        match event {
            Event::Started { step, .. } => self.start(*step),
            Event::Step { step, metrics, .. } | Event::Evaluated { step, metrics } => {
                match &mut self.writer {
                    Some(writer) => writer.scalars(*step, &metrics.0),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Replaces a JSONL file by one with the rows whose `step` is at most `step`, and opens it for appending.
///
/// A last row that a crash left incomplete is dropped as well.
fn truncate_after(path: &Path, step: u64) -> Result<File, Error> {
    let failed = io_error(path);
    if step == 0 {
        return own_file::replace(path, |_| Ok(())).map_err(failed);
    }
    let old = match regular_file::read_to_string(path, LARGEST_ROWS) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        other => other.map_err(&failed)?,
    };
    let stands = |line: &&str| {
        serde_json::from_str::<Value>(line).is_ok_and(|row| row["step"].as_u64().is_some_and(|at| at <= step))
    };
    let kept: String = old.lines().filter(stands).flat_map(|line| [line, "\n"]).collect();
    own_file::replace(path, |file| file.write_all(kept.as_bytes()).and_then(|()| file.sync_all()))
        .map_err(failed)
}

/// Appends one row with a single write.
fn append(file: &mut File, path: &Path, row: Map<String, Value>) -> Result<(), Error> {
    let mut line = Value::Object(row).to_string();
    line.push('\n');
    file.write_all(line.as_bytes()).map_err(io_error(path))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

    use super::*;

    fn step(rows: &mut JsonlRecorder, step: u64, loss: f64) {
        let mut metrics = Metrics::default();
        metrics.push("loss", loss);
        rows.record(&Event::Step { step, metrics: &metrics, tokens: 0 }).unwrap();
    }

    fn started(rows: &mut JsonlRecorder, step: u64) {
        rows.record(&Event::Started { stage: "sft", total_steps: 9, step }).unwrap();
    }

    #[test]
    fn a_row_holds_its_step_first_and_null_for_what_is_no_number() {
        let folder = tempfile::tempdir().unwrap();
        let mut rows = JsonlRecorder::new(folder.path());
        started(&mut rows, 0);
        step(&mut rows, 1, 0.5);
        step(&mut rows, 2, f64::NAN);
        let sample = Event::Sample { step: 2, prompt: "2 + 2\n", reply: "4", score: 1.0 };
        rows.record(&sample).unwrap();
        let read = |name| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("metrics.jsonl"), "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":null}\n");
        assert_eq!(
            read("samples.jsonl"),
            "{\"step\":2,\"prompt\":\"2 + 2\\n\",\"reply\":\"4\",\"score\":1.0}\n"
        );
    }

    #[test]
    fn a_resumed_run_drops_what_lies_beyond_and_a_row_cut_in_two() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut rows = JsonlRecorder::new(folder.path());
        started(&mut rows, 0);
        (1..=3).for_each(|at| step(&mut rows, at, 1.0));
        drop(rows);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"step\":2,\"lo").unwrap();
        let mut rows = JsonlRecorder::new(folder.path());
        started(&mut rows, 2);
        step(&mut rows, 3, 7.0);
        let expected = "{\"step\":1,\"loss\":1.0}\n{\"step\":2,\"loss\":1.0}\n{\"step\":3,\"loss\":7.0}\n";
        assert_eq!(fs::read_to_string(path).unwrap(), expected);
    }

    #[test]
    fn a_fresh_run_begins_its_files_anew() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("metrics.jsonl"), "{\"step\":99}\n").unwrap();
        let mut rows = JsonlRecorder::new(folder.path());
        started(&mut rows, 0);
        assert_eq!(fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap(), "");
    }

    #[test]
    fn every_recorder_is_told_in_order_and_the_first_error_ends_it() {
        struct Fails;
        impl Recorder for Fails {
            fn record(&mut self, _: &Event<'_>) -> Result<(), Error> {
                Err(Error::NoRows { stage: "sft", fix: "x" })
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let mut many = MultiRecorder(vec![Box::new(JsonlRecorder::new(folder.path())), Box::new(Fails)]);
        assert!(many.record(&Event::Started { stage: "sft", total_steps: 1, step: 0 }).is_err());
        assert!(folder.path().join("metrics.jsonl").exists());
    }
}
