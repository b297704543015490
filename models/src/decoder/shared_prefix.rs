//! A pass over sequences that begin alike, in which the common prefix runs once: the prompt of a question and
//! its choices.
//!
//! The flat batch holds all prefixes, then all branches. A branch attends to the keys of its prefix and to
//! its own. This is what "cascade" or "tree" attention computes (Juravsky et al. 2024, arXiv 2402.05099),
//! without a kernel of its own: keys and values of a prefix are copied for each branch.

use parallel::upload;
use tch::{Kind, Tensor, no_grad};

use super::Decoder;
use crate::attention::{Attention, scaled_dot_product};
use crate::batch::Batch;
use crate::mask::MaskKind;

/// A prefix and the sequences that continue it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedPrefix {
    /// The common tokens, at least one.
    pub prefix: Vec<i64>,
    /// The tokens after the prefix, at least one each.
    pub branches: Vec<Vec<i64>>,
}

/// Where the tokens of a batch of [`SharedPrefix`]es stand among the hidden states `[N, H]`.
#[derive(Debug)]
pub struct SharedPrefixHidden {
    /// The hidden states of all tokens, without an autograd graph.
    pub hidden: Tensor,
    /// For each prefix the index of its first token.
    pub prefixes: Vec<i64>,
    /// For each prefix, for each of its branches, the index of the branch's first token.
    pub branches: Vec<Vec<i64>>,
}

impl Decoder {
    /// The final hidden states of prefixes and their branches. Not for tokens that are split over ranks.
    pub fn forward_shared_prefixes(
        &self,
        trees: &[SharedPrefix],
    ) -> Result<SharedPrefixHidden, parallel::Error> {
        let device = self.device();
        let prefixes: Vec<&[i64]> = trees.iter().map(|tree| tree.prefix.as_slice()).collect();
        let batch = Batch::new(&prefixes, device);
        let layout = TreeLayout::new(trees, &batch);
        let tail: Vec<i64> = trees.iter().flat_map(|tree| tree.branches.concat()).collect();
        let input_ids = Tensor::cat(&[&batch.input_ids, &upload(&tail, device)], 0);
        let positions = upload(&layout.positions, device);

        let hidden = no_grad(|| {
            let rotary = self.rotary(&positions, &layout.counts, &layout.lengths);
            let mut masks: Vec<(i64, i64, MaskKind, Tensor)> = Vec::new();
            self.run(&input_ids, &positions, rotary, &mut |_, attention, qkv| {
                Ok(attend_trees(&batch, &layout, attention, qkv, &mut masks))
            })
        })?;
        let TreeLayout { prefix_starts, branch_starts, .. } = layout;
        Ok(SharedPrefixHidden { hidden, prefixes: prefix_starts, branches: branch_starts })
    }
}

/// The places of the tokens in the flat batch.
struct TreeLayout {
    prefix_starts: Vec<i64>,
    branch_starts: Vec<Vec<i64>>,
    /// The position of each token in its sequence.
    positions: Vec<i64>,
    /// The tokens of each prefix, then of each branch.
    counts: Vec<i64>,
    /// The length of the longest sequence that each of them belongs to.
    lengths: Vec<i64>,
    /// The branches of each prefix, padded to a rectangle.
    rectangles: Vec<Option<Rectangle>>,
}

/// The branches of a prefix as `[rows, length]`.
struct Rectangle {
    prefix_start: i64,
    prefix_length: i64,
    rows: i64,
    length: i64,
    /// The tokens of the rectangle in the flat batch; padding repeats the last token of its row.
    tokens: Tensor,
    /// The places of the real tokens in the rectangle; `None` if there is no padding.
    real: Option<Tensor>,
}

