//! A decoder that shares the frozen weights of another one, the trunk, and has parameters of its own:
//! adapters, rows of single tokens, modules that are trained whole, a scalar head. Policy, critic, reward and
//! reference model can so have one copy of the trunk in memory.

use std::sync::{Arc, OnceLock};

use parallel::comm::Reduction;
use parallel::residency::joined::{JoinedStore, Origin};
use parallel::residency::{
    Access, HeldWeights, ModelPart, WeightAllocator, WeightSpec, WeightStore, Weights,
};
use parallel::{Placement, Segmented};
use tch::{Kind, Tensor, no_grad};

use super::load::{self, Values, ValuesFn};
use super::{Decoder, DecoderSpec, HeadKind, LoadOptions, ModelMemory};
use crate::Error;
use crate::builder::{ParameterPart, ParameterRequest};
use crate::lora::embedding_adapter::EMBEDDING_MATRICES;
use crate::lora::linear::Magnitude;
use crate::lora::token_rows::TOKEN_ROWS;
use crate::lora::{AdapterFolder, HeadAdapter, LoraLinear, LoraPlan};
use crate::vocab_parallel::MaskedIds;

/// A decoder with new adapters, whose matrices `B` are zero, and with new rows of tokens, which equal those
/// of the trunk: it computes what `trunk` computes. The values depend only on the seed. `options` say whether
/// it is trained; the rest is as in `trunk`.
pub(crate) fn with_new_adapter(
    trunk: &Decoder,
    head: HeadKind,
    lora: Option<&Arc<LoraPlan>>,
    seed: u64,
    trainable: bool,
) -> Result<Decoder, Error> {
    let decoder = build(trunk, head, lora, trainable, &mut |request| {
        let module = request.name.strip_suffix(TOKEN_ROWS).filter(|_| request.is_local);
        let Some(module) = module else { return new_values(trunk, request, seed) };
        let tokens = lora.and_then(|lora| lora.token_rows(module, &trunk.architecture().names));
        let tokens = tokens.expect("rows are requested for the tokens of the settings");
        Ok(Values::Tensor(table_rows(trunk, module, tokens)?))
    })?;
    decoder.lora.as_ref().map_or(Ok(()), |lora| lora.plan.check_biases(lora.trains_bias))?;
    Ok(decoder)
}

/// A decoder with the adapters of a folder. A scalar head that the folder does not have is newly initialized
/// with `score_seed`.
pub(crate) fn with_adapter(
    trunk: &Decoder,
    head: HeadKind,
    folder: &mut AdapterFolder,
    score_seed: Option<u64>,
    trainable: bool,
) -> Result<Decoder, Error> {
    let lora = Arc::clone(folder.plan());
    let decoder = build(trunk, head, Some(&lora), trainable, &mut |request| {
        let is_new = request.part == ParameterPart::ScalarHead && !folder.has(request.name);
        if let Some(seed) = score_seed.filter(|_| is_new) {
            return new_values(trunk, request, seed);
        }
        if !request.is_local {
            folder.mark_remote(request.name)?;
            return Ok(Values::Tensor(Tensor::empty([0], (trunk.kind(), trunk.device()))));
        }
        let reader = folder.reader(request.name, request.shape, request.placement)?;
        Ok(Values::file(reader, folder.path(), request))
    })?;

    // A reward model has no vocabulary head, and leaves out what its adapter has for one.
    let names = &trunk.architecture().names;
    let (head, unused_head) = match head {
        HeadKind::Vocabulary => (Some(names.head), None),
        HeadKind::Scalar => (None, Some(names.head)),
    };
    for module in std::iter::once(names.token_embedding).chain(head) {
        check_saved_table(trunk, folder, module)?;
    }
    folder.check_all_used(unused_head)?;
    Ok(decoder)
}

