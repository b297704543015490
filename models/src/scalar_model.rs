//! A decoder with one scalar per token: a reward model or a critic. In HF it is sequence classification with
//! one label.
//!
//! `value = hidden . score`, without a bias, in fp32. The caller decides which token's value counts.

use std::path::Path;
use std::sync::Arc;

use parallel::Segmented;
use parallel::residency::ModelPart;
use parallel::segment::hold_weights;
use tch::{Kind, Tensor};

use crate::Error;
use crate::builder::SCORE_WEIGHT;
use crate::causal_lm::{CausalLm, LoadOptions};
use crate::config::Config;
use crate::decoder::{HeadKind, load, role};
use crate::lora::{AdapterFolder, LoraPlan};
use crate::model::Model;
use crate::model_parallel::needs_grad;
use crate::weights::WeightFolder;

/// The head of a reward model or a critic: a number at each token.
#[derive(Debug)]
pub struct ScalarHead;

/// A decoder with a scalar head.
pub type ScalarModel = Model<ScalarHead>;

impl ScalarModel {
    /// Loads a sequence-classification folder with one label.
    pub fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        check_labels(&Config::from_folder(folder)?)?;
        if !WeightFolder::open(folder)?.has(SCORE_WEIGHT) {
            let found = format!("this is not a reward model: its weights hold no tensor `{SCORE_WEIGHT}`");
            let fix = "train one from it with `rm`, and give that run's final folder here";
            return Err(Error::WrongModelKind { path: folder.to_owned(), found, fix });
        }
        let decoder = load::from_folder(folder, HeadKind::Scalar, options, None, None)?;
        Ok(Self::new(decoder))
    }

    /// Loads the trunk of a language model and initializes a new scalar head from a normal distribution with
    /// standard deviation `1 / sqrt(H + 1)` (Stiennon et al. 2020, arXiv 2009.01325).
    pub fn from_causal_lm(folder: &Path, seed: u64, options: &LoadOptions) -> Result<Self, Error> {
        if WeightFolder::open(folder)?.has(SCORE_WEIGHT) {
            let found = format!(
                "its weights hold a trained score (`{SCORE_WEIGHT}`), and `architectures` in config.json names no reward model"
            );
            let fix = "name ...ForSequenceClassification there to continue training that score, or remove the tensor";
            return Err(Error::WrongModelKind { path: folder.to_owned(), found, fix });
        }
        let decoder = load::from_folder(folder, HeadKind::Scalar, options, Some(seed), None)?;
        Ok(Self::new(decoder))
    }

    /// Copies the trunk of a language model and initializes a new scalar head.
    pub fn from_model(model: &CausalLm, seed: u64, options: &LoadOptions) -> Result<Self, Error> {
        let decoder = load::copy(model.decoder(), HeadKind::Scalar, options, seed)?;
        Ok(Self::new(decoder))
    }

    /// An independent copy of this model, for example a critic that is initialized from the reward model.
    pub fn copy(&self, options: &LoadOptions) -> Result<Self, Error> {
        let decoder = load::copy(&self.decoder, HeadKind::Scalar, options, 0)?;
        Ok(Self::new(decoder))
    }

    /// A new, randomly initialized model.
    pub fn random(config: Config, seed: u64, options: &LoadOptions) -> Result<Self, Error> {
        Ok(Self::new(load::random(config, HeadKind::Scalar, seed, options)?))
    }

    /// A model that shares the frozen weights of a language model, with a new scalar head, and new adapters if
    /// `lora` is given. The values depend only on the seed.
    pub fn on_trunk(
        trunk: &CausalLm,
        lora: Option<&Arc<LoraPlan>>,
        seed: u64,
        trainable: bool,
    ) -> Result<Self, Error> {
        let head = HeadKind::Scalar;
        Ok(Self::new(role::with_new_adapter(trunk.decoder(), head, lora, seed, trainable)?))
    }

    /// A model that shares the frozen weights of a language model, with the adapters of a folder. With
    /// `score_seed`, a scalar head that the folder does not have is new, as [`on_trunk`](Self::on_trunk) makes
    /// it.
    pub fn with_adapter(
        trunk: &CausalLm,
        folder: &mut AdapterFolder,
        score_seed: Option<u64>,
        trainable: bool,
    ) -> Result<Self, Error> {
        let decoder = role::with_adapter(trunk.decoder(), HeadKind::Scalar, folder, score_seed, trainable)?;
        Ok(Self::new(decoder))
    }

    /// A model without adapters that computes the same, as [`CausalLm::merge`] makes it.
    pub fn merge(&self, options: &LoadOptions) -> Result<Self, Error> {
        Ok(Self::new(role::merge(&self.decoder, HeadKind::Scalar, options)?))
    }

    /// Writes `config.json` and the weights, or an adapter folder. Every rank that holds a shard of the model
    /// must call it. transformers scores the last token that is not `pad_token_id`, see [`Config::pad_token_id`].
    pub fn save(&self, folder: &Path) -> Result<(), Error> {
        self.decoder.save(
            folder,
            HeadKind::Scalar,
            &self.config().for_sequence_classification(self.decoder.kind()),
        )
    }

    /// Computes the values `[N]`, fp32, of hidden states `[N, H]`.
    pub fn values(&self, hidden: &Tensor) -> Result<Tensor, parallel::Error> {
        let _weights = hold_weights(self, ModelPart::Head)?;
        let score = |hidden: &Tensor| hidden.to_kind(Kind::Float).matmul(&self.score_weight().squeeze_dim(0));
        if let Some(pipeline) = self.decoder.pipeline().filter(|_| !needs_grad(hidden)) {
            let output = pipeline.is_last_stage().then(|| score(hidden));
            return pipeline.broadcast_from_last_stage(
                output,
                &hidden.size()[..1],
                (Kind::Float, hidden.device()),
            );
        }
        let Some(row_partition) = self.decoder.model_parallel().row_partition(hidden) else {
            return Ok(score(hidden));
        };
        let rows = hidden.size()[0];
        let range = row_partition.local_range(rows);
        row_partition.gather_rows(&score(&hidden.narrow(0, range.start, range.end - range.start)), rows)
    }

    /// The weight of the scalar head, `[1, H]`, fp32.
    pub fn score_weight(&self) -> &Tensor {
        self.decoder.head_weight()
    }
}

/// Returns an error for more than one label. Loading checks the shape of the scalar head.
fn check_labels(config: &Config) -> Result<(), Error> {
    let named =
        config.value("id2label").and_then(|labels| labels.as_object()).map(|labels| labels.len() as i64);
    let counted = config.value("num_labels").and_then(serde_json::Value::as_i64);
    match counted.or(named) {
        Some(labels) if labels != 1 => Err(Error::Unsupported {
            path: config.origin().to_owned(),
            key: if counted.is_some() { "num_labels" } else { "id2label" }.to_owned(),
            value: format!("{labels} labels"),
            fix: "a reward model has one label; train it with num_labels = 1".to_owned(),
        }),
        _ => Ok(()),
    }
}