impl TreeLayout {
    fn new(trees: &[SharedPrefix], batch: &Batch) -> Self {
        let prefix_starts = batch.first_indices();
        let longest = |tree: &SharedPrefix| tree.branches.iter().map(Vec::len).max().unwrap_or(0);
        let mut layout = Self {
            positions: trees.iter().flat_map(|tree| 0..tree.prefix.len() as i64).collect(),
            counts: batch.lengths.clone(),
            lengths: trees.iter().map(|tree| (tree.prefix.len() + longest(tree)) as i64).collect(),
            branch_starts: Vec::with_capacity(trees.len()),
            rectangles: Vec::with_capacity(trees.len()),
            prefix_starts,
        };

        let mut next = batch.num_tokens();
        for (index, tree) in trees.iter().enumerate() {
            let prefix_length = tree.prefix.len() as i64;
            let mut starts = Vec::with_capacity(tree.branches.len());
            for branch in &tree.branches {
                let length = branch.len() as i64;
                starts.push(next);
                next += length;
                layout.positions.extend(prefix_length..prefix_length + length);
                layout.counts.push(length);
                layout.lengths.push(layout.lengths[index]);
            }
            let rectangle = (!starts.is_empty())
                .then(|| Rectangle::new((layout.prefix_starts[index], prefix_length), &starts, tree, batch));
            layout.rectangles.push(rectangle);
            layout.branch_starts.push(starts);
        }
        layout
    }
}

impl Rectangle {
    fn new(
        (prefix_start, prefix_length): (i64, i64),
        starts: &[i64],
        tree: &SharedPrefix,
        batch: &Batch,
    ) -> Self {
        let length = tree.branches.iter().map(Vec::len).max().unwrap_or(0) as i64;
        let (mut tokens, mut real) = (Vec::new(), Vec::new());
        for ((row, &start), branch) in (0..).zip(starts).zip(&tree.branches) {
            let count = branch.len() as i64;
            tokens.extend((0..length).map(|token| start + token.min(count - 1)));
            real.extend((0..count).map(|token| row * length + token));
        }
        let device = batch.input_ids.device();
        let is_full = real.len() == tokens.len();
        Self {
            prefix_start,
            prefix_length,
            rows: starts.len() as i64,
            length,
            tokens: upload(&tokens, device),
            real: (!is_full).then(|| upload(&real, device)),
        }
    }

    /// Attention of the branches, `[tokens, heads * D]`. The causal mask hides the padding on the right.
    fn attend(&self, [q, k, v]: &[Tensor; 3], mask: &Tensor, scale: f64) -> Tensor {
        let own = |x: &Tensor| {
            let tokens = x.index_select(0, &self.tokens).unflatten(0, [self.rows, self.length]);
            tokens.transpose(1, 2)
        };
        let with_prefix = |x: &Tensor| {
            let prefix = x.narrow(0, self.prefix_start, self.prefix_length).transpose(0, 1);
            let shape = [&[self.rows], prefix.size().as_slice()].concat();
            Tensor::cat(&[prefix.unsqueeze(0).expand(shape, false), own(x)], 2)
        };
        let attended = scaled_dot_product(&own(q), &with_prefix(k), &with_prefix(v), Some(mask), scale);
        let flat = attended.transpose(1, 2).reshape([self.rows * self.length, -1]);
        match &self.real {
            Some(real) => flat.index_select(0, real),
            None => flat,
        }
    }
}

/// Attention of all prefixes and branches, `[N, heads * D]`. `masks` keeps the masks of the pass by the
/// lengths of prefix and branch.
fn attend_trees(
    batch: &Batch,
    layout: &TreeLayout,
    attention: &Attention,
    qkv: &[Tensor; 3],
    masks: &mut Vec<(i64, i64, MaskKind, Tensor)>,
) -> Tensor {
    let prefix_tokens = batch.num_tokens();
    let [q, k, v] = [0, 1, 2].map(|index| qkv[index].narrow(0, 0, prefix_tokens));
    let mut attended = vec![batch.attend(&q, &k, &v, attention.scale(), attention.mask())];

    for rectangle in layout.rectangles.iter().flatten() {
        let key = (rectangle.prefix_length, rectangle.length, attention.mask());
        let is_same = |held: &&(i64, i64, MaskKind, Tensor)| (held.0, held.1, &held.2) == key;
        let held = masks.iter().find(is_same).map(|(.., mask)| mask.shallow_clone());
        let mask = held.unwrap_or_else(|| {
            let kind: Kind = qkv[0].kind();
            let mask = attention.mask().attention_bias(key.0, key.1, kind, qkv[0].device());
            masks.push((key.0, key.1, attention.mask().clone(), mask.shallow_clone()));
            mask
        });
        attended.push(rectangle.attend(qkv, &mask, attention.scale()));
    }
    Tensor::cat(&attended, 0)
}
