//! The charts of the report as inline SVG: scores and gains with their intervals, training curves, time per
//! stage.
//!
//! Colours come from the page's style sheet through classes, so one drawing works in light mode, dark mode
//! and print. Models differ in colour and by a label on every row. Greedy and sampled scores differ in the
//! shape of the mark. So nothing depends on colour alone. The axis for rates always runs from 0 to 100 %.

use std::fmt::Write as _;

use super::escape::escape_html;
use super::{Curve, Gain, PerModel, Score, Scores, Seconds, curve, layout};

/// The start and end of an axis on the page, and the values at its ends.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Axis {
    pub(super) fn at(&self, value: f64) -> f64 {
        // The difference of two numbers near the limits of a float overflows. The difference of their halves
        // does not, but half of the smallest numbers is zero.
        let scale = if (self.high - self.low).is_finite() { 1.0 } else { 0.5 };
        let [value, low, high] = [value, self.low, self.high].map(|number| number * scale);
        self.from + (value - low) / (high - low) * (self.to - self.from)
    }

    /// The axis of values with some room beyond their ends, as far as floats reach.
    pub(super) fn with_margin(self, from: f64, to: f64) -> Self {
        let margin = 0.06 * self.high - 0.06 * self.low;
        Self { from, to, low: (self.low - margin).max(f64::MIN), high: (self.high + margin).min(f64::MAX) }
    }
}

/// One mark with its interval in a dot chart.
struct Dot<'a> {
    label: &'a str,
    class: &'a str,
    filled: bool,
    mean: f64,
    low: f64,
    high: f64,
    text: String,
}

const ROW: f64 = 30.0;
const DOT_WIDTH: f64 = 720.0;
const DOT_AXIS: (f64, f64) = (150.0, 540.0);

/// Exact match of each model, greedy and sampled, with 95 % intervals. `None` if no model was scored.
pub(super) fn scores(models: &PerModel<Scores>) -> Option<String> {
    let mut dots = Vec::new();
    for (name, scores) in models.named() {
        let Some(scores) = scores else { continue };
        for (decoding, filled, score) in [("greedy", false, scores.greedy), ("sampled", true, scores.sampled)]
        {
            if let Some(Score { mean, low, high, .. }) = score {
                let label = format!("{name} {decoding}");
                dots.push((label, name.to_lowercase(), filled, [mean, low, high], layout::percent(mean)));
            }
        }
    }

    let dots: Vec<Dot> = dots
        .iter()
        .map(|(label, class, filled, [mean, low, high], text)| Dot {
            label,
            class,
            filled: *filled,
            mean: 100.0 * mean,
            low: 100.0 * low,
            high: 100.0 * high,
            text: text.clone(),
        })
        .collect();

    let axis = Axis { from: DOT_AXIS.0, to: DOT_AXIS.1, low: 0.0, high: 100.0 };
    (!dots.is_empty()).then(|| dot_chart("Exact match, %, with 95 % intervals", &dots, axis))
}

/// The paired gains with their intervals around a line at zero. `None` if there are none.
pub(super) fn gains(sampled: Option<&Gain>, greedy: Option<&Gain>) -> Option<String> {
    let dot = |label, filled, gain: &Gain| Dot {
        label,
        class: "ppo",
        filled,
        mean: 100.0 * gain.mean,
        low: 100.0 * gain.low,
        high: 100.0 * gain.high,
        text: layout::points(gain.mean),
    };
    let dots: Vec<Dot> = [("greedy", false, greedy), ("sampled", true, sampled)]
        .into_iter()
        .filter_map(|(label, filled, gain)| Some(dot(label, filled, gain?)))
        .collect();
    let reach = dots.iter().map(|dot| dot.low.abs().max(dot.high.abs())).fold(1.0, f64::max) * 1.1;
    let axis = Axis { from: DOT_AXIS.0, to: DOT_AXIS.1, low: -reach, high: reach };
    (!dots.is_empty())
        .then(|| dot_chart("PPO minus SFT, percentage points, with 95 % intervals", &dots, axis))
}

/// A number with its interval, for [`interval_chart`].
pub(crate) struct IntervalRow {
    /// What it is the number of.
    pub(crate) label: String,
    /// The number.
    pub(crate) mean: f64,
    /// Lower end of the interval.
    pub(crate) low: f64,
    /// Upper end of the interval.
    pub(crate) high: f64,
    /// The number as text.
    pub(crate) text: String,
}

/// The longest label of a row, in characters; a longer one loses its beginning.
const LABEL: usize = 16;

