//! Rows of tokens as one flat batch, and their grouping for attention.
//!
//! Everything except attention works on `[N, ...]`, where `N` is the number of tokens of all rows, and never
//! sees padding. For attention, rows of similar length form a group, right-padded to the longest row of the
//! group. Rows are sorted by length, and a row joins the group as long as the padded area is at most 5/4 of
//! the group's tokens. Under a causal mask no token sees padding on its right, so a group needs no padding
//! mask. Consecutive rows of equal length are a view and cost no copy. Tensors that depend on the batch alone
//! (indices, masks, rotary tables) are computed once and cached. Packed sequences are simply more rows.
//!
//! A row may continue another row, its prefix: its tokens attend to the prefix and to themselves. Sequences
//! that begin alike, such as the replies to one prompt or the choices of one question, then run their prefix
//! once. This is "cascade" or "tree" attention (Juravsky et al. 2024, arXiv 2402.05099), without a kernel of
//! its own: keys and values of the prefix are copied for each row that continues it. Rows with prefixes form
//! groups of their own, in which shorter prefixes are padded on the left.
//!
//! This module knows nothing about layers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use parallel::sequence::SequenceShard;
use parallel::upload;
use tch::{Device, Kind, Tensor};

use crate::load_balancing::LoadBalancingLoss;
use crate::mask::MaskKind;
use crate::rope::{Rope, Rotary};

/// The largest ratio of a group's padded area to its real tokens: 5/4.
const MAX_PADDING_RATIO: (i64, i64) = (5, 4);

/// A batch whose rows are concatenated without padding.
#[derive(Debug)]
pub struct Batch {
    /// Token ids, int64 `[N]`, row after row.
    pub input_ids: Tensor,
    /// Position of each token in its sequence, which begins with the prefix of its row; int64 `[N]`.
    /// transformers: `position_ids`.
    pub positions: Tensor,
    /// The number of tokens of each row without its prefix. flash-attn: the differences of `cu_seqlens`.
    pub lengths: Vec<i64>,
    /// For each row the length of the longest sequence that it belongs to, with its prefix.
    sequence_lengths: Vec<i64>,
    /// The tokens whose final hidden states are wanted, int64 `[M]`; `None` for all of them.
    outputs: Option<Tensor>,
    /// The divisor of the auxiliary loss of mixture-of-experts layers: the number of tokens in the optimizer
    /// step. 0 switches that loss off.
    pub aux_loss_divisor: f64,
    is_empty: bool,
    groups: Vec<PaddedGroup>,
    /// The index of each token in the concatenated padded areas of the groups; `None` if every token is in
    /// place.
    unpad_indices: Option<Tensor>,
    cache: RefCell<BatchCache>,
}

/// Rows that attention handles together, padded to the same length. All of them have a prefix, or none has.
#[derive(Debug)]
struct PaddedGroup {
    rows: i64,
    length: i64,
    tokens: GroupTokens,
    prefixes: Option<PaddedPrefixes>,
}

/// The prefixes of the rows of a group, padded on the left to the same length.
#[derive(Debug)]
struct PaddedPrefixes {
    length: i64,
    /// The tokens whose keys each row sees: its prefix and itself. Indices into the flat batch, int64
    /// `[rows * (prefix + length)]`.
    keys: Tensor,
    /// The number of padding keys on the left of each row; `None` if no row has one.
    padding: Option<Vec<i64>>,
}

/// The tokens of a group.
#[derive(Debug)]
enum GroupTokens {
    /// A contiguous range of the flat batch that starts at this token.
    Contiguous(i64),
    /// Indices into the flat batch, int64 `[rows * length]`. Padding repeats the last token of its row.
    Gather(Tensor),
}

/// The cache key of rotary tables: rotation, dtype, and the shard of the tokens (`None` for all tokens).
type RotaryKey = (Rope, Kind, Option<SequenceShard>);

/// Tensors computed for this batch, each with its cache key.
#[derive(Debug, Default)]
struct BatchCache {
    rotary: Vec<(RotaryKey, Rotary)>,
    local_batches: Vec<(SequenceShard, Rc<LocalBatch>)>,
    rows: Option<Tensor>,
    masks: Vec<(MaskKey, Tensor)>,
}

/// The cache key of masks: the lengths of prefix and rows, the padding of the prefixes, the mask, its dtype.
type MaskKey = ([i64; 2], Option<Vec<i64>>, MaskKind, Kind);

