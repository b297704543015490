//! `logprobs`: `log p(ids[i] | ids[..i])` of every token of given texts.

use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::head;
use parallel::Segmented;
use serde::Serialize;
use tch::{Tensor, no_grad};

use crate::args::BatchArgs;
use crate::input::{self, Given};
use crate::output;
use crate::session::Session;

/// One row of output.
#[derive(Serialize)]
struct Scored {
    ids: Vec<i64>,
    /// As many as `ids`; the first is `None`, for it has nothing before it.
    logprobs: Vec<Option<f32>>,
}

/// Writes the log-probabilities of each row.
pub(crate) fn run(arguments: &BatchArgs) -> anyhow::Result<()> {
    if let Some(output) = &arguments.output {
        output::claim_file(output, arguments.force, &[&arguments.input])?;
    }
    let inputs = input::read(&arguments.input, "text, ids")?;
    let session = Session::causal_lm(&arguments.model)?;
    let (vocab_size, longest) = (session.model.config().vocab_size(), session.model.config().max_positions());
    let mut rows = Vec::with_capacity(inputs.len());
    for input in inputs {
        let ids = match input.given {
            Given::Ids(ids) => ids,
            Given::Text(text) => {
                session.tokenizer.encode(&text, true).map_err(|error| error.in_row(&input.at))?
            }
            Given::Messages(_) => unreachable!("messages are not read"),
        };
        input::check_ids(&ids, &input.at, vocab_size, longest)?;
        rows.push(ids);
    }
    let mut scored = Vec::with_capacity(rows.len());
    for chunk in rows.chunks(arguments.batch_size.get()) {
        let chunk = score(&session.model, chunk)?;
        let finite = |row: &Scored| row.logprobs.iter().flatten().all(|logprob| logprob.is_finite());
        if let Some(index) = chunk.iter().position(|row| !finite(row)) {
            return Err(models::Error::LogitsNotFinite { index: scored.len() + index }.into());
        }
        scored.extend(chunk);
    }
    input::write(&scored, arguments.output.as_deref())
}

/// The hidden state at each token but the last of its row predicts the next one.
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
        let hidden =
            model.infer(&batch)?.index_select(0, &Tensor::from_slice(&positions).to_device(model.device()));
        head::logprobs(&hidden, model.head(), &Tensor::from_slice(&targets).to_device(model.device()), 1.0)
    })?;
    let mut numbers = Vec::<f32>::try_from(&found.logprobs)?.into_iter();
    let scored = rows.iter().map(|ids| {
        let known = numbers.by_ref().take(ids.len() - 1).map(Some);
        Scored { ids: ids.clone(), logprobs: std::iter::once(None).chain(known).collect() }
    });
    Ok(scored.collect())
}
