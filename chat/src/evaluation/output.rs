//! The folder of an evaluation: which files it holds, and that it is one evaluation's alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use eval::evaluation::{Evaluation, ModelRun};
use eval::request::sha256;
use eval::results::{Notes, Results, html, sample_rows};
use serde::Deserialize;
use serde_json::{Value, json};

use super::endpoint::ENDPOINT_DIGEST;
use crate::config::ConfigError;
use crate::exit::Failure;
use crate::feedback::timestamp::Timestamp;
use crate::{folder, output};

/// What makes a folder one of ours, and what it was asked.
const SETTINGS: &str = "settings.json";
/// What holds the results of `eval`, `eval judge` and `eval rm`. First the files that say that the others are
/// whole. Answers are kept.
const RESULTS: [&str; 11] = [
    "results.json",
    "judge.json",
    "rm.json",
    "summary.md",
    "summary.csv",
    "report.html",
    "environment.json",
    "judgements.jsonl",
    "samples.jsonl",
    "samples",
    "lm_eval",
];

/// What the files say of a run besides its results.
pub(super) struct RunNotes<'a> {
    /// When it started.
    pub(super) started: String,
    /// The command line.
    pub(super) command: &'a str,
    /// The time from its start to the scores.
    pub(super) elapsed: Duration,
}

/// A line of a file of answers.
#[derive(Deserialize)]
struct KeptAnswer {
    /// The hash of the model.
    model: String,
}

/// The folder of the results.
pub(crate) struct OutputFolder {
    path: PathBuf,
}

impl OutputFolder {
    /// Starts a folder, or continues one with the same settings. A folder of anything else is refused;
    /// `force` replaces the results of another evaluation, and keeps the answers that both share. With the
    /// same settings it forgets the answers of endpoints, which may have other weights by now.
    pub(crate) fn open(path: &Path, settings: &Value, force: bool) -> anyhow::Result<Self> {
        Self::check(path, settings, force)?;
        folder::acquire_lock(path)?;
        if force && held_settings(path).as_ref() == Some(settings) {
            forget_endpoints(path)?;
        }
        begin(path, settings)?;
        Ok(Self { path: path.to_owned() })
    }

    /// Writes the settings into a folder that [`OutputFolder::open`] would not refuse, so that it is this
    /// evaluation's from now on.
    pub(super) fn claim(path: &Path, settings: &Value, force: bool) -> anyhow::Result<()> {
        Self::check(path, settings, force)?;
        folder::refuse_locked(path)?;
        begin(path, settings)
    }

    /// Fails if this process does not see the folder that rank 0 has started: each would wait for the others
    /// without end, and answers would be missing.
    pub(super) fn check_shared(path: &Path, rank: usize) -> Result<(), Failure> {
        if path.join(SETTINGS).is_file() {
            return Ok(());
        }
        let problem = format!(
            "rank {rank} does not see what rank 0 wrote here: give an --output that all machines share"
        );
        Err(Failure::File { path: path.to_owned(), problem })
    }

