//! Losses that are sums over rows: their gradient is made in the forward pass, chunk by chunk, while the
//! logits of the chunk exist.
//!
//! ```text
//!   chunk:  hidden ─> logits ─> log p(target), entropy ─ row_loss ─> part of the loss
//!                        │                                  │ autograd over [n]
//!           dW, dh  <─ d logits  <───────── d log p, d H  <─┘
//! ```
//! This module knows no loss: cross-entropy, PPO and others say how a row counts.

use parallel::autograd;
use tch::{Device, Kind, Tensor, no_grad};

use super::chunk::{ChunkLogprobs, Head, HeadGrads, LogprobsOptions, chunks, logits_grad, with_grads};
use crate::Error;

/// A chunk of the rows of a loss.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    start: i64,
    length: i64,
}

impl Rows {
    /// The elements of `[N, ..]` that belong to these rows.
    pub fn of(self, x: &Tensor) -> Tensor {
        x.narrow(0, self.start, self.length)
    }
}

/// Sums over rows.
#[derive(Debug)]
pub struct RowSums {
    /// The loss, a scalar with a gradient.
    pub loss: Tensor,
    /// Other sums, `[K]` in fp64, without a gradient.
    pub statistics: Option<Tensor>,
}

/// What a loss reads of some rows.
#[derive(Debug)]
pub struct RowLogprobs {
    /// `log p(target)` of each row, `[n]`, fp32.
    pub logprobs: Tensor,
    /// The entropy of each row in nats, `[n]`, fp32; `None` unless it was asked for.
    pub entropy: Option<Tensor>,
}

/// Computes the part of a loss that belongs to some rows, from their log-probabilities and entropies. The
/// loss of a row may depend on no other row.
pub type RowLoss<'a, E> = dyn FnMut(Rows, &RowLogprobs) -> Result<RowSums, E> + 'a;

/// Computes a loss `sum_n f_n(log p(target_n), H_n)` and its gradient from logits that are computed once for
/// each row. `hidden` is `[N, H]`, and `targets` is `[N]`. The loss is a scalar in fp32.
///
/// Of the stages of a pipeline, only the last one may call this function. It fails if a collective fails, if
/// `row_loss` does, or if the loss that it computes does not depend on the log-probabilities.
/// Liger: `LigerFusedLinearPPOBase`.
pub fn token_loss<E: From<Error>>(
    hidden: &Tensor,
    head: Head<'_>,
    targets: &Tensor,
    options: LogprobsOptions,
    row_loss: &mut RowLoss<'_, E>,
) -> Result<RowSums, E> {
    let Some(row_partition) = head.row_partition(hidden) else {
        return local_token_loss(hidden, head, targets, options, row_loss);
    };
    let range = row_partition.local_range(targets.size()[0]);
    let local = Rows { start: range.start, length: range.end - range.start };
    let sums = local_token_loss(
        &local.of(hidden),
        head,
        &local.of(targets),
        options,
        &mut |Rows { start, length }, found| row_loss(Rows { start: local.start + start, length }, found),
    )?;
    // A rank without rows takes part in the sums with those of no rows.
    let statistics = match sums.statistics {
        None if local.length == 0 => {
            row_loss(local, &RowLogprobs::of_no_rows(options, hidden.device()))?.statistics
        }
        statistics => statistics,
    };
    let all_reduce = |sum| row_partition.all_reduce(sum).map_err(Error::from);
    Ok(RowSums { loss: all_reduce(sums.loss)?, statistics: statistics.map(all_reduce).transpose()? })
}

/// [`token_loss`] of rows that only this rank computes.
fn local_token_loss<E: From<Error>>(
    hidden: &Tensor,
    head: Head<'_>,
    targets: &Tensor,
    options: LogprobsOptions,
    row_loss: &mut RowLoss<'_, E>,
) -> Result<RowSums, E> {
    let _weights = head.hold()?;
    let wants_grad = head.requires_grad(hidden);
    let mut grads = HeadGrads::new(hidden, &head, wants_grad);
    let detached_head = head.detach();
    let mut total = Tensor::zeros([], (Kind::Double, hidden.device()));
    let mut statistics: Option<Tensor> = None;

    for (start, length) in chunks(hidden.size()[0], head.chunk_rows()) {
        let rows = Rows { start, length };
        let hidden = rows.of(hidden).detach();
        let chunk = no_grad(|| ChunkLogprobs::new(&detached_head, &hidden, &rows.of(targets), options))?;
        let found = RowLogprobs::leaves_of(&chunk, wants_grad);
        let sums = row_loss(rows, &found)?;

        no_grad(|| {
            total += sums.loss.detach().to_kind(Kind::Double);
            if let Some(of_chunk) = sums.statistics {
                statistics = Some(match statistics.take() {
                    Some(sum) => sum + of_chunk,
                    None => of_chunk.detach(),
                });
            }
        });
        if wants_grad {
            let [logprobs_grad, entropy_grad] = found
                .grads_of(&sums.loss)?
                .map(|grad| grad.map(|grad| grad.unsqueeze(1) / options.temperature));
            let entropy_grad = entropy_grad.zip(found.entropy).map(|(grad, entropy)| {
                let entropy = entropy.detach().unsqueeze(1);
                (grad, entropy)
            });
            no_grad(|| {
                let grad_logits = logits_grad(chunk.logprobs, &chunk.target, logprobs_grad, entropy_grad);
                grads.add(&detached_head, &hidden, &grad_logits, start);
            });
        }
    }

    let total = total.to_kind(Kind::Float);
    if !wants_grad {
        return Ok(RowSums { loss: total, statistics });
    }
    let loss = with_grads(&total, hidden, &head, grads)?;
    Ok(RowSums { loss, statistics })
}

impl RowLogprobs {
    /// The numbers of no rows.
    fn of_no_rows(options: LogprobsOptions, device: Device) -> Self {
        let none = || Tensor::zeros([0], (Kind::Float, device));
        Self { logprobs: none(), entropy: options.entropy.then(none) }
    }

    /// The numbers of a chunk as leaves of a graph, if a gradient is wanted.
    fn leaves_of(chunk: &ChunkLogprobs, wants_grad: bool) -> Self {
        let leaf = |index: i64| chunk.values.select(0, index).set_requires_grad(wants_grad);
        Self { logprobs: leaf(0), entropy: (chunk.values.size()[0] > 1).then(|| leaf(1)) }
    }

    /// The gradients of `loss` with respect to log-probabilities and entropies.
    fn grads_of(&self, loss: &Tensor) -> Result<[Option<Tensor>; 2], Error> {
        let leaves: Vec<&Tensor> = std::iter::once(&self.logprobs).chain(&self.entropy).collect();
        let grads = autograd::grad(&[loss], &[&loss.ones_like()], &leaves).map_err(parallel::Error::from)?;
        let mut grads = grads.into_iter();
        Ok([grads.next().flatten(), grads.next().flatten()])
    }
}
