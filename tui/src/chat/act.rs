//! What the actions of keys and the slash commands do. Both end in the same functions, so a key and its
//! command never differ.

use std::time::Duration;

use super::command::Kind;
use super::conversation::{Conversation, Role, TurnId};
use super::event::{Against, ContextPolicy, Effect, Request};
use super::keys::Action;
use super::overlay::Overlay;
use super::{ChatScreen, Draft, PromptKind, PromptLine};
use crate::theme::{Theme, ThemeName};

/// How long after its end a key may still be meant to stop an answer.
const AFTER_AN_ANSWER: Duration = Duration::from_secs(2);

impl ChatScreen {
    pub(super) fn act(&mut self, action: Action) {
        self.notice = None;
        match action {
            Action::Send => self.send(),
            Action::Cancel => self.cancel(),
            Action::Interrupt => {}
            Action::Exit if self.editor.is_empty() => self.quit(),
            Action::Exit => self.done("the input is not empty"),
            Action::Help => self.overlay = Some(Overlay::help(&self.keys)),
            Action::HistorySearch => self.open_prompt(PromptKind::History, ""),
            Action::Find => self.open_prompt(PromptKind::Find, ""),
            Action::ExternalEditor => self.effects.push(Effect::OpenEditor(self.editor.text())),
            Action::Copy => self.copy(""),
            Action::Redraw => self.effects.push(Effect::Redraw),
            Action::PageUp => self.scroll_up(self.transcript.page()),
            Action::PageDown => self.scroll_down(self.transcript.page()),
            Action::Top => self.transcript.go_to_top(),
            Action::Bottom => self.transcript.follow(),
            Action::TurnUp => self.select(-1),
            Action::TurnDown => self.select(1),
            Action::SiblingBefore => self.show_sibling(-1),
            Action::SiblingAfter => self.show_sibling(1),
            Action::Regenerate => self.regenerate(),
            Action::Sessions => self.effects.push(Effect::ListSessions),
            Action::Good => self.judge_thumb(true, ""),
            Action::Bad => self.judge_thumb(false, ""),
            Action::Complete => self.complete(),
        }
    }

    pub(super) fn command(&mut self, kind: Kind, arguments: &str) {
        match kind {
            Kind::Help => self.act(Action::Help),
            Kind::New => self.start_session(Conversation::new(self.talk.system.clone()), None),
            Kind::Sessions => self.act(Action::Sessions),
            Kind::Resume => self.resume(arguments),
            Kind::Fork => self.fork(),
            Kind::Rename => self.rename(arguments),
            Kind::Export => self.export(arguments),
            Kind::Model => self.model(arguments),
            Kind::Adapter => self.adapter(arguments),
            Kind::Compare => self.compare(arguments),
            Kind::Prefer => self.prefer(arguments),
            Kind::Good => self.judge_thumb(true, arguments),
            Kind::Bad => self.judge_thumb(false, arguments),
            Kind::Rate => self.rate(arguments),
            Kind::Note => self.set_note(arguments),
            Kind::Tag => self.set_tags(arguments),
            Kind::Reward => self.score(arguments),
            Kind::Kl => self.tokens(Against::Reference(some(arguments))),
            Kind::Logprobs => self.tokens(Against::Nothing),
            Kind::System => self.set_system(arguments),
            Kind::Template => self.template(arguments),
            Kind::Set => self.set(arguments),
            Kind::Context => self.set_policy(arguments),
            Kind::Stop => self.stop(),
            Kind::Regen => self.regenerate(),
            Kind::Continue => self.continue_answer(),
            Kind::Edit => self.edit_turn(arguments),
            Kind::Undo => self.undo(),
            Kind::Prefill => self.set_prefill(arguments),
            Kind::Prompt => self.show_prompt(),
            Kind::Copy => self.copy(arguments),
            Kind::Find => self.open_prompt(PromptKind::Find, arguments),
            Kind::Stats => self.stats(),
            Kind::Theme => self.set_theme(arguments),
            Kind::Vim => self.toggle_vim(),
            Kind::Mouse => self.toggle_mouse(),
            Kind::Quit => self.quit(),
        }
    }

    // What escape and stopping do.

    fn cancel(&mut self) {
        if self.is_busy() {
            self.stop();
        } else if self.selected.take().is_some() {
        } else if self.draft != Draft::Message {
            self.leave_draft();
        } else if self.ended.is_some_and(|ended| self.now.saturating_sub(ended) < AFTER_AN_ANSWER) {
            // The key was meant to stop the answer.
        } else if self.editor.is_empty() && !self.talk.is_empty() {
            self.edit_turn("");
        }
    }

