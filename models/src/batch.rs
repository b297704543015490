//! Rows of tokens as one flat batch, and how attention puts them side by side.
//!
//! Everything but attention works on `[N, ...]`, `N` the tokens of all rows, and never sees a pad. For attention, rows of
//! similar length form a group, right-padded to its longest row: rows sorted by length join the group while its padded
//! area stays within 5/4 of its tokens. Under a causal mask no token sees a pad on its right, so a group needs no mask.
//! Rows of equal length that follow one another are a view and cost nothing. What depends on the batch alone (index
//! tensors, masks, sines) is made once and kept here. Several sequences packed together are simply more rows.
//!
//! Knows no layer.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use parallel::sequence::SequenceShard;
use tch::{Device, Kind, Tensor, no_grad};

use crate::moe::LoadBalancingLoss;
use crate::rope::{Rope, Rotary};

/// Tokens in a group's padded area, at most, for each real one: 5/4.
const MAX_PADDING_RATIO: (i64, i64) = (5, 4);

/// A flat batch.
#[derive(Debug)]
pub struct Batch {
    /// Token ids, int64 `[N]`, row after row.
    pub input_ids: Tensor,
    /// Position of each token in its row, int64 `[N]`.
    pub positions: Tensor,
    /// Tokens of each row.
    pub lengths: Vec<i64>,
    /// The weight of one token in the term that keeps experts equally busy; 0 without that term.
    pub aux_loss_coef: f64,
    is_empty: bool,
    groups: Vec<PaddedGroup>,
    /// Where each token lies in the groups' padded areas laid end to end; `None` if just there.
    unpad_indices: Option<Tensor>,
    cache: RefCell<BatchCache>,
}

/// Rows that attention handles together.
#[derive(Debug)]
struct PaddedGroup {
    rows: i64,
    length: i64,
    tokens: GroupTokens,
}

/// Where a group's tokens come from.
#[derive(Debug)]
enum GroupTokens {
    /// A run of the flat batch from this token on.
    Run(i64),
    /// These tokens of the flat batch, int64 `[rows * length]`; pads repeat their row's last token.
    Gather(Tensor),
}

/// What sines and cosines depend on beside the batch: the tokens of one rank, or of all.
type RotaryKey = (Rope, Kind, Option<SequenceShard>);

/// What was made for this batch, under what it was made from.
#[derive(Debug, Default)]
struct BatchCache {
    rotary: Vec<(RotaryKey, Rotary)>,
    parts: Vec<(SequenceShard, Rc<LocalBatch>)>,
    rows: Option<Tensor>,
    masks: Vec<((i64, MaskKind, Kind), Tensor)>,
}

/// The tokens of a batch that one rank has, where ranks share them.
#[derive(Debug)]
pub struct LocalBatch {
    /// Token ids, int64 `[n]`.
    pub input_ids: Tensor,
    /// Position of each token in its row, int64 `[n]`.
    pub positions: Tensor,
    /// The token of the batch that each one is, int64 `[n]`.
    token_indices: Tensor,
    /// Tokens of the batch.
    size: i64,
    /// Where they lie when the parts of all ranks are laid end to end, int64 `[N]`; `None` if just there.
    unshard_indices: Option<Tensor>,
    /// Tokens of a chunk of each row.
    pub chunk_lens: Vec<i64>,
    /// Of each token, whether no earlier rank has it too; fp32 `[n]`.
    pub unique_mask: Tensor,
}

/// Which keys a query sees and at what price, beside causality.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskKind {
    /// The latest tokens that are seen, the query's own included.
    pub window: Option<i64>,
    /// Whether far keys pay by distance.
    pub alibi: Option<Alibi>,
}

/// The heads whose keys pay by distance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alibi {
    /// All heads of the layer: their number decides the slopes.
    pub heads: i64,
    /// Those that are computed here.
    pub local_heads: Range<i64>,
}

impl Batch {
    /// A batch of rows, each with at least one token. An empty batch gets one dummy token. A rank without
    /// rows still has to take part in the collectives of every layer.
    pub fn new(rows: &[&[i64]], device: Device) -> Self {
        assert!(rows.iter().all(|row| !row.is_empty()), "each row of a batch has a token");
        let is_empty = rows.is_empty();
        let rows: &[&[i64]] = if is_empty { &[&[0]] } else { rows };
        let lengths: Vec<i64> = rows.iter().map(|row| row.len() as i64).collect();
        let positions: Vec<i64> = lengths.iter().flat_map(|&length| 0..length).collect();
        let (groups, unpad_indices) = group_by_length(&lengths, device);
        Self {
            input_ids: Tensor::from_slice(&rows.concat()).to_device(device),
            positions: Tensor::from_slice(&positions).to_device(device),
            lengths,
            aux_loss_coef: 0.0,
            is_empty,
            groups,
            unpad_indices,
            cache: RefCell::default(),
        }
    }

