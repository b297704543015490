//! What keys, pastes and the mouse do.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseEventKind};

use super::command::{self, Line};
use super::conversation::Role;
use super::event::Effect;
use super::keys::Action;
use super::overlay::Reaction;
use super::{ChatScreen, Draft, PromptKind, PromptLine};
use crate::editor::{Mode, Outcome};
use crate::screen::Input;

/// How long after a key of the input the user counts as typing.
const TYPING: Duration = Duration::from_secs(1);

/// How soon after the first press a second one ends the chat.
const SECOND_PRESS: Duration = Duration::from_secs(2);

/// The lines that the wheel scrolls.
const WHEEL: usize = 3;

impl ChatScreen {
    pub(super) fn input(&mut self, input: Input) {
        match input {
            Input::Key(key) => self.key(key),
            Input::Paste(pasted) => self.paste(&pasted),
            Input::Mouse(mouse) => match mouse.kind {
                MouseEventKind::ScrollUp => self.scroll_up(WHEEL),
                MouseEventKind::ScrollDown => self.scroll_down(WHEEL),
                _ => {}
            },
            Input::Resize => {}
            Input::Closed => self.quit(),
        }
    }

    fn paste(&mut self, pasted: &str) {
        if let Some(line) = &mut self.prompt {
            line.text.push_str(&text::single_line(pasted));
        } else {
            // What is pasted belongs to the input, which is seen again.
            self.overlay = None;
            self.editor.paste(pasted);
        }
    }

    fn key(&mut self, key: KeyEvent) {
        let action = self.keys.action(key);
        if matches!(action, Some(Action::Interrupt)) {
            return self.interrupt();
        }
        if self.overlay.is_some() && !self.types_on(key) {
            return self.overlay_key(key, action);
        }
        if self.prompt.is_some() {
            return self.prompt_key(key, action);
        }
        if self.belongs_to_vim(key) {
            return self.edit(key);
        }
        match action {
            Some(action) => self.act(action),
            None => self.edit(key),
        }
    }

    /// Whether a key means something to vim before it means anything else. In the normal mode, Ctrl-R
    /// repeats, and Esc drops a half-typed command; it leaves the insert mode.
    fn belongs_to_vim(&self, key: KeyEvent) -> bool {
        let is_redo = key.modifiers == KeyModifiers::CONTROL && key.code == KeyCode::Char('r');
        let is_escape = key.code == KeyCode::Esc;
        match self.editor.mode() {
            Mode::Plain => false,
            Mode::Insert => is_escape,
            Mode::Normal => is_redo || (is_escape && !self.can_cancel()),
        }
    }

    /// Whether Esc has something to stop or to leave, other than a half-typed command.
    fn can_cancel(&self) -> bool {
        self.is_busy() || self.selected.is_some() || self.draft != Draft::Message
    }

    /// Whether a key belongs to the input although something opened in front of the conversation: the user
    /// was typing when it came, and types on.
    fn types_on(&self, key: KeyEvent) -> bool {
        let came_later = self.overlay.as_ref().is_some_and(|overlay| overlay.came_later);
        let is_typing = self.typed.is_some_and(|typed| self.now.saturating_sub(typed) < TYPING);
        came_later && is_typing && !matches!(key.code, KeyCode::Esc | KeyCode::PageUp | KeyCode::PageDown)
    }

    /// Gives a key to the editor. Up and Down beyond its edges recall earlier messages.
    fn edit(&mut self, key: KeyEvent) {
        self.typed = Some(self.now);
        if self.editor.key(key) != Outcome::Ignored || !key.modifiers.is_empty() {
            return;
        }
        let recalled = match key.code {
            KeyCode::Up if self.editor.is_on_first_row() => self.history.older(&self.editor.text()),
            KeyCode::Down if self.editor.is_on_last_row() => self.history.newer(),
            _ => None,
        };
        if let Some(text) = recalled {
            self.editor.set_text(&text);
        }
    }

    fn overlay_key(&mut self, key: KeyEvent, action: Option<Action>) {
        let Some(overlay) = &mut self.overlay else { return };
        match overlay.key(key, action) {
            Reaction::Type => {
                self.overlay = None;
                self.edit(key);
            }
            Reaction::None => {}
            Reaction::Close => self.overlay = None,
            Reaction::Open(id) => {
                self.overlay = None;
                if self.refuse_while_busy() {
                    return;
                }
                self.settle_comparison();
                self.save();
                let current = self.id.clone();
                self.effects.push(Effect::Open { id: Some(id), current });
            }
            Reaction::Delete(id) if id == self.id => {
                self.overlay = None;
                self.error("this session is open: start another one with /new first");
            }
            Reaction::Delete(id) => self.effects.push(Effect::Delete(id)),
        }
    }