    pub(super) fn stop(&mut self) {
        if self.is_busy() {
            self.effects.push(Effect::Stop);
        } else {
            self.done("no answer is being written");
        }
    }

    // Sessions.

    fn start_session(&mut self, talk: Conversation, title: Option<String>) {
        if self.refuse_while_busy() {
            return;
        }
        self.settle_comparison();
        self.save();
        let id = (self.new_id)();
        self.begin(id, title, talk);
        self.save();
        self.done(if self.saves {
            "a new session; the one before is kept under /sessions"
        } else {
            "a new session"
        });
    }

    fn resume(&mut self, id: &str) {
        if !self.refuse_while_busy() {
            self.settle_comparison();
            self.save();
            self.effects.push(Effect::Open { id: some(id), current: self.id.clone() });
        }
    }

    fn fork(&mut self) {
        if self.refuse_while_busy() {
            return;
        }
        self.settle_comparison();
        let mut talk = Conversation::new(self.talk.system.clone());
        for id in self.talk.path() {
            let turn = self.talk.turn(id).clone();
            let copy = talk.add(talk.head(), turn.role, turn.text.clone());
            let parent = talk.turn(copy).parent;
            *talk.turn_mut(copy) = super::conversation::Turn { parent, ..turn };
        }
        let title = self.title.clone().or_else(|| self.talk.title()).map(|title| format!("{title} (copy)"));
        self.start_session(talk, title);
    }

    fn rename(&mut self, title: &str) {
        if title.is_empty() {
            return self.error("give the title: /rename TITLE");
        }
        self.title = Some(title.to_owned());
        self.save();
    }

    fn export(&mut self, arguments: &str) {
        let (format, path) = arguments.split_once(char::is_whitespace).unwrap_or((arguments, ""));
        if !["md", "json", "jsonl", "parquet"].contains(&format) {
            return self.error("give the format: /export md, json, jsonl or parquet, and a file if you like");
        }
        if self.is_waiting_for_choice() {
            return self.error("several answers are here: /prefer a, b or tie comes first");
        }
        if self.talk.head().is_none() {
            return self.error("nothing was said yet");
        }
        let title = self.title.clone().or_else(|| self.talk.title()).unwrap_or_default();
        let messages = self.talk.messages_to(self.talk.head());
        self.effects.push(Effect::Export { format: format.to_owned(), path: some(path), title, messages });
    }

    // Settings.

    fn set_system(&mut self, text: &str) {
        match text {
            "" => {
                let text = self
                    .talk
                    .system
                    .clone()
                    .unwrap_or_else(|| "there are none; /system TEXT sets them".into());
                self.overlay = Some(Overlay::text("instructions", &text));
            }
            "-" => {
                self.talk.system = None;
                self.done("the instructions are removed");
            }
            text => {
                self.talk.system = Some(text.to_owned());
                self.done("the instructions hold from the next answer on");
            }
        }
        self.transcript.forget_system();
    }

    fn template(&mut self, name: &str) {
        if name.is_empty() {
            return self.error("give the name: /template chatml, or Jinja source");
        }
        self.effects.push(Effect::Template { slot: self.current, template: name.to_owned() });
    }

    fn set(&mut self, arguments: &str) {
        let s = &mut self.sampling;
        let (name, value) = arguments.split_once([' ', '=']).unwrap_or((arguments, ""));
        let value = value.trim();
        let number = || value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        let whole = || value.parse::<usize>().ok();
        let is_set = match name {
            "" => {
                let text = format!(
                    "temperature     {}\ntop_k           {}\ntop_p           {}\nmax_new_tokens  {}\nseed            {}",
                    s.temperature, s.top_k, s.top_p, s.max_new_tokens, s.seed
                );
                self.overlay = Some(Overlay::text("sampling: /set NAME VALUE", &text));
                return;
            }
            "temperature" => number().map(|number| s.temperature = number),
            "top_k" => whole().map(|number| s.top_k = number),
            "top_p" => number().filter(|p| *p > 0.0 && *p <= 1.0).map(|number| s.top_p = number),
            "max_new_tokens" => whole().filter(|count| *count > 0).map(|number| s.max_new_tokens = number),
            "seed" => value.parse().ok().map(|number| s.seed = number),
            _ => return self.error(format!("there is no parameter {name}; /set lists them")),
        };
        match is_set {
            Some(()) => self.done(format!("{name} is {value}")),
            None => self.error(format!("{name} cannot be `{value}`")),
        }
    }

