//! What stands in front of the conversation: texts, the list of sessions, and the tokens of an answer.

use std::fmt::Write as _;

use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Widget};

use super::command::COMMANDS;
use super::event::{SessionSummary, TokenReport, TokenScore};
use super::keys::{Action, BINDINGS, Keymap};
use crate::theme::{Symbols, Theme};

/// A difference of log-probabilities that is worth a colour, in nats.
const PARTED: f64 = 0.5;

/// Something in front of the conversation.
pub(super) struct Overlay {
    title: String,
    body: Body,
    /// The first line on the screen.
    top: usize,
    /// The lines that were on the screen in the last frame.
    page: usize,
    /// Whether it opened by itself, perhaps while the user was typing.
    pub(super) came_later: bool,
}

enum Body {
    Text(String),
    Sessions { rows: Vec<SessionSummary>, at: usize, asks: bool },
    Tokens { report: TokenReport, at: usize },
}

/// What a key in an overlay asks for.
pub(super) enum Reaction {
    None,
    Close,
    /// The key is text for the input.
    Type,
    Open(String),
    Delete(String),
}

impl Overlay {
    /// A text, which is sanitized here.
    pub(super) fn text(title: &str, body: &str) -> Self {
        Self::new(title, Body::Text(text::sanitize(body)))
    }

    /// All commands and keys.
    pub(super) fn help(keys: &Keymap) -> Self {
        let mut body = String::from("Keys\n");
        for binding in &BINDINGS {
            let _ = writeln!(body, "  {:<16} {}", keys.keys(binding.action), binding.help);
        }
        body.push_str("  Up, Down         your earlier messages, at the edge of the input\n\nCommands\n");
        for help in &COMMANDS {
            let _ = writeln!(body, "  /{} {}\n      {}", help.name, help.arguments, help.help);
        }
        body.push_str(
            "\n// begins a message that starts with a slash. Commands may be shortened: /exp is /export.",
        );
        Self::new("help", Body::Text(body))
    }

    pub(super) fn sessions(rows: Vec<SessionSummary>) -> Self {
        Self::new("sessions: Enter opens, d deletes", Body::Sessions { rows, at: 0, asks: false })
    }

    pub(super) fn tokens(report: TokenReport) -> Self {
        let [model, reference] = report.models.clone().map(|name| name.map(|name| text::single_line(&name)));
        let model = model.unwrap_or_default();
        let title = match reference {
            Some(reference) => format!("{model} against {reference}"),
            None => format!("log-probabilities of {model}"),
        };
        Self::new(&title, Body::Tokens { report, at: 0 })
    }

    fn new(title: &str, body: Body) -> Self {
        Self { title: text::single_line(title), body, top: 0, page: 1, came_later: false }
    }

    /// The same, opened by itself rather than by a key.
    pub(super) fn later(self) -> Self {
        Self { came_later: true, ..self }
    }

    pub(super) fn scroll(&mut self, lines: isize) {
        self.top = self.top.saturating_add_signed(lines);
    }

    pub(super) fn key(&mut self, key: KeyEvent, action: Option<Action>) -> Reaction {
        let page = self.page.saturating_sub(1).max(1) as isize;
        match (key.code, action) {
            (KeyCode::Esc | KeyCode::Char('q'), _) | (_, Some(Action::Help)) => return Reaction::Close,
            (KeyCode::PageUp, _) => self.scroll(-page),
            (KeyCode::PageDown | KeyCode::Char(' '), _) => self.scroll(page),
            (KeyCode::Home, _) => self.top = 0,
            (KeyCode::End, _) => self.top = usize::MAX / 2,
            _ => {}
        }
        match &mut self.body {
            Body::Text(_) => match key.code {
                KeyCode::Up | KeyCode::Char('k') => self.scroll(-1),
                KeyCode::Down | KeyCode::Char('j') => self.scroll(1),
                KeyCode::Enter => return Reaction::Close,
                KeyCode::Char(character) if !is_shortcut(key) && character != ' ' => return Reaction::Type,
                _ => {}
            },
            Body::Sessions { rows, at, asks } => return session_key(key.code, rows, at, asks),
            Body::Tokens { report, at } => {
                let last = report.tokens.len().saturating_sub(1);
                match key.code {
                    KeyCode::Left | KeyCode::Char('h') => *at = at.saturating_sub(1),
                    KeyCode::Right | KeyCode::Char('l') => *at = (*at + 1).min(last),
                    KeyCode::Up | KeyCode::Char('k') => *at = at.saturating_sub(10),
                    KeyCode::Down | KeyCode::Char('j') => *at = (*at + 10).min(last),
                    KeyCode::Enter => return Reaction::Close,
                    _ => {}
                }
            }
        }
        Reaction::None
    }

