//! The chunks that each moment of a step needs, from configurations alone: how much memory must be there at
//! one moment, and what a budget moves to and from the disk.
//!
//! ```text
//!   training step   update 0, forward 0 | update 1, forward 1 | ... | head | backward L | ... | backward 0
//!   PPO             copy of the policy, scoring passes, training steps of the policy, of the critic
//! ```
//! A model is a list of pieces (the embedding, each block, an untied head) with weights, gradients and
//! optimizer state each. Real chunks are smaller than a piece and overlap two of them, so this is an
//! approximation. (Policies: `gemini::placement`.)

use gemini::ZeroStage;
use gemini::placement::{Candidate, PlacementPolicy, READ_AHEAD_PARTS, choose_evictions};
use models::decoder::HeadKind;
use parallel::{Axis, Mesh};

use super::model_memory::{ModelBytes, PlannedModel};
use super::peak_memory::{RolloutTensors, StepTensors};

/// The chunks of all models, and the moments of a step in order.
#[derive(Debug, Default)]
pub(super) struct ChunkUses {
    chunks: Vec<PlannedChunk>,
    moments: Vec<Moment>,
}

#[derive(Clone, Copy, Debug)]
struct PlannedChunk {
    bytes: usize,
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Weights,
    Gradients,
    Optimizer,
}

/// A part of a step, whose computation and transfers go on at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Passes without gradients: rollout and scoring.
    #[default]
    Inference,
    /// Forward passes of training steps, and the updates before them.
    Forward,
    /// Backward passes.
    Backward,
}

/// A moment: the pass of a segment, or an update.
#[derive(Clone, Debug, Default)]
struct Moment {
    phase: Phase,
    /// Each chunk, and whether it changes.
    uses: Vec<(usize, bool)>,
    /// Gradients that nobody needs after this moment.
    discards: Option<usize>,
    /// The bytes of the tensors that exist then.
    tensors: usize,
    /// The bytes of the tensors that take what room there is beside them.
    spare: usize,
    /// Of an update: the bytes of its largest parameter. It can run parameter by parameter, when no tensors
    /// exist.
    least_update: Option<usize>,
}

/// The bytes that are moved in a step, by [`Phase`].
pub(super) type ChunkTraffic = [PhaseTraffic; 3];

/// The bytes that are moved in a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PhaseTraffic {
    pub(super) read: usize,
    pub(super) written: usize,
}

/// The pieces of a model, as indices of chunks.
#[derive(Clone, Debug)]
pub(super) struct ModelPieces {
    pieces: Vec<Piece>,
    /// The piece of the vocabulary head.
    head: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    weights: usize,
    /// Gradients and optimizer state of a trained model.
    trained: Option<[usize; 2]>,
    /// The largest parameter, as a part of the piece.
    largest: f64,
    /// What ranks of ZeRO gather while the piece is in use, and what they gather of gradients.
    gathered: [usize; 2],
}

impl ChunkUses {
    /// Adds the chunks of a model.
    pub(super) fn add_model(
        &mut self,
        (mesh, zero): (&Mesh, ZeroStage),
        model: &PlannedModel<'_>,
        state: &ModelBytes,
    ) -> ModelPieces {
        let architecture = model.config.architecture();
        let stages = mesh.size(Axis::Pipeline);
        let layers = (architecture.num_layers as usize).div_ceil(stages);
        let is_tied = architecture.tie_word_embeddings || model.head == HeadKind::Scalar;
        let table = (architecture.vocab_size * architecture.embedding_size) as f64;
        let tables = if architecture.tie_word_embeddings { 1.0 } else { 2.0 };
        let blocks = (architecture.num_parameters() - tables * table) / stages as f64;

        // The number of parameters of each piece, and the largest parameter among them.
        let widest = (architecture.hidden_size * architecture.intermediate_size) as f64;
        let mut sizes = vec![(table, table)];
        sizes.extend((0..layers).map(|_| (blocks / layers as f64, widest)));
        sizes.extend((!is_tied).then_some((table, table)));
        let all: f64 = sizes.iter().map(|(size, _)| size).sum();

        let others = mesh.size(Axis::Data) - 1;
        let pieces = sizes.iter().map(|(size, largest)| {
            let share = |bytes: usize| (bytes as f64 * size / all) as usize;
            let (weights, gradients) = (share(state.bytes.weights), share(state.bytes.gradients));
            let gathered = |from: ZeroStage, bytes: usize| if zero >= from { others * bytes } else { 0 };
            Piece {
                weights: self.add_chunk(weights, Part::Weights),
                trained: model.is_trained.then(|| {
                    let optimizer = share(state.bytes.optimizer);
                    [(gradients, Part::Gradients), (optimizer, Part::Optimizer)]
                        .map(|(bytes, part)| self.add_chunk(bytes, part))
                }),
                largest: (largest / size).min(1.0),
                gathered: [gathered(ZeroStage::Weights, weights), gathered(ZeroStage::Gradients, gradients)],
            }
        });
        let pieces: Vec<Piece> = pieces.collect();
        let head = if is_tied { 0 } else { pieces.len() - 1 };
        ModelPieces { pieces, head: (model.head == HeadKind::Vocabulary).then_some(head) }
    }

