//! The values of a decoder's parameters: from a model folder, from random numbers, or from another decoder.
//!
//! Each parameter gets a tensor of its own, or a place in the memory that [`LoadOptions::memory`] reserves
//! for the whole model. In the second case the decoder is built twice: first without values, to list its
//! parameters in order of use, and then over the reserved memory, so that loading never needs memory for a
//! second copy of the model.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parallel::memory;
use parallel::residency::{
    Access, HeldWeights, WeightAllocator, WeightSource, WeightSpec, WeightStore, Weights,
};
use parallel::{Placement, Segmented, upload};
use tch::{Device, Tensor, no_grad};

use super::{Decoder, DecoderSpec, HeadKind, LoadOptions, ModelMemory};
use crate::Error;
use crate::architecture::Names;
use crate::builder::{ParameterRequest, SCORE_WEIGHT};
use crate::config::Config;
use crate::initialize;
use crate::quantize::stored::StoredCodes;
use crate::quantize::{CodesLayout, MatrixCodes, QuantizedLayers, settings};
use crate::weights::{TensorReader, WeightFolder, copy_elements};

/// The values of one parameter.
pub(crate) enum Values {
    /// This rank's shard, in any dtype, on any device.
    Tensor(Tensor),
    /// This rank's shard in a file, which can be read again.
    File(FileValues),
    /// This rank's bytes of codes that are in a file, which can be read again.
    Codes(CodesInFile),
    /// A weight of another model, which can be copied again.
    Weight {
        /// The memory of the other model.
        store: Arc<dyn WeightStore>,
        /// The index of the weight there.
        index: usize,
        /// Its tensor.
        tensor: Tensor,
    },
}

/// A tensor in a file of a model folder.
pub(crate) struct FileValues {
    reader: TensorReader,
    folder: PathBuf,
    name: String,
    /// Whether the values were found to be finite.
    is_checked: AtomicBool,
}

/// The codes of a linear layer in a file of a model folder.
pub(crate) struct CodesInFile {
    stored: Arc<StoredCodes>,
    layer: String,
    layout: CodesLayout,
}

/// Returns the values of a requested parameter, which this rank holds.
pub(super) type ValuesFn<'a> = dyn FnMut(&ParameterRequest<'_>) -> Result<Values, Error> + 'a;

/// Loads a model folder. With `score_seed`, the scalar head is newly initialized instead of loaded. With
/// `vocab_size`, the vocabulary is resized to that many tokens.
pub(crate) fn from_folder(
    folder: &Path,
    head: HeadKind,
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

    let names = config.architecture().names;
    let ties = config.architecture().tie_word_embeddings && head == HeadKind::Vocabulary;
    let options = &held_as_stored(&config, options)?;
    check_quantize(&config, options)?;
    let is_conv1d = config.architecture().is_conv1d;
    let codes = StoredCodes::of(folder, &config, &files);
    let quantize = match &codes {
        Some(codes) => Some(QuantizedLayers::Stored(Arc::clone(codes))),
        None => options.quantize.map(QuantizedLayers::All),
    };
    let spec = DecoderSpec { quantize, ..DecoderSpec::whole(config, head) };
    let decoder = fill(spec, options, &mut |request| {
        if let (SCORE_WEIGHT, Some(seed)) = (request.name, score_seed) {
            return Ok(Values::Tensor(initial_values(request, seed)));
        }
        let spellings = names.spellings(request.name);
        if !request.is_local {
            files.mark_remote(&spellings)?;
            return Ok(Values::Tensor(options.placeholder()));
        }
        if let Some(layout) = request.codes {
            if let Some(stored) = &codes {
                files.mark_remote(&spellings)?;
                return Ok(Values::codes(stored, request, layout));
            }
            let mut shape = layout.shape();
            if is_conv1d {
                shape.reverse();
            }
            let reader = files.reader(&spellings, &shape, &Placement::Replicate)?;
            let full = Values::file(reader, folder, request).read()?;
            return Ok(Values::Tensor(quantized(if is_conv1d { full.tr() } else { full }, layout)));
        }

        let reader = files.reader(&spellings, request.shape, request.placement)?;
        if ties && request.name.strip_suffix(".weight") == Some(names.token_embedding) {
            check_tied_head(&mut files, folder, &names, request.shape, request.placement, &reader)?;
        }

        Ok(Values::file(reader, folder, request))
    })?;

    let is_companion = |name: &str| codes.as_ref().is_some_and(|codes| codes.is_companion(name));
    files.check_all_used(|name| is_ignorable(name) || is_companion(name))?;
    Ok(decoder)
}

