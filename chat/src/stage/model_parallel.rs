//! How the ranks share each model.

use std::sync::Arc;

use models::model_parallel::{ModelParallel, PipelineParallel, SequenceParallel};
use parallel::ProcessGroups;
use parallel::comm::ProcessGroup;

use crate::config::RunConfig;
use crate::config::section::SequenceMode;

/// Returns how the ranks share each model.
pub(super) fn model_parallel(config: &RunConfig, groups: &ProcessGroups) -> ModelParallel {
    let sequence_parallel = match config.parallel.sequence.mode {
        SequenceMode::Megatron if groups.tensor_parallel().size() > 1 => SequenceParallel::Megatron,
        SequenceMode::Ulysses if groups.sequence_parallel().size() > 1 => {
            SequenceParallel::Ulysses(Arc::clone(groups.sequence_parallel()))
        }
        SequenceMode::Ring if groups.sequence_parallel().size() > 1 => {
            SequenceParallel::Ring(Arc::clone(groups.sequence_parallel()))
        }
        _ => SequenceParallel::Replicated,
    };

    // An axis of size 1 gets no group, so the models skip its collectives.
    let section = &config.parallel.pipeline;
    let pipeline_parallel = (section.size > 1).then(|| PipelineParallel {
        group: Arc::clone(groups.pipeline_parallel()),
        schedule_kind: section.schedule,
        virtual_stages: section.chunks,
        embedding_group: groups.embedding_group().cloned(),
    });
    let wide = |group: &Arc<ProcessGroup>| (group.size() > 1).then(|| Arc::clone(group));
    let (expert_parallel, pipeline_expert_group) =
        (wide(groups.expert_parallel()), wide(groups.pipeline_expert_group()));

    ModelParallel {
        sequence_parallel,
        pipeline_parallel,
        expert_parallel,
        pipeline_expert_group,
        replica: groups.expert_data_parallel().rank(),
        ..ModelParallel::tensor_parallel_only(groups.tensor_parallel())
    }
}
