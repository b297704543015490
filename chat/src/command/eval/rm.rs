//! `eval rm`: scores rows of replies with a reward model, and reports what the scores are worth.
//!
//! Rows, gold values and the output folder are checked before the model is loaded. What the rows are and what
//! the scores say is in [`eval::reward_model`]; here the model is run ([`mod@score`]), and files are written.
//! Scores are kept as they come, so the same command continues what was broken off.

mod score;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use eval::reward_model::data::{self, DataFile, FileKind};
use eval::reward_model::{
    ModelInfo, Notes, OverOptimization, RewardModelReport, ScoredFile, html, markdown, over_optimization,
    read_gold, tables,
};
use inference::model_folder::ModelFolder;
use serde_json::{Value, json};
use tui::progress::Progress;
use tui::terminal::{Environment, Mode};

use crate::adapters::{self, Adapter, Base};
use crate::args::EvalRmArgs;
use crate::config::ConfigError;
use crate::console::{print, print_stderr, table};
use crate::evaluation::output::{self, OutputFolder};
use crate::feedback::timestamp::Timestamp;
use crate::model_folder;
use crate::own_folder::FolderKind;
use crate::run_data::RunData;
use crate::session::{self, ModelSource};
use crate::shell;
use score::{HeldScores, Scorer};

/// The scores so far.
const SCORE_CACHE: &str = "score_responses.jsonl";

/// Evaluates a reward model.
pub(super) fn run(arguments: &EvalRmArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    let (name, folder) = named_model(arguments)?;
    let files = read(arguments)?;
    let curve = arguments.run.as_deref().map(|run| curve(run, arguments.gold.as_deref())).transpose()?;
    let settings = settings(arguments, &name);
    let default = || Path::new("eval-results").join(format!("rm-{}", output::file_name(&name)));
    let place = arguments.output.clone().unwrap_or_else(default);
    let place = OutputFolder::open(&place, FolderKind::RewardModel, &settings, arguments.force)?;
    announce(&files, &place);

    let model = ModelSource {
        model: folder.path().display().to_string(),
        weights: arguments.weights,
        template: arguments.template.clone(),
    };
    let scorer = Scorer::new(session::scalar_model(&model)?, arguments)?;
    let digest = scorer.digest(&folder, arguments.weights)?;
    let mut held = HeldScores { cache: place.responses(SCORE_CACHE)?, digest: digest.clone() };
    let files = score(&scorer, files, &mut held, &name)?;
    let model = ModelInfo { name, digest };
    let program = format!("colossal-chat {}", env!("CARGO_PKG_VERSION"));
    let report = RewardModelReport::new(program, model, settings, &files, curve)?;
    write(&place, &report, &files, started.elapsed().as_secs_f64())?;
    show(arguments, &report, &place)
}

/// The reward model, and the name that reports show.
fn named_model(arguments: &EvalRmArgs) -> anyhow::Result<(String, ModelFolder)> {
    let Some(given) = &arguments.adapter else {
        let name = model_folder::short_name(Path::new(&arguments.model));
        return Ok((name, model_folder::find(&arguments.model)?));
    };
    let base = Base { name: String::new(), folder: model_folder::find(&arguments.model)? };
    let Adapter { name, folder, .. } = adapters::find_one(given, &[base])?;
    Ok((name, folder))
}

/// Reads the rows of all files.
fn read(arguments: &EvalRmArgs) -> anyhow::Result<Vec<DataFile>> {
    let paths = datasets::expand(&arguments.data)?;
    let mut files = Vec::with_capacity(paths.len());
    for (path, name) in paths.iter().zip(names(&paths)?) {
        let limit = arguments.limit.map(usize::from);
        files.push(data::read(path, name, limit, arguments.split_by.as_deref())?);
    }
    check_split(arguments, &files)?;
    Ok(files)
}

/// Refuses `--split-by` if no file has pairs to split, and names the files that it does not concern.
fn check_split(arguments: &EvalRmArgs, files: &[DataFile]) -> Result<(), ConfigError> {
    let Some(column) = &arguments.split_by else { return Ok(()) };
    let is_split = |file: &DataFile| file.kind == FileKind::Preference;
    if !files.iter().any(is_split) {
        let problem =
            "no file has preference pairs, and other rows are split by their own columns: leave the flag out";
        let argument = format!("--split-by {column}");
        return Err(ConfigError::Argument { argument, problem: problem.to_owned() });
    }
    for file in files.iter().filter(|file| !is_split(file)) {
        print_stderr(&format!(
            "warning: {} has no preference pairs: --split-by does not concern its rows",
            file.name
        ));
    }
    Ok(())
}

