//! The vocabulary head, computed a few rows at a time: cross-entropy and log-probabilities without a `[N, V]`
//! tensor.
//!
//! For hidden states `h_n`, weights `W` and temperature `t`: `z = (W h_n + b) / t`,
//! `log p(y_n) = z[y_n] - log sum_v exp z[v]`, entropy `H_n = log sum exp z - sum_v p_v z_v`.
//! Everything runs over chunks of rows, 128 to 256 on the CPU. A loss that is a sum over rows, [`token_loss`]
//! and its special case [`cross_entropy`], computes its gradient in the forward pass, while the logits exist,
//! because the gradient of a sum is known up to a factor. [`logprobs`] serves every other loss, and
//! recomputes the logits in its backward pass. (The idea is from Wijmans et al. 2024, arXiv 2411.09009.)
//!
//! If the vocabulary is sharded over a group, each rank computes the logits of its own tokens, and the ranks
//! exchange only one number per row (the log of the sum of exponentials) and the results. If the rows are
//! split over a group, each rank computes its own rows. In both cases every rank holds the full hidden
//! states, and the gradient that it computes for them is partial (DTensor: `Partial`): the backward pass of
//! the region that they came from sums it over the ranks.
//!
//! `N` rows, `H` hidden size, `V` vocabulary size (of this rank). The softmax is in fp32 for any dtype of the
//! weights. This module knows nothing about reductions or training algorithms.

mod chunk;
mod divergence;
mod token_loss;

use parallel::autograd::Backward;
use tch::{Kind, Tensor, no_grad};

use self::chunk::{ChunkLogprobs, HeadGrads, attached, chunks, log_softmax, logits_grad, no_grads};
use crate::Error;

pub(crate) use chunk::chunk_limits;
pub use chunk::{Head, LogprobsOptions};
pub use divergence::{Divergence, Teacher, divergence};
pub use token_loss::{RowLogprobs, RowLoss, RowSums, Rows, token_loss};

/// The result of [`logprobs`] for each row.
#[derive(Debug)]
pub struct TokenLogprobs {
    /// `log p(target)`, `[N]`, fp32, differentiable in the hidden states and the head.
    pub logprobs: Tensor,
    /// The entropy in nats, `[N]`, fp32.
    pub entropy: Tensor,
}

/// Computes `-sum_n w_n log p(target_n)`, a scalar in fp32. `hidden` is `[N, H]`, `targets` is `[N]`, and
/// `weights` is `[N]` or `None` for ones.
/// Megatron: `vocab_parallel_cross_entropy`, if the vocabulary is sharded; Liger: `FusedLinearCrossEntropy`.
pub fn cross_entropy(
    hidden: &Tensor,
    head: Head<'_>,
    targets: &Tensor,
    weights: Option<&Tensor>,
) -> Result<Tensor, Error> {
    let make = |head: Head<'_>| cross_entropy(hidden, head, targets, weights);
    if let Some(result) = head.broadcast_from_last_stage(hidden, &[], Kind::Float, make) {
        return result;
    }
    let sums = token_loss(hidden, head, targets, LogprobsOptions::default(), &mut |rows, found| {
        let logprobs = match weights {
            Some(weights) => &found.logprobs * rows.of(weights).to_kind(Kind::Float),
            None => found.logprobs.shallow_clone(),
        };
        Ok::<_, Error>(RowSums { loss: -logprobs.sum(Kind::Double), statistics: None })
    })?;
    Ok(sums.loss)
}

/// Computes `log p(target_n)` and the entropy of each row at `temperature`. `hidden` is `[N, H]`, and
/// `targets` is `[N]`.
pub fn logprobs(
    hidden: &Tensor,
    head: Head<'_>,
    targets: &Tensor,
    temperature: f64,
) -> Result<TokenLogprobs, Error> {
    let make = |head: Head<'_>| {
        let found = logprobs(hidden, head, targets, temperature)?;
        Ok(Tensor::stack(&[found.logprobs, found.entropy], 0))
    };

    if let Some(result) = head.broadcast_from_last_stage(hidden, &[2, targets.size()[0]], Kind::Float, make) {
        let result = result?;
        return Ok(TokenLogprobs { logprobs: result.select(0, 0), entropy: result.select(0, 1) });
    }

    if let Some(row_partition) = head.row_partition(hidden) {
        let rows = targets.size()[0];
        let range = row_partition.local_range(rows);
        let local_rows = |x: &Tensor| x.narrow(0, range.start, range.end - range.start);
        let found = local_logprobs(&local_rows(hidden), head, &local_rows(targets), temperature)?;
        let gather_rows = |local_rows: &Tensor| row_partition.gather_rows(local_rows, rows);
        return Ok(TokenLogprobs {
            logprobs: gather_rows(&found.logprobs)?,
            entropy: gather_rows(&found.entropy)?,
        });
    }

    local_logprobs(hidden, head, targets, temperature)
}

