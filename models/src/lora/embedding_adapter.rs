//! What an adapter changes of the token embedding: rows of single tokens, or a low-rank product.
//!
//! ```text
//!   rows      h_n = R[i]                      if token n is the i-th of the trained ones, otherwise W[n]
//!   product   h_n = W[n] + s A^T[n] B^T
//! ```
//! `W` `[V, H]` and `A` `[r, V]` have the tokens of this tensor-parallel rank, `B` is `[H, r]`. In a new
//! adapter `A` is zero and `B` is normal, as in PEFT (`lora_embedding_A`, `lora_embedding_B`). A product is
//! summed in fp32 and rounded to the dtype of the table.

use tch::{Kind, Tensor, no_grad};

use super::token_rows::TokenRows;

/// What follows the name of the embedding in the names of the two matrices of its adapter.
pub(crate) const EMBEDDING_MATRICES: [&str; 2] = [".lora_embedding_A", ".lora_embedding_B"];

/// The adapter of the token embedding.
#[derive(Debug)]
pub enum EmbeddingAdapter {
    /// Rows that take the place of those of the table.
    Rows(TokenRows),
    /// A low-rank product beside the table.
    Product(EmbeddingProduct),
}

/// The two matrices of an adapter of the embedding, fp32.
#[derive(Debug)]
pub struct EmbeddingProduct {
    /// `[r, V]`.
    pub(crate) a: Tensor,
    /// `[H, r]`.
    pub(crate) b: Tensor,
    /// The factor of the product.
    pub(crate) scaling: f64,
}

impl EmbeddingAdapter {
    /// The rows, if single tokens have them.
    pub(crate) fn rows(&self) -> Option<&TokenRows> {
        match self {
            Self::Rows(rows) => Some(rows),
            Self::Product(_) => None,
        }
    }

    /// The embeddings `[N, H]` of tokens, of which `embedded` are those of the table. `ids` `[N]` are the
    /// tokens in the whole vocabulary, and `table_rows` `[N]` their rows in the table of this rank, whatever
    /// row for a token that another rank has.
    pub(crate) fn apply(&self, ids: &Tensor, table_rows: &Tensor, embedded: &Tensor) -> Tensor {
        match self {
            Self::Rows(rows) => rows.replace(ids, embedded),
            Self::Product(EmbeddingProduct { a, b, scaling }) => {
                let low = Tensor::embedding(&a.tr(), table_rows, -1, false, false); // [N, r]
                let own = low.matmul(&b.tr()) * *scaling;
                (embedded.to_kind(Kind::Float) + own).to_kind(embedded.kind())
            }
        }
    }

    /// The table `[V, H]` of a model that computes the same without the adapter, fp32.
    pub(crate) fn merged(&self, table: &Tensor) -> Tensor {
        match self {
            Self::Rows(rows) => rows.merged(table),
            Self::Product(EmbeddingProduct { a, b, scaling }) => {
                no_grad(|| table.to_kind(Kind::Float) + a.tr().matmul(&b.tr()) * *scaling)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn embeddings_are_those_of_the_merged_table() {
        tch::manual_seed(14);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (table, a, b) = (random(&[9, 6]), random(&[2, 9]), random(&[6, 2]));
        let ids = Tensor::from_slice(&[8i64, 0, 3, 8]);
        let adapter = EmbeddingAdapter::Product(EmbeddingProduct { a, b, scaling: 1.5 });
        let found = adapter.apply(&ids, &ids, &table.index_select(0, &ids));
        let expected = adapter.merged(&table).index_select(0, &ids);
        assert!((found - expected).abs().max().double_value(&[]) < 1e-6);
    }
}