    fn set_policy(&mut self, name: &str) {
        if self.slots[self.current].is_remote {
            return self.error("the server of this model decides what happens when the context is full");
        }
        match ContextPolicy::ALL.into_iter().find(|(other, _)| *other == name) {
            Some((_, policy)) => {
                self.policy = policy;
                self.done(match policy {
                    ContextPolicy::Drop => {
                        "when the context is full, the model no longer sees the oldest turns"
                    }
                    ContextPolicy::Summarize => {
                        "when the context is full, the model sees a summary of the oldest turns"
                    }
                    ContextPolicy::Stop => "when the context is full, messages are refused",
                });
            }
            None if name.is_empty() => {
                let (name, _) = ContextPolicy::ALL
                    .into_iter()
                    .find(|(_, policy)| *policy == self.policy)
                    .unwrap_or(ContextPolicy::ALL[0]);
                self.done(format!(
                    "when the context is full: {name}; /context drop, summarize or stop changes it"
                ));
            }
            None => self.error("/context drop, /context summarize or /context stop"),
        }
    }

    fn set_theme(&mut self, name: &str) {
        match ThemeName::find(name) {
            Some(name) => self.theme = Theme::new(name),
            None => self.error("/theme dark, /theme light or /theme plain"),
        }
    }

    fn toggle_vim(&mut self) {
        self.vim = !self.vim;
        self.editor.set_vim(self.vim);
        self.done(if self.vim { "vim keys are on" } else { "vim keys are off" });
    }

    fn toggle_mouse(&mut self) {
        self.mouse = !self.mouse;
        self.effects.push(Effect::Mouse(self.mouse));
        self.done(if self.mouse {
            "the wheel scrolls; hold Shift to select text"
        } else {
            "the terminal selects text; PageUp and PageDown scroll"
        });
    }

    fn set_prefill(&mut self, text: &str) {
        self.prefill = some(text);
        match &self.prefill {
            Some(_) => self.done("the next answer begins with this text"),
            None => self.done("the next answer begins by itself"),
        }
    }

    // Turns.

    pub(super) fn regenerate(&mut self) {
        if self.refuse_while_busy() {
            return;
        }
        self.settle_comparison();
        let Some(answer) = self.answer() else { return self.error("there is no answer yet") };
        // Another seed, so that the answer may differ.
        let seed = self.sampling.seed.wrapping_add(self.talk.siblings(answer).len() as u64);
        let prefix = self.prefill.take().unwrap_or_default();
        self.request_beside(answer, seed, prefix);
    }

    fn continue_answer(&mut self) {
        if self.refuse_while_busy() {
            return;
        }
        self.settle_comparison();
        let Some(answer) = self.answer() else { return self.error("there is no answer yet") };
        let slot = &self.slots[self.slot_of(answer)];
        if slot.is_remote {
            let name = slot.name();
            return self.error(format!(
                "{name} is behind an endpoint, which begins answers by itself: /regen asks for another one"
            ));
        }
        // The old answer stays as it was, with its model and what was said about it.
        let text = self.talk.turn(answer).text.clone();
        self.request_beside(answer, self.sampling.seed, text);
    }

    /// Asks for another answer beside `answer`, which is on the screen again if nothing comes of it.
    fn request_beside(&mut self, answer: TurnId, seed: u64, prefix: String) {
        let Some(question) = self.talk.turn(answer).parent else { return };
        let slot = self.slot_of(answer);
        let other = self.begin_answer(question, slot, seed);
        self.request(other, slot, prefix);
        if let Some(running) = self.running.back_mut() {
            running.beside = Some(answer);
        }
    }

    fn edit_turn(&mut self, arguments: &str) {
        if self.refuse_while_busy() {
            return;
        }
        self.settle_comparison();
        let (turn, draft): (Option<TurnId>, fn(TurnId) -> Draft) = if arguments == "answer" {
            (self.answer(), Draft::EditAnswer)
        } else {
            let selected = self.selected.filter(|&id| self.talk.turn(id).role == Role::User);
            (selected.or_else(|| self.talk.last(Role::User)), Draft::EditMessage)
        };
        match turn {
            Some(turn) => {
                self.draft = draft(turn);
                let text = self.talk.turn(turn).text.clone();
                self.editor.set_text(&text);
            }
            None => self.error("there is nothing to edit yet"),
        }
    }

    /// Sends another version of `turn`, beside the old one.
    pub(super) fn send_version(&mut self, turn: TurnId, role: Role, text: &str) {
        if self.refuse_while_busy() {
            return;
        }
        self.leave_draft();
        self.settle_comparison();
        let parent = self.talk.turn(turn).parent;
        let version = self.talk.add(parent, role, text);
        self.selected = None;
        if role == Role::User {
            self.ask(version);
        } else {
            self.judge_edit(turn, version);
        }
        self.save();
    }

