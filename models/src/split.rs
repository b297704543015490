//! One decoder among several ranks.
//!
//! Those of a tensor group have parts of the weights: every rank computes some heads, some of the MLP's inner columns and the logits of
//! some words, and tokens enter and leave that work together (Shoeybi et al. 2019, arXiv 1909.08053, section 3). In training, ranks may
//! also have different tokens: those of a tensor group between its borders, those of a sequence group all the way
//! ([`parallel::sequence`]). The last hidden states are whole on every rank, and what a rank's head adds to their gradient is one term of
//! a sum.

use std::ops::Range;
use std::sync::Arc;

use parallel::comm::Group;
use parallel::pipeline::Method;
use parallel::sequence::{Layout, Order, ring};
use parallel::{Cut, autograd, region};
use tch::Tensor;

use crate::Error;
use crate::architecture::Architecture;
use crate::attention::Attention;
use crate::batch::{Alibi, Batch, MaskKind, Part};
use crate::experts::Balance;
use crate::layer::Linear;

/// How ranks share a model and the tokens that go through it.
#[derive(Clone, Debug)]
pub struct Split {
    /// Those who have parts of the weights; `None` for a rank with all of them.
    pub weights: Option<Arc<Group>>,
    /// Who has which tokens in training.
    pub tokens: Tokens,
    /// Those who have some layers each; `None` for a rank with all of them.
    pub layers: Option<Layers>,
    /// Those who have other experts of the same layers; `None` for a rank with all of them.
    pub experts: Option<Arc<Group>>,
    /// All who have other parameters; `None` for a rank with all of them.
    pub holders: Option<Arc<Group>>,
}

/// Ranks that have some layers each.
#[derive(Clone, Debug)]
pub struct Layers {
    /// The ranks.
    pub group: Arc<Group>,
    /// How micro-batches go through them.
    pub method: Method,
    /// Stages of a rank, where the method leaves the choice.
    pub chunks: usize,
    /// The first and the last of them, if this rank is one of them.
    pub ends: Option<Arc<Group>>,
}

/// Who has which tokens in training. Without a gradient every rank runs whole rows.
#[derive(Clone, Debug)]
pub enum Tokens {
    /// Every rank all of them.
    Whole,
    /// The ranks that share the weights have some each between two split layers (Korthikanti et al. 2022).
    Megatron,
    /// Those of this group some each, and attention some heads each (Jacobs et al. 2023).
    Ulysses(Arc<Group>),
    /// Those of this group some each, and keys and values go around (Liu et al. 2023).
    Ring(Arc<Group>),
}

impl Split {
    /// A model that no other rank has a part in.
    pub const WHOLE: Self =
        Self { weights: None, tokens: Tokens::Whole, layers: None, experts: None, holders: None };

    /// Weights shared by a group, which may be of one, and every token on every rank.
    pub fn of_weights(group: &Arc<Group>) -> Self {
        Self { weights: (group.size() > 1).then(|| Arc::clone(group)), ..Self::WHOLE }
    }

    /// Into how many parts the weights of a model are cut at most.
    pub(crate) fn parts(&self) -> usize {
        let layers = self.layers.as_ref().map(|layers| &layers.group);
        let groups = [self.weights.as_ref(), layers, self.experts.as_ref()];
        groups.into_iter().flatten().map(|group| group.size()).product()
    }

    /// What this rank has of the tokens; `None` for all.
    pub(crate) fn layout(&self) -> Option<Layout> {
        match (&self.tokens, &self.weights) {
            (Tokens::Megatron, Some(group)) | (Tokens::Ulysses(group), _) => {
                Some(Layout::new(Order::Runs, group))
            }
            (Tokens::Ring(group), _) => Some(Layout::new(Order::ZigZag, group)),
            (Tokens::Whole, _) | (Tokens::Megatron, None) => None,
        }
    }

    /// Whether ranks that share the weights have different tokens.
    pub(crate) fn scatters(&self) -> bool {
        self.weights.is_some() && matches!(self.tokens, Tokens::Megatron)
    }