    fn add_chunk(&mut self, bytes: usize, part: Part) -> usize {
        self.chunks.push(PlannedChunk { bytes, part });
        self.chunks.len() - 1
    }

    /// Adds a training step of a model.
    pub(super) fn add_training_step(&mut self, model: &ModelPieces, tensors: &StepTensors) {
        let count = model.pieces.len();
        // Activations are added piece by piece, and go in the same way.
        let kept = |piece: usize| tensors.kept * (piece + 1) / count;
        let head = model.head.filter(|&head| head > 0);
        let segments = count - usize::from(head.is_some());
        for index in 0..count {
            self.add_update(&model.pieces[index], kept(index));
            let is_head = Some(index) == head;
            let forward = || Moment { phase: Phase::Forward, ..forward(&model.pieces[index], kept(index)) };
            self.moments.extend((!is_head).then(forward));
        }
        if let Some(head) = model.head {
            // The loss computes its gradients while the logits exist, and adds them when they are gone.
            let piece = &model.pieces[head];
            let loss = forward(piece, tensors.kept + tensors.head);
            self.moments.push(Moment { phase: Phase::Backward, ..loss });
            self.moments.push(backward(piece, tensors.kept + tensors.head - tensors.logits));
        }
        for index in (0..segments).rev() {
            let beside = if index == 0 { 0 } else { tensors.block };
            self.moments.push(backward(&model.pieces[index], kept(index) + beside));
        }
    }

    fn add_update(&mut self, piece: &Piece, tensors: usize) {
        let Some([gradients, optimizer]) = piece.trained else { return };
        let bytes: usize =
            [piece.weights, gradients, optimizer].iter().map(|&chunk| self.chunks[chunk].bytes).sum();
        self.moments.push(Moment {
            phase: Phase::Forward,
            uses: vec![(piece.weights, true), (gradients, false), (optimizer, true)],
            discards: Some(gradients),
            tensors,
            spare: 0,
            least_update: Some((piece.largest * bytes as f64) as usize),
        });
    }

    /// Adds a pass without gradients.
    pub(super) fn add_forward_pass(&mut self, model: &ModelPieces) {
        self.moments.extend(model.pieces.iter().map(|piece| forward(piece, 0)));
    }

    /// Adds a rollout: the policy is copied piece by piece, and the copy generates. The copy lies in chunks,
    /// too, of which only those of a piece are needed at once. All tokens are taken as one pass: what a copy
    /// that does not fit reads for each token is not counted.
    pub(super) fn add_rollout(&mut self, policy: &ModelPieces, tensors: &RolloutTensors) {
        let weights: Vec<usize> = policy.pieces.iter().map(|piece| piece.weights).collect();
        let mut copies = Vec::new();
        for &original in &weights {
            let copy = self.add_chunk(self.chunks[original].bytes, Part::Weights);
            self.moments.push(Moment { uses: vec![(original, false), (copy, false)], ..Moment::default() });
            copies.push(copy);
        }
        let spare = tensors.kv_cache + tensors.logits - tensors.least;
        let generated =
            |copy| Moment { uses: vec![(copy, false)], tensors: tensors.least, spare, ..Moment::default() };
        self.moments.extend(copies.into_iter().map(generated));
    }

