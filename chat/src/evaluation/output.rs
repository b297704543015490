//! The folder of an evaluation: which files it holds, and that it is one evaluation's alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use eval::evaluation::{Evaluation, ModelRun};
use eval::results::{Notes, Results, html, sample_rows};
use serde_json::{Value, json};

use crate::config::ConfigError;
use crate::feedback::timestamp::Timestamp;
use crate::{folder, output};

/// What makes a folder one of ours, and what it was asked.
const SETTINGS: &str = "settings.json";

/// What the files say of a run besides its results.
pub(super) struct RunNotes<'a> {
    /// When it started.
    pub(super) started: String,
    /// The command line.
    pub(super) command: &'a str,
    /// The time from its start to the scores.
    pub(super) elapsed: Duration,
}

/// The folder of the results.
pub(crate) struct OutputFolder {
    path: PathBuf,
}

impl OutputFolder {
    /// Starts a folder, or continues one with the same settings. A folder of anything else is refused;
    /// `force` replaces the results of another evaluation, and keeps the answers that both share.
    pub(crate) fn open(path: &Path, settings: &Value, force: bool) -> anyhow::Result<Self> {
        Self::check(path, settings, force)?;
        folder::acquire_lock(path)?;
        output::write_atomically(&path.join(SETTINGS), &json_bytes(settings)?)?;
        Ok(Self { path: path.to_owned() })
    }

    /// Writes the settings into a folder that [`OutputFolder::open`] would not refuse, so that it is this
    /// evaluation's from now on.
    pub(super) fn claim(path: &Path, settings: &Value, force: bool) -> anyhow::Result<()> {
        Self::check(path, settings, force)?;
        folder::refuse_locked(path)?;
        Ok(output::write_atomically(&path.join(SETTINGS), &json_bytes(settings)?)?)
    }

    fn check(path: &Path, settings: &Value, force: bool) -> anyhow::Result<()> {
        folder::check_place(path)?;
        let file = path.join(SETTINGS);
        let held = match fs::read(&file) {
            Ok(bytes) => Some(serde_json::from_slice::<Value>(&bytes).unwrap_or(Value::Null)),
            Err(_) => None,
        };
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

/// A name as the name of a file: other characters than letters, digits, `-`, `_` and `.` become `_`.
pub(crate) fn file_name(name: &str) -> String {
    const LONGEST: usize = 100;
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    let safe: String = name.chars().map(safe).take(LONGEST).collect();
    if safe.trim_matches('.').is_empty() { "model".to_owned() } else { safe }
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
    fn names_of_models_never_leave_the_folder() {
        for (name, file) in
            [("sft", "sft"), ("../x", ".._x"), ("..", "model"), ("a/b c", "a_b_c"), ("中文", "__")]
        {
            assert_eq!(file_name(name), file);
        }
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
