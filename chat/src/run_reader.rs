//! Reads a run folder while a run writes it, or after it has ended, and tells the dashboard what is new.
//!
//! A run folder may come from anywhere, so nothing in it is trusted: a row that cannot be used is named with
//! its file and line and left out, and no content makes the program fail. Whether a process trains is told by
//! the lock of the folder ([`liveness`]), what it does by `live/` ([`crate::live`]). Folders of earlier
//! versions have no `live/`; they are shown, but take no requests.

mod follow;
mod liveness;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tui::dashboard::{Event, Memory, RankState, RunFacts, Sample, Status};

pub(crate) use self::follow::{Follower, Piece};
use self::liveness::{Holder, NewestRun, State, rank_zero};
pub(crate) use self::liveness::{is_run_folder, read_small};
use crate::config::{self, ConfigError};
use crate::folder::CONFIGURATION;
use crate::live::{self, EventRow, RankFile, RequestFile, RequestKind};
use crate::{output, own_file, stage};

/// Reads one run folder.
pub(crate) struct RunReader {
    out: PathBuf,
    metrics: Follower,
    samples: Follower,
    events: Follower,
    /// What the events say of the newest run in the folder.
    run: NewestRun,
    /// The files that could not be read, so that each is reported once.
    unreadable: Vec<PathBuf>,
    shown: (RunFacts, Vec<RankState>, Memory),
}

impl RunReader {
    /// A reader of `out`. Refuses what is not a run folder.
    pub(crate) fn open(out: &Path) -> Result<Self, ConfigError> {
        let refuse = |problem: &str| ConfigError::Argument {
            argument: out.display().to_string(),
            problem: problem.to_owned(),
        };
        if !out.is_dir() {
            return Err(refuse("there is no such folder: give the `out` of a run"));
        }
        if !is_run_folder(out) {
            let stages = stage::ALL.iter().map(|stage| out.join(stage.schema.name));
            let inside: Vec<String> =
                stages.filter(|path| is_run_folder(path)).map(|path| path.display().to_string()).collect();
            return Err(refuse(&match inside.as_slice() {
                [] => "no run has written here: give the `out` of a run".to_owned(),
                inside => format!("this is the folder of a pipeline: give {}", inside.join(" or ")),
            }));
        }
        Ok(Self::at(out))
    }

    /// A reader of `out`, in which a run may begin later.
    pub(crate) fn at(out: &Path) -> Self {
        Self {
            metrics: Follower::new(out.join("metrics.jsonl")),
            samples: Follower::new(out.join("samples.jsonl")),
            events: Follower::new(live::events_path(out)),
            out: out.to_owned(),
            run: NewestRun::default(),
            unreadable: Vec::new(),
            shown: (RunFacts::default(), Vec::new(), Memory::default()),
        }
    }

    /// Returns what is new, and whether there may be more at once.
    pub(crate) fn poll(&mut self) -> (Vec<Event>, bool) {
        let mut events = Vec::new();
        let mut is_more = false;
        for (file, take) in FILES {
            let follower = file(self);
            let path = follower.path().to_owned();
            match follower.poll() {
                Ok((pieces, more)) => {
                    is_more |= more;
                    self.unreadable.retain(|other| *other != path);
                    for piece in pieces {
                        self.take_piece(piece, &path, take, &mut events);
                    }
                }
                Err(error) => self.report_unreadable(&path, &error.to_string(), &mut events),
            }
        }

        // Facts are sent when they change: the screen would be drawn anew for each.
        let ranks = self.ranks();
        let holder = self.run.holder(&self.out, &ranks);
        let facts = self.facts(self.run.status(&self.out, holder, &ranks));
        let memory = self.memory(&ranks);
        let ranks: Vec<RankState> =
            ranks.into_iter().map(|(file, age)| self.run.rank_state(holder, file, age)).collect();

        if facts != self.shown.0 {
            events.push(Event::Run(facts.clone()));
        }
        if ranks != self.shown.1 {
            events.push(Event::Ranks(ranks.clone()));
        }
        if memory != self.shown.2 {
            events.push(Event::Memory(memory.clone()));
        }
        self.shown = (facts, ranks, memory);
        (events, is_more)
    }

    /// What is known of the run besides its rows, as of the last call of [`Self::poll`].
    pub(crate) fn run(&self) -> &RunFacts {
        &self.shown.0
    }

    /// Asks the run for something. It answers in its events. Refuses a request that no run would take.
    pub(crate) fn ask(&self, request: RequestKind) -> anyhow::Result<()> {
        let out = self.out.display();
        let Some(run) = self.run.id.clone() else {
            anyhow::bail!("{out}: no run that takes requests");
        };
        if let Some(reason) = self.refusal() {
            anyhow::bail!("{out}: {reason}");
        }
        let folder = live::requests_path(&self.out);
        if !own_file::is_folder(&folder) {
            anyhow::bail!("{}: this is no folder, so the run takes no requests", folder.display());
        }

        let nanoseconds = (live::unix_seconds() * 1e9) as u64;
        let name = format!("{nanoseconds}-{}.json", std::process::id());
        let text = serde_json::to_vec(&RequestFile { run, request })?;
        Ok(output::write_new(&folder.join(name), &text)?)
    }

