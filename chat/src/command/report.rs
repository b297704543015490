//! `report`: writes a page about any runs. The report of a pipeline, which has the scores of its models, is
//! in [`crate::report::pipeline`].

use eval::report::Report;

use crate::args::ReportArgs;
use crate::config::ConfigError;
use crate::console::print_stderr;
use crate::report::{overlays, part};
use crate::run_data::RunData;
use crate::{interrupt, output, own_file};

/// Metrics that say nothing as a curve.
const NOT_DRAWN: [&str; 2] = ["epoch", "tokens"];

/// Writes the report.
pub(crate) fn run(arguments: &ReportArgs) -> anyhow::Result<()> {
    interrupt::listen()?;
    let ReportArgs { runs, out, force } = arguments;
    let files = ["report.html", "report.md", "report.json"].map(|name| out.join(name));
    let refuse =
        |problem: String| ConfigError::Argument { argument: format!("--out {}", out.display()), problem };
    if let Some(file) = files.iter().find(|file| file.symlink_metadata().is_ok() && !force) {
        let problem =
            format!("{} exists already: choose another folder, or replace it with --force", file.display());
        return Err(refuse(problem).into());
    }
    output::check_parent(&files[0]).map_err(refuse)?;

    let data: Vec<RunData> = runs.iter().map(|out| RunData::read(out)).collect::<Result<_, _>>()?;
    data.iter().for_each(RunData::print_warnings);
    let names: Vec<String> = runs.iter().map(|out| out.display().to_string()).collect();
    let report = Report {
        title: if let [name] = names.as_slice() {
            format!("The run {name}")
        } else {
            format!("{} runs", names.len())
        },
        command: format!("colossal-chat report {} --out {}", names.join(" "), out.display()),
        runs: data.iter().map(part).collect(),
        curves: overlays(&data, |_, metric| !NOT_DRAWN.contains(&metric)),
        ..Report::default()
    };
    own_file::write_all(out, &eval::report::files(&report)?)?;
    print_stderr(&files[0].display().to_string());
    Ok(())
}