    /// The bytes that must be in memory at one moment, with this placement.
    pub(super) fn least_bytes(&self, placement: PlacementPolicy) -> usize {
        let stays = |chunk: &PlannedChunk| match placement {
            PlacementPolicy::Cuda => true,
            PlacementPolicy::Static => chunk.part != Part::Optimizer,
            _ => false,
        };
        let bytes = |moment: &Moment| {
            let used = moment.uses.iter().map(|&(chunk, _)| &self.chunks[chunk]);
            let moved: usize = used.filter(|chunk| !stays(chunk)).map(|chunk| chunk.bytes).sum();
            moment.least_update.map_or(moved + moment.tensors, |least| least.min(moved))
        };
        let kept: usize = self.chunks.iter().filter(|chunk| stays(chunk)).map(|chunk| chunk.bytes).sum();
        kept + self.moments.iter().map(bytes).max().unwrap_or(0)
    }

    /// What one of many equal steps moves under a budget.
    pub(super) fn traffic(&self, budget: usize, placement: PlacementPolicy) -> ChunkTraffic {
        let mut residency = Residency::new(self, budget, placement);
        for _ in 0..3 {
            residency.traffic = ChunkTraffic::default();
            (0..self.moments.len()).for_each(|moment| residency.run(moment));
        }
        residency.traffic
    }
}

fn forward(piece: &Piece, tensors: usize) -> Moment {
    let uses = vec![(piece.weights, false)];
    Moment { uses, tensors: tensors + piece.gathered[0], ..Moment::default() }
}

fn backward(piece: &Piece, tensors: usize) -> Moment {
    let gradients = piece.trained.map(|[gradients, _]| (gradients, true));
    let uses = [Some((piece.weights, false)), gradients].into_iter().flatten().collect();
    let gathered: usize = piece.gathered.iter().sum();
    Moment { phase: Phase::Backward, uses, tensors: tensors + gathered, ..Moment::default() }
}

/// What is in memory during a simulation.
struct Residency<'a> {
    order: &'a ChunkUses,
    budget: usize,
    placement: PlacementPolicy,
    /// The moments at which each chunk is used, ascending.
    uses: Vec<Vec<usize>>,
    /// Whether each chunk in memory has changed; `None` for those that are not there.
    resident: Vec<Option<bool>>,
    /// Whether each chunk has values. Gradients that were used have none and are not read.
    has_values: Vec<bool>,
    traffic: ChunkTraffic,
    phase: Phase,
}

impl<'a> Residency<'a> {
    fn new(order: &'a ChunkUses, budget: usize, placement: PlacementPolicy) -> Self {
        let mut uses = vec![Vec::new(); order.chunks.len()];
        for (index, moment) in order.moments.iter().enumerate() {
            moment.uses.iter().for_each(|&(chunk, _)| uses[chunk].push(index));
        }
        let resident = vec![None; order.chunks.len()];
        let has_values = order.chunks.iter().map(|chunk| chunk.part != Part::Gradients).collect();
        let (traffic, phase) = <_>::default();
        Self { order, budget, placement, uses, resident, has_values, traffic, phase }
    }

    fn bytes(&self, chunk: usize) -> usize {
        self.order.chunks[chunk].bytes
    }

    fn run(&mut self, now: usize) {
        let moment = &self.order.moments[now];
        self.phase = moment.phase;
        self.make_room(now, moment);
        for &(chunk, writes) in &moment.uses {
            if self.resident[chunk].is_none() && self.has_values[chunk] {
                self.traffic[self.phase as usize].read += self.bytes(chunk);
            }
            self.resident[chunk] = Some(self.resident[chunk].unwrap_or(false) || writes);
            self.has_values[chunk] = true;
        }
        if let Some(gradients) = moment.discards {
            (self.resident[gradients], self.has_values[gradients]) = (None, false);
        }
        for chunk in 0..self.resident.len() {
            let leaves = match self.placement {
                PlacementPolicy::Disk => true,
                PlacementPolicy::Static => self.order.chunks[chunk].part == Part::Optimizer,
                _ => false,
            };
            if leaves {
                self.evict(chunk);
            }
        }
    }

    /// Evicts the chunks whose next use is farthest until those of `moment` fit.
    fn make_room(&mut self, now: usize, moment: &Moment) {
        if self.placement == PlacementPolicy::Cuda {
            return;
        }
        let is_used = |chunk: usize| moment.uses.iter().any(|&(used, _)| used == chunk);
        let used: usize = moment.uses.iter().map(|&(chunk, _)| self.bytes(chunk)).sum();
        let is_auto = self.placement == PlacementPolicy::Auto;
        let read_ahead = if is_auto { self.budget / READ_AHEAD_PARTS } else { 0 };
        let capacity = self.budget.saturating_sub(read_ahead + moment.tensors + moment.spare).max(used);

        let others =
            (0..self.resident.len()).filter(|&chunk| self.resident[chunk].is_some() && !is_used(chunk));
        let others: Vec<usize> = others.collect();
        let held: usize = others.iter().map(|&chunk| self.bytes(chunk)).sum();
        let candidate = |&chunk: &usize| Candidate {
            bytes: self.bytes(chunk),
            next_use: self.next_use(chunk, now),
            dirty: self.resident[chunk] == Some(true),
        };
        let candidates: Vec<Candidate> = others.iter().map(candidate).collect();
        let excess = (held + used).saturating_sub(capacity);
        for victim in choose_evictions(&candidates, excess).unwrap_or_default() {
            self.evict(others[victim]);
        }
    }