    pub(super) fn draw(&mut self, (theme, symbols): (&Theme, &Symbols), area: Rect, buffer: &mut Buffer) {
        Clear.render(area, buffer);
        let width = usize::from(area.width);
        let hint = " Esc closes";
        let title = text::truncate(&format!(" {} ", self.title), width.saturating_sub(hint.len()));
        let rest = width.saturating_sub(text::width(&title) + hint.len());
        let head = Line::from(vec![
            Span::styled(title, theme.accent),
            Span::styled(symbols.rule.repeat(rest), theme.dim),
            Span::styled(hint, theme.dim),
        ]);
        buffer.set_line(area.x, area.y, &head, area.width);

        let inner = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
        self.page = usize::from(inner.height);
        match &self.body {
            Body::Text(body) => {
                let lines: Vec<Line> = text::wrap(body, width).into_iter().map(Line::from).collect();
                self.top = self.top.min(lines.len().saturating_sub(self.page));
                draw_lines(&lines[self.top..], inner, buffer);
            }
            Body::Sessions { rows, at, asks } => {
                let lines = session_lines(rows, (*at, *asks), width, theme);
                self.top = self.top.min(*at).max((*at + 1).saturating_sub(self.page));
                draw_lines(&lines[self.top..], inner, buffer);
            }
            Body::Tokens { report, at } => self.top = draw_tokens(report, *at, theme, inner, buffer),
        }
    }
}

fn is_shortcut(key: KeyEvent) -> bool {
    key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
}

fn draw_lines(lines: &[Line<'_>], area: Rect, buffer: &mut Buffer) {
    for (y, line) in (area.top()..area.bottom()).zip(lines) {
        buffer.set_line(area.x, y, line, area.width);
    }
}

fn session_key(code: KeyCode, rows: &mut Vec<SessionSummary>, at: &mut usize, asks: &mut bool) -> Reaction {
    let was_asked = std::mem::take(asks);
    match code {
        KeyCode::Up | KeyCode::Char('k') => *at = at.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => *at = (*at + 1).min(rows.len().saturating_sub(1)),
        KeyCode::Enter => return rows.get(*at).map_or(Reaction::Close, |row| Reaction::Open(row.id.clone())),
        KeyCode::Char('d') if *at < rows.len() => *asks = true,
        KeyCode::Char('y') if was_asked && *at < rows.len() => {
            let row = rows.remove(*at);
            *at = (*at).min(rows.len().saturating_sub(1));
            return Reaction::Delete(row.id);
        }
        _ => {}
    }
    Reaction::None
}

fn session_lines(
    rows: &[SessionSummary],
    (at, asks): (usize, bool),
    width: usize,
    theme: &Theme,
) -> Vec<Line<'static>> {
    if rows.is_empty() {
        return vec![Line::styled("there is no saved session yet", theme.dim)];
    }
    let line = |(index, row): (usize, &SessionSummary)| {
        let facts = format!("{:>9}  {:>3} turns  {}", row.age, row.turns, row.id);
        let title = text::single_line(&row.title);
        let text = if index == at && asks {
            format!("press y to delete `{title}` for good, any other key to keep it")
        } else {
            let room = width.saturating_sub(text::width(&facts) + 2).max(12);
            let title = text::truncate(&title, room);
            let gap = room.saturating_sub(text::width(&title)) + 2;
            format!("{title}{}{facts}", " ".repeat(gap))
        };
        let style = match (index == at, asks) {
            (true, true) => theme.warning,
            (true, false) => theme.selected,
            _ => theme.text,
        };
        Line::styled(text::truncate(&text, width), style)
    };
    rows.iter().enumerate().map(line).collect()
}