    /// The same batch, with the weight of one token in the term that keeps experts equally busy.
    #[must_use]
    pub fn with_aux_loss_coef(self, aux_loss_coef: f64) -> Self {
        Self { aux_loss_coef, ..self }
    }

    /// The tokens of its rows.
    pub fn num_real_tokens(&self) -> i64 {
        if self.is_empty { 0 } else { self.num_tokens() }
    }

    /// The number of tokens.
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

    /// Tokens in the padded areas of attention; at most 5/4 of [`num_tokens`](Self::num_tokens).
    pub fn padded_tokens(&self) -> i64 {
        self.groups.iter().map(|group| group.rows * group.length).sum()
    }

    /// Causal attention within each row: `q` `[N, heads, D]`, `k` and `v` `[N, kv_heads, D]` to `[N, heads * D]`.
    pub fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, mask: &MaskKind) -> Tensor {
        let attended: Vec<Tensor> = self
            .groups
            .iter()
            .map(|group| {
                let mask = self.mask(group.length, mask, q.kind());
                let side = |x: &Tensor| group.pad_input(x);
                crate::attention::scaled_dot_product(&side(q), &side(k), &side(v), mask.as_ref(), scale)
                    .transpose(1, 2)
                    .reshape([group.rows * group.length, -1])
            })
            .collect();
        let joined = match attended.as_slice() {
            [one] => one.shallow_clone(),
            several => Tensor::cat(several, 0),
        };
        match &self.unpad_indices {
            Some(indices) => gather_rows(&joined, indices),
            None => joined,
        }
    }

    /// What keeps experts equally busy over all tokens, or over those of a part.
    pub(crate) fn load_balancing_loss(
        &self,
        part: Option<&LocalBatch>,
        group: Option<&Arc<parallel::comm::ProcessGroup>>,
    ) -> Option<LoadBalancingLoss> {
        if self.aux_loss_coef == 0.0 || self.is_empty {
            return None;
        }
        let device = self.input_ids.device();
        let rows = self.row_index();
        Some(LoadBalancingLoss {
            row_index: part
                .map_or_else(|| rows.shallow_clone(), |part| rows.index_select(0, &part.token_indices)),
            lengths: Tensor::from_slice(&self.lengths).to_device(device).to_kind(Kind::Float),
            unique_mask: part.map(|part| part.unique_mask.shallow_clone()),
            coef: self.aux_loss_coef,
            group: group.cloned(),
        })
    }

    /// The row of each token, int64 `[N]`, found at the first call.
    fn row_index(&self) -> Tensor {
        let mut kept = self.cache.borrow_mut();
        let rows = kept.rows.get_or_insert_with(|| {
            let of_row = |(row, &length): (i64, &i64)| std::iter::repeat_n(row, length as usize);
            let rows: Vec<i64> = (0..).zip(&self.lengths).flat_map(of_row).collect();
            Tensor::from_slice(&rows).to_device(self.input_ids.device())
        });
        rows.shallow_clone()
    }

    /// The tokens of one rank, found at the first call.
    pub fn local(&self, layout: SequenceShard) -> Rc<LocalBatch> {
        let mut kept = self.cache.borrow_mut();
        if let Some((_, part)) = kept.parts.iter().find(|(of, _)| *of == layout) {
            return Rc::clone(part);
        }
        let device = self.input_ids.device();
        let token_indices = Tensor::from_slice(&layout.local_indices(&self.lengths)).to_device(device);
        let part = Rc::new(LocalBatch {
            input_ids: self.input_ids.index_select(0, &token_indices),
            positions: self.positions.index_select(0, &token_indices),
            token_indices,
            size: self.num_tokens(),
            unshard_indices: layout
                .unshard_indices(&self.lengths)
                .map(|places| Tensor::from_slice(&places).to_device(device)),
            chunk_lens: layout.chunk_lens(&self.lengths),
            unique_mask: Tensor::from_slice(&layout.unique_mask(&self.lengths)).to_device(device),
        });
        kept.parts.push((layout, Rc::clone(&part)));
        part
    }

    /// Sine and cosine of every token, or of those of one rank, made at the first call.
    pub fn rotary(&self, rope: &Rope, kind: Kind, layout: Option<SequenceShard>) -> Rotary {
        let tokens = layout.map(|layout| self.local(layout));
        let key = (rope.clone(), kind, layout);
        let mut kept = self.cache.borrow_mut();
        if let Some((_, rotary)) = kept.rotary.iter().find(|(made, _)| *made == key) {
            return rotary.clone();
        }
        let whole = rope.rotary(&self.positions, &self.lengths, &self.lengths, kind);
        let rotary = tokens.map_or_else(|| whole.clone(), |part| whole.select(&part.token_indices));
        kept.rotary.push((key, rotary.clone()));
        rotary
    }

    /// The mask of rows of `length`; `None` where plain causality says it all.
    fn mask(&self, length: i64, wanted: &MaskKind, kind: Kind) -> Option<Tensor> {
        let windowed = wanted.window.is_some_and(|window| window < length);
        if !windowed && wanted.alibi.is_none() {
            return None;
        }
        let key = (length, wanted.clone(), kind);
        let mut kept = self.cache.borrow_mut();
        if let Some((_, mask)) = kept.masks.iter().find(|(made, _)| *made == key) {
            return Some(mask.shallow_clone());
        }
        let mask = wanted.attention_bias(0, length, kind, self.input_ids.device());
        kept.masks.push((key, mask.shallow_clone()));
        Some(mask)
    }
}