    fn check(path: &Path, settings: &Value, force: bool) -> anyhow::Result<()> {
        folder::check_place(path)?;
        let held = held_settings(path);
        match &held {
            None if gemini::checkpoint::is_occupied(path) => {
                let problem =
                    "it holds something else than an evaluation: choose another --output".to_owned();
                return Err(ConfigError::BadOut { path: path.to_owned(), problem }.into());
            }
            Some(held) if held != settings && !force => {
                let problem = format!(
                    "it holds another evaluation ({}): choose another --output, or replace it with --force",
                    difference(held, settings)
                );
                return Err(ConfigError::BadOut { path: path.to_owned(), problem }.into());
            }
            _ => {}
        }
        Ok(())
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the results. `results.json` and the samples depend on nothing but models, tasks and settings;
    /// what depends on this run is in `environment.json`.
    pub(super) fn write(
        &self,
        evaluation: &Evaluation,
        runs: &[ModelRun],
        results: &Results,
        run_notes: &RunNotes<'_>,
    ) -> anyhow::Result<()> {
        for (run, model) in runs.iter().zip(&results.models) {
            let name = file_name(&run.name);
            for (prepared, samples) in evaluation.tasks.iter().zip(&run.samples) {
                let mut lines = String::new();
                for row in sample_rows(prepared, samples) {
                    lines.push_str(&serde_json::to_string(&row)?);
                    lines.push('\n');
                }
                let file = format!("samples/{name}/{}.jsonl", prepared.task.task);
                self.put(&file, lines.as_bytes())?;
            }
            let shaped = results.lm_eval(evaluation, model);
            self.put(&format!("lm_eval/{name}.json"), &json_bytes(&shaped)?)?;
        }
        self.put("summary.md", results.markdown().as_bytes())?;
        self.put("summary.csv", results.csv().as_bytes())?;
        self.put("environment.json", &json_bytes(&environment(runs, run_notes))?)?;
        let notes = Notes {
            title: "Evaluation".to_owned(),
            command: run_notes.command.to_owned(),
            started: run_notes.started.clone(),
            elapsed_seconds: runs.iter().map(|run| run.elapsed.as_secs_f64()).collect(),
        };
        self.put("report.html", html(results, evaluation, runs, &notes)?.as_bytes())?;
        // The last file: where it stands, the evaluation is whole.
        self.put("results.json", &json_bytes(&serde_json::to_value(results)?)?)
    }

    /// Writes one file. A reader never sees half of it.
    pub(crate) fn put(&self, file: &str, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(output::write_atomically(&self.path.join(file), bytes)?)
    }
}

/// The settings that a folder holds; null if they cannot be read.
fn held_settings(path: &Path) -> Option<Value> {
    let bytes = fs::read(path.join(SETTINGS)).ok()?;
    Some(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// Writes the settings. The results of other settings go first: nobody must take them for those of these.
fn begin(path: &Path, settings: &Value) -> anyhow::Result<()> {
    if held_settings(path).is_some_and(|held| held != *settings) {
        for result in RESULTS {
            remove(&path.join(result))?;
        }
    }
    Ok(output::write_atomically(&path.join(SETTINGS), &json_bytes(settings)?)?)
}

/// Forgets the answers of endpoints, so that they are asked again.
fn forget_endpoints(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if !name.contains("responses") || file.extension().is_none_or(|found| found != "jsonl") {
            continue;
        }
        let held = fs::read(&file)?;
        let is_kept = |line: &&[u8]| {
            let line = serde_json::from_slice::<KeptAnswer>(line);
            line.is_ok_and(|line| !line.model.ends_with(ENDPOINT_DIGEST))
        };
        let lines: Vec<&[u8]> = held.split_inclusive(|&byte| byte == b'\n').collect();
        let kept: Vec<&[u8]> = lines.iter().copied().filter(is_kept).collect();
        if kept.len() < lines.len() {
            output::write_atomically(&file, &kept.concat())?;
        }
    }
    Ok(())
}

/// Removes a file, or a folder with all that is in it.
fn remove(path: &Path) -> Result<(), Failure> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let problem =
                format!("the results of other settings cannot be removed: {error}; choose another --output");
            Err(Failure::File { path: path.to_owned(), problem })
        }
        _ => Ok(()),
    }
}

/// A name as the name of a file: other characters than letters, digits, `-`, `_` and `.` become `_`, and what
/// is too long is cut. A hash keeps apart names that then would be the same.
pub(crate) fn file_name(name: &str) -> String {
    const LONGEST: usize = 100;
    const HASH: usize = 8;
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    let safe: String = name.chars().map(safe).take(LONGEST).collect();
    let safe = if safe.trim_matches('.').is_empty() { "model".to_owned() } else { safe };
    if safe == name { safe } else { format!("{safe}-{}", &sha256(name.as_bytes())[..HASH]) }
}

