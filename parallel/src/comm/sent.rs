//! What a rank has sent, by process group and collective.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The collectives that exchange no tensors, but numbers and plain data.
pub const NUMBERS: &str = "numbers";

/// What a rank has sent in collectives of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The number of collectives.
    pub calls: u64,
    /// The bytes that it has sent in them.
    pub bytes: u64,
}

/// What a rank has sent, by the name of the group and the collective.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SentByGroup(BTreeMap<String, BTreeMap<String, Sent>>);

impl SentByGroup {
    /// Adds what was sent in a collective of a group.
    pub fn add(&mut self, group: &str, collective: &str, sent: Sent) {
        let of_group = self.0.entry(group.to_owned()).or_default();
        let counted = of_group.entry(collective.to_owned()).or_default();
        counted.calls += sent.calls;
        counted.bytes += sent.bytes;
    }

    /// What was sent after `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut after = Self::default();
        for (group, collectives) in &self.0 {
            for (collective, sent) in collectives {
                let known = before.0.get(group).and_then(|known| known.get(collective));
                let known = known.copied().unwrap_or_default();
                if sent.calls > known.calls {
                    let new = Sent { calls: sent.calls - known.calls, bytes: sent.bytes - known.bytes };
                    after.add(group, collective, new);
                }
            }
        }
        after
    }

    /// The bytes of all groups.
    pub fn bytes(&self) -> u64 {
        self.0.values().flat_map(BTreeMap::values).map(|sent| sent.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_later_is_the_difference_without_what_did_not_change() {
        let mut sent = SentByGroup::default();
        sent.add("tensor", "all_reduce", Sent { calls: 2, bytes: 10 });
        sent.add("data", NUMBERS, Sent { calls: 1, bytes: 8 });
        let before = sent.clone();
        sent.add("tensor", "all_reduce", Sent { calls: 1, bytes: 5 });
        sent.add("tensor", "all_gather", Sent { calls: 1, bytes: 0 });
        let mut wanted = SentByGroup::default();
        wanted.add("tensor", "all_reduce", Sent { calls: 1, bytes: 5 });
        wanted.add("tensor", "all_gather", Sent { calls: 1, bytes: 0 });
        assert_eq!(sent.since(&before), wanted);
        assert_eq!((sent.bytes(), sent.since(&before).bytes()), (23, 5));
    }
}
