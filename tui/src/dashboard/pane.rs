//! What each pane shows.

use std::fmt::Write as _;

use ratatui::layout::Rect;

use super::chart::{self, Curve};
use super::layout::{Pane, chart_cells};
use super::painter::{Painter, bar};
use super::selection::{Chart, charts};
use super::state::{Dashboard, Memory};
use super::{hint, series};
use text::number;

/// The number of rows over which a change is shown.
const WINDOW: usize = 10;

/// The title of a pane, with what belongs to it.
pub(super) fn title(dashboard: &Dashboard, pane: Pane) -> String {
    let name = pane.title();
    match pane {
        Pane::Charts => {
            let mut title = name.to_owned();
            if dashboard.smoothing > 0 {
                let _ = write!(title, ", smoothed {}", series::SMOOTHING[dashboard.smoothing]);
            }
            title + if dashboard.is_log_scale { ", logarithmic" } else { "" }
        }
        Pane::Samples if !dashboard.samples.is_empty() => {
            let count = dashboard.samples.len();
            format!("{name} {}/{count}", count - dashboard.sample_back.min(count - 1))
        }
        Pane::Hints => match hint::hints(dashboard).len() {
            0 => name.to_owned(),
            count => format!("{name} ({count})"),
        },
        _ => name.to_owned(),
    }
}

/// Draws the content of a pane.
pub(super) fn draw(painter: &mut Painter<'_>, pane: Pane, area: Rect) {
    if area.is_empty() {
        return;
    }
    match pane {
        Pane::Charts => draw_charts(painter, area),
        Pane::Numbers => draw_numbers(painter, area),
        Pane::Hints => draw_hints(painter, area),
        Pane::Samples => draw_sample(painter, area),
        Pane::Times => draw_times(painter, area),
        Pane::Ranks => draw_ranks(painter, area),
        Pane::Log => draw_log(painter, area),
    }
}

/// The first line that a pane of `count` lines shows. Only the focused pane scrolls.
fn scrolled(dashboard: &Dashboard, pane: Pane, count: usize, area: Rect) -> usize {
    let most = count.saturating_sub(area.height.into());
    if dashboard.focus == pane { dashboard.scroll.min(most) } else { 0 }
}

fn draw_charts(painter: &mut Painter<'_>, area: Rect) {
    let charts = charts(painter.dashboard);
    if charts.is_empty() {
        painter.line(area, 0, 0, "no row yet", painter.dashboard.theme.dim);
        return;
    }
    let cells = chart_cells(area, charts.len());
    for (index, cell) in cells.into_iter().enumerate() {
        draw_chart(painter, &charts[(painter.dashboard.chart + index) % charts.len()], cell);
    }
}

/// Draws one chart: its title with the newest numbers, then the curves.
fn draw_chart(painter: &mut Painter<'_>, chart: &Chart<'_>, area: Rect) {
    let dashboard = painter.dashboard;
    let theme = &dashboard.theme;
    let is_many = chart.series.len() > 1;
    let mut column = painter.line(area, 0, 0, &chart.title, theme.accent);
    for (index, series) in chart.series.iter().enumerate() {
        let mark = if is_many { format!("{}: ", index + 1) } else { String::new() };
        let newest = series.last().map_or_else(String::new, number::metric);
        let gaps = match series.gaps() {
            0 => String::new(),
            gaps => format!(" ({gaps} not finite)"),
        };
        let style = theme.series[index % theme.series.len()];
        column = painter.line(area, 0, column + 2, &format!("{mark}{newest}{gaps}"), style);
    }

    let weight = series::SMOOTHING[dashboard.smoothing];
    let mut curves = Vec::new();
    for (index, series) in chart.series.iter().enumerate() {
        let mark = is_many.then(|| char::from_digit(index as u32 + 1, 10).unwrap_or('*'));
        let style = theme.series[index % theme.series.len()];
        if dashboard.smoothing > 0 {
            // The raw curve lies below the smoothed one.
            curves.push(Curve { points: series.points.as_slice().into(), style: theme.dim, mark: None });
            curves.push(Curve { points: series.smoothed(weight).into(), style, mark });
        } else {
            curves.push(Curve { points: series.points.as_slice().into(), style, mark });
        }
    }
    let plot = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    chart::draw(&curves, dashboard.is_log_scale, plot, painter.buffer, (theme, &dashboard.symbols));
}

