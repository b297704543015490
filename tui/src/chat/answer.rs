//! What the reports of models change.

use super::conversation::TurnId;
use super::event::{ContextPolicy, ModelEvent};
use super::overlay::Overlay;
use super::{ChatScreen, Draft, Numbers, Slot, SlotState};
use crate::line::Statistics;

impl ChatScreen {
    pub(super) fn report(&mut self, report: ModelEvent) {
        match report {
            ModelEvent::Loading { slot, note } => {
                self.set_state(slot, SlotState::Loading(text::single_line(&note)));
            }
            ModelEvent::Loaded { slot, context, detail } => {
                self.set_state(slot, SlotState::Ready { context, detail: text::single_line(&detail) });
            }
            ModelEvent::LoadFailed { slot, error } => {
                self.set_state(slot, SlotState::Failed);
                // The chat goes on with a model that works.
                let works = |slot: &Slot| matches!(slot.state, SlotState::Ready { .. });
                if let Some(other) = self.slots.iter().position(works).filter(|_| slot == self.current) {
                    self.current = other;
                }
                self.overlay = Some(Overlay::text("this model cannot be loaded", &error).later());
            }
            ModelEvent::Started { turn, prompt_tokens, dropped } => {
                self.started(turn, prompt_tokens, dropped);
            }
            ModelEvent::Piece { turn, text, new_tokens, rate } => {
                if self.has(turn) {
                    self.talk.turn_mut(turn).text.push_str(&text);
                    self.transcript.push(turn, &text);
                    if let Some(running) = self.running.iter_mut().find(|running| running.turn == turn) {
                        (running.numbers.new_tokens, running.numbers.rate) = (new_tokens, rate);
                    }
                }
            }
            ModelEvent::Finished { turn, statistics } => self.finished(turn, statistics),
            ModelEvent::Failed { turn, error } => self.failed(turn, &error),
            ModelEvent::Scored { session, turn, score } => {
                // Another session may be on the screen by now.
                if session == self.id && self.has(turn) {
                    self.talk.turn_mut(turn).reward = Some(score);
                    self.save();
                }
            }
            ModelEvent::Tokens(mut report) => {
                for model in report.models.iter_mut().flatten() {
                    *model = super::short_name(model);
                }
                self.overlay = Some(Overlay::tokens(*report).later());
            }
        }
    }

    fn set_state(&mut self, slot: usize, state: SlotState) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.state = state;
        }
    }

    /// Whether a turn is still there. The session may have changed since it was asked for.
    fn has(&self, turn: TurnId) -> bool {
        turn < self.talk.len()
    }

    fn started(&mut self, turn: TurnId, prompt_tokens: u64, dropped: usize) {
        if !self.has(turn) {
            return;
        }
        if let Some(running) = self.running.iter_mut().find(|running| running.turn == turn) {
            running.numbers = Numbers { prompt_tokens, new_tokens: 0, rate: None };
        }
        if dropped > self.progress.dropped {
            let what = if self.policy == ContextPolicy::Summarize { "summarized" } else { "left out" };
            self.done(format!("the context is full: the oldest {dropped} messages are {what}"));
        }
        self.progress.dropped = dropped;
    }

    fn finished(&mut self, turn: TurnId, statistics: Statistics) {
        let place = self.running.iter().position(|running| running.turn == turn);
        let ended = place.and_then(|place| self.running.remove(place));
        if !self.has(turn) {
            return;
        }
        self.ended = Some(self.now);
        self.talk.turn_mut(turn).finish = Some(statistics.finish_reason.clone());
        self.transcript.finish(turn);
        // An endpoint need not know how long its prompt was.
        let known = ended.map_or(0, |running| running.numbers.prompt_tokens);
        self.progress.numbers = Numbers {
            prompt_tokens: if statistics.prompt_tokens > 0 { statistics.prompt_tokens } else { known },
            new_tokens: statistics.new_tokens,
            rate: statistics.tokens_per_second(),
        };
        self.progress.statistics = Some(statistics);
        self.save();
    }

    /// A failed answer. What arrived of it stays.
    fn failed(&mut self, turn: TurnId, error: &str) {
        let place = self.running.iter().position(|running| running.turn == turn);
        let ended = place.and_then(|place| self.running.remove(place)).map(|running| {
            self.progress.numbers = running.numbers;
            (running.prefix, running.beside)
        });
        if !self.has(turn) {
            return;
        }
        self.error(error);

        let (prefix, beside) = ended.unwrap_or_default();
        let answer = self.talk.turn_mut(turn);
        answer.finish = Some("failed".to_owned());
        if answer.text == prefix {
            answer.text.clear();
            self.transcript.forget(turn);
        }
        self.transcript.finish(turn);

        // A comparison goes on while one of its answers is there or may still come.
        let group = self.compare.as_ref().map(|compare| compare.group.clone()).unwrap_or_default();
        let is_open = |&id: &TurnId| self.is_running(id) || !self.talk.turn(id).text.is_empty();
        if self.talk.turn(turn).text.is_empty() && !(group.contains(&turn) && group.iter().any(is_open)) {
            self.take_back(turn, prefix, beside);
        }
        self.save();
    }

    /// Leaves an answer of which nothing came: for the one that was there before, for another answer to the
    /// same message, or else the message returns to the input, with the beginning that the answer was to
    /// have.
    fn take_back(&mut self, turn: TurnId, prefix: String, beside: Option<TurnId>) {
        if let Some(compare) = &mut self.compare {
            compare.group.clear();
        }
        let Some(question) = self.talk.turn(turn).parent else { return };
        let siblings = self.talk.siblings(turn);
        let is_there = |id: &TurnId| !self.talk.turn(*id).text.is_empty();
        let newest_first = siblings.into_iter().rev();
        if let Some(other) = beside.into_iter().chain(newest_first).find(is_there) {
            return self.talk.go_below(other);
        }

        let text = self.talk.turn(question).text.clone();
        self.talk.go_to(self.talk.turn(question).parent);
        // Nothing of it was said: it leaves no trace if nothing came after it.
        for gone in self.talk.remove_last(question) {
            self.transcript.forget(gone);
        }
        self.selected = self.selected.filter(|&turn| self.has(turn));
        if self.draft.turn().is_some_and(|turn| !self.has(turn)) {
            self.draft = Draft::Message;
        }
        if self.editor.is_empty() && self.draft == Draft::Message {
            self.editor.set_text(&text);
            self.prefill = self.prefill.take().or(Some(prefix)).filter(|prefix| !prefix.is_empty());
        }
    }
}
