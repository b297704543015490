//! Ring attention: causal attention over rows whose tokens are distributed over the ranks of a group. Keys
//! and values go around the ring of ranks. Each rank merges its partial results exactly, using the
//! log-sum-exp of their scores.
//!
//! ```text
//!   step s: rank r holds the keys and values of rank f = r - s
//!     f = r   all local queries        x all chunks of f, causal
//!     f < r   all local queries        x the early chunks of f
//!     f > r   the late local queries   x all chunks of f
//! ```
//! With [zig-zag order](super::SequenceOrder::ZigZag), every step but the first computes half of a full
//! square of scores on every rank. Two partial results with outputs `o`, `o'` and log-sum-exps `l`, `l'`
//! merge to `L = log(e^l + e^l')`, `O = o e^(l - L) + o' e^(l' - L)`. The backward pass sends keys and values
//! around the ring again together with their gradients, which are back on their rank after `P` steps.
//!
//! Traffic per rank, for `n` tokens with `G` key-value heads of width `D`: the forward pass sends
//! `(P - 1) 2 n G D` values; the backward pass sends the same number again and `P 2 n G D` values in fp32.

use std::cmp::Ordering;
use std::sync::Arc;

use parallel_sys::autograd::{self, Backward, with_backward};
use tch::{Device, Tensor, no_grad};

use super::tile_attention::{accumulation_kind, tile_attention, tile_attention_backward};
use crate::comm::ProcessGroup;
use crate::{Error, upload};

/// Computes causal attention of this rank's queries `[n, heads, D]` over the keys and values
/// `[n, kv_heads, D]` of all ranks. Returns `[n, heads, D]`.
///
/// `chunks` holds the chunk length of each row; a rank has an early and a late chunk of each row. `scale` is
/// the factor of the scores.
/// Megatron: context parallelism.
pub fn ring_attention(
    [q, k, v]: [&Tensor; 3],
    chunks: &[i64],
    scale: f64,
    group: &Arc<ProcessGroup>,
) -> Result<Tensor, Error> {
    let ring = RingAttention {
        group: Arc::clone(group),
        row_groups: EqualChunkRows::group_by_length(chunks, q.device()),
        scale,
    };

    let [detached_q, detached_k, detached_v] = [q, k, v].map(Tensor::detach);
    let [result, lse] = no_grad(|| ring.forward([&detached_q, &detached_k, &detached_v]))?;
    if !(autograd::is_enabled() && [q, k, v].iter().any(|x| x.requires_grad())) {
        return Ok(result);
    }

    let saved = [result.detach(), lse];
    let backward: Backward = Box::new(move |grads| {
        let Some(grad) = &grads[0] else { return Ok(vec![None, None, None]) };
        let grads = no_grad(|| ring.backward([&detached_q, &detached_k, &detached_v], &saved, grad))?;
        Ok(grads.map(Some).into())
    });
    let mut attached = with_backward(&[&result], &[q, k, v], backward)?;
    Ok(attached.pop().expect("one attached tensor per result"))
}

/// The configuration of a ring attention call.
struct RingAttention {
    group: Arc<ProcessGroup>,
    row_groups: Vec<EqualChunkRows>,
    scale: f64,
}

/// Rows with the same chunk length, which one attention call handles together.
struct EqualChunkRows {
    chunk: i64,
    /// Indices of their tokens among the tokens of this rank, `[rows, 2 chunk]`: each row's early chunk, then
    /// its late one.
    tokens: Tensor,
}

/// A range of tokens of each row: its start and its length.
#[derive(Clone, Copy)]
struct TokenSpan(i64, i64);

/// The local queries and remote keys of one step, and whether a causal mask applies.
struct AttentionTile {
    queries: TokenSpan,
    keys: TokenSpan,
    causal: bool,
}

