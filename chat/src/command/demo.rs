//! `demo`: runs a pipeline whose run file is built into the program.

use std::path::Path;

use crate::args::DemoArgs;
use crate::command::pipeline::{self, PipelineOptions};
use crate::{config, stage};

/// The built-in run file.
const DEMO_CONFIG: &str = include_str!("../demo.toml");

/// Runs the demo.
pub(crate) fn run(arguments: &DemoArgs, threads: Option<usize>) -> anyhow::Result<()> {
    let out = arguments.out.display().to_string();
    let mut sets = vec![format!("seed={}", arguments.seed), format!("out={out:?}")];
    sets.extend(arguments.overrides.sets());
    let config = config::pipeline_from_text(DEMO_CONFIG, Path::new("demo.toml"), &sets, &stage::schemas())?;
    let sets: String =
        arguments.overrides.sets().iter().map(|set| [" --set '", set.as_str(), "'"].concat()).collect();
    let command =
        format!("colossal-chat demo --out {} --seed {}{sets}", arguments.out.display(), arguments.seed);
    let how = PipelineOptions {
        command: &command,
        run_file: None,
        resume: arguments.resume,
        processes: arguments.nproc,
        threads,
    };
    pipeline::run_config(config, &how)
}
