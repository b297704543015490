//! Lines and points in a plane, and histograms, as inline SVG.
//!
//! The number of each of several lines stands at its end, so that nothing depends on colour. Colours come
//! from classes of the style sheet.

use std::fmt::Write as _;

use super::chart::{Axis, CURVE, axis_over, draw_axes, draw_line, open};
use super::curve;

/// The style of the classes `run-0` to `run-5`.
pub(crate) const LINE_COLOURS: &str = "svg g.run-0{color:var(--sft)} svg g.run-1{color:var(--ppo)} svg g.run-2{color:var(--rm)} \
    svg g.run-3{color:var(--base)} svg g.run-4{color:var(--right)} svg g.run-5{color:var(--wrong)} svg .end{fill:currentColor} \
    svg rect.below{fill:var(--wrong);opacity:.75} svg .reference{stroke:var(--soft);stroke-dasharray:4 4;fill:none}\n";

/// A drawing of lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plane<'a> {
    /// What it shows, for those who cannot see it.
    pub(crate) title: &'a str,
    /// What the x axis is.
    pub(crate) x_label: &'a str,
    /// The lines.
    pub(crate) lines: Vec<Line>,
    /// The ends of a dashed line, such as the diagonal.
    pub(crate) reference: Option<[(f64, f64); 2]>,
}

/// A line with points, each of which may have an interval.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    /// The points, by ascending x.
    pub(crate) points: Vec<(f64, f64)>,
    /// Intervals: x, low and high.
    pub(crate) intervals: Vec<(f64, f64, f64)>,
    /// Whether the points are marked.
    pub(crate) has_marks: bool,
}

impl Plane<'_> {
    /// The drawing. `None` if no line has a finite point.
    pub(crate) fn svg(&self) -> Option<String> {
        let pieces: Vec<curve::Pieces> = self.lines.iter().map(|line| curve::raw(&line.points)).collect();
        let ends = self.lines.iter().flat_map(|line| &line.intervals);
        let intervals = ends.flat_map(|&(x, low, high)| [(x, low), (x, high)]);
        let extra: Vec<(f64, f64)> =
            intervals.chain(self.reference.into_iter().flatten()).filter(is_finite).collect();
        let mut all: curve::Pieces = pieces.iter().flatten().cloned().collect();
        if all.is_empty() {
            return None;
        }
        all.push(extra);
        let (x, y) = (axis_over(&all, |point| point.0)?, axis_over(&all, |point| point.1)?);
        let x = Axis { from: 58.0, to: CURVE.0 - 24.0, ..x };
        let y = y.with_margin(CURVE.1 - 42.0, 12.0);

        let mut svg = open(self.title, CURVE.0, CURVE.1);
        draw_axes(&mut svg, x, y, self.x_label);
        if let Some([from, to]) = self.reference {
            let ends = [x.at(from.0), y.at(from.1), x.at(to.0), y.at(to.1)];
            let [x1, y1, x2, y2] = ends;
            let _ = write!(svg, r#"<path class="reference" d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}"/>"#);
        }
        for (index, (line, pieces)) in self.lines.iter().zip(&pieces).enumerate() {
            let _ = write!(svg, r#"<g class="run-{}">"#, index % 6);
            draw_line(&mut svg, "line", pieces, (x, y));
            line.draw_marks(&mut svg, x, y);
            let end = pieces.last().and_then(|piece| piece.last());
            if let Some(end) = end.filter(|_| self.lines.len() > 1) {
                let (left, top) = (x.at(end.0) + 8.0, y.at(end.1) + 4.0);
                let _ =
                    write!(svg, r#"<text class="tick end" x="{left:.1}" y="{top:.1}">{}</text>"#, index + 1);
            }
            svg.push_str("</g>");
        }
        Some(svg + "</svg>")
    }
}

impl Line {
    fn draw_marks(&self, svg: &mut String, x: Axis, y: Axis) {
        for &(at, low, high) in &self.intervals {
            if is_finite(&(at, low)) && high.is_finite() {
                let (at, low, high) = (x.at(at), y.at(low), y.at(high));
                let _ = write!(svg, r#"<path class="whisker" d="M{at:.1} {low:.1}V{high:.1}"/>"#);
            }
        }
        for point in self.points.iter().filter(|point| self.has_marks && is_finite(point)) {
            let (left, top) = (x.at(point.0), y.at(point.1));
            let _ = write!(svg, r#"<circle class="mark" cx="{left:.1}" cy="{top:.1}" r="3"/>"#);
        }
    }
}

fn is_finite(point: &(f64, f64)) -> bool {
    point.0.is_finite() && point.1.is_finite()
}

/// The number of values in each of about 40 bins. Zero is an edge, and bins below it have another colour.
/// `None` without finite values.
pub(crate) fn histogram(title: &str, x_label: &str, values: &[f64]) -> Option<String> {
    const BINS: f64 = 40.0;
    let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let points: Vec<(f64, f64)> = finite.iter().map(|&value| (value, 0.0)).collect();
    let range = axis_over(&vec![points], |point| point.0)?;
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
    let x = Axis { from: 58.0, to: CURVE.0 - 24.0, low: first * width, high: (first + count) * width };
    let y = Axis { from: CURVE.1 - 42.0, to: 12.0, low: 0.0, high: highest };
    let mut svg = open(title, CURVE.0, CURVE.1);
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
        let line = |points: &[(f64, f64)]| Line { points: points.to_vec(), ..Line::default() };
        let plane = |lines| Plane { title: "<t>", x_label: "x", lines, reference: None };
        assert_eq!(plane(vec![line(&[]), line(&[(f64::NAN, 1.0)])]).svg(), None);
        let svg = plane(vec![line(&[(0.0, 1.0), (1.0, 2.0)]), line(&[(0.5, 1.0)])]).svg().unwrap();
        assert!(svg.contains("run-1") && svg.contains("&lt;t&gt;") && !svg.contains("<t>"));
        assert_eq!(svg.matches("tick end").count(), 2);
    }
}