    fn evict(&mut self, chunk: usize) {
        if self.resident[chunk].take() == Some(true) {
            self.traffic[self.phase as usize].written += self.bytes(chunk);
        }
    }

    /// The number of moments until the next use.
    fn next_use(&self, chunk: usize, now: usize) -> Option<usize> {
        let uses = &self.uses[chunk];
        let next = uses.get(uses.partition_point(|&used| used <= now));
        let around = uses.first().map(|first| first + self.order.moments.len());
        next.copied().or(around).map(|next| next - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pieces of 10 bytes of weights, 10 of gradients and 20 of optimizer state, without tensors.
    fn two_pieces() -> ChunkUses {
        let mut uses = ChunkUses::default();
        let mut piece = || Piece {
            weights: uses.add_chunk(10, Part::Weights),
            trained: Some([uses.add_chunk(10, Part::Gradients), uses.add_chunk(20, Part::Optimizer)]),
            largest: 0.5,
            gathered: [0; 2],
        };
        let model = ModelPieces { pieces: vec![piece(), piece()], head: None };
        uses.add_training_step(&model, &StepTensors::default());
        uses
    }

    #[test]
    fn what_must_be_there_at_once_by_hand() {
        let mut uses = two_pieces();
        // A backward pass needs 10 + 10, an update parameter by parameter half of 40.
        assert_eq!(uses.least_bytes(PlacementPolicy::Auto), 20);
        // Weights and gradients stay; an update of all parameters of a piece needs 20 more.
        assert_eq!(uses.least_bytes(PlacementPolicy::Static), 40 + 20);
        assert_eq!(uses.least_bytes(PlacementPolicy::Cuda), 80);
        uses.moments[4].tensors = 7;
        assert_eq!(uses.least_bytes(PlacementPolicy::Auto), 27);
        assert_eq!(uses.least_bytes(PlacementPolicy::Cuda), 87);
    }

    #[test]
    fn a_copy_that_generates_need_not_fit_as_a_whole() {
        let mut uses = two_pieces();
        let model = ModelPieces {
            pieces: [0, 3]
                .map(|weights| Piece { weights, trained: None, largest: 0.5, gathered: [0; 2] })
                .into(),
            head: None,
        };
        uses.add_rollout(&model, &RolloutTensors { policy: 20, kv_cache: 30, logits: 5, least: 25 });
        // A piece of the copy beside the least cache and the logits, and not all 20 of it.
        assert_eq!(uses.least_bytes(PlacementPolicy::Auto), 10 + 25);
        // The copy stays, too.
        assert_eq!(uses.least_bytes(PlacementPolicy::Cuda), 80 + 20 + 25);
    }

    #[test]
    fn a_budget_moves_what_does_not_fit() {
        let uses = two_pieces();
        let traffic = |budget, placement| -> [usize; 2] {
            let phases = uses.traffic(budget, placement);
            [phases.iter().map(|phase| phase.read).sum(), phases.iter().map(|phase| phase.written).sum()]
        };
        // Everything fits.
        assert_eq!(traffic(200, PlacementPolicy::Auto), [0, 0]);
        assert_eq!(traffic(80, PlacementPolicy::Cuda), [0, 0]);
        // The optimizer state is read and written once a step.
        assert_eq!(traffic(80, PlacementPolicy::Static), [40, 40]);
        // Of each piece: the update reads 40 and writes the weights and 20 of the optimizer, the forward pass
        // reads 10, and the backward pass reads 10 of weights and writes 10 of gradients.
        assert_eq!(traffic(40, PlacementPolicy::Disk), [2 * 60, 2 * 40]);
        let [read, written] = traffic(56, PlacementPolicy::Auto);
        assert!(read > 0 && read < 120 && written > 0 && written < 80, "{read} {written}");
    }
}
