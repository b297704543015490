//! The tokens of one step of generation: prompts, pieces of prompts and single new tokens of many sequences
//! as one flat batch, whose earlier tokens are in the KV cache.
//!
//! Everything except attention works on all tokens at once. Attention handles three kinds of rows:
//!
//! | rows | attention |
//! |---|---|
//! | whole prompts | among their own tokens, without the cache ([`Batch::attend`]) |
//! | several tokens after others | one row at a time, over a copy of its cached keys and values |
//! | one token | over the pages ([`attention::decode`]), or else over a copy of all rows, padded and masked |

use std::cell::{OnceCell, RefCell};
use std::ops::Range;

use parallel::kernels::attention::{self, Visible};
use parallel::upload;
use tch::{Device, Kind, Tensor};

use crate::attention::{Attention, scaled_dot_product};
use crate::batch::Batch;
use crate::cache::KvCache;
use crate::mask::{Alibi, MaskKind};

/// The next tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct CachedRow<'a> {
    /// The tokens, one at least.
    pub tokens: &'a [i64],
    /// The number of tokens before them, which are in the cache.
    pub past: usize,
    /// The pages of the sequence, up to the page of the last of the tokens. No other row writes to the places
    /// of the new tokens. Rows of one sequence may follow each other: all of them are written before any
    /// attends.
    pub pages: &'a [u32],
    /// The tokens whose final hidden states are wanted.
    pub outputs: Outputs,
}

/// Which tokens of a row have an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// None.
    None,
    /// The last one.
    Last,
    /// All of them.
    All,
}

impl CachedRow<'_> {
    /// The number of cached tokens after the step.
    fn length(&self) -> usize {
        self.past + self.tokens.len()
    }

    fn class(&self) -> RowClass {
        match self.tokens.len() {
            1 => RowClass::Single,
            _ if self.past == 0 => RowClass::Whole,
            _ => RowClass::Continued,
        }
    }
}

/// The kinds of rows, in the order of their tokens in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RowClass {
    /// All tokens of a sequence so far, and several of them.
    Whole,
    /// Several tokens after others.
    Continued,
    /// One token.
    Single,
}

/// A row with its place in the batch.
struct PlacedRow<'a> {
    row: CachedRow<'a>,
    /// The index of the row among those that were given.
    index: usize,
    /// The flat index of its first token.
    start: i64,
}

/// Sorts rows by their class, and gives each its place.
fn place<'a>(rows: &[CachedRow<'a>]) -> Vec<PlacedRow<'a>> {
    assert!(rows.iter().all(|row| !row.tokens.is_empty()), "each row has a token");
    let mut placed: Vec<PlacedRow<'a>> =
        rows.iter().enumerate().map(|(index, &row)| PlacedRow { row, index, start: 0 }).collect();
    placed.sort_by_key(|placed| placed.row.class());
    let mut start = 0;
    for placed in &mut placed {
        placed.start = start;
        start += placed.row.tokens.len() as i64;
    }
    placed
}

/// The flat indices of the tokens that have an output, in the order in which the rows were given.
fn output_indices(placed: &[PlacedRow<'_>]) -> Vec<i64> {
    let mut as_given: Vec<&PlacedRow<'_>> = placed.iter().collect();
    as_given.sort_by_key(|placed| placed.index);
    as_given.into_iter().flat_map(|placed| outputs(&placed.row, placed.start)).collect()
}

/// The rows of a step, with the tensors that all layers share. The tokens are in this order: whole rows, rows
/// that continue others, single tokens.
pub(crate) struct CachedBatch<'a> {
    /// int64 `[N]`.
    pub(crate) input_ids: Tensor,
    /// int64 `[N]`.
    pub(crate) positions: Tensor,
    /// The rows of the cache into which keys and values are written, int64 `[N * kv_heads]`.
    pub(crate) cache_rows: Tensor,
    /// The tokens with an output, int64 `[M]`, in the order of the rows that were given; `None` if every
    /// token has one and is in place.
    pub(crate) outputs: Option<Tensor>,
    /// The number of new tokens of each row.
    pub(crate) counts: Vec<i64>,
    /// The number of tokens of each row with those before.
    pub(crate) lengths: Vec<i64>,
    whole: Option<Batch>,
    continued: Vec<ContinuedRow>,
    singles: SingleTokens<'a>,
}

/// A row of several tokens after others.
struct ContinuedRow {
    /// The flat indices of its tokens.
    tokens: Range<i64>,
    past: i64,
    /// The rows of the cache of all its tokens, int64 `[1, kv_heads, T]`.
    cache_rows: Tensor,
    masks: RefCell<Vec<(MaskKind, Tensor)>>,
}

