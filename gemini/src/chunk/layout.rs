//! The layout of chunks: which parameter lies where, and the search for the chunk size.
//!
//! ```text
//!   chunk 0  dense     | embedding                                                        | padding |
//!   chunk 1  dense     | norm | q_proj | k_proj | v_proj | o_proj                             | pad |
//!   chunk 2  expert    | experts.0.gate_proj | experts.0.up_proj | experts.0.down_proj      | padding |
//! ```
//! Parameters are packed in order of use into the open chunk of their group. A parameter that does not fit
//! closes that chunk and opens the next one. A parameter longer than the chunk size, and a tied parameter,
//! has a chunk of its own. A chunk is as long as its contents, rounded up so that it divides evenly into the
//! aligned shards of the ranks (`zero`). All lengths and offsets are numbers of elements.
//! (Colossal-AI: `ChunkManager.register_tensor`, `search_chunk_configuration`.)
//!
//! The chunk size must be the same on all ranks that share chunks: it decides where they end. The other
//! parameters of these ranks may differ in length and number, and so may the results of their searches. They
//! have to agree on one of the results before the layout is made.
//!
//! Trained and frozen parameters have a chunk size each. The trained parameters of a partly frozen model
//! therefore have the same chunks among all parameters (weights) and alone (gradients, optimizer state), and
//! the ranks divide both alike.

use std::collections::HashMap;

use tch::Kind;

/// Every offset is a multiple of this number of elements: 64 bytes in bf16, 128 in fp32.
pub const ALIGNMENT: usize = 32;

/// The shards of a chunk on the host have a multiple of this number of elements: a page of 4 KiB in bf16. A
/// shard can therefore be in memory without the others.
pub const SHARD_ALIGNMENT: usize = 2048;

/// The default bounds allow no smaller chunk size: a copy of 128 KiB still runs at the speed of the memory.
const SMALLEST_CHUNK_SIZE: usize = 64 << 10;

/// The default bounds allow no larger chunk size. Colossal-AI: `min_chunk_size_m` = 32.
const LARGEST_CHUNK_SIZE: usize = 32 << 20;

/// The default bounds aim at this many chunks or more, so that eviction has something to choose from.
const WANTED_CHUNKS: usize = 16;

/// The default bounds try about this many sizes.
const NUM_CANDIDATES: usize = 512;

/// The default steps are a multiple of this. Colossal-AI: `search_interval`, 1024 by default.
const STEP_MULTIPLE: usize = 1024;

/// Parameters share a chunk only if their groups are equal. The fields are those of `parallel::Parameter`.
#[expect(clippy::struct_excessive_bools, reason = "four independent facts about a parameter")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkGroup {
    /// Expert parameters are reduced and sharded over `expert_data_parallel`, the others over
    /// `dense_data_parallel`.
    pub is_expert: bool,
    /// Every tensor-parallel rank holds the full parameter. These ranks need the same layout for them,
    /// although their other shards may differ in length: their gradients may be partial sums, which are added
    /// chunk by chunk, and some collectives add the terms of a sum in an order that depends on its place, so
    /// that copies at different places would drift apart.
    pub is_replicated: bool,
    /// Another pipeline rank holds the same weight. It is alone in its chunk, so that the chunk is the same
    /// on both ranks.
    pub is_tied: bool,
    /// Frozen parameters have no gradients and no optimizer state, and their chunks never change.
    pub is_frozen: bool,
    /// The dtype, of which a chunk has one.
    pub kind: Kind,
}

impl ChunkGroup {
    /// Trained shards that are reduced over `dense_data_parallel` and nothing else.
    pub const DENSE: Self =
        Self { is_expert: false, is_replicated: false, is_tied: false, is_frozen: false, kind: Kind::Float };
}

/// One parameter, as far as the layout is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamSpec {
    /// The number of elements of the local shard.
    pub numel: usize,
    /// What it may share a chunk with.
    pub group: ChunkGroup,
}

/// The number of ranks that a chunk is sharded over; 1 if it is not. Colossal-AI: `zero_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroSize {
    /// For chunks of dense parameters.
    pub dense: usize,
    /// For chunks of expert parameters.
    pub expert: usize,
    /// The lengths of shards are multiples of this number of elements, or of twice as many where an element
    /// is a byte.
    pub shard_alignment: usize,
}

