//! `init`: asks at most five questions and writes a run file with comments.
//!
//! Flags answer questions, and `--yes` takes the defaults, which come from what lies in the current folder.
//! Each answer is checked at once: the configuration and the tokenizer of a model, and the layout and the
//! first rows of a file. No weights are read, and nothing is downloaded.

mod answers;
mod check;
mod dialog;
mod rows;
mod run_file;

use std::path::Path;

use crate::args::InitArgs;
use crate::console::print;
use crate::hardware;
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
    let text = run_file::text(&answers, hardware::load(threads)?.as_ref());
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