/// The rows of one token, which are the last rows.
struct SingleTokens<'a> {
    /// The flat index of the first.
    first: i64,
    pages: Vec<&'a [u32]>,
    lengths: Vec<i64>,
    /// The pages, int64 `[B * P]`.
    page_table: Tensor,
    /// The positions of the tokens, int64 `[B]`.
    last: Tensor,
    /// The rows of the cache, `[B, kv_heads, T]`, if no kernel reads the pages.
    cache_rows: OnceCell<Tensor>,
    masks: RefCell<Vec<(MaskKind, Tensor)>>,
}

impl<'a> CachedBatch<'a> {
    pub(crate) fn new(rows: &[CachedRow<'a>], cache: &KvCache, device: Device) -> Self {
        let placed = place(rows);
        let ordered: Vec<CachedRow<'a>> = placed.iter().map(|placed| placed.row).collect();
        let num_tokens: i64 = ordered.iter().map(|row| row.tokens.len() as i64).sum();
        let outputs = output_indices(&placed);
        let are_all_in_place = outputs.iter().copied().eq(0..num_tokens);
        let singles: Vec<CachedRow<'a>> =
            ordered.iter().copied().filter(|row| row.tokens.len() == 1).collect();
        let first_single = num_tokens - singles.len() as i64;

        // One copy brings all numbers to the device.
        let positions = |row: &CachedRow<'_>| row.past as i64..row.length() as i64;
        let rows_of = |row: &CachedRow<'a>| {
            let pages = row.pages;
            (row.past..row.length()).flat_map(move |token| cache.rows_of(pages, token))
        };
        let [input_ids, positions, cache_rows, outputs, pages] = upload_together(
            [
                ordered.iter().flat_map(|row| row.tokens).copied().collect(),
                ordered.iter().flat_map(positions).collect(),
                ordered.iter().flat_map(rows_of).collect(),
                if are_all_in_place { Vec::new() } else { outputs },
                page_table(&singles),
            ],
            device,
        );

        let whole: Vec<&[i64]> =
            ordered.iter().filter(|row| row.class() == RowClass::Whole).map(|row| row.tokens).collect();
        let continued = |placed: &PlacedRow<'_>| {
            (placed.row.class() == RowClass::Continued)
                .then(|| ContinuedRow::new(placed.start, &placed.row, cache, device))
        };
        Self {
            singles: SingleTokens {
                first: first_single,
                last: positions.narrow(0, first_single, singles.len() as i64),
                page_table: pages,
                pages: singles.iter().map(|row| row.pages).collect(),
                lengths: singles.iter().map(|row| row.length() as i64).collect(),
                cache_rows: OnceCell::new(),
                masks: RefCell::default(),
            },
            input_ids,
            positions,
            cache_rows,
            outputs: (!are_all_in_place).then_some(outputs),
            counts: ordered.iter().map(|row| row.tokens.len() as i64).collect(),
            lengths: ordered.iter().map(|row| row.length() as i64).collect(),
            whole: (!whole.is_empty()).then(|| Batch::new(&whole, device)),
            continued: placed.iter().filter_map(continued).collect(),
        }
    }

    /// Causal attention of all tokens `[N, heads * D]`, from `q` `[N, heads, D]`, `k` and `v` `[N, kv_heads,
    /// D]`. The keys and values of the tokens have been written into the cache.
    pub(crate) fn attend(
        &self,
        cache: &KvCache,
        layer: usize,
        attention: &Attention,
        [q, k, v]: &[Tensor; 3],
    ) -> Tensor {
        let mut attended = Vec::new();
        if let Some(whole) = &self.whole {
            let [q, k, v] = [q, k, v].map(|x| x.narrow(0, 0, whole.num_tokens()));
            attended.push(whole.attend(&q, &k, &v, attention.scale(), attention.mask()));
        }
        attended.extend(self.continued.iter().map(|row| row.attend(cache, layer, attention, q)));
        if !self.singles.lengths.is_empty() {
            attended.push(self.singles.attend(cache, layer, attention, q));
        }
        match attended.as_slice() {
            [one] => one.shallow_clone(),
            several => Tensor::cat(several, 0),
        }
    }
}

/// Copies several vectors to the device at once.
fn upload_together<const COUNT: usize>(vectors: [Vec<i64>; COUNT], device: Device) -> [Tensor; COUNT] {
    let together = upload(&vectors.concat(), device);
    let mut start = 0;
    vectors.map(|vector| {
        start += vector.len() as i64;
        together.narrow(0, start - vector.len() as i64, vector.len() as i64)
    })
}

/// The pages of rows `[B, P]`, row after row; a row with fewer pages than another is filled up with page 0.
fn page_table(rows: &[CachedRow<'_>]) -> Vec<i64> {
    let most = rows.iter().map(|row| row.pages.len()).max().unwrap_or(0);
    let filled = |row: &CachedRow<'_>| {
        let mut pages: Vec<i64> = row.pages.iter().map(|&page| i64::from(page)).collect();
        pages.resize(most, 0);
        pages
    };
    rows.iter().flat_map(filled).collect()
}

