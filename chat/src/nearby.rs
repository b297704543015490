//! Finds what a command can go on with in a folder: models, runs and files of rows.
//!
//! The search goes level by level and is bounded: [`DEPTH`] levels, [`ENTRIES`] entries. It follows no links,
//! and skips hidden folders and source code. What it cannot read it passes over, because nobody asked for
//! that file. It loads no weights, and does not read into the folder of a finished model.

use std::collections::VecDeque;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

use datasets::{Demonstration, Layout, Preference, Prompt, Record, TableReader, Unpaired};
use models::config::Config;
use parallel::regular_file;

use crate::stage::definition::RowKind;
use crate::{folder, own_folder, stage};

/// How many folders below the first one are searched.
const DEPTH: usize = 3;
/// How many entries of folders are looked at.
const ENTRIES: usize = 2000;
/// How many files are opened to find out what rows they have.
const OPENED_FILES: usize = 24;

/// The largest size of a file that describes a run, in bytes.
const SMALL: u64 = 1 << 20;
/// The file that makes a folder a package of Cargo.
const PACKAGE: &str = "Cargo.toml";
/// The command that runs every stage of a file.
const PIPELINE: &str = "pipeline";

/// What was found, level by level and by name.
#[derive(Debug, Default)]
pub(crate) struct Nearby {
    /// Model folders that are not part of a run.
    pub(crate) models: Vec<Model>,
    /// Folders of runs. The stages of a pipeline are listed when all of them have ended.
    pub(crate) runs: Vec<Run>,
    /// Files of rows with a layout that is known.
    pub(crate) files: Vec<RowFile>,
    /// Whether the search stopped before it had seen everything.
    pub(crate) is_partial: bool,
}

/// A model folder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Model {
    /// The folder.
    pub(crate) path: PathBuf,
    /// Whether it scores conversations instead of writing text.
    pub(crate) is_reward_model: bool,
}

/// The folder of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The folder.
    pub(crate) path: PathBuf,
    /// What ran: the name of a stage, or `pipeline`.
    pub(crate) name: &'static str,
    /// The command that continues it.
    pub(crate) command: &'static str,
    /// Whether it has nothing left to do.
    pub(crate) is_finished: bool,
}

/// A file of rows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RowFile {
    /// The file.
    pub(crate) path: PathBuf,
    /// The layout that its columns show.
    pub(crate) layout: Layout,
}

impl RowFile {
    /// Whether the name says that the rows are there to measure with.
    pub(crate) fn is_held_out(&self) -> bool {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        ["heldout", "held_out", "held-out", "eval", "valid", "test"].iter().any(|word| name.contains(word))
    }

    /// What a stage can learn from the rows.
    pub(crate) fn kind(&self) -> Option<RowKind> {
        kind_of(self.layout)
    }
}

/// What a stage can learn from rows of a layout.
pub(crate) fn kind_of(layout: Layout) -> Option<RowKind> {
    if Demonstration::LAYOUTS.contains(&layout) {
        Some(RowKind::Demonstrations)
    } else if Preference::LAYOUTS.contains(&layout) {
        Some(RowKind::Pairs)
    } else if Unpaired::LAYOUTS.contains(&layout) {
        Some(RowKind::Rated)
    } else if Prompt::LAYOUTS.contains(&layout) {
        Some(RowKind::Prompts)
    } else {
        None
    }
}

