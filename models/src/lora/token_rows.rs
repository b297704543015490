//! Rows of single tokens that are trained beside adapters, in place of rows of the frozen table of an
//! embedding or a head.
//!
//! ```text
//!   embedding   h_n = R[i] if token n is the i-th of the trained ones, otherwise W[n]
//!   head        z_v = W[v] h + (R[i] - W[v]) h   if v is the i-th of them, otherwise W[v] h
//! ```
//! `W` `[V, H]` is the table of this tensor-parallel rank, `R` `[n, H]` the rows (PEFT:
//! `TrainableTokensLayer`). As in PEFT, the file of an adapter has the rows themselves and not what they add
//! to the table, and a row is rounded to the dtype of the table before it is used. The head adds a
//! difference, so that rows that equal those of the table change no bit of a logit, and no copy of the table
//! is made.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor, no_grad};

/// What follows the name of a module in the name of its trained rows.
pub(crate) const TOKEN_ROWS: &str = ".token_adapter.trainable_tokens_delta";

/// The tokens whose rows are trained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TokenIndices {
    /// Tokens of the token embedding, and of the head that is tied to it.
    Embedding(Vec<i64>),
    /// Tokens by the name of their embedding or head, or the end of its name.
    ByModule(BTreeMap<String, Vec<i64>>),
}

/// The trained rows of an embedding or of a head.
#[derive(Debug)]
pub struct TokenRows {
    /// `[n, H]`, fp32.
    values: Tensor,
    /// For each token of the whole vocabulary the number of its row, or -1 if it has none; int64 `[V]`.
    numbers: Tensor,
    /// The rows of tokens in this rank's table; `None` if there are none.
    local: Option<LocalRows>,
}

/// The rows of tokens in the table of a rank.
#[derive(Debug)]
struct LocalRows {
    /// Their tokens, as rows of the table, int64 `[m]`.
    tokens: Tensor,
    /// Their numbers among all trained rows, int64 `[m]`.
    numbers: Tensor,
}

impl TokenRows {
    /// The rows `values` `[n, H]` of the tokens `tokens`, which are different tokens of a vocabulary of
    /// `vocab_size`. This rank's table has the tokens `local_range`.
    pub(crate) fn new(values: Tensor, tokens: &[i64], vocab_size: i64, local_range: &Range<i64>) -> Self {
        let device = values.device();
        let mut numbers = vec![-1i64; vocab_size as usize];
        for (&token, number) in tokens.iter().zip(0..) {
            numbers[token as usize] = number;
        }
        let is_local = |(token, _): &(i64, i64)| local_range.contains(token);
        let (held, held_numbers): (Vec<i64>, Vec<i64>) =
            tokens.iter().copied().zip(0..).filter(is_local).unzip();
        let held: Vec<i64> = held.into_iter().map(|token| token - local_range.start).collect();
        let local = (!held.is_empty()).then(|| LocalRows {
            tokens: parallel::upload(&held, device),
            numbers: parallel::upload(&held_numbers, device),
        });
        Self { values, numbers: parallel::upload(&numbers, device), local }
    }

    /// Another handle to the same rows.
    pub(crate) fn share(&self) -> Self {
        let local = self.local.as_ref().map(|LocalRows { tokens, numbers }| LocalRows {
            tokens: tokens.shallow_clone(),
            numbers: numbers.shallow_clone(),
        });
        Self { values: self.values.shallow_clone(), numbers: self.numbers.shallow_clone(), local }
    }

    /// The rows, `[n, H]`, fp32.
    pub(crate) fn values(&self) -> &Tensor {
        &self.values
    }

    /// The embeddings `[N, H]` of the tokens `ids` `[N]` of the whole vocabulary, of which `embedded` are
    /// those of the table.
    pub(crate) fn replace(&self, ids: &Tensor, embedded: &Tensor) -> Tensor {
        let numbers = self.numbers.index_select(0, ids);
        let own = Tensor::embedding(&self.values, &numbers.clamp_min(0), -1, false, false);
        own.to_kind(embedded.kind()).where_self(&numbers.ge(0).unsqueeze(-1), embedded)
    }

    /// What the rows add to the products with the table `[V, H]` of a head; `None` if no token of this rank
    /// has a row.
    pub(crate) fn differences(&self, table: &Tensor) -> Option<RowDifferences> {
        let LocalRows { tokens, numbers } = self.local.as_ref()?;
        let rows = self.values.index_select(0, numbers).to_kind(table.kind()).to_kind(Kind::Float);
        Some(RowDifferences {
            values: rows - table.index_select(0, tokens).to_kind(Kind::Float),
            tokens: tokens.shallow_clone(),
            numbers: numbers.shallow_clone(),
        })
    }

    /// The table `[V, H]` with the rows in it, fp32: that of a model that computes the same without them.
    pub(crate) fn merged(&self, table: &Tensor) -> Tensor {
        no_grad(|| {
            let table = table.to_kind(Kind::Float);
            match &self.local {
                Some(LocalRows { tokens, numbers }) => {
                    table.index_copy(0, tokens, &self.values.index_select(0, numbers))
                }
                None => table.copy(),
            }
        })
    }
}

/// The differences between trained rows and those of the table of a head.
pub(crate) struct RowDifferences {
    /// `[m, H]`, fp32.
    values: Tensor,
    /// Their tokens, as rows of the table, int64 `[m]`.
    tokens: Tensor,
    /// Their numbers among all trained rows, int64 `[m]`.
    numbers: Tensor,
}