/// This rank's bytes of the codes of a weight `[out, in]`.
fn quantized(full: Tensor, layout: &CodesLayout) -> Tensor {
    let codes = MatrixCodes::of(layout.format().quantization(), &full);
    // The numbers are not needed any more, and they are the larger part.
    drop(full);
    upload(&layout.pack(&codes), Device::Cpu)
}

/// The options with which a folder is read: codes in its files stay as they are.
fn held_as_stored(config: &Config, options: &LoadOptions) -> Result<LoadOptions, Error> {
    match (config.quantization(), options.quantize) {
        (Some(stored), Some(wanted)) if stored != wanted => Err(Error::Unsupported {
            path: config.origin().to_owned(),
            key: "quantize".to_owned(),
            value: wanted.name().to_owned(),
            fix: format!("the files of this model hold {} codes already: leave it out", stored.name()),
        }),
        (stored, wanted) => Ok(LoadOptions { quantize: stored.or(wanted), ..options.clone() }),
    }
}

/// Returns an error if the files have a head that differs from the embedding to which it is tied.
pub(crate) fn check_tied_head(
    files: &mut WeightFolder,
    folder: &Path,
    names: &Names,
    shape: &[i64],
    placement: &Placement,
    embedding: &TensorReader,
) -> Result<(), Error> {
    let mut heads = [format!("{}.weight", names.head), "lm_head.weight".to_owned()].into_iter();
    let Some(name) = heads.find(|name| files.has(name)) else { return Ok(()) };
    let head = files.reader(std::slice::from_ref(&name), shape, placement)?.read()?;
    let embedding = embedding.read()?;
    // transformers (5.23) uses a head that differs, earlier versions tie it. The choice changes the model, so
    // it is an error.
    if head.to_kind(embedding.kind()).equal(&embedding) {
        return Ok(());
    }
    Err(Error::UntiedHead { path: folder.to_owned(), name })
}

/// A new decoder. The values depend only on the seed.
pub(crate) fn random(
    config: Config,
    head: HeadKind,
    seed: u64,
    options: &LoadOptions,
) -> Result<Decoder, Error> {
    fill(DecoderSpec::whole(config, head), options, &mut |request| {
        let is_local = request.is_local;
        Ok(Values::Tensor(if is_local { initial_values(request, seed) } else { options.placeholder() }))
    })
}

/// An independent decoder with the values of `from`. A scalar head that `from` does not have is newly
/// initialized.
pub(crate) fn copy(
    from: &Decoder,
    head: HeadKind,
    options: &LoadOptions,
    seed: u64,
) -> Result<Decoder, Error> {
    let options = LoadOptions { model_parallel: from.model_parallel().clone(), ..options.clone() };
    let mut held = HeldWeights::none();
    fill(from.spec(head), &options, &mut |request| {
        if !request.is_local {
            return Ok(Values::Tensor(options.placeholder()));
        }
        Ok(Values::Tensor(match from.index_of(request.name) {
            None => initial_values(request, seed),
            Some(index) => {
                held.fetch_next(from.residency(), index)?;
                from.parameters()[index].tensor.detach().copy()
            }
        }))
    })
}

/// The decoder `from` without gradients. It shares the weights of `from`.
pub(crate) fn for_decoding(from: &Decoder) -> Result<Decoder, Error> {
    if let Some(memory) = from.memory.as_ref().filter(|memory| memory.store.comes_and_goes()) {
        return copy_for_decoding(from, memory);
    }
    with_weights_of(from, Tensor::detach)
}

/// Another decoder with the same weights, which come and go for both.
pub(crate) fn share(from: &Decoder) -> Result<Decoder, Error> {
    let mut decoder = with_weights_of(from, Tensor::shallow_clone)?;
    decoder.memory.clone_from(&from.memory);
    Ok(decoder)
}

