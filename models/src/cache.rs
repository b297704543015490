//! The KV cache: keys and values of past tokens, in slots that are allocated once (contiguous, unlike the
//! pages of vLLM).
//!
//! Each layer holds keys and values of shape `[slots, kv_heads, capacity, D]` each. A slot holds one sequence
//! and has its own length. New tokens are written in place, without concatenation. Query heads that share a
//! key-value head read it without a copy.

use std::ops::Range;

use parallel::kernels::attention;
use parallel::upload;
use tch::{Device, Kind, Tensor, no_grad};

use crate::attention::Attention;
use crate::mask::MaskKind;
use crate::rope::Rotary;

/// The sizes of a [`KvCache`].
#[derive(Clone, Copy, Debug)]
pub struct CacheShape {
    /// Number of layers.
    pub layers: i64,
    /// Number of slots, one per sequence.
    pub slots: i64,
    /// Number of key-value heads.
    pub kv_heads: i64,
    /// Number of tokens that a slot has room for.
    pub capacity: i64,
    /// Size of a head.
    pub head_dim: i64,
}

/// The keys and values of several sequences.
#[derive(Debug)]
pub struct KvCache {
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    lengths: Vec<i64>,
    /// The lengths on the device of the cache, while only [`advance_by_one`](Self::advance_by_one) changes
    /// them.
    device_lengths: Option<Tensor>,
    kv_heads: i64,
    capacity: i64,
    device: Device,
    /// The rotary tables of all positions, once a decoding step has needed them.
    rotary: Option<Rotary>,
}

impl KvCache {
    /// Allocates empty slots.
    pub fn new(shape: CacheShape, kind: Kind, device: Device) -> Self {
        let CacheShape { layers, slots, kv_heads, capacity, head_dim } = shape;
        let shape = [slots, kv_heads, capacity, head_dim];
        // The memory must be zeroed: a masked key is multiplied by zero, and zero times NaN is NaN.
        let layers = || (0..layers).map(|_| Tensor::zeros(shape, (kind, device))).collect();
        let lengths = vec![0; slots as usize];
        Self {
            keys: layers(),
            values: layers(),
            lengths,
            device_lengths: None,
            kv_heads,
            capacity,
            device,
            rotary: None,
        }
    }

    /// The number of tokens in each slot.
    pub fn lengths(&self) -> &[i64] {
        &self.lengths
    }

    /// Empties a slot.
    pub fn reset_slot(&mut self, slot: i64) {
        if std::mem::take(&mut self.lengths[slot as usize]) > 0 {
            self.device_lengths = None;
        }
    }

    /// Moves the sequences of `slots` (ascending, without duplicates) to the first slots in this order, and
    /// empties the other slots.
    pub fn compact(&mut self, slots: &[i64]) {
        assert!(slots.windows(2).all(|pair| pair[0] < pair[1]), "the slots to keep are in ascending order");
        let longest = slots.iter().map(|&slot| self.lengths[slot as usize]).max().unwrap_or(0);
        no_grad(|| {
            for (to, &from) in slots.iter().enumerate().filter(|&(to, &from)| to as i64 != from) {
                for layer in self.keys.iter().chain(&self.values) {
                    let sequence = |slot: i64| layer.select(0, slot).narrow(1, 0, longest);
                    sequence(to as i64).copy_(&sequence(from));
                }
            }
        });
        let mut lengths: Vec<i64> = slots.iter().map(|&slot| self.lengths[slot as usize]).collect();
        lengths.resize(self.lengths.len(), 0);
        self.lengths = lengths;
        self.device_lengths = None;
    }

    /// The rows of the flat cache to which `counts[r]` new tokens of each `slots[r]` are written: indices
    /// into `[slots * kv_heads * capacity, D]`, in the order `[token, kv_head]`.
    pub(crate) fn slot_mapping(&self, slots: &[i64], counts: &[i64], device: Device) -> Tensor {
        let mut indices = Vec::new();
        for (&slot, &count) in slots.iter().zip(counts) {
            let length = self.lengths[slot as usize];
            let (needed, capacity) = (length + count, self.capacity);
            assert!(
                needed <= capacity,
                "slot {slot} needs room for {needed} tokens and the cache holds {capacity}"
            );
            for token in length..needed {
                indices
                    .extend((0..self.kv_heads).map(|head| (slot * self.kv_heads + head) * capacity + token));
            }
        }
        upload(&indices, device)
    }

