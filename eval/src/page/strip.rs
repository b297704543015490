//! Strips: drawings one row high, as inline SVG without a view box.
//!
//! Positions along a strip are percentages of its width, so a strip is as wide as its place and no text in it
//! shrinks on a narrow screen. Colours come from classes of the style sheet. A strip repeats what stands
//! beside it as text, so it is hidden from screen readers.

use std::fmt::Write as _;

/// The values at the two ends of a strip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    /// The value at the left end.
    pub(crate) low: f64,
    /// The value at the right end.
    pub(crate) high: f64,
}

impl Scale {
    /// The scale of shares.
    pub(crate) const SHARE: Self = Self { low: 0.0, high: 1.0 };

    /// A scale with zero in its middle that reaches a round number of at least `reach`.
    pub(crate) fn around_zero(reach: f64) -> Self {
        let reach = round_up(reach);
        Self { low: -reach, high: reach }
    }

    /// The scale of finite values, with some room at both ends. `None` without any.
    pub(crate) fn over(values: impl Iterator<Item = f64>) -> Option<Self> {
        let finite = values.filter(|value| value.is_finite());
        let (low, high) =
            finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let room = if high > low { 0.08 * (high - low) } else { low.abs().max(1.0) * 0.5 };
        low.is_finite().then_some(Self { low: low - room, high: high + room })
    }

    /// The place of a value in percent, within the strip.
    pub(crate) fn at(self, value: f64) -> f64 {
        let place = 100.0 * (value - self.low) / (self.high - self.low);
        if place.is_finite() { place.clamp(0.0, 100.0) } else { 0.0 }
    }

    /// The values at the ends, in the middle, and between them.
    pub(crate) fn quarters(self) -> [f64; 5] {
        [0.0, 0.25, 0.5, 0.75, 1.0].map(|share| self.low + share * (self.high - self.low))
    }
}

/// 1, 2 or 5 times a power of ten, at least `value`; 1 for what is no positive number.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|nice| *nice >= value);
    nice.filter(|nice| nice.is_normal()).unwrap_or(1.0)
}

/// The shape of a mark. Shapes tell what colours tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A score, or a difference that is not shown to be one.
    Disc,
    /// Better.
    Up,
    /// Worse.
    Down,
}

/// A value with its interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark<'a> {
    /// The class that gives the colour.
    pub(crate) class: &'a str,
    /// The shape.
    pub(crate) shape: Shape,
    /// The value.
    pub(crate) value: f64,
    /// The ends of its interval.
    pub(crate) interval: Option<(f64, f64)>,
}

/// One strip. `lines` are values with a line across; the one at `axis` is darker. A value that is not finite
/// is not drawn.
pub(crate) fn strip(scale: Scale, lines: &[f64], axis: Option<f64>, mark: &Mark<'_>) -> String {
    let mut svg = String::from("<svg class=\"strip\" aria-hidden=\"true\">");
    for &line in lines {
        let (class, x) = (if axis == Some(line) { "axis" } else { "grid" }, scale.at(line));
        let _ = write!(svg, "<line class=\"{class}\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"0\" y2=\"100%\"/>");
    }
    if mark.value.is_finite() {
        let _ = write!(svg, "<g class=\"{}\">", mark.class);
        if let Some((low, high)) = mark.interval.filter(|(low, high)| low.is_finite() && high.is_finite()) {
            svg.push_str(&whisker(scale.at(low), scale.at(high)));
        }
        svg.push_str(&shape(mark.shape, scale.at(mark.value)));
        svg.push_str("</g>");
    }
    svg + "</svg>"
}

/// An interval with its ends, in percent.
fn whisker(low: f64, high: f64) -> String {
    let line = |x1: f64, x2: f64, y1: u32, y2: u32| {
        format!("<line class=\"whisker\" x1=\"{x1:.2}%\" x2=\"{x2:.2}%\" y1=\"{y1}%\" y2=\"{y2}%\"/>")
    };
    [line(low, high, 50, 50), line(low, low, 28, 72), line(high, high, 28, 72)].concat()
}

fn shape(shape: Shape, x: f64) -> String {
    let path = match shape {
        Shape::Disc => return format!("<circle class=\"mark\" cx=\"{x:.2}%\" cy=\"50%\" r=\"4\"/>"),
        Shape::Up => "M0-6 6 5H-6Z",
        Shape::Down => "M0 6 6-5H-6Z",
    };
    // A nested drawing puts the origin of the path at a percentage.
    format!("<svg x=\"{x:.2}%\" y=\"50%\"><path class=\"mark\" d=\"{path}\"/></svg>")
}

/// The labels under strips of one scale, each a value and its text.
pub(crate) fn ticks(scale: Scale, labels: &[(f64, String)]) -> String {
    let mut svg = String::from("<svg class=\"strip ticks\" aria-hidden=\"true\">");
    for (value, text) in labels {
        let x = scale.at(*value);
        let anchor = if x < 10.0 {
            "start"
        } else if x > 90.0 {
            "end"
        } else {
            "middle"
        };
        let _ =
            write!(svg, "<text class=\"tick\" x=\"{x:.2}%\" y=\"13\" text-anchor=\"{anchor}\">{text}</text>");
    }
    svg + "</svg>"
}

/// A bar of shares beside each other, each a class and its count.
pub(crate) fn shares(parts: &[(&str, usize)]) -> String {
    let whole = parts.iter().map(|part| part.1).sum::<usize>().max(1) as f64;
    let mut svg = String::from("<svg class=\"strip shares\" aria-hidden=\"true\">");
    let mut x = 0.0;
    for (class, count) in parts {
        let width = 100.0 * *count as f64 / whole;
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{x:.2}%\" y=\"20%\" width=\"{width:.2}%\" height=\"60%\"/>"
        );
        x += width;
    }
    svg + "</svg>"
}

/// Bars from the bottom, for counts; `highest` reaches the top.
pub(crate) fn histogram(class: &str, counts: &[usize], highest: usize) -> String {
    let width = 100.0 / counts.len().max(1) as f64;
    let mut svg = format!("<svg class=\"histogram\" aria-hidden=\"true\"><g class=\"{class}\">");
    for (at, count) in counts.iter().enumerate() {
        let height = 100.0 * *count as f64 / highest.max(1) as f64;
        if *count > 0 {
            // A bar of a few replies among thousands must not vanish.
            let height = height.max(2.0);
            let (x, y) = (width * at as f64, 100.0 - height);
            let _ = write!(
                svg,
                "<rect x=\"{x:.2}%\" y=\"{y:.2}%\" width=\"{:.2}%\" height=\"{height:.2}%\"/>",
                0.86 * width
            );
        }
    }
    svg + "</g><line class=\"axis\" x1=\"0\" x2=\"100%\" y1=\"100%\" y2=\"100%\"/></svg>"
}