    /// Why the run cannot be asked for anything now, if it cannot.
    fn refusal(&self) -> Option<String> {
        // The last call of `poll` may be a while ago.
        let ranks = self.ranks();
        let host = rank_zero(&ranks).map(|(file, _)| &file.host);
        let holder = self.run.holder(&self.out, &ranks);
        match (self.run.status(&self.out, holder, &ranks), host) {
            (Status::Running, _) if holder == Holder::NextRun => {
                Some("this run cannot be watched and takes no requests; its messages say why".to_owned())
            }
            (Status::Silent { seconds }, Some(host)) if *host != live::host() => Some(format!(
                "the run has said nothing for {seconds} s, and only its machine {host} can tell whether it \
                 lives: ask there"
            )),
            // On this machine it has the lock. It takes the request when the machine lets it go on.
            (Status::Running | Status::Paused { .. } | Status::Silent { .. }, _) => None,
            (Status::Waiting, _) => Some("the run has not begun: ask again when it trains".to_owned()),
            (Status::Finished | Status::Stopped | Status::Ended, _) => {
                Some("nothing runs in this folder".to_owned())
            }
        }
    }

    fn take_piece(&mut self, piece: Piece, path: &Path, take: Take, events: &mut Vec<Event>) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let problem = |number, problem: &str| {
            Event::Problem(format!("warning: {name}: line {number}: {problem}; it is left out"))
        };
        match piece {
            Piece::Restarted => take(self, None, events).unwrap_or_default(),
            Piece::TooLong(number) => events.push(problem(number, "it is too long")),
            Piece::Line(number, line) => {
                let parsed = serde_json::from_slice(&line).map_err(|error| error.to_string());
                if let Err(error) = parsed.and_then(|row| take(self, Some(row), events)) {
                    events.push(problem(number, &error));
                }
            }
        }
    }

    fn report_unreadable(&mut self, path: &Path, error: &str, events: &mut Vec<Event>) {
        if !self.unreadable.iter().any(|other| other == path) {
            events.push(Event::Problem(format!("warning: {}: {error}", path.display())));
            self.unreadable.push(path.to_owned());
        }
    }

    fn take_event(&mut self, row: &EventRow, events: &mut Vec<Event>) {
        let step = row.step.unwrap_or(0);
        let text = row.text.clone().unwrap_or_default();
        let unit = || self.run.stage.as_deref().and_then(stage::find).map_or("step", |s| s.schema.units.step);
        let said = match row.event.as_str() {
            "started" => format!("began after {} {step}", unit()),
            "checkpoint" => format!("saved {text}"),
            "paused" => format!("paused after {} {step}", unit()),
            "continued" => "goes on".to_owned(),
            "finished" => "finished".to_owned(),
            "stopped" => format!("stopped after {} {step}, saved {text}", unit()),
            "failed" => format!("failed after {} {step}: {text}", unit()),
            "message" => text,
            other => format!("{other} {text}"),
        };
        // Old events are no news.
        let is_new = live::unix_seconds() - row.time < 5.0;
        events.push(if is_new { Event::Notice(said) } else { Event::Message(said) });

        self.run.time = row.time.max(self.run.time);
        let state = match row.event.as_str() {
            "started" => {
                self.run = NewestRun {
                    id: row.run.clone(),
                    stage: row.stage.clone(),
                    total_steps: row.total_steps,
                    processes: row.processes.unwrap_or(1),
                    time: row.time,
                    state: None,
                };
                State::Running
            }
            "continued" => State::Running,
            "paused" => State::Paused,
            "finished" => State::Finished,
            "stopped" => State::Stopped,
            "failed" => State::Failed,
            _ => return,
        };
        self.run.state = Some((state, step));
    }

    /// The states of the ranks of the newest run, with their age in seconds.
    fn ranks(&self) -> Vec<(RankFile, f64)> {
        let now = live::unix_seconds();
        let read = |rank| {
            let text = read_small(&live::rank_path(&self.out, rank))?;
            let file: RankFile = serde_json::from_str(&text).ok()?;
            // Another run may have begun since the events were read.
            if file.rank != rank || self.run.id.as_ref() != Some(&file.run) {
                return None;
            }
            let age = (now - file.time).max(0.0);
            Some((file, age))
        };
        // Rows of a stranger may claim any number of processes.
        (0..self.run.processes.min(4096)).filter_map(read).collect()
    }

    fn facts(&self, status: Status) -> RunFacts {
        let plan = read_small(&self.out.join("plan.json"))
            .and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let plan = plan.unwrap_or_default();
        let stage = self.run.stage.clone().or_else(|| plan["stage"].as_str().map(str::to_owned));
        let stage = stage.unwrap_or_default();
        let known = stage::find(&stage);
        RunFacts {
            name: self.out.display().to_string(),
            charts: known.map_or(&[], |stage| stage.charts),
            has_samples: known.is_some_and(|stage| stage.schema.has_rollouts),
            unit: known.map_or("step", |stage| stage.schema.units.step).to_owned(),
            total_steps: self.run.total_steps.or_else(|| plan["steps"].as_u64()),
            status,
            takes_requests: self.run.id.is_some(),
            settings: self.settings(),
            stage,
        }
    }

    /// The settings that are numbers.
    fn settings(&self) -> Vec<(String, f64)> {
        let text = read_small(&self.out.join(CONFIGURATION)).unwrap_or_default();
        let settings = config::flatten_toml(&text).unwrap_or_default();
        settings.into_iter().filter_map(|(key, value)| Some((key, value.parse().ok()?))).collect()
    }

    /// The memory of the models as planned, and of the tiers of the rank that has most in use.
    fn memory(&self, ranks: &[(RankFile, f64)]) -> Memory {
        let plan = read_small(&self.out.join("plan.json"))
            .and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let plan = plan.unwrap_or_default();
        let model = |model: &Value| {
            let sizes = ["weights", "gradients", "optimizer"].map(|part| model[part].as_u64().unwrap_or(0));
            Some((model["role"].as_str()?.to_owned(), sizes))
        };
        let models = plan["memory"].as_array().into_iter().flatten().filter_map(model).collect();
        let largest = ranks.iter().max_by_key(|(rank, _)| rank.resident_bytes);
        let mut tiers = Vec::new();
        if let Some((rank, _)) = largest {
            tiers.push((format!("rank {}, peak", rank.rank), rank.peak_bytes, None));
            tiers.extend(rank.tiers.iter().map(|tier| (tier.name.clone(), tier.bytes, tier.limit)));
        }
        Memory { models, tiers }
    }
}

