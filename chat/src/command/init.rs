//! `init`: asks at most five questions and writes a run file with comments.
//!
//! Flags answer questions, and `--yes` takes the defaults, which come from what lies in the current folder.
//! Each answer is checked at once: the configuration and the tokenizer of a model, and the layout and the
//! first rows of a file. No weights are read, and nothing is downloaded.

mod answers;
mod dialog;
mod rows;
mod run_file;

use std::path::{Path, PathBuf};

use crate::args::InitArgs;
use crate::config::ConfigError;
use crate::console::print;
use crate::machine_speed::{Machine, MachineSpeed};
use crate::nearby::Nearby;
use crate::output::{write_atomically, write_new};
use crate::shell::quote;

use answers::Answers;
use dialog::Dialog;

/// Asks, writes the file, and says what to run next.
pub(crate) fn run(arguments: &InitArgs) -> anyhow::Result<()> {
    let nearby = Nearby::search(Path::new("."));
    let mut dialog = Dialog::on_terminal(arguments.yes);
    let answers = Answers::collect(arguments, &nearby, &mut dialog)?;
    let threads = usize::try_from(tch::get_num_threads()).unwrap_or(1);
    let text = run_file::text(&answers, MachineSpeed::load(&Machine::here(threads))?.as_ref());
    if arguments.force {
        write_atomically(&answers.out, text.as_bytes())?;
    } else {
        write_new(&answers.out, text.as_bytes())?;
    }
    Ok(print(&next_steps(&answers))?)
}

fn next_steps(answers: &Answers) -> String {
    let start = format!("colossal-chat {} --config {}", answers.goal.command(), quote(&answers.out));
    format!(
        "{} is written: read it, its comments say what each key does. Next:\n  {start} --dry-run\n  {start}",
        answers.out.display()
    )
}

/// The first of `name.extension`, `name-2.extension` and so on that does not exist.
fn free_path(name: &str, extension: &str) -> PathBuf {
    let path = |number: usize| match number {
        1 => PathBuf::from(format!("{name}{extension}")),
        number => PathBuf::from(format!("{name}-{number}{extension}")),
    };
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    (1..usize::MAX).map(path).find(is_free).expect("a folder has finitely many entries")
}

/// A path that a run file, which is UTF-8, can hold.
fn as_text(path: &Path) -> Option<String> {
    path.to_str().map(str::to_owned)
}

/// An argument or an answer that is not accepted.
fn refused(argument: &str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Argument { argument: argument.to_owned(), problem: problem.into() }
}
