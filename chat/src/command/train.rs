//! `sft`, `rm` and `ppo`: one stage from a run file.

use crate::args::TrainArgs;
use crate::command::{prepare, tell};
use crate::config::{self, ConfigError, Stage};
use crate::display::Display;
use crate::interrupt::Interrupt;
use crate::stage::{self, Around};

/// Runs one stage. `threads` is the flag, which wins over the file.
pub(crate) fn run(stage: Stage, arguments: &TrainArgs, threads: Option<usize>) -> anyhow::Result<()> {
    one_process(arguments)?;
    let loaded = config::load(&arguments.config, &arguments.sets, stage)?;
    prepare(threads.or(loaded.config.threads))?;
    loaded.warnings.iter().for_each(|warning| tell(&format!("warning: {warning}")));
    let interrupt = Interrupt::listen()?;
    interrupt.begin();
    let mut display = Display::new();
    let mut around = Around {
        recorder: &mut display,
        interrupted: interrupt.flag(),
        resume: arguments.resume,
        dry_run: arguments.dry_run,
    };
    stage::run(stage, &loaded.config, &mut around)?;
    if !arguments.dry_run {
        tell(&format!("{}", loaded.config.out.join("final").display()));
    }
    Ok(())
}

/// Refuses more than one process.
pub(crate) fn one_process(arguments: &TrainArgs) -> Result<(), ConfigError> {
    if arguments.nproc == 1 { Ok(()) } else { Err(ConfigError::Processes(arguments.nproc)) }
}