/// Takes one row of a file, or forgets all rows if there is none. Says what is wrong with a row.
type Take = fn(&mut RunReader, Option<Value>, &mut Vec<Event>) -> Result<(), String>;

/// The follower of one file.
type OfFile = fn(&mut RunReader) -> &mut Follower;

/// The files of rows, with what is done with a row.
const FILES: [(OfFile, Take); 3] = [
    (
        |reader| &mut reader.events,
        |reader, row, events| {
            let Some(row) = row else {
                reader.run = NewestRun::default();
                return Ok(());
            };
            let row: EventRow = serde_json::from_value(row).map_err(|error| error.to_string())?;
            reader.take_event(&row, events);
            Ok(())
        },
    ),
    (
        |reader| &mut reader.metrics,
        |_, row, events| {
            let event = row.map_or(Ok(Event::ForgetRows), |row| metrics_row(&row))?;
            events.push(event);
            Ok(())
        },
    ),
    (
        |reader| &mut reader.samples,
        |_, row, events| {
            let event = row.map_or(Ok(Event::ForgetSamples), |row| sample_row(&row))?;
            events.push(event);
            Ok(())
        },
    ),
];

/// Reads a row of `metrics.jsonl`. Null stands for a number that is not finite.
fn metrics_row(row: &Value) -> Result<Event, String> {
    let row = object(row)?;
    let number = |(name, value): (&String, &Value)| match value {
        Value::Null => Ok((name.clone(), f64::NAN)),
        value => {
            value.as_f64().map(|value| (name.clone(), value)).ok_or_else(|| format!("`{name}` is no number"))
        }
    };
    let numbers = row.iter().filter(|(name, _)| *name != "step").map(number).collect::<Result<_, _>>()?;
    Ok(Event::Row { step: step(row)?, numbers })
}

/// Reads a row of `samples.jsonl`.
fn sample_row(row: &Value) -> Result<Event, String> {
    let row = object(row)?;
    let text = |name: &str| {
        let text = row.get(name).and_then(Value::as_str).map(str::to_owned);
        text.ok_or_else(|| format!("`{name}` is no text"))
    };
    let score = row.get("score").and_then(Value::as_f64).unwrap_or(f64::NAN);
    Ok(Event::Sample(Sample { step: step(row)?, prompt: text("prompt")?, reply: text("reply")?, score }))
}

fn object(row: &Value) -> Result<&Map<String, Value>, String> {
    row.as_object().ok_or_else(|| "this is no JSON object".to_owned())
}

fn step(row: &Map<String, Value>) -> Result<u64, String> {
    row.get("step").and_then(Value::as_u64).ok_or_else(|| "`step` is no whole number".to_owned())
}

#[cfg(test)]
mod tests;