/// A JSON value as the contents of a file.
pub(crate) fn json_bytes(value: &Value) -> anyhow::Result<Vec<u8>> {
    Ok(format!("{}\n", serde_json::to_string_pretty(value)?).into_bytes())
}

/// The settings in which two evaluations differ.
fn difference(held: &Value, settings: &Value) -> String {
    let keys = settings.as_object().into_iter().flatten();
    let differ = keys.filter(|(key, value)| held.get(key) != Some(value)).map(|(key, _)| key.as_str());
    let differ: Vec<&str> = differ.collect();
    if differ.is_empty() {
        "its settings.json is damaged".to_owned()
    } else {
        format!("other {}", differ.join(", "))
    }
}

fn environment(runs: &[ModelRun], notes: &RunNotes<'_>) -> Value {
    let models =
        runs.iter().map(|run| json!({"name": run.name, "request_seconds": run.elapsed.as_secs_f64()}));
    json!({
        "started": notes.started,
        "finished": Timestamp::now().to_string(),
        "seconds": notes.elapsed.as_secs_f64(),
        "models": models.collect::<Vec<_>>(),
        "command": notes.command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_a_rank_does_not_share_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = OutputFolder::check_shared(folder.path(), 3).unwrap_err().to_string();
        assert!(error.contains("rank 3 does not see") && error.contains("--output"), "{error}");
        OutputFolder::claim(&folder.path().join("out"), &json!({}), false).unwrap();
        assert!(OutputFolder::check_shared(&folder.path().join("out"), 3).is_ok());
    }

    #[test]
    fn names_of_models_never_leave_the_folder() {
        for (name, file) in
            [("../x", ".._x-"), ("..", "model-"), ("", "model-"), ("a/b c", "a_b_c-"), ("中文", "__-")]
        {
            assert_eq!(file_name(name).rsplit_once('-').unwrap().0, &file[..file.len() - 1]);
        }
        assert_eq!(file_name("sft-1.5"), "sft-1.5");
    }

    #[test]
    fn names_that_differ_are_files_that_differ() {
        let long = "x".repeat(100);
        let names =
            ["模型甲", "模型乙", "___", &long, &format!("{long}1"), &format!("{long}2"), "a/b", "a_b"];
        let files: std::collections::BTreeSet<String> = names.iter().map(|name| file_name(name)).collect();
        assert_eq!(files.len(), names.len(), "{files:?}");
    }

    #[test]
    fn the_results_of_other_settings_go_and_answers_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("results");
        let settings = json!({"tasks": ["a"]});
        let folder = OutputFolder::open(&path, &settings, false).unwrap();
        for file in ["results.json", "responses.jsonl", "samples/old/a.jsonl"] {
            folder.put(file, b"{}").unwrap();
        }
        drop(folder);
        let names = || {
            let mut names: Vec<String> = fs::read_dir(&path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| !name.starts_with('.'))
                .collect();
            names.sort();
            names
        };
        drop(OutputFolder::open(&path, &settings, false).unwrap());
        assert_eq!(names(), ["responses.jsonl", "results.json", "samples", "settings.json"]);
        drop(OutputFolder::open(&path, &json!({"tasks": ["b"]}), true).unwrap());
        assert_eq!(names(), ["responses.jsonl", "settings.json"]);
    }

    #[test]
    fn a_folder_is_one_evaluations_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("results");
        let settings = json!({"tasks": ["a"], "limit": 1});
        drop(OutputFolder::open(&path, &settings, false).unwrap());
        drop(OutputFolder::open(&path, &settings, false).unwrap());
        let other = json!({"tasks": ["b"], "limit": 1});
        let error = OutputFolder::open(&path, &other, false).err().unwrap().to_string();
        assert!(error.contains("other tasks") && error.contains("--force"), "{error}");
        drop(OutputFolder::open(&path, &other, true).unwrap());

        let foreign = scratch.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("mine.txt"), "").unwrap();
        assert!(OutputFolder::open(&foreign, &settings, true).is_err());
    }
}
