//! Formats one stage of a run: the block of a live display and the line of a log. The functions are pure:
//! they take a state and a time, and return lines.

use std::time::Duration;

use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};

use super::rate::Rate;
use text::number;

/// Largest and smallest width of the bar in cells. With less room there is no bar.
const BAR: (usize, usize) = (40, 8);

/// Number of values in the sparkline.
const TRACE: usize = 24;

/// Largest number of metric rows in a block.
const METRIC_ROWS: usize = 3;

/// How a stage has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome<'a> {
    /// All its steps are done.
    Done,
    /// All its steps are over, and so many of them came to nothing.
    Failures(u64),
    /// It ended early, for this sanitized reason.
    Stopped(&'a str),
}

/// The state of the running stage.
#[derive(Debug)]
pub(super) struct Stage {
    /// `[2/5] sft`, sanitized.
    pub(super) label: String,
    /// The name of one step: `step`, `iteration`.
    pub(super) unit: &'static str,
    pub(super) total: u64,
    pub(super) step: u64,
    /// The times when the stage began and when the last update arrived, by the display's clock.
    pub(super) began: Duration,
    pub(super) updated: Duration,
    /// Tokens counted since the last update.
    pub(super) tokens: u64,
    pub(super) rate: Rate,
    /// Sanitized names with their values, in the order of the last update.
    pub(super) metrics: Vec<(String, f64)>,
    /// Recent values of the first metric.
    pub(super) history: Vec<f64>,
}

impl Stage {
    /// Applies an update that arrived at `now`.
    pub(super) fn update(&mut self, step: u64, metrics: &[(&str, f64)], now: Duration) {
        let elapsed = now.saturating_sub(self.updated);
        self.rate.record(step.saturating_sub(self.step), std::mem::take(&mut self.tokens), elapsed);
        (self.step, self.updated) = (step, now);
        self.metrics = metrics.iter().map(|(name, value)| (text::single_line(name), *value)).collect();
        if let Some((_, value)) = metrics.first() {
            if self.history.len() == TRACE {
                self.history.remove(0);
            }
            self.history.push(*value);
        }
    }

    fn eta(&self, now: Duration) -> Option<Duration> {
        let left = self.rate.time_for(self.total.saturating_sub(self.step))?;
        // Part of the current step has already passed since the last update.
        Some(left.saturating_sub(now.saturating_sub(self.updated)))
    }

    fn elapsed(&self, now: Duration) -> Duration {
        now.saturating_sub(self.began)
    }

    fn fraction(&self) -> f64 {
        if self.total == 0 { 1.0 } else { (self.step as f64 / self.total as f64).min(1.0) }
    }

