//! What a plan cannot be made of.

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Ranks that the hardware does not join.
    #[error(
        "the hardware has no link that joins {ranks} ranks (it joins at most {most}): add a `[[link]]` with \
         `ranks = {ranks}` to its file"
    )]
    NoLink {
        /// The ranks that would have to be joined.
        ranks: usize,
        /// The ranks that are.
        most: usize,
    },
    /// A slow rank that is not there.
    #[error(
        "`straggler.rank` of the hardware file is {rank}, and the number of ranks is {ranks}, from rank 0 on: correct it, \
         or plan with more processes (--nproc)"
    )]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A budget without a place where chunks go that do not fit into it.
    #[error(
        "the hardware has no `[{section}]`, to which a budget ([gemini] device_memory) moves chunks: add it to its file, \
         or leave the budget out"
    )]
    NoOuterTier {
        /// The section of the file.
        section: &'static str,
    },
}

/// A mistake in a hardware file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HardwareError {
    /// It is no TOML, or has other keys or types.
    #[error("line {line}: {message}")]
    Toml {
        /// The line, from 1 on.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// An empty list, or one that is not in order.
    #[error("`{list}` has no entry, or its entries do not increase by `{key}`")]
    Order {
        /// The list.
        list: &'static str,
        /// The key that orders it.
        key: &'static str,
    },
    /// Products of many rows, or of none, among those of few rows.
    #[error("`device.decode.rows` is {rows}: give from 1 to {most}")]
    NotFewRows {
        /// The rows.
        rows: usize,
        /// The most that are few.
        most: usize,
    },
    /// A program that leaves no memory for a model.
    #[error("`device.program` is {program} of {memory} bytes of `device.memory`: no model fits beside it")]
    NoMemoryLeft {
        /// The bytes of the program.
        program: u64,
        /// The bytes of the device.
        memory: u64,
    },
    /// Host memory of a processor, whose own memory it is, or hardly any.
    #[error(
        "`host` is the memory beside a GPU, at least {least} bytes: leave it out of the file of a processor"
    )]
    Host {
        /// The least bytes that are believed.
        least: u64,
    },
    /// A straggler that is listed twice.
    #[error("`straggler` has two entries of rank {rank}: leave one out")]
    SameStraggler {
        /// The rank.
        rank: usize,
    },
    /// A link of fewer than two ranks.
    #[error("`link.ranks` is {ranks}, and a link joins at least 2 ranks")]
    LinkOfOne {
        /// The ranks.
        ranks: usize,
    },
    /// A value that no machine has.
    #[error("`{key}` is {value:e}, which is not between {least:e} and {most:e}")]
    Impossible {
        /// The key.
        key: &'static str,
        /// Its value.
        value: f64,
        /// The least value that is believed.
        least: f64,
        /// The largest.
        most: f64,
    },
}