    /// The rotary tables of all positions that the cache has room for; `compute` makes those of the positions
    /// `[N]` that it gets.
    pub(crate) fn rotary(&mut self, compute: impl FnOnce(&Tensor) -> Rotary) -> &Rotary {
        let (capacity, device) = (self.capacity, self.device);
        self.rotary.get_or_insert_with(|| compute(&Tensor::arange(capacity, (Kind::Int64, device))))
    }

    /// Writes a layer's keys and values `[N, kv_heads, D]` to the rows from
    /// [`slot_mapping`](Self::slot_mapping).
    pub(crate) fn write(&self, layer: usize, slot_mapping: &Tensor, k: &Tensor, v: &Tensor) {
        for (cached, new) in [(&self.keys[layer], k), (&self.values[layer], v)] {
            let dim = new.size()[2];
            let _ = cached.view([-1, dim]).index_copy_(0, slot_mapping, &new.reshape([-1, dim]));
        }
    }

    /// Adds `counts[r]` new tokens to the length of each `slots[r]`.
    pub(crate) fn advance(&mut self, slots: &[i64], counts: &[i64]) {
        for (&slot, &count) in slots.iter().zip(counts) {
            self.lengths[slot as usize] += count;
        }
        self.device_lengths = None;
    }

    /// The lengths of the first `rows` slots, int64 `[rows]`, on the device of the cache. Valid until the
    /// next change of the cache.
    pub(crate) fn device_lengths(&mut self, rows: i64) -> Tensor {
        let upload = || upload(&self.lengths, self.device);
        self.device_lengths.get_or_insert_with(upload).narrow(0, 0, rows)
    }

    /// Like [`slot_mapping`](Self::slot_mapping), for one new token in each of the first slots, whose lengths
    /// are `past` `[rows]`. Nothing is copied from the host.
    pub(crate) fn next_token_mapping(&self, past: &Tensor) -> Tensor {
        let (rows, device) = (past.size()[0], past.device());
        let longest = self.lengths[..rows as usize].iter().max().copied().unwrap_or(0);
        assert!(longest < self.capacity, "a slot of {longest} tokens is full, and one more token comes");
        let heads = Tensor::arange(rows * self.kv_heads, (Kind::Int64, device)) * self.capacity;
        (heads.view([rows, self.kv_heads]) + past.unsqueeze(1)).reshape([-1])
    }

    /// Adds one token to each of the first `rows` slots.
    pub(crate) fn advance_by_one(&mut self, rows: i64) {
        self.lengths[..rows as usize].iter_mut().for_each(|length| *length += 1);
        if let Some(lengths) = &self.device_lengths {
            let _ = lengths.narrow(0, 0, rows).g_add_scalar_(1);
        }
    }

    /// A layer's keys and values `[count, kv_heads, length, D]`, for `count` slots from `first` on.
    pub(crate) fn read(&self, layer: usize, first: i64, count: i64, length: i64) -> [Tensor; 2] {
        [&self.keys[layer], &self.values[layer]]
            .map(|cached| cached.narrow(0, first, count).narrow(2, 0, length))
    }

    /// Attention of the next token in each of the first slots, with queries `q` `[rows, heads, D]`, over the
    /// tokens of its own slot, whose keys and values have been written: `[rows, heads * D]`. `None` if
    /// [`attention::decode`] does not compute it.
    pub(crate) fn attend_own_tokens(
        &self,
        layer: usize,
        q: &Tensor,
        attention: &Attention,
    ) -> Option<Tensor> {
        let MaskKind { window, alibi: None } = attention.mask() else { return None };
        let first = |end: i64| window.map_or(0, |window| (end - window).max(0));
        let visible = |&past: &i64| first(past + 1) as usize..past as usize + 1;
        let visible: Vec<Range<usize>> = self.lengths[..q.size()[0] as usize].iter().map(visible).collect();
        let cached = attention::Cached { keys: &self.keys[layer], values: &self.values[layer] };
        attention::decode(q, cached, &visible, attention.scale())
    }

