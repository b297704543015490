//! `reward`: computes the reward model's score of each conversation, or of both answers of a pair. The score
//! is read at the last token.

use datasets::Conversation;
use inference::session::Session;
use models::scalar_model::ScalarModel;
use serde::Serialize;

use crate::adapters;
use crate::args::BatchArgs;
use crate::input::{self, Input, InputKind, RowInput};
use crate::output;
use crate::session;

/// One output row.
#[derive(Serialize)]
#[serde(untagged)]
enum Line {
    One { score: f32 },
    Pair { chosen_score: f32, rejected_score: f32 },
}

/// Writes the score of each row.
pub(crate) fn run(arguments: &BatchArgs) -> anyhow::Result<()> {
    if let Some(output) = &arguments.output {
        output::check_output_file(output, arguments.force, &[&arguments.input])?;
    }
    let inputs = input::read(&arguments.input, InputKind::Answer)?;
    let source = adapters::one_model(arguments.model.source(), arguments.adapter.as_deref())?;
    let session = session::scalar_model(&source)?;
    let (vocab_size, longest) = (session.model.config().vocab_size(), session.model.config().max_positions());
    let rows = input::tokens(&inputs, |given| token_ids(&session, given))?;
    for (at, ids) in &rows {
        input::check_ids(ids, at, vocab_size, longest)?;
    }

    let mut scores = Vec::with_capacity(rows.len());
    for chunk in rows.chunks(arguments.batch_size.get()) {
        let ids: Vec<&[i64]> = chunk.iter().map(|(_, ids)| ids.as_slice()).collect();
        let found = Vec::<f32>::try_from(&rlhf::reward::score(&session.model, &ids)?)?;
        for ((at, _), score) in chunk.iter().zip(found) {
            input::check_finite(at, [&score])?;
            scores.push(score);
        }
    }

    let mut scores = scores.into_iter();
    let mut next = || scores.next().expect("every row is scored");
    let line = |input: &Input| match input.value {
        RowInput::Pair { .. } => Line::Pair { chosen_score: next(), rejected_score: next() },
        _ => Line::One { score: next() },
    };
    input::write(&inputs.iter().map(line).collect::<Vec<_>>(), arguments.output.as_deref(), arguments.force)
}

fn token_ids(session: &Session<ScalarModel>, given: &RowInput) -> Result<Vec<i64>, datasets::Error> {
    match given {
        RowInput::Ids(ids) => Ok(ids.clone()),
        RowInput::Text(text) => session.tokenizer()?.encode(text, true),
        RowInput::Messages { messages, tools } => {
            session.tokenizer()?.encode_scored(Conversation::with_tools(messages, tools.as_ref()))
        }
        RowInput::Pair { .. } => unreachable!("a pair is two conversations by now"),
    }
}
