//! The error type of this crate: what is wrong with the settings of rewards and environments. Messages name
//! the setting and end with the fix. Why a single reply has no score is a [`crate::ScoreError`].

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value that a key does not accept.
    #[error("`{place}` {problem}; {fix}")]
    Setting {
        /// The key with its table, such as `reward[2].pattern`.
        place: String,
        /// What is wrong.
        problem: String,
        /// What to write instead.
        fix: String,
    },
    /// Two rewards with one name.
    #[error(
        "`reward[{first}]` and `reward[{second}]` are both named {name:?}; give one of them another `name`"
    )]
    SameName {
        /// The index of the first.
        first: usize,
        /// The index of the second.
        second: usize,
        /// The name of both.
        name: String,
    },
    /// Rewards that add up to nothing.
    #[error("every `reward.weight` is 0, so no reply is better than another; give one of them a weight")]
    NoWeight,
    /// A reward that runs programs, without anything to run them in.
    #[error(
        "the reward {name:?} runs programs that the model writes; allow it with allow_code_execution, or \
         remove it"
    )]
    NoSandbox {
        /// The name of the reward.
        name: String,
    },
}

/// What is wrong with one key of a reward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// The key, such as `pattern` or `tags[1]`.
    pub(crate) key: String,
    /// What is wrong.
    pub(crate) problem: String,
    /// What to write instead.
    pub(crate) fix: String,
}

impl Wrong {
    pub(crate) fn new(key: impl Into<String>, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into(), fix: fix.into() }
    }

    /// The error about the key of `table`, such as `reward[2]`.
    pub(crate) fn of(self, table: &str) -> Error {
        Error::Setting { place: format!("{table}.{}", self.key), problem: self.problem, fix: self.fix }
    }
}