fn draw_numbers(painter: &mut Painter<'_>, area: Rect) {
    let dashboard = painter.dashboard;
    let theme = &dashboard.theme;
    let from = scrolled(dashboard, Pane::Numbers, dashboard.series.len(), area);
    // The columns of the newest value and of its change, right of the name.
    let name_width = area.width.saturating_sub(22).max(8);
    for (row, series) in dashboard.series.iter().skip(from).take(area.height.into()).enumerate() {
        painter.line(Rect { width: area.width.min(name_width), ..area }, row, 0, &series.name, theme.dim);
        let newest = series.last().map_or_else(String::new, number::metric);
        let style = if series.last().is_some_and(f64::is_finite) { theme.text } else { theme.error };
        painter.line(area, row, name_width + 1, &format!("{newest:>9}"), style);
        if let Some(change) = series.change(WINDOW).filter(|change| change.is_finite()) {
            let sign = if change > 0.0 { "+" } else { "" };
            let text = format!("{:>10}", format!("{sign}{}", number::metric(change)));
            painter.line(area, row, name_width + 11, &text, theme.dim);
        }
    }
}

fn draw_hints(painter: &mut Painter<'_>, area: Rect) {
    let dashboard = painter.dashboard;
    let theme = &dashboard.theme;
    let mut lines = Vec::new();
    for hint in hint::hints(dashboard) {
        let headline = painter.wrap(&format!("! {}", hint.headline()), area.width);
        lines.extend(headline.into_iter().map(|line| (line, theme.warning)));
        let advice = painter.wrap(&hint.advice(), area.width.saturating_sub(2));
        lines.extend(advice.into_iter().map(|line| (format!("  {line}"), theme.text)));
    }
    if lines.is_empty() {
        lines.push(("the numbers are usual".to_owned(), theme.dim));
    }
    let from = scrolled(dashboard, Pane::Hints, lines.len(), area);
    for (row, (line, style)) in lines.iter().skip(from).enumerate() {
        painter.line(area, row, 0, line, *style);
    }
}

fn draw_sample(painter: &mut Painter<'_>, area: Rect) {
    let dashboard = painter.dashboard;
    let theme = &dashboard.theme;
    let newest = dashboard.samples.len().checked_sub(1);
    let Some(sample) =
        newest.and_then(|newest| dashboard.samples.get(newest.saturating_sub(dashboard.sample_back)))
    else {
        let why = if dashboard.run.has_samples { "no sample yet" } else { "this stage logs no samples" };
        painter.line(area, 0, 0, why, theme.dim);
        return;
    };
    let head = format!("{} {}, score {}", dashboard.run.unit, sample.step, number::metric(sample.score));
    let mut lines = vec![(head, theme.dim)];
    for (label, text, style) in
        [("prompt", &sample.prompt, theme.user), ("reply", &sample.reply, theme.assistant)]
    {
        lines.push((label.to_owned(), style));
        let wrapped = painter.wrap(text, area.width.saturating_sub(2));
        lines.extend(wrapped.into_iter().map(|line| (format!("  {line}"), theme.text)));
    }
    let from = scrolled(dashboard, Pane::Samples, lines.len(), area);
    for (row, (line, style)) in lines.iter().skip(from).enumerate() {
        painter.line(area, row, 0, line, *style);
    }
}

