//! The replies of a rollout as the formulas without gradients see them: flat vectors without padding, one
//! reply after another. They have the tokens that the policy wrote and no others. This module does not know
//! what stands between them.

use std::ops::Range;

use crate::{Error, check};

/// The replies of a rollout: B replies with N tokens that the policy wrote.
#[derive(Clone, Copy, Debug)]
pub struct Replies<'a> {
    /// Number of tokens of each reply, `[B]`.
    pub lengths: &'a [usize],
    /// The number of the group of each reply, `[B]`. Replies to one prompt have one number. They may stand in
    /// any order, and groups may differ in size.
    pub groups: &'a [usize],
    /// The replies without a score, `[B]`. They are in no baseline and in no statistic, and their advantage
    /// is 0.
    pub excluded: &'a [bool],
}

impl Replies<'_> {
    /// Refuses vectors of different lengths.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let replies = self.lengths.len();
        check::length("the groups of the replies", self.groups.len(), replies)?;
        check::length("the excluded replies", self.excluded.len(), replies)
    }

    /// The range of each reply in a vector over all tokens.
    pub(crate) fn ranges(&self) -> Vec<Range<usize>> {
        ranges(self.lengths)
    }
}

/// The range of each reply in a flat vector over the tokens (or slots) of all replies; `lengths` `[B]`.
pub(crate) fn ranges(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut start = 0;
    lengths
        .iter()
        .map(|&length| {
            let range = start..start + length;
            start = range.end;
            range
        })
        .collect()
}
