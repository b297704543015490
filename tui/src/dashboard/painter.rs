//! Draws text into a part of the screen, cut and wrapped to its cells, and bars.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::state::Dashboard;

/// Draws text of the run: every text that is not ours passes through here.
pub(super) struct Painter<'a> {
    /// What is drawn.
    pub(super) dashboard: &'a Dashboard,
    /// Where it is drawn.
    pub(super) buffer: &'a mut Buffer,
}

impl Painter<'_> {
    /// Draws one line at the row `row` of `area`, cut at its width. Rows outside are not drawn. Returns the
    /// column behind it.
    pub(super) fn line(&mut self, area: Rect, row: usize, column: u16, text: &str, style: Style) -> u16 {
        if row >= usize::from(area.height) || column >= area.width {
            return column;
        }
        let text = self.fit(text, usize::from(area.width - column));
        self.buffer.set_string(area.x + column, area.y + row as u16, &text, style);
        column + text::width(&text) as u16
    }

    /// Sanitizes `text` for this terminal and cuts it at `columns` cells.
    pub(super) fn fit(&self, text: &str, columns: usize) -> String {
        let fitted = text::truncate(&self.printable(text).replace('\n', " "), columns);
        fitted.replace('…', self.dashboard.symbols.ellipsis)
    }

    /// Makes every character of `text` one that this terminal can show.
    pub(super) fn printable(&self, text: &str) -> String {
        let text = text::sanitize(text).replace('\t', " ");
        if self.dashboard.symbols.unicode {
            return text;
        }
        text.chars().map(|character| if character.is_ascii() { character } else { '?' }).collect()
    }

    /// Wraps `text` into lines of at most `columns` cells.
    pub(super) fn wrap(&self, text: &str, columns: u16) -> Vec<String> {
        text::wrap(&self.printable(text), usize::from(columns))
    }

    /// Draws the title of a pane in a rule over its whole width.
    pub(super) fn rule(&mut self, area: Rect, title: &str, style: Style) {
        let dim = self.dashboard.theme.dim;
        let rule = self.dashboard.symbols.rule;
        let line = rule.repeat(area.width.saturating_sub(1).into());
        self.line(area, 0, 0, &line, dim);
        self.line(Rect { width: area.width.saturating_sub(2), ..area }, 0, 2, &format!(" {title} "), style);
    }
}

/// Draws a bar of `cells` cells at a row and a column of an area, `share` of them full. Returns the column
/// behind it.
pub(super) fn bar(
    painter: &mut Painter<'_>,
    (area, row, column): (Rect, usize, u16),
    share: f64,
    cells: usize,
) -> u16 {
    let Dashboard { theme, symbols, .. } = painter.dashboard;
    let full = (share.clamp(0.0, 1.0) * cells as f64).round() as usize;
    let column = painter.line(area, row, column, &symbols.levels[7].repeat(full), theme.series[0]);
    painter.line(area, row, column, &symbols.rule.repeat(cells - full.min(cells)), theme.dim)
}