impl RowDifferences {
    /// The logits `[N, V]` of hidden states `[N, H]` from those of the table, `logits`, whose memory they
    /// take. They are rounded to the dtype of `logits`.
    pub(crate) fn add_to(&self, mut logits: Tensor, hidden: &Tensor) -> Tensor {
        let of_table = logits.index_select(1, &self.tokens).to_kind(Kind::Float);
        let own = of_table + hidden.to_kind(Kind::Float).matmul(&self.values.tr());
        let own = own.to_kind(logits.kind());
        logits.index_copy_(1, &self.tokens, &own)
    }

    /// What the differences add to the gradient of hidden states, `[N, H]`, fp32, from that of the logits
    /// `[N, V]`.
    pub(crate) fn hidden_grad(&self, grad_logits: &Tensor) -> Tensor {
        self.select(grad_logits).matmul(&self.values)
    }

    /// Adds the gradient of the rows to `sum` `[n, H]`, fp32.
    pub(crate) fn add_grad(&self, sum: &mut Tensor, hidden: &Tensor, grad_logits: &Tensor) {
        let own = self.select(grad_logits).tr().matmul(&hidden.to_kind(Kind::Float));
        let _ = sum.index_add_(0, &self.numbers, &own);
    }

    /// The gradients of the logits of the rows' tokens, `[N, m]`, fp32.
    fn select(&self, grad_logits: &Tensor) -> Tensor {
        grad_logits.index_select(1, &self.tokens).to_kind(Kind::Float)
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    /// Tokens 6 and 1 of nine have rows; this rank's table has the tokens 4 to 8.
    #[test]
    fn a_rank_uses_the_rows_of_its_own_tokens_by_hand() {
        let values = Tensor::from_slice2(&[[10f32, 20.0], [30.0, 40.0]]);
        let rows = TokenRows::new(values, &[6, 1], 9, &(4..9));
        let table = Tensor::arange(10, (Kind::Float, Device::Cpu)).view([5, 2]);
        let merged = [[0f32, 1.0], [2.0, 3.0], [10.0, 20.0], [6.0, 7.0], [8.0, 9.0]];
        assert_eq!(rows.merged(&table), Tensor::from_slice2(&merged));

        let embedded = Tensor::from_slice2(&[[1f32, 1.0], [2.0, 2.0], [3.0, 3.0]]);
        let replaced = rows.replace(&Tensor::from_slice(&[1i64, 5, 6]), &embedded);
        assert_eq!(replaced, Tensor::from_slice2(&[[30f32, 40.0], [2.0, 2.0], [10.0, 20.0]]));

        // h (1, -1): the table gives -1 to each token, and row 6 gives 10 - 20.
        let hidden = Tensor::from_slice2(&[[1f32, -1.0]]);
        let differences = rows.differences(&table).unwrap();
        let logits = differences.add_to(hidden.matmul(&table.tr()), &hidden);
        assert_eq!(logits, Tensor::from_slice2(&[[-1f32, -1.0, -10.0, -1.0, -1.0]]));

        let none = TokenRows::new(Tensor::zeros([1, 2], (Kind::Float, Device::Cpu)), &[6], 9, &(0..4));
        assert!(none.differences(&table).is_none());
    }

    #[test]
    fn gradients_are_those_of_the_table_with_the_rows_in_it() {
        tch::manual_seed(12);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (table, hidden, grad_logits) = (random(&[7, 5]), random(&[4, 5]), random(&[4, 7]));
        let rows = TokenRows::new(random(&[2, 5]), &[6, 2], 7, &(0..7));
        let differences = rows.differences(&table).unwrap();
        let merged = rows.merged(&table);
        let close = |one: &Tensor, other: &Tensor| (one - other).abs().max().double_value(&[]) < 1e-5;

        let logits = differences.add_to(hidden.matmul(&table.tr()), &hidden);
        assert!(close(&logits, &hidden.matmul(&merged.tr())));
        let hidden_grad = grad_logits.matmul(&table) + differences.hidden_grad(&grad_logits);
        assert!(close(&hidden_grad, &grad_logits.matmul(&merged)));
        let mut sum = Tensor::ones([2, 5], (Kind::Float, Device::Cpu));
        differences.add_grad(&mut sum, &hidden, &grad_logits);
        let of_merged = grad_logits.tr().matmul(&hidden);
        assert!(close(&(sum - 1.0), &of_merged.index_select(0, &Tensor::from_slice(&[6i64, 2]))));
    }

    #[test]
    fn rows_that_equal_the_table_change_no_bit() {
        tch::manual_seed(13);
        for kind in [Kind::Float, Kind::BFloat16] {
            let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind);
            let (table, hidden, grad_logits) = (random(&[9, 6]), random(&[5, 6]), random(&[5, 9]));
            let tokens = [8i64, 0, 3];
            let values = table.index_select(0, &Tensor::from_slice(&tokens)).to_kind(Kind::Float);
            let rows = TokenRows::new(values, &tokens, 9, &(0..9));
            let differences = rows.differences(&table).unwrap();
            let logits = hidden.matmul(&table.tr());
            assert_eq!(differences.add_to(logits.copy(), &hidden), logits);
            assert_eq!(differences.hidden_grad(&grad_logits).abs().max().double_value(&[]), 0.0);
            let ids = Tensor::from_slice(&[3i64, 1, 8]);
            let embedded = table.index_select(0, &ids);
            assert_eq!(rows.replace(&ids, &embedded), embedded);
        }
    }
}
