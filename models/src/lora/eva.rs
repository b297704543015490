//! EVA: adapters that begin with the directions in which the inputs of their layers vary the most, over rows
//! of the data that they will be trained on.
//!
//! ```text
//!   C = sum_t (x_t - m)(x_t - m)^T   x_t [in]: the inputs of a layer at the tokens that count; m: their mean
//!   C v_i = e_i v_i                  e_1 >= e_2 >= ..., |v_i| = 1
//!   A = [v_1; ...; v_r]   B = 0      share of v_i: e_i / sum_j e_j
//! ```
//! Ranks move to the layers where they explain most: of the first `rho r` shares of each layer, the largest
//! of all layers are taken, as many as the layers have ranks. A layer may end without an adapter. (Paischer
//! et al. 2024, arXiv 2410.07170, section 3; PEFT 0.21.2: `initialize_lora_eva_weights`.) PEFT makes the
//! directions with an incremental, randomised decomposition that ends when they move little; here `C` is
//! summed up over all rows in fp64 and decomposed once. Layers run one segment after the other over all rows,
//! so that the matrices `C` of one block are in memory at a time, and the hidden states of all rows.

use std::path::Path;
use std::sync::Arc;

use parallel::{Segmented, upload};
use tch::{Device, Kind, Tensor, no_grad};

use super::config::{AdapterFile, Names};
use super::inputs::{self, InputSums, SumsByLayer};
use super::plan::LoraPlan;
use crate::Error;
use crate::batch::Batch;
use crate::causal_lm::{CausalLm, LoadOptions};
use crate::decoder::HeadKind;
use crate::weights::WeightFolder;

/// The most tokens of a batch, if a row is not longer.
const BATCH_TOKENS: usize = 1 << 12;

const A: &str = ".lora_A.weight";

/// A row whose inputs are looked at.
#[derive(Clone, Debug)]
pub struct EvaRow<'a> {
    /// Token ids, `[T]`, at least one.
    pub input_ids: &'a [i64],
    /// Whether the inputs at each token count, `[T]`.
    pub is_counted: Vec<bool>,
}