/// A decoder whose parameters are made from those of another one.
fn with_weights_of(from: &Decoder, make: fn(&Tensor) -> Tensor) -> Result<Decoder, Error> {
    Decoder::build(from.spec(HeadKind::Vocabulary), from.model_parallel(), &mut |request| {
        Ok(if request.is_local {
            make(&from.parameters()[index_of(from, request)].tensor)
        } else {
            Tensor::empty([0], (from.kind(), from.device()))
        })
    })
}

/// [`for_decoding`] for weights that may leave memory: a copy, whose values come from `from` whenever they
/// are fetched. A copy of sharded weights is gathered once, because the ranks decode different numbers of
/// tokens and cannot gather them together.
fn copy_for_decoding(from: &Decoder, memory: &ModelMemory) -> Result<Decoder, Error> {
    let options = LoadOptions {
        kind: from.kind(),
        device: from.device(),
        trainable: false,
        model_parallel: from.model_parallel().clone(),
        memory: Some(memory.allocator.unsharded()),
        quantize: None,
    };
    let mut held = HeldWeights::none();
    fill(from.spec(HeadKind::Vocabulary), &options, &mut |request| {
        if !request.is_local {
            return Ok(Values::Tensor(options.placeholder()));
        }
        let index = index_of(from, request);
        let (tensor, store) = (from.parameters()[index].tensor.detach(), Arc::clone(&memory.store));
        if store.is_sharded() {
            held.fetch_next(from.residency(), index)?;
            return Ok(Values::Tensor(tensor));
        }
        Ok(Values::Weight { store, index, tensor })
    })
}

/// The index of the parameter of `from` that has the name of the request.
fn index_of(from: &Decoder, request: &ParameterRequest<'_>) -> usize {
    from.index_of(request.name).expect("both have the same parameters")
}

/// Builds a decoder and gives its parameters the values that `values` returns.
pub(super) fn fill(
    spec: DecoderSpec,
    options: &LoadOptions,
    values: &mut ValuesFn<'_>,
) -> Result<Decoder, Error> {
    check_memory(&spec.config, options)?;
    let has_adapter = spec.lora.is_some();
    let Some(allocator) = &options.memory else {
        return Decoder::build(spec, &options.model_parallel, &mut |request| {
            let values = values(request)?.read()?;
            if !request.is_local {
                return Ok(values);
            }
            let is_trained = options.trains(request, has_adapter);
            Ok(options.materialize(request, &values).set_requires_grad(is_trained))
        });
    };

    let store = reserve(spec.clone(), options, allocator)?;
    let mut next = 0..;
    let mut decoder = Decoder::build(spec, &options.model_parallel, &mut |request| {
        let values = values(request)?;
        if !request.is_local {
            return values.read();
        }
        let index = next.next().expect("the range does not end");
        let keep = !matches!(values, Values::Tensor(_));
        store.load(index, values.into_source(), keep).map_err(own_error)?;
        Ok(store.tensor(index).set_requires_grad(options.trains(request, has_adapter)))
    })?;
    decoder.memory = Some(ModelMemory { allocator: Arc::clone(allocator), store });
    Ok(decoder)
}

/// Unpacks an error of a source, which passed through the memory manager.
pub(super) fn own_error(error: parallel::Error) -> Error {
    match error {
        parallel::Error::Residency { class, error } => match error.downcast::<Error>() {
            Ok(own) => *own,
            Err(error) => parallel::Error::Residency { class, error }.into(),
        },
        error => error.into(),
    }
}

/// Builds the decoder without values, and reserves the memory of its parameters.
fn reserve(
    spec: DecoderSpec,
    options: &LoadOptions,
    allocator: &Arc<dyn WeightAllocator>,
) -> Result<Arc<dyn WeightStore>, Error> {
    let (decoder, specs) = without_values(spec, options)?;
    Ok(allocator.allocate(specs, decoder.weights_of_parts())?)
}

