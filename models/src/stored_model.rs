//! A whole language model in a folder, of which one tensor is in memory at a time. Of codes, these are
//! the numbers that they stand for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parallel::Placement;
use parallel::safetensors_file::TensorSpec;
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::causal_lm::refuse_reward_model;
use crate::config::Config;
use crate::decoder::load::{self, check_finite, check_tied_head, is_ignorable};
use crate::decoder::{DecoderSpec, HeadKind, LoadOptions};
use crate::quantize::stored::StoredCodes;
use crate::quantize::{Quantization, QuantizedMatrix};
use crate::weights::{self, TensorReader, WeightFolder};

/// The tensors of a model folder.
pub(crate) struct StoredModel {
    folder: PathBuf,
    /// The configuration of the numbers.
    config: Config,
    codes: Option<Arc<StoredCodes>>,
    /// In order of use.
    tensors: Vec<StoredTensor>,
}

struct StoredTensor {
    /// The name in the model, and the dtype of the file; of codes, fp32.
    spec: TensorSpec,
    /// `None` for codes.
    reader: Option<TensorReader>,
}

impl StoredModel {
    /// Opens a folder, and checks that its files have the tensors of its configuration and no others.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        refuse_reward_model(folder)?;
        let config = Config::from_folder(folder)?;
        let (names, is_tied) = (config.architecture().names, config.architecture().tie_word_embeddings);
        let mut files = WeightFolder::open(folder)?;
        let codes = StoredCodes::of(folder, &config, &files);
        let is_table =
            |module: &str| [names.token_embedding, names.position_embedding, names.head].contains(&module);

        let mut tensors = Vec::new();
        for (name, shape) in parameters(&config)? {
            let (all, spellings) = (Placement::Replicate, names.spellings(&name));
            let module = name.strip_suffix(".weight");
            let layer = module.filter(|module| shape.len() == 2 && !is_table(module));
            if codes.as_ref().zip(layer).is_some_and(|(codes, layer)| codes.format_of(layer).is_some()) {
                files.mark_remote(&spellings)?;
                let spec = TensorSpec { name, kind: Kind::Float, shape };
                tensors.push(StoredTensor { spec, reader: None });
                continue;
            }
            let reader = files.reader(&spellings, &shape, &all)?;
            if is_tied && module == Some(names.token_embedding) {
                check_tied_head(&mut files, folder, &names, &shape, &all, &reader)?;
            }
            let spec = TensorSpec { name, kind: reader.kind()?, shape };
            tensors.push(StoredTensor { spec, reader: Some(reader) });
        }

        let is_companion = |name: &str| codes.as_ref().is_some_and(|codes| codes.is_companion(name));
        files.check_all_used(|name| is_ignorable(name) || is_companion(name))?;
        Ok(Self { folder: folder.to_owned(), config: config.without_codes(), codes, tensors })
    }

    /// The configuration of the numbers.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// How the files hold the weights of linear layers; `None` for numbers.
    pub(crate) fn quantization(&self) -> Option<Quantization> {
        self.codes.as_ref().map(|codes| codes.quantization())
    }

    /// The names and shapes of the parameters in order of use, and the dtypes of
    /// [`values`](Self::values).
    pub(crate) fn specs(&self) -> impl Iterator<Item = &TensorSpec> {
        self.tensors.iter().map(|tensor| &tensor.spec)
    }

    /// The values of the parameter `name` in the dtype of the file, or the numbers of its codes in fp32.
    /// They are finite.
    pub(crate) fn values(&self, name: &str) -> Result<Tensor, Error> {
        let found = self.tensors.iter().find(|tensor| tensor.spec.name == name);
        let StoredTensor { spec, reader } = found.expect("the model has the parameters of its configuration");
        let Some(reader) = reader else { return self.numbers_of_codes(spec) };
        let values = reader.read()?;
        check_finite(&self.folder, name, &values)?;
        Ok(values)
    }

    /// The numbers that the codes of a layer stand for, in the layout of its family.
    fn numbers_of_codes(&self, spec: &TensorSpec) -> Result<Tensor, Error> {
        let codes = self.codes.as_ref().expect("a weight has codes");
        let layer = spec.name.strip_suffix(".weight").expect("the codes are those of a weight");
        let is_conv1d = self.config.architecture().is_conv1d;
        let mut shape: [i64; 2] = spec.shape.clone().try_into().expect("a weight is a matrix");
        if is_conv1d {
            shape.reverse();
        }
        let matrix = QuantizedMatrix::of_codes(&codes.read(layer, shape)?, shape, &Placement::Replicate);
        let numbers = matrix.expect("the rows of a whole matrix are whole").dense(Kind::Float);
        Ok(if is_conv1d { numbers.tr().contiguous() } else { numbers })
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
