//! A decoder with a vocabulary head: a policy or a reference model.
//!
//! Logits are not computed here. The caller computes the logits that it needs with the head.

use std::path::Path;
use std::sync::Arc;

use parallel::residency::WeightStore;
use parallel::{Parameter, PipelineStages, Segmented};
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::batch::Batch;
use crate::cache::KvCache;
use crate::config::Config;
use crate::decoder::{Decoder, HeadKind, SCORE_WEIGHT, load};
use crate::head::Head;
use crate::weights::WeightFolder;

pub use crate::decoder::LoadOptions;

/// A causal language model.
#[derive(Debug)]
pub struct CausalLm {
    decoder: Decoder,
}

impl CausalLm {
    /// Loads a folder with `config.json` and safetensors weights.
    pub fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        refuse_reward_model(folder)?;
        Ok(Self { decoder: load::from_folder(folder, HeadKind::Vocabulary, options, None, None)? })
    }

    /// Like [`Self::load`], with a larger vocabulary. The new rows of the token embedding, and of an untied
    /// head, are the mean of the existing rows.
    pub fn load_resized(folder: &Path, vocab_size: i64, options: &LoadOptions) -> Result<Self, Error> {
        refuse_reward_model(folder)?;
        Ok(Self {
            decoder: load::from_folder(folder, HeadKind::Vocabulary, options, None, Some(vocab_size))?,
        })
    }

    /// A new model, initialized like in transformers. The values depend only on the seed, not on the machine.
    pub fn random(config: Config, seed: u64, options: &LoadOptions) -> Result<Self, Error> {
        Ok(Self { decoder: load::random(config, HeadKind::Vocabulary, seed, options)? })
    }

    /// An independent copy of this model with the same values and the same split over ranks.
    pub fn copy(&self, options: &LoadOptions) -> Result<Self, Error> {
        Ok(Self { decoder: load::copy(&self.decoder, HeadKind::Vocabulary, options, 0)? })
    }

    /// The same weights without gradients, which the two models share. If the weights of this model may leave
    /// memory, nothing is shared.
    pub fn for_decoding(&self) -> Result<Self, Error> {
        Ok(Self { decoder: load::for_decoding(&self.decoder)? })
    }

    /// Writes `config.json` and the weights. Every rank that holds a shard of the model must call it.
    pub fn save(&self, folder: &Path) -> Result<(), Error> {
        let config = self.config().for_causal_lm(self.decoder.kind());
        self.decoder.save(folder, &config)
    }

    /// The trunk.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The device of the parameters.
    pub fn device(&self) -> tch::Device {
        self.decoder.device()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        self.decoder.config()
    }

    /// The vocabulary head. No known family has a bias.
    pub fn head(&self) -> Head<'_> {
        Head {
            weight: self.decoder.head_weight(),
            bias: None,
            vocabulary: self.decoder.vocabulary(),
            sequence_group: self.decoder.model_parallel().sequence_group(),
            pipeline: self.decoder.pipeline(),
            vocab_size: self.config().vocab_size(),
            residency: self.decoder.residency(),
        }
    }

    /// See [`Decoder::prefill`].
    pub fn prefill(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        slots: &[i64],
    ) -> Result<Tensor, parallel::Error> {
        self.decoder.prefill(batch, cache, slots)
    }

    /// See [`Decoder::decode`].
    pub fn decode(&self, input_ids: &Tensor, cache: &mut KvCache) -> Result<Tensor, parallel::Error> {
        self.decoder.decode(input_ids, cache)
    }
}

impl Segmented for CausalLm {
    type Context = Batch;

    fn num_segments(&self) -> usize {
        self.decoder.num_segments()
    }

    fn forward_segment(
        &self,
        index: usize,
        hidden: Option<&Tensor>,
        context: &Batch,
    ) -> Result<Tensor, parallel::Error> {
        self.decoder.forward_segment(index, hidden, context)
    }

    fn pipeline(&self) -> Option<&PipelineStages> {
        self.decoder.pipeline()
    }

    fn weight_store(&self) -> Option<&Arc<dyn WeightStore>> {
        self.decoder.weight_store()
    }

    fn hidden_spec(&self, context: &Batch) -> (Vec<i64>, (Kind, Device)) {
        self.decoder.hidden_spec(context)
    }

    fn forward_all_no_grad(&self, contexts: &[&Batch]) -> Result<Vec<Tensor>, parallel::Error> {
        self.decoder.forward_all_no_grad(contexts)
    }

    fn segment_parameters(&self, index: usize) -> Vec<usize> {
        self.decoder.segment_parameters(index)
    }

    fn head_parameters(&self) -> Vec<usize> {
        self.decoder.head_parameters()
    }

    fn parameters(&self) -> &[Parameter] {
        self.decoder.parameters()
    }
}

/// Returns an error if the folder holds a reward model instead of a language model. The vocabulary head of a
/// reward model, if there is one, was not trained with its trunk.
fn refuse_reward_model(folder: &Path) -> Result<(), Error> {
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