/// Draws the phases of the newest step as bars.
fn draw_times(painter: &mut Painter<'_>, area: Rect) {
    let dashboard = painter.dashboard;
    let theme = &dashboard.theme;
    let total = dashboard.find("seconds").and_then(|series| series.median_of_last(WINDOW));
    let Some(total) = total.filter(|total| *total > 0.0) else {
        painter.line(area, 0, 0, "no step yet", theme.dim);
        return;
    };
    let in_seconds =
        |seconds: f64| number::duration(std::time::Duration::from_secs_f64(seconds.clamp(0.0, 1e9)));
    let unit = &dashboard.run.unit;
    painter.line(area, 0, 0, &format!("{} per {unit}, median of the newest", in_seconds(total)), theme.text);
    let phases = dashboard
        .series
        .iter()
        .filter_map(|series| Some((series.name.strip_prefix("timing/")?, series.median_of_last(WINDOW)?)));
    for (row, (name, seconds)) in phases.enumerate().map(|(index, phase)| (index + 1, phase)) {
        painter.line(area, row, 0, name, theme.dim);
        let cells = usize::from(area.width.saturating_sub(24)).clamp(4, 40);
        let column = bar(painter, (area, row, 10), seconds / total, cells);
        let share = format!("{:>3.0}%  {}", (100.0 * seconds / total).clamp(0.0, 100.0), in_seconds(seconds));
        painter.line(area, row, column + 1, &share, theme.text);
    }
}

fn draw_ranks(painter: &mut Painter<'_>, area: Rect) {
    let dashboard = painter.dashboard;
    let theme = &dashboard.theme;
    let mut lines = Vec::new();
    for rank in &dashboard.ranks {
        let is_late = rank.age_seconds >= 10 && dashboard.run.status.is_alive();
        let age = if is_late { format!("  silent {} s", rank.age_seconds) } else { String::new() };
        let memory = bytes(rank.resident_bytes);
        let text = format!("rank {}  {}  {}{age}  {memory}", rank.rank, rank.phase, rank.step);
        lines.push((text, if is_late { theme.warning } else { theme.text }));
    }
    if lines.is_empty() {
        lines.push(("the processes have said nothing yet".to_owned(), theme.dim));
    }
    let Memory { models, tiers } = &dashboard.memory;
    for (name, used, limit) in tiers {
        let of = limit.map_or_else(String::new, |limit| format!(" of {}", bytes(limit)));
        lines.push((format!("{name}: {}{of}", bytes(*used)), theme.text));
    }
    for (name, [weights, gradients, optimizer]) in models {
        let parts = [("weights", weights), ("gradients", gradients), ("optimizer", optimizer)];
        let parts = parts.into_iter().filter(|part| *part.1 > 0);
        let parts: Vec<String> = parts.map(|(part, size)| format!("{part} {}", bytes(*size))).collect();
        lines.push((format!("{name}: {}", parts.join(", ")), theme.dim));
    }
    let from = scrolled(dashboard, Pane::Ranks, lines.len(), area);
    for (row, (line, style)) in lines.iter().skip(from).enumerate() {
        painter.line(area, row, 0, line, *style);
    }
}

/// Draws the newest messages, the newest one last.
fn draw_log(painter: &mut Painter<'_>, area: Rect) {
    let dashboard = painter.dashboard;
    let style = dashboard.theme.text;
    let recent = dashboard.messages.iter().rev().take(200).rev();
    let lines: Vec<String> = recent.flat_map(|message| painter.wrap(message, area.width)).collect();
    let most = lines.len().saturating_sub(area.height.into());
    // Up leads to older messages.
    let back = if dashboard.focus == Pane::Log { dashboard.scroll.min(most) } else { 0 };
    for (row, line) in lines.iter().skip(most - back).take(area.height.into()).enumerate() {
        painter.line(area, row, 0, line, style);
    }
}

/// `1.5 GiB`, `12 MiB`.
fn bytes(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    if mebibytes >= 1024.0 { format!("{:.1} GiB", mebibytes / 1024.0) } else { format!("{mebibytes:.0} MiB") }
}