/// Numbers with their intervals on an axis from `low` to `high`.
pub(crate) fn interval_chart(title: &str, rows: &[IntervalRow], (low, high): (f64, f64)) -> String {
    let short = |label: &str| match label.chars().count() {
        long if long > LABEL => format!("…{}", label.chars().skip(long - LABEL + 1).collect::<String>()),
        _ => label.to_owned(),
    };
    let labels: Vec<String> = rows.iter().map(|row| short(&row.label)).collect();
    let dots: Vec<Dot> = labels
        .iter()
        .zip(rows)
        .map(|(label, row)| Dot {
            label,
            class: "sft",
            filled: true,
            mean: row.mean,
            low: row.low,
            high: row.high,
            text: row.text.clone(),
        })
        .collect();
    dot_chart(title, &dots, Axis { from: DOT_AXIS.0, to: DOT_AXIS.1, low, high })
}

fn dot_chart(title: &str, dots: &[Dot], axis: Axis) -> String {
    let bottom = 12.0 + ROW * dots.len() as f64;
    let mut svg = open(title, DOT_WIDTH, bottom + 44.0);

    let ticks = layout::ticks(axis.low, axis.high, 8);
    let step = ticks.get(1).map_or(1.0, |second| second - ticks[0]);
    for tick in ticks {
        let (x, class) = (axis.at(tick), if tick == 0.0 { "axis" } else { "grid" });
        let label = layout::tick_label(tick, step);
        let _ = write!(svg, r#"<line class="{class}" x1="{x:.1}" y1="6" x2="{x:.1}" y2="{bottom:.1}"/>"#);
        let _ = write!(
            svg,
            r#"<text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{label}</text>"#,
            bottom + 16.0
        );
    }

    let middle = f64::midpoint(axis.from, axis.to);
    let caption = escape_html(title);
    let _ = write!(
        svg,
        r#"<text class="label" x="{middle:.1}" y="{:.1}" text-anchor="middle">{caption}</text>"#,
        bottom + 36.0
    );

    for (i, dot) in dots.iter().enumerate() {
        draw_dot(&mut svg, dot, axis, 12.0 + ROW * (i as f64 + 0.5));
    }
    svg + "</svg>"
}

fn draw_dot(svg: &mut String, dot: &Dot, axis: Axis, y: f64) {
    let Dot { label, class, filled, mean, low, high, text } = dot;
    let [x, low, high] = [*mean, *low, *high].map(|value| axis.at(value));
    let (top, bottom) = (y - 5.0, y + 5.0);
    let shape = if *filled { "mark" } else { "mark hollow" };
    let after = axis.to + 16.0;
    let _ = write!(
        svg,
        r#"<text class="name" x="{:.1}" y="{:.1}" text-anchor="end">{}</text><g class="{class}"><path class="whisker" d="M{low:.1} {y:.1}H{high:.1}M{low:.1} {top:.1}V{bottom:.1}M{high:.1} {top:.1}V{bottom:.1}"/><circle class="{shape}" cx="{x:.1}" cy="{y:.1}" r="5"/></g><text class="value" x="{after:.1}" y="{:.1}">{}</text>"#,
        axis.from - 14.0,
        y + 4.5,
        escape_html(label),
        y + 4.5,
        escape_html(text),
    );
}

/// The size of a drawing of lines.
pub(super) const CURVE: (f64, f64) = (440.0, 236.0);

/// One training curve: raw values in a faint colour, the moving average on top. `None` if it has no point to
/// draw.
pub(super) fn curve(curve: &Curve) -> Option<String> {
    let raw = curve::raw(&curve.points);
    let (x, y) = (axis_over(&raw, |point| point.0)?, axis_over(&raw, |point| point.1)?);
    let x = Axis { from: 58.0, to: CURVE.0 - 14.0, ..x };
    let y = y.with_margin(CURVE.1 - 42.0, 12.0);
    let mut svg = open(&format!("{} of {} by step", curve.metric, curve.stage), CURVE.0, CURVE.1);
    draw_axes(&mut svg, x, y, "step");
    let class = escape_html(&curve.stage.to_lowercase());
    let smooth = curve::window(&curve.points).map(|window| curve::smoothed(&curve.points, window));
    let raw_class = if smooth.is_some() { "line raw" } else { "line" };
    let _ = write!(svg, r#"<g class="{class}">"#);
    draw_line(&mut svg, raw_class, &raw, (x, y));
    if let Some(smooth) = smooth {
        draw_line(&mut svg, "line", &smooth, (x, y));
    }
    Some(svg + "</g></svg>")
}

/// The curves of a metric over one another, without smoothing. The number of each curve stands at its end, so
/// that nothing depends on colour.
pub(super) fn overlay(metric: &str, curves: &[(String, Vec<(f64, f64)>)]) -> String {
    let mut svg = open(&format!("{metric} by step"), CURVE.0, CURVE.1);
    let lines: Vec<curve::Pieces> = curves.iter().map(|(_, points)| curve::raw(points)).collect();
    let all: curve::Pieces = lines.iter().flatten().cloned().collect();
    let (Some(x), Some(y)) = (axis_over(&all, |point| point.0), axis_over(&all, |point| point.1)) else {
        return svg + "</svg>";
    };
    let x = Axis { from: 58.0, to: CURVE.0 - 24.0, ..x };
    let y = y.with_margin(CURVE.1 - 42.0, 12.0);
    draw_axes(&mut svg, x, y, "step");
    for (index, pieces) in lines.iter().enumerate() {
        let _ = write!(svg, r#"<g class="run-{}">"#, index % 6);
        draw_line(&mut svg, "line", pieces, (x, y));
        if let Some(end) = pieces.last().and_then(|piece| piece.last()) {
            let (left, top) = (x.at(end.0) + 4.0, y.at(end.1) + 4.0);
            let _ = write!(svg, r#"<text class="tick end" x="{left:.1}" y="{top:.1}">{}</text>"#, index + 1);
        }
        svg.push_str("</g>");
    }
    svg + "</svg>"
}

/// The range of one coordinate. A constant coordinate gets room on both sides.
pub(super) fn axis_over(pieces: &curve::Pieces, coordinate: impl Fn(&(f64, f64)) -> f64) -> Option<Axis> {
    let values = pieces.iter().flatten().map(coordinate);
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    let room = if high > low { 0.0 } else { (0.5 * low.abs()).max(0.5) };
    let is_drawable = low.is_finite();
    let (low, high) = ((low - room).max(f64::MIN), (high + room).min(f64::MAX));
    is_drawable.then_some(Axis { from: 0.0, to: 1.0, low, high })
}

pub(super) fn draw_axes(svg: &mut String, x: Axis, y: Axis, x_label: &str) {
    let ticks = layout::ticks(y.low, y.high, 5);
    let step = ticks.get(1).map_or(0.0, |second| second - ticks[0]);
    for tick in ticks {
        let (at, label) = (y.at(tick), layout::tick_label(tick, step));
        let (left, right) = (x.from, x.to);
        let _ =
            write!(svg, r#"<line class="grid" x1="{left:.1}" y1="{at:.1}" x2="{right:.1}" y2="{at:.1}"/>"#);
        let _ = write!(
            svg,
            r#"<text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{label}</text>"#,
            left - 6.0,
            at + 4.0
        );
    }

    let ticks = layout::ticks(x.low, x.high, 6);
    let step = ticks.get(1).map_or(0.0, |second| second - ticks[0]);
    let bottom = y.from;
    for tick in ticks {
        let (at, label) = (x.at(tick), layout::tick_label(tick, step));
        let _ = write!(
            svg,
            r#"<line class="axis" x1="{at:.1}" y1="{bottom:.1}" x2="{at:.1}" y2="{:.1}"/>"#,
            bottom + 4.0
        );
        let _ = write!(
            svg,
            r#"<text class="tick" x="{at:.1}" y="{:.1}" text-anchor="middle">{label}</text>"#,
            bottom + 17.0
        );
    }

    let (left, right, middle) = (x.from, x.to, f64::midpoint(x.from, x.to));
    let _ = write!(svg, r#"<path class="axis" d="M{left:.1} {:.1}V{bottom:.1}H{right:.1}"/>"#, y.to);
    let _ = write!(
        svg,
        r#"<text class="label" x="{middle:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
        bottom + 35.0,
        escape_html(x_label)
    );
}

pub(super) fn draw_line(svg: &mut String, class: &str, pieces: &curve::Pieces, (x, y): (Axis, Axis)) {
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

/// Time per stage as bars. `None` if no stage ran.
pub(super) fn seconds(seconds: &Seconds) -> Option<String> {
    let stages = seconds.named();
    let longest = stages.iter().map(|stage| stage.1).fold(0.0, f64::max);
    if longest <= 0.0 {
        return None;
    }

    let bars = Axis { from: DOT_AXIS.0, to: DOT_AXIS.1, low: 0.0, high: longest };
    let mut svg = open("Wall-clock time per stage", DOT_WIDTH, 12.0 + ROW * stages.len() as f64);

    for (i, (name, value)) in stages.iter().enumerate() {
        let y = 6.0 + ROW * (i as f64 + 0.5);
        let (width, text) = ((bars.at(*value) - bars.from).max(1.0), layout::seconds(*value));
        let _ = write!(
            svg,
            r#"<text class="name" x="{:.1}" y="{:.1}" text-anchor="end">{name}</text><rect class="bar" x="{:.1}" y="{:.1}" width="{width:.1}" height="16" rx="2"/><text class="value" x="{:.1}" y="{:.1}">{text}</text>"#,
            bars.from - 14.0,
            y + 4.5,
            bars.from,
            y - 8.0,
            bars.from + width + 10.0,
            y + 4.5,
        );
    }

    Some(svg + "</svg>")
}

pub(super) fn open(title: &str, width: f64, height: f64) -> String {
    let title = escape_html(title);
    format!(
        r#"<svg viewBox="0 0 {width:.0} {height:.0}" role="img" aria-label="{title}"><title>{title}</title>"#
    )
}
