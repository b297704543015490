//! Axes of drawings: places, ticks, and the texts and lines of SVG.

use std::fmt::Write as _;

use super::curve::Pieces;
use super::escape::escape_html;

/// The start and end of an axis on the page, and the values at its ends.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Axis {
    /// The range of one coordinate. A constant coordinate gets room on both sides.
    pub(super) fn over(pieces: &Pieces, coordinate: impl Fn(&(f64, f64)) -> f64) -> Option<Self> {
        let values = pieces.iter().flatten().map(coordinate);
        let (low, high) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let room = if high > low { 0.0 } else { (0.5 * low.abs()).max(0.5) };
        let is_drawable = low.is_finite();
        let (low, high) = ((low - room).max(f64::MIN), (high + room).min(f64::MAX));
        is_drawable.then_some(Self { from: 0.0, to: 1.0, low, high })
    }

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

    /// About `wanted` ticks: the value, its place and its label. `step` is that of a single tick.
    pub(super) fn ticks(&self, wanted: usize, step: f64) -> Vec<(f64, f64, String)> {
        let values = ticks(self.low, self.high, wanted);
        let step = values.get(1).map_or(step, |second| second - values[0]);
        values.into_iter().map(|value| (value, self.at(value), tick_label(value, step))).collect()
    }
}

/// The beginning of a drawing. `title` says what it shows to those who cannot see it.
pub(super) fn open(title: &str, width: f64, height: f64) -> String {
    let title = escape_html(title);
    format!(
        r#"<svg viewBox="0 0 {width:.0} {height:.0}" role="img" aria-label="{title}"><title>{title}</title>"#
    )
}

/// Text of a class. `anchor` is the part of it that stands at `x`.
pub(super) fn text(svg: &mut String, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
    let text = escape_html(text);
    let _ =
        write!(svg, r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
}

/// A line of a class.
pub(super) fn line(svg: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = write!(svg, r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#);
}

pub(super) fn draw_axes(svg: &mut String, x: Axis, y: Axis, x_label: &str) {
    for (_, at, label) in y.ticks(5, 0.0) {
        line(svg, "grid", (x.from, at), (x.to, at));
        text(svg, "tick", (x.from - 6.0, at + 4.0), "end", &label);
    }
    let bottom = y.from;
    for (_, at, label) in x.ticks(6, 0.0) {
        line(svg, "axis", (at, bottom), (at, bottom + 4.0));
        text(svg, "tick", (at, bottom + 17.0), "middle", &label);
    }
    let (left, right) = (x.from, x.to);
    let _ = write!(svg, r#"<path class="axis" d="M{left:.1} {:.1}V{bottom:.1}H{right:.1}"/>"#, y.to);
    text(svg, "label", (f64::midpoint(left, right), bottom + 35.0), "middle", x_label);
}

/// About `wanted` round tick positions within `low` and `high`, in steps of 1, 2 or 5 times a power of ten
/// (Heckbert 1990, "Nice numbers for graph labels", Graphics Gems I). Only `low`, if the step would overflow
/// or is denormal, so that it has too few digits to count in.
pub(super) fn ticks(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let rough = (high - low) / wanted.max(1) as f64;
    if !(rough > 0.0 && rough.is_finite()) {
        return vec![low];
    }

    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|nice| nice * power).into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    if !(power.is_normal() && step.is_finite()) {
        return vec![low];
    }

    let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    (first..=last).map(|i| i as f64 * step).collect()
}

/// The label of a tick, with as many decimals as the step needs, `k` or `M` for large numbers, and a power of
/// ten for numbers that are too large for these.
pub(super) fn tick_label(value: f64, step: f64) -> String {
    if value.abs() >= 1e12 {
        return format!("{value:.1e}").replace('-', "−");
    }
    let (scale, unit) = match step.abs().max(value.abs() / 10.0) {
        large if large >= 1e6 => (1e6, "M"),
        large if large >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let (value, step) = (value / scale, step / scale);
    if step > 0.0 && step < 1e-4 {
        return format!("{value:.1e}{unit}");
    }
    let decimals = if step > 0.0 { (-step.log10().floor()).max(0.0) as usize } else { 2 };
    let label = format!("{value:.decimals$}{unit}").replace('-', "−");
    let is_zero = label.chars().all(|c| matches!(c, '−' | '0' | '.'));
    if is_zero { label.replace('−', "") } else { label }
}
