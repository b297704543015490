//! A decoder with a vocabulary head: a policy or a reference model.
//!
//! Logits are not computed here. The caller computes the logits that it needs with the head.

use std::path::Path;
use std::sync::Arc;

use parallel::Segmented;
use tch::Tensor;

use crate::Error;
use crate::builder::SCORE_WEIGHT;
use crate::cache::KvCache;
use crate::cached_batch::CachedRow;
use crate::config::Config;
use crate::decoder::{HeadKind, load, role};
use crate::head::Head;
use crate::lora::{AdapterFolder, LoraPlan};
use crate::model::Model;
use crate::weights::WeightFolder;

pub use crate::decoder::LoadOptions;

/// The head of a language model: a distribution over the vocabulary at each token.
#[derive(Debug)]
pub struct VocabularyHead;

/// A causal language model.
pub type CausalLm = Model<VocabularyHead>;

impl CausalLm {
    /// Loads a folder with `config.json` and safetensors weights.
    pub fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        refuse_reward_model(folder)?;
        Ok(Self::new(load::from_folder(folder, HeadKind::Vocabulary, options, None, None)?))
    }

    /// Like [`Self::load`], with another size of the vocabulary. New rows of the token embedding, and of an
    /// untied head, are the mean of the existing rows; with a smaller vocabulary, the last rows are left out.
    pub fn load_resized(folder: &Path, vocab_size: i64, options: &LoadOptions) -> Result<Self, Error> {
        refuse_reward_model(folder)?;
        let decoder = load::from_folder(folder, HeadKind::Vocabulary, options, None, Some(vocab_size))?;
        Ok(Self::new(decoder))
    }

    /// A new model, initialized like in transformers. The values depend only on the seed, not on the machine.
    pub fn random(config: Config, seed: u64, options: &LoadOptions) -> Result<Self, Error> {
        Ok(Self::new(load::random(config, HeadKind::Vocabulary, seed, options)?))
    }

    /// An independent copy of this model with the same values and the same split over ranks.
    pub fn copy(&self, options: &LoadOptions) -> Result<Self, Error> {
        Ok(Self::new(load::copy(&self.decoder, HeadKind::Vocabulary, options, 0)?))
    }

    /// The same weights without gradients, which the two models share. If the weights of this model may leave
    /// memory, nothing is shared.
    pub fn for_decoding(&self) -> Result<Self, Error> {
        Ok(Self::new(load::for_decoding(&self.decoder)?))
    }

    /// Another model with the same weights, in the same memory. A model that was made
    /// [for decoding](Self::for_decoding) is shared so by several engines.
    pub fn share(&self) -> Result<Self, Error> {
        Ok(Self::new(load::share(&self.decoder)?))
    }

    /// A model that shares the frozen weights of this one, with new adapters: it computes what this model
    /// computes. Their values depend only on the seed.
    pub fn with_new_adapter(&self, lora: &Arc<LoraPlan>, seed: u64, trainable: bool) -> Result<Self, Error> {
        let head = HeadKind::Vocabulary;
        Ok(Self::new(role::with_new_adapter(&self.decoder, head, Some(lora), seed, trainable)?))
    }

    /// A model that shares the frozen weights of this one, with the adapters of a folder.
    pub fn with_adapter(&self, folder: &mut AdapterFolder, trainable: bool) -> Result<Self, Error> {
        Ok(Self::new(role::with_adapter(&self.decoder, HeadKind::Vocabulary, folder, None, trainable)?))
    }

    /// A model without adapters that computes the same: each adapter is added to the weight of its layer, in
    /// fp32. `options` say how its weights are held.
    pub fn merge(&self, options: &LoadOptions) -> Result<Self, Error> {
        Ok(Self::new(role::merge(&self.decoder, HeadKind::Vocabulary, options)?))
    }

    /// Writes `config.json` and the weights, or an adapter folder. Every rank that holds a shard of the model
    /// must call it.
    pub fn save(&self, folder: &Path) -> Result<(), Error> {
        let config = self.config().for_causal_lm(self.decoder.kind());
        self.decoder.save(folder, HeadKind::Vocabulary, &config)
    }

    /// The vocabulary head. No known family has a bias.
    pub fn head(&self) -> Head<'_> {
        Head {
            weight: self.decoder.head_weight(),
            bias: None,
            adapter: self.decoder.head_adapter(),
            vocabulary: self.decoder.vocabulary(),
            sequence_group: self.decoder.model_parallel().sequence_group(),
            pipeline: self.decoder.pipeline(),
            vocab_size: self.config().vocab_size(),
            residency: self.decoder.residency(),
        }
    }

    /// See [`step`](crate::decoder::Decoder::step).
    pub fn step(&self, rows: &[CachedRow<'_>], cache: &mut KvCache) -> Result<Tensor, parallel::Error> {
        self.decoder.step(rows, cache)
    }
}

/// Returns an error if the folder holds a reward model instead of a language model. The vocabulary head of a
/// reward model, if there is one, was not trained with its trunk.
pub(crate) fn refuse_reward_model(folder: &Path) -> Result<(), Error> {
    let config = Config::from_folder(folder)?;
    let found = match config.other_head_class() {
        Some(class) => format!("`architectures` in config.json names {class}"),
        None if WeightFolder::open(folder)?.has(SCORE_WEIGHT) => {
            format!("its weights hold the tensor `{SCORE_WEIGHT}`")
        }
        None => return Ok(()),
    };
    let found = format!("this is a reward model (it gives a score), not a language model: {found}");
    let fix = "give a language model here; `reward`, [ppo] reward_model and critic_model take this folder";
    Err(Error::WrongModelKind { path: folder.to_owned(), found, fix })
}
