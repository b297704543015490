//! Output to stdout and stderr: rows of data, tables, and messages for the user.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};

use text::{sanitize, single_line, width};

/// Where messages go while a full screen is shown.
static DIVERTED: Mutex<Option<Sender<String>>> = Mutex::new(None);

/// Sends all further messages to the receiver instead of stderr, until it is dropped. A full screen shows
/// them itself.
pub(crate) fn divert_stderr() -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    *DIVERTED.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    receiver
}

/// Writes a line of data to stdout. See [`print_rows`].
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    print_rows(format!("{text}\n").as_bytes())
}

/// Writes data to stdout. On a terminal, control characters are made visible, because the text may come from
/// untrusted files. Other outputs receive the data unchanged.
pub(crate) fn print_rows(text: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    if stdout.is_terminal() {
        stdout.write_all(sanitize(&String::from_utf8_lossy(text)).as_bytes())?;
    } else {
        stdout.write_all(text)?;
    }
    stdout.flush()
}

/// Lays `rows` out in columns, the first column and those of `left` to the left, the others to the right.
pub(crate) fn table(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let safe = |cell: &String| single_line(cell);
    let column_width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| width(&safe(cell))).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(column_width).collect();
    let line = |row: &Vec<String>| {
        let cell = |(column, cell): (usize, &String)| {
            let cell = safe(cell);
            let space = " ".repeat(widths[column] - width(&cell));
            if column < left { cell + &space } else { space + &cell }
        };
        row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Writes a line to stderr, with every control character made visible. A failed write is ignored, so that a
/// closed stderr does not stop the work.
///
/// All messages of this program use this function or the displays of `tui`, which do the same.
pub(crate) fn print_stderr(text: &str) {
    let diverted = DIVERTED.lock().unwrap_or_else(PoisonError::into_inner);
    if diverted.as_ref().is_some_and(|sender| sender.send(text.to_owned()).is_ok()) {
        return;
    }
    // One write, so that output of another process does not interrupt the line.
    let _ = std::io::stderr().write_all(format!("{}\n", sanitize(text)).as_bytes());
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
