//! The KV cache: keys and values of past tokens, in pages (Kwon et al. 2023, arXiv 2309.06180).
//!
//! A page holds the keys and values of [`page_size`](KvCache::page_size) consecutive tokens of a sequence in
//! every layer. Which page belongs to which tokens is the caller's affair, so several sequences may read the
//! same page. New tokens are written in place, without concatenation. Query heads that share a key-value head
//! read it without a copy.

use parallel::kernels::attention::Cached;
use tch::{Device, Kind, Tensor, no_grad};

use crate::rope::Rotary;

/// The sizes of a [`KvCache`].
#[derive(Clone, Copy, Debug)]
pub struct CacheShape {
    /// Number of layers.
    pub layers: i64,
    /// Number of pages.
    pub pages: i64,
    /// Number of tokens of a page.
    pub page_size: i64,
    /// Number of key-value heads.
    pub kv_heads: i64,
    /// Size of a head.
    pub head_dim: i64,
}

/// The keys and values of several sequences.
#[derive(Debug)]
pub struct KvCache {
    /// For each layer `[pages, kv_heads, page_size, D]`.
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    shape: CacheShape,
    device: Device,
    /// The rotary tables of the positions up to a number.
    rotary: Option<(i64, Rotary)>,
}

impl KvCache {
    /// Allocates pages without content. On the host, a page takes memory once something is written into it.
    pub fn new(shape: CacheShape, kind: Kind, device: Device) -> Self {
        let CacheShape { layers, pages, page_size, kv_heads, head_dim } = shape;
        let pages = [pages, kv_heads, page_size, head_dim];
        let layers = || (0..layers).map(|_| Tensor::empty(pages, (kind, device))).collect();
        Self { keys: layers(), values: layers(), shape, device, rotary: None }
    }

    /// The number of tokens of a page.
    pub fn page_size(&self) -> usize {
        self.shape.page_size as usize
    }

    /// Copies the keys and values of a page to another page.
    pub fn copy_page(&self, from: u32, to: u32) {
        no_grad(|| {
            for layer in self.keys.iter().chain(&self.values) {
                layer.get(i64::from(to)).copy_(&layer.get(i64::from(from)));
            }
        });
    }

    /// The rows of `[pages * kv_heads * page_size, D]` that hold a token of a sequence with these pages: one
    /// for each key-value head.
    pub(crate) fn rows_of(&self, pages: &[u32], token: usize) -> impl Iterator<Item = i64> {
        let CacheShape { page_size, kv_heads, .. } = self.shape;
        let (page, place) = (i64::from(pages[token / self.page_size()]), token as i64 % page_size);
        (0..kv_heads).map(move |head| (page * kv_heads + head) * page_size + place)
    }

    /// The rows that hold the tokens of several sequences, one after another: int64 `[B, kv_heads, T]`, where
    /// `T` is the `longest` length. `pages` `[B, P]` are the pages of the sequences and `last` `[B]` their
    /// last positions, both int64; a shorter sequence repeats its last token.
    pub(crate) fn rows_of_sequences(&self, pages: &Tensor, last: &Tensor, longest: i64) -> Tensor {
        let CacheShape { page_size, kv_heads, .. } = self.shape;
        let options = (Kind::Int64, self.device);
        let tokens = Tensor::arange(longest, options).unsqueeze(0).minimum(&last.unsqueeze(1)); // [B, T]
        let pages = pages.gather(1, &tokens.divide_scalar_mode(page_size, "floor"), false).unsqueeze(1);
        let heads = Tensor::arange(kv_heads, options).view([1, -1, 1]);
        (pages * kv_heads + heads) * page_size + tokens.remainder(page_size).unsqueeze(1)
    }

