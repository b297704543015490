//! The report of a reward model: how often it prefers the better reply, how far apart its scores are, how
//! well they are calibrated, whether they follow length, and what picking or training by them gains.
//!
//! [`data`] reads the rows. Somebody scores each reply; this module does not know how. From the scores,
//! [`RewardModelReport::new`] makes the numbers: those of pairs ([`PairReport`]), of `RewardBench`
//! ([`RewardBench`], [`RewardBench2`]), of best of n ([`BestOfN`]) and of a run that trained against the
//! model ([`OverOptimization`]). They come as JSON (the serde form), Markdown, an HTML page, and tables
//! for a terminal. Nothing in them depends on the time or the machine.

mod best_of_n;
pub mod data;
mod entry;
mod hhh;
mod length;
mod numbers;
mod over_optimization;
mod page;
mod pairs;
mod reward_bench;
mod reward_bench_2;
mod scored;
mod tables;

pub use best_of_n::{BestOfN, BestOfNPoint};
pub use length::LengthReport;
pub use numbers::{FORMAT, FileReport, ModelInfo, RewardModelReport};
pub use over_optimization::{CurvePoint, GoldValue, OverOptimization, Peak, over_optimization, read_gold};
pub use page::{Notes, html};
pub use pairs::{GroupReport, PairReport, Spread};
pub use reward_bench::{RewardBench, Section};
pub use reward_bench_2::{RewardBench2, SubsetScore, Ties};
pub use scored::ScoredFile;
use scored::ScoredPair;
pub use tables::{markdown, tables};

#[cfg(test)]
mod tests;