/// The places that the parameters of this rank need in memory, in order of use. Loads nothing, and works
/// with process groups for planning. A quantised weight takes as many bytes as its codes and scales.
pub fn weight_specs(spec: DecoderSpec, options: &LoadOptions) -> Result<Vec<WeightSpec>, Error> {
    let trainable = options.trainable && spec.lora.is_none();
    check_quantize(&spec.config, &LoadOptions { trainable, ..options.clone() })?;
    let quantize = options.quantize.map(QuantizedLayers::All);
    without_values(DecoderSpec { quantize, ..spec }, options).map(|(_, specs)| specs)
}

/// Like [`weight_specs`], for a decoder on a trunk that is in memory already: the places of what the decoder
/// adds to it.
pub fn own_weight_specs(spec: DecoderSpec, options: &LoadOptions) -> Result<Vec<WeightSpec>, Error> {
    let (decoder, specs) = without_values(spec, options)?;
    let specs = specs.into_iter().zip(&decoder.parts);
    Ok(specs.filter(|(_, part)| part.is_own()).map(|(spec, _)| spec).collect())
}

/// The decoder with empty tensors, and the places of its parameters.
pub(super) fn without_values(
    spec: DecoderSpec,
    options: &LoadOptions,
) -> Result<(Decoder, Vec<WeightSpec>), Error> {
    let has_adapter = spec.lora.is_some();
    let mut places = Vec::new();
    let decoder = Decoder::build(spec, &options.model_parallel, &mut |request| {
        if request.is_local {
            let shape = request.placement.local_shape(request.shape);
            places.push((shape, options.kind_of(request), options.trains(request, has_adapter)));
        }
        Ok(options.placeholder())
    })?;
    let specs = decoder.parameters().iter().zip(places).map(|(parameter, place)| {
        let (shape, kind, trainable) = place;
        WeightSpec { parameter: parameter.clone(), shape, kind, trainable }
    });
    let specs = specs.collect();
    Ok((decoder, specs))
}

impl Values {
    /// The values of a requested parameter, from a file of `folder`.
    pub(crate) fn file(reader: TensorReader, folder: &Path, request: &ParameterRequest<'_>) -> Self {
        let (folder, name) = (folder.to_owned(), request.name.to_owned());
        Self::File(FileValues { reader, folder, name, is_checked: AtomicBool::new(false) })
    }

    /// The bytes of the codes of a requested parameter, from a file.
    fn codes(stored: &Arc<StoredCodes>, request: &ParameterRequest<'_>, layout: &CodesLayout) -> Self {
        let layer = request.name.strip_suffix(".weight").expect("the codes are those of a weight").to_owned();
        Self::Codes(CodesInFile { stored: Arc::clone(stored), layer, layout: layout.clone() })
    }

    /// The values as a tensor of their own.
    pub(super) fn read(self) -> Result<Tensor, Error> {
        match self {
            Self::Tensor(tensor) => Ok(tensor),
            Self::File(values) => {
                let tensor = values.reader.read()?;
                values.check(&tensor)?;
                Ok(tensor)
            }
            Self::Codes(codes) => Ok(upload(&codes.read()?, Device::Cpu)),
            Self::Weight { store, index, tensor } => {
                let _weight = HeldWeights::fetch(Some(&*store), Weights::Parameter(index), Access::Read)?;
                Ok(tensor.copy())
            }
        }
    }

    /// A function that copies values to their places in a tensor of the model.
    pub(super) fn into_source(self) -> WeightSource {
        match self {
            Self::Tensor(tensor) => Box::new(move |target, elements| {
                copy_elements(target, &tensor, elements);
                Ok(())
            }),
            Self::File(values) => Box::new(move |target, elements| {
                let read = values.reader.read_into(target, elements).and_then(|()| values.check(target));
                read.map_err(passed_error)
            }),
            Self::Codes(codes) => Box::new(move |target, elements| {
                let bytes = codes.read().map_err(passed_error)?;
                copy_bytes(target, &bytes, elements);
                Ok(())
            }),
            Self::Weight { store, index, tensor } => Box::new(move |target, elements| {
                let _weight = HeldWeights::fetch(Some(&*store), Weights::Parameter(index), Access::Read)?;
                copy_elements(target, &tensor, elements);
                Ok(())
            }),
        }
    }
}