impl EqualChunkRows {
    /// Groups the rows by their chunk length.
    fn group_by_length(chunks: &[i64], device: Device) -> Vec<Self> {
        let mut row_groups: Vec<(i64, Vec<i64>)> = Vec::new();
        let mut start = 0;
        for &chunk in chunks {
            let tokens = start..start + 2 * chunk;
            start = tokens.end;
            match row_groups.iter_mut().find(|(length, _)| *length == chunk) {
                Some((_, group_tokens)) => group_tokens.extend(tokens),
                None => row_groups.push((chunk, tokens.collect())),
            }
        }
        let tokens = |chunk, tokens: &[i64]| upload(tokens, device).view([-1, 2 * chunk]);
        row_groups
            .into_iter()
            .map(|(chunk, group_tokens)| Self { chunk, tokens: tokens(chunk, &group_tokens) })
            .collect()
    }

    fn tile_for(&self, rank: usize, from: usize) -> AttentionTile {
        let (all, early, late) =
            (TokenSpan(0, 2 * self.chunk), TokenSpan(0, self.chunk), TokenSpan(self.chunk, self.chunk));
        match from.cmp(&rank) {
            Ordering::Equal => AttentionTile { queries: all, keys: all, causal: true },
            Ordering::Less => AttentionTile { queries: all, keys: early, causal: false },
            Ordering::Greater => AttentionTile { queries: late, keys: all, causal: false },
        }
    }

    /// Gathers a range of each row of `x` `[n, heads, ..]` to `[rows, heads, length, ..]`.
    fn gather_tokens(&self, x: &Tensor, TokenSpan(start, length): TokenSpan) -> Tensor {
        let tokens = self.tokens.narrow(1, start, length).flatten(0, 1);
        x.index_select(0, &tokens).unflatten(0, [-1, length]).transpose(1, 2)
    }

    /// Writes `[rows, heads, length, ..]` to the tokens that [`gather_tokens`](Self::gather_tokens) reads.
    fn write_tokens(&self, x: &Tensor, TokenSpan(start, length): TokenSpan, new: &Tensor) {
        let tokens = self.tokens.narrow(1, start, length).flatten(0, 1);
        let _ = x.shallow_clone().index_copy_(0, &tokens, &new.transpose(1, 2).flatten(0, 1));
    }

    /// Adds `[rows, heads, length, ..]` to the tokens that [`gather_tokens`](Self::gather_tokens) reads.
    fn accumulate_tokens(&self, x: &Tensor, TokenSpan(start, length): TokenSpan, more: &Tensor) {
        let tokens = self.tokens.narrow(1, start, length).flatten(0, 1);
        let more = more.transpose(1, 2).flatten(0, 1).to_kind(x.kind());
        let _ = x.shallow_clone().index_add_(0, &tokens, &more);
    }
}

impl RingAttention {
    /// Returns the attention output `[n, heads, D]` and the log-sum-exp of each query's scores `[n, heads]`.
    fn forward(&self, [q, k, v]: [&Tensor; 3]) -> Result<[Tensor; 2], Error> {
        let acc_kind = accumulation_kind(q.kind());
        let result = Tensor::zeros(q.size(), (acc_kind, q.device()));
        let lse = Tensor::full(&q.size()[..2], f64::NEG_INFINITY, (acc_kind, q.device()));
        let mut kv_block = Tensor::cat(&[k, v], 1); // [n, 2 kv_heads, D]

        for step in 0..self.group.size() {
            let from = self.kv_source_rank(step);
            for row_group in &self.row_groups {
                let AttentionTile { queries, keys, causal } = row_group.tile_for(self.group.rank(), from);
                let q = row_group.gather_tokens(q, queries);
                let [k, v] = split_kv(&row_group.gather_tokens(&kv_block, keys), q.size()[1]);
                let [o, lse_step] = tile_attention([&q, &k, &v], causal, self.scale)?;
                let (result_before, lse_before) =
                    (row_group.gather_tokens(&result, queries), row_group.gather_tokens(&lse, queries));
                let lse_total = lse_before.logaddexp(&lse_step);
                let share = |lse_step: &Tensor| (lse_step - &lse_total).exp().unsqueeze(-1);
                row_group.write_tokens(
                    &result,
                    queries,
                    &(result_before * share(&lse_before) + o * share(&lse_step)),
                );
                row_group.write_tokens(&lse, queries, &lse_total);
            }

            if step + 1 < self.group.size() {
                kv_block = self.ring_shift(&kv_block)?;
            }
        }

        Ok([result.to_kind(q.kind()), lse])
    }

