//! The folder of the results of `eval`, `eval judge` and `eval rm`.
//!
//! Its marker lists the files of results, and only these files are ever removed ([`crate::own_folder`]).
//! Answers are kept as they come, under hashes of model and request, whatever the settings are;
//! `settings.json` is written with the results that it decides, so a command that fails before leaves the
//! folder as it was. The results of `eval` accumulate: settings that add models and tasks to those of the
//! folder continue it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use eval::evaluation::{Evaluation, ModelRun};
use eval::request::sha256;
use eval::response_cache::ResponseCache;
use eval::results::{Notes, Results, html, sample_rows};
use inference::language_model::ENDPOINT_DIGEST;
use parallel::regular_file;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::ConfigError;
use crate::failure::Failure;
use crate::feedback::timestamp::Timestamp;
use crate::folder;
use crate::own_file::{self, io_error};
use crate::own_folder::{self, Claim, FolderKind, LARGEST_SETTINGS, LOCK, MARKER};

/// What was asked.
const SETTINGS: &str = "settings.json";
/// The files that say that the others are whole.
const LAST_FILES: [&str; 3] = ["results.json", "judge.json", "rm.json"];
/// The names directly in the folder.
const NAMES: [&str; 18] = [
    SETTINGS,
    LAST_FILES[0],
    LAST_FILES[1],
    LAST_FILES[2],
    "summary.md",
    "summary.csv",
    "report.html",
    "environment.json",
    "judgements.jsonl",
    "samples.jsonl",
    "samples",
    "lm_eval",
    "answers",
    "logs",
    "responses.jsonl",
    "answer_responses.jsonl",
    "judge_responses.jsonl",
    "score_responses.jsonl",
];
/// The lists in the settings of `eval` to which a later command may add.
const LISTS: [&str; 5] = ["models", "places", "tasks", "include_path", "train_data"];
/// The largest file of results or answers that is read as a whole, in bytes.
pub(crate) const LARGEST_RESULTS: u64 = 4 << 30;

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
    kind: FolderKind,
    settings: Value,
    /// The files that the marker lists.
    listed: RefCell<BTreeSet<String>>,
    /// The files that this command has written.
    written: RefCell<BTreeSet<String>>,
    /// Whether this command has made the folder, or found it empty.
    is_new: bool,
}

impl OutputFolder {
    /// Opens a folder of results, or makes one. A folder of anything else is refused; `force` replaces the
    /// results of other settings, and keeps the answers that both share. With the same settings it forgets
    /// the answers of endpoints, which may have other weights by now.
    pub(crate) fn open(path: &Path, kind: FolderKind, settings: &Value, force: bool) -> anyhow::Result<Self> {
        Self::check(path, kind, settings, force)?;
        let is_new = own_folder::kind(path)?.is_none();
        folder::acquire_lock(path, &claim(kind))?;
        if force && held_settings(path)?.as_ref() == Some(settings) {
            forget_endpoints(path)?;
        }
        Ok(Self {
            path: path.to_owned(),
            kind,
            settings: settings.clone(),
            listed: RefCell::new(own_folder::listed_files(path)?),
            written: RefCell::default(),
            is_new,
        })
    }

    /// Marks a folder that [`OutputFolder::open`] would not refuse, so that the processes of the evaluation
    /// can be started in it.
    pub(super) fn start(path: &Path, settings: &Value, force: bool) -> anyhow::Result<()> {
        Self::check(path, FolderKind::Eval, settings, force)?;
        folder::refuse_locked(path)?;
        folder::lock_for_launcher(path, &claim(FolderKind::Eval))
    }

    /// Fails if this process does not see the folder that rank 0 has started: each would wait for the others
    /// without end, and answers would be missing.
    pub(super) fn check_shared(path: &Path, rank: usize) -> Result<(), Failure> {
        if own_folder::is_ours(path) {
            return Ok(());
        }
        let problem = format!(
            "rank {rank} does not see what rank 0 wrote here: give an --output that all machines share"
        );
        Err(Failure::File { path: path.to_owned(), problem })
    }

    fn check(path: &Path, kind: FolderKind, settings: &Value, force: bool) -> anyhow::Result<()> {
        folder::check_place(path)?;
        let refuse = |problem: String| Err(ConfigError::BadOut { path: path.to_owned(), problem }.into());
        if own_folder::kind(path)?.is_none() && gemini::checkpoint::is_occupied(path) {
            return refuse("it holds something else than an evaluation".to_owned());
        }
        claim(kind).check(path)?;
        match held_settings(path)? {
            Some(held) if !continues(&held, settings) && !force => refuse(format!(
                "it holds another evaluation ({}), which --force replaces",
                difference(&held, settings)
            )),
            _ => Ok(()),
        }
    }

    /// Opens a file of answers in the folder, or starts it.
    pub(crate) fn responses(&self, name: &str) -> anyhow::Result<ResponseCache> {
        open_responses(&self.path.join(name))
    }

    /// Writes the settings: from now on the results in the folder are theirs. The results of other settings
    /// go first, and if these add to them, at least the files that call them whole: nobody must take them for
    /// the results of these.
    pub(crate) fn begin_results(&self) -> anyhow::Result<()> {
        match held_settings(&self.path)? {
            Some(held) if held == self.settings => return Ok(()),
            Some(held) if continues(&held, &self.settings) => {
                self.remove(|file| LAST_FILES.contains(&file))?;
            }
            _ => self.remove(|file| !file.starts_with("answers/"))?,
        }
        self.put(SETTINGS, &json_bytes(&self.settings)?)
    }