/// PEFT saves the table of an embedding or a head beside its adapter. Returns an error if the values are
/// others than those of the trunk, which has them already.
fn check_saved_table(trunk: &Decoder, folder: &mut AdapterFolder, module: &str) -> Result<(), Error> {
    let name = format!("{module}.base_layer.weight");
    if !folder.has(&name) {
        return Ok(());
    }
    let Some(index) = trunk.index_of(&format!("{module}.weight")) else { return folder.mark_remote(&name) };
    let _weight = HeldWeights::fetch(trunk.residency(), Weights::Parameter(index), Access::Read)?;
    let table = &trunk.parameters[index];
    let shape = table.placement.global_shape(&table.tensor.size());
    let saved = folder.reader(&name, &shape, &table.placement)?.read()?;
    if saved.to_device(trunk.device()).to_kind(trunk.kind()).equal(&table.tensor.detach()) {
        return Ok(());
    }
    Err(Error::Unsupported {
        path: folder.path().display().to_string(),
        key: name,
        value: "another table than that of the model".to_owned(),
        fix: "name the model that the adapter was trained on".to_owned(),
    })
}

/// A decoder without adapters that computes what `from` computes.
pub(crate) fn merge(from: &Decoder, head: HeadKind, options: &LoadOptions) -> Result<Decoder, Error> {
    let options = LoadOptions { model_parallel: from.model_parallel.clone(), ..options.clone() };
    let spec = DecoderSpec { lora: None, quantize: None, ..from.spec(head) };
    load::fill(spec, &options, &mut |request| {
        if !request.is_local {
            return Ok(Values::Tensor(options.placeholder()));
        }
        let module = request.name.strip_suffix(".weight").unwrap_or(request.name);
        let is_conv1d = from.architecture().is_conv1d && module != from.architecture().names.head;
        let in_layout = |weight: Tensor| if is_conv1d { weight.tr().contiguous() } else { weight };
        let index = shared_index(from, request.name);
        if let Some(merged) = merged_table(from, module, index)? {
            return Ok(Values::Tensor(merged));
        }

        let adapter = adapter_of(from, module)?;
        let own = adapter.iter().flat_map(|(_, own)| own.iter().copied());
        let used: Vec<usize> = own.chain([index]).collect();
        let _weights = HeldWeights::fetch(from.residency(), Weights::Parameters(&used), Access::Read)?;
        let weight = from.parameters[index].tensor.detach();
        let out_in = match from.quantized.get(module) {
            Some(matrix) => matrix.dense(Kind::Float),
            None if adapter.is_none() => return Ok(Values::Tensor(weight.copy())),
            None if is_conv1d => weight.tr(),
            None => weight,
        };
        Ok(Values::Tensor(in_layout(match &adapter {
            Some((lora, _)) => lora.merged(&out_in)?,
            None => out_in,
        })))
    })
}

/// The table `module`, which is parameter `index`, with what an adapter changes of the whole embedding, or
/// of single rows. `None` if there is no such adapter of this module.
fn merged_table(from: &Decoder, module: &str, index: usize) -> Result<Option<Tensor>, Error> {
    let own = [TOKEN_ROWS].into_iter().chain(EMBEDDING_MATRICES);
    let own = own.filter_map(|end| from.index_of(&format!("{module}{end}")));
    let used: Vec<usize> = std::iter::once(index).chain(own).collect();
    if used.len() == 1 {
        return Ok(None);
    }
    let _weights = HeldWeights::fetch(from.residency(), Weights::Parameters(&used), Access::Read)?;
    let table = from.parameters[index].tensor.detach();
    // The last stage of a pipeline has a head that is tied to the embedding of the first one.
    if module == from.architecture().names.token_embedding && from.owns_segment(0) {
        return Ok(from.token_embedding.adapter.as_ref().map(|adapter| adapter.merged(&table)));
    }
    Ok(match &from.head_adapter {
        Some(HeadAdapter::Rows(rows)) => Some(rows.merged(&table)),
        Some(HeadAdapter::Product(_)) | None => None,
    })
}