impl ZeroSize {
    /// No chunk is sharded.
    pub const ONE: Self = Self { dense: 1, expert: 1, shard_alignment: SHARD_ALIGNMENT };

    /// The lengths of the chunks of `group` are multiples of this.
    fn length_multiple(self, group: ChunkGroup) -> usize {
        match if group.is_expert { self.expert } else { self.dense } {
            1 => ALIGNMENT,
            // A shard of bytes needs twice as many elements as one in bf16 for a page.
            ranks => self.shard_alignment * ranks * (2 / group.kind.elt_size_in_bytes()).max(1),
        }
    }

    /// Chunk sizes are multiples of this.
    fn size_multiple(self) -> usize {
        let dense = self.length_multiple(ChunkGroup::DENSE);
        let expert = self.length_multiple(ChunkGroup { is_expert: true, ..ChunkGroup::DENSE });
        dense / greatest_common_divisor(dense, expert) * expert
    }
}

/// The chunk sizes of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSizes {
    /// For trained parameters.
    pub trained: usize,
    /// For frozen parameters.
    pub frozen: usize,
}

impl ChunkSizes {
    /// The chunk size of a group.
    fn of(self, group: ChunkGroup) -> usize {
        if group.is_frozen { self.frozen } else { self.trained }
    }

    /// Both sizes, rounded up to multiples of `multiple`.
    fn round_up(self, multiple: usize) -> Self {
        let round_up = |size: usize| size.max(1).next_multiple_of(multiple);
        Self { trained: round_up(self.trained), frozen: round_up(self.frozen) }
    }
}

impl From<usize> for ChunkSizes {
    /// The same size for all parameters.
    fn from(size: usize) -> Self {
        Self { trained: size, frozen: size }
    }
}

/// The place of a parameter in its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamSlot {
    /// The index of the parameter.
    pub param: usize,
    /// Its first element in the chunk.
    pub offset: usize,
}

/// One chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkSpec {
    /// The group of all its parameters.
    pub group: ChunkGroup,
    /// Its length with all padding.
    pub numel: usize,
    /// Its parameters, in order of use.
    pub params: Vec<ParamSlot>,
}

/// Elements that hold no parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waste {
    /// Their number.
    pub elements: usize,
    /// Their number divided by that of the elements of all parameters; 0 if there is no parameter.
    pub share: f64,
}

impl Waste {
    fn new(reserved: usize, used: usize) -> Self {
        let elements = reserved - used;
        Self { elements, share: if used == 0 { 0.0 } else { elements as f64 / used as f64 } }
    }
}

/// The chunks of one model, in order of their first use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkLayout {
    chunk_sizes: ChunkSizes,
    chunks: Vec<ChunkSpec>,
    /// The chunk and the offset of each parameter.
    slots: Vec<(usize, usize)>,
    /// The elements of all parameters.
    used: usize,
}

impl ChunkLayout {
    /// Packs the parameters of a model, given in order of use. The chunk sizes are rounded up so that they
    /// divide evenly into aligned shards.
    pub fn new(params: &[ParamSpec], chunk_sizes: impl Into<ChunkSizes>, zero_size: ZeroSize) -> Self {
        let chunk_sizes = chunk_sizes.into().round_up(zero_size.size_multiple());
        let mut chunks: Vec<ChunkSpec> = Vec::new();
        let mut slots = Vec::with_capacity(params.len());
        let mut open: HashMap<ChunkGroup, usize> = HashMap::new();

        for (param, spec) in params.iter().enumerate() {
            // A tied parameter is never put into an open chunk and never leaves one open. A chunk whose only
            // parameter is longer than the chunk size counts as open, but nothing fits in.
            let in_open_chunk = open.get(&spec.group).and_then(|&chunk| {
                let offset = chunks[chunk].numel.next_multiple_of(ALIGNMENT);
                (offset + spec.numel <= chunk_sizes.of(spec.group)).then_some((chunk, offset))
            });
            let (chunk, offset) = in_open_chunk.unwrap_or_else(|| {
                chunks.push(ChunkSpec { group: spec.group, numel: 0, params: Vec::new() });
                (chunks.len() - 1, 0)
            });

            chunks[chunk].numel = offset + spec.numel;
            chunks[chunk].params.push(ParamSlot { param, offset });
            slots.push((chunk, offset));
            if !spec.group.is_tied {
                open.insert(spec.group, chunk);
            }
        }

        for chunk in &mut chunks {
            chunk.numel = chunk.numel.max(1).next_multiple_of(zero_size.length_multiple(chunk.group));
        }
        let used = params.iter().map(|spec| spec.numel).sum();
        Self { chunk_sizes, chunks, slots, used }
    }

