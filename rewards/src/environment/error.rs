//! Why an episode cannot go on.

/// Why an episode cannot go on. Texts from outside are short and harmless for a terminal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The program or the server gave no answer.
    #[error("the environment gave no answer: {reason}")]
    Failed {
        /// What happened, and the fix.
        reason: String,
    },
    /// The program or the server says itself that it cannot go on with the episode.
    #[error("the environment reports \"{reason}\"")]
    Reported {
        /// Why, quoted.
        reason: String,
    },
    /// The answer to a turn is not one that the policy can read.
    #[error("the environment's answer to a turn {problem}; correct the environment")]
    BadStep {
        /// What is wrong with it.
        problem: String,
    },
    /// An earlier failure has taken what the environment knew of the episode.
    #[error("the environment has lost the episode {episode} in an earlier failure")]
    Lost {
        /// The number of the episode.
        episode: u64,
    },
    /// The episode was not begun, or it has ended.
    #[error("the episode {episode} has not begun, or has ended; call `reset` before `step`")]
    UnknownEpisode {
        /// The number of the episode.
        episode: u64,
    },
    /// An episode was begun twice.
    #[error("the episode {episode} has begun already; call `end` first, or give it another number")]
    HasBegun {
        /// The number of the episode.
        episode: u64,
    },
}

impl EnvironmentError {
    /// A short name, under which episodes that failed are counted.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Failed { .. } => "failed",
            Self::Reported { .. } => "reported",
            Self::BadStep { .. } => "bad_step",
            Self::Lost { .. } => "lost",
            Self::UnknownEpisode { .. } => "unknown_episode",
            Self::HasBegun { .. } => "has_begun",
        }
    }
}