/// The adapter of the linear layer `module` and the indices of its parameters, if it has one.
fn adapter_of(from: &Decoder, module: &str) -> Result<Option<(LoraLinear, Vec<usize>)>, Error> {
    let index = |end: &str| from.index_of(&format!("{module}.{end}"));
    let (Some(lora), Some(a)) = (&from.lora, index("lora_A.weight")) else { return Ok(None) };
    let target = lora.plan.scaling_of(module, from.architecture().names.layers)?;
    let [b, vector] = [index("lora_B.weight"), index("lora_magnitude_vector")];
    let b = b.expect("an adapter has two matrices");
    let tensor = |index: usize| from.parameters[index].tensor.detach();
    let a_placement = &from.parameters[a].placement;
    let magnitude = vector.map(|index| Magnitude {
        values: tensor(index),
        input_group: match a_placement {
            Placement::Shard { group, .. } => Some(Arc::clone(group)),
            Placement::Replicate => None,
        },
        factors: OnceLock::new(),
    });
    let lora = LoraLinear { a: tensor(a), b: tensor(b), scaling: target, magnitude };
    Ok(Some((lora, [Some(a), Some(b), vector].into_iter().flatten().collect())))
}

fn build(
    trunk: &Decoder,
    head: HeadKind,
    lora: Option<&Arc<LoraPlan>>,
    trainable: bool,
    values: &mut ValuesFn<'_>,
) -> Result<Decoder, Error> {
    let quantize = trunk.quantize.clone();
    let spec = DecoderSpec { quantize, ..DecoderSpec::on_trunk(trunk.config.clone(), head, lora.cloned()) };
    let options = LoadOptions {
        kind: trunk.kind(),
        device: trunk.device(),
        trainable,
        model_parallel: trunk.model_parallel.clone(),
        memory: trunk.memory.as_ref().map(|memory| Arc::clone(&memory.allocator)),
        quantize: None,
    };
    let own =
        options.memory.as_ref().map(|allocator| reserve(spec.clone(), &options, allocator)).transpose()?;

    let mut next = 0..;
    let mut decoder = Decoder::build(spec, &options.model_parallel, &mut |request| {
        if !request.part.is_own() {
            let index = request.is_local.then(|| shared_index(trunk, request.name));
            return Ok(
                index.map_or_else(|| options.placeholder(), |index| trunk.parameters[index].tensor.detach())
            );
        }
        let values = values(request)?;
        let tensor = match &own {
            _ if !request.is_local => return values.read(),
            None => options.materialize(request, &values.read()?),
            Some(store) => {
                let index = next.next().expect("the range does not end");
                let keep = !matches!(values, Values::Tensor(_));
                store.load(index, values.into_source(), keep).map_err(load::own_error)?;
                store.tensor(index)
            }
        };
        Ok(tensor.set_requires_grad(trainable))
    })?;

    if let (Some(memory), Some(own)) = (&trunk.memory, own) {
        let store = JoinedStore::new(
            Arc::clone(&memory.store),
            own,
            origins(trunk, &decoder),
            decoder.weights_of_parts(),
        );
        decoder.memory =
            Some(ModelMemory { allocator: Arc::clone(&memory.allocator), store: Arc::new(store) });
    }
    Ok(decoder)
}

/// Reserves the memory of the parameters that a decoder does not share.
fn reserve(
    spec: DecoderSpec,
    options: &LoadOptions,
    allocator: &Arc<dyn WeightAllocator>,
) -> Result<Arc<dyn WeightStore>, Error> {
    let (decoder, specs) = load::without_values(spec, options)?;
    let is_own = |index: &usize| decoder.parts[*index].is_own();
    let own: Vec<usize> = (0..specs.len()).filter(is_own).collect();
    let place = |index: usize| own.iter().position(|&other| other == index);
    let weights_of = |weights: Vec<usize>| weights.into_iter().filter_map(place).collect();
    let parts: Vec<(ModelPart, Vec<usize>)> =
        decoder.weights_of_parts().into_iter().map(|(part, weights)| (part, weights_of(weights))).collect();
    let specs: Vec<WeightSpec> = own.iter().map(|&index| specs[index].clone()).collect();
    Ok(allocator.allocate(specs, parts)?)
}

