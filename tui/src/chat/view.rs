//! The layout of the chat screen, from top to bottom: header, conversation, completion of commands, input,
//! status.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Widget};

use super::command::{self, Help};
use super::conversation::{Role, TurnId};
use super::keys::Action;
use super::transcript::{Block, TextId, Transcript};
use super::{ChatScreen, Draft, PromptKind, SlotState};
use crate::editor::Mode;
use text::number;

/// The highest input, in rows.
const INPUT: u16 = 10;

/// The most lines of a notice.
const NOTICE_LINES: usize = 6;

/// The most completions that are shown.
const COMPLETIONS: usize = 8;

impl ChatScreen {
    /// Draws the state.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let caret = self.draw_on(frame.area(), frame.buffer_mut());
        if !self.symbols.unicode {
            self.draw_ascii(frame.buffer_mut());
        }
        if let Some(caret) = caret {
            frame.set_cursor_position(caret);
        }
    }

    /// Replaces the signs of cut, joined and empty text. In an answer they change as well; other characters
    /// beyond ASCII stay, because many terminals show them whatever the locale says.
    fn draw_ascii(&self, buffer: &mut Buffer) {
        for cell in &mut buffer.content {
            match cell.symbol() {
                "…" => cell.set_symbol(self.symbols.ellipsis),
                "↵" => cell.set_symbol("|"),
                "·" => cell.set_symbol("."),
                _ => continue,
            };
        }
    }

    /// Draws the state and returns the cell of the caret, if there is one.
    fn draw_on(&mut self, area: Rect, buffer: &mut Buffer) -> Option<Position> {
        if area.is_empty() {
            return None;
        }
        let marker = 2.min(area.width.saturating_sub(1));
        let rows =
            self.editor.height((area.width - marker).max(1)).clamp(1, INPUT.min((area.height / 2).max(1)));
        let has_header = area.height > rows + 4;
        let has_status = area.height > rows;
        let status_y = area.bottom() - u16::from(has_status);
        let input = Rect { y: status_y - rows, height: rows, ..area };
        let has_rule = input.y > area.y + u16::from(has_header) + 1;
        let top = area.y + u16::from(has_header);
        let middle = Rect { y: top, height: (input.y - top).saturating_sub(u16::from(has_rule)), ..area };

        if has_header {
            buffer.set_line(area.x, area.y, &self.header(area.width), area.width);
        }
        self.draw_conversation(middle, buffer);
        if has_rule {
            buffer.set_line(area.x, input.y - 1, &self.rule(area.width), area.width);
        }
        let mut caret = self.draw_input(input, marker, buffer);
        self.draw_long_notice(middle, buffer);
        self.draw_completions(middle, buffer);
        if has_status {
            let status = Rect { y: status_y, height: 1, ..area };
            caret = self.draw_status(status, buffer).unwrap_or(caret);
        }
        if let Some(mut overlay) = self.overlay.take() {
            overlay.draw((&self.theme, &self.symbols), middle, buffer);
            self.overlay = Some(overlay);
            return None;
        }
        Some(caret)
    }

    fn header(&self, width: u16) -> Line<'static> {
        let names = match &self.compare {
            Some(compare) if compare.blind => format!("{} models, names hidden", compare.slots.len()),
            Some(compare) => {
                compare.slots.iter().map(|&slot| self.slots[slot].name()).collect::<Vec<_>>().join(" | ")
            }
            None => self.slots[self.current].name(),
        };
        let title = self.title.clone().or_else(|| self.talk.title()).unwrap_or_default();
        let title = text::single_line(&title);
        let left = text::truncate(&names, usize::from(width));
        let room = usize::from(width).saturating_sub(text::width(&left) + 2);
        let right = text::truncate(&title, room);
        let gap = usize::from(width).saturating_sub(text::width(&left) + text::width(&right));
        Line::from(vec![
            Span::styled(left, self.theme.accent),
            Span::raw(" ".repeat(gap)),
            Span::styled(right, self.theme.dim),
        ])
    }

    fn rule(&self, width: u16) -> Line<'static> {
        let what = match self.draft {
            Draft::Message if self.prefill.is_some() => " the answer begins with your text ",
            Draft::Message => "",
            Draft::EditMessage(_) => " another version of your message; Esc leaves ",
            Draft::EditAnswer(_) => " your version of the answer; Esc leaves ",
        };
        let what = text::truncate(what, usize::from(width));
        let rest = self.symbols.rule.repeat(usize::from(width) - text::width(&what));
        Line::from(vec![Span::styled(what, self.theme.warning), Span::styled(rest, self.theme.dim)])
    }

    fn draw_input(&mut self, input: Rect, marker: u16, buffer: &mut Buffer) -> Position {
        buffer.set_line(input.x, input.y, &Line::styled("> ", self.theme.user), marker);
        let area = Rect { x: input.x + marker, width: (input.width - marker).max(1), ..input };
        self.editor.draw(area, buffer, &self.theme)
    }

    fn draw_completions(&self, middle: Rect, buffer: &mut Buffer) {
        let text = self.editor.text();
        let Some(name) = text.strip_prefix('/').filter(|_| self.draft == Draft::Message) else { return };
        let (name, has_arguments) = match name.split_once(char::is_whitespace) {
            Some((name, _)) => (name, true),
            None => (name, false),
        };
        let matches: Vec<&Help> = command::completions(name);
        if name.starts_with('/') || (has_arguments && matches.len() != 1) {
            return;
        }
        let shown = matches.len().min(COMPLETIONS).min(usize::from(middle.height));
        let area = Rect { y: middle.bottom() - shown as u16, height: shown as u16, ..middle };
        Clear.render(area, buffer);
        for (place, (y, help)) in (area.top()..area.bottom()).zip(&matches).enumerate() {
            let is_last = place + 1 == shown && matches.len() > shown;
            let line = if is_last {
                let left = matches.len() - place;
                Line::styled(format!("  {left} more: type on, or F1"), self.theme.dim)
            } else {
                Line::from(vec![
                    Span::styled(format!("  /{} {}", help.name, help.arguments), self.theme.accent),
                    Span::styled(format!("  {}", help.help), self.theme.dim),
                ])
            };
            buffer.set_line(area.x, y, &line, area.width);
        }
    }

    fn draw_conversation(&mut self, area: Rect, buffer: &mut Buffer) {
        if self.talk.is_empty() && self.talk.system.is_none() {
            return self.draw_welcome(area, buffer);
        }
        let blocks = self.blocks();
        let talk = &self.talk;
        let source = |id| match id {
            TextId::System => talk.system.clone().unwrap_or_default(),
            TextId::Turn(turn) => talk.turn(turn).text.clone(),
        };
        self.transcript.draw(&blocks, source, (&self.theme, &self.symbols), area, buffer);
        if let Some(line) = self.prompt.as_ref().filter(|line| line.kind == PromptKind::Find) {
            Transcript::mark(&line.text, &self.theme, area, buffer);
        }
    }

    fn draw_welcome(&self, area: Rect, buffer: &mut Buffer) {
        let name = self.slots[self.current].name();
        let loading = match &self.slots[self.current].state {
            SlotState::Loading(note) => format!("{name} is being loaded ({note}); you can type already."),
            SlotState::Ready { detail, .. } => format!("{name}: {detail}"),
            SlotState::Failed => format!("{name} could not be loaded; /model DIR takes another one."),
        };
        let help = self.keys.keys(Action::Help);
        let welcome = format!(
            "{loading}\n\nType a message and press Enter. Alt-Enter or Ctrl-J begins a line.\n{help} shows all keys and commands; / lists the commands.\nEsc stops an answer. Ctrl-D ends; {}",
            if self.saves { "the conversation is saved." } else { "nothing is saved (--no-save)." }
        );
        let lines = text::wrap(&welcome, usize::from(area.width));
        for (y, line) in (area.top()..area.bottom()).zip(lines) {
            buffer.set_line(area.x, y, &Line::styled(line, self.theme.dim), area.width);
        }
    }

    fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        if self.talk.system.is_some() {
            let label = Line::styled("instructions", self.theme.dim);
            blocks.push(Block { columns: vec![(TextId::System, label)], is_selected: false });
        }
        for turn in self.talk.path() {
            let columns = vec![(TextId::Turn(turn), self.label(turn))];
            blocks.push(Block { columns, is_selected: self.selected == Some(turn) });
        }
        if let Some(compare) = self.compare.as_ref().filter(|compare| !compare.group.is_empty()) {
            let label = |(place, &turn): (usize, &TurnId)| {
                let letter = letter(place);
                let mut label = self.label(turn);
                if compare.blind {
                    label.spans[0].content = String::new().into();
                }
                label.spans.insert(0, Span::styled(format!("{letter} "), self.theme.warning));
                (TextId::Turn(turn), label)
            };
            let columns = compare.group.iter().enumerate().map(label).collect();
            blocks.push(Block { columns, is_selected: false });
        }
        blocks
    }

    /// Who speaks, and what is known about the turn.
    fn label(&self, id: TurnId) -> Line<'static> {
        let turn = self.talk.turn(id);
        let siblings = self.talk.siblings(id);
        let mut spans = match turn.role {
            Role::User => vec![Span::styled("you", self.theme.user)],
            _ => vec![Span::styled(self.model_name(id), self.theme.assistant)],
        };
        let mut add = |text: String, style| spans.push(Span::styled(format!("  {text}"), style));
        let is_compared = self.compare.as_ref().is_some_and(|compare| compare.group.contains(&id));
        if siblings.len() > 1 && !is_compared {
            let place = siblings.iter().position(|&other| other == id).map_or(1, |place| place + 1);
            add(format!("{place}/{}", siblings.len()), self.theme.dim);
        }
        match turn.judgement.good {
            Some(true) => add(format!("{} good", self.symbols.good), self.theme.good),
            Some(false) => add(format!("{} bad", self.symbols.bad), self.theme.bad),
            None => {}
        }
        if let Some(rating) = turn.judgement.rating {
            add(format!("{rating}/5"), self.theme.good);
        }
        if turn.judgement.preferred {
            add("preferred".to_owned(), self.theme.good);
        }
        if let Some(reward) = turn.reward {
            add(format!("reward {reward:+.3}"), self.theme.dim);
        }
        if let Some(finish) = turn.finish.as_deref().filter(|finish| *finish != "stop") {
            let words = match finish {
                "length" => "cut at the length; /continue writes on",
                "interrupted" => "stopped; /continue writes on",
                other => other,
            };
            add(text::single_line(words), self.theme.warning);
        } else if self.running.iter().any(|running| running.turn == id && running.prefix == turn.text) {
            add("reading".to_owned(), self.theme.dim);
        }
        Line::from(spans)
    }

    /// Draws the status, or what is typed in its place; then returns the cell of the caret.
    fn draw_status(&self, area: Rect, buffer: &mut Buffer) -> Option<Position> {
        let width = usize::from(area.width);
        if let Some(line) = &self.prompt {
            let (name, found) = match line.kind {
                PromptKind::Find if line.text.is_empty() || self.transcript.has_found() => {
                    ("find", String::new())
                }
                PromptKind::Find => ("find", "  (nothing)".to_owned()),
                PromptKind::History => {
                    let found = self.history.search(&line.text, line.skip).map(text::single_line);
                    ("earlier message", found.map_or("  (none)".to_owned(), |found| format!("  {found}")))
                }
            };
            let typed = format!("{name}: {}", text::single_line(&line.text));
            let caret = text::width(&typed).min(width.saturating_sub(1));
            let spans = vec![Span::styled(typed, self.theme.accent), Span::styled(found, self.theme.dim)];
            buffer.set_line(area.x, area.y, &Line::from(spans), area.width);
            return Some(Position { x: area.x + caret as u16, y: area.y });
        }
        let right = self.figures(width);
        let room = self.room_for_news(width);
        let (left, style) = self.news(room);
        let left = text::truncate(&text::single_line(&left), room);
        let gap = width.saturating_sub(text::width(&left) + text::width(&right));
        let figures = if self.is_context_short() { self.theme.warning } else { self.theme.dim };
        let line = Line::from(vec![
            Span::styled(left, style),
            Span::raw(" ".repeat(gap)),
            Span::styled(right, figures),
        ]);
        buffer.set_line(area.x, area.y, &line, area.width);
        None
    }

    /// The cells of the last line that the figures leave.
    fn room_for_news(&self, width: usize) -> usize {
        width.saturating_sub(text::width(&self.figures(width)) + 1)
    }

    /// The notice, if it fits into `room` cells exactly when `fits` says so.
    fn notice(&self, room: usize, fits: bool) -> Option<(String, Style)> {
        let (notice, _) = self.notice.as_ref()?;
        let style = if notice.is_error { self.theme.error } else { self.theme.accent };
        let line = text::single_line(&notice.text);
        // In front of the conversation there is something to read: the beginning of the notice has to do.
        let has_place = text::width(&line) <= room || self.overlay.is_some();
        (has_place == fits).then_some((line, style))
    }

    /// Draws a notice that is too long for the last line over the end of the conversation.
    fn draw_long_notice(&self, middle: Rect, buffer: &mut Buffer) {
        let width = usize::from(middle.width);
        let Some((notice, style)) = self.notice(self.room_for_news(width), false) else { return };
        let mut lines = text::wrap(&notice, width);
        let lines_in_all = lines.len();
        let shown = lines.len().min(NOTICE_LINES).min(usize::from(middle.height));
        if let Some(last) = lines.get_mut(shown.saturating_sub(1)).filter(|_| shown < lines_in_all) {
            *last = text::truncate(&format!("{last}{}", " ".repeat(width)), width);
        }
        let area = Rect { y: middle.bottom() - shown as u16, height: shown as u16, ..middle };
        Clear.render(area, buffer);
        for (y, line) in (area.top()..area.bottom()).zip(&lines) {
            buffer.set_line(area.x, y, &Line::styled(line.as_str(), style), area.width);
        }
    }

    /// What the user should know now, in at most `room` cells.
    fn news(&self, room: usize) -> (String, Style) {
        if let Some(notice) = self.notice(room, true) {
            return notice;
        }
        if let SlotState::Loading(note) = &self.slots[self.current].state {
            return (format!("loading: {note}"), self.theme.warning);
        }
        if self.is_busy() {
            let stop = self.keys.keys(Action::Cancel);
            return (format!("{} tokens; {stop} stops", self.numbers().new_tokens), self.theme.warning);
        }
        if self.compare.as_ref().is_some_and(|compare| !compare.group.is_empty()) {
            let last = self.compare.as_ref().map_or(2, |compare| compare.group.len());
            let letters = if last == 2 { "a, b".to_owned() } else { format!("a to {}", letter(last - 1)) };
            return (format!("/prefer {letters} or tie"), self.theme.warning);
        }
        let keys = &self.keys;
        let scrolled = if self.transcript.is_scrolled() {
            format!("{} to the end  ", keys.keys(Action::Bottom))
        } else {
            String::new()
        };
        (format!("{scrolled}{} help  / commands", keys.keys(Action::Help)), self.theme.dim)
    }

    /// Context, speed and settings; less of them on a narrow screen.
    fn figures(&self, width: usize) -> String {
        let used = self.numbers().prompt_tokens + self.numbers().new_tokens;
        // Only an answer tells how many tokens the conversation has.
        let used = match used {
            0 if !self.talk.path().is_empty() => "?".to_owned(),
            used => number::count(used as f64),
        };
        let context = match self.context() {
            Some(context) => format!("ctx {used}/{}", number::count(context as f64)),
            None => format!("ctx {used}"),
        };
        let rate = self.numbers().rate.map_or(String::new(), |rate| format!("{rate:.1} tok/s  "));
        let mode = match self.editor.mode() {
            Mode::Plain => "",
            Mode::Insert => "  INSERT",
            Mode::Normal => "  NORMAL",
        };
        let (temperature, seed) = (self.sampling.temperature, self.sampling.seed);
        let adapter = match (&self.compare, &self.slots[self.current].adapter) {
            (None, Some(_)) => format!("  adapter {}", self.slots[self.current].name()),
            _ => String::new(),
        };
        let mut parts = format!("{rate}{context}  T {temperature}  seed {seed}{adapter}{mode}");
        if text::width(&parts) + 24 > width {
            parts = format!("{rate}{context}{mode}");
        }
        if text::width(&parts) + 16 > width {
            parts = context + mode;
        }
        parts
    }

    fn context(&self) -> Option<u64> {
        match self.slots[self.current].state {
            SlotState::Ready { context, .. } => context,
            _ => None,
        }
    }

    fn is_context_short(&self) -> bool {
        let used = self.numbers().prompt_tokens + self.numbers().new_tokens;
        self.context().is_some_and(|context| used * 5 > context * 4)
    }
}

/// The letter of the answer at `place` of a comparison.
fn letter(place: usize) -> char {
    char::from(b'a' + place.min(25) as u8)
}