/// [`logprobs`] of rows that only this rank computes.
fn local_logprobs(
    hidden: &Tensor,
    head: Head<'_>,
    targets: &Tensor,
    temperature: f64,
) -> Result<TokenLogprobs, Error> {
    let _weights = head.hold()?;
    let chunk_rows = head.chunk_rows();
    let options = LogprobsOptions { temperature, entropy: true };
    let (mut chunk_results, mut log_totals) = (Vec::new(), Vec::new());
    let stacked = no_grad(|| {
        let detached_head = head.detach();
        for (start, length) in chunks(hidden.size()[0], chunk_rows) {
            let rows = |x: &Tensor| x.narrow(0, start, length);
            let chunk = ChunkLogprobs::new(&detached_head, &rows(hidden), &rows(targets), options)?;
            chunk_results.push(chunk.values);
            log_totals.push(chunk.log_total);
        }
        if chunk_results.is_empty() {
            chunk_results.push(Tensor::zeros([2, 0], (Kind::Float, hidden.device())));
        }
        Ok::<_, Error>(Tensor::cat(&chunk_results, 1))
    })?;

    let (values, entropy) = (stacked.select(0, 0), stacked.select(0, 1));
    if !head.requires_grad(hidden) {
        return Ok(TokenLogprobs { logprobs: values, entropy });
    }

    let (detached_head, rows, targets) = (head.detach(), hidden.detach(), targets.shallow_clone());
    let entropies = entropy.shallow_clone();
    let mut sums = HeadGrads::new(hidden, &head, true);
    let count = head.inputs(hidden).len();
    let backward: Backward = Box::new(move |grads| {
        if grads.iter().all(Option::is_none) {
            return Ok(no_grads(count));
        }
        no_grad(|| {
            for ((start, length), log_total) in chunks(rows.size()[0], chunk_rows).zip(&log_totals) {
                let chunk = rows.narrow(0, start, length);
                let target = detached_head.mask_targets(&targets.narrow(0, start, length).unsqueeze(1));
                let chunk_column = |flat: &Tensor| flat.narrow(0, start, length).unsqueeze(1);
                let [logprobs_grad, entropy_grad] = [&grads[0], &grads[1]]
                    .map(|grad| grad.as_ref().map(|grad| chunk_column(grad) / temperature));
                let entropy_grad = entropy_grad.map(|grad| (grad, chunk_column(&entropies)));
                let logprobs = log_softmax(&detached_head.logits(&chunk, temperature), log_total.as_ref());
                let grad_logits = logits_grad(logprobs, &target, logprobs_grad, entropy_grad);
                sums.add(&detached_head, &chunk, &grad_logits, start);
            }
        });
        Ok(std::mem::take(&mut sums).into_grads())
    });

    let [logprobs, entropy] = attached([&values, &entropy], &head.inputs(hidden), backward)?;
    Ok(TokenLogprobs { logprobs, entropy })
}

/// The most likely token of each row, `[N]`, for accuracy metrics.
pub fn argmax(hidden: &Tensor, head: Head<'_>) -> Result<Tensor, Error> {
    let make = |head: Head<'_>| argmax(hidden, head);
    if let Some(result) = head.broadcast_from_last_stage(hidden, &hidden.size()[..1], Kind::Int64, make) {
        return result;
    }
    let _weights = head.hold()?;
    no_grad(|| {
        let detached_head = head.detach();
        let mut best = Vec::new();
        for (start, length) in chunks(hidden.size()[0], head.chunk_rows()) {
            let logits = detached_head.logits(&hidden.narrow(0, start, length), 1.0);
            best.push(match &detached_head.vocabulary {
                None => logits.argmax(1, false),
                Some(vocabulary) => vocabulary.argmax(&logits)?,
            });
        }
        Ok(Tensor::cat(&best, 0))
    })
}