    /// Those who train different tokens with the same weights.
    pub(crate) fn sequence(&self) -> Option<&Arc<Group>> {
        match &self.tokens {
            Tokens::Ulysses(group) | Tokens::Ring(group) => Some(group),
            Tokens::Whole | Tokens::Megatron => None,
        }
    }

    /// The ranks that hold the same final hidden states in a training pass. The head's rows are split over
    /// them instead of being computed on each; every rank then produces a partial gradient, and the sum over
    /// the ranks is the full gradient.
    pub(crate) fn dealt(&self, hidden: &Tensor) -> Option<Dealt> {
        let groups: Vec<Arc<Group>> = self.sequence().into_iter().chain(&self.weights).cloned().collect();
        let wanted = trains(hidden) && !groups.is_empty();
        wanted.then_some(Dealt(groups))
    }

    /// What a rank holds of a parameter that belongs to no split layer.
    pub(crate) fn outside(&self) -> Share {
        if self.scatters() { Share::Terms } else { Share::Whole }
    }

    /// Refuses an attention that the tokens cannot be shared for.
    pub(crate) fn check(&self, heads: &Range<i64>, mask: &MaskKind) -> Result<(), Error> {
        let (own, axis) = (heads.end - heads.start, "sequence");
        match &self.tokens {
            Tokens::Ulysses(group) if own % group.size() as i64 != 0 => {
                Err(Error::Split { axis, ranks: group.size(), what: format!("{own} query heads of a rank") })
            }
            Tokens::Ring(group) if mask.window.is_some() || mask.alibi.is_some() => {
                let what = "attention with a window or ALiBi in mode = \"ring\"".to_owned();
                Err(Error::Split { axis, ranks: group.size(), what })
            }
            _ => Ok(()),
        }
    }

    /// What keeps experts equally busy in training, of the tokens that this rank routes.
    pub(crate) fn balance(&self, batch: &Batch, part: Option<&Part>) -> Option<Balance> {
        let group = if self.scatters() { self.weights.as_ref() } else { self.sequence() };
        batch.balance(part, group)
    }

    /// The last hidden states of every token `[N, H]` from those that this rank has; what each rank adds to their gradient is added up.
    pub(crate) fn gather(&self, hidden: &Tensor, part: Option<&Part>) -> Result<Tensor, parallel::Error> {
        let border = if self.scatters() { None } else { self.weights.as_ref() };
        let hidden = Border::whole(border).enter(hidden)?;
        let sharers = if self.scatters() { self.weights.as_ref() } else { self.sequence() };
        match (sharers, part) {
            (Some(group), Some(part)) => Ok(part.whole(&region::gather_sum(&hidden, 0, group)?)),
            _ => Ok(hidden),
        }
    }

    /// Attention of a batch in training, over the tokens that this rank has: `q` `[n, heads, D]`, `k` and `v` `[n, kv_heads, D]` to
    /// `[n, heads * D]`.
    pub(crate) fn attend(
        &self,
        batch: &Batch,
        part: Option<&Part>,
        attention: &Attention,
        [q, k, v]: &[Tensor; 3],
    ) -> Result<Tensor, parallel::Error> {
        let (scale, mask) = (attention.scale(), attention.mask());
        match (&self.tokens, part) {
            (Tokens::Ulysses(group), Some(part)) => {
                let mask = of_heads(mask, q.size()[1], group);
                let [q, k, v] = [q, k, v].map(|x| heads_for_tokens(x, q.size()[1], group));
                let [q, k, v] = [part.whole(&q?), part.whole(&k?), part.whole(&v?)];
                let attended = batch.attend(&q, &k, &v, scale, &mask);
                tokens_for_heads(&attended.unflatten(1, [q.size()[1], -1]), group)
            }
            (Tokens::Ring(group), Some(part)) => {
                Ok(ring::attention([q, k, v], &part.chunks, scale, group)?.flatten(1, 2))
            }
            _ => Ok(batch.attend(q, k, v, scale, mask)),
        }
    }
}

/// Whether hidden states are those of a training pass.
pub(crate) fn trains(hidden: &Tensor) -> bool {
    hidden.requires_grad() && autograd::is_enabled()
}

