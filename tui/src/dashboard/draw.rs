//! Draws the whole screen: the head, the panes, the foot, and what lies over them.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;

use super::layout::{Pane, arrange};
use super::painter::{Painter, bar};
use super::state::{Dashboard, Overlay, Status, THROUGHPUT};
use super::{keys, pane};
use text::number;

/// Draws the dashboard into `area`.
pub(super) fn draw(dashboard: &Dashboard, area: Rect, buffer: &mut Buffer) {
    if area.is_empty() {
        return;
    }
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    let painter = &mut Painter { dashboard, buffer };
    draw_head(painter, head);
    if dashboard.overlay == Overlay::Help {
        draw_help(painter, body);
    } else {
        for (kind, area) in arrange(body, dashboard.focus) {
            let title = pane::title(dashboard, kind);
            let style = if kind == dashboard.focus { dashboard.theme.accent } else { dashboard.theme.dim };
            painter.rule(area, &title, style);
            let inner = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
            pane::draw(painter, kind, inner.intersection(body));
        }
    }
    draw_foot(painter, foot);
}

fn status_style(dashboard: &Dashboard) -> Style {
    let theme = &dashboard.theme;
    match dashboard.run.status {
        Status::Running | Status::Finished => theme.good,
        Status::Paused { .. } | Status::Silent { .. } => theme.warning,
        Status::Waiting | Status::Stopped => theme.dim,
        Status::Ended => theme.error,
    }
}

fn draw_head(painter: &mut Painter<'_>, area: Rect) {
    let dashboard = painter.dashboard;
    let (theme, run) = (&dashboard.theme, &dashboard.run);
    let status = run.status.text();
    let taken = (text::width(&status) + 2).min(area.width.into()) as u16;
    // The status is more important than a long name.
    let left = Rect { width: area.width - taken, ..area };
    let stage = if run.stage.is_empty() { "run" } else { &run.stage };
    let column = painter.line(left, 0, 0, stage, theme.accent);
    painter.line(left, 0, column + 2, &run.name, theme.text);
    painter.line(area, 0, left.width + 1, &status, status_style(dashboard));

    let step = dashboard.newest_step.max(dashboard.ranks.iter().map(|rank| rank.step).max().unwrap_or(0));
    let mut column = match run.total_steps {
        Some(total) => painter.line(area, 1, 0, &format!("{} {step}/{total}", run.unit), theme.text),
        None => painter.line(area, 1, 0, &format!("{} {step}", run.unit), theme.text),
    };
    if let Some(total) = run.total_steps.filter(|&total| total > 0) {
        let share = (step as f64 / total as f64).min(1.0);
        let cells = usize::from(area.width / 8).clamp(4, 30);
        column = bar(painter, (area, 1, column + 1), share, cells);
        column = painter.line(area, 1, column + 1, &format!("{:.0}%", 100.0 * share), theme.text);
    }
    let mut facts = Vec::new();
    if run.status.is_alive()
        && let Some(seconds) =
            dashboard.remaining_seconds().filter(|seconds| *seconds < 1e9 && *seconds > 0.0)
    {
        facts.push(format!("{} left", number::duration(std::time::Duration::from_secs_f64(seconds))));
    }
    facts.extend(dashboard.find(THROUGHPUT).and_then(|series| series.median_of_last(20)).map(|rate| {
        format!("{} tok/s", if rate.is_finite() { number::count(rate) } else { "?".to_owned() })
    }));
    if dashboard.ranks.len() > 1 {
        facts.push(number::counted(dashboard.ranks.len() as u64, "process"));
    }
    painter.line(area, 1, column + 2, &facts.join("  "), theme.dim);
}

fn draw_help(painter: &mut Painter<'_>, area: Rect) {
    let theme = &painter.dashboard.theme;
    painter.rule(area, "keys", theme.accent);
    for (index, (key, what)) in keys::KEYS.iter().enumerate() {
        painter.line(area, index + 1, 1, key, theme.accent);
        painter.line(area, index + 1, 14, what, theme.text);
    }
}

fn draw_foot(painter: &mut Painter<'_>, area: Rect) {
    let dashboard = painter.dashboard;
    let theme = &dashboard.theme;
    if dashboard.overlay == Overlay::ConfirmStop {
        let question = format!("stop after this {}, saved? y/n", dashboard.run.unit);
        painter.line(area, 0, 0, &question, theme.warning);
        return;
    }
    if !dashboard.notice.is_empty() {
        painter.line(area, 0, 0, &dashboard.notice, theme.accent);
        return;
    }
    let is_controllable = dashboard.run.status.is_alive() && dashboard.run.takes_requests;
    let pause = if matches!(dashboard.run.status, Status::Paused { .. }) { "p go on" } else { "p pause" };
    let mut words = vec!["? keys", "q close", "Tab pane"];
    if is_controllable {
        words.extend([pause, "s save", "x stop"]);
    }
    if matches!(dashboard.focus, Pane::Charts) {
        words.push(if dashboard.symbols.unicode { "←→ chart" } else { "Left/Right chart" });
    }
    words.extend(["+- smooth", "l log", "c sample"]);
    painter.line(area, 0, 0, &words.join("  "), theme.dim);
}