    /// The chunk sizes. Only a chunk with a single parameter is longer, and one of bytes may be by padding.
    pub fn chunk_sizes(&self) -> ChunkSizes {
        self.chunk_sizes
    }

    /// The chunks, in order of their first use.
    pub fn chunks(&self) -> &[ChunkSpec] {
        &self.chunks
    }

    /// The number of parameters.
    pub fn num_params(&self) -> usize {
        self.slots.len()
    }

    /// The chunk of a parameter and its first element there.
    pub fn slot_of(&self, param: usize) -> (usize, usize) {
        self.slots[param]
    }

    /// The padding of all chunks. Sharded chunks really use this memory.
    pub fn waste(&self) -> Waste {
        Waste::new(self.chunks.iter().map(|chunk| chunk.numel).sum(), self.used)
    }

    /// The waste if every chunk had the chunk size, except those that a single longer or tied parameter has
    /// for itself. The search makes this small, because chunks of equal length replace one another without
    /// gaps.
    pub fn uniform_waste(&self) -> Waste {
        let length = |chunk: &ChunkSpec| {
            if chunk.group.is_tied { chunk.numel } else { chunk.numel.max(self.chunk_sizes.of(chunk.group)) }
        };
        Waste::new(self.chunks.iter().map(length).sum(), self.used)
    }
}

/// The chunk sizes to try: `min`, `min + step`, ..., and `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchBounds {
    /// The smallest size.
    pub min: usize,
    /// The largest size.
    pub max: usize,
    /// The distance between two sizes.
    pub step: usize,
}

impl SearchBounds {
    /// Bounds for a model: at most a sixteenth of its elements, between 64 Ki and 32 Mi; at least half of
    /// that, but not less than 64 Ki. Unusually large parameters do not count, for they have chunks of their
    /// own.
    ///
    /// A model with more than 1 Mi elements in usual parameters therefore has about 16 chunks or more, unless
    /// it has fewer parameters than that. A model of 0.3 M elements has about 5 chunks of 64 Ki.
    pub fn for_params(params: &[ParamSpec]) -> Self {
        let usual: usize = usual_numels(params).iter().sum();
        let max = (usual / WANTED_CHUNKS).clamp(SMALLEST_CHUNK_SIZE, LARGEST_CHUNK_SIZE);
        let min = (max / 2).max(SMALLEST_CHUNK_SIZE);
        let step = ((max - min) / NUM_CANDIDATES).next_multiple_of(STEP_MULTIPLE).max(STEP_MULTIPLE);
        Self { min, max, step }
    }

    /// The sizes to try for a model whose largest usual parameter has `largest` elements.
    fn candidates(self, largest: usize) -> impl Iterator<Item = usize> {
        let first = self.min.max(largest).min(self.max);
        (first..self.max).step_by(self.step.max(1)).chain([self.max])
    }
}

/// The result of the search for a chunk size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkConfiguration {
    /// The chunk size.
    pub chunk_size: usize,
    /// The waste with chunks of this size; see [`ChunkLayout::uniform_waste`].
    pub waste: Waste,
}

/// Finds the chunk size with the least [uniform waste](ChunkLayout::uniform_waste), and the smallest of
/// several such sizes. Sizes below the largest usual parameter are not tried, for with chunks of their own
/// the large matrices would waste nothing at all, whatever the size. A parameter is unusual, and does not
/// count, if it has more elements than the mean plus three standard deviations. If even the largest usual
/// parameter is longer than `bounds.max`, the size is `bounds.max`.
/// Colossal-AI: `search_chunk_configuration`.
pub fn search_chunk_configuration(
    params: &[ParamSpec],
    bounds: SearchBounds,
    zero_size: ZeroSize,
) -> ChunkConfiguration {
    let largest = usual_numels(params).into_iter().max().unwrap_or(0);
    let configuration = |chunk_size| {
        let layout = ChunkLayout::new(params, chunk_size, zero_size);
        ChunkConfiguration { chunk_size: layout.chunk_sizes().trained, waste: layout.uniform_waste() }
    };
    // Of several equal elements, `min_by_key` returns the first.
    let configurations = bounds.candidates(largest).map(configuration);
    configurations
        .min_by_key(|configuration| configuration.waste.elements)
        .expect("the largest size is always a candidate")
}