/// Ulysses all-to-all: each rank sends its tokens' heads and receives its heads' tokens, from `[n, heads, D]`
/// to `[P n, heads / P, D]`. If the key-value heads do not divide by the ranks, they are first repeated to
/// the number of query heads.
fn heads_for_tokens(x: &Tensor, heads: i64, group: &Arc<Group>) -> Result<Tensor, parallel::Error> {
    let own = x.size()[1];
    let even = own % group.size() as i64 == 0;
    let x = if even { x.shallow_clone() } else { x.repeat_interleave_self_int(heads / own, 1, None) };
    region::all_to_all(&x, 1, 0, group)
}

/// The reverse of [`heads_for_tokens`] of `[N, heads / P, D]`, with the heads joined: `[n, heads * D]`.
fn tokens_for_heads(x: &Tensor, group: &Arc<Group>) -> Result<Tensor, parallel::Error> {
    let ranks = group.size() as i64;
    let x = padded(x, ranks);
    Ok(region::all_to_all(&x, 0, 1, group)?.flatten(1, 2))
}

/// The mask of the heads that this rank of `group` attends with, of those that it has.
fn of_heads(mask: &MaskKind, heads: i64, group: &Group) -> MaskKind {
    let own = heads / group.size() as i64;
    let alibi = mask.alibi.as_ref().map(|alibi| {
        let start = alibi.own.start + group.rank() as i64 * own;
        Alibi { heads: alibi.heads, own: start..start + own }
    });
    MaskKind { alibi, ..mask.clone() }
}

/// `[N, ..]` with zeros behind it, up to a multiple of `ranks` rows.
fn padded(x: &Tensor, ranks: i64) -> Tensor {
    let mut shape = x.size();
    shape[0] = shape[0].rem_euclid(ranks);
    if shape[0] == 0 {
        return x.shallow_clone();
    }
    shape[0] = ranks - shape[0];
    Tensor::cat(&[x, &Tensor::zeros(&shape, (x.kind(), x.device()))], 0)
}

/// What each rank holds of a parameter.
#[derive(Clone, Debug)]
pub enum Share {
    /// All of it, for the same work on every rank.
    Whole,
    /// Replicated, with a partial gradient: every rank holds the full weight and applies it to different
    /// work, so the gradients are summed over the ranks.
    Terms,
    /// A part.
    Part(Cut),
}

/// A tensor-parallel region: hidden states are copied (or gathered) on entry and reduced (or
/// reduce-scattered) on exit. With one rank both are the identity.
#[derive(Clone, Debug)]
pub struct Border {
    group: Option<Arc<Group>>,
    /// The tokens of the batch, where each rank has some of them outside.
    scattered: Option<i64>,
}

impl Border {
    /// The border of a group of which every rank has all tokens; `None` for a rank by itself.
    pub fn whole(group: Option<&Arc<Group>>) -> Self {
        Self { group: group.cloned(), scattered: None }
    }

    /// The border of a group whose ranks share the `tokens` of a batch outside.
    pub fn scattered(group: Option<&Arc<Group>>, tokens: i64) -> Self {
        Self { group: group.cloned(), scattered: Some(tokens) }
    }

    /// Tokens into the work of each rank: `[N, H]`.
    pub fn enter(&self, x: &Tensor) -> Result<Tensor, parallel::Error> {
        match (&self.group, self.scattered) {
            (None, _) => Ok(x.shallow_clone()),
            (Some(group), None) => region::copy(x, group),
            (Some(group), Some(tokens)) => Ok(region::gather_sum(x, 0, group)?.narrow(0, 0, tokens)),
        }
    }

    /// What all ranks have made of the tokens, `[N, H]` each, added up.
    pub fn add_up(&self, x: &Tensor) -> Result<Tensor, parallel::Error> {
        match (&self.group, self.scattered) {
            (None, _) => Ok(x.shallow_clone()),
            (Some(group), None) => region::reduce(x, group),
            (Some(group), Some(_)) => region::reduce_scatter(&padded(x, group.size() as i64), 0, group),
        }
    }

