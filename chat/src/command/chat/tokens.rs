//! The tokens of an answer under a model and a reference: log-probabilities, KL, and the likeliest
//! alternatives.
//!
//! With policy `p` and reference `q`, the KL at a place is `Σ_v p(v) (log p(v) - log q(v))` over the whole
//! vocabulary, in nats. Both models get the ids of the policy's tokenizer, as in PPO.

use datasets::Message;
use inference::session::Session;
use models::batch::Batch;
use models::causal_lm::CausalLm;
use parallel::{Segmented, upload};
use tch::{Kind, Tensor, no_grad};
use tui::chat::event::{Alternative, TokenReport, TokenScore};

/// The alternatives of each token.
const ALTERNATIVES: i64 = 5;

/// The places whose distributions over the vocabulary exist at the same time.
const ROWS: usize = 64;

/// Scores the answer with which `messages` ends; the token that ends a turn only if the model wrote it
/// (`ends`).
pub(super) fn report(
    model: (&str, &Session<CausalLm>),
    reference: Option<(&str, &Session<CausalLm>)>,
    messages: &[Message],
    ends: bool,
) -> anyhow::Result<TokenReport> {
    let tokenizer = model.1.tokenizer()?;
    let mut ids = tokenizer.encode_scored(messages)?;
    if !ends && ids.last().is_some_and(|last| model.1.stop_ids().contains(last)) {
        ids.pop();
    }
    let prompt = tokenizer.encode_prompt(&messages[..messages.len() - 1])?;
    // A token at the seam may differ from that of the prompt alone.
    let from = ids.iter().zip(&prompt).take_while(|(left, right)| left == right).count().max(1);
    let longest = model.1.model.config().max_positions();
    if ids.len() as i64 > longest {
        return Err(inference::Error::LongPrompt { index: 0, length: ids.len(), longest }.into());
    }
    if let Some((name, other)) = reference {
        let sizes = [model.1, other].map(|session| session.model.config().vocab_size());
        anyhow::ensure!(
            sizes[0] == sizes[1],
            "{name} has a vocabulary of {} tokens and {} one of {}: only models with the same vocabulary can be compared",
            sizes[1],
            model.0,
            sizes[0]
        );
    }

    let hidden = hidden_states(&model.1.model, &ids, from)?;
    let other_hidden = reference.map(|(_, session)| hidden_states(&session.model, &ids, from)).transpose()?;
    let mut tokens = Vec::with_capacity(ids.len() - from);
    for start in (0..ids.len() - from).step_by(ROWS) {
        let rows = ROWS.min(ids.len() - from - start) as i64;
        let part = |session: &Session<CausalLm>, hidden: &Tensor| {
            logprobs(&session.model, &hidden.narrow(0, start as i64, rows))
        };
        let own = part(model.1, &hidden)?;
        let other = reference.zip(other_hidden.as_ref()).map(|((_, session), hidden)| part(session, hidden));
        // Each token with the one before it, on which its text may depend.
        let targets = &ids[from + start - 1..from + start + rows as usize];
        tokens.extend(scored(model.1, &own, other.transpose()?.as_ref(), targets)?);
    }
    let models = [Some(model.0.to_owned()), reference.map(|(name, _)| name.to_owned())];
    Ok(TokenReport { models, tokens })
}

/// The hidden states that predict `ids[from..]`, `[T, D]`.
fn hidden_states(model: &CausalLm, ids: &[i64], from: usize) -> anyhow::Result<Tensor> {
    let outputs: Vec<i64> = (from as i64 - 1..ids.len() as i64 - 1).collect();
    let batch = Batch::new(&[ids], model.device()).with_outputs(&outputs);
    Ok(no_grad(|| model.forward_no_grad(&batch))?)
}

/// The log-probabilities of all tokens at each row of `hidden` `[T, D]`: `[T, V]`, fp32.
fn logprobs(model: &CausalLm, hidden: &Tensor) -> anyhow::Result<Tensor> {
    Ok(no_grad(|| model.head().logits(hidden))?.to_kind(Kind::Float).log_softmax(-1, Kind::Float))
}

/// The scores of `ids[1..]` under the log-probabilities `own` and `other`, both `[T, V]`.
fn scored(
    session: &Session<CausalLm>,
    own: &Tensor,
    other: Option<&Tensor>,
    ids: &[i64],
) -> anyhow::Result<Vec<TokenScore>> {
    let tokenizer = session.tokenizer()?;
    let decode = |before: i64, id: i64| -> anyhow::Result<String> {
        let (before, both) = (tokenizer.decode(&[before], false)?, tokenizer.decode(&[before, id], false)?);
        Ok(both.strip_prefix(&before).unwrap_or(&both).to_owned())
    };
    let list = |tensor: &Tensor| Vec::<f32>::try_from(&tensor.contiguous().view([-1]));
    let index = upload(&ids[1..], own.device()).unsqueeze(1);
    let at = |all: &Tensor, index: &Tensor| list(&all.to_device(index.device()).gather(1, index, false));
    let (top, places) = own.topk(ALTERNATIVES.min(own.size()[1]), -1, true, true);
    let width = top.size()[1] as usize;
    let (own_targets, own_top) = (at(own, &index)?, list(&top)?);
    let top_ids = Vec::<i64>::try_from(&places.contiguous().view([-1]))?;
    let reference = match other {
        Some(other) => {
            let other = other.to_device(own.device());
            let kl = (own.exp() * (own - &other)).sum_dim_intlist(-1, false, Kind::Float);
            Some((at(&other, &index)?, at(&other, &places)?, list(&kl)?))
        }
        None => None,
    };

    let mut scores = Vec::with_capacity(ids.len() - 1);
    for (row, pair) in ids.windows(2).enumerate() {
        let mut alternatives = Vec::with_capacity(width);
        for place in row * width..(row + 1) * width {
            alternatives.push(Alternative {
                text: decode(pair[0], top_ids[place])?,
                logprob: own_top[place].into(),
                reference: reference.as_ref().map(|(_, top, _)| top[place].into()),
            });
        }
        scores.push(TokenScore {
            text: decode(pair[0], pair[1])?,
            logprob: own_targets[row].into(),
            reference: reference.as_ref().map(|(targets, ..)| targets[row].into()),
            kl: reference.as_ref().map(|(.., kl)| kl[row].into()),
            alternatives,
        });
    }
    Ok(scores)
}
