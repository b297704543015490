//! `eval fetch`: downloads the rows of tasks from the hub into the data folder. `eval` itself downloads
//! nothing.

use datasets::HubSettings;
use eval::rows;
use eval::task::Task;

use crate::args::EvalFetchArgs;
use crate::config::ConfigError;
use crate::console::print_stderr;
use crate::evaluation::job;
use crate::failure::Failure;

/// The branch on which the hub keeps Parquet files of datasets that are stored in another form.
const CONVERTED: &str = "refs/convert/parquet";

/// Fetches the rows that are not there yet.
pub(super) fn run(arguments: &EvalFetchArgs) -> anyhow::Result<()> {
    let selection = job::registry(&arguments.include_path)?.select(&arguments.tasks)?;
    let settings = HubSettings::from_process();
    for task in &selection.tasks {
        let mut splits = vec![task.dataset.split.as_str()];
        splits.extend(task.fewshot.split.as_deref());
        splits.dedup();
        for split in splits {
            fetch(arguments, &settings, task, split)?;
        }
    }
    Ok(())
}

fn fetch(arguments: &EvalFetchArgs, settings: &HubSettings, task: &Task, split: &str) -> anyhow::Result<()> {
    let source = &task.dataset;
    if rows::files(&arguments.data, source, split).is_ok() {
        return Ok(());
    }
    let Some(hub) = &source.hub else {
        let folder = arguments.data.join(&source.folder);
        let problem =
            format!("its file names no repository of the hub: put its rows into {}", folder.display());
        return Err(ConfigError::Argument { argument: format!("the task {}", task.task), problem }.into());
    };

    let target = arguments.data.join(hub);
    let is_wanted = |path: &str| rows::is_file_of_split(path, source, split);
    let mut files = settings.fetch_rows(hub, &is_wanted, &target)?;
    if files.is_empty() {
        files = settings.fetch_rows(&format!("{hub}@{CONVERTED}"), &is_wanted, &target)?;
    }
    if files.is_empty() {
        let config = source.config.as_ref().map_or_else(String::new, |config| format!("of {config:?} "));
        let problem = format!(
            "the repository has no Parquet, JSON or CSV file {config}for the split {split:?}: look at it on the hub, \
             and put the rows of {} into {} yourself",
            task.task,
            arguments.data.join(&source.folder).display()
        );
        return Err(Failure::File { path: hub.into(), problem }.into());
    }
    for file in files {
        print_stderr(&format!("{}", file.display()));
    }
    Ok(())
}