    /// `linear(x) + residual`, where each rank has some of the columns of `x` `[N, ..]`.
    pub fn leave(
        &self,
        linear: &Linear,
        x: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor, parallel::Error> {
        if self.group.is_none() {
            return Ok(linear.forward_onto(x, residual));
        }
        let sum = linear.with_bias(self.add_up(&linear.product(x))?);
        Ok(match residual {
            Some(residual) => sum + residual,
            None => sum,
        })
    }
}

/// Rows of hidden states, which every rank has, dealt out for what a head makes of them.
#[derive(Clone, Debug)]
pub(crate) struct Dealt(pub(crate) Vec<Arc<Group>>);

impl Dealt {
    /// The rows of this rank, of `rows`.
    pub(crate) fn own(&self, rows: i64) -> Range<i64> {
        self.0.iter().fold(0..rows, |run, group| {
            let share = group.share((run.end - run.start) as usize);
            run.start + share.start as i64..run.start + share.end as i64
        })
    }

    /// What this rank has made of its rows, `[n, ..]`, among that of all: `[rows, ..]`.
    pub(crate) fn whole(&self, own: &Tensor, rows: i64) -> Result<Tensor, parallel::Error> {
        let run = self.own(rows);
        let zeros = |count: i64| {
            let shape = [&[count], &own.size()[1..]].concat();
            Tensor::zeros(shape.as_slice(), (own.kind(), own.device()))
        };
        self.sum(Tensor::cat(&[&zeros(run.start), own, &zeros(rows - run.end)], 0))
    }

    /// The sum over the ranks.
    pub(crate) fn sum(&self, own: Tensor) -> Result<Tensor, parallel::Error> {
        self.0.iter().try_fold(own, |sum, group| region::reduce(&sum, group))
    }
}

/// The heads of one rank.
#[derive(Clone, Debug)]
pub struct Heads {
    /// Its query heads.
    pub queries: Range<i64>,
    /// The key-value heads that they read.
    pub keys: Range<i64>,
    /// What it holds of the query projection, in columns.
    pub query_share: Share,
    /// What it holds of the key and value projections, in columns.
    pub key_share: Share,
}

impl Heads {
    /// Heads are dealt out in groups that share a key-value head. Where there are fewer key-value heads than ranks, every rank holds
    /// the projections of all, and several ranks share one.
    pub fn new(architecture: &Architecture, group: Option<&Arc<Group>>) -> Result<Self, Error> {
        let (heads, kv_heads) = (architecture.num_heads, architecture.num_kv_heads);
        let Some(group) = group else {
            let (query_share, key_share) = (Share::Whole, Share::Whole);
            return Ok(Self { queries: 0..heads, keys: 0..kv_heads, query_share, key_share });
        };
        let (ranks, rank) = (group.size(), group.rank());
        let dim = architecture.head_dim;
        if kv_heads >= ranks as i64 {
            let keys = Cut::even(0, kv_heads, ranks);
            let queries = keys.clone().widened(architecture.heads_per_kv());
            return Ok(Self {
                queries: queries.runs(rank)[0].clone(),
                keys: keys.runs(rank)[0].clone(),
                query_share: Share::Part(queries.widened(dim)),
                key_share: Share::Part(keys.widened(dim)),
            });
        }
        if ranks as i64 % kv_heads != 0 || heads % ranks as i64 != 0 {
            return Err(Error::Split {
                axis: "tensor",
                ranks,
                what: format!("{heads} query heads with {kv_heads} key-value heads"),
            });
        }
        let queries = Cut::even(0, heads, ranks);
        let shared = rank as i64 * kv_heads / ranks as i64;
        Ok(Self {
            queries: queries.runs(rank)[0].clone(),
            keys: shared..shared + 1,
            query_share: Share::Part(queries.widened(dim)),
            key_share: Share::Terms,
        })
    }

    /// What a rank holds of one matrix of all queries, all keys and all values, which have as many heads.
    pub fn in_blocks(&self) -> Share {
        match (&self.query_share, &self.key_share) {
            (Share::Part(queries), Share::Part(keys)) => {
                Share::Part(Cut::joined(&[queries.clone(), keys.clone(), keys.clone()]))
            }
            _ => Share::Whole,
        }
    }