/// `log sum_v p_v^2` of each row, `[N]`, fp32, without a gradient: the log of the probability that two draws
/// from the distribution are equal.
pub fn log_sum_of_squares(hidden: &Tensor, head: Head<'_>) -> Result<Tensor, Error> {
    let make = |head: Head<'_>| log_sum_of_squares(hidden, head);
    if let Some(result) = head.broadcast_from_last_stage(hidden, &hidden.size()[..1], Kind::Float, make) {
        return result;
    }
    let _weights = head.hold()?;
    no_grad(|| {
        let detached_head = head.detach();
        let mut all = Vec::new();
        for (start, length) in chunks(hidden.size()[0], head.chunk_rows()) {
            let logits = detached_head.logits(&hidden.narrow(0, start, length), 1.0);
            let log_total = detached_head.global_logsumexp(&logits)?;
            let squares = (log_softmax(&logits, log_total.as_ref()) * 2.0).exp();
            let sums = squares.sum_dim_intlist(1, false, Kind::Float);
            detached_head.all_reduce(&sums)?;
            all.push(sums.log());
        }
        Ok(Tensor::cat(&all, 0))
    })
}

/// The result of [`target_logprobs`].
#[derive(Debug)]
pub struct TargetLogprobs {
    /// `log p(target)` of each target, `[M]`, fp32, without a gradient.
    pub logprobs: Tensor,
    /// The most likely token of each row, `[N]`.
    pub argmax: Tensor,
}

/// Computes `log p(targets[m])` at row `rows[m]` of `hidden`, and the most likely token of each row, from
/// logits that are computed once for each row. `hidden` is `[N, H]`, `rows` has `M` indices below `N`, and
/// `targets` is `[M]`. For evaluation, where several answers are scored after one prompt.
pub fn target_logprobs(
    hidden: &Tensor,
    head: Head<'_>,
    rows: &[i64],
    targets: &[i64],
) -> Result<TargetLogprobs, Error> {
    let device = hidden.device();
    if head.vocabulary.is_some() || head.pipeline.is_some() || head.sequence_group.is_some() {
        let repeated = hidden.index_select(0, &parallel::upload(rows, device));
        let found = logprobs(&repeated, head, &parallel::upload(targets, device), 1.0)?;
        return Ok(TargetLogprobs { logprobs: found.logprobs, argmax: argmax(hidden, head)? });
    }

    // In the order of the rows, so that the targets of a chunk of rows are neighbours.
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&at| rows[at]);
    let sorted_rows: Vec<i64> = order.iter().map(|&at| rows[at]).collect();
    let sorted_targets: Vec<i64> = order.iter().map(|&at| targets[at]).collect();
    let mut place = vec![0; rows.len()];
    for (sorted, &at) in order.iter().enumerate() {
        place[at] = sorted as i64;
    }

    let _weights = head.hold()?;
    no_grad(|| {
        let detached_head = head.detach();
        let empty = |kind| Tensor::zeros([0], (kind, device));
        let (mut picked, mut best) = (vec![empty(Kind::Float)], vec![empty(Kind::Int64)]);
        let mut first = 0;
        for (start, length) in chunks(hidden.size()[0], head.chunk_rows()) {
            let logits = detached_head.logits(&hidden.narrow(0, start, length), 1.0);
            best.push(logits.argmax(1, false));

            let end = sorted_rows.partition_point(|&row| row < start + length);
            let vocab_size = logits.size()[1];
            let flat = |at: usize| (sorted_rows[at] - start) * vocab_size + sorted_targets[at];
            let flat: Vec<i64> = (first..end).map(flat).collect();
            let within: Vec<i64> = sorted_rows[first..end].iter().map(|row| row - start).collect();
            let log_total = logits.logsumexp([1i64].as_slice(), false);
            let target = logits.view([-1]).index_select(0, &parallel::upload(&flat, device));
            picked.push(target - log_total.index_select(0, &parallel::upload(&within, device)));
            first = end;
        }
        let logprobs = Tensor::cat(&picked, 0).index_select(0, &parallel::upload(&place, device));
        Ok(TargetLogprobs { logprobs, argmax: Tensor::cat(&best, 0) })
    })
}

#[cfg(test)]
mod tests;
