//! What an adapter trains of the tables of a model: rows of single tokens, and low-rank products beside the
//! embedding and the head.

use super::{LinearSpec, ModuleBuilder, ParameterPart, Side};
use crate::Error;
use crate::initialize::Initial;
use crate::lora::embedding_adapter::EMBEDDING_MATRICES;
use crate::lora::token_rows::TOKEN_ROWS;
use crate::lora::{EmbeddingAdapter, EmbeddingProduct, HeadAdapter, LoraTarget, TokenRows};
use crate::model_parallel::WeightPlacement;
use crate::vocab_parallel::VocabShard;

impl ModuleBuilder<'_> {
    /// Requests the rows of single tokens that are trained in place of those of the table `name`, if there
    /// are any. A row has `width` numbers.
    pub fn token_rows(
        &mut self,
        name: &str,
        width: i64,
        vocabulary: Option<&VocabShard>,
    ) -> Result<Option<TokenRows>, Error> {
        let (vocab_size, names) = (self.architecture.vocab_size, &self.architecture.names);
        let Some(tokens) = self.lora.and_then(|lora| lora.token_rows(name, names)) else { return Ok(None) };
        // Each rank uses the rows of the tokens in its part of the table.
        let placement =
            vocabulary.map_or(WeightPlacement::Replicate, |_| WeightPlacement::ReplicatePartialGrad);
        let (name, shape) = (format!("{name}{TOKEN_ROWS}"), [tokens.len() as i64, width]);
        let values = self.parameter_of(ParameterPart::Adapter, &name, &shape, Initial::Zeros, &placement)?;
        let local_range = vocabulary.map_or(0..vocab_size, |vocabulary| vocabulary.local_range().clone());
        Ok(Some(TokenRows::new(values, tokens, vocab_size, &local_range)))
    }

    /// Requests the adapter of a head with the table `name`, which has these numbers of inputs and of tokens,
    /// if there is one.
    pub fn head_adapter(
        &mut self,
        name: &str,
        sizes: [i64; 2],
        placement: &WeightPlacement,
        vocabulary: Option<&VocabShard>,
    ) -> Result<Option<HeadAdapter>, Error> {
        if let Some(rows) = self.token_rows(name, sizes[0], vocabulary)? {
            return Ok(Some(HeadAdapter::Rows(rows)));
        }
        let Some(target) = self.table_target(name)? else { return Ok(None) };
        let layer = LinearSpec { name, sizes, sharded: Side::Outputs, placement };
        Ok(Some(HeadAdapter::Product(self.lora(&layer, target)?)))
    }

    /// Requests the adapter of the token embedding with the table `name`, which has these numbers of tokens
    /// and of outputs, if there is one.
    pub fn embedding_adapter(
        &mut self,
        name: &str,
        [vocab, width]: [i64; 2],
        placement: &WeightPlacement,
        vocabulary: Option<&VocabShard>,
    ) -> Result<Option<EmbeddingAdapter>, Error> {
        if let Some(rows) = self.token_rows(name, width, vocabulary)? {
            return Ok(Some(EmbeddingAdapter::Rows(rows)));
        }
        let Some(LoraTarget { r, scaling }) = self.table_target(name)? else { return Ok(None) };
        // Each rank multiplies its own tokens with the second matrix.
        let (a_placement, b_placement) = match placement {
            WeightPlacement::Shard(spec) => {
                (WeightPlacement::Shard(spec.with_dim(1)), WeightPlacement::ReplicatePartialGrad)
            }
            other => (other.clone(), other.clone()),
        };
        self.adapted.push(name.to_owned());
        let [a, b] = EMBEDDING_MATRICES.map(|end| format!("{name}{end}"));
        let part = ParameterPart::Adapter;
        let a = self.parameter_of(part, &a, &[r, vocab], Initial::Zeros, &a_placement)?;
        let b = self.parameter_of(part, &b, &[width, r], Initial::Normal(1.0), &b_placement)?;
        Ok(Some(EmbeddingAdapter::Product(EmbeddingProduct { a, b, scaling })))
    }

    /// The low-rank adapter of a table, if it has one.
    fn table_target(&self, name: &str) -> Result<Option<LoraTarget>, Error> {
        self.lora.map_or(Ok(None), |lora| lora.table_target(name))
    }
}