/// The tokens as running text, each in the colour of its difference, and below them the details of the one at
/// `at`. Returns the first line that is shown.
fn draw_tokens(report: &TokenReport, at: usize, theme: &Theme, area: Rect, buffer: &mut Buffer) -> usize {
    let details = token_details(report, at, usize::from(area.width), theme);
    let below = (details.len() as u16 + 1).min(area.height / 2 + 1);
    let above = Rect { height: area.height.saturating_sub(below), ..area };
    let lower = Rect { y: above.bottom(), height: area.height - above.height, ..area };

    let (mut lines, mut line, mut used, mut line_of_at) = (Vec::new(), Vec::new(), 0, 0);
    for (index, token) in report.tokens.iter().enumerate() {
        let shown = text::single_line(&token.text);
        let shown = if shown.is_empty() { "·".to_owned() } else { shown };
        let width = text::width(&shown);
        if used + width > usize::from(area.width) && !line.is_empty() {
            lines.push(Line::from(std::mem::take(&mut line)));
            used = 0;
        }
        if index == at {
            line_of_at = lines.len();
        }
        let style = token_style(token, theme);
        line.push(Span::styled(shown, if index == at { style.patch(theme.selected) } else { style }));
        used += width;
        if token.text.ends_with('\n') {
            lines.push(Line::from(std::mem::take(&mut line)));
            used = 0;
        }
    }
    lines.push(Line::from(line));
    let top = (line_of_at + 1).saturating_sub(usize::from(above.height));
    draw_lines(&lines[top.min(lines.len())..], above, buffer);
    draw_lines(&details, lower, buffer);
    top
}

/// Good where the model likes the token more than the reference, bad where less. Without a reference: bad
/// where the token was unlikely.
fn token_style(token: &TokenScore, theme: &Theme) -> Style {
    match token.reference.map(|reference| token.logprob - reference) {
        Some(difference) if difference > PARTED => theme.good,
        Some(difference) if difference < -PARTED => theme.bad,
        None if token.logprob < -3.0 => theme.bad,
        None if token.logprob < -1.0 => theme.warning,
        _ => theme.text,
    }
}

fn token_details(report: &TokenReport, at: usize, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let total: f64 = report.tokens.iter().map(|token| token.logprob).sum();
    let count = report.tokens.len();
    let summary = if report.models[1].is_some() {
        let parted: f64 = report.tokens.iter().map(|t| t.logprob - t.reference.unwrap_or(t.logprob)).sum();
        let kl: f64 = report.tokens.iter().filter_map(|token| token.kl).sum();
        format!("log ratio {parted:+.3}   KL {kl:.3} nats")
    } else {
        format!("log p {total:.3}   perplexity {:.3}", (-total / count.max(1) as f64).exp())
    };
    let mut lines =
        vec![Line::styled(format!("{count} tokens   {summary}   Left and Right move"), theme.dim)];
    let Some(token) = report.tokens.get(at) else { return lines };
    let probability = |logprob: f64| format!("{:6.2} %", 100.0 * logprob.exp());
    let row = |text: &str, logprob: f64, reference: Option<f64>| {
        let text = text::truncate(&format!("`{}`", text::single_line(text)), 24);
        let gap = " ".repeat(25_usize.saturating_sub(text::width(&text)));
        let reference = reference.map_or(String::new(), |reference| {
            format!("   reference {}   {:+.2}", probability(reference), logprob - reference)
        });
        format!("{text}{gap}{}{reference}", probability(logprob))
    };
    let kl = token.kl.map_or(String::new(), |kl| format!("   KL here {kl:.3}"));
    lines.push(Line::styled(row(&token.text, token.logprob, token.reference) + &kl, theme.accent));
    lines.extend(
        token.alternatives.iter().map(|other| Line::from(row(&other.text, other.logprob, other.reference))),
    );
    lines.iter().map(|line| truncated(line, width)).collect()
}

fn truncated(line: &Line<'_>, width: usize) -> Line<'static> {
    let text: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
    let style = line.style;
    Line::styled(text::truncate(&text, width), style)
}
