//! Detects what the terminal can do, and converts styled lines to text for it.
//!
//! Colour follows the conventions of no-color.org and bixense.com/clicolors, in this order: a non-empty
//! `NO_COLOR` disables it; `CLICOLOR_FORCE` other than `0` enables it even off a terminal; `CLICOLOR=0` and
//! `TERM=dumb` disable it; otherwise it is on for a terminal. The cursor is moved only on a terminal whose
//! `TERM` is set and not `dumb`.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::time::Duration;

use ratatui::crossterm::terminal;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;

/// The environment variables that control the output. Tests set them directly; programs call
/// [`Environment::read`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `NO_COLOR`.
    pub no_color: Option<OsString>,
    /// `CLICOLOR`.
    pub clicolor: Option<OsString>,
    /// `CLICOLOR_FORCE`.
    pub clicolor_force: Option<OsString>,
    /// `TERM`.
    pub term: Option<OsString>,
}

impl Environment {
    /// Reads the environment of this process.
    pub fn read() -> Self {
        let [no_color, clicolor, clicolor_force, term] =
            ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM"].map(std::env::var_os);
        Self { no_color, clicolor, clicolor_force, term }
    }

    /// Whether to colour the output to a sink. `is_terminal` says whether the sink is a terminal.
    pub fn color(&self, is_terminal: bool) -> bool {
        let is_set = |value: &Option<OsString>| value.as_deref().is_some_and(|value| !value.is_empty());
        let is_zero = |value: &Option<OsString>| value.as_deref() == Some(OsStr::new("0"));
        if is_set(&self.no_color) {
            return false;
        }
        if is_set(&self.clicolor_force) && !is_zero(&self.clicolor_force) {
            return true;
        }
        is_terminal && self.moves_cursor() && !is_zero(&self.clicolor)
    }

    /// Whether the terminal can move its cursor: `TERM` is set and not `dumb`.
    pub fn moves_cursor(&self) -> bool {
        self.term.as_deref().is_some_and(|term| !term.is_empty() && term != "dumb")
    }
}

/// How to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The layout of the display.
    pub layout: Layout,
    /// Whether to colour the display.
    pub color: bool,
}

/// A block that is redrawn in place, or permanent lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A block with this width.
    Live(Columns),
    /// Lines written this often.
    Lines(Every),
}

/// Where the width of the terminal comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// The terminal is queried at each redraw; the width is 80 if it does not report one.
    Terminal,
    /// A fixed number of columns.
    Fixed(u16),
}

/// How often a line is written off a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// At most once per this interval.
    Interval(Duration),
    /// Once per this many steps.
    Steps(u64),
}

impl Mode {
    /// The mode for a sink. `is_terminal` says whether the sink is a terminal; if not, a line is written
    /// every ten seconds.
    pub fn detect(is_terminal: bool, environment: &Environment) -> Self {
        let layout = if is_terminal && environment.moves_cursor() {
            Layout::Live(Columns::Terminal)
        } else {
            Layout::Lines(Every::Interval(Duration::from_secs(10)))
        };
        Self { layout, color: environment.color(is_terminal) }
    }
}

impl Columns {
    /// The width in cells, at least 1.
    pub fn get(self) -> usize {
        let columns = match self {
            Self::Fixed(columns) => columns,
            Self::Terminal => terminal::size().map_or(80, |(columns, _)| columns),
        };
        usize::from(columns).max(1)
    }
}

/// Converts `line` to text, with SGR sequences around its styled spans if `color` is set. Each span ends by
/// resetting the style, so truncated output colours at most one span.
pub fn paint(line: &Line<'_>, color: bool) -> String {
    let mut painted = String::new();
    for span in &line.spans {
        let codes = if color { sgr(line.style.patch(span.style)) } else { String::new() };
        if codes.is_empty() {
            painted.push_str(&span.content);
        } else {
            let _ = write!(painted, "\u{1b}[{codes}m{}\u{1b}[0m", span.content);
        }
    }
    painted
}

/// The SGR parameters (ECMA-48, 8.3.117) of the styles used in this crate: bold, dim and the sixteen named
/// colours.
fn sgr(style: Style) -> String {
    let mut codes = Vec::new();
    if style.add_modifier.contains(Modifier::BOLD) {
        codes.push("1");
    }
    if style.add_modifier.contains(Modifier::DIM) {
        codes.push("2");
    }
    match style.fg {
        Some(Color::Red) => codes.push("31"),
        Some(Color::Green) => codes.push("32"),
        Some(Color::Yellow) => codes.push("33"),
        Some(Color::Blue) => codes.push("34"),
        Some(Color::Magenta) => codes.push("35"),
        Some(Color::Cyan) => codes.push("36"),
        _ => {}
    }
    codes.join(";")
}

#[cfg(test)]
mod tests {
    use ratatui::style::Stylize;

    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        let get = |name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.into());
        Environment {
            no_color: get("NO_COLOR"),
            clicolor: get("CLICOLOR"),
            clicolor_force: get("CLICOLOR_FORCE"),
            term: get("TERM"),
        }
    }

    #[test]
    fn conventions_of_colour() {
        type Case = (&'static [(&'static str, &'static str)], bool, bool);
        let cases: [Case; 10] = [
            (&[("TERM", "xterm")], true, true),
            (&[("TERM", "xterm")], false, false),
            (&[("TERM", "dumb")], true, false),
            (&[], true, false),
            (&[("TERM", "xterm"), ("NO_COLOR", "1")], true, false),
            (&[("TERM", "xterm"), ("NO_COLOR", "")], true, true),
            (&[("TERM", "xterm"), ("CLICOLOR", "0")], true, false),
            (&[("CLICOLOR_FORCE", "1")], false, true),
            (&[("CLICOLOR_FORCE", "0")], false, false),
            (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], true, false),
        ];
        for (pairs, is_terminal, expected) in cases {
            assert_eq!(environment(pairs).color(is_terminal), expected, "{pairs:?} terminal {is_terminal}");
        }
    }

    #[test]
    fn only_a_real_terminal_gets_a_live_block() {
        let layout = |pairs, is_terminal| Mode::detect(is_terminal, &environment(pairs)).layout;
        assert_eq!(layout(&[("TERM", "xterm")], true), Layout::Live(Columns::Terminal));
        let lines = Layout::Lines(Every::Interval(Duration::from_secs(10)));
        assert_eq!(layout(&[("TERM", "xterm")], false), lines);
        assert_eq!(layout(&[("TERM", "dumb")], true), lines);
        assert_eq!(layout(&[("TERM", "xterm"), ("CLICOLOR_FORCE", "1")], false), lines);
        // NO_COLOR takes away colour, not the block.
        let plain = Mode::detect(true, &environment(&[("TERM", "xterm"), ("NO_COLOR", "1")]));
        assert_eq!(plain, Mode { layout: Layout::Live(Columns::Terminal), color: false });
    }

    #[test]
    fn painting() {
        let line = Line::from(vec!["a".bold().cyan(), "b".into(), "c".dim()]);
        assert_eq!(paint(&line, true), "\u{1b}[1;36ma\u{1b}[0mb\u{1b}[2mc\u{1b}[0m");
        assert_eq!(paint(&line, false), "abc");
    }
}
