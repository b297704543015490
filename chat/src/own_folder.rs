//! Whose a folder is: the marker by which this program knows the folders that it made, and the rule that
//! nothing under its names there is a link, a pipe or a device.
//!
//! ```text
//! .colossal-chat    colossal-chat 1 eval          the program, the version of the marker, the kind of folder
//!                   samples/sft/arc_easy.jsonl    in a folder of results: the files written, one a line
//! ```
//! A folder without the marker belongs to someone else: the program writes none of its names over what is
//! there. Only files that the marker lists, or that have a name of the documented form (checkpoints, events,
//! states, requests, temporary files), are ever removed. A marker can be forged, so its paths are checked,
//! and everything is opened as [`crate::own_file`] says. Versions before the marker left a lock file with the
//! process and the machine in it, beside `run.toml` or `settings.json`: such a folder gets its marker when it
//! is next written.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};

use gemini::checkpoint;
use parallel::regular_file;
use serde_json::Value;

use crate::config::ConfigError;
use crate::live::LIVE;
use crate::own_file;

/// The file that marks a folder as made by this program.
pub(crate) const MARKER: &str = ".colossal-chat";

/// The file that is locked while a process writes into the folder.
pub(crate) const LOCK: &str = ".colossal-chat.lock";

/// The first two words of a marker: the program and the version.
const HEAD: &str = "colossal-chat 1";

/// No marker is longer, in bytes.
const LONGEST_MARKER: u64 = 16 << 20;

/// The largest file of settings that is read.
pub(crate) const LARGEST_SETTINGS: u64 = 16 << 20;

/// The kinds of folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolderKind {
    /// One run of a stage.
    Run,
    /// The folder of a pipeline.
    Pipeline,
    /// The results of `eval`.
    Eval,
    /// The results of `eval judge`.
    Judge,
    /// The report of `eval rm`.
    RewardModel,
}

impl FolderKind {
    const ALL: [Self; 5] = [Self::Run, Self::Pipeline, Self::Eval, Self::Judge, Self::RewardModel];

    /// Its name in a marker.
    fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Pipeline => "pipeline",
            Self::Eval => "eval",
            Self::Judge => "eval-judge",
            Self::RewardModel => "eval-rm",
        }
    }

    /// What such a folder holds, in a message.
    fn content(self) -> &'static str {
        match self {
            Self::Run => "a run",
            Self::Pipeline => "a pipeline",
            Self::Eval => "results of `eval`",
            Self::Judge => "results of `eval judge`",
            Self::RewardModel => "a report of `eval rm`",
        }
    }
}

/// What a command wants to use a folder for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    /// The kind that the folder has, or gets.
    pub(crate) kind: FolderKind,
    /// The names that are written directly in it.
    pub(crate) names: &'a [&'a str],
}

/// The content of a marker.
#[derive(Debug)]
struct Marker {
    kind: FolderKind,
    files: BTreeSet<String>,
}