/// One rank's shard of a batch's tokens under sequence parallelism.
#[derive(Debug)]
pub struct LocalBatch {
    /// Token ids, int64 `[n]`.
    pub input_ids: Tensor,
    /// Position of each token in its row, int64 `[n]`.
    pub positions: Tensor,
    /// The index of each token in the batch, int64 `[n]`.
    token_indices: Tensor,
    /// The number of tokens of the full batch.
    size: i64,
    /// The index of each token of the batch in the concatenated shards of all ranks, int64 `[N]`; `None` if
    /// every token is in place.
    unshard_indices: Option<Tensor>,
    /// The number of tokens per chunk, for each row.
    pub chunk_lens: Vec<i64>,
    /// 1 for each token that no earlier rank holds as well, otherwise 0; fp32 `[n]`.
    pub unique_mask: Tensor,
}

impl Batch {
    /// A batch of rows, each with at least one token. An empty batch gets one dummy token, because a rank
    /// without rows must still take part in the collectives of every layer.
    pub fn new(rows: &[&[i64]], device: Device) -> Self {
        Self::with_prefixes(rows, &vec![None; rows.len()], device)
    }

    /// Like [`Self::new`], where row `r` continues row `prefixes[r]`, which itself continues none.
    pub fn with_prefixes(rows: &[&[i64]], prefixes: &[Option<usize>], device: Device) -> Self {
        assert!(rows.iter().all(|row| !row.is_empty()), "each row of a batch has a token");
        assert_eq!(rows.len(), prefixes.len(), "one entry for each row");
        let is_whole = |&prefix: &usize| prefixes[prefix].is_none();
        assert!(prefixes.iter().flatten().all(is_whole), "a prefix continues no other row");

        let is_empty = rows.is_empty();
        let (rows, prefixes): (&[&[i64]], &[Option<usize>]) =
            if is_empty { (&[&[0]], &[None]) } else { (rows, prefixes) };
        let lengths: Vec<i64> = rows.iter().map(|row| row.len() as i64).collect();
        let past = |row: usize| prefixes[row].map_or(0, |prefix| lengths[prefix]);
        let positions: Vec<i64> =
            (0..rows.len()).flat_map(|row| past(row)..past(row) + lengths[row]).collect();
        let (groups, unpad_indices) = group_rows(&lengths, prefixes, device);
        Self {
            input_ids: upload(&rows.concat(), device),
            positions: upload(&positions, device),
            sequence_lengths: sequence_lengths(&lengths, prefixes),
            lengths,
            outputs: None,
            aux_loss_divisor: 0.0,
            is_empty,
            groups,
            unpad_indices,
            cache: RefCell::default(),
        }
    }

    /// The model computes the final hidden states of these tokens alone, in this order, so that its last
    /// block leaves out work that nobody reads: a loss over replies needs no state inside the prompts, and a
    /// score needs the last token of each row.
    #[must_use]
    pub fn with_outputs(self, tokens: &[i64]) -> Self {
        let outputs = Some(upload(tokens, self.input_ids.device()));
        Self { outputs, ..self }
    }

    /// [`with_outputs`](Self::with_outputs) of the last token of each row; none for an empty batch.
    #[must_use]
    pub fn with_last_outputs(self) -> Self {
        let last = if self.is_empty { Vec::new() } else { self.last_indices() };
        self.with_outputs(&last)
    }

    /// The tokens whose final hidden states are wanted, int64 `[M]`; `None` for all of them.
    pub(crate) fn outputs(&self) -> Option<&Tensor> {
        self.outputs.as_ref()
    }

    /// Sets the number of tokens that the auxiliary loss of the optimizer step is divided by.
    #[must_use]
    pub fn with_aux_loss_divisor(self, aux_loss_divisor: f64) -> Self {
        Self { aux_loss_divisor, ..self }
    }

    /// The number of tokens without the dummy token of an empty batch.
    pub fn num_real_tokens(&self) -> i64 {
        if self.is_empty { 0 } else { self.num_tokens() }
    }

    /// The number of tokens `N`, including the dummy token.
    pub fn num_tokens(&self) -> i64 {
        self.lengths.iter().sum()
    }

    /// The flat index of each row's first token.
    pub fn first_indices(&self) -> Vec<i64> {
        starts(&self.lengths)
    }

