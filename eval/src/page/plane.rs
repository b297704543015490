//! Lines and points in a plane, and histograms, as inline SVG.
//!
//! Where several lines are numbered, the number of each stands at its end, so that nothing depends on colour.
//! Colours come from classes of the style sheet.

use std::fmt::Write as _;

use super::axis::{Axis, draw_axes, open, text};
use super::curve::{self, Pieces};
use super::escape::escape_html;

/// The size of a drawing.
const SIZE: (f64, f64) = (440.0, 236.0);

/// A drawing of lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plane<'a> {
    /// What it shows, for those who cannot see it.
    pub(crate) title: &'a str,
    /// What the x axis is.
    pub(crate) x_label: &'a str,
    /// The lines.
    pub(crate) lines: Vec<Line<'a>>,
    /// Whether the lines have numbers, from 1.
    pub(crate) is_numbered: bool,
    /// The ends of a dashed line, such as the diagonal.
    pub(crate) reference: Option<[(f64, f64); 2]>,
}

/// A line with points, each of which may have an interval.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line<'a> {
    /// The points, by ascending x, split where one is not finite.
    pub(crate) pieces: Pieces,
    /// Intervals: x, low and high.
    pub(crate) intervals: Vec<(f64, f64, f64)>,
    /// Whether the points are marked.
    pub(crate) has_marks: bool,
    /// Whether it stands behind another one.
    pub(crate) is_faint: bool,
    /// The class that gives the colour; by its number without one.
    pub(crate) class: Option<&'a str>,
}

impl Plane<'_> {
    /// The drawing. `None` if no line has a finite point.
    pub(crate) fn svg(&self) -> Option<String> {
        let mut all: Pieces = self.lines.iter().flat_map(|line| line.pieces.iter().cloned()).collect();
        if all.is_empty() {
            return None;
        }
        let ends = self.lines.iter().flat_map(|line| &line.intervals);
        let ends = ends.flat_map(|&(x, low, high)| [(x, low), (x, high)]);
        all.push(ends.chain(self.reference.into_iter().flatten()).filter(is_finite).collect());
        let (x, y) = (Axis::over(&all, |point| point.0)?, Axis::over(&all, |point| point.1)?);
        let x = Axis { from: 58.0, to: SIZE.0 - 24.0, ..x };
        let y = y.with_margin(SIZE.1 - 42.0, 12.0);

        let mut svg = open(self.title, SIZE.0, SIZE.1);
        draw_axes(&mut svg, x, y, self.x_label);
        if let Some(ends) = self.reference {
            draw_pieces(&mut svg, "reference", &vec![ends.to_vec()], (x, y));
        }
        for (index, line) in self.lines.iter().enumerate() {
            let class = line.class.map_or_else(|| format!("run-{}", index % 6), escape_html);
            let _ = write!(svg, r#"<g class="{class}">"#);
            line.draw(&mut svg, (x, y));
            let end = line.pieces.last().and_then(|piece| piece.last());
            if let Some(end) = end.filter(|_| self.is_numbered) {
                let gap = if line.has_marks { 8.0 } else { 4.0 };
                let place = (x.at(end.0) + gap, y.at(end.1) + 4.0);
                text(&mut svg, "tick end", place, "start", &(index + 1).to_string());
            }
            svg.push_str("</g>");
        }
        Some(svg + "</svg>")
    }
}