/// Writes to the folder `out` a new adapter of the language model in `model`, which is made of `rows`, of
/// which there is at least one. `plan` has one rank and one `lora_alpha` for all layers, and excludes none.
/// The largest rank of a layer is `rho` times that rank, and with 1 no rank moves. The factor of the output
/// of each layer stays what `plan` makes it. Returns an error for adapters of experts, and if a layer has
/// fewer inputs than ranks, or not more tokens that count than it may have ranks.
pub fn initialize(
    model: &Path,
    plan: &Arc<LoraPlan>,
    rows: &[EvaRow<'_>],
    rho: f64,
    out: &Path,
) -> Result<(), Error> {
    let trunk = CausalLm::load(model, &LoadOptions::frozen(Kind::Float, Device::Cpu))?;
    let adapted = trunk.with_new_adapter(plan, 0, false)?;
    refuse_experts(&adapted, plan)?;
    let layers = directions(&adapted, plan, rows, rho)?;

    let file = with_ranks(plan.file().clone(), &layers, &ranks(&layers));
    let file = AdapterFile { base_hash: Some(WeightFolder::open(model)?.content_hash()?), ..file };
    let plan = Arc::new(file.plan(&out.display().to_string())?);
    let adapted = trunk.with_new_adapter(&plan, 0, false)?;
    for parameter in adapted.parameters() {
        let Some(module) = parameter.name.strip_suffix(A) else { continue };
        let layer = layers.iter().find(|layer| layer.module == module);
        let vectors = &layer.expect("the layers are some of those before").vectors;
        let mut a = parameter.tensor.shallow_clone();
        let r = a.size()[0];
        no_grad(|| a.copy_(&vectors.narrow(0, 0, r)));
    }
    adapted.decoder.save(out, HeadKind::Vocabulary, adapted.config())
}

/// The directions in which the inputs of one layer vary.
#[derive(Debug)]
struct Directions {
    /// The name of the layer.
    module: String,
    /// The rank of its adapter in the settings.
    r: i64,
    /// The share of each direction, the largest first. There are as many as the layer may have ranks.
    shares: Vec<f64>,
    /// The directions, `[shares, in]` in fp32.
    vectors: Tensor,
}

/// Returns an error if an expert has an adapter.
fn refuse_experts(model: &CausalLm, plan: &LoraPlan) -> Result<(), Error> {
    let Some(experts) = &model.config().architecture().experts else { return Ok(()) };
    let list = format!(".{}.", experts.names.experts);
    let mut adapted = model.parameters().iter().filter_map(|parameter| parameter.name.strip_suffix(A));
    let Some(module) = adapted.find(|module| module.contains(&list)) else { return Ok(()) };
    let expected = "left out of an adapter with EVA, because an expert has the inputs of some tokens alone";
    Err(plan.misfit(module, expected.to_owned(), "a target".to_owned()))
}

/// The directions of all adapted layers, in order of use.
fn directions(
    model: &CausalLm,
    plan: &LoraPlan,
    rows: &[EvaRow<'_>],
    rho: f64,
) -> Result<Vec<Directions>, Error> {
    let batches = batches(rows, model.device());
    let mut hidden: Vec<Option<Tensor>> = batches.iter().map(|_| None).collect();
    let mut layers = Vec::new();
    for segment in 0..model.num_segments() {
        let mut sums = SumsByLayer::new();
        for ((batch, tokens), hidden) in batches.iter().zip(&mut hidden) {
            let next = inputs::observed(tokens, &mut sums, || {
                no_grad(|| model.forward_segment(segment, hidden.as_ref(), batch))
            });
            *hidden = Some(next?);
        }

        let mut previous: Option<(&InputSums, Decomposition)> = None;
        for index in model.segment_parameters(segment) {
            let parameter = &model.parameters()[index];
            let Some(module) = parameter.name.strip_suffix(A) else { continue };
            let sums = sums.get(&inputs::key(&parameter.tensor)).expect("a segment runs its layers");
            let decomposition = match previous.take() {
                Some((other, decomposition)) if other.equals(sums) => decomposition,
                _ => Decomposition::of(sums)?,
            };
            let [r, inner]: [i64; 2] = parameter.tensor.size().try_into().expect("A is a matrix");
            let most = most_ranks(plan, module, [r, inner], rho, sums.count)?;
            layers.push(decomposition.largest(module, r, most));
            previous = Some((sums, decomposition));
        }
    }
    Ok(layers)
}

/// The rows in batches, each with its tokens that count, int64 `[M]`.
fn batches(rows: &[EvaRow<'_>], device: Device) -> Vec<(Batch, Tensor)> {
    let (mut batches, mut rest) = (Vec::new(), rows);
    while !rest.is_empty() {
        let mut tokens = 0;
        let fits = rest.iter().take_while(|row| {
            tokens += row.input_ids.len();
            tokens <= BATCH_TOKENS
        });
        let (now, later) = rest.split_at(fits.count().max(1));
        let ids: Vec<&[i64]> = now.iter().map(|row| row.input_ids).collect();
        let is_counted = now.iter().flat_map(|row| &row.is_counted).enumerate();
        let counted: Vec<i64> = is_counted.filter(|(_, is)| **is).map(|(index, _)| index as i64).collect();
        batches.push((Batch::new(&ids, device), upload(&counted, device)));
        rest = later;
    }
    batches
}

/// The most ranks that a layer may have, whose matrix `A` is `[r, in]` in the settings.
fn most_ranks(
    plan: &LoraPlan,
    module: &str,
    [r, inner]: [i64; 2],
    rho: f64,
    count: i64,
) -> Result<i64, Error> {
    if r > inner {
        let expected = format!("given a rank of at most {inner}, the number of its inputs, or no adapter");
        return Err(plan.misfit(module, expected, r.to_string()));
    }
    let most = ((r as f64 * rho).round_ties_even() as i64).min(inner);
    if count <= most {
        let expected = format!("given more than {most} tokens with a label, or a smaller rank");
        return Err(plan.misfit(module, expected, count.to_string()));
    }
    Ok(most)
}

/// The eigenvalues of the matrix `C` of a layer, the largest first, `[in]`, and its eigenvectors, `[in, in]`.
struct Decomposition {
    values: Tensor,
    /// One in each row.
    vectors: Tensor,
}

impl Decomposition {
    fn of(sums: &InputSums) -> Result<Self, Error> {
        let (values, vectors) = sums.scatter().f_linalg_eigh("L")?;
        Ok(no_grad(|| {
            let vectors = vectors.tr().flip([0]);
            // The sign of a vector is free: its largest element is above zero, as in PEFT.
            let largest = vectors.abs().argmax(1, true);
            let signs = vectors.gather(1, &largest, false).sign();
            Self { values: values.flip([0]), vectors: vectors * signs }
        }))
    }

    /// The first `most` directions of the layer `module`, whose adapter has the rank `r` in the settings.
    fn largest(&self, module: &str, r: i64, most: i64) -> Directions {
        let all = self.values.sum(Kind::Double).double_value(&[]).max(f64::MIN_POSITIVE);
        let vectors = no_grad(|| self.vectors.narrow(0, 0, most).to_kind(Kind::Float).contiguous());
        let shares = (0..most).map(|index| self.values.double_value(&[index]) / all).collect();
        Directions { module: module.to_owned(), r, shares, vectors }
    }
}

/// The ranks of the layers: the largest shares of all layers have one each. Among equal shares, those of
/// earlier layers come first.
fn ranks(layers: &[Directions]) -> Vec<i64> {
    let with_layer = |(index, layer): (usize, &Directions)| {
        layer.shares.iter().map(|&share| (share, index)).collect::<Vec<_>>()
    };
    let mut shares: Vec<(f64, usize)> = layers.iter().enumerate().flat_map(with_layer).collect();
    shares.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let all = layers.iter().map(|layer| layer.r).sum::<i64>() as usize;
    let mut ranks = vec![0; layers.len()];
    for &(_, layer) in shares.iter().take(all) {
        ranks[layer] += 1;
    }
    ranks
}

/// The settings with the rank of each layer in `rank_pattern`, and in `alpha_pattern` what leaves the factor
/// of its output as it is.
fn with_ranks(mut file: AdapterFile, layers: &[Directions], ranks: &[i64]) -> AdapterFile {
    let lora = &mut file.lora;
    let mut without = Vec::new();
    for (layer, &rank) in layers.iter().zip(ranks) {
        let module = layer.module.clone();
        if rank == 0 {
            without.push(module);
        } else if rank != layer.r {
            let ratio = rank as f64 / layer.r as f64;
            let alpha = lora.lora_alpha * if lora.use_rslora { ratio.sqrt() } else { ratio };
            lora.rank_pattern.insert(module.clone(), rank);
            lora.alpha_pattern.insert(module, alpha);
        }
    }
    if !without.is_empty() {
        lora.exclude_modules = Some(Names::Several(without));
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lora::LoraConfig;

    fn layer(module: &str, shares: &[f64]) -> Directions {
        let vectors = Tensor::zeros([shares.len() as i64, 4], (Kind::Float, Device::Cpu));
        Directions { module: module.to_owned(), r: 2, shares: shares.to_vec(), vectors }
    }

    /// Six ranks: 0.9, 0.7, 0.5, 0.4, 0.3, and of the two shares of 0.2 the one of the earlier layer.
    #[test]
    fn ranks_move_to_the_layers_where_they_explain_most() {
        let layers = [
            layer("a", &[0.5, 0.3, 0.2, 0.0]),
            layer("b", &[0.9, 0.05, 0.03, 0.02]),
            layer("c", &[0.7, 0.4, 0.2, 0.1]),
        ];
        assert_eq!(ranks(&layers), [3, 1, 2]);
        // Without more shares than ranks, none moves.
        let two = layers.map(|layer| Directions { shares: layer.shares[..2].to_vec(), ..layer });
        assert_eq!(ranks(&two), [2, 2, 2]);
    }

    #[test]
    fn the_factor_of_an_output_stays_whatever_its_rank() {
        let layers = [layer("x.0.a", &[0.1]), layer("x.0.b", &[0.1]), layer("x.0.c", &[0.1])];
        for use_rslora in [false, true] {
            let lora = LoraConfig { r: 2, lora_alpha: 3.0, use_rslora, ..LoraConfig::default() };
            let file = AdapterFile { lora, base: None, revision: None, base_hash: None };
            let plan = with_ranks(file.clone(), &layers, &[4, 0, 2]).plan("test").unwrap();
            let before = file.plan("test").unwrap().target("x.0.a", Some(0), false).unwrap().unwrap();
            let target = |module: &str| plan.target(module, Some(0), false).unwrap();
            let a = target("x.0.a").unwrap();
            assert_eq!((a.r, before.r), (4, 2));
            assert!((a.scaling - before.scaling).abs() < 1e-12, "{use_rslora}: {a:?} {before:?}");
            assert_eq!((target("x.0.b"), target("x.0.c")), (None, Some(before)));
        }
    }

    /// `C` is `diag(1, 9, 4)`, whose directions are the axes.
    #[test]
    fn the_directions_are_eigenvectors_with_their_shares() {
        let a = Tensor::zeros([1, 3], (Kind::Float, Device::Cpu));
        let rows = [[0.5f32.sqrt(), 1.0, 2.0], [-(0.5f32.sqrt()), 1.0, 2.0]];
        let more = [[0.0f32, 1.0 + 4.5f32.sqrt(), 2.0], [0.0, 1.0 - 4.5f32.sqrt(), 2.0]];
        let last = [[0.0f32, 1.0, 2.0 + 2f32.sqrt()], [0.0, 1.0, 2.0 - 2f32.sqrt()]];
        let x = Tensor::from_slice2(&[rows, more, last].concat());
        let mut sums = SumsByLayer::new();
        let tokens = Tensor::arange(6, (Kind::Int64, Device::Cpu));
        inputs::observed(&tokens, &mut sums, || inputs::observe(&a, &x));
        let found = Decomposition::of(&sums[&inputs::key(&a)]).unwrap().largest("x", 1, 2);
        let expected = Tensor::from_slice2(&[[0f32, 1.0, 0.0], [0.0, 0.0, 1.0]]);
        assert!(found.vectors.allclose(&expected, 0.0, 1e-5, false), "{:?}", found.vectors);
        let worst = found.shares.iter().zip([9.0 / 14.0, 4.0 / 14.0]).map(|(one, other)| (one - other).abs());
        assert!(worst.fold(0.0, f64::max) < 1e-6, "{:?}", found.shares);
    }
}