impl LocalBatch {
    /// From the parts of all ranks, end to end `[P n, ..]`, to the batch `[N, ..]`.
    pub fn unshard(&self, parts: &Tensor) -> Tensor {
        let shape = [&[self.size], &parts.size()[1..]].concat();
        match &self.unshard_indices {
            None => parts.narrow(0, 0, self.size),
            Some(places) => gather_rows(&parts.flatten(1, -1), places).view(shape.as_slice()),
        }
    }
}

impl PaddedGroup {
    /// `[N, heads, D]` to `[rows, heads, length, D]`.
    fn pad_input(&self, x: &Tensor) -> Tensor {
        let shape = x.size();
        let tokens = match &self.tokens {
            GroupTokens::Run(start) if *start == 0 && self.rows * self.length == shape[0] => {
                x.shallow_clone()
            }
            GroupTokens::Run(start) => x.narrow(0, *start, self.rows * self.length),
            GroupTokens::Gather(indices) => {
                gather_rows(&x.reshape([shape[0], -1]), indices).view([-1, shape[1], shape[2]])
            }
        };
        tokens.unflatten(0, [self.rows, self.length]).transpose(1, 2)
    }
}

impl MaskKind {
    /// What is added to the scores of queries at positions `past..past + queries` for the keys before and at them:
    /// `[1, 1 or heads, queries, past + queries]`, minus infinity where a key is not seen.
    pub fn attention_bias(&self, past: i64, queries: i64, kind: Kind, device: Device) -> Tensor {
        no_grad(|| {
            let keys = Tensor::arange(past + queries, (Kind::Float, device));
            let distance = keys.unsqueeze(0) - keys.narrow(0, past, queries).unsqueeze(1); // [queries, keys]
            self.bias_at_distance(&distance).view([1, -1, queries, past + queries]).to_kind(kind)
        })
    }

    /// The price of a key at `distance` (key minus query) `[..., queries, keys]`; a head dimension is put in front.
    pub fn bias_at_distance(&self, distance: &Tensor) -> Tensor {
        let mut unseen = distance.gt(0.0);
        if let Some(window) = self.window {
            unseen = unseen.logical_or(&distance.le(-window as f64));
        }
        let price = match &self.alibi {
            Some(Alibi { heads, local_heads }) => {
                let slopes = &alibi_slopes(*heads)[local_heads.start as usize..local_heads.end as usize];
                let slopes = Tensor::from_slice(slopes).to_device(distance.device());
                slopes.view([-1, 1, 1]) * distance.unsqueeze(-3)
            }
            None => distance.zeros_like().unsqueeze(-3),
        };
        price.masked_fill(&unseen.unsqueeze(-3), f64::NEG_INFINITY)
    }
}

/// The slopes of Press et al. 2021, section 3: `2^(-8 i / n)` for a power of two `n`; for other counts every second slope
/// of the next power of two fills up.
pub fn alibi_slopes(heads: i64) -> Vec<f32> {
    let power = 1_i64 << heads.ilog2();
    let slope = |index: f64, count: i64| (-8.0 * index / count as f64).exp2() as f32;
    let first = (1..=power).map(|index| slope(index as f64, power));
    let rest = (0..heads - power).map(|index| slope((2 * index + 1) as f64, 2 * power));
    first.chain(rest).collect()
}

/// Rows of `[N, width]`; as a look-up in a table, whose backward is twice as fast as that of `index_select`.
fn gather_rows(x: &Tensor, indices: &Tensor) -> Tensor {
    Tensor::embedding(x, indices, -1, false, false)
}

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

