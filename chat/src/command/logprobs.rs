//! `logprobs`: computes `log p(ids[i] | ids[..i])` for every token of the given texts, conversations and
//! pairs.

use datasets::{Conversation, Role};
use inference::session::Session;
use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::head;
use parallel::{Segmented, upload};
use serde::Serialize;
use tch::no_grad;

use crate::adapters;
use crate::args::BatchArgs;
use crate::input::{self, Input, InputKind, RowInput};
use crate::output;
use crate::session;

/// Token ids and their log-probabilities.
#[derive(Serialize)]
struct Scored {
    ids: Vec<i64>,
    /// One value per token of `ids`. The first is `None`, because no token precedes it.
    logprobs: Vec<Option<f32>>,
}

/// One output row.
#[derive(Serialize)]
#[serde(untagged)]
enum Line {
    One(Scored),
    Pair { chosen: Scored, rejected: Scored },
}

/// Writes the log-probabilities of each row.
pub(crate) fn run(arguments: &BatchArgs) -> anyhow::Result<()> {
    if let Some(output) = &arguments.output {
        output::check_output_file(output, arguments.force, &[&arguments.input])?;
    }
    let inputs = input::read(&arguments.input, InputKind::Tokens)?;
    let source = adapters::one_model(arguments.model.source(), arguments.adapter.as_deref())?;
    let session = session::causal_lm(&source)?;
    let (vocab_size, longest) = (session.model.config().vocab_size(), session.model.config().max_positions());
    let rows = input::tokens(&inputs, |given| token_ids(&session, given))?;
    for (at, ids) in &rows {
        input::check_ids(ids, at, vocab_size, longest)?;
    }

    let mut scored = Vec::with_capacity(rows.len());
    for chunk in rows.chunks(arguments.batch_size.get()) {
        let ids: Vec<Vec<i64>> = chunk.iter().map(|(_, ids)| ids.clone()).collect();
        for ((at, _), row) in chunk.iter().zip(score(&session.model, &ids)?) {
            input::check_finite(at, row.logprobs.iter().flatten())?;
            scored.push(row);
        }
    }

    let mut scored = scored.into_iter();
    let mut next = || scored.next().expect("every row is scored");
    let line = |input: &Input| match input.value {
        RowInput::Pair { .. } => Line::Pair { chosen: next(), rejected: next() },
        _ => Line::One(next()),
    };
    input::write(&inputs.iter().map(line).collect::<Vec<_>>(), arguments.output.as_deref(), arguments.force)
}

/// The token ids of an input. Text is encoded as it is. A conversation is encoded up to the end of its last
/// assistant turn, or with the generation prompt if it ends with another turn.
fn token_ids(session: &Session<CausalLm>, given: &RowInput) -> Result<Vec<i64>, datasets::Error> {
    match given {
        RowInput::Ids(ids) => Ok(ids.clone()),
        RowInput::Text(text) => session.tokenizer()?.encode(text, true),
        RowInput::Messages { messages, tools } => {
            let conversation = Conversation::with_tools(messages, tools.as_ref());
            if messages.last().is_some_and(|last| last.role == Role::Assistant) {
                session.tokenizer()?.encode_scored(conversation)
            } else {
                session.tokenizer()?.encode_prompt(conversation)
            }
        }
        RowInput::Pair { .. } => unreachable!("a pair is two conversations by now"),
    }
}

/// Computes the log-probabilities of each row. The hidden state at each token except the last predicts the
/// next token of the row.
fn score(model: &CausalLm, rows: &[Vec<i64>]) -> anyhow::Result<Vec<Scored>> {
    let lines: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
    let batch = Batch::new(&lines, model.device());
    let positions: Vec<i64> = batch
        .first_indices()
        .iter()
        .zip(&batch.lengths)
        .flat_map(|(&start, &length)| start..start + length - 1)
        .collect();
    let targets: Vec<i64> = rows.iter().flat_map(|ids| &ids[1..]).copied().collect();

    let found = no_grad(|| {
        let hidden = model.forward_no_grad(&batch.with_outputs(&positions))?;
        head::logprobs(&hidden, model.head(), &upload(&targets, model.device()), 1.0)
    })?;

    let mut numbers = Vec::<f32>::try_from(&found.logprobs)?.into_iter();
    let scored = rows.iter().map(|ids| {
        let known = numbers.by_ref().take(ids.len() - 1).map(Some);
        Scored { ids: ids.clone(), logprobs: std::iter::once(None).chain(known).collect() }
    });
    Ok(scored.collect())
}