    /// Removes listed files that this command has not written, the files of [`LAST_FILES`] first.
    fn remove(&self, is_meant: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        let written = self.written.borrow();
        let goes = |file: &&String| is_meant(file) && !written.contains(*file);
        let mut files: Vec<String> = self.listed.borrow().iter().filter(goes).cloned().collect();
        files.sort_by_key(|file| !LAST_FILES.contains(&file.as_str()));
        for file in &files {
            let path = self.path.join(file);
            match regular_file::check(&path).and_then(|()| fs::remove_file(&path)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(io_error(&path)(error).into());
                }
                _ => {}
            }
            // A folder that is not empty holds something of somebody else, and stays.
            let above = Path::new(file).ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            above.for_each(|above| drop(fs::remove_dir(self.path.join(above))));
        }
        let mut listed = self.listed.borrow_mut();
        listed.retain(|file| !files.contains(file));
        let listed: Vec<String> = listed.iter().cloned().collect();
        Ok(own_folder::set_listed_files(&self.path, self.kind, &listed)?)
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
        self.begin_results()?;
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

    /// Writes one file, and lists its path in the marker. A reader never sees half of the file.
    pub(crate) fn put(&self, file: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let path = self.path.join(file);
        let mut folder = self.path.clone();
        for part in Path::new(file).parent().into_iter().flat_map(Path::components) {
            folder.push(part);
            own_file::make_folder(&folder).map_err(io_error(&folder))?;
        }
        if self.listed.borrow_mut().insert(file.to_owned()) {
            own_folder::list_file(&self.path, file).map_err(io_error(&self.path.join(MARKER)))?;
        }
        self.written.borrow_mut().insert(file.to_owned());
        Ok(own_file::write(&path, bytes)?)
    }
}

impl Drop for OutputFolder {
    /// Gives back a folder that this command has made and in which it has kept nothing.
    fn drop(&mut self) {
        if !self.is_new || !self.listed.borrow().is_empty() {
            return;
        }
        let is_kept = |name: &str| fs::metadata(self.path.join(name)).is_ok_and(|found| found.len() > 0);
        let caches = NAMES.into_iter().filter(|name| name.ends_with("responses.jsonl"));
        let mut left = caches.clone().chain(["logs"]);
        if !left.any(is_kept) {
            caches.chain([LOCK, MARKER]).for_each(|name| drop(fs::remove_file(self.path.join(name))));
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// What the results of a kind use a folder for.
fn claim(kind: FolderKind) -> Claim<'static> {
    Claim { kind, names: &NAMES }
}

/// The settings that a folder holds; null if they cannot be parsed.
pub(crate) fn held_settings(path: &Path) -> anyhow::Result<Option<Value>> {
    let file = path.join(SETTINGS);
    if own_folder::kind(path)?.is_none() {
        return Ok(None);
    }
    match regular_file::read(&file, LARGEST_SETTINGS) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).unwrap_or(Value::Null))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::Read { path: file, source }.into()),
    }
}

/// Opens a file of answers, or starts it.
pub(super) fn open_responses(path: &Path) -> anyhow::Result<ResponseCache> {
    let file = regular_file::open(path, fs::File::options().read(true).append(true).create(true));
    Ok(ResponseCache::of_file(path, file.map_err(io_error(path))?)?)
}

/// The files of answers of the processes of `eval` in a folder, by name.
pub(super) fn response_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("responses") && name.ends_with(".jsonl") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Forgets the answers of endpoints, so that they are asked again.
fn forget_endpoints(folder: &Path) -> anyhow::Result<()> {
    let caches = NAMES.into_iter().filter(|name| name.ends_with("_responses.jsonl"));
    let caches = caches.map(|name| folder.join(name)).filter(|path| path.symlink_metadata().is_ok());
    for file in response_files(folder)?.into_iter().chain(caches) {
        let held = regular_file::read(&file, LARGEST_RESULTS).map_err(io_error(&file))?;
        let is_kept = |line: &&[u8]| {
            let line = serde_json::from_slice::<KeptAnswer>(line);
            line.is_ok_and(|line| !line.model.ends_with(ENDPOINT_DIGEST))
        };
        let lines: Vec<&[u8]> = held.split_inclusive(|&byte| byte == b'\n').collect();
        let kept: Vec<&[u8]> = lines.iter().copied().filter(is_kept).collect();
        if kept.len() < lines.len() {
            own_file::write(&file, &kept.concat())?;
        }
    }
    Ok(())
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

/// Whether results of the settings `held` are part of those of `settings`: they are the same, or models and
/// tasks were added.
fn continues(held: &Value, settings: &Value) -> bool {
    differing_keys(held, settings).is_some_and(|keys| keys.is_empty())
}

/// The keys whose value of `held` is not part of the one of `settings`. `None` if `held` are no settings.
fn differing_keys(held: &Value, settings: &Value) -> Option<Vec<String>> {
    let held = held.as_object()?;
    let settings = settings.as_object()?;
    let accumulates = settings.contains_key("places");
    let is_part = |key: &str| match (held.get(key), settings.get(key)) {
        (Some(Value::Array(held)), Some(Value::Array(all))) if accumulates && LISTS.contains(&key) => {
            held.iter().all(|value| all.contains(value))
        }
        // Tasks that were added may be the first ones that run code.
        (Some(Value::Null), _) if accumulates && key == "python" => true,
        (held, value) => held == value,
    };
    let keys: BTreeSet<&String> = held.keys().chain(settings.keys()).collect();
    Some(keys.into_iter().filter(|key| !is_part(key)).cloned().collect())
}

/// The settings in which two evaluations differ.
fn difference(held: &Value, settings: &Value) -> String {
    match differing_keys(held, settings) {
        Some(keys) if !keys.is_empty() => format!("other {}", keys.join(", ")),
        _ => "its settings.json is damaged".to_owned(),
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
mod tests;
