//! Curves as lines of text, for terminals and files: the chart of the dashboard without a screen.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use crate::dashboard::chart::{self, Curve};
use crate::theme::{Symbols, Theme, ThemeName};

/// A curve: its name, and pairs of step and value.
pub type NamedPoints = (String, Vec<(f64, f64)>);

/// Draws `curves` over one another in `width` columns and `height` rows, each with its name above.
pub fn plot(
    curves: &[NamedPoints],
    is_log: bool,
    (width, height): (u16, u16),
    symbols: &Symbols,
) -> Vec<Line<'static>> {
    let theme = Theme::new(ThemeName::Dark);
    let is_many = curves.len() > 1;
    let mark = |index: usize| char::from_digit(index as u32 + 1, 10).unwrap_or('*');
    let mut lines = Vec::new();
    for (index, (name, _)) in curves.iter().enumerate() {
        let prefix = if is_many { format!("{} ", mark(index)) } else { String::new() };
        let name = text::truncate(&text::single_line(&format!("{prefix}{name}")), width.into());
        let name = if symbols.unicode { name } else { name.replace(|c: char| !c.is_ascii(), "?") };
        lines.push(Line::from(Span::styled(name, theme.series[index % theme.series.len()])));
    }

    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    let drawn = curves.iter().enumerate().map(|(index, (_, points))| Curve {
        points: points.as_slice().into(),
        style: theme.series[index % theme.series.len()],
        mark: is_many.then(|| mark(index)),
    });
    chart::draw(&drawn.collect::<Vec<_>>(), is_log, area, &mut buffer, (&theme, symbols));
    for y in 0..height {
        let cells = (0..width).map(|x| &buffer[(x, y)]);
        let spans = cells.map(|cell| Span::styled(cell.symbol().to_owned(), cell.style()));
        lines.push(joined(spans));
    }
    lines
}

/// Joins neighbouring spans of one style, and leaves out the spaces at the end.
fn joined(spans: impl Iterator<Item = Span<'static>>) -> Line<'static> {
    let mut joined: Vec<Span<'static>> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if last.style == span.style => last.content.to_mut().push_str(&span.content),
            _ => joined.push(span),
        }
    }
    while let Some(last) = joined.last_mut() {
        let trimmed = last.content.trim_end().to_owned();
        if !trimmed.is_empty() {
            last.content = trimmed.into();
            break;
        }
        joined.pop();
    }
    Line::from(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_are_drawn_over_one_another_with_their_names() {
        let rising: Vec<(f64, f64)> = (0..20).map(|i| (f64::from(i), f64::from(i))).collect();
        let falling: Vec<(f64, f64)> = rising.iter().map(|point| (point.0, 19.0 - point.1)).collect();
        let curves = [("loss of a".to_owned(), rising), ("loss of \u{1b}b".to_owned(), falling)];
        let lines = plot(&curves, false, (30, 6), &Symbols::ASCII);
        let text: Vec<String> = lines.iter().map(ToString::to_string).collect();
        let expected = [
            "1 loss of a",
            "2 loss of ?b",
            "19 *****                 ****1",
            "       *****          *****",
            "           ************",
            "           ***********",
        ];
        assert_eq!(text[..2], expected[..2]);
        assert!(text[2].starts_with("19 ***") && text[2].ends_with("**1"), "{text:#?}");
        assert!(text[6].ends_with("**2"), "{text:#?}");
        assert_eq!(lines.len(), 8);
    }
}