/// The names of files: that of the file, or the whole path where two files have one name.
fn names(paths: &[PathBuf]) -> Result<Vec<String>, ConfigError> {
    let short = |path: &PathBuf| {
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for path in paths {
        *counts.entry(short(path)).or_default() += 1;
    }
    if let Some(twice) = paths.iter().enumerate().find(|(index, path)| paths[..*index].contains(path)) {
        let argument = format!("--data {}", twice.1.display());
        return Err(ConfigError::Argument { argument, problem: "this file is named twice".to_owned() });
    }
    let name = |path: &PathBuf| {
        let short = short(path);
        if counts[&short] > 1 { path.display().to_string() } else { short }
    };
    Ok(paths.iter().map(name).collect())
}

/// The curve of a PPO run.
fn curve(run: &Path, gold: Option<&Path>) -> anyhow::Result<OverOptimization> {
    let gold = gold.map(read_gold).transpose()?.unwrap_or_default();
    let found = RunData::read(run)?;
    found.warnings.iter().for_each(|warning| print_stderr(warning));
    let series = |name: &str| {
        let problem = || format!("its metrics.jsonl has no {name}: give the folder of a ppo run");
        let argument = || format!("--run {}", run.display());
        let found = found.find(name).filter(|series| !series.points.is_empty());
        found.ok_or_else(|| ConfigError::Argument { argument: argument(), problem: problem() })
    };
    let (kl, proxy) = (series("objective/kl")?, series("objective/scores")?);
    Ok(over_optimization(run.display().to_string(), &kl.points, &proxy.points, &gold)?)
}

/// Says what will be done.
fn announce(files: &[DataFile], place: &OutputFolder) {
    for file in files.iter().filter(|file| file.skipped > 0) {
        print_stderr(&format!("{}: {} rows hold no pair and are left out", file.name, file.skipped));
    }
    let rows: usize = files.iter().map(|file| file.entries.len()).sum();
    let replies: usize = files.iter().flat_map(|file| &file.entries).map(|entry| entry.replies.len()).sum();
    print_stderr(&format!("{rows} rows, {replies} replies; the report goes to {}", place.path().display()));
}

/// Scores every reply, with a line of progress.
fn score(
    scorer: &Scorer,
    files: Vec<DataFile>,
    held: &mut HeldScores,
    name: &str,
) -> anyhow::Result<Vec<ScoredFile>> {
    let mode = Mode::detect(std::io::stderr().is_terminal(), &Environment::read());
    let mut progress = Progress::new(std::io::stderr(), mode);
    progress.call_steps("conversation");
    let mut begun = false;
    let scored = scorer.score(files, held, &mut |done, total| {
        // A closed stderr does not stop the work.
        if begun {
            let _ = progress.update(done as u64, &[]);
        } else {
            begun = true;
            let _ = progress.start_at(name, total as u64, done as u64);
        }
    });
    let _ = match &scored {
        Ok(_) => progress.finish(),
        Err(error) => progress.fail(&error.to_string()),
    };
    for file in scored.iter().flatten().filter(|file| file.cut > 0) {
        print_stderr(&format!(
            "warning: {}: {} conversations have more than {} tokens and lost the beginning",
            file.data.name,
            file.cut,
            scorer.max_length()
        ));
    }
    scored
}

/// What decides the report. A folder holds one such report.
fn settings(arguments: &EvalRmArgs, name: &str) -> Value {
    json!({
        "report": "reward model",
        "model": name,
        "data": arguments.data,
        "split_by": arguments.split_by,
        "limit": arguments.limit,
        "run": arguments.run,
        "gold": arguments.gold,
        "max_length": arguments.max_length,
        "dtype": arguments.weights.numbers(),
        "template": arguments.template,
    })
}

/// Writes the files. All but `environment.json` and `report.html` depend on nothing but model, rows and
/// settings.
fn write(
    place: &OutputFolder,
    report: &RewardModelReport,
    files: &[ScoredFile],
    seconds: f64,
) -> anyhow::Result<()> {
    let mut lines = String::new();
    for row in files.iter().flat_map(ScoredFile::sample_rows) {
        lines.push_str(&serde_json::to_string(&row)?);
        lines.push('\n');
    }
    let command = shell::own_command();
    let finished = Timestamp::now().to_string();
    let notes = Notes { command: command.clone(), finished: finished.clone() };
    let environment = json!({"finished": finished, "seconds": seconds, "command": command});
    place.begin_results()?;
    place.put("samples.jsonl", lines.as_bytes())?;
    place.put("summary.md", markdown(report).as_bytes())?;
    place.put("report.html", html(report, files, &notes).as_bytes())?;
    place.put("environment.json", &output::json_bytes(&environment)?)?;
    // The last file: where it stands, the report is whole.
    place.put("rm.json", &output::json_bytes(&serde_json::to_value(report)?)?)
}

/// Prints the tables, or JSON.
fn show(arguments: &EvalRmArgs, report: &RewardModelReport, place: &OutputFolder) -> anyhow::Result<()> {
    if arguments.json {
        return Ok(print(&serde_json::to_string_pretty(report)?)?);
    }
    for found in tables(report).iter().filter(|found| !found.is_detail) {
        print(&format!("{}\n{}", found.title, table(&found.lines(), found.words)))?;
        if !found.note.is_empty() {
            print(&found.note)?;
        }
        print("")?;
    }
    print_stderr(&format!("the report is {}", place.path().join("report.html").display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_name_are_told_apart() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(names(&paths(&["a/x.jsonl", "b/y.jsonl"])).unwrap(), ["x.jsonl", "y.jsonl"]);
        assert_eq!(
            names(&paths(&["a/x.jsonl", "b/x.jsonl", "z.csv"])).unwrap(),
            ["a/x.jsonl", "b/x.jsonl", "z.csv"]
        );
        assert!(names(&paths(&["x.jsonl", "x.jsonl"])).unwrap_err().to_string().contains("named twice"));
    }
}