    /// The rotary tables of at least the first `positions` positions; `compute` makes those of the positions
    /// `[N]` that it gets.
    pub(crate) fn rotary(&mut self, positions: i64, compute: impl FnOnce(&Tensor) -> Rotary) -> &Rotary {
        let is_enough = self.rotary.as_ref().is_some_and(|(count, _)| *count >= positions);
        if !is_enough {
            // Sequences grow token by token, and the tables do not.
            let count = positions.max(128).cast_unsigned().next_power_of_two() as i64;
            self.rotary = Some((count, compute(&Tensor::arange(count, (Kind::Int64, self.device)))));
        }
        &self.rotary.as_ref().expect("they were made").1
    }

    /// Writes a layer's keys and values `[N, kv_heads, D]` to the `rows` of [`rows_of`](Self::rows_of), token
    /// after token.
    pub(crate) fn write(&self, layer: usize, rows: &Tensor, k: &Tensor, v: &Tensor) {
        for (cached, new) in [(&self.keys[layer], k), (&self.values[layer], v)] {
            let dim = new.size()[2];
            let _ = cached.view([-1, dim]).index_copy_(0, rows, &new.reshape([-1, dim]));
        }
    }

    /// The keys and values of a layer.
    pub(crate) fn layer(&self, layer: usize) -> Cached<'_> {
        Cached { keys: &self.keys[layer], values: &self.values[layer] }
    }

    /// A copy of the keys and values of a layer in `rows`, int64 `[B, kv_heads, T]`: `[B, kv_heads, T, D]`.
    pub(crate) fn gather(&self, layer: usize, rows: &Tensor) -> [Tensor; 2] {
        let [count, kv_heads, tokens]: [i64; 3] = rows.size().try_into().expect("three dimensions");
        [&self.keys[layer], &self.values[layer]].map(|cached| {
            let dim = self.shape.head_dim;
            cached.view([-1, dim]).index_select(0, &rows.view([-1])).view([count, kv_heads, tokens, dim])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> KvCache {
        let shape = CacheShape { layers: 1, pages: 5, page_size: 2, kv_heads: 2, head_dim: 1 };
        KvCache::new(shape, Kind::Float, Device::Cpu)
    }

    #[test]
    fn rows_by_hand() {
        // A page has two heads of two tokens: page 3 holds the rows 12 and 13 of head 0, 14 and 15 of head 1.
        let cache = cache();
        assert_eq!(cache.rows_of(&[3, 1], 0).collect::<Vec<_>>(), [12, 14]);
        assert_eq!(cache.rows_of(&[3, 1], 3).collect::<Vec<_>>(), [5, 7]);
        let pages = Tensor::from_slice2(&[[3_i64, 1], [0, 0]]);
        let rows = cache.rows_of_sequences(&pages, &Tensor::from_slice(&[2_i64, 1]), 3);
        assert_eq!(rows.size(), [2, 2, 3]);
        let rows = Vec::<i64>::try_from(rows.view([-1])).unwrap();
        assert_eq!(rows, [12, 13, 4, 14, 15, 6, 0, 1, 1, 2, 3, 3]);
    }

    #[test]
    fn what_is_written_is_read_and_copied() {
        let cache = cache();
        let pages = [4, 2];
        let rows: Vec<i64> = (0..3).flat_map(|token| cache.rows_of(&pages, token)).collect();
        let k = Tensor::from_slice(&[0.0f32, 10.0, 1.0, 11.0, 2.0, 12.0]).view([3, 2, 1]);
        cache.write(0, &Tensor::from_slice(&rows), &k, &(&k + 100.0));
        let read = |pages: [i64; 2]| {
            let last = Tensor::from_slice(&[2_i64]);
            let rows = cache.rows_of_sequences(&Tensor::from_slice(&pages).unsqueeze(0), &last, 3);
            let [keys, values] = cache.gather(0, &rows);
            assert_eq!(values, &keys + 100.0);
            Vec::<f32>::try_from(keys.view([-1])).unwrap()
        };
        assert_eq!(read([4, 2]), [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]);
        cache.copy_page(2, 0);
        assert_eq!(read([4, 0]), [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]);
    }
}
