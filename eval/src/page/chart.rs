//! Charts of one number to a row, as inline SVG: numbers with their intervals, and bars.
//!
//! Colours come from the page's style sheet through classes, so one drawing works in light mode, dark mode
//! and print. Rows have labels, and marks differ in shape, so nothing depends on colour alone.

use std::fmt::Write as _;

use super::axis::{Axis, line, open, text};

const ROW: f64 = 30.0;
const WIDTH: f64 = 720.0;
/// Where the axis begins and ends.
const AXIS: (f64, f64) = (150.0, 540.0);
/// The longest label of a row, in characters; a longer one loses its beginning.
const LABEL: usize = 16;

/// A number with its interval.
pub(crate) struct Dot {
    /// What it is the number of.
    pub(crate) label: String,
    /// The class that gives the colour.
    pub(crate) class: String,
    /// Whether the mark is filled.
    pub(crate) is_filled: bool,
    /// The number, and the lower and upper end of its interval.
    pub(crate) values: [f64; 3],
    /// The number as text.
    pub(crate) text: String,
}

/// Numbers with their intervals on an axis from `low` to `high`. `None` without any.
pub(crate) fn dot_chart(title: &str, dots: &[Dot], (low, high): (f64, f64)) -> Option<String> {
    let axis = Axis { from: AXIS.0, to: AXIS.1, low, high };
    let bottom = 12.0 + ROW * dots.len() as f64;
    let mut svg = open(title, WIDTH, bottom + 44.0);
    for (value, x, label) in axis.ticks(8, 1.0) {
        line(&mut svg, if value == 0.0 { "axis" } else { "grid" }, (x, 6.0), (x, bottom));
        text(&mut svg, "tick", (x, bottom + 16.0), "middle", &label);
    }
    text(&mut svg, "label", (f64::midpoint(axis.from, axis.to), bottom + 36.0), "middle", title);
    for (row, dot) in dots.iter().enumerate() {
        draw_dot(&mut svg, dot, axis, 12.0 + ROW * (row as f64 + 0.5));
    }
    (!dots.is_empty()).then(|| svg + "</svg>")
}

fn draw_dot(svg: &mut String, dot: &Dot, axis: Axis, y: f64) {
    let Dot { label, class, is_filled, values, text: value } = dot;
    let [x, low, high] = values.map(|value| axis.at(value));
    let (top, bottom) = (y - 5.0, y + 5.0);
    let shape = if *is_filled { "mark" } else { "mark hollow" };
    let long = label.chars().count();
    let label = if long > LABEL {
        format!("…{}", label.chars().skip(long - LABEL + 1).collect::<String>())
    } else {
        label.clone()
    };
    text(svg, "name", (axis.from - 14.0, y + 4.5), "end", &label);
    let _ = write!(
        svg,
        r#"<g class="{class}"><path class="whisker" d="M{low:.1} {y:.1}H{high:.1}M{low:.1} {top:.1}V{bottom:.1}M{high:.1} {top:.1}V{bottom:.1}"/><circle class="{shape}" cx="{x:.1}" cy="{y:.1}" r="5"/></g>"#,
    );
    text(svg, "value", (axis.to + 16.0, y + 4.5), "start", value);
}

/// Numbers as bars from zero, each with its name and its text. `None` if none of them is above zero.
pub(crate) fn bars(title: &str, rows: &[(&str, f64, String)]) -> Option<String> {
    let longest = rows.iter().map(|row| row.1).fold(0.0, f64::max);
    let axis = Axis { from: AXIS.0, to: AXIS.1, low: 0.0, high: longest };
    let mut svg = open(title, WIDTH, 12.0 + ROW * rows.len() as f64);
    for (row, (name, number, value)) in rows.iter().enumerate() {
        let (x, y) = (axis.from, 6.0 + ROW * (row as f64 + 0.5));
        let width = (axis.at(*number) - x).max(1.0);
        text(&mut svg, "name", (x - 14.0, y + 4.5), "end", name);
        let top = y - 8.0;
        let _ = write!(
            svg,
            r#"<rect class="bar" x="{x:.1}" y="{top:.1}" width="{width:.1}" height="16" rx="2"/>"#
        );
        text(&mut svg, "value", (x + width + 10.0, y + 4.5), "start", value);
    }
    (longest > 0.0).then(|| svg + "</svg>")
}