    /// The attention mask of the next token in each of the first slots, whose lengths are `past` `[rows]`:
    /// `[rows, 1 or heads, 1, longest + 1]`; `None` if every token sees all keys.
    pub(crate) fn decoding_mask(&self, past: &Tensor, mask_kind: &MaskKind, kind: Kind) -> Option<Tensor> {
        let lengths = &self.lengths[..past.size()[0] as usize];
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let equal = lengths.iter().all(|&length| length == longest);
        let windowed = mask_kind.window.is_some_and(|window| window <= longest);
        if equal && !windowed && mask_kind.alibi.is_none() {
            return None;
        }
        let queries = past.to_kind(Kind::Float).view([-1, 1, 1]);
        let distance = Tensor::arange(longest + 1, (Kind::Float, past.device())) - queries; // [rows, 1, keys]
        Some(mask_kind.bias_at_distance(&distance).to_kind(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> KvCache {
        let shape = CacheShape { layers: 1, slots: 3, kv_heads: 2, capacity: 4, head_dim: 2 };
        KvCache::new(shape, Kind::Float, Device::Cpu)
    }

    fn write(cache: &mut KvCache, slot: i64, count: i64, value: f64) {
        let slot_mapping = cache.slot_mapping(&[slot], &[count], Device::Cpu);
        let new = Tensor::full([count, 2, 2], value, (Kind::Float, Device::Cpu));
        cache.write(0, &slot_mapping, &new, &(&new * 10.0));
        cache.advance(&[slot], &[count]);
    }

    #[test]
    fn kept_slots_move_to_the_front() {
        let mut cache = cache();
        write(&mut cache, 1, 2, 5.0);
        write(&mut cache, 2, 3, 7.0);
        cache.compact(&[1, 2]);
        assert_eq!(cache.lengths(), [2, 3, 0]);
        let [keys, values] = cache.read(0, 0, 2, 3);
        assert_eq!(keys.double_value(&[0, 1, 1, 0]), 5.0);
        assert_eq!(values.double_value(&[1, 0, 2, 1]), 70.0);
    }

    #[test]
    fn a_new_token_is_appended_to_its_slot() {
        let mut cache = cache();
        write(&mut cache, 1, 2, 5.0);
        write(&mut cache, 1, 1, 6.0);
        let [keys, _] = cache.read(0, 1, 1, 3);
        assert_eq!(Vec::<f32>::try_from(keys.select(3, 0).select(1, 1).view([3])).unwrap(), [5.0, 5.0, 6.0]);
    }

    #[test]
    #[should_panic(expected = "needs room for 5 tokens and the cache holds 4")]
    fn more_than_the_capacity_is_refused() {
        write(&mut cache(), 0, 5, 1.0);
    }

    #[test]
    fn masks_by_hand() {
        let mut cache = cache();
        write(&mut cache, 0, 2, 1.0);
        write(&mut cache, 1, 1, 1.0);
        let plain = MaskKind { window: None, alibi: None };
        let past = cache.device_lengths(2);
        let mask = cache.decoding_mask(&past, &plain, Kind::Float).unwrap();
        assert_eq!(mask.size(), [2, 1, 1, 3]);
        // The new token of the second slot is its second token, so the third key does not belong to this
        // slot.
        assert_eq!(
            Vec::<f32>::try_from(mask.view([6])).unwrap(),
            [0.0, 0.0, 0.0, 0.0, 0.0, f32::NEG_INFINITY]
        );
        let first = cache.device_lengths(1);
        assert!(cache.decoding_mask(&first, &plain, Kind::Float).is_none());
        let window = MaskKind { window: Some(2), alibi: None };
        let mask = cache.decoding_mask(&first, &window, Kind::Float).unwrap();
        assert_eq!(Vec::<f32>::try_from(mask.view([3])).unwrap(), [f32::NEG_INFINITY, 0.0, 0.0]);
    }
}
