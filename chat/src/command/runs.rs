//! `runs`: lists, shows, compares and plots run folders. Nothing in them is changed.

mod compare;
mod ls;
mod plot;
mod show;

use crate::args::RunsCommand;
use crate::console::print_stderr;
use crate::interrupt;
use crate::run_data::RunData;

/// Runs one of the commands.
pub(crate) fn run(command: &RunsCommand) -> anyhow::Result<()> {
    interrupt::listen()?;
    match command {
        RunsCommand::Ls(arguments) => ls::run(arguments),
        RunsCommand::Show(arguments) => show::run(arguments),
        RunsCommand::Compare(arguments) => compare::run(arguments),
        RunsCommand::Plot(arguments) => plot::run(arguments),
    }
}

/// Prints what is wrong with the files of a run: at most ten lines, and how many more there are.
pub(crate) fn print_warnings(run: &RunData) {
    run.warnings.iter().take(10).for_each(|warning| print_stderr(warning));
    if run.warnings.len() > 10 {
        let more = run.warnings.len() - 10;
        print_stderr(&format!("warning: {}: {more} more rows are left out", run.out.display()));
    }
}

/// Lays `rows` out in columns, the first column and those of `left` to the left, the others to the right.
pub(crate) fn table(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let safe = |cell: &String| tui::text::single_line(cell);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| tui::text::width(&safe(cell)))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cell = |(column, cell): (usize, &String)| {
            let cell = safe(cell);
            let space = " ".repeat(widths[column] - tui::text::width(&cell));
            if column < left { cell + &space } else { space + &cell }
        };
        row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text = table(&[row(["run", "loss", "s"]), row(["星期三", "1.25", "\u{1b}x"])], 1);
        assert_eq!(text, "run     loss   s\n星期三  1.25  ␛x");
    }
}