    /// The block of a live display. No line is wider than `columns`.
    pub(super) fn block(&self, now: Duration, columns: usize) -> Vec<Line<'static>> {
        let mut lines = vec![self.head(now, columns)];
        let indent = "      ";
        let room = columns.saturating_sub(indent.len());
        let metrics = self.metrics.iter().map(|(name, value)| metric(name, *value)).collect();
        let mut speed: Vec<Vec<Span>> = self.speed().into_iter().map(|part| vec![Span::raw(part)]).collect();
        speed.push(vec!["elapsed ".dim(), number::duration(self.elapsed(now)).into()]);
        if let Some(sparkline) = self.sparkline() {
            speed.push(vec![sparkline.cyan()]);
        }
        for row in flow(metrics, room, METRIC_ROWS).into_iter().chain(flow(speed, room, 1)) {
            let mut spans = vec![Span::raw(indent)];
            spans.extend(row);
            lines.push(Line::from(spans));
        }
        lines.into_iter().map(|line| fit(line, columns)).collect()
    }

    fn head(&self, now: Duration, columns: usize) -> Line<'static> {
        let percent = (100.0 * self.fraction()).floor();
        let mut figures = format!("{}/{}  {percent:.0}%", self.step, self.total);
        if let Some(eta) = self.eta(now) {
            figures = format!("{figures}  eta {}", number::duration(eta));
        }
        let mut spans = vec![self.label.clone().bold(), "  ".into()];
        let taken = text::width(&self.label) + text::width(&figures) + 4;
        let room = columns.saturating_sub(taken).min(BAR.0);
        if room >= BAR.1 {
            let filled = (self.fraction() * room as f64).floor() as usize;
            spans.extend(["━".repeat(filled).cyan(), "─".repeat(room - filled).dim(), "  ".into()]);
        }
        spans.push(figures.into());
        Line::from(spans)
    }

    fn speed(&self) -> Vec<String> {
        let tokens = self.rate.tokens_per_second().map(|rate| format!("{} tok/s", number::count(rate)));
        let step = self.rate.seconds_per_step().map(|seconds| match seconds {
            short if short < 1.0 => format!("{:.0} ms/{}", 1000.0 * short, self.unit),
            long => format!("{long:.2} s/{}", self.unit),
        });
        tokens.into_iter().chain(step).collect()
    }

    /// The recent values of the first metric, scaled between their minimum and maximum. `None` for fewer than
    /// two values.
    fn sparkline(&self) -> Option<String> {
        let finite = self.history.iter().filter(|value| value.is_finite());
        let (low, high) =
            finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &v| (low.min(v), high.max(v)));
        if self.history.len() < 2 || low > high {
            return None;
        }
        let bars = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let bar = |&value: &f64| match value {
            broken if !broken.is_finite() => '×',
            _ if high <= low => bars[0],
            value => bars[((value - low) / (high - low) * 7.0).round() as usize],
        };
        Some(self.history.iter().map(bar).collect())
    }

    /// The full state on one line, for logs.
    pub(super) fn log_line(&self, now: Duration) -> Line<'static> {
        let percent = (100.0 * self.fraction()).floor();
        let mut spans =
            vec![self.label.clone().bold(), format!(" {}/{} {percent:.0}%", self.step, self.total).into()];
        for (name, value) in &self.metrics {
            spans.push("  ".into());
            spans.extend(metric(name, *value));
        }
        spans.extend(self.speed().into_iter().map(|part| Span::raw(format!("  {part}"))));
        spans.push(format!("  elapsed {}", number::duration(self.elapsed(now))).into());
        if let Some(eta) = self.eta(now) {
            spans.push(format!("  eta {}", number::duration(eta)).into());
        }
        Line::from(spans)
    }

    /// The summary line of a stage that has ended.
    pub(super) fn summary(&self, now: Duration, outcome: Outcome<'_>) -> Line<'static> {
        let elapsed = number::duration(self.elapsed(now));
        let done = number::counted(self.step, self.unit);
        let mut spans = vec![self.label.clone().bold(), "  ".into()];
        match outcome {
            Outcome::Done => spans.extend(["✓".green(), format!(" {done} in {elapsed}").into()]),
            Outcome::Failures(failed) => {
                spans.extend(["✗".red(), format!(" {failed} of {done} failed, in {elapsed}").into()]);
            }
            Outcome::Stopped(reason) => {
                let place = format!(" stopped at {}/{} after {elapsed}: {reason}", self.step, self.total);
                spans.extend(["✗".red(), place.into()]);
            }
        }
        for (name, value) in &self.metrics {
            spans.push("  ".into());
            spans.extend(metric(name, *value));
        }
        Line::from(spans)
    }
}

fn metric(name: &str, value: f64) -> Vec<Span<'static>> {
    let style = if value.is_finite() { Style::new() } else { Style::new().red().bold() };
    vec![format!("{name} ").dim(), Span::styled(number::metric(value), style)]
}

/// Arranges `items` in rows, separated by two cells. Items that do not fit into the last row are dropped as a
/// whole.
fn flow(items: Vec<Vec<Span<'static>>>, columns: usize, most_rows: usize) -> Vec<Vec<Span<'static>>> {
    let mut rows: Vec<Vec<Span>> = Vec::new();
    let mut used = 0;
    for item in items {
        let wide: usize = item.iter().map(Span::width).sum();
        let is_full = rows.len() == most_rows;
        match rows.last_mut() {
            Some(row) if used + 2 + wide <= columns => {
                row.push("  ".into());
                row.extend(item);
                used += 2 + wide;
            }
            _ if is_full => break,
            _ => {
                rows.push(item);
                used = wide;
            }
        }
    }
    rows
}

/// Truncates a line to `columns` cells.
pub(super) fn fit(line: Line<'static>, columns: usize) -> Line<'static> {
    if line.width() <= columns {
        return line;
    }
    let mut room = columns;
    let mut spans = Vec::new();
    for span in line.spans {
        let wide = span.width();
        if wide > room {
            spans.push(Span::styled(text::truncate(&span.content, room), span.style));
            break;
        }
        room -= wide;
        spans.push(span);
    }
    Line::from(spans)
}
