//! Whether ranks that hold copies of the same values hold the same bits.
//!
//! ```text
//!   weights                                   have copies on
//!   all of them, or those of one expert       dense_data_parallel, or expert_data_parallel
//!   those that are not sharded                tensor_parallel
//!   the tied ones                             the first and the last pipeline rank
//! ```
//! Masters and moments have them on the same ranks. What ZeRO divides has none on the ranks of the first row.
//! Copies stay equal because every rank updates them by the same gradients, with random numbers that depend
//! on the parameter and its element alone. A processor that computes something else makes them drift apart,
//! and no loss tells. Each rank sends eight bytes for a tensor: a hash of its bits in their order.

use parallel::comm::ProcessGroup;
use parallel::residency::{Access, HeldWeights, Residency, WeightStore, Weights};
use parallel::{Parameter, ProcessGroups, Segmented};
use tch::{Kind, Tensor, no_grad};

use crate::Error;

/// The elements of a tensor that are hashed at a time.
const PIECE_ELEMENTS: i64 = 1 << 18;

/// The hash of one tensor of this rank.
pub(crate) struct Copy<'a> {
    /// `master`, `exp_avg` or `exp_avg_sq`; `None` for the weight itself.
    pub(crate) state: Option<&'static str>,
    pub(crate) parameter: &'a Parameter,
    pub(crate) digest: i64,
    /// Whether the data-parallel ranks have copies, because ZeRO does not divide it.
    pub(crate) is_on_data_ranks: bool,
}

impl Copy<'_> {
    fn name(&self) -> String {
        self.state.map_or_else(String::new, |state| format!("{state}.")) + &self.parameter.name
    }
}

/// Checks that all copies of the weights of `model` are equal, frozen ones included. Every rank calls
/// this, and gets the same error.
pub fn check_replicas<M: Segmented>(model: &M, groups: &ProcessGroups) -> Result<(), Error> {
    check_all(model, || Ok(Vec::new()), groups)
}

/// Checks the weights of `model` as [`check_replicas`] does, and the tensors that its optimizer keeps.
pub(crate) fn check_all<'a, M: Segmented>(
    model: &'a M,
    optimizer: impl FnOnce() -> Result<Vec<Copy<'a>>, Error>,
    groups: &ProcessGroups,
) -> Result<(), Error> {
    if groups.world().size() == 1 {
        return Ok(());
    }
    let mut copies = weight_copies(model.parameters(), model.weight_store().map(|store| &**store))?;
    copies.extend(optimizer()?);
    match first_difference(&copies, groups)? {
        None => Ok(()),
        Some((name, rank, other)) => Err(Error::ReplicasDrifted { name, rank, other }),
    }
}

/// Checks that all ranks have loaded the same weights. What ZeRO divides over the data-parallel ranks was
/// compared when it was loaded, before each rank kept its own shard.
pub(crate) fn check_loaded(
    parameters: &[Parameter],
    store: Option<&dyn WeightStore>,
    groups: &ProcessGroups,
) -> Result<(), Error> {
    if groups.world().size() == 1 {
        return Ok(());
    }
    match first_difference(&weight_copies(parameters, store)?, groups)? {
        None => Ok(()),
        Some((_, rank, other)) => Err(Error::ReplicasDiffer { rank, other }),
    }
}

/// The first of `copies` that two ranks have with different bits, on whichever ranks: its name and the
/// numbers of the two.
fn first_difference(
    copies: &[Copy<'_>],
    groups: &ProcessGroups,
) -> Result<Option<(String, usize, usize)>, Error> {
    let of_experts = |is_expert: bool| {
        move |copy: &&Copy<'_>| copy.is_on_data_ranks && copy.parameter.is_expert == is_expert
    };
    let is_replicated = |copy: &&Copy<'_>| !copy.parameter.placement.is_shard();
    let is_tied = |copy: &&Copy<'_>| copy.parameter.tied_group.is_some();
    let mut found = vec![
        difference(groups.dense_data_parallel(), copies.iter().filter(of_experts(false)))?,
        difference(groups.expert_data_parallel(), copies.iter().filter(of_experts(true)))?,
        difference(groups.tensor_parallel(), copies.iter().filter(is_replicated))?,
    ];
    if let Some(group) = groups.embedding_group() {
        found.push(difference(group, copies.iter().filter(is_tied))?);
    }
    let found = found.into_iter().flatten().next();
    Ok(groups.world().all_gather_object(vec![found])?.into_iter().flatten().next())
}

/// The hashes of the weights, of which a rank has all elements or, if they are sharded, its own.
fn weight_copies<'a>(
    parameters: &'a [Parameter],
    store: Option<&dyn WeightStore>,
) -> Result<Vec<Copy<'a>>, Error> {
    let residency = store.map(|store| -> &dyn Residency { store });
    // Of sharded weights, only what this rank owns is wanted, and nothing has to be gathered.
    let is_sharded = residency.is_some_and(Residency::is_sharded);
    let copy = |(index, parameter): (usize, &'a Parameter)| {
        let _weight = HeldWeights::fetch(residency, Weights::Parameter(index), Access::ReadOwn)?;
        let own = store.filter(|_| is_sharded).map(|store| store.own_elements(index));
        let flat = flat(&parameter.tensor);
        let own = own.map_or(flat.shallow_clone(), |own| flat.narrow(0, own.start as i64, own.len() as i64));
        Ok(Copy { state: None, parameter, digest: digest(&own), is_on_data_ranks: !is_sharded })
    };
    parameters.iter().enumerate().map(copy).collect()
}

