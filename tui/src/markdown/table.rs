//! Lays out a table: its columns shrink and its cells wrap until they fit, and a table that is still too wide
//! becomes one line `header: value` for each cell.

use pulldown_cmark::Alignment;
use ratatui::text::Span;

use super::look::Look;
use super::margin::trim_end;
use super::styled::{Spans, Styled, spans_cells};

/// The fewest cells to which a column may shrink.
const MIN_COLUMN: usize = 6;

/// A parsed table. The first row is the header.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) alignments: Vec<Alignment>,
    pub(super) rows: Vec<Vec<Styled>>,
}

impl Table {
    /// The lines of the table in `columns` cells.
    pub(super) fn lines(&self, columns: usize, look: &Look) -> Vec<Spans> {
        match self.widths(columns) {
            Some(widths) => self.grid(&widths, look),
            None => self.records(columns, look),
        }
    }

    /// The width of each column, or `None` if they do not fit.
    fn widths(&self, columns: usize) -> Option<Vec<usize>> {
        let count = self.alignments.len();
        let available = columns.checked_sub(3 * count.checked_sub(1)?)?;
        if count > available {
            return None;
        }
        let mut widths = vec![1; count];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.width().max(*width);
            }
        }
        shrink(&mut widths, available).then_some(widths)
    }

    fn grid(&self, widths: &[usize], look: &Look) -> Vec<Spans> {
        let rule = look.symbols.rule.repeat(widths.iter().sum::<usize>() + 3 * (widths.len() - 1));
        let mut lines = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| cell.wrap(*width)).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            lines.extend((0..height).map(|line| self.grid_line(&cells, line, widths, look)));
            if index == 0 {
                lines.push(vec![Span::styled(rule.clone(), look.theme.dim)]);
            }
        }
        lines
    }

    fn grid_line(&self, cells: &[Vec<Spans>], line: usize, widths: &[usize], look: &Look) -> Spans {
        let mut spans = Spans::new();
        for (index, (width, alignment)) in widths.iter().zip(&self.alignments).enumerate() {
            let cell = cells.get(index).and_then(|lines| lines.get(line)).cloned().unwrap_or_default();
            let spare = width.saturating_sub(spans_cells(&cell));
            let left = match alignment {
                _ if cell.is_empty() => 0,
                Alignment::None | Alignment::Left => 0,
                Alignment::Center => spare / 2,
                Alignment::Right => spare,
            };
            if index > 0 {
                spans.push(Span::styled(format!(" {} ", look.symbols.bar), look.theme.dim));
            }
            spans.push(Span::raw(" ".repeat(left)));
            spans.extend(cell);
            spans.push(Span::raw(" ".repeat(spare - left)));
        }
        trim_end(&mut spans);
        spans.retain(|span| !span.content.is_empty());
        spans
    }

    /// Each cell on lines of its own, after the header of its column.
    fn records(&self, columns: usize, look: &Look) -> Vec<Spans> {
        let mut lines: Vec<Spans> = Vec::new();
        let Some((header, rows)) = self.rows.split_first() else { return lines };
        if rows.is_empty() {
            return header
                .iter()
                .filter(|cell| !cell.is_empty())
                .flat_map(|cell| cell.wrap(columns))
                .collect();
        }
        for row in rows {
            if !lines.is_empty() {
                lines.push(Spans::new());
            }
            for (header, cell) in header.iter().zip(row).filter(|(_, cell)| !cell.is_empty()) {
                let mut record = header.clone();
                record.push(": ", look.theme.dim);
                record.append(cell);
                lines.extend(record.wrap(columns));
            }
        }
        lines
    }
}

/// Reduces the widest columns to one width such that all fit. Returns whether that leaves them wide enough.
fn shrink(widths: &mut [usize], available: usize) -> bool {
    if widths.iter().sum::<usize>() <= available {
        return true;
    }
    let mut ascending = widths.to_vec();
    ascending.sort_unstable();
    let mut left = available;
    let mut limit = 0;
    for (index, width) in ascending.iter().enumerate() {
        limit = left / (ascending.len() - index);
        if *width > limit {
            break;
        }
        left -= width;
    }
    let mut spare = available - widths.iter().map(|width| limit.min(*width)).sum::<usize>();
    for width in widths.iter_mut().filter(|width| **width > limit) {
        let extra = usize::from(spare > 0);
        spare -= extra;
        *width = limit + extra;
    }
    limit >= MIN_COLUMN
}