    /// The flat index of each row's last token.
    pub fn last_indices(&self) -> Vec<i64> {
        starts(&self.lengths).iter().zip(&self.lengths).map(|(start, length)| start + length - 1).collect()
    }

    /// Whether a row continues another one.
    pub(crate) fn has_prefixes(&self) -> bool {
        self.groups.iter().any(|group| group.prefixes.is_some())
    }

    /// Causal attention within each row (flash-attn: `flash_attn_varlen_func` with `cu_seqlens`), from `q`
    /// `[N, heads, D]`, `k` and `v` `[N, kv_heads, D]` to `[N, heads * D]`.
    pub fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, mask: &MaskKind) -> Tensor {
        let attended: Vec<Tensor> = self
            .groups
            .iter()
            .map(|group| {
                let mask = self.mask(group, mask, q.kind());
                let [k, v] = [k, v].map(|x| group.pad_keys(x));
                crate::attention::scaled_dot_product(&group.pad_input(q), &k, &v, mask.as_ref(), scale)
                    .transpose(1, 2)
                    .reshape([group.rows * group.length, -1])
            })
            .collect();
        let padded = match attended.as_slice() {
            [one] => one.shallow_clone(),
            several => Tensor::cat(several, 0),
        };
        match &self.unpad_indices {
            Some(indices) => gather_rows(&padded, indices),
            None => padded,
        }
    }

    /// The load-balancing auxiliary loss over all tokens, or over one rank's tokens `local_batch`, with the
    /// model's coefficient `coef`; `None` in a pass without that loss.
    pub(crate) fn load_balancing_loss(
        &self,
        coef: f64,
        local_batch: Option<&LocalBatch>,
        group: Option<&Arc<parallel::comm::ProcessGroup>>,
    ) -> Option<LoadBalancingLoss> {
        if !self.has_load_balancing_loss(coef) {
            return None;
        }
        let device = self.input_ids.device();
        let rows = self.row_index();
        Some(LoadBalancingLoss {
            row_index: local_batch.map_or_else(
                || rows.shallow_clone(),
                |local_batch| rows.index_select(0, &local_batch.token_indices),
            ),
            lengths: upload(&self.lengths, device).to_kind(Kind::Float),
            unique_mask: local_batch.map(|local_batch| local_batch.unique_mask.shallow_clone()),
            coef: coef / self.aux_loss_divisor,
            group: group.cloned(),
        })
    }

    /// Whether the pass has the load-balancing auxiliary loss, with the model's coefficient `coef`.
    pub(crate) fn has_load_balancing_loss(&self, coef: f64) -> bool {
        coef != 0.0 && self.aux_loss_divisor != 0.0 && !self.is_empty
    }

    /// The row of each token, int64 `[N]`; computed at the first call.
    fn row_index(&self) -> Tensor {
        let mut cache = self.cache.borrow_mut();
        let rows = cache.rows.get_or_insert_with(|| {
            let repeat_row = |(row, &length): (i64, &i64)| std::iter::repeat_n(row, length as usize);
            let rows: Vec<i64> = (0..).zip(&self.lengths).flat_map(repeat_row).collect();
            upload(&rows, self.input_ids.device())
        });
        rows.shallow_clone()
    }

    /// One rank's shard of the tokens; computed at the first call.
    pub fn local(&self, sequence_shard: SequenceShard) -> Rc<LocalBatch> {
        let mut cache = self.cache.borrow_mut();
        if let Some((_, local_batch)) = cache.local_batches.iter().find(|(shard, _)| *shard == sequence_shard)
        {
            return Rc::clone(local_batch);
        }
        let device = self.input_ids.device();
        let token_indices = upload(&sequence_shard.local_indices(&self.lengths), device);
        let local_batch = Rc::new(LocalBatch {
            input_ids: self.input_ids.index_select(0, &token_indices),
            positions: self.positions.index_select(0, &token_indices),
            token_indices,
            size: self.num_tokens(),
            unshard_indices: sequence_shard
                .unshard_indices(&self.lengths)
                .map(|indices| upload(&indices, device)),
            chunk_lens: sequence_shard.chunk_lens(&self.lengths),
            unique_mask: upload(&sequence_shard.unique_mask(&self.lengths), device),
        });
        cache.local_batches.push((sequence_shard, Rc::clone(&local_batch)));
        local_batch
    }

    /// The rotary tables of all tokens, or of one rank's tokens; computed at the first call.
    pub fn rotary(&self, rope: &Rope, kind: Kind, sequence_shard: Option<SequenceShard>) -> Rotary {
        let tokens = sequence_shard.map(|sequence_shard| self.local(sequence_shard));
        let key = (rope.clone(), kind, sequence_shard);
        let mut cache = self.cache.borrow_mut();
        if let Some((_, rotary)) = cache.rotary.iter().find(|(cached_key, _)| *cached_key == key) {
            return rotary.clone();
        }
        let full = rope.rotary(&self.positions, &self.lengths, &self.sequence_lengths, kind);
        let rotary =
            tokens.map_or_else(|| full.clone(), |local_batch| full.select(&local_batch.token_indices));
        cache.rotary.push((key, rotary.clone()));
        rotary
    }

    /// The mask of a group; `None` if plain causality is enough.
    fn mask(&self, group: &PaddedGroup, mask_kind: &MaskKind, kind: Kind) -> Option<Tensor> {
        let (past, padding) =
            group.prefixes.as_ref().map_or((0, None), |prefixes| (prefixes.length, prefixes.padding.clone()));
        let windowed = mask_kind.window.is_some_and(|window| window < group.length);
        if past == 0 && !windowed && mask_kind.alibi.is_none() {
            return None;
        }
        let key = ([past, group.length], padding, mask_kind.clone(), kind);
        let mut cache = self.cache.borrow_mut();
        if let Some((_, mask)) = cache.masks.iter().find(|(cached_key, _)| *cached_key == key) {
            return Some(mask.shallow_clone());
        }
        let device = self.input_ids.device();
        let mut mask = mask_kind.attention_bias(past, group.length, kind, device);
        if let Some(padding) = &key.1 {
            let keys = Tensor::arange(past + group.length, (Kind::Int64, device));
            let hidden = keys.unsqueeze(0).lt_tensor(&upload(padding, device).unsqueeze(1));
            mask = mask.masked_fill(&hidden.unsqueeze(1).unsqueeze(1), f64::NEG_INFINITY);
        }
        cache.masks.push((key, mask.shallow_clone()));
        Some(mask)
    }
}

