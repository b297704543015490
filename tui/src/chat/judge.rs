//! What the user thinks of answers: thumbs, ratings, preferences and edits. Each judgement is shown at the
//! answer and written down at once.

use super::act::some;
use super::conversation::{Asked, Role, TurnId};
use super::event::{Against, Answer, Effect, PairSource, Verdict};
use super::{ChatScreen, Notice};

impl ChatScreen {
    fn answer_of(&self, turn: TurnId) -> Answer {
        let turn = self.talk.turn(turn);
        // What a person wrote was not drawn.
        let asked = turn.asked.as_ref().filter(|_| turn.model.is_some());
        let sampling = asked.map(|asked| asked.sampling);
        Answer { text: turn.text.clone(), model: turn.model.clone(), sampling }
    }

    /// The complete answer that a judgement is about. The notice says why there is none.
    fn judged(&mut self) -> Option<TurnId> {
        if self.is_waiting_for_choice() {
            self.error("several answers are here: /prefer a, b or tie says which is best");
            return None;
        }
        let answer = self.answer().filter(|&id| !self.is_running(id) && !self.talk.turn(id).text.is_empty());
        if answer.is_none() {
            self.error("there is no complete answer to judge");
        }
        answer
    }

    pub(super) fn is_waiting_for_choice(&self) -> bool {
        self.compare.as_ref().is_some_and(|compare| !compare.group.is_empty())
    }

    pub(super) fn judge_thumb(&mut self, good: bool, note: &str) {
        let Some(turn) = self.judged() else { return };
        self.note = some(note).or_else(|| self.note.take());
        let before = self.talk.turn(turn).judgement;
        self.talk.turn_mut(turn).judgement.good = Some(good);
        let verdict = Verdict::Thumb { answer: self.answer_of(turn), good };
        self.feedback(turn, before, verdict);
        self.written(if good { "good" } else { "bad" });
    }

    pub(super) fn rate(&mut self, arguments: &str) {
        let (number, note) = arguments.split_once(char::is_whitespace).unwrap_or((arguments, ""));
        let Some(rating) = number.parse::<u8>().ok().filter(|rating| (1..=5).contains(rating)) else {
            return self.error("give a number from 1 to 5: /rate 4");
        };
        let Some(turn) = self.judged() else { return };
        self.note = some(note).or_else(|| self.note.take());
        let before = self.talk.turn(turn).judgement;
        self.talk.turn_mut(turn).judgement.rating = Some(rating);
        let verdict = Verdict::Rating { answer: self.answer_of(turn), rating };
        self.feedback(turn, before, verdict);
        self.written(&format!("rated {rating} of 5"));
    }

    /// Prefers one of the answers to the same message, in the order in which they are shown.
    pub(super) fn prefer(&mut self, arguments: &str) {
        if self.refuse_while_busy() {
            return;
        }
        let (group, source, blind) = self.choices();
        if group.len() < 2 {
            return self.error("there is only one answer; /regen or /compare make others");
        }
        let choice = arguments.to_ascii_lowercase();
        if choice == "tie" {
            return self.tie(&group, blind);
        }
        let place = match choice.as_bytes() {
            [letter @ b'a'..=b'z'] => Some(usize::from(letter - b'a')),
            // Versions of an answer are shown with numbers.
            [digit @ b'1'..=b'9'] => Some(usize::from(digit - b'1')),
            _ => None,
        };
        let Some(&chosen) = place.and_then(|place| group.get(place)) else {
            let last = char::from(b'a' + (group.len() - 1).min(25) as u8);
            return self.error(format!("give a letter from a to {last}, or tie: /prefer a"));
        };
        if self.talk.turn(chosen).text.trim().is_empty() {
            return self.error("this answer is empty");
        }

        // Whoever prefers one answer prefers it to each of the others.
        let others: Vec<TurnId> = group.iter().copied().filter(|&other| other != chosen).collect();
        let pairs =
            others.into_iter().filter(|&other| self.judge_pair((chosen, other), source, blind)).count();
        self.talk.turn_mut(chosen).judgement.preferred |= pairs > 0;
        self.choose(chosen);
        if pairs == 0 {
            return self.error(
                "no preference is written: the answers are the same, empty, or follow other instructions",
            );
        }
        let name = self.model_name(chosen);
        self.written(&format!("preferred {choice} ({name})"));
    }

    /// Writes that `chosen` is better than `rejected`. Two answers make a pair only if both are there,
    /// differ, and were asked for with the same instructions: the row has one prompt. Returns whether they
    /// do. The caller marks `chosen` when all its pairs are written: each keeps what was thought of it
    /// before.
    fn judge_pair(&mut self, (chosen, rejected): (TurnId, TurnId), source: PairSource, blind: bool) -> bool {
        let [better, worse] = [chosen, rejected].map(|turn| self.answer_of(turn));
        let is_pair = better.text != worse.text
            && !worse.text.trim().is_empty()
            && self.talk.system_of(Some(chosen)) == self.talk.system_of(Some(rejected));
        if is_pair {
            self.talk.turn_mut(rejected).judgement.preferred = false;
            let before = self.talk.turn(chosen).judgement;
            self.feedback(chosen, before, Verdict::Pair { chosen: better, rejected: worse, source, blind });
        }
        is_pair
    }

