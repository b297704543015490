//! Draws curves into cells: Braille dots, two by four in a cell, or one character a cell without UTF-8.
//!
//! Every column of dots shows the lowest and the highest value of its steps as a vertical line, and lines
//! join the columns. A spike is therefore never lost, and a curve of 100 000 points costs one pass over them.
//! A value that is not finite interrupts the curve. With more than one curve, the number of each stands where
//! it ends, so that nothing depends on colour.

use std::borrow::Cow;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::theme::{Symbols, Theme};
use text::number;

/// A curve to draw.
pub(crate) struct Curve<'a> {
    /// Pairs of step and value.
    pub(crate) points: Cow<'a, [(f64, f64)]>,
    /// Its colour.
    pub(crate) style: Style,
    /// The character at its end, if there are several curves.
    pub(crate) mark: Option<char>,
}

/// The range of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    low: f64,
    high: f64,
}

impl Range {
    /// The range of `values`, with room on both sides of a single value.
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let none = (f64::INFINITY, f64::NEG_INFINITY);
        let (low, high) = values.filter(|v| v.is_finite()).fold(none, |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            return None;
        }
        // Halves, because the difference of two large numbers need not be finite.
        let room = if high / 2.0 - low / 2.0 > 0.0 { 0.0 } else { (0.5 * low.abs()).max(0.5) };
        Some(Self { low: (low - room).max(f64::MIN), high: (high + room).min(f64::MAX) })
    }

    /// The dot, of `count`, that `value` falls on.
    fn dot(self, value: f64, count: usize) -> usize {
        let share = (value / 2.0 - self.low / 2.0) / (self.high / 2.0 - self.low / 2.0);
        (share * (count - 1) as f64).round().clamp(0.0, (count - 1) as f64) as usize
    }
}