impl LocalBatch {
    /// Reorders the concatenated shards of all ranks `[P n, ..]` to the full batch `[N, ..]`.
    pub fn unshard(&self, shards: &Tensor) -> Tensor {
        let shape = [&[self.size], &shards.size()[1..]].concat();
        match &self.unshard_indices {
            None => shards.narrow(0, 0, self.size),
            Some(indices) => gather_rows(&shards.flatten(1, -1), indices).view(shape.as_slice()),
        }
    }
}

impl PaddedGroup {
    /// Pads `x` `[N, heads, D]` to `[rows, heads, length, D]`.
    fn pad_input(&self, x: &Tensor) -> Tensor {
        let shape = x.size();
        let tokens = match &self.tokens {
            GroupTokens::Contiguous(start) if *start == 0 && self.rows * self.length == shape[0] => {
                x.shallow_clone()
            }
            GroupTokens::Contiguous(start) => x.narrow(0, *start, self.rows * self.length),
            GroupTokens::Gather(indices) => {
                gather_rows(&x.reshape([shape[0], -1]), indices).view([-1, shape[1], shape[2]])
            }
        };
        tokens.unflatten(0, [self.rows, self.length]).transpose(1, 2)
    }

    /// Pads keys or values `[N, heads, D]` to `[rows, heads, prefix + length, D]`.
    fn pad_keys(&self, x: &Tensor) -> Tensor {
        let Some(prefixes) = &self.prefixes else { return self.pad_input(x) };
        let shape = x.size();
        let keys = gather_rows(&x.reshape([shape[0], -1]), &prefixes.keys);
        keys.view([self.rows, -1, shape[1], shape[2]]).transpose(1, 2)
    }
}

/// Selects rows of `[N, width]`. Uses the embedding kernel, because its backward pass is twice as fast as the
/// backward pass of `index_select`.
pub(crate) fn gather_rows(x: &Tensor, indices: &Tensor) -> Tensor {
    Tensor::embedding(x, indices, -1, false, false)
}