/// Divides rows into groups and says how to undo it.
fn group_by_length(lengths: &[i64], device: Device) -> (Vec<PaddedGroup>, Option<Tensor>) {
    let starts = starts(lengths);
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&row| std::cmp::Reverse(lengths[row])); // stable: equal lengths stay in batch order
    let mut groups = Vec::new();
    let mut places = vec![0_i64; lengths.iter().sum::<i64>() as usize];
    let mut area = 0;
    let mut rest = order.as_slice();
    while !rest.is_empty() {
        let (rows, later) = rest.split_at(group_size(rest, lengths));
        let length = lengths[rows[0]];
        for (slot, &row) in rows.iter().enumerate() {
            let place = area + slot as i64 * length;
            for token in 0..lengths[row] {
                places[(starts[row] + token) as usize] = place + token;
            }
        }
        groups.push(PaddedGroup {
            rows: rows.len() as i64,
            length,
            tokens: source(rows, lengths, &starts, device),
        });
        area += rows.len() as i64 * length;
        rest = later;
    }
    // Padding behind the last row moves no token, and still has to go.
    let unpadded = area as usize == places.len();
    let in_place = unpadded && places.iter().enumerate().all(|(token, &place)| token as i64 == place);
    let restore = (!in_place).then(|| Tensor::from_slice(&places).to_device(device));
    (groups, restore)
}

/// How many of the rows, longest first, go together.
fn group_size(rows: &[usize], lengths: &[i64]) -> usize {
    let longest = lengths[rows[0]];
    let mut tokens = 0;
    rows.iter()
        .enumerate()
        .take_while(|&(index, &row)| {
            tokens += lengths[row];
            (index as i64 + 1) * longest * MAX_PADDING_RATIO.1 <= tokens * MAX_PADDING_RATIO.0
        })
        .count()
}

fn source(rows: &[usize], lengths: &[i64], starts: &[i64], device: Device) -> GroupTokens {
    let length = lengths[rows[0]];
    let run = rows.iter().zip(rows[0]..).all(|(&row, next)| row == next && lengths[row] == length);
    if run {
        return GroupTokens::Run(starts[rows[0]]);
    }
    let token = |&row: &usize| (0..length).map(move |token| starts[row] + token.min(lengths[row] - 1));
    let indices: Vec<i64> = rows.iter().flat_map(token).collect();
    GroupTokens::Gather(Tensor::from_slice(&indices).to_device(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(lengths: &[usize]) -> Batch {
        let rows: Vec<Vec<i64>> = lengths.iter().map(|&length| (0..length as i64).collect()).collect();
        let views: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
        Batch::new(&views, Device::Cpu)
    }

    #[test]
    fn equal_rows_are_one_view() {
        let batch = batch(&[3, 3, 3]);
        assert_eq!(batch.groups.len(), 1);
        assert!(matches!(batch.groups[0].tokens, GroupTokens::Run(0)) && batch.unpad_indices.is_none());
        assert_eq!(batch.last_indices(), [2, 5, 8]);
        assert_eq!(Vec::<i64>::try_from(&batch.positions).unwrap(), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn groups_by_hand() {
        // Sorted: 10, 9, 8 (rows 1, 3, 2). 10 alone: 10/10. With 9: 20/19 < 5/4. With 8: 30/27 < 5/4. With 4: 40/31 > 5/4.
        let batch = batch(&[4, 10, 8, 9]);
        let shapes: Vec<(i64, i64)> = batch.groups.iter().map(|group| (group.rows, group.length)).collect();
        assert_eq!(shapes, [(3, 10), (1, 4)]);
        assert_eq!(batch.padded_tokens(), 34);
        // Row 0 lies behind the first area of 30, row 1 at its start, row 3 at 10 and row 2 at 20.
        let restore = Vec::<i64>::try_from(batch.unpad_indices.as_ref().unwrap()).unwrap();
        assert_eq!((restore[0], restore[4], restore[14], restore[22]), (30, 0, 20, 10));
    }

    #[test]
    fn a_row_gets_the_same_numbers_in_any_company() {
        tch::manual_seed(1);
        // In the second batch every token stays where it is, and only the padding behind the last row goes.
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
    fn slopes_by_hand() {
        // Four heads: 2^-2, 2^-4, 2^-6, 2^-8. A fifth and sixth take 2^-1 and 2^-3 of the eight-head list.
        assert_eq!(alibi_slopes(6), [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]);
    }

    #[test]
    fn window_of_two_sees_itself_and_one_before() {
        let mask = MaskKind { window: Some(2), alibi: None }.attention_bias(1, 2, Kind::Float, Device::Cpu);
        let seen = Vec::<f32>::try_from(mask.view([6])).unwrap();
        let none = f32::NEG_INFINITY;
        assert_eq!(seen, [0.0, 0.0, none, none, 0.0, 0.0]);
    }
}