/// Where each weight of a decoder lies that shares those of `trunk`.
fn origins(trunk: &Decoder, decoder: &Decoder) -> Vec<Origin> {
    let mut next = 0..;
    let origin = |(parameter, part): (&parallel::Parameter, &ParameterPart)| {
        if part.is_own() {
            Origin::Own(next.next().expect("the range does not end"))
        } else {
            Origin::Shared(shared_index(trunk, &parameter.name))
        }
    };
    decoder.parameters.iter().zip(&decoder.parts).map(origin).collect()
}

fn shared_index(trunk: &Decoder, name: &str) -> usize {
    trunk.index_of(name).expect("both have the modules of the configuration")
}

/// The first values of a parameter that a decoder does not share with `trunk`.
fn new_values(trunk: &Decoder, request: &ParameterRequest<'_>, seed: u64) -> Result<Values, Error> {
    if !request.is_local {
        return Ok(Values::Tensor(Tensor::empty([0], (trunk.kind(), trunk.device()))));
    }
    let magnitudes = request.name.strip_suffix(".lora_magnitude_vector");
    match (request.part, magnitudes) {
        (ParameterPart::TrunkCopy, _) => {
            let index = shared_index(trunk, request.name);
            let _weight = HeldWeights::fetch(trunk.residency(), Weights::Parameter(index), Access::Read)?;
            Ok(Values::Tensor(trunk.parameters[index].tensor.detach().copy()))
        }
        (ParameterPart::Adapter, Some(module)) => Ok(Values::Tensor(row_norms(trunk, module)?)),
        _ => Ok(Values::Tensor(load::initial_values(request, seed))),
    }
}

/// The rows of `tokens` in the table `module` of a trunk, `[n, H]`, fp32. The ranks that share the table call
/// it together.
fn table_rows(trunk: &Decoder, module: &str, tokens: &[i64]) -> Result<Tensor, Error> {
    let index = shared_index(trunk, &format!("{module}.weight"));
    let _weight = HeldWeights::fetch(trunk.residency(), Weights::Parameter(index), Access::Read)?;
    let table = trunk.parameters[index].tensor.detach();
    let ids = MaskedIds::new(&parallel::upload(tokens, table.device()), trunk.vocabulary());
    let rows = ids.zero_masked(table.index_select(0, &ids.masked_ids).to_kind(Kind::Float));
    if let Some(vocabulary) = trunk.vocabulary() {
        vocabulary.group.all_reduce(&rows, Reduction::Sum)?;
    }
    Ok(rows)
}

/// The norms of the rows `[out, in]` of a linear layer's weight, `[out]`, fp32: the magnitudes of a new DoRA
/// adapter.
fn row_norms(trunk: &Decoder, module: &str) -> Result<Tensor, Error> {
    let index = shared_index(trunk, &format!("{module}.weight"));
    let _weight = HeldWeights::fetch(trunk.residency(), Weights::Parameter(index), Access::Read)?;
    if let Some(matrix) = trunk.quantized.get(module) {
        return Ok(matrix.row_norms(trunk.kind())?);
    }
    let parameter = &trunk.parameters[index];
    let inputs = i64::from(!trunk.architecture().is_conv1d);
    let squares = no_grad(|| {
        let weight = parameter.tensor.detach().to_kind(Kind::Float);
        weight.square().sum_dim_intlist(inputs, false, Kind::Float)
    });
    if let Placement::Shard { spec, group } = &parameter.placement
        && spec.dim() as i64 == inputs
    {
        group.all_reduce(&squares, Reduction::Sum)?;
    }
    Ok(no_grad(|| squares.sqrt()))
}