    /// The answers to choose from, how they came about, and whether their models are hidden.
    fn choices(&self) -> (Vec<TurnId>, PairSource, bool) {
        if let Some(compare) = self.compare.as_ref().filter(|compare| !compare.group.is_empty()) {
            return (compare.group.clone(), PairSource::Compare, compare.blind);
        }
        let siblings = self.answer().map(|answer| self.talk.siblings(answer)).unwrap_or_default();
        // A blind comparison that was not decided before its session was closed.
        if siblings.iter().all(|&answer| self.talk.is_blind(answer)) {
            return (siblings, PairSource::Compare, true);
        }
        (siblings, PairSource::Sibling, false)
    }

    fn tie(&mut self, group: &[TurnId], blind: bool) {
        let first = group[0];
        let system = self.talk.system_of(Some(first)).map(str::to_owned);
        let others: Vec<TurnId> = group[1..]
            .iter()
            .copied()
            .filter(|&other| self.talk.system_of(Some(other)) == system.as_deref())
            .collect();
        for &other in &others {
            let answers = [self.answer_of(first), self.answer_of(other)];
            let before = self.talk.turn(first).judgement;
            self.feedback(first, before, Verdict::Tie { answers, blind });
        }
        // Versions of an answer that are equally good: the one on the screen stays there.
        if self.is_waiting_for_choice() {
            self.choose(first);
        }
        self.reveal(first);
        if others.is_empty() {
            return self.error("no tie is written: the answers follow other instructions");
        }
        self.written("a tie");
    }

    /// Shows which models wrote an answer and its siblings.
    fn reveal(&mut self, answer: TurnId) {
        let siblings = self.talk.siblings(answer);
        self.talk.set_blind(&siblings, false);
    }

    /// Goes on from an answer of a comparison.
    fn choose(&mut self, answer: TurnId) {
        self.talk.go_below(answer);
        self.selected = None;
        self.reveal(answer);
        if let Some(compare) = &mut self.compare {
            compare.group.clear();
        }
    }

    /// Whoever goes on without a choice goes on from the first answer that is there.
    pub(super) fn settle_comparison(&mut self) {
        let group = self.compare.as_ref().map(|compare| compare.group.clone()).unwrap_or_default();
        if let Some(&first) = group.iter().find(|&&id| !self.talk.turn(id).text.is_empty()).or(group.first())
        {
            self.choose(first);
            self.done("no answer was preferred: the conversation goes on from answer a");
        }
    }

    /// The user rewrote an answer: the new text is better than the old one.
    pub(super) fn judge_edit(&mut self, old: TurnId, new: TurnId) {
        // Who wrote it is no secret, even if the model of the old one still is.
        let asked = self.talk.turn(old).asked.clone().map(|asked| Asked { blind: false, ..asked });
        let turn = self.talk.turn_mut(new);
        turn.finish = Some("stop".to_owned());
        // It answers the same message under the same instructions.
        turn.asked = asked;

        // The input shows control characters, and ends without spaces: that alone is no other answer.
        let is_other = self.talk.turn(new).text != text::sanitize(&self.talk.turn(old).text).trim_end();
        if is_other && self.judge_pair((new, old), PairSource::Edit, false) {
            self.talk.turn_mut(new).judgement.preferred = true;
            self.written("your version is preferred");
        }
    }

    pub(super) fn set_note(&mut self, text: &str) {
        self.note = some(text);
        self.done(if self.note.is_some() { "the next judgement has this note" } else { "no note" });
    }

    pub(super) fn set_tags(&mut self, text: &str) {
        self.tags = text.split_whitespace().map(str::to_owned).collect();
        self.done(format!("judgements have the tags: {}", if text.is_empty() { "none" } else { text }));
    }

    /// Asks a reward model for the scores of the answer, or of all answers of a comparison.
    pub(super) fn score(&mut self, model: &str) {
        let group =
            if self.is_waiting_for_choice() { self.choices().0 } else { self.judged().into_iter().collect() };
        let model = some(model);
        for turn in group {
            let messages = self.talk.messages_to(Some(turn));
            let session = self.id.clone();
            self.effects.push(Effect::Score { session, turn, messages, model: model.clone() });
        }
    }

    pub(super) fn tokens(&mut self, against: Against) {
        let Some(turn) = self.judged() else { return };
        let slot = self.slot_of(turn);
        if self.slots[slot].is_remote {
            let name = self.slots[slot].name();
            return self.error(format!(
                "{name} is behind an endpoint: only a model on this machine tells the probabilities of its tokens"
            ));
        }
        let messages = self.talk.messages_to(Some(turn));
        let ends = self.talk.turn(turn).finish.as_deref() == Some("stop");
        self.effects.push(Effect::Tokens { slot, messages, against, ends });
    }

    fn written(&mut self, what: &str) {
        self.note = None;
        // The folder is told once.
        let place = self.feedback_folder.take().map(|folder| format!("; it is written to {folder}"));
        let place = place.unwrap_or_default();
        self.tell(Notice::done(format!("{what}{place}")));
        self.save();
    }

    /// The name of the model that wrote an answer, as it is shown.
    pub(super) fn model_name(&self, turn: TurnId) -> String {
        if self.talk.is_blind(turn) {
            return "name hidden".to_owned();
        }
        let turn = self.talk.turn(turn);
        let slot = self.slots.iter().find(|slot| Some(&slot.path) == turn.model.as_ref());
        match (slot, &turn.model, turn.role) {
            (Some(slot), _, _) => slot.name(),
            (None, Some(model), _) => text::single_line(model),
            (None, None, Role::Assistant) => "edited".to_owned(),
            (None, None, _) => "you".to_owned(),
        }
    }
}