    fn prompt_key(&mut self, key: KeyEvent, action: Option<Action>) {
        let Some(line) = &mut self.prompt else { return };
        match (key.code, action) {
            (KeyCode::Esc, _) => self.prompt = None,
            (KeyCode::Enter, _) if line.kind == PromptKind::History => {
                let found = self.history.search(&line.text, line.skip).map(str::to_owned);
                self.prompt = None;
                if let Some(found) = found {
                    self.editor.set_text(&found);
                }
            }
            (_, Some(Action::HistorySearch)) if line.kind == PromptKind::History => {
                line.skip += usize::from(self.history.search(&line.text, line.skip + 1).is_some());
            }
            (KeyCode::Enter | KeyCode::Up, _) | (_, Some(Action::Find)) => self.find_next(false),
            (KeyCode::Down, _) => self.find_next(true),
            (KeyCode::Backspace, _) => {
                line.text.pop();
                line.skip = 0;
                self.find_again();
            }
            (KeyCode::Char(character), _)
                if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) =>
            {
                line.text.push(character);
                line.skip = 0;
                self.find_again();
            }
            (_, Some(action @ (Action::PageUp | Action::PageDown | Action::Redraw))) => self.act(action),
            _ => {}
        }
    }

    /// Searches from the end of the conversation for what is typed by now.
    fn find_again(&mut self) {
        if let Some(PromptLine { kind: PromptKind::Find, text, .. }) = &self.prompt {
            self.transcript.find(text, None);
        }
    }

    fn find_next(&mut self, downwards: bool) {
        if let Some(PromptLine { kind: PromptKind::Find, text, .. }) = &self.prompt {
            self.transcript.find(text, Some(downwards));
        }
    }

    /// Sends the input: a message, a command, or another version of a turn.
    pub(super) fn send(&mut self) {
        let text = self.editor.text();
        if text.trim().is_empty() {
            return;
        }
        // What was said about the last action is read by now.
        self.notice = None;
        match (self.draft, command::parse(text.trim_end())) {
            (Draft::EditMessage(turn), Line::Message(message)) => {
                self.send_version(turn, Role::User, &message);
            }
            // An answer may begin with a slash.
            (Draft::EditAnswer(turn), _) => self.send_version(turn, Role::Assistant, text.trim_end()),
            (Draft::Message, Line::Message(message)) => self.send_message(&message),
            (_, Line::Unknown(why)) => self.error(why),
            (_, Line::Command(kind, arguments)) => {
                let arguments = arguments.to_owned();
                self.remember(&text);
                self.leave_draft();
                self.command(kind, &arguments);
            }
        }
    }

    fn send_message(&mut self, message: &str) {
        if self.refuse_while_busy() {
            return;
        }
        self.remember(&self.editor.text());
        self.editor.clear();
        self.settle_comparison();
        // A message without an answer is replaced by this one, as another version of it.
        let head = self.talk.head();
        let parent =
            head.filter(|&id| self.talk.turn(id).role == Role::User).map(|id| self.talk.turn(id).parent);
        let question = self.talk.add(parent.unwrap_or(head), Role::User, message);
        self.ask(question);
        self.save();
    }

    pub(super) fn remember(&mut self, text: &str) {
        let text = text.trim_end();
        self.history.add(text);
        self.history.reset();
        self.effects.push(Effect::Remember(text.to_owned()));
    }

    pub(super) fn refuse_while_busy(&mut self) -> bool {
        if self.is_busy() {
            self.error(format!(
                "the answer is still being written; {} stops it",
                self.keys.keys(Action::Cancel)
            ));
        }
        self.is_busy()
    }

    /// Stops, clears or ends, whichever comes first.
    fn interrupt(&mut self) {
        if self.overlay.take().is_some() || self.prompt.take().is_some() {
        } else if self.is_busy() {
            self.stop();
        } else if !self.editor.is_empty() || self.draft != Draft::Message {
            self.leave_draft();
        } else if self.asked_to_end.is_some_and(|at| self.now.saturating_sub(at) < SECOND_PRESS) {
            self.quit();
        } else {
            // A key that was meant for an answer that has just ended must not end the chat.
            self.asked_to_end = Some(self.now);
            self.done(format!(
                "{} again ends the chat; so does {}",
                self.keys.keys(Action::Interrupt),
                self.keys.keys(Action::Exit)
            ));
        }
    }

    pub(super) fn leave_draft(&mut self) {
        self.editor.clear();
        self.draft = Draft::Message;
        self.history.reset();
    }

    pub(super) fn quit(&mut self) {
        self.effects.push(Effect::Stop);
        self.save();
        self.effects.push(Effect::Quit);
    }
}
