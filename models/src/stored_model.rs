//! A whole language model in a folder, of which one tensor is in memory at a time.

use std::path::{Path, PathBuf};

use parallel::Placement;
use parallel::safetensors_file::TensorSpec;
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::causal_lm::refuse_reward_model;
use crate::config::Config;
use crate::decoder::load::{self, check_finite, check_tied_head, is_ignorable, spellings};
use crate::decoder::{DecoderSpec, HeadKind, LoadOptions};
use crate::weights::{self, TensorReader, WeightFolder};

/// The tensors of a model folder.
pub(crate) struct StoredModel {
    folder: PathBuf,
    config: Config,
    /// In order of use.
    tensors: Vec<StoredTensor>,
}

struct StoredTensor {
    /// The name in the model, and the dtype of the file.
    spec: TensorSpec,
    reader: TensorReader,
}

impl StoredModel {
    /// Opens a folder, and checks that its files have the tensors of its configuration and no others.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        refuse_reward_model(folder)?;
        let config = Config::from_folder(folder)?;
        let (names, is_tied) = (config.architecture().names, config.architecture().tie_word_embeddings);
        let mut files = WeightFolder::open(folder)?;
        let mut tensors = Vec::new();
        for (name, shape) in parameters(&config)? {
            let all = Placement::Replicate;
            let reader = files.reader(&spellings(&names, &name), &shape, &all)?;
            if is_tied && name.strip_suffix(".weight") == Some(names.token_embedding) {
                check_tied_head(&mut files, folder, &names, &shape, &all, &reader)?;
            }
            let spec = TensorSpec { name, kind: reader.kind()?, shape };
            tensors.push(StoredTensor { spec, reader });
        }
        files.check_all_used(is_ignorable)?;
        Ok(Self { folder: folder.to_owned(), config, tensors })
    }

    /// The configuration.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The values of the parameter `name` in the dtype of the file. They are finite.
    pub(crate) fn values(&self, name: &str) -> Result<Tensor, Error> {
        let found = self.tensors.iter().find(|tensor| tensor.spec.name == name);
        let values = found.expect("the model has the parameters of its configuration").reader.read()?;
        check_finite(&self.folder, name, &values)?;
        Ok(values)
    }

    /// Writes `config` and the model to the folder `out`, with the values that `change` makes of those of
    /// each parameter, in `kind`, or in the dtypes of the files.
    pub(crate) fn save_changed(
        &self,
        out: &Path,
        config: &Config,
        kind: Option<Kind>,
        mut change: impl FnMut(&str, Tensor) -> Result<Tensor, Error>,
    ) -> Result<(), Error> {
        let spec = |tensor: &StoredTensor| TensorSpec {
            kind: kind.unwrap_or(tensor.spec.kind),
            ..tensor.spec.clone()
        };
        let specs: Vec<TensorSpec> = self.tensors.iter().map(spec).collect();
        weights::save_each(out, config, &specs, |spec| {
            Ok(change(&spec.name, self.values(&spec.name)?)?.to_kind(spec.kind))
        })
    }
}

/// The names and shapes of the parameters of a language model, in order of use.
pub(crate) fn parameters(config: &Config) -> Result<Vec<(String, Vec<i64>)>, Error> {
    let options = LoadOptions::frozen(Kind::Float, Device::Cpu);
    let specs = load::weight_specs(DecoderSpec::whole(config.clone(), HeadKind::Vocabulary), &options)?;
    Ok(specs.into_iter().map(|spec| (spec.parameter.name, spec.shape)).collect())
}