/// The flat index of each row's first token.
fn starts(lengths: &[i64]) -> Vec<i64> {
    lengths
        .iter()
        .scan(0, |next, &length| {
            let start = *next;
            *next += length;
            Some(start)
        })
        .collect()
}

/// For each row the length of the longest sequence that it belongs to.
fn sequence_lengths(lengths: &[i64], prefixes: &[Option<usize>]) -> Vec<i64> {
    let mut longest = lengths.to_vec();
    for (row, prefix) in prefixes.iter().enumerate() {
        if let Some(prefix) = *prefix {
            longest[prefix] = longest[prefix].max(lengths[prefix] + lengths[row]);
        }
    }
    prefixes.iter().enumerate().map(|(row, prefix)| longest[prefix.unwrap_or(row)]).collect()
}

/// Splits rows into padded groups, first the rows without a prefix, and returns the indices that restore the
/// order of the batch.
fn group_rows(
    lengths: &[i64],
    prefixes: &[Option<usize>],
    device: Device,
) -> (Vec<PaddedGroup>, Option<Tensor>) {
    let starts = starts(lengths);
    let past = |row: usize| prefixes[row].map_or(0, |prefix| lengths[prefix]);
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    // Stable: rows of equal length stay in batch order.
    order.sort_by_key(|&row| (prefixes[row].is_some(), std::cmp::Reverse(past(row) + lengths[row])));
    let sizes: Vec<[i64; 2]> = order.iter().map(|&row| [past(row), lengths[row]]).collect();

    let mut groups = Vec::new();
    let mut unpad_indices = vec![0_i64; lengths.iter().sum::<i64>() as usize];
    let mut area = 0;
    let mut rest = order.as_slice();
    while !rest.is_empty() {
        let (rows, later) = rest.split_at(group_size(&sizes[order.len() - rest.len()..]));
        let length = rows.iter().map(|&row| lengths[row]).max().expect("a group has a row");
        for (group_row, &row) in rows.iter().enumerate() {
            let row_start = area + group_row as i64 * length;
            for token in 0..lengths[row] {
                unpad_indices[(starts[row] + token) as usize] = row_start + token;
            }
        }
        groups.push(PaddedGroup {
            rows: rows.len() as i64,
            length,
            tokens: group_tokens(rows, length, lengths, &starts, device),
            prefixes: PaddedPrefixes::new(rows, length, lengths, prefixes, &starts, device),
        });
        area += rows.len() as i64 * length;
        rest = later;
    }

    // Padding after the last row moves no token, but it still has to be removed.
    let unpadded = area as usize == unpad_indices.len();
    let in_place = unpadded && unpad_indices.iter().enumerate().all(|(token, &index)| token as i64 == index);
    let restore = (!in_place).then(|| upload(&unpad_indices, device));
    (groups, restore)
}

/// How many of the next rows, longest first, fit into the next group. `sizes` are, for each row, the lengths
/// of its prefix and of the row itself.
fn group_size(sizes: &[[i64; 2]]) -> usize {
    let (mut tokens, mut widths) = (0, [0, 0]);
    let has_prefix = sizes[0][0] > 0;
    sizes
        .iter()
        .enumerate()
        .take_while(|&(index, &[past, length])| {
            tokens += past + length;
            widths = [widths[0].max(past), widths[1].max(length)];
            let area = (index as i64 + 1) * (widths[0] + widths[1]);
            (past > 0) == has_prefix && area * MAX_PADDING_RATIO.1 <= tokens * MAX_PADDING_RATIO.0
        })
        .count()
}

impl PaddedPrefixes {
    /// The prefixes of `rows`, which are padded to `length` themselves; `None` if they have none.
    fn new(
        rows: &[usize],
        length: i64,
        lengths: &[i64],
        prefixes: &[Option<usize>],
        starts: &[i64],
        device: Device,
    ) -> Option<Self> {
        let longest = rows.iter().map(|&row| prefixes[row].map(|prefix| lengths[prefix])).max()??;
        let (mut keys, mut padding) = (Vec::new(), Vec::new());
        for &row in rows {
            let prefix = prefixes[row]?;
            let pad = longest - lengths[prefix];
            padding.push(pad);
            // Padding repeats the first token of the prefix and the last token of the row.
            keys.extend((0..longest).map(|key| starts[prefix] + (key - pad).max(0)));
            keys.extend((0..length).map(|key| starts[row] + key.min(lengths[row] - 1)));
        }
        let padding = padding.iter().any(|&pad| pad > 0).then_some(padding);
        Some(Self { length: longest, keys: upload(&keys, device), padding })
    }
}