/// Draws `curves` with axes into `area`. With `is_log`, values are drawn by their logarithm, and those that
/// have none are left out.
pub(crate) fn draw(
    curves: &[Curve<'_>],
    is_log: bool,
    area: Rect,
    buffer: &mut Buffer,
    (theme, symbols): (&Theme, &Symbols),
) {
    let height = |value: f64| if is_log { value.log10() } else { value };
    let all =
        || curves.iter().flat_map(|curve| curve.points.iter()).filter(|point| height(point.1).is_finite());
    let (x, y) = (Range::of(all().map(|point| point.0)), Range::of(all().map(|point| height(point.1))));
    let (Some(x), Some(y)) = (x, y) else {
        buffer.set_stringn(area.x, area.y, "nothing to draw yet", area.width.into(), theme.dim);
        return;
    };

    let label = |at: f64| number::metric(if is_log { 10_f64.powf(at) } else { at });
    let labels = [label(y.high), label(y.low)];
    let gutter = labels.iter().map(String::len).max().unwrap_or(0) as u16 + 1;
    if area.width < gutter + 4 || area.height < 3 {
        let whole = Raster::of(curves, height, (x, y), area, symbols);
        return whole.paint(area, buffer, symbols);
    }
    let plot = Rect { x: area.x + gutter, width: area.width - gutter, height: area.height - 1, ..area };
    let right = |text: &str| area.x + gutter.saturating_sub(1 + text.len() as u16);
    buffer.set_string(right(&labels[0]), plot.y, &labels[0], theme.dim);
    buffer.set_string(right(&labels[1]), plot.bottom() - 1, &labels[1], theme.dim);
    let [first, last] = [x.low.ceil(), x.high.floor()].map(number::count);
    buffer.set_stringn(plot.x, plot.bottom(), &first, plot.width.into(), theme.dim);
    if plot.width as usize > first.len() + last.chars().count() + 1 {
        buffer.set_string(plot.right() - last.chars().count() as u16, plot.bottom(), &last, theme.dim);
    }
    Raster::of(curves, height, (x, y), plot, symbols).paint(plot, buffer, symbols);
}

/// Dots in rows, and for each cell the style and the mark that lie on it.
struct Raster {
    /// Dots in a cell: columns and rows.
    dots: (usize, usize),
    columns: usize,
    rows: usize,
    /// The dots of each cell, as the bits of a Braille character.
    cells: Vec<u8>,
    styles: Vec<Style>,
    marks: Vec<Option<char>>,
}

/// The bit of each dot in a Braille character, by row and column.
const BRAILLE: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

impl Raster {
    fn of(
        curves: &[Curve<'_>],
        height: impl Fn(f64) -> f64,
        (x, y): (Range, Range),
        area: Rect,
        symbols: &Symbols,
    ) -> Self {
        let (columns, rows) = (usize::from(area.width), usize::from(area.height));
        let count = columns * rows;
        let dots = if symbols.unicode { (2, 4) } else { (1, 1) };
        let (cells, styles, marks) = (vec![0; count], vec![Style::new(); count], vec![None; count]);
        let mut raster = Self { dots, columns, rows, cells, styles, marks };
        if count > 0 {
            for curve in curves {
                raster.draw(curve, &height, (x, y));
            }
        }
        raster
    }

    fn draw(&mut self, curve: &Curve<'_>, height: impl Fn(f64) -> f64, (x, y): (Range, Range)) {
        let (width, rows) = (self.columns * self.dots.0, self.rows * self.dots.1);
        let mut before: Option<(usize, usize)> = None;
        for &(step, value) in curve.points.iter() {
            let value = height(value);
            if !(step.is_finite() && value.is_finite()) {
                before = None;
                continue;
            }
            let (column, row) = (x.dot(step, width), rows - 1 - y.dot(value, rows));
            self.join(before.unwrap_or((column, row)), (column, row), curve.style);
            before = Some((column, row));
        }
        if let (Some((column, row)), Some(mark)) = (before, curve.mark) {
            let cell = self.cell(column, row);
            self.marks[cell] = Some(mark);
        }
    }

    fn cell(&self, column: usize, row: usize) -> usize {
        row / self.dots.1 * self.columns + column / self.dots.0
    }

    fn set(&mut self, column: usize, row: usize, style: Style) {
        let cell = self.cell(column, row);
        self.cells[cell] |= BRAILLE[row % self.dots.1][column % self.dots.0];
        self.styles[cell] = style;
    }

    /// Draws a line between two dots: in each column, all dots between the heights at its two ends.
    fn join(&mut self, from: (usize, usize), to: (usize, usize), style: Style) {
        let (from, to) = if from.0 <= to.0 { (from, to) } else { (to, from) };
        let steps = to.0 - from.0;
        let height = |step: usize| {
            let share = step as f64 / steps.max(1) as f64;
            (from.1 as f64 + share * (to.1 as f64 - from.1 as f64)).round() as usize
        };
        let mut last = from.1;
        for step in 0..=steps {
            let row = if steps == 0 { to.1 } else { height(step) };
            for row in last.min(row)..=last.max(row) {
                self.set(from.0 + step, row, style);
            }
            last = row;
        }
    }

    fn paint(&self, area: Rect, buffer: &mut Buffer, symbols: &Symbols) {
        let characters = self.cells.iter().zip(&self.marks).zip(&self.styles).enumerate();
        for (index, ((&bits, &mark), &style)) in characters {
            let dots = if symbols.unicode { char::from_u32(0x2800 + u32::from(bits)) } else { None };
            let drawn = match mark {
                Some(mark) => mark.to_string(),
                None if bits == 0 => continue,
                None => dots.map_or_else(|| symbols.bullet.to_owned(), String::from),
            };
            let (column, row) = (index % self.columns, index / self.columns);
            buffer.set_string(area.x + column as u16, area.y + row as u16, drawn, style);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::ThemeName;

    fn drawn(points: Vec<(f64, f64)>, is_log: bool, symbols: &Symbols) -> Vec<String> {
        let area = Rect::new(0, 0, 20, 5);
        let mut buffer = Buffer::empty(area);
        let curve = Curve { points: points.into(), style: Style::new(), mark: None };
        draw(&[curve], is_log, area, &mut buffer, (&Theme::new(ThemeName::Plain), symbols));
        let row = |y| (0..20).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..5).map(row).collect()
    }

    #[test]
    fn a_rising_line_rises_from_corner_to_corner() {
        let rows = drawn((0..100).map(|i| (f64::from(i), f64::from(i))).collect(), false, &Symbols::ASCII);
        assert_eq!(rows[0], "99              ****".trim_end());
        assert_eq!(rows[3], " 0 ****");
        assert_eq!(rows[4], "   0              99");
    }

    #[test]
    fn a_spike_between_two_columns_is_drawn_and_a_gap_is_left_open() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i), 0.0)).collect();
        points[50_001].1 = 1.0;
        let rows = drawn(points.clone(), false, &Symbols::ASCII);
        assert_eq!(rows[0].matches('*').count(), 1, "{rows:#?}");
        points[20_000..40_000].iter_mut().for_each(|point| point.1 = f64::NAN);
        let rows = drawn(points, false, &Symbols::ASCII);
        assert!(rows[3].contains("**  "), "{rows:#?}");
    }

    #[test]
    fn a_logarithm_leaves_out_what_has_none() {
        let rows = drawn(vec![(0.0, 1.0), (1.0, -5.0), (2.0, 100.0)], true, &Symbols::UNICODE);
        assert!(rows[0].starts_with("100") && rows[3].starts_with("  1"), "{rows:#?}");
        assert_eq!(rows.concat().chars().filter(|c| ('\u{2801}'..='\u{28ff}').contains(c)).count(), 2);
    }

    #[test]
    fn extreme_numbers_have_a_range() {
        let rows =
            drawn(vec![(0.0, f64::MAX), (1.0, f64::MIN), (u64::MAX as f64, 0.0)], false, &Symbols::ASCII);
        assert!(rows.concat().contains('*'));
        assert_eq!(drawn(vec![(0.0, f64::NAN)], false, &Symbols::ASCII)[0], "nothing to draw yet");
    }
}
