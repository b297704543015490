//! The bytes that a rank sends in a collective, and the seconds that it takes, over a link with latency `a`
//! and bandwidth `b`. `P` ranks have `n` bytes each.
//!
//! | collective | bytes that a rank sends | messages one after the other |
//! |---|---|---|
//! | all-reduce | `2 n (P - 1) / P` | `2 (P - 1)` |
//! | reduce-scatter | `n (P - 1) / P` | `P - 1` |
//! | all-gather of `n` on each rank | `n (P - 1)` | `P - 1` |
//! | all-to-all | `n (P - 1) / P` | `P - 1` |
//! | send | `n` | `1` |
//!
//! These are the rings of Thakur et al. 2005 (doi 10.1177/1094342005051521), which are optimal in bytes. The
//! time is `messages * a + bytes / b`. `parallel::comm` counts the same bytes.

use serde::Serialize;

use crate::hardware::Link;

/// What ranks exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// The sum over all ranks, on every rank.
    AllReduce,
    /// The sum over all ranks, of which each rank gets a part.
    ReduceScatter,
    /// The parts of all ranks, on every rank.
    AllGather,
    /// A part of each rank for each rank.
    AllToAll,
    /// A message from one rank to another.
    Send,
}

impl Collective {
    /// The bytes that each of `ranks` ranks sends if it has `bytes`.
    pub fn bytes_sent(self, ranks: usize, bytes: f64) -> f64 {
        let (ranks, others) = (ranks as f64, ranks as f64 - 1.0);
        match self {
            Self::AllReduce => 2.0 * bytes * others / ranks,
            Self::ReduceScatter | Self::AllToAll => bytes * others / ranks,
            Self::AllGather => bytes * others,
            Self::Send => bytes,
        }
    }

    /// The messages that a rank sends one after the other.
    pub fn messages(self, ranks: usize) -> usize {
        match self {
            Self::AllReduce => 2 * (ranks - 1),
            Self::ReduceScatter | Self::AllGather | Self::AllToAll => ranks - 1,
            Self::Send => 1,
        }
    }

    /// The seconds over a link.
    pub fn seconds(self, ranks: usize, bytes: f64, link: &Link) -> f64 {
        self.messages(ranks) as f64 * link.latency + self.bytes_sent(ranks, bytes) / link.bandwidth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_messages_are_those_of_a_ring() {
        // Four ranks with 1000 bytes each. An all-reduce is a reduce-scatter and an all-gather of the parts.
        let sent = |collective: Collective| (collective.bytes_sent(4, 1000.0), collective.messages(4));
        assert_eq!(sent(Collective::ReduceScatter), (750.0, 3));
        assert_eq!(Collective::AllGather.bytes_sent(4, 250.0), 750.0);
        assert_eq!(sent(Collective::AllReduce), (1500.0, 6));
        assert_eq!(sent(Collective::AllToAll), (750.0, 3));
        assert_eq!(sent(Collective::Send), (1000.0, 1));

        let link = Link { ranks: 4, latency: 0.5, bandwidth: 100.0 };
        assert_eq!(Collective::AllReduce.seconds(4, 1000.0, &link), 6.0 * 0.5 + 15.0);
    }

    #[test]
    fn a_rank_alone_sends_nothing() {
        let link = Link { ranks: 2, latency: 1.0, bandwidth: 1.0 };
        for collective in
            [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::AllToAll]
        {
            assert_eq!(collective.seconds(1, 1000.0, &link), 0.0);
        }
    }
}