fn group_tokens(rows: &[usize], length: i64, lengths: &[i64], starts: &[i64], device: Device) -> GroupTokens {
    let is_contiguous = rows.iter().zip(rows[0]..).all(|(&row, next)| row == next && lengths[row] == length);
    if is_contiguous {
        return GroupTokens::Contiguous(starts[rows[0]]);
    }
    let token = |&row: &usize| (0..length).map(move |token| starts[row] + token.min(lengths[row] - 1));
    let indices: Vec<i64> = rows.iter().flat_map(token).collect();
    GroupTokens::Gather(upload(&indices, device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::Alibi;

    fn batch(lengths: &[usize]) -> Batch {
        let rows: Vec<Vec<i64>> = lengths.iter().map(|&length| (0..length as i64).collect()).collect();
        let views: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
        Batch::new(&views, Device::Cpu)
    }

    #[test]
    fn equal_rows_are_one_view() {
        let batch = batch(&[3, 3, 3]);
        assert_eq!(batch.groups.len(), 1);
        assert!(
            matches!(batch.groups[0].tokens, GroupTokens::Contiguous(0)) && batch.unpad_indices.is_none()
        );
        assert_eq!(batch.last_indices(), [2, 5, 8]);
        assert_eq!(Vec::<i64>::try_from(&batch.positions).unwrap(), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn groups_by_hand() {
        // Sorted lengths: 10, 9, 8 (rows 1, 3, 2), then 4 (row 0). 10 alone: 10/10. With 9: 20/19 < 5/4. With
        // 8: 30/27 < 5/4. With 4: 40/31 > 5/4.
        let batch = batch(&[4, 10, 8, 9]);
        let shapes: Vec<(i64, i64)> = batch.groups.iter().map(|group| (group.rows, group.length)).collect();
        assert_eq!(shapes, [(3, 10), (1, 4)]);
        // Row 0 starts after the first padded area of 30; row 1 starts at 0, row 3 at 10 and row 2 at 20.
        let restore = Vec::<i64>::try_from(batch.unpad_indices.as_ref().unwrap()).unwrap();
        assert_eq!((restore[0], restore[4], restore[14], restore[22]), (30, 0, 20, 10));
    }

    #[test]
    fn a_row_gets_the_same_numbers_in_any_company() {
        tch::manual_seed(1);
        // In the second batch every token stays in place, and only the padding after the last row is removed.
        for lengths in [vec![5, 7, 2, 7, 6], vec![5, 4]] {
            assert_same_in_any_company(&lengths);
        }
    }

    fn assert_same_in_any_company(lengths: &[usize]) {
        let batch = batch(lengths);
        let tokens = lengths.iter().sum::<usize>() as i64;
        let random = |heads: i64| Tensor::randn([tokens, heads, 8], (Kind::Float, Device::Cpu));
        let (q, k, v) = (random(4), random(2), random(2));
        for mask in [
            MaskKind { window: None, alibi: None },
            MaskKind { window: Some(3), alibi: None },
            MaskKind { window: None, alibi: Some(Alibi { heads: 4, local_heads: 0..4 }) },
        ] {
            let together = batch.attend(&q, &k, &v, 0.3, &mask);
            assert_eq!(together.size(), [tokens, 32]);
            for (row, start) in batch.first_indices().into_iter().enumerate() {
                let own_rows = |x: &Tensor| x.narrow(0, start, lengths[row] as i64);
                let alone = self::batch(&[lengths[row]]).attend(
                    &own_rows(&q),
                    &own_rows(&k),
                    &own_rows(&v),
                    0.3,
                    &mask,
                );
                assert!(alone.allclose(&own_rows(&together), 1e-5, 1e-6, false), "{mask:?} row {row}");
            }
        }
    }

    #[test]
    fn window_of_two_sees_itself_and_one_before() {
        let mask = MaskKind { window: Some(2), alibi: None }.attention_bias(1, 2, Kind::Float, Device::Cpu);
        let seen = Vec::<f32>::try_from(mask.view([6])).unwrap();
        let none = f32::NEG_INFINITY;
        assert_eq!(seen, [0.0, 0.0, none, none, 0.0, 0.0]);
    }
}