impl Nearby {
    /// Searches `folder`. The paths that it gives begin with `folder`, unless that is the current folder.
    pub(crate) fn search(folder: &Path) -> Self {
        let mut found = Self::default();
        let mut waiting = VecDeque::from([(folder.to_owned(), 0)]);
        let mut budget = ENTRIES;
        while let Some((folder, depth)) = waiting.pop_front() {
            for entry in entries(&folder, &mut budget) {
                let path = below(&folder, &entry);
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => {
                        let goes_on = is_searched(&folder, &entry) && found.add_folder(&path);
                        if goes_on && depth < DEPTH {
                            waiting.push_back((path, depth + 1));
                        }
                    }
                    Ok(kind) if kind.is_file() => found.add_file(path),
                    _ => {}
                }
            }
        }
        found.is_partial |= budget == 0;
        found
    }

    /// Adds a folder if it is a model or a run. Returns whether it may hold more.
    fn add_folder(&mut self, path: &Path) -> bool {
        if own_folder::is_ours(path) && path.join(folder::CONFIGURATION).is_file() {
            let is_done_pipeline = is_pipeline_done(path) == Some(true);
            self.runs.extend(if is_done_pipeline { None } else { run(path) });
            return is_done_pipeline;
        }
        let is_model = path.join("config.json").is_file();
        if let (true, Some(model)) = (is_model, model(path)) {
            self.models.push(model);
        }
        !is_model
    }

    fn add_file(&mut self, path: PathBuf) {
        let is_rows =
            path.extension().is_some_and(|extension| extension == "parquet" || extension == "jsonl");
        if !is_rows {
            return;
        }
        if self.files.len() == OPENED_FILES {
            self.is_partial = true;
            return;
        }
        let layout = |path: &Path| Layout::guess(TableReader::open(path).ok()?.columns(), path).ok();
        if let Some(layout) = layout(&path) {
            self.files.push(RowFile { path, layout });
        }
    }
}

/// The entries of a folder by name, as many as the budget allows.
fn entries(folder: &Path, budget: &mut usize) -> Vec<DirEntry> {
    let mut entries: Vec<DirEntry> =
        fs::read_dir(folder).into_iter().flatten().flatten().take(*budget).collect();
    *budget -= entries.len();
    entries.sort_by_key(DirEntry::file_name);
    entries
}

/// The path of an entry, without the `./` of the current folder.
fn below(folder: &Path, entry: &DirEntry) -> PathBuf {
    if folder == Path::new(".") { entry.file_name().into() } else { entry.path() }
}

/// Whether an entry of `folder`, a folder itself, is worth a look. A package of Cargo is source code: what
/// lies in it, in `target` or beside the tests of the package around it is nobody's model.
fn is_searched(folder: &Path, entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let is_package = |folder: &Path| folder.join(PACKAGE).is_file();
    let is_source = name == "target" || (name == "tests" && is_package(folder)) || is_package(&entry.path());
    !name.as_encoded_bytes().starts_with(b".") && !is_source
}

/// The run in a folder of a run.
fn run(path: &Path) -> Option<Run> {
    if is_pipeline_done(path).is_some() {
        let (name, command) = (PIPELINE, PIPELINE);
        return Some(Run { path: path.to_owned(), name, command, is_finished: false });
    }
    let plan: serde_json::Value = serde_json::from_str(&small_text(&path.join("plan.json"))?).ok()?;
    let stage = stage::find(plan.get("stage")?.as_str()?)?;
    let name = stage.schema.name;
    // The stage `base` has no command of its own.
    let command = if stage.command.is_some() { name } else { PIPELINE };
    Some(Run { path: path.to_owned(), name, command, is_finished: path.join("final").is_dir() })
}

/// Whether the last part of a pipeline has ended; `None` if the folder is not that of a pipeline.
fn is_pipeline_done(path: &Path) -> Option<bool> {
    let file: toml::Table = small_text(&path.join(folder::CONFIGURATION))?.parse().ok()?;
    let last = file.get("pipeline")?.get("stages")?.as_array()?.last()?.as_str()?;
    Some(match last {
        "report" => path.join("report.json").is_file(),
        "data" | "tokenizer" => path.join(last).is_dir(),
        stage => path.join(stage).join("final").is_dir(),
    })
}

/// The text of a file, unless it is too large to be what this program writes, or no file at all.
fn small_text(path: &Path) -> Option<String> {
    regular_file::read_to_string(path, SMALL).ok()
}