    fn undo(&mut self) {
        if self.refuse_while_busy() {
            return;
        }
        self.settle_comparison();
        let Some(question) = self.talk.last(Role::User) else {
            return self.error("there is nothing to take back");
        };
        let text = self.talk.turn(question).text.clone();
        self.talk.go_to(self.talk.turn(question).parent);
        self.selected = None;
        self.progress = super::Progress::default();
        self.editor.set_text(&text);
        self.save();
    }

    fn select(&mut self, offset: isize) {
        let path = self.talk.path();
        let place = match self.selected.and_then(|id| path.iter().position(|&other| other == id)) {
            Some(place) => place.checked_add_signed(offset),
            None => path.len().checked_sub(1).filter(|_| offset < 0),
        };
        self.selected = place.and_then(|place| path.get(place)).copied();
        match self.selected {
            Some(turn) => self.transcript.show(turn),
            None => self.transcript.follow(),
        }
    }

    fn show_sibling(&mut self, offset: isize) {
        if self.refuse_while_busy() {
            return;
        }
        self.settle_comparison();
        let Some(turn) = self.selected.or_else(|| self.talk.head()) else { return };
        let Some(sibling) = self.talk.sibling(turn, offset) else {
            return self.done("there is no other version on this side");
        };
        self.talk.go_below(sibling);
        self.selected = self.selected.map(|_| sibling);
        self.save();
    }

    fn copy(&mut self, arguments: &str) {
        if self.is_waiting_for_choice() {
            return self.error("several answers are here: /prefer a, b or tie comes first");
        }
        let Some(answer) = self.answer() else { return self.error("there is no answer yet") };
        if arguments.is_empty() {
            return self.effects.push(Effect::Copy(self.talk.turn(answer).text.clone()));
        }
        let blocks = crate::markdown::Document::from(self.talk.turn(answer).text.as_str()).code_blocks();
        let place = arguments.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        match place.and_then(|place| blocks.get(place)) {
            Some(block) => self.effects.push(Effect::Copy(block.text.clone())),
            None => self.error(format!("this answer has {} code blocks; /copy N copies one", blocks.len())),
        }
    }

    fn open_prompt(&mut self, kind: PromptKind, text: &str) {
        self.prompt = Some(PromptLine { kind, text: text.to_owned(), skip: 0 });
        if kind == PromptKind::Find && !text.is_empty() {
            self.transcript.find(text, None);
        }
    }

    fn complete(&mut self) {
        let text = self.editor.text();
        let Some(name) = text.strip_prefix('/').filter(|name| !name.contains(char::is_whitespace)) else {
            return;
        };
        if let Some(help) = super::command::completions(name).first() {
            let space = if help.arguments.is_empty() { "" } else { " " };
            self.editor.set_text(&format!("/{}{space}", help.name));
        }
    }

    fn show_prompt(&mut self) {
        let Some(head) = self.talk.head() else { return self.error("nothing was said yet") };
        let is_answer = self.talk.turn(head).role == Role::Assistant;
        let messages =
            if is_answer { self.talk.messages_before(head) } else { self.talk.messages_to(Some(head)) };
        let prefix = self.prefill.clone().unwrap_or_default();
        let (slot, sampling, policy) = (self.slot_of(head), self.sampling, self.policy);
        self.effects.push(Effect::Prompt(Request { turn: head, slot, messages, prefix, sampling, policy }));
    }

    fn stats(&mut self) {
        let Some(statistics) = &self.progress.statistics else { return self.error("there is no answer yet") };
        let rate = statistics.tokens_per_second().map_or("-".to_owned(), |rate| format!("{rate:.1}"));
        let text = format!(
            "prompt          {} tokens\nanswer          {} tokens\ncontext         {} tokens\nfirst token     {:.3} s\nwhole answer    {:.3} s\nspeed           {rate} tokens a second after the first\nended by        {}",
            statistics.prompt_tokens,
            statistics.new_tokens,
            statistics.context,
            statistics.first_token.as_secs_f64(),
            statistics.total.as_secs_f64(),
            statistics.finish_reason,
        );
        self.overlay = Some(Overlay::text("the last answer", &text));
    }

    pub(super) fn scroll_up(&mut self, lines: usize) {
        match &mut self.overlay {
            Some(overlay) => overlay.scroll(-(lines as isize)),
            None => self.transcript.scroll(-(lines as isize)),
        }
    }

    pub(super) fn scroll_down(&mut self, lines: usize) {
        match &mut self.overlay {
            Some(overlay) => overlay.scroll(lines as isize),
            None => self.transcript.scroll(lines as isize),
        }
    }
}

/// A text, unless it is empty.
pub(super) fn some(text: &str) -> Option<String> {
    Some(text.trim()).filter(|text| !text.is_empty()).map(str::to_owned)
}
