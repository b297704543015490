//! The work of a run as predictions see it, apart from how it is divided and together with it.

use parallel::Mesh;

use super::lengths::SequenceLengths;
use super::model_memory::{ModelBytes, PlannedModel};
use super::segments::Numbers;
use crate::config::RunConfig;

/// The models and rows of a run, and the device of a rank: what is the same for every layout.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) models: &'a [PlannedModel<'a>],
    /// The numbers of these models.
    pub(super) numbers: &'a Numbers<'a>,
    pub(super) lengths: &'a SequenceLengths,
    /// The bytes that a rank takes without any model.
    pub(super) program_bytes: usize,
    /// The memory of the machine; `None` if it is not known.
    pub(super) machine_bytes: Option<usize>,
}

/// A run whose work is divided over a mesh.
#[derive(Clone, Copy)]
pub(super) struct PlannedRun<'a> {
    pub(super) config: &'a RunConfig,
    pub(super) mesh: &'a Mesh,
    pub(super) work: Work<'a>,
    /// The weights, gradients and optimizer state of each model in the process that needs most.
    pub(super) state: &'a [ModelBytes],
}

impl PlannedRun<'_> {
    /// The bytes of weights, gradients and optimizer state of all models.
    pub(super) fn held_bytes(&self) -> usize {
        self.state.iter().map(|model| model.bytes.total()).sum()
    }
}