impl Claim<'_> {
    /// Refuses a folder in which this command would overwrite something of someone else: one without a
    /// marker and with one of the names, one of another kind, and one with something under the names that is
    /// neither a file nor a folder. Changes nothing.
    pub(crate) fn check(&self, folder: &Path) -> Result<(), ConfigError> {
        match kind(folder)? {
            Some(kind) if kind != self.kind => {
                let problem = format!("it holds {}", kind.content());
                return Err(ConfigError::BadOut { path: folder.to_owned(), problem });
            }
            Some(_) => {}
            None => {
                let own = self.names.iter().chain([&LOCK]).map(|name| folder.join(name));
                if let Some(foreign) = own.into_iter().find(|path| checkpoint::is_occupied(path)) {
                    return Err(ConfigError::ForeignFile(foreign));
                }
            }
        }
        self.check_plain(folder, &mut Vec::new())
    }

    /// Refuses everything under the names of this program that is neither a file nor a folder.
    fn check_plain(&self, folder: &Path, below: &mut Vec<String>) -> Result<(), ConfigError> {
        let failed = |source: io::Error| ConfigError::Read { path: folder.to_owned(), source };
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            // A name that is no text is none of ours.
            let Ok(name) = entry.file_name().into_string() else { continue };
            below.push(name);
            if self.writes(below) {
                // The type is that of the entry itself: a link to a folder is a link.
                let found = entry.file_type().map_err(failed)?;
                if found.is_dir() {
                    self.check_plain(&entry.path(), below)?;
                } else if !found.is_file() {
                    let found = regular_file::kind_name(found);
                    return Err(ConfigError::NotPlain { path: entry.path(), found });
                }
            }
            below.pop();
        }
        Ok(())
    }

    /// Whether this program writes or reads the path `below` in such a folder.
    fn writes(&self, below: &[String]) -> bool {
        let below: Vec<&str> = below.iter().map(String::as_str).collect();
        match below.as_slice() {
            // What only observers read ends no run: `live` looks after itself.
            [LIVE] => false,
            [top] if self.names.contains(top) || [LOCK, MARKER].contains(top) => true,
            // The answers and the mark of a process.
            [top] => {
                self.kind == FolderKind::Eval && ["responses-", ".done-"].iter().any(|of| top.starts_with(of))
            }
            ["tensorboard", name] => is_event_file(name),
            ["checkpoints", name] => checkpoint::parse_step(name).is_some(),
            ["logs", name] => Path::new(name).extension().is_some_and(|extension| extension == "log"),
            ["checkpoints" | "final" | "data" | "tokenizer" | "samples" | "lm_eval" | "answers", ..] => true,
            _ => false,
        }
    }

    /// Marks the folder, which exists, unless it is marked. Call [`Self::check`] first.
    pub(crate) fn mark(&self, folder: &Path) -> anyhow::Result<()> {
        self.check(folder)?;
        let path = folder.join(MARKER);
        if fs::symlink_metadata(&path).is_ok() {
            return Ok(());
        }
        let files = if kind(folder)?.is_some() { files_of_earlier_version(folder) } else { Vec::new() };
        Ok(own_file::write(&path, marker_text(self.kind, &files).as_bytes())?)
    }
}

/// Whether `name` is a file of TensorBoard's events.
pub(crate) fn is_event_file(name: &str) -> bool {
    name.starts_with("events.out.tfevents.")
}

fn marker_text(kind: FolderKind, files: &[String]) -> String {
    let lines: String = files.iter().map(|file| format!("{file}\n")).collect::<Vec<_>>().concat();
    format!("{HEAD} {}\n{lines}", kind.name())
}

/// Whether this program made the folder.
pub(crate) fn is_ours(folder: &Path) -> bool {
    kind(folder).is_ok_and(|kind| kind.is_some())
}

/// The kind of a folder that this program made. Fails at a marker that it cannot read.
pub(crate) fn kind(folder: &Path) -> Result<Option<FolderKind>, ConfigError> {
    let marker = read_marker(folder)?.map(|marker| marker.kind);
    Ok(marker.or_else(|| kind_of_earlier_version(folder)))
}

/// The files that the marker lists: their paths in the folder.
pub(crate) fn listed_files(folder: &Path) -> Result<BTreeSet<String>, ConfigError> {
    Ok(read_marker(folder)?.map(|marker| marker.files).unwrap_or_default())
}

/// Lists a file in the marker, before it is written.
pub(crate) fn list_file(folder: &Path, file: &str) -> io::Result<()> {
    let mut marker = own_file::open_to_append(&folder.join(MARKER))?;
    marker.write_all(format!("{file}\n").as_bytes())?;
    marker.sync_all()
}

/// Lists these files and no others.
pub(crate) fn set_listed_files(folder: &Path, kind: FolderKind, files: &[String]) -> Result<(), rlhf::Error> {
    own_file::write(&folder.join(MARKER), marker_text(kind, files).as_bytes())
}

