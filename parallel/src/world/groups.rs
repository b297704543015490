//! The process groups of a mesh: one along each axis, and the combined ones that training needs.

use std::sync::{Arc, Mutex, PoisonError};

use super::LocalRank;
use crate::comm::{ProcessGroup, SentByGroup};
use crate::{Axis, Error, Mesh};

/// The process groups of a mesh that one rank belongs to.
#[derive(Debug)]
pub struct ProcessGroups {
    mesh: Mesh,
    local_rank: LocalRank,
    world: ProcessGroup,
    axis_groups: Vec<Arc<ProcessGroup>>,
    tensor_parallel: Arc<ProcessGroup>,
    data_parallel: Arc<ProcessGroup>,
    dense_data_parallel: Arc<ProcessGroup>,
    expert_data_parallel: Arc<ProcessGroup>,
    loss_group: Arc<ProcessGroup>,
    pipeline_expert_group: Arc<ProcessGroup>,
    embedding_group: Option<Arc<ProcessGroup>>,
    weight_gathering: Mutex<Option<WeightGatheringGroups>>,
}

/// The groups over which sharded weights are gathered.
#[derive(Clone, Debug)]
pub struct WeightGatheringGroups {
    /// For dense weights: the ranks of [`ProcessGroups::dense_data_parallel`].
    pub dense: Arc<ProcessGroup>,
    /// For expert weights: the ranks of [`ProcessGroups::expert_data_parallel`].
    pub expert: Arc<ProcessGroup>,
}

impl ProcessGroups {
    /// The groups of a single process.
    pub fn single() -> Self {
        // A group of one rank needs no backend.
        Self::fake(&Mesh::single())
    }

    /// The rank of this process among the processes of the job on its host.
    pub fn local_rank(&self) -> LocalRank {
        self.local_rank
    }

    /// The groups that a process of `mesh` would have. They have ranks and sizes, but no backend, so they can
    /// only be used for planning.
    pub fn fake(mesh: &Mesh) -> Self {
        let this_rank = mesh.rank();
        let make = |name: &str, ranks: &[usize]| {
            let position =
                ranks.iter().position(|&rank| rank == this_rank).expect("every group of a rank contains it");
            Ok(ProcessGroup::fake(name, ranks.to_vec(), position))
        };
        Self::build(mesh, LocalRank::SINGLE, make).expect("fake groups open no connection")
    }