/// The model in a folder with a `config.json`.
fn model(path: &Path) -> Option<Model> {
    let has_weights = ["model.safetensors", "model.safetensors.index.json"];
    if !has_weights.iter().any(|name| path.join(name).is_file()) {
        return None;
    }
    let is_reward_model = Config::from_folder(path).ok()?.is_sequence_classification();
    Some(Model { path: path.to_owned(), is_reward_model })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8,
        "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "vocab_size": 300, "max_position_embeddings": 64, "rms_norm_eps": 1e-6}"#;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn names<'a>(folder: &Path, paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<String> {
        let name = |path: &PathBuf| path.strip_prefix(folder).unwrap().display().to_string();
        paths.into_iter().map(name).collect()
    }

    #[test]
    fn models_runs_and_rows_are_found_by_what_they_hold() {
        let folder = tree(&[
            ("base/config.json", LLAMA),
            ("base/model.safetensors", ""),
            ("base/data/x.jsonl", "{\"text\": \"x\"}\n"),
            ("no-weights/config.json", LLAMA),
            ("runs/sft/.colossal-chat", "colossal-chat 1 run\n"),
            ("runs/sft/run.toml", ""),
            ("runs/sft/plan.json", r#"{"stage": "sft"}"#),
            ("runs/sft/metrics.jsonl", "{\"text\": \"no row\"}\n"),
            ("runs/rm/.colossal-chat", "colossal-chat 1 run\n"),
            ("runs/rm/run.toml", ""),
            ("runs/rm/plan.json", r#"{"stage": "rm"}"#),
            ("runs/rm/final/config.json", LLAMA),
            ("life/.colossal-chat", "colossal-chat 1 pipeline\n"),
            ("life/run.toml", "[pipeline]\nstages = ['sft', 'rm']\n"),
            ("life/sft/.colossal-chat", "colossal-chat 1 run\n"),
            ("life/sft/run.toml", ""),
            ("life/sft/plan.json", r#"{"stage": "sft"}"#),
            ("pairs.jsonl", "{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"}\n"),
            ("chats.jsonl", "{\"messages\": []}\n"),
            ("notes.jsonl", "{\"what\": 1}\n"),
            ("broken.parquet", "not Parquet"),
        ]);
        let found = Nearby::search(folder.path());
        let files = names(folder.path(), found.files.iter().map(|file| &file.path));
        assert_eq!(files, ["chats.jsonl", "pairs.jsonl"]);
        let kinds: Vec<_> = found.files.iter().map(RowFile::kind).collect();
        assert_eq!(kinds, [Some(RowKind::Demonstrations), Some(RowKind::Pairs)]);
        assert_eq!(names(folder.path(), found.models.iter().map(|model| &model.path)), ["base"]);
        let runs =
            |found: &Nearby| found.runs.iter().map(|run| (run.name, run.is_finished)).collect::<Vec<_>>();
        assert_eq!(runs(&found), [("pipeline", false), ("rm", true), ("sft", false)]);
        // The stages of a pipeline show when it has ended.
        fs::create_dir_all(folder.path().join("life/rm/final")).unwrap();
        assert_eq!(runs(&Nearby::search(folder.path())), [("sft", false), ("rm", true), ("sft", false)]);
        assert!(!found.is_partial);
    }

    #[test]
    fn the_fixtures_of_source_code_are_no_models_of_the_user() {
        let folder = tree(&[
            ("Cargo.toml", ""),
            ("tests/golden/llama/config.json", LLAMA),
            ("tests/golden/llama/model.safetensors", ""),
            ("models/Cargo.toml", ""),
            ("models/fixtures/config.json", LLAMA),
            ("models/fixtures/model.safetensors", ""),
            ("runs/tests/config.json", LLAMA),
            ("runs/tests/model.safetensors", ""),
        ]);
        let found = |below: &str| {
            let folder = folder.path().join(below);
            names(&folder, Nearby::search(&folder).models.iter().map(|model| &model.path))
        };
        assert_eq!(found(""), ["runs/tests"]);
        // Who stands in a package looks for models there.
        assert_eq!(found("models"), ["fixtures"]);
    }

    #[test]
    fn the_search_is_bounded() {
        let rows = "{\"text\": \"x\"}\n";
        let folder = tree(&[
            ("1/2/3/in.jsonl", rows),
            ("1/2/3/4/too-deep.jsonl", rows),
            (".hidden/x.jsonl", rows),
            ("target/x.jsonl", rows),
        ]);
        std::os::unix::fs::symlink(folder.path(), folder.path().join("again")).unwrap();
        let found = Nearby::search(folder.path());
        assert_eq!(names(folder.path(), found.files.iter().map(|file| &file.path)), ["1/2/3/in.jsonl"]);
        for number in 0..=ENTRIES {
            fs::write(folder.path().join(format!("{number}.txt")), "").unwrap();
        }
        assert!(Nearby::search(folder.path()).is_partial);
    }
}
