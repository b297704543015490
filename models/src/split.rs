//! One decoder among the ranks of a tensor group: every rank computes some heads, some of the MLP's inner columns and the logits of some
//! tokens, and tokens enter and leave that work together (Shoeybi et al. 2019, arXiv 1909.08053, section 3).

use std::ops::Range;
use std::sync::Arc;

use parallel::comm::Group;
use parallel::{Cut, region};
use tch::Tensor;

use crate::Error;
use crate::architecture::Architecture;
use crate::layer::Linear;

/// What each rank holds of a parameter.
#[derive(Clone, Debug)]
pub enum Share {
    /// All of it, for the same work on every rank.
    Whole,
    /// All of it, for work of its own: its gradient is one term of a sum over the ranks.
    Terms,
    /// A part.
    Part(Cut),
}

/// Where tokens enter the work that each rank does by itself, and where they leave it. Does nothing in a group of one.
#[derive(Clone, Debug)]
pub struct Border(Option<Arc<Group>>);

impl Border {
    /// The border of a group; `None` for a rank by itself.
    pub fn new(group: Option<&Arc<Group>>) -> Self {
        Self(group.cloned())
    }

    /// Tokens `[N, H]` into the work of each rank.
    pub fn enter(&self, x: &Tensor) -> Result<Tensor, parallel::Error> {
        match &self.0 {
            None => Ok(x.shallow_clone()),
            Some(group) => region::copy(x, group),
        }
    }

    /// `linear(x) + residual`, where each rank has some of the columns of `x` `[N, ..]`.
    pub fn leave(
        &self,
        linear: &Linear,
        x: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor, parallel::Error> {
        let Some(group) = &self.0 else { return Ok(linear.forward_onto(x, residual)) };
        let sum = linear.with_bias(region::reduce(&linear.product(x), group)?);
        Ok(match residual {
            Some(residual) => sum + residual,
            None => sum,
        })
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
            Err(Error::Split { ranks: group.size(), what: format!("{length} {what}") })
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
    /// The embeddings `[N, H]` of `ids` `[N]`.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor, parallel::Error> {
        let look_up = |ids: &Tensor| Tensor::embedding(&self.weight, ids, -1, false, false);
        let Some(vocabulary) = &self.vocabulary else { return Ok(look_up(ids)) };
        let places = Places::new(ids, Some(vocabulary));
        region::reduce(&places.own(look_up(&places.index)), &vocabulary.group)
    }
}