/// The flat indices of the tokens of a row that have an output.
fn outputs(row: &CachedRow<'_>, start: i64) -> Range<i64> {
    let end = start + row.tokens.len() as i64;
    match row.outputs {
        Outputs::None => end..end,
        Outputs::Last => end - 1..end,
        Outputs::All => start..end,
    }
}

impl ContinuedRow {
    fn new(start: i64, row: &CachedRow<'_>, cache: &KvCache, device: Device) -> Self {
        let length = row.length() as i64;
        let pages = upload(&page_table(&[*row]), device).unsqueeze(0);
        let last = Tensor::full([1], length - 1, (Kind::Int64, device));
        Self {
            tokens: start..start + row.tokens.len() as i64,
            past: row.past as i64,
            cache_rows: cache.rows_of_sequences(&pages, &last, length),
            masks: RefCell::default(),
        }
    }

    fn attend(&self, cache: &KvCache, layer: usize, attention: &Attention, q: &Tensor) -> Tensor {
        let count = self.tokens.end - self.tokens.start;
        let [keys, values] = cache.gather(layer, &self.cache_rows);
        let mask = cached_mask(&self.masks, attention.mask(), |mask| {
            mask.attention_bias(self.past, count, q.kind(), q.device())
        });
        let q = q.narrow(0, self.tokens.start, count).unsqueeze(0).transpose(1, 2);
        let attended = scaled_dot_product(&q, &keys, &values, Some(&mask), attention.scale());
        attended.squeeze_dim(0).transpose(0, 1).reshape([count, -1])
    }
}

impl<'a> SingleTokens<'a> {
    fn attend(&self, cache: &KvCache, layer: usize, attention: &Attention, q: &Tensor) -> Tensor {
        let q = q.narrow(0, self.first, self.lengths.len() as i64);
        self.attend_pages(cache, layer, attention, &q)
            .unwrap_or_else(|| self.attend_copy(cache, layer, attention, &q))
    }

    /// Each row reads its own pages. `None` if there is no kernel for that.
    fn attend_pages(
        &self,
        cache: &KvCache,
        layer: usize,
        attention: &Attention,
        q: &Tensor,
    ) -> Option<Tensor> {
        let MaskKind { window, alibi } = attention.mask();
        let slopes = alibi.as_ref().map(Alibi::slopes).unwrap_or_default();
        let visible = |(&pages, &length): (&&'a [u32], &i64)| {
            let first = window.map_or(0, |window| (length - window).max(0));
            Visible { pages, tokens: first as usize..length as usize }
        };
        let visible: Vec<Visible<'_>> = self.pages.iter().zip(&self.lengths).map(visible).collect();
        attention::decode(q, cache.layer(layer), &visible, attention.scale(), &slopes)
    }

    /// All rows read a copy of their keys and values, padded to the longest row and masked.
    ///
    /// The query heads that share a key-value head become the query positions of this head. No key is masked
    /// by the order of the positions, so this is the same attention, and every kernel of libtorch computes it
    /// without repeating keys and values. (libtorch's kernels for CUDA have no grouped-query attention with a
    /// mask.)
    fn attend_copy(&self, cache: &KvCache, layer: usize, attention: &Attention, q: &Tensor) -> Tensor {
        let longest = self.lengths.iter().copied().max().unwrap_or(0);
        let rows = self.cache_rows.get_or_init(|| {
            let pages = self.page_table.view([self.lengths.len() as i64, -1]);
            cache.rows_of_sequences(&pages, &self.last, longest)
        });
        let [keys, values] = cache.gather(layer, rows);
        let (count, heads, kv_heads) = (q.size()[0], q.size()[1], keys.size()[1]);
        let by_kv_head = |x: &Tensor| x.reshape([count, kv_heads, heads / kv_heads, -1]);
        // [B, 1 or heads, 1, T]
        let mask = cached_mask(&self.masks, attention.mask(), |mask| {
            let own = self.last.to_kind(Kind::Float).view([-1, 1, 1]);
            let distance = Tensor::arange(longest, (Kind::Float, q.device())) - own;
            mask.bias_at_distance(&distance).to_kind(q.kind())
        });
        let mask = if mask.size()[1] > 1 { by_kv_head(&mask) } else { mask };
        let scale = attention.scale();
        let q = by_kv_head(q);
        Tensor::scaled_dot_product_attention(&q, &keys, &values, Some(&mask), 0.0, false, scale, false)
            .reshape([count, -1])
    }
}

/// The mask of a kind, which layers with the same kind share.
fn cached_mask(
    masks: &RefCell<Vec<(MaskKind, Tensor)>>,
    kind: &MaskKind,
    compute: impl FnOnce(&MaskKind) -> Tensor,
) -> Tensor {
    let mut masks = masks.borrow_mut();
    if let Some((_, mask)) = masks.iter().find(|(other, _)| other == kind) {
        return mask.shallow_clone();
    }
    let mask = compute(kind);
    masks.push((kind.clone(), mask.shallow_clone()));
    mask
}