impl CodesInFile {
    fn read(&self) -> Result<Vec<u8>, Error> {
        Ok(self.layout.pack(&self.stored.read(&self.layer, self.layout.shape())?))
    }
}

/// Copies some of `bytes` to their places in `target`, a contiguous tensor with a place for each. Under a
/// budget there may be no room for a second tensor of all of them.
fn copy_bytes(target: &Tensor, bytes: &[u8], elements: Range<usize>) {
    const PIECE_BYTES: usize = 1 << 16;
    let (target, end) = (target.detach(), elements.end);
    for start in elements.step_by(PIECE_BYTES) {
        let piece = &bytes[start..(start + PIECE_BYTES).min(end)];
        let place = target.narrow(0, start as i64, piece.len() as i64);
        no_grad(|| place.shallow_clone().copy_(&Tensor::from_slice(piece)));
    }
}

/// Packs an error of a source, which passes through the memory manager.
fn passed_error(error: Error) -> parallel::Error {
    parallel::Error::Residency { class: error.class(), error: Box::new(error) }
}

impl FileValues {
    /// Returns an error if a value that was just read is not finite. The file is checked once.
    fn check(&self, values: &Tensor) -> Result<(), Error> {
        if self.is_checked.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        check_finite(&self.folder, &self.name, values)
    }
}

/// Returns an error for a model whose weights cannot be quantised as `options` ask for.
fn check_quantize(config: &Config, options: &LoadOptions) -> Result<(), Error> {
    let Some(quantization) = options.quantize else { return Ok(()) };
    let is_stored = config.quantization().is_some();
    let fix = if options.trainable {
        "weights that are trained have to be numbers: train adapters, with [model.lora]"
    } else if options.device != Device::Cpu {
        "quantised weights are on the processor only: choose the device `cpu`"
    } else {
        return Ok(());
    };
    Err(Error::Unsupported {
        path: config.origin().to_owned(),
        key: if is_stored { settings::KEY } else { "quantize" }.to_owned(),
        value: quantization.name().to_owned(),
        fix: fix.to_owned(),
    })
}

/// Returns an error if this process's share of the model alone exceeds the memory of the machine. The
/// operating system would kill the process without a message.
fn check_memory(config: &Config, options: &LoadOptions) -> Result<(), Error> {
    const GIB: f64 = (1u64 << 30) as f64;
    if options.memory.as_ref().is_some_and(|memory| memory.is_limited()) {
        return Ok(());
    }
    let Some(available) = memory::total_bytes() else { return Ok(()) };
    let parameters = config.architecture().num_parameters();
    let shards =
        options.model_parallel.num_shards() * options.memory.as_ref().map_or(1, |memory| memory.num_shards());
    let width = options.kind.elt_size_in_bytes() as f64;
    let bytes = match options.quantize {
        None => parameters * width,
        Some(quantization) => {
            let tables = config.architecture().num_table_parameters();
            tables * width + (parameters - tables) * quantization.bytes_per_number()
        }
    };
    let needed = bytes / shards as f64;
    if needed <= available as f64 {
        return Ok(());
    }
    let path = config.origin().to_owned();
    Err(Error::TooLarge { path, parameters, needed: needed / GIB, available: available as f64 / GIB })
}

/// Returns an error if a weight is NaN or infinite, because it would make every result NaN.
pub(crate) fn check_finite(folder: &Path, name: &str, tensor: &Tensor) -> Result<(), Error> {
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
pub(crate) fn is_ignorable(name: &str) -> bool {
    const BUFFERS: [&str; 5] =
        ["attn.bias", "attn.masked_bias", "attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"];
    const HEADS: [&str; 3] = ["lm_head.weight", "embed_out.weight", SCORE_WEIGHT];
    let is_buffer = |end: &&str| name.strip_suffix(*end).is_some_and(|rest| rest.ends_with('.'));
    HEADS.contains(&name) || BUFFERS.iter().any(is_buffer)
}

/// This rank's shard of the initial values of a new parameter, fp32 on the CPU.
pub(super) fn initial_values(request: &ParameterRequest<'_>, seed: u64) -> Tensor {
    let full = initialize::values(request.initial, request.shape, seed, request.name);
    request.placement.shard(&full)
}
