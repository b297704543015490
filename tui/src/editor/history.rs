//! The messages sent earlier: recall with Up and Down, and search with Ctrl-R.
//!
//! Recall begins at the newest message and ends at the draft that was on the screen before it began. This
//! module does not know the file in which the messages are kept.

use std::collections::VecDeque;

/// How many messages are kept.
const ENTRIES: usize = 1000;

/// Messages sent earlier, newest last, with recall and search.
#[derive(Debug, Default)]
pub struct History {
    entries: VecDeque<String>,
    recall: Option<Recall>,
}

/// A recall in progress.
#[derive(Debug)]
struct Recall {
    /// The index of the message on the screen.
    index: usize,
    draft: String,
}

impl History {
    /// Takes over messages, newest last, as [`History::add`] does.
    pub fn new(entries: Vec<String>) -> Self {
        let mut history = Self::default();
        for entry in entries {
            history.add(&entry);
        }
        history
    }

    /// Adds a message and ends the recall. Nothing is added if the message is empty or equals the newest one.
    /// Of more than 1000 messages the oldest is dropped.
    pub fn add(&mut self, text: &str) {
        self.reset();
        if text.is_empty() || self.entries.back().is_some_and(|newest| newest == text) {
            return;
        }
        if self.entries.len() == ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back(text.to_owned());
    }

    /// The message before the recalled one, or `None` at the oldest. The first call keeps `draft`.
    pub fn older(&mut self, draft: &str) -> Option<String> {
        let index = self.recall.as_ref().map_or(self.entries.len(), |recall| recall.index).checked_sub(1)?;
        match &mut self.recall {
            Some(recall) => recall.index = index,
            none => *none = Some(Recall { index, draft: draft.to_owned() }),
        }
        self.entries.get(index).cloned()
    }

    /// The message after the recalled one, then the draft, then `None`.
    pub fn newer(&mut self) -> Option<String> {
        let recall = self.recall.as_mut()?;
        recall.index += 1;
        match self.entries.get(recall.index) {
            Some(entry) => Some(entry.clone()),
            None => self.recall.take().map(|recall| recall.draft),
        }
    }

    /// Ends the recall and forgets the draft.
    pub fn reset(&mut self) {
        self.recall = None;
    }

    /// The newest entry before the `skip` newest matches that contains `query`. Case does not matter.
    pub fn search(&self, query: &str, skip: usize) -> Option<&str> {
        let query = query.to_lowercase();
        self.entries
            .iter()
            .rev()
            .filter(|entry| entry.to_lowercase().contains(&query))
            .nth(skip)
            .map(String::as_str)
    }

    /// All messages, newest last.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(entries: &[&str]) -> History {
        History::new(entries.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn recall_goes_to_the_oldest_and_back_to_the_draft() {
        let mut history = history(&["one", "two"]);
        assert_eq!(history.newer(), None);
        assert_eq!(history.older("dra").as_deref(), Some("two"));
        assert_eq!(history.older("two").as_deref(), Some("one"));
        assert_eq!(history.older("one"), None);
        assert_eq!(history.newer().as_deref(), Some("two"));
        assert_eq!(history.newer().as_deref(), Some("dra"));
        assert_eq!(history.newer(), None);
        assert_eq!(History::default().older("draft"), None);
    }

    #[test]
    fn a_sent_message_ends_the_recall() {
        let mut history = history(&["one", "two"]);
        history.older("draft");
        history.add("three");
        assert_eq!(history.newer(), None);
        assert_eq!(history.older("").as_deref(), Some("three"));
    }

    #[test]
    fn the_newest_is_not_repeated_and_the_oldest_of_too_many_is_dropped() {
        let mut history = history(&["a", "a", "", "b", "a"]);
        assert_eq!(history.entries().collect::<Vec<_>>(), ["a", "b", "a"]);
        for number in 0..999 {
            history.add(&number.to_string());
        }
        assert_eq!(history.entries().count(), 1000);
        assert_eq!(history.entries().next(), Some("a"));
        history.add("last");
        assert_eq!(history.entries().next(), Some("0"));
    }

    #[test]
    fn search_finds_the_newest_first_whatever_the_case() {
        let history = history(&["Ärger", "other", "ärgerlich"]);
        assert_eq!(history.search("ÄRGER", 0), Some("ärgerlich"));
        assert_eq!(history.search("ärger", 1), Some("Ärger"));
        assert_eq!(history.search("ärger", 2), None);
    }
}