    /// Returns the gradients of queries, keys and values.
    fn backward(
        &self,
        [q, k, v]: [&Tensor; 3],
        [result, lse]: &[Tensor; 2],
        grad: &Tensor,
    ) -> Result<[Tensor; 3], Error> {
        let mut kv_block = Tensor::cat(&[k, v], 1);
        let mut kv_grads = kv_block.zeros_like().to_kind(accumulation_kind(k.kind()));
        let q_grad = q.zeros_like().to_kind(accumulation_kind(q.kind()));

        for step in 0..self.group.size() {
            let from = self.kv_source_rank(step);
            for row_group in &self.row_groups {
                let AttentionTile { queries, keys, causal } = row_group.tile_for(self.group.rank(), from);
                let [q, o, grad, lse] = [q, result, grad, lse].map(|x| row_group.gather_tokens(x, queries));
                let [k, v] = split_kv(&row_group.gather_tokens(&kv_block, keys), q.size()[1]);
                let [dq, dk, dv] =
                    tile_attention_backward(&grad, [&q, &k, &v], [&o, &lse], causal, self.scale)?;
                row_group.accumulate_tokens(&q_grad, queries, &dq);
                row_group.accumulate_tokens(
                    &kv_grads,
                    keys,
                    &join_kv_grads([&dk, &dv], kv_block.size()[1] / 2),
                );
            }

            // The gradients make one step more than the keys and values, which brings them back to their
            // rank.
            if step + 1 < self.group.size() {
                kv_block = self.ring_shift(&kv_block)?;
            }
            kv_grads = self.ring_shift(&kv_grads)?;
        }

        let half = k.size()[1];
        let [dk, dv] = [0, half].map(|start| kv_grads.narrow(1, start, half).to_kind(k.kind()));
        Ok([q_grad.to_kind(q.kind()), dk, dv])
    }

    /// The rank whose keys and values this rank holds in a step.
    fn kv_source_rank(&self, step: usize) -> usize {
        (self.group.rank() + self.group.size() - step) % self.group.size()
    }

    /// Sends `x` to the next rank and returns the tensor of the previous rank.
    fn ring_shift(&self, x: &Tensor) -> Result<Tensor, Error> {
        let (ranks, rank, rows) = (self.group.size(), self.group.rank(), x.size()[0]);
        let only = |chosen: usize| (0..ranks).map(|rank| if rank == chosen { rows } else { 0 }).collect();
        let (output_splits, input_splits): (Vec<i64>, Vec<i64>) =
            (only((rank + ranks - 1) % ranks), only((rank + 1) % ranks));
        self.group.all_to_all(x, [&output_splits, &input_splits])
    }
}

/// Splits `[rows, 2 kv_heads, T, D]` into keys and values, each repeated for the queries that share it:
/// `[rows, heads, T, D]`.
fn split_kv(joined: &Tensor, heads: i64) -> [Tensor; 2] {
    let half = joined.size()[1] / 2;
    [0, half].map(|start| {
        let one = joined.narrow(1, start, half);
        if half == heads { one } else { one.repeat_interleave_self_int(heads / half, 1, None) }
    })
}

