//! What each key does.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::event::{Effect, Request};
use super::layout::Pane;
use super::state::{Dashboard, Overlay, Status};
use super::{selection, series};

/// The keys with what they do, for the help.
pub(super) const KEYS: [(&str, &str); 11] = [
    ("q, Esc", "close the dashboard; the run goes on"),
    ("p", "pause after the current step, or go on"),
    ("s", "save a checkpoint after the current step"),
    ("x", "save and stop after the current step; asks first"),
    ("Tab", "the next pane (Shift-Tab: the one before)"),
    ("Left, Right", "the chart before, the next chart"),
    ("Up, Down", "scroll the pane"),
    ("c, C", "the sample before, the next sample"),
    ("+, -", "smooth the curves more, less"),
    ("l", "logarithmic scale"),
    ("?", "these keys"),
];

/// Takes in a key, and returns what the caller must do.
pub(super) fn press(dashboard: &mut Dashboard, key: KeyEvent) -> Vec<Effect> {
    if key.kind == KeyEventKind::Release {
        return Vec::new();
    }
    let is_ctrl_c = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
    match std::mem::take(&mut dashboard.overlay) {
        _ if is_ctrl_c => return vec![Effect::Close],
        Overlay::Help => return Vec::new(),
        Overlay::ConfirmStop => {
            let is_yes = matches!(key.code, KeyCode::Char('y' | 'Y'));
            return if is_yes { ask(dashboard, Request::Stop) } else { Vec::new() };
        }
        Overlay::None => {}
    }
    dashboard.notice.clear();
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return vec![Effect::Close],
        KeyCode::Char('p') => {
            let is_paused = matches!(dashboard.run.status, Status::Paused { .. });
            return ask(dashboard, if is_paused { Request::Continue } else { Request::Pause });
        }
        KeyCode::Char('s') => return ask(dashboard, Request::Checkpoint),
        KeyCode::Char('x') => {
            if may_ask(dashboard) {
                dashboard.overlay = Overlay::ConfirmStop;
            }
        }
        code => look(dashboard, code),
    }
    Vec::new()
}

/// Changes what is looked at.
fn look(dashboard: &mut Dashboard, code: KeyCode) {
    match code {
        KeyCode::Char('?') | KeyCode::F(1) => dashboard.overlay = Overlay::Help,
        KeyCode::Tab => focus(dashboard, dashboard.focus.after(1)),
        KeyCode::BackTab => focus(dashboard, dashboard.focus.after(Pane::ALL.len() - 1)),
        KeyCode::Left => turn_chart(dashboard, false),
        KeyCode::Right => turn_chart(dashboard, true),
        KeyCode::Up | KeyCode::Char('k') => dashboard.scroll = dashboard.scroll.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => dashboard.scroll = (dashboard.scroll + 1).min(10_000),
        KeyCode::PageUp => dashboard.scroll = dashboard.scroll.saturating_sub(10),
        KeyCode::PageDown => dashboard.scroll = (dashboard.scroll + 10).min(10_000),
        KeyCode::Char('c') => turn_sample(dashboard, 1),
        KeyCode::Char('C') => turn_sample(dashboard, -1),
        KeyCode::Char('+' | '=') => {
            dashboard.smoothing = (dashboard.smoothing + 1).min(series::SMOOTHING.len() - 1);
        }
        KeyCode::Char('-') => dashboard.smoothing = dashboard.smoothing.saturating_sub(1),
        KeyCode::Char('l') => dashboard.is_log_scale = !dashboard.is_log_scale,
        _ => {}
    }
}

fn focus(dashboard: &mut Dashboard, pane: Pane) {
    dashboard.focus = pane;
    dashboard.scroll = 0;
}

fn turn_chart(dashboard: &mut Dashboard, forward: bool) {
    let count = selection::charts(dashboard).len().max(1);
    let step = if forward { 1 } else { count - 1 };
    dashboard.chart = (dashboard.chart.min(count - 1) + step) % count;
}

fn turn_sample(dashboard: &mut Dashboard, back: i64) {
    let count = dashboard.samples.len().max(1) as i64;
    dashboard.sample_back = (dashboard.sample_back as i64 + back).rem_euclid(count) as usize;
    if dashboard.focus == Pane::Samples {
        dashboard.scroll = 0;
    }
}

/// Whether the run can be asked for something. If not, the user is told why.
fn may_ask(dashboard: &mut Dashboard) -> bool {
    let why = match (dashboard.run.status.is_alive(), dashboard.run.takes_requests) {
        (true, true) => return true,
        (true, false) => "this run takes no requests: it was started by an earlier version",
        (false, _) => "nothing runs in this folder",
    };
    why.clone_into(&mut dashboard.notice);
    false
}

fn ask(dashboard: &mut Dashboard, request: Request) -> Vec<Effect> {
    if !may_ask(dashboard) {
        return Vec::new();
    }
    let asked = match request {
        Request::Pause => "asked the run to pause after this",
        Request::Continue => "asked the run to go on",
        Request::Checkpoint => "asked for a checkpoint after this",
        Request::Stop => "asked the run to save and stop after this",
    };
    dashboard.notice = match request {
        Request::Continue => asked.to_owned(),
        _ => format!("{asked} {}", dashboard.run.unit),
    };
    vec![Effect::Ask(request)]
}
