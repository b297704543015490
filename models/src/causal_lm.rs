//! A decoder with a vocabulary head: a policy or a reference model.
//!
//! Logits are not computed here. The caller computes the logits that it needs with the head.

use std::path::Path;

use parallel::{Parameter, PipelineStages, Segmented, memory};
use tch::{Device, Kind, Tensor, no_grad};

use crate::Error;
use crate::batch::Batch;
use crate::cache::KvCache;
use crate::config::Config;
use crate::decoder::{self, Decoder, SCORE_WEIGHT};
use crate::head::Head;
use crate::initialize;
use crate::layer::{ParameterRequest, to_column_major};
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
        let decoder = load(folder, decoder::HeadKind::Vocabulary, options, None, None)?;
        Ok(Self { decoder })
    }

    /// Like [`Self::load`], with a larger vocabulary. The new rows of the token embedding, and of an untied
    /// head, are the mean of the existing rows.
    pub fn load_resized(folder: &Path, vocab_size: i64, options: &LoadOptions) -> Result<Self, Error> {
        refuse_reward_model(folder)?;
        let decoder = load(folder, decoder::HeadKind::Vocabulary, options, None, Some(vocab_size))?;
        Ok(Self { decoder })
    }

    /// A new model, initialized like in transformers. The values depend only on the seed, not on the machine.
    pub fn random(config: Config, seed: u64, options: &LoadOptions) -> Result<Self, Error> {
        check_memory(&config, options)?;
        let decoder =
            Decoder::build(config, decoder::HeadKind::Vocabulary, &options.model_parallel, &mut |request| {
                Ok(init_parameter(request, seed, options))
            })?;
        Ok(Self { decoder })
    }

    /// An independent copy of this model with the same values and the same split over ranks.
    pub fn copy(&self, options: &LoadOptions) -> Result<Self, Error> {
        let decoder = copy(&self.decoder, decoder::HeadKind::Vocabulary, options, 0)?;
        Ok(Self { decoder })
    }

    /// The same weights without gradients, in the memory layout that is fastest for decoding. While both
    /// models exist, column-major matrices take their memory twice.
    ///
    /// Weights that already have the layout are shared with this model, and on devices other than the CPU all
    /// weights are.
    pub fn for_decoding(&self) -> Result<Self, Error> {
        let is_on_cpu = self.device() == tch::Device::Cpu;
        let (config, model_parallel) = (self.config().clone(), self.decoder.model_parallel());
        let decoder =
            Decoder::build(config, decoder::HeadKind::Vocabulary, model_parallel, &mut |request| {
                if !request.is_local {
                    return Ok(Tensor::empty([0], (self.decoder.kind(), self.device())));
                }
                let mut same_name =
                    self.parameters().iter().filter(|parameter| parameter.name == request.name);
                let tensor = same_name.next().expect("both have the same parameters").tensor.detach();
                Ok(if is_on_cpu && request.is_linear_weight {
                    no_grad(|| to_column_major(&tensor))
                } else {
                    tensor
                })
            })?;
        Ok(Self { decoder })
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

    fn hidden_spec(&self, context: &Batch) -> (Vec<i64>, (Kind, Device)) {
        self.decoder.hidden_spec(context)
    }

    fn forward_no_grad(&self, context: &Batch) -> Result<Tensor, parallel::Error> {
        self.decoder.forward_no_grad(context)
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

/// Loads a decoder. With `score_seed`, the scalar head is newly initialized instead of loaded. With
/// `vocab_size`, the vocabulary is resized to that many tokens.
pub(crate) fn load(
    folder: &Path,
    head: decoder::HeadKind,
    options: &LoadOptions,
    score_seed: Option<u64>,
    vocab_size: Option<i64>,
) -> Result<Decoder, Error> {
    let mut config = Config::from_folder(folder)?;
    let mut files = WeightFolder::open(folder)?;
    if let Some(vocab_size) = vocab_size {
        files.resize_vocab(config.vocab_size(), vocab_size);
        config.set("vocab_size", vocab_size.into())?;
    }
    check_memory(&config, options)?;

    let names = config.architecture().names;
    let ties = config.architecture().tie_word_embeddings && head == decoder::HeadKind::Vocabulary;
    let decoder = Decoder::build(config, head, &options.model_parallel, &mut |request| {
        if let (SCORE_WEIGHT, Some(seed)) = (request.name, score_seed) {
            return Ok(init_parameter(request, seed, options));
        }
        let mut spellings = vec![request.name.to_owned()];
        spellings.extend(request.name.strip_prefix(names.prefix).map(str::to_owned));
        if request.name == format!("{}.weight", names.head) {
            spellings.push("lm_head.weight".to_owned());
        }
        if !request.is_local {
            files.mark_remote(&spellings)?;
            return Ok(options.placeholder());
        }
        let tensor = files.tensor(&spellings, request.shape, request.placement)?;
        check_finite(folder, request.name, &tensor)?;
        if ties && request.name.strip_suffix(".weight") == Some(names.token_embedding) {
            let mut names = [format!("{}.weight", names.head), "lm_head.weight".to_owned()].into_iter();
            if let Some(name) = names.find(|name| files.has(name)) {
                let head = files.tensor(std::slice::from_ref(&name), request.shape, request.placement)?;
                // transformers (5.23) uses a head that differs, earlier versions tie it. The choice changes
                // the model, so it is an error.
                if !head.to_kind(tensor.kind()).equal(&tensor) {
                    return Err(Error::UntiedHead { path: folder.to_owned(), name });
                }
            }
        }
        Ok(options.materialize(request, &tensor))
    })?;

    files.check_all_used(is_ignorable)?;
    Ok(decoder)
}

/// Returns an error if this process's share of the model alone exceeds the memory of the machine. The
/// operating system would kill the process without a message.
pub(crate) fn check_memory(config: &Config, options: &LoadOptions) -> Result<(), Error> {
    const GIB: f64 = (1u64 << 30) as f64;
    let Some(available) = memory::total_bytes() else { return Ok(()) };
    let parameters = config.architecture().num_parameters();
    let needed =
        parameters * options.kind.elt_size_in_bytes() as f64 / options.model_parallel.num_shards() as f64;
    if needed <= available as f64 {
        return Ok(());
    }
    let path = config.origin().to_owned();
    Err(Error::TooLarge { path, parameters, needed: needed / GIB, available: available as f64 / GIB })
}

/// Returns an error if a weight is NaN or infinite, because it would make every result NaN.
fn check_finite(folder: &Path, name: &str, tensor: &Tensor) -> Result<(), Error> {
    if tensor.numel() == 0 {
        return Ok(());
    }
    let (least, most) = tensor.aminmax(None::<i64>, false);
    let [least, most] = [least, most].map(|bound| bound.double_value(&[]));
    if least.is_finite() && most.is_finite() {
        return Ok(());
    }
    let found = if least.is_nan() || most.is_nan() { "NaN" } else { "infinity" };
    Err(Error::WeightNotFinite { path: folder.to_owned(), name: name.to_owned(), found })
}

/// Whether no forward pass reads this tensor: a buffer that old versions saved, or a head that is not used
/// here.
fn is_ignorable(name: &str) -> bool {
    const BUFFERS: [&str; 5] =
        ["attn.bias", "attn.masked_bias", "attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"];
    const HEADS: [&str; 3] = ["lm_head.weight", "embed_out.weight", SCORE_WEIGHT];
    let is_buffer = |end: &&str| name.strip_suffix(*end).is_some_and(|rest| rest.ends_with('.'));
    HEADS.contains(&name) || BUFFERS.iter().any(is_buffer)
}

/// Builds an independent decoder with the values of `from`. A scalar head that `from` does not have is newly
/// initialized.
pub(crate) fn copy(
    from: &Decoder,
    head: decoder::HeadKind,
    options: &LoadOptions,
    seed: u64,
) -> Result<Decoder, Error> {
    Decoder::build(from.config().clone(), head, from.model_parallel(), &mut |request| {
        if !request.is_local {
            return Ok(options.placeholder());
        }
        let source = from.parameters().iter().find(|parameter| parameter.name == request.name);
        Ok(source.map_or_else(
            || init_parameter(request, seed, options),
            |parameter| options.materialize(request, &parameter.tensor.detach().copy()),
        ))
    })
}

/// Initializes a new parameter on this rank.
pub(crate) fn init_parameter(request: &ParameterRequest<'_>, seed: u64, options: &LoadOptions) -> Tensor {
    if !request.is_local {
        return options.placeholder();
    }
    let full = initialize::values(request.initial, request.shape, seed, request.name);
    options.materialize(request, &request.placement.shard(&full))
}
