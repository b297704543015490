//! The most tokens of a prompt with its reply, and what sets this limit.

use std::fmt;

/// The most tokens of a prompt with its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContextLength {
    pub(crate) tokens: usize,
    /// Whether the KV cache sets the limit, because it is smaller than the context of the model.
    pub(crate) is_of_cache: bool,
}

impl fmt::Display for ContextLength {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tokens, is_of_cache } = self;
        match is_of_cache {
            false => write!(formatter, "this model takes at most {tokens}"),
            true => {
                write!(formatter, "the KV cache of this server (--kv-cache-tokens) takes at most {tokens}")
            }
        }
    }
}