/// The sizes of the parameters, without those above the mean plus three standard deviations.
/// Colossal-AI: `_filter_exlarge_params`.
fn usual_numels(params: &[ParamSpec]) -> Vec<usize> {
    let count = params.len() as f64;
    let mean = params.iter().map(|spec| spec.numel as f64).sum::<f64>() / count;
    let variance = params.iter().map(|spec| (spec.numel as f64 - mean).powi(2)).sum::<f64>() / count;
    let limit = mean + 3.0 * variance.sqrt();
    params.iter().map(|spec| spec.numel).filter(|&numel| numel as f64 <= limit).collect()
}

/// Euclid's algorithm.
fn greatest_common_divisor(left: usize, right: usize) -> usize {
    if right == 0 { left } else { greatest_common_divisor(right, left % right) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERT: ChunkGroup = ChunkGroup { is_expert: true, ..ChunkGroup::DENSE };
    const REPLICATED: ChunkGroup = ChunkGroup { is_replicated: true, ..ChunkGroup::DENSE };
    const TIED: ChunkGroup = ChunkGroup { is_tied: true, ..ChunkGroup::DENSE };
    const FROZEN: ChunkGroup = ChunkGroup { is_frozen: true, ..ChunkGroup::DENSE };

    fn dense(numels: &[usize]) -> Vec<ParamSpec> {
        numels.iter().map(|&numel| ParamSpec { numel, group: ChunkGroup::DENSE }).collect()
    }

    /// A generator of pseudo-random numbers below a bound (Knuth's MMIX constants).
    fn random_numbers(seed: u64) -> impl FnMut(usize) -> usize {
        let mut state = seed;
        move |bound| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        }
    }

    fn random_params(random: &mut impl FnMut(usize) -> usize) -> Vec<ParamSpec> {
        let groups = [ChunkGroup::DENSE, ChunkGroup::DENSE, EXPERT, REPLICATED, TIED, FROZEN];
        let count = 1 + random(30);
        let mut param = || {
            let largest = [100, 1000, 3000, 20_000][random(4)];
            ParamSpec { numel: random(largest), group: groups[random(6)] }
        };
        (0..count).map(|_| param()).collect()
    }

    fn offsets(layout: &ChunkLayout) -> Vec<(usize, usize)> {
        (0..layout.slots.len()).map(|param| layout.slot_of(param)).collect()
    }

    fn lengths(layout: &ChunkLayout) -> Vec<usize> {
        layout.chunks().iter().map(|chunk| chunk.numel).collect()
    }

    #[test]
    fn parameters_are_packed_in_order_at_aligned_offsets() {
        // 40 elements end at 40, so the next offset is 64; 64 + 20 = 84, so the third would be at 96, and
        // 96 + 60 = 156 > 128. The chunks have 84 and 60 elements, which round up to 96 and 64.
        let layout = ChunkLayout::new(&dense(&[40, 20, 60]), 128, ZeroSize::ONE);
        assert_eq!(offsets(&layout), [(0, 0), (0, 64), (1, 0)]);
        assert_eq!(lengths(&layout), [96, 64]);
        assert_eq!(layout.chunks()[0].params[1], ParamSlot { param: 1, offset: 64 });

        // 96 + 64 - 120 = 40 of 120; with two chunks of 128 it is 256 - 120 = 136.
        assert_eq!(layout.waste(), Waste { elements: 40, share: 1.0 / 3.0 });
        assert_eq!(layout.uniform_waste().elements, 136);
    }

    #[test]
    fn a_chunk_can_be_filled_to_the_last_element() {
        let layout = ChunkLayout::new(&dense(&[64, 64, 1]), 128, ZeroSize::ONE);
        assert_eq!(offsets(&layout), [(0, 0), (0, 64), (1, 0)]);
        assert_eq!(lengths(&layout), [128, 32]);
    }

    #[test]
    fn every_group_has_its_own_chunks() {
        let groups = [ChunkGroup::DENSE, EXPERT, REPLICATED, FROZEN, TIED];
        let params: Vec<ParamSpec> =
            groups.iter().chain(&groups).map(|&group| ParamSpec { numel: 10, group }).collect();
        let layout = ChunkLayout::new(&params, 1024, ZeroSize::ONE);
        // The second parameter of a group joins the first, except that tied ones stay alone.
        let (first, second) = (0, 32);
        let expected = [0, 1, 2, 3, 4].map(|chunk| (chunk, first));
        let joined = [(0, second), (1, second), (2, second), (3, second), (5, first)];
        assert_eq!(offsets(&layout), [expected, joined].concat());
        assert!(layout.chunks().iter().zip(groups).all(|(chunk, group)| chunk.group == group));
    }

    #[test]
    fn frozen_parameters_do_not_move_trained_ones() {
        let mut random = random_numbers(5);
        for _ in 0..100 {
            let params = random_params(&mut random);
            let zero_size = ZeroSize { dense: 1 + random(3), ..ZeroSize::ONE };
            let chunk_sizes = ChunkSizes { trained: 1 + random(5000), frozen: 1 + random(5000) };
            let (all, trained): (Vec<usize>, Vec<ParamSpec>) =
                params.iter().enumerate().filter(|(_, spec)| !spec.group.is_frozen).unzip();
            let [among_all, alone] =
                [&params, &trained].map(|params| ChunkLayout::new(params, chunk_sizes, zero_size));
            let is_trained = |chunk: &&ChunkSpec| !chunk.group.is_frozen;
            let chunks: Vec<&ChunkSpec> = among_all.chunks().iter().filter(is_trained).collect();
            assert_eq!(chunks.len(), alone.chunks().len());
            for (chunk, other) in chunks.into_iter().zip(alone.chunks()) {
                let named = |slot: &ParamSlot| ParamSlot { param: all[slot.param], ..*slot };
                assert_eq!((chunk.group, chunk.numel), (other.group, other.numel));
                assert_eq!(chunk.params, other.params.iter().map(named).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn other_shards_do_not_move_partial_gradients() {
        let with_shards_of = |numel| {
            let norm = ParamSpec { numel: 70, group: REPLICATED };
            let shard = ParamSpec { numel, group: ChunkGroup::DENSE };
            let layout = ChunkLayout::new(&[norm, shard, norm, shard, norm], 192, ZeroSize::ONE);
            let partial = layout.chunks().iter().filter(|chunk| chunk.group == REPLICATED);
            partial.cloned().collect::<Vec<ChunkSpec>>()
        };
        assert_eq!(with_shards_of(100), with_shards_of(99));
        assert_eq!(with_shards_of(100).len(), 2);
    }

    #[test]
    fn a_longer_parameter_has_a_chunk_of_its_own() {
        // 200 > 128, and it closes the chunk before it: the last 10 elements come after it.
        let layout = ChunkLayout::new(&dense(&[10, 200, 10]), 128, ZeroSize::ONE);
        assert_eq!(offsets(&layout), [(0, 0), (1, 0), (2, 0)]);
        assert_eq!(lengths(&layout), [32, 224, 32]);
        // 128 + 224 + 128 - 220.
        assert_eq!(layout.uniform_waste().elements, 260);
    }

    #[test]
    fn chunks_divide_evenly_into_aligned_shards() {
        let zero_size = ZeroSize { dense: 6, expert: 4, ..ZeroSize::ONE };
        let expert = ParamSpec { numel: 100, group: EXPERT };
        let layout = ChunkLayout::new(&[dense(&[100]), vec![expert]].concat(), 100, zero_size);
        // 2048 * lcm(6, 4) = 24 576; 2048 * 6 = 12 288; 2048 * 4 = 8192.
        assert_eq!(layout.chunk_sizes(), ChunkSizes::from(24_576));
        assert_eq!(lengths(&layout), [12_288, 8192]);
    }

    #[test]
    fn empty_shards_and_empty_models_have_a_layout() {
        let layout = ChunkLayout::new(&dense(&[0, 0]), 64, ZeroSize::ONE);
        assert_eq!((offsets(&layout), lengths(&layout)), (vec![(0, 0), (0, 0)], vec![32]));
        let bounds = SearchBounds::for_params(&[]);
        let best = search_chunk_configuration(&[], bounds, ZeroSize::ONE);
        assert_eq!(best.waste, Waste { elements: 0, share: 0.0 });
    }

    #[test]
    fn random_layouts_keep_the_rules() {
        let mut random = random_numbers(1);
        for _ in 0..300 {
            let params = random_params(&mut random);
            let zero_size = ZeroSize { dense: 1 + random(6), expert: 1 + random(4), ..ZeroSize::ONE };
            let chunk_sizes = ChunkSizes { trained: 1 + random(5000), frozen: 1 + random(5000) };
            let layout = ChunkLayout::new(&params, chunk_sizes, zero_size);
            let mut seen = 0;
            for (index, chunk) in layout.chunks().iter().enumerate() {
                let ranks = if chunk.group.is_expert { zero_size.expert } else { zero_size.dense };
                assert!(chunk.numel.is_multiple_of(shards_unit(ranks)));
                let chunk_size = layout.chunk_sizes().of(chunk.group);
                assert!(chunk.numel <= chunk_size || chunk.params.len() == 1);
                let mut end = 0;
                for slot in &chunk.params {
                    assert_eq!(layout.slot_of(slot.param), (index, slot.offset));
                    assert_eq!(params[slot.param].group, chunk.group);
                    assert!(slot.offset.is_multiple_of(32) && slot.offset >= end);
                    end = slot.offset + params[slot.param].numel;
                    seen += 1;
                }
                assert!(end <= chunk.numel && chunk.params.is_sorted_by_key(|slot| slot.param));
            }
            assert_eq!(seen, params.len());
            assert!(layout.chunks().is_sorted_by_key(|chunk| chunk.params[0].param));
        }
    }

    /// The unit of chunks that are cut into shards of whole pages.
    fn shards_unit(ranks: usize) -> usize {
        if ranks == 1 { 32 } else { 2048 * ranks }
    }

    /// The uniform waste, computed group by group in units of 32 elements, without a layout.
    fn naive_waste(params: &[ParamSpec], size: usize, zero_size: ZeroSize) -> usize {
        let mut reserved = 0;
        for group in [ChunkGroup::DENSE, EXPERT, REPLICATED, TIED, FROZEN] {
            let ranks = if group.is_expert { zero_size.expert } else { zero_size.dense };
            // `free` is the rest of the open chunk, and a parameter is rounded up only within it.
            let mut free: Option<usize> = None;
            for numel in params.iter().filter(|spec| spec.group == group).map(|spec| spec.numel) {
                if group.is_tied || numel > size {
                    reserved += numel.max(1).div_ceil(shards_unit(ranks)) * shards_unit(ranks);
                    free = None;
                } else {
                    if free.is_none_or(|free| free < numel) {
                        reserved += size;
                        free = Some(size);
                    }
                    free = free.map(|free| (free - numel) / 32 * 32);
                }
            }
        }
        reserved - params.iter().map(|spec| spec.numel).sum::<usize>()
    }

    /// The largest parameter with (n x - sum)^2 <= 9 (n sum of squares - sum^2) or x <= mean, in integers.
    fn naive_largest_usual(params: &[ParamSpec]) -> usize {
        let numels: Vec<i128> = params.iter().map(|spec| spec.numel as i128).collect();
        let (count, sum): (i128, i128) = (numels.len() as i128, numels.iter().sum());
        let spread = count * numels.iter().map(|numel| numel * numel).sum::<i128>() - sum * sum;
        let is_usual = |&numel: &i128| {
            let above = count * numel - sum;
            above <= 0 || above * above <= 9 * spread
        };
        numels.into_iter().filter(is_usual).max().unwrap_or(0) as usize
    }

    #[test]
    fn the_search_finds_the_best_of_all_sizes() {
        let mut random = random_numbers(2);
        for _ in 0..200 {
            let params = random_params(&mut random);
            let zero_size = ZeroSize { dense: 1 + random(4), expert: 1 + random(4), ..ZeroSize::ONE };
            let min = 1 + random(4000);
            let bounds = SearchBounds { min, max: min + random(20_000), step: 1 + random(500) };
            let [dense, expert] = [zero_size.dense, zero_size.expert].map(shards_unit);
            let is_common = |multiple: &usize| multiple.is_multiple_of(expert);
            let unit = (1..=expert).map(|k| dense * k).find(is_common).unwrap();
            let round_up = |size: usize| size.div_ceil(unit) * unit;

            let mut best = (usize::MAX, 0);
            let mut size = bounds.min.max(naive_largest_usual(&params)).min(bounds.max);
            loop {
                let rounded = round_up(size);
                best = best.min((naive_waste(&params, rounded, zero_size), rounded));
                if size == bounds.max {
                    break;
                }
                size = (size + bounds.step).min(bounds.max);
            }

            let found = search_chunk_configuration(&params, bounds, zero_size);
            assert_eq!((found.waste.elements, found.chunk_size), best, "{params:?} {bounds:?}");
        }
    }

    #[test]
    fn the_search_by_hand() {
        // Four parameters of 96: sizes 96 and 192 waste nothing, 128 wastes 4 * 32, 160 wastes 4 * 64.
        let bounds = SearchBounds { min: 32, max: 192, step: 32 };
        let found = search_chunk_configuration(&dense(&[96; 4]), bounds, ZeroSize::ONE);
        assert_eq!((found.chunk_size, found.waste.elements), (96, 0));
        let larger = SearchBounds { min: 128, ..bounds };
        let found = search_chunk_configuration(&dense(&[96; 4]), larger, ZeroSize::ONE);
        assert_eq!((found.chunk_size, found.waste.elements), (192, 0));

        // Mean (20 * 96 + 10 000) / 21 = 567.6, deviation sqrt(20) / 21 * 9904 = 2109: 10 000 is above 6895.
        let found =
            search_chunk_configuration(&dense(&[&[96; 20][..], &[10_000]].concat()), bounds, ZeroSize::ONE);
        // The long parameter has 10 016 elements in a chunk of its own.
        assert_eq!((found.chunk_size, found.waste.elements), (96, 16));
        // Among five it counts (mean 2076.8, deviation 3961.6), and the largest size is taken.
        let found = search_chunk_configuration(&dense(&[96, 96, 96, 96, 10_000]), bounds, ZeroSize::ONE);
        assert_eq!((found.chunk_size, found.waste.elements), (192, 16));
    }

    /// The shapes of a decoder: an embedding, and per layer two norms, four attention matrices and three of
    /// the feed-forward network.
    fn decoder(vocab: usize, hidden: usize, intermediate: usize, layers: usize) -> Vec<ParamSpec> {
        let mut numels = vec![vocab * hidden];
        for _ in 0..layers {
            numels.extend([hidden; 2]);
            numels.extend([hidden * hidden; 4]);
            numels.extend([hidden * intermediate; 3]);
        }
        dense(&numels)
    }

    #[test]
    fn default_bounds_suit_small_and_large_models() {
        // 512 * 64 + 4 * (128 + 16 384 + 36 864) = 246 272 elements.
        let small = decoder(512, 64, 192, 4);
        assert_eq!(SearchBounds::for_params(&small), SearchBounds { min: 1 << 16, max: 1 << 16, step: 1024 });
        let found = search_chunk_configuration(&small, SearchBounds::for_params(&small), ZeroSize::ONE);
        assert_eq!(found.chunk_size, 1 << 16);

        // Llama 7B.
        let large = decoder(32_000, 4096, 11_008, 32);
        let bounds = SearchBounds::for_params(&large);
        assert_eq!(bounds, SearchBounds { min: 16 << 20, max: 32 << 20, step: 32 << 10 });

        for params in [decoder(4096, 128, 512, 6), decoder(32_000, 512, 1376, 8), large] {
            for dense in [1, 3, 8] {
                let zero_size = ZeroSize { dense, ..ZeroSize::ONE };
                let bounds = SearchBounds::for_params(&params);
                let found = search_chunk_configuration(&params, bounds, zero_size);
                let layout = ChunkLayout::new(&params, found.chunk_size, zero_size);
                assert!(layout.chunks().len() >= 16, "{}", layout.chunks().len());
                assert!(found.chunk_size >= 64 << 10);
            }
        }
    }
}