/// Refuses to continue in a folder that this program did not make.
pub(crate) fn require_ours(folder: &Path) -> Result<(), ConfigError> {
    if kind(folder)?.is_some() { Ok(()) } else { Err(ConfigError::NoMarker(folder.to_owned())) }
}

fn read_marker(folder: &Path) -> Result<Option<Marker>, ConfigError> {
    let path = folder.join(MARKER);
    let damaged = |problem: String| ConfigError::Marker { path: path.clone(), problem };
    let text = match regular_file::read_to_string(&path, LONGEST_MARKER) {
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
            return Ok(None);
        }
        text => text.map_err(|error| damaged(error.to_string()))?,
    };
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let found = FolderKind::ALL.into_iter().find(|kind| head == format!("{HEAD} {}", kind.name()));
    let kind = found.ok_or_else(|| {
        damaged(format!("it does not begin with a line such as `{HEAD} run`, as this version writes it"))
    })?;
    if let Some(line) = lines.clone().find(|line| !is_inside(line)) {
        return Err(damaged(format!("it lists {line:?}, which is no file of this folder")));
    }
    Ok(Some(Marker { kind, files: lines.map(str::to_owned).collect() }))
}

/// Whether a path that a marker lists stays in its folder.
fn is_inside(file: &str) -> bool {
    let parts: Vec<Component<'_>> = Path::new(file).components().collect();
    !parts.is_empty() && parts.iter().all(|part| matches!(part, Component::Normal(_)))
}

/// The kind of a folder that a version before the marker made: it has a lock file that names a process, and
/// settings that this program has written.
fn kind_of_earlier_version(folder: &Path) -> Option<FolderKind> {
    let read = |name: &str, limit| regular_file::read_to_string(&folder.join(name), limit).ok();
    let lock = read(LOCK, 4096)?;
    let (process, _) = lock.strip_prefix("process ")?.split_once(" on ")?;
    process.parse::<u32>().ok()?;
    if let Some(settings) = read("settings.json", LARGEST_SETTINGS) {
        let settings: Value = serde_json::from_str(&settings).ok()?;
        return match (settings["command"].as_str(), settings["report"].as_str()) {
            (Some("eval judge"), _) => Some(FolderKind::Judge),
            (_, Some("reward model")) => Some(FolderKind::RewardModel),
            _ => settings["tasks"].is_array().then_some(FolderKind::Eval),
        };
    }
    let run: toml::Table = toml::from_str(&read("run.toml", LARGEST_SETTINGS)?).ok()?;
    run.get("out").and_then(toml::Value::as_str)?;
    Some(if run.contains_key("pipeline") { FolderKind::Pipeline } else { FolderKind::Run })
}

/// The results that a version before the marker wrote into `folder`, by their names.
fn files_of_earlier_version(folder: &Path) -> Vec<String> {
    const RESULTS: [&str; 10] = [
        "settings.json",
        "results.json",
        "judge.json",
        "rm.json",
        "summary.md",
        "summary.csv",
        "report.html",
        "environment.json",
        "judgements.jsonl",
        "samples.jsonl",
    ];
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    if !is_file(&folder.join(RESULTS[0])) {
        return Vec::new();
    }

    let paths_in = |below: PathBuf| {
        let entries = fs::read_dir(folder.join(&below)).into_iter().flatten().flatten();
        entries.map(move |entry| below.join(entry.file_name())).collect::<Vec<_>>()
    };
    let samples = paths_in("samples".into()).into_iter().flat_map(paths_in);
    let written = |path: &PathBuf| path.extension().is_some_and(|end| end == "json" || end == "jsonl");
    let nested = samples.chain(paths_in("lm_eval".into())).filter(written);

    // A list in a file names one file a line, so a name with a line break is none of ours.
    let all = RESULTS.into_iter().map(PathBuf::from).chain(nested);
    let found = all.filter(|path| is_file(&folder.join(path)));
    let names = found.filter_map(|path| path.into_os_string().into_string().ok());
    names.filter(|name| !name.contains('\n')).collect()
}

#[cfg(test)]
mod tests;
