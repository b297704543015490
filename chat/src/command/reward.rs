//! `reward`: the score that a reward model gives to each conversation, read at its last token.

use models::scalar_model::ScalarModel;
use serde::Serialize;

use crate::args::BatchArgs;
use crate::input::{self, Given};
use crate::output;
use crate::session::Session;

/// One row of output.
#[derive(Serialize)]
struct Score {
    score: f32,
}

/// Writes the score of each row.
pub(crate) fn run(arguments: &BatchArgs) -> anyhow::Result<()> {
    if let Some(output) = &arguments.output {
        output::claim_file(output, arguments.force, &[&arguments.input])?;
    }
    let inputs = input::read(&arguments.input, "messages, text, ids")?;
    let session = Session::scalar_model(&arguments.model)?;
    let (vocab_size, longest) = (session.model.config().vocab_size(), session.model.config().max_positions());
    let mut rows = Vec::with_capacity(inputs.len());
    for input in inputs {
        let tokenizer = &session.tokenizer;
        let ids = match input.given {
            Given::Ids(ids) => Ok(ids),
            Given::Text(text) => tokenizer.encode(&text, true),
            Given::Messages(messages) => tokenizer.encode_scored(&messages),
        };
        let ids = ids.map_err(|error| error.in_row(&input.at))?;
        input::check_ids(&ids, &input.at, vocab_size, longest)?;
        rows.push(ids);
    }
    let mut scores = Vec::with_capacity(rows.len());
    for chunk in rows.chunks(arguments.batch_size.get()) {
        let chunk = score(&session.model, chunk)?;
        if let Some(index) = chunk.iter().position(|row| !row.score.is_finite()) {
            return Err(models::Error::LogitsNotFinite { index: scores.len() + index }.into());
        }
        scores.extend(chunk);
    }
    input::write(&scores, arguments.output.as_deref())
}

fn score(model: &ScalarModel, rows: &[Vec<i64>]) -> anyhow::Result<Vec<Score>> {
    let lines: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
    let scores = rlhf::reward::score(model, &lines)?;
    Ok(Vec::<f32>::try_from(&scores)?.into_iter().map(|score| Score { score }).collect())
}
