//! The KV cache: keys and values of past tokens, in slots that are allocated once.
//!
//! Each layer holds keys and values of shape `[slots, kv_heads, capacity, D]` each. A slot holds one sequence
//! and has its own length. New tokens are written in place, without concatenation. Query heads that share a
//! key-value head read it without a copy.

use tch::{Device, Kind, Tensor, no_grad};

use crate::mask::MaskKind;

/// The keys and values of several sequences.
#[derive(Debug)]
pub struct KvCache {
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    lengths: Vec<i64>,
    kv_heads: i64,
    capacity: i64,
}

impl KvCache {
    /// Allocates empty slots for sequences of up to `capacity` tokens. `sizes` are the number of layers, the
    /// number of key-value heads and the head size.
    pub fn new(sizes: [i64; 3], slots: i64, capacity: i64, kind: Kind, device: Device) -> Self {
        let [layers, kv_heads, dim] = sizes;
        let shape = [slots, kv_heads, capacity, dim];
        // The memory must be zeroed: a masked key is multiplied by zero, and zero times NaN is NaN.
        let layers = || (0..layers).map(|_| Tensor::zeros(shape, (kind, device))).collect();
        Self { keys: layers(), values: layers(), lengths: vec![0; slots as usize], kv_heads, capacity }
    }

    /// The number of tokens in each slot.
    pub fn lengths(&self) -> &[i64] {
        &self.lengths
    }

    /// Empties a slot.
    pub fn reset_slot(&mut self, slot: i64) {
        self.lengths[slot as usize] = 0;
    }

    /// Moves the sequences of `slots` (ascending, without duplicates) to the first slots in this order, and
    /// empties the other slots.
    pub fn compact(&mut self, slots: &[i64]) {
        assert!(slots.windows(2).all(|pair| pair[0] < pair[1]), "the slots to keep are in ascending order");
        let longest = slots.iter().map(|&slot| self.lengths[slot as usize]).max().unwrap_or(0);
        no_grad(|| {
            for (to, &from) in slots.iter().enumerate().filter(|&(to, &from)| to as i64 != from) {
                for layer in self.keys.iter().chain(&self.values) {
                    let part = |slot: i64| layer.select(0, slot).narrow(1, 0, longest);
                    part(to as i64).copy_(&part(from));
                }
            }
        });
        let mut lengths: Vec<i64> = slots.iter().map(|&slot| self.lengths[slot as usize]).collect();
        lengths.resize(self.lengths.len(), 0);
        self.lengths = lengths;
    }

    /// The places where `counts[r]` new tokens of each `slots[r]` are written: row indices of the flat cache
    /// `[slots * kv_heads * capacity, D]`, in the order `[token, kv_head]`.
    pub(crate) fn slot_mapping(&self, slots: &[i64], counts: &[i64], device: Device) -> Tensor {
        let mut places = Vec::new();
        for (&slot, &count) in slots.iter().zip(counts) {
            let length = self.lengths[slot as usize];
            let (needed, capacity) = (length + count, self.capacity);
            assert!(
                needed <= capacity,
                "slot {slot} needs room for {needed} tokens and the cache holds {capacity}"
            );
            for token in length..needed {
                places
                    .extend((0..self.kv_heads).map(|head| (slot * self.kv_heads + head) * capacity + token));
            }
        }
        Tensor::from_slice(&places).to_device(device)
    }

    /// Writes a layer's keys and values `[N, kv_heads, D]` to the places from
    /// [`slot_mapping`](Self::slot_mapping).
    pub(crate) fn write(&self, layer: usize, places: &Tensor, k: &Tensor, v: &Tensor) {
        for (held, new) in [(&self.keys[layer], k), (&self.values[layer], v)] {
            let dim = new.size()[2];
            let _ = held.view([-1, dim]).index_copy_(0, places, &new.reshape([-1, dim]));
        }
    }

    /// Adds `counts[r]` new tokens to the length of each `slots[r]`.
    pub(crate) fn advance(&mut self, slots: &[i64], counts: &[i64]) {
        for (&slot, &count) in slots.iter().zip(counts) {
            self.lengths[slot as usize] += count;
        }
    }

    /// A layer's keys and values `[count, kv_heads, length, D]`, for `count` slots from `first` on.
    pub(crate) fn read(&self, layer: usize, first: i64, count: i64, length: i64) -> [Tensor; 2] {
        [&self.keys[layer], &self.values[layer]].map(|held| held.narrow(0, first, count).narrow(2, 0, length))
    }

    /// The attention mask of the next token in each of the first `rows` slots:
    /// `[rows, 1 or heads, 1, longest + 1]`; `None` if every token sees all keys.
    pub(crate) fn decoding_mask(
        &self,
        rows: i64,
        mask_kind: &MaskKind,
        kind: Kind,
        device: Device,
    ) -> Option<Tensor> {
        let lengths = &self.lengths[..rows as usize];
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let equal = lengths.iter().all(|&length| length == longest);
        let windowed = mask_kind.window.is_some_and(|window| window <= longest);
        if equal && !windowed && mask_kind.alibi.is_none() {
            return None;
        }
        let queries = Tensor::from_slice(lengths).to_device(device).to_kind(Kind::Float).view([-1, 1, 1]);
        let distance = Tensor::arange(longest + 1, (Kind::Float, device)) - queries; // [rows, 1, keys]
        Some(mask_kind.bias_at_distance(&distance).to_kind(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> KvCache {
        KvCache::new([1, 2, 2], 3, 4, Kind::Float, Device::Cpu)
    }

    fn write(cache: &mut KvCache, slot: i64, count: i64, value: f64) {
        let places = cache.slot_mapping(&[slot], &[count], Device::Cpu);
        let new = Tensor::full([count, 2, 2], value, (Kind::Float, Device::Cpu));
        cache.write(0, &places, &new, &(&new * 10.0));
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
    fn a_token_more_goes_behind_the_others() {
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
        let mask = cache.decoding_mask(2, &plain, Kind::Float, Device::Cpu).unwrap();
        assert_eq!(mask.size(), [2, 1, 1, 3]);
        // The new token of the second slot is its second token, so the third key does not belong to this
        // slot.
        assert_eq!(
            Vec::<f32>::try_from(mask.view([6])).unwrap(),
            [0.0, 0.0, 0.0, 0.0, 0.0, f32::NEG_INFINITY]
        );
        assert!(cache.decoding_mask(1, &plain, Kind::Float, Device::Cpu).is_none());
        let window = MaskKind { window: Some(2), alibi: None };
        let mask = cache.decoding_mask(1, &window, Kind::Float, Device::Cpu).unwrap();
        assert_eq!(Vec::<f32>::try_from(mask.view([3])).unwrap(), [f32::NEG_INFINITY, 0.0, 0.0]);
    }
}