    /// What a rank holds of one matrix with each head's query, key and value side by side.
    pub fn per_head(&self) -> Share {
        match &self.query_share {
            Share::Part(queries) => Share::Part(queries.clone().widened(3)),
            _ => Share::Whole,
        }
    }
}

/// `length` columns or rows, as even as can be.
pub fn even(length: i64, what: &str, group: Option<&Arc<Group>>) -> Result<Share, Error> {
    match group {
        None => Ok(Share::Whole),
        Some(group) if length < group.size() as i64 => {
            Err(Error::Split { axis: "tensor", ranks: group.size(), what: format!("{length} {what}") })
        }
        Some(group) => Ok(Share::Part(Cut::even(0, length, group.size()))),
    }
}

/// The tokens whose embeddings and logits each rank of a group has.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    pub(crate) cut: Cut,
    pub(crate) group: Arc<Group>,
}

impl Vocabulary {
    /// The vocabulary of which each rank of `group` has its `share`; `None` if all have all.
    pub(crate) fn new(share: &Share, group: Option<&Arc<Group>>) -> Option<Self> {
        match (share, group) {
            (Share::Part(cut), Some(group)) => Some(Self { cut: cut.clone(), group: Arc::clone(group) }),
            _ => None,
        }
    }

    /// Tokens of a rank, on the mean.
    pub(crate) fn mean_size(&self) -> i64 {
        (self.cut.whole() / self.group.size() as i64).max(1)
    }

    /// The token with the largest of all ranks' logits, whose own are `[n, V]`; the first of equals.
    pub(crate) fn best(&self, logits: &Tensor) -> Result<Tensor, parallel::Error> {
        let (value, place) = logits.max_dim(1, false);
        let values = self.group.all_gather(&value.unsqueeze(0))?; // [ranks, n]
        let tokens = place + self.cut.runs(self.group.rank())[0].start;
        let tokens = self.group.all_gather(&tokens.unsqueeze(0))?;
        Ok(tokens.gather(0, &values.argmax(0, true), false).squeeze_dim(0))
    }
}

/// Tokens as places among those of this rank.
pub(crate) struct Places {
    /// The place of each token; of one that this rank does not have, any.
    pub(crate) index: Tensor,
    /// Whether this rank does not have the token.
    pub(crate) foreign: Option<Tensor>,
}

impl Places {
    /// `ids`, int64 of any shape, in a vocabulary that may be split.
    pub(crate) fn new(ids: &Tensor, vocabulary: Option<&Vocabulary>) -> Self {
        let Some(vocabulary) = vocabulary else {
            return Self { index: ids.shallow_clone(), foreign: None };
        };
        let own = &vocabulary.cut.runs(vocabulary.group.rank())[0];
        let foreign = ids.lt(own.start).logical_or(&ids.ge(own.end));
        Self { index: (ids - own.start).masked_fill(&foreign, 0), foreign: Some(foreign) }
    }

    /// `x` with zeros at the tokens that this rank does not have. The mask is broadcast to `x`.
    pub(crate) fn own(&self, x: Tensor) -> Tensor {
        match &self.foreign {
            None => x,
            Some(foreign) if foreign.dim() as i64 == x.dim() as i64 => x.masked_fill(foreign, 0.0),
            Some(foreign) => x.masked_fill(&foreign.unsqueeze(-1), 0.0),
        }
    }
}

/// The table of token embeddings.
#[derive(Debug)]
pub struct TokenEmbedding {
    /// This rank's rows, `[V, H]`.
    pub(crate) weight: Tensor,
    pub(crate) vocabulary: Option<Vocabulary>,
}

impl TokenEmbedding {
    /// The embeddings `[N, H]` of `ids` `[N]`, of which a rank may keep some.
    pub fn forward(&self, ids: &Tensor, border: &Border) -> Result<Tensor, parallel::Error> {
        let places = Places::new(ids, self.vocabulary.as_ref());
        let found = Tensor::embedding(&self.weight, &places.index, -1, false, false);
        border.add_up(&places.own(found))
    }
}
