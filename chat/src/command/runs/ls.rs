//! `runs ls`: finds the run folders below a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use text::number;

use crate::args::RunsLsArgs;
use crate::config::ConfigError;
use crate::console::{print, print_stderr, table};
use crate::own_folder::{self, FolderKind};
use crate::run_data::{RunData, folder_bytes, modified_seconds};
use crate::run_reader::is_run_folder;

/// Folders that are looked into before the search gives up: the user has named a whole disk.
const MOST_FOLDERS: usize = 100_000;

/// Prints the runs below the folder.
pub(crate) fn run(arguments: &RunsLsArgs) -> anyhow::Result<()> {
    let folder = &arguments.folder;
    if !folder.is_dir() {
        let problem = "there is no such folder".to_owned();
        return Err(ConfigError::Argument { argument: folder.display().to_string(), problem }.into());
    }
    let mut search = Search { found: Vec::new(), left: MOST_FOLDERS };
    search.look(folder, arguments.depth);
    if search.left == 0 {
        print_stderr(&format!("warning: only the first {MOST_FOLDERS} folders are looked into"));
    }
    let runs: Vec<RunData> = search.found.iter().map(|out| RunData::read(out)).collect::<Result<_, _>>()?;
    runs.iter().for_each(RunData::print_warnings);
    if arguments.json {
        let runs: Vec<_> = runs.iter().map(as_json).collect();
        return Ok(print(&serde_json::to_string_pretty(&runs)?)?);
    }
    if runs.is_empty() {
        print_stderr(&format!("no run below {}", folder.display()));
        return Ok(());
    }
    let head = ["run", "stage", "status", "steps", "newest", "time", "size"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(runs.iter().map(row)).collect();
    Ok(print(&table(&rows, 3))?)
}

struct Search {
    found: Vec<PathBuf>,
    /// The number of folders that may still be looked into.
    left: usize,
}

impl Search {
    /// Looks for runs in `folder` and, `depth` levels deep, below it. Inside a run there is no other run.
    /// Links are not followed.
    fn look(&mut self, folder: &Path, depth: usize) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        if is_run_folder(folder) && is_marked(folder) {
            self.found.push(folder.to_owned());
            return;
        }
        if depth == 0 {
            return;
        }
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        let mut below: Vec<PathBuf> = entries.filter(is_folder).map(|entry| entry.path()).collect();
        below.sort();
        for path in &below {
            self.look(path, depth - 1);
        }
    }
}

/// Whether the marker of a folder says that a run made it. Nobody named the folder, and others have files
/// with the names of ours. A marker that this version cannot read may be that of a run.
fn is_marked(folder: &Path) -> bool {
    own_folder::kind(folder).map_or(true, |kind| kind == Some(FolderKind::Run))
}

fn row(run: &RunData) -> Vec<String> {
    let newest = run
        .main_metric()
        .and_then(|series| Some(format!("{} {}", short(&series.name), number::metric(series.last()?))));
    let total = run.facts.total_steps.map_or_else(String::new, |total| format!("/{total}"));
    vec![
        run.out.display().to_string(),
        run.facts.stage.clone(),
        run.facts.status.text(),
        format!("{}{total}", run.step()),
        newest.unwrap_or_default(),
        number::duration(Duration::from_secs_f64(run.seconds().clamp(0.0, 1e12))),
        format!("{}B", number::count(folder_bytes(&run.out) as f64)),
    ]
}

/// The last part of the name of a metric.
fn short(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn as_json(run: &RunData) -> Value {
    let mut object = run.json();
    let metric = run.main_metric();
    let found = [
        ("metric", json!(metric.map(|series| &series.name))),
        ("value", json!(metric.and_then(tui::dashboard::Series::last))),
        ("seconds", json!(run.seconds())),
        ("bytes", json!(folder_bytes(&run.out))),
        ("modified", json!(modified_seconds(&run.out))),
    ];
    object.extend(found.map(|(name, value)| (name.to_owned(), value)));
    Value::Object(object)
}
