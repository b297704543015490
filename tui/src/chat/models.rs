//! Which model answers: models and adapters that are loaded, switched and compared.

use super::event::Effect;
use super::overlay::Overlay;
use super::{ChatScreen, Compare, Slot, SlotState};

impl ChatScreen {
    pub(super) fn model(&mut self, model: &str) {
        if model.is_empty() {
            let state = |slot: &Slot| match &slot.state {
                SlotState::Loading(note) => note.clone(),
                SlotState::Ready { detail, .. } => detail.clone(),
                SlotState::Failed => "could not be loaded".to_owned(),
            };
            let line = |(index, slot): (usize, &Slot)| {
                let mark = if index == self.current { ">" } else { " " };
                format!("{mark} {}  {}", slot.path, state(slot))
            };
            let lines: Vec<String> = self.slots.iter().enumerate().map(line).collect();
            self.overlay = Some(Overlay::text("models", &lines.join("\n")));
        } else if !self.refuse_while_busy() {
            let slot = self.slot(model);
            self.answer_alone(slot);
        }
    }

    /// Lists the adapters of the first model, or answers with one of them or, for `off`, without one.
    pub(super) fn adapter(&mut self, name: &str) {
        let choices = |(index, slot): (usize, &Slot)| match &slot.adapter {
            Some(name) => Some((index, name.clone())),
            None => (index == 0).then(|| (index, "off".to_owned())),
        };
        let choices: Vec<(usize, String)> = self.slots.iter().enumerate().filter_map(choices).collect();
        if choices.len() == 1 {
            return self.error("there is no adapter here: start the chat with --model DIR --adapter DIR");
        }
        if name.is_empty() {
            let line = |(index, name): &(usize, String)| {
                let mark = if *index == self.current && self.compare.is_none() { ">" } else { " " };
                format!("{mark} {name}  {}", self.slots[*index].path)
            };
            let lines: Vec<String> = choices.iter().map(line).collect();
            self.overlay = Some(Overlay::text("adapters: /adapter NAME, or off", &lines.join("\n")));
        } else if let Some(&(slot, _)) = choices.iter().find(|(_, choice)| choice == name) {
            if !self.refuse_while_busy() {
                self.load_if_failed(slot);
                self.answer_alone(slot);
            }
        } else {
            let names: Vec<&str> = choices.iter().map(|(_, name)| name.as_str()).collect();
            self.error(format!("there is no adapter {name}: /adapter takes {}", names.join(", ")));
        }
    }

    pub(super) fn compare(&mut self, arguments: &str) {
        if self.refuse_while_busy() {
            return;
        }
        self.settle_comparison();
        if arguments == "off" {
            self.compare = None;
            return self.done(format!("from now on {} answers alone", self.slots[self.current].name()));
        }
        let (blind, models): (Vec<&str>, Vec<&str>) =
            arguments.split_whitespace().partition(|word| *word == "blind" || *word == "--blind");
        let mut slots: Vec<usize> = models.iter().map(|model| self.slot(model)).collect();
        if slots.is_empty() {
            let works = |&slot: &usize| !matches!(self.slots[slot].state, SlotState::Failed);
            slots = (0..self.slots.len()).filter(works).collect();
        } else if !slots.contains(&self.current) && slots.len() == 1 {
            slots.insert(0, self.current);
        }
        slots.dedup();
        if slots.len() < 2 && models.len() > 1 {
            return self.error("this is the same model twice: name two different ones");
        }
        if slots.len() < 2 {
            return self.error("name the models: /compare DIR DIR, with `blind` to hide which is which");
        }
        self.done(format!(
            "{} models answer each message; /prefer a, b or tie says which is best",
            slots.len()
        ));
        self.compare = Some(Compare { slots, blind: !blind.is_empty(), group: Vec::new() });
    }

    /// Lets one model answer from now on.
    fn answer_alone(&mut self, slot: usize) {
        self.settle_comparison();
        self.compare = None;
        self.current = slot;
    }

    /// The slot of a model. One that is not loaded yet is loaded into a new slot.
    fn slot(&mut self, model: &str) -> usize {
        let known = |slot: &Slot| slot.path == model || slot.name() == model;
        if let Some(slot) = self.slots.iter().position(known) {
            self.load_if_failed(slot);
            return slot;
        }
        let is_remote = (self.is_endpoint)(model);
        self.slots.push(Slot { path: model.to_owned(), adapter: None, is_remote, state: SlotState::Failed });
        self.load_if_failed(self.slots.len() - 1);
        self.slots.len() - 1
    }

    fn load_if_failed(&mut self, slot: usize) {
        if matches!(self.slots[slot].state, SlotState::Failed) {
            self.slots[slot].state = SlotState::Loading("waiting".to_owned());
            self.effects.push(Effect::Load { slot, model: self.slots[slot].path.clone() });
        }
    }
}
