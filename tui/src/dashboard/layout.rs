//! Where each pane is drawn: one pane on a small screen, three on a usual one, all of them on a large one.

use ratatui::layout::{Constraint, Layout, Rect};

/// A part of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pane {
    /// The curves.
    Charts,
    /// The newest numbers.
    Numbers,
    /// What the rules say.
    Hints,
    /// The samples.
    Samples,
    /// The time of each phase.
    Times,
    /// The processes and the memory.
    Ranks,
    /// The messages of the run.
    Log,
}

impl Pane {
    /// All panes, in the order of the key Tab.
    pub(super) const ALL: [Self; 7] =
        [Self::Charts, Self::Numbers, Self::Hints, Self::Samples, Self::Times, Self::Ranks, Self::Log];

    /// The title.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Charts => "charts",
            Self::Numbers => "numbers",
            Self::Hints => "hints",
            Self::Samples => "samples",
            Self::Times => "times",
            Self::Ranks => "processes and memory",
            Self::Log => "log",
        }
    }

    /// The pane that is `count` panes further.
    pub(super) fn after(self, count: usize) -> Self {
        let index = Self::ALL.iter().position(|&pane| pane == self).unwrap_or(0);
        Self::ALL[(index + count) % Self::ALL.len()]
    }
}

/// Divides `body` into panes.
pub(super) fn arrange(body: Rect, focus: Pane) -> Vec<(Pane, Rect)> {
    if body.width < 72 || body.height < 16 {
        return vec![(focus, body)];
    }
    if body.width < 120 || body.height < 34 {
        let is_above = matches!(focus, Pane::Charts | Pane::Numbers);
        let lower = if is_above { Pane::Hints } else { focus };
        let [above, below] = Layout::vertical([Constraint::Fill(3), Constraint::Fill(2)]).areas(body);
        let [charts, numbers] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Length(38)]).spacing(1).areas(above);
        return vec![(Pane::Charts, charts), (Pane::Numbers, numbers), (lower, below)];
    }
    let [left, right] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(46)]).spacing(1).areas(body);
    let [charts, samples, log] =
        Layout::vertical([Constraint::Fill(5), Constraint::Fill(3), Constraint::Fill(2)]).areas(left);
    let heights = [Constraint::Fill(4), Constraint::Length(6), Constraint::Fill(2), Constraint::Fill(4)];
    let [numbers, times, ranks, hints] = Layout::vertical(heights).areas(right);
    vec![
        (Pane::Charts, charts),
        (Pane::Samples, samples),
        (Pane::Log, log),
        (Pane::Numbers, numbers),
        (Pane::Times, times),
        (Pane::Ranks, ranks),
        (Pane::Hints, hints),
    ]
}

/// Divides the pane of the charts into cells for at most `count` charts.
pub(super) fn chart_cells(area: Rect, count: usize) -> Vec<Rect> {
    let columns = usize::from(area.width / 44).clamp(1, 3).min(count.max(1)) as u16;
    let rows = usize::from(area.height / 9).clamp(1, 4).min(count.div_ceil(columns.into()).max(1)) as u16;
    let (width, height) = (area.width / columns, area.height / rows);
    let cell = |index: u16| {
        let (column, row) = (index % columns, index / columns);
        // The last column and the last row take what is left over.
        let wide = if column == columns - 1 { area.width - column * width } else { width - 1 };
        let high = if row == rows - 1 { area.height - row * height } else { height };
        Rect { x: area.x + column * width, y: area.y + row * height, width: wide, height: high }
    };
    (0..columns * rows).map(cell).take(count).collect()
}