/// The first of `copies` that another rank of the group has otherwise, with the numbers of the two ranks.
/// All ranks of the group pass copies of the same tensors, in the same order.
fn difference<'a>(
    group: &ProcessGroup,
    copies: impl Iterator<Item = &'a Copy<'a>>,
) -> Result<Option<(String, usize, usize)>, Error> {
    let copies: Vec<&Copy<'_>> = copies.collect();
    let all = group.all_gather_object(copies.iter().map(|copy| copy.digest).collect())?;
    assert_eq!(all.len(), copies.len() * group.size(), "all ranks of {group:?} hold the same tensors");
    let ranks = || all.chunks(copies.len().max(1)).zip(group.ranks());
    let of_first = &all[..copies.len()];
    Ok(copies.iter().enumerate().find_map(|(index, copy)| {
        let (_, &other) = ranks().find(|(digests, _)| digests[index] != of_first[index])?;
        Some((copy.name(), group.ranks()[0], other))
    }))
}

/// The elements of a tensor in the order of memory, if it lies there without gaps.
fn flat(tensor: &Tensor) -> Tensor {
    let tensor = tensor.detach();
    if tensor.dim() == 2 && !tensor.is_contiguous() {
        tensor.tr().reshape([-1])
    } else {
        tensor.reshape([-1])
    }
}

/// A hash of the bits of all values and their order: the sum of a hash of each value with its index (the
/// finalizer of splitmix64, Steele et al. 2014, without its last multiplication).
pub(crate) fn digest(tensor: &Tensor) -> i64 {
    const GAMMA: i64 = 0x9e37_79b9_7f4a_7c15_u64.cast_signed();
    const FACTOR: i64 = 0xbf58_476d_1ce4_e5b9_u64.cast_signed();
    let flat = flat(tensor);
    let bits = match flat.kind().elt_size_in_bytes() {
        1 => Kind::Uint8,
        2 => Kind::Int16,
        4 => Kind::Int,
        _ => Kind::Int64,
    };
    let options = (Kind::Int64, flat.device());
    no_grad(|| {
        let (flat, total) = (flat.view_dtype(bits), Tensor::zeros([], options));
        let numel = flat.numel() as i64;
        for start in (0..numel).step_by(PIECE_ELEMENTS as usize) {
            let count = PIECE_ELEMENTS.min(numel - start);
            let piece = flat.narrow(0, start, count).to_kind(Kind::Int64);
            // Products of 64 bits wrap.
            let mixed = Tensor::arange_start(start, start + count, options).g_mul_scalar(GAMMA).g_add(&piece);
            let mixed =
                mixed.bitwise_xor_tensor(&mixed.bitwise_right_shift_tensor_scalar(30)).g_mul_scalar(FACTOR);
            let mixed = mixed.bitwise_xor_tensor(&mixed.bitwise_right_shift_tensor_scalar(27));
            let _ = total.shallow_clone().g_add_(&mixed.sum(Kind::Int64));
        }
        total.int64_value(&[])
    })
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn a_digest_depends_on_every_bit_and_on_the_order() {
        let numel = 2 * PIECE_ELEMENTS + 5;
        for kind in [Kind::Float, Kind::BFloat16, Kind::Double] {
            let base = Tensor::arange(numel, (Kind::Float, Device::Cpu)).sin().to_kind(kind);
            let with = |changes: &[(i64, i64)]| {
                let changed = base.copy();
                for &(at, from) in changes {
                    changed.get(at).copy_(&base.get(from));
                }
                digest(&changed)
            };
            let same = digest(&base);
            assert_eq!(with(&[]), same);
            // One value more, and two that have changed places: a sum of all would not tell.
            for changes in [&[(3, 4)][..], &[(7, 8), (8, 7)], &[(1, numel - 1), (numel - 1, 1)]] {
                assert_ne!(with(changes), same, "{kind:?} {changes:?}");
            }
            let negative = base.copy();
            let _ = negative.get(0).fill_(-0.0);
            assert_ne!(digest(&negative), same, "zero has a sign");
        }
        let matrix = Tensor::arange(12, (Kind::Float, Device::Cpu)).view([3, 4]);
        assert_eq!(digest(&matrix), digest(&matrix.view([12])));
        assert_eq!(digest(&matrix.tr()), digest(&matrix), "memory is read in its order");
        assert_eq!(digest(&Tensor::zeros([0], (Kind::Float, Device::Cpu))), 0);
        let bytes = |bytes: &[u8]| digest(&Tensor::from_slice(bytes));
        assert_ne!(bytes(&[1, 2, 3]), bytes(&[1, 3, 2]), "codes have digests too");
    }
}