/// The reverse of [`split_kv`] for gradients: sums over the query heads that share a key-value head.
fn join_kv_grads(grads: [&Tensor; 2], kv_heads: i64) -> Tensor {
    let sums = grads.map(|grad| {
        if grad.size()[1] == kv_heads {
            return grad.shallow_clone();
        }
        grad.unflatten(1, [kv_heads, -1]).sum_dim_intlist(2, false, accumulation_kind(grad.kind()))
    });
    Tensor::cat(&sums, 1)
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::Transport;
    use crate::mappings::tests::{close, leaf};
    use crate::sequence::{SequenceOrder, SequenceShard};
    use crate::world::tests::run_worlds;

    /// Queries, keys and values of rows with these lengths, `[N, heads, D]`, and the gradient of the result.
    fn inputs(lengths: &[i64]) -> [Tensor; 4] {
        let tokens: i64 = lengths.iter().sum();
        [(4, 1.0), (2, 2.0), (2, 3.0), (4, 4.0)].map(|(heads, phase)| {
            let count = tokens * heads * 8;
            (Tensor::arange(count, (Kind::Double, Device::Cpu)) * 1.7 + phase).sin().view([tokens, heads, 8])
        })
    }

    /// Attention row by row on one rank, with the gradients of queries, keys and values.
    fn whole(lengths: &[i64]) -> [Tensor; 4] {
        let [q, k, v, seed] = inputs(lengths);
        let leaves = [q, k, v].map(|x| leaf(&x));
        let mut start = 0;
        let mut rows = Vec::new();
        for &length in lengths {
            let side = |x: &Tensor| x.narrow(0, start, length).transpose(0, 1).unsqueeze(0);
            let [q, k, v] = [&leaves[0], &leaves[1], &leaves[2]].map(side);
            let row = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, true, 0.3, true);
            rows.push(row.squeeze_dim(0).transpose(0, 1));
            start += length;
        }
        let result = Tensor::cat(&rows, 0);
        (&result * seed).sum(Kind::Double).backward();
        let [q, k, v] = leaves;
        [result.detach(), q.grad(), k.grad(), v.grad()]
    }

    #[test]
    fn a_ring_equals_the_whole_with_all_its_gradients_and_sends_what_the_formula_says() {
        for (ranks, transport) in
            [(1, Transport::Shared), (2, Transport::Shared), (3, Transport::Gloo), (4, Transport::Shared)]
        {
            run_worlds(ranks, transport, |world| {
                let group = Arc::new(world.group("ring", &(0..ranks).collect::<Vec<_>>()).unwrap());
                for lengths in [vec![24], vec![5, 31, 1, 8, 8]] {
                    let layout = SequenceShard::new(SequenceOrder::ZigZag, &group);
                    let local_indices = Tensor::from_slice(&layout.local_indices(&lengths));
                    let [q, k, v, seed] = inputs(&lengths).map(|x| x.index_select(0, &local_indices));
                    let [q, k, v] = [q, k, v].map(|x| leaf(&x));
                    let before = group.sent_bytes();
                    let result =
                        ring_attention([&q, &k, &v], &layout.chunk_lens(&lengths), 0.3, &group).unwrap();
                    // Padding is excluded from the loss.
                    let unshard_indices = Tensor::from_slice(&layout.unshard_indices(&lengths).unwrap());
                    let size = layout.local_len(&lengths);
                    let real = Tensor::zeros([size * ranks as i64], (Kind::Double, Device::Cpu));
                    let _ = real.shallow_clone().index_fill_(0, &unshard_indices, 1.0);
                    let real = real.narrow(0, group.rank() as i64 * size, size).view([-1, 1, 1]);
                    (&result * seed * real).sum(Kind::Double).backward();
                    let sent = group.sent_bytes() - before;
                    let passes = 3 * ranks as u64 - 2;
                    assert_eq!(sent, if ranks == 1 { 0 } else { passes * 2 * size as u64 * 2 * 8 * 8 });
                    let expected = whole(&lengths);
                    for (local, expected) in
                        [result.detach(), q.grad(), k.grad(), v.grad()].iter().zip(&expected)
                    {
                        let all = group.all_gather(local).unwrap();
                        close(&all.index_select(0, &unshard_indices), expected);
                    }
                }
            });
        }
    }
}