    /// Builds the groups of `mesh`; `make` creates a group from its name and its ranks.
    pub(super) fn build(
        mesh: &Mesh,
        local_rank: LocalRank,
        make: impl Fn(&str, &[usize]) -> Result<ProcessGroup, Error>,
    ) -> Result<Self, Error> {
        let everyone: Vec<usize> = (0..mesh.world_size()).collect();
        let mut axis_groups = Vec::with_capacity(Axis::ALL.len());
        for axis in Axis::ALL {
            axis_groups.push(Arc::new(make(axis.name(), &mesh.group(&[axis]))?));
        }

        // Combined groups span several axes. If only one of these axes has more than one rank, the group of
        // that axis is shared, unless `separate` is set. Gradient all-reduces run while collectives over the
        // sequence and expert axes are under way, so the two groups that reduce gradients need communicators
        // of their own when one of these axes is in use.
        let combined_group =
            |name: &str, axes: &[Axis], separate: bool| -> Result<Arc<ProcessGroup>, Error> {
                let mut axes_in_use = axes.iter().filter(|&&axis| mesh.size(axis) > 1);
                match (axes_in_use.next(), axes_in_use.next()) {
                    (None, _) => Ok(Arc::clone(&axis_groups[axes[axes.len() - 1] as usize])),
                    (Some(&axis), None) if !separate => Ok(Arc::clone(&axis_groups[axis as usize])),
                    _ => Ok(Arc::new(make(name, &mesh.group(axes))?)),
                }
            };

        let separate = mesh.size(Axis::Sequence) > 1 || mesh.size(Axis::Expert) > 1;
        let tensor_parallel = combined_group("tensor", &Axis::TENSOR, false)?;
        let data_parallel = combined_group("data-parallel", &[Axis::Data, Axis::Expert], false)?;
        let dense_data_parallel =
            combined_group("dense-data-parallel", &[Axis::Data, Axis::Expert, Axis::Sequence], separate)?;
        let expert_data_parallel =
            combined_group("expert-data-parallel", &[Axis::Data, Axis::Sequence], separate)?;
        let loss_group = combined_group("loss", &[Axis::Pipeline, Axis::Data, Axis::Expert], false)?;
        let pipeline_expert_group =
            combined_group("pipeline-expert", &[Axis::Pipeline, Axis::Expert], false)?;

        // The embedding group holds the first and the last stage, which share a tied embedding.
        let (stages, stage) = (mesh.group(&[Axis::Pipeline]), mesh.coordinate(Axis::Pipeline));
        let embedding_group = match stages.as_slice() {
            [first, .., last] if stage == 0 || stage + 1 == stages.len() => {
                Some(Arc::new(make("embedding", &[*first, *last])?))
            }
            _ => None,
        };

        let (mesh, world) = (mesh.clone(), make("world", &everyone)?);
        Ok(Self {
            local_rank,
            mesh,
            world,
            axis_groups,
            tensor_parallel,
            data_parallel,
            dense_data_parallel,
            expert_data_parallel,
            loss_group,
            pipeline_expert_group,
            embedding_group,
            weight_gathering: Mutex::default(),
        })
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The group of all ranks.
    pub fn world(&self) -> &ProcessGroup {
        &self.world
    }

    /// The ranks that differ from this one along `axis` only.
    pub fn axis_group(&self, axis: Axis) -> &Arc<ProcessGroup> {
        &self.axis_groups[axis as usize]
    }

    /// The data-parallel group: the ranks that train on different rows of a step. It spans the data and
    /// expert axes, because expert-parallel ranks also have rows of their own.
    /// Megatron: `get_data_parallel_group()`.
    pub fn data_parallel(&self) -> &ProcessGroup {
        &self.data_parallel
    }

    /// The ranks that hold the other experts of the same layers.
    pub fn expert_parallel(&self) -> &Arc<ProcessGroup> {
        self.axis_group(Axis::Expert)
    }

    /// The ranks that train on different tokens of the same rows (Ulysses, ring). Megatron's sequence
    /// parallelism splits tokens over the tensor-parallel group instead.
    /// Megatron: `get_context_parallel_group()`.
    pub fn sequence_parallel(&self) -> &Arc<ProcessGroup> {
        self.axis_group(Axis::Sequence)
    }

    /// The ranks that hold replicas of the dense (non-expert) weights, along the data, expert and sequence
    /// axes. The gradients of dense weights are all-reduced over this group; those of expert weights over
    /// [`expert_data_parallel`](Self::expert_data_parallel).
    /// Megatron: `get_data_parallel_group(with_context_parallel=True)`.
    pub fn dense_data_parallel(&self) -> &Arc<ProcessGroup> {
        &self.dense_data_parallel
    }

    /// The weight replicas: the ranks that hold identical weights, experts included, along the data and
    /// sequence axes. The gradients of expert weights are all-reduced over this group; those of dense weights
    /// over the larger [`dense_data_parallel`](Self::dense_data_parallel).
    /// Megatron: `get_expert_data_parallel_group()`.
    pub fn expert_data_parallel(&self) -> &Arc<ProcessGroup> {
        &self.expert_data_parallel
    }

    /// The groups over which sharded weights are gathered. They have communicators of their own, because the
    /// ranks gather weights in one order and reduce gradients in another. The first call connects them, so
    /// all ranks make it.
    pub fn weight_gathering(&self) -> Result<WeightGatheringGroups, Error> {
        let mut connected = self.weight_gathering.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(groups) = &*connected {
            return Ok(groups.clone());
        }
        let (dense, expert) = (&self.dense_data_parallel, &self.expert_data_parallel);
        let dense_copy = Arc::new(dense.duplicate("weights")?);
        let expert_copy = if Arc::ptr_eq(dense, expert) {
            Arc::clone(&dense_copy)
        } else {
            Arc::new(expert.duplicate("weights")?)
        };
        let groups = WeightGatheringGroups { dense: dense_copy, expert: expert_copy };
        *connected = Some(groups.clone());
        Ok(groups)
    }

    /// The replicas of the whole model: generation and evaluation split their rows over this group. Without
    /// gradients, the ranks of an expert-parallel group run the same rows, so it is
    /// [`expert_data_parallel`](Self::expert_data_parallel).
    pub fn model_replicas(&self) -> &Arc<ProcessGroup> {
        self.expert_data_parallel()
    }

    /// The pipeline and expert ranks that together hold all parameters of one model, each at least once.
    /// Unlike Megatron's model-parallel group (tensor and pipeline), it does not span the tensor axis: the
    /// tensor-parallel shards of one parameter are in different groups.
    pub fn pipeline_expert_group(&self) -> &Arc<ProcessGroup> {
        &self.pipeline_expert_group
    }

    /// The ranks that hold the other layers of the same model.
    pub fn pipeline_parallel(&self) -> &Arc<ProcessGroup> {
        self.axis_group(Axis::Pipeline)
    }

    /// The ranks with the first and the last layers; `None` if this rank has neither or if there is only one
    /// stage.
    pub fn embedding_group(&self) -> Option<&Arc<ProcessGroup>> {
        self.embedding_group.as_ref()
    }

    /// The loss group. Each training row of a step contributes its loss on exactly one rank of this group, so
    /// a sum over the group is the loss of the step.
    /// Megatron: `average_losses_across_data_parallel_group`, here over the pipeline as well.
    pub fn loss_group(&self) -> &ProcessGroup {
        &self.loss_group
    }

    /// The ranks that hold shards of the same weights.
    pub fn tensor_parallel(&self) -> &Arc<ProcessGroup> {
        &self.tensor_parallel
    }

    /// What this rank has sent so far.
    pub fn sent(&self) -> SentByGroup {
        let gathering = self.weight_gathering.lock().unwrap_or_else(PoisonError::into_inner);
        let gathering = gathering.iter().flat_map(|groups| [&groups.dense, &groups.expert]);
        let combined = [
            &self.tensor_parallel,
            &self.data_parallel,
            &self.dense_data_parallel,
            &self.expert_data_parallel,
            &self.loss_group,
            &self.pipeline_expert_group,
        ];
        let shared = self.axis_groups.iter().chain(combined).chain(&self.embedding_group).chain(gathering);
        let groups: Vec<&ProcessGroup> =
            std::iter::once(&self.world).chain(shared.map(AsRef::as_ref)).collect();
        let mut sent = SentByGroup::default();
        for (index, group) in groups.iter().enumerate() {
            // Axes and combined groups may be one and the same group.
            if groups[..index].iter().any(|other| std::ptr::eq(*other, *group)) {
                continue;
            }
            for (collective, counted) in group.sent() {
                sent.add(group.name(), collective, counted);
            }
        }
        sent
    }

    /// Whether this rank takes part in saving. Only the first weight replica does; the other replicas hold
    /// the same values.
    pub fn saves_weights(&self) -> bool {
        self.expert_data_parallel.rank() == 0
    }

    /// Whether this is rank 0, which writes files and prints messages for the whole job.
    pub fn is_rank_zero(&self) -> bool {
        self.world.rank() == 0
    }
}
