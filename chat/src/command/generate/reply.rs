//! A reply as `generate` writes it: an output row, or a part of one.

use inference::generate::Completion;
use inference::request::FinishReason;
use inference::session::Session;
use models::causal_lm::CausalLm;
use serde::Serialize;

/// One reply.
#[derive(Serialize)]
pub(super) struct Reply {
    ids: Vec<i64>,
    /// The decoded text. Absent without a tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    finish_reason: FinishReason,
}

impl Reply {
    /// The replies of some completions.
    pub(super) fn decode_all(
        session: &Session<CausalLm>,
        completions: Vec<Completion>,
    ) -> Result<Vec<Self>, datasets::Error> {
        completions.into_iter().map(|completion| Self::decode(session, completion)).collect()
    }

    fn decode(session: &Session<CausalLm>, completion: Completion) -> Result<Self, datasets::Error> {
        let text = session.text(&completion.ids)?;
        Ok(Self { ids: completion.ids, text, finish_reason: completion.finish_reason })
    }
}