impl Line<'_> {
    /// A line through points.
    pub(crate) fn through(points: &[(f64, f64)]) -> Self {
        Self { pieces: curve::raw(points), ..Self::default() }
    }

    /// The same line with marks and intervals.
    pub(crate) fn marked(self, intervals: Vec<(f64, f64, f64)>) -> Self {
        Self { intervals, has_marks: true, ..self }
    }

    fn draw(&self, svg: &mut String, (x, y): (Axis, Axis)) {
        draw_pieces(svg, if self.is_faint { "line raw" } else { "line" }, &self.pieces, (x, y));
        for &(at, low, high) in &self.intervals {
            if is_finite(&(at, low)) && high.is_finite() {
                let (at, low, high) = (x.at(at), y.at(low), y.at(high));
                let _ = write!(svg, r#"<path class="whisker" d="M{at:.1} {low:.1}V{high:.1}"/>"#);
            }
        }
        for point in self.pieces.iter().flatten().filter(|_| self.has_marks) {
            let (left, top) = (x.at(point.0), y.at(point.1));
            let _ = write!(svg, r#"<circle class="mark" cx="{left:.1}" cy="{top:.1}" r="3"/>"#);
        }
    }
}

fn draw_pieces(svg: &mut String, class: &str, pieces: &Pieces, (x, y): (Axis, Axis)) {
    let mut path = String::new();
    for piece in pieces {
        for (i, point) in piece.iter().enumerate() {
            let command = if i == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", x.at(point.0), y.at(point.1));
        }
        if piece.len() == 1 {
            // With round caps, a line of length zero shows as a dot.
            path.push_str("h0");
        }
    }
    let _ = write!(svg, r#"<path class="{class}" d="{path}"/>"#);
}

fn is_finite(point: &(f64, f64)) -> bool {
    point.0.is_finite() && point.1.is_finite()
}

/// A curve by step of a class: its raw values, faint behind their moving average if there are enough of them.
/// `None` without a finite value.
pub(crate) fn curve(title: &str, class: &str, points: &[(f64, f64)]) -> Option<String> {
    let class = Some(class);
    let mut lines = vec![Line { class, ..Line::through(points) }];
    if let Some(window) = curve::window(points) {
        lines[0].is_faint = true;
        lines.push(Line { class, pieces: curve::smoothed(points, window), ..Line::default() });
    }
    Plane { title, x_label: "step", lines, ..Plane::default() }.svg()
}

/// The curves of a metric by step over one another, without smoothing, each with its number.
pub(crate) fn overlay(metric: &str, curves: &[(String, Vec<(f64, f64)>)]) -> String {
    let title = format!("{metric} by step");
    let lines = curves.iter().map(|(_, points)| Line::through(points)).collect();
    let plane = Plane { title: &title, x_label: "step", lines, is_numbered: true, reference: None };
    plane.svg().unwrap_or_else(|| open(&title, SIZE.0, SIZE.1) + "</svg>")
}

/// The number of values in each of about 40 bins. Zero is an edge, and bins below it have another colour.
/// `None` without finite values.
pub(crate) fn histogram(title: &str, x_label: &str, values: &[f64]) -> Option<String> {
    const BINS: f64 = 40.0;
    let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let points: Vec<(f64, f64)> = finite.iter().map(|&value| (value, 0.0)).collect();
    let range = Axis::over(&vec![points], |point| point.0)?;
    let width = (range.high - range.low) / BINS;
    if !width.is_normal() {
        return None;
    }
    let first = (range.low / width).floor();
    let count = (range.high / width).floor() - first + 1.0;
    let mut counts = vec![0_usize; count as usize];
    for value in &finite {
        let bin = ((value / width).floor() - first) as usize;
        counts[bin.min(count as usize - 1)] += 1;
    }

    let highest = counts.iter().copied().max().unwrap_or(0) as f64;
    let x = Axis { from: 58.0, to: SIZE.0 - 24.0, low: first * width, high: (first + count) * width };
    let y = Axis { from: SIZE.1 - 42.0, to: 12.0, low: 0.0, high: highest };
    let mut svg = open(title, SIZE.0, SIZE.1);
    draw_axes(&mut svg, x, y, x_label);
    for (index, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
        let low = (first + index as f64) * width;
        let (left, right) = (x.at(low), x.at(low + width));
        // A bin of a few values among thousands must not vanish.
        let height = (y.from - y.at(count as f64)).max(1.0);
        let class = if first + (index as f64) < 0.0 { "bar below" } else { "bar" };
        let _ = write!(
            svg,
            r#"<rect class="{class}" x="{left:.1}" y="{:.1}" width="{:.1}" height="{height:.1}"/>"#,
            y.from - height,
            (right - left - 0.5).max(0.5)
        );
    }
    Some(svg + "</svg>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_an_edge_of_a_histogram_and_every_value_is_in_a_bin() {
        let svg = histogram("margins", "margin", &[-1.0, -0.001, 0.0, 3.0, 3.0, f64::NAN]).unwrap();
        // By hand: -1 and -0.001 each in a bin below zero; 0 and 3 each in one above.
        assert_eq!((svg.matches("bar below").count(), svg.matches("class=\"bar\"").count()), (2, 2));
        assert_eq!(histogram("none", "margin", &[f64::INFINITY]), None);
        assert!(histogram("one value", "margin", &[2.0, 2.0]).is_some());
        assert!(histogram("too wide", "margin", &[f64::MIN, f64::MAX]).is_none());
    }

    #[test]
    fn lines_without_finite_points_are_not_drawn() {
        let line = Line::through;
        let plane = |lines| Plane { title: "<t>", x_label: "x", lines, is_numbered: true, reference: None };
        assert_eq!(plane(vec![line(&[]), line(&[(f64::NAN, 1.0)])]).svg(), None);
        let svg = plane(vec![line(&[(0.0, 1.0), (1.0, 2.0)]), line(&[(0.5, 1.0)])]).svg().unwrap();
        assert!(svg.contains("run-1") && svg.contains("&lt;t&gt;") && !svg.contains("<t>"));
        assert_eq!(svg.matches("tick end").count(), 2);
    }
}
