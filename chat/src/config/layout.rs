//! How the work of a step is divided: the keys of a run file that `[parallel] auto` chooses.

use gemini::config::memory::ByteSize;
use gemini::placement::PlacementPolicy;
use serde::{Deserialize, Serialize};

use super::device::DeviceSetting;
use super::resolved::differences;
use super::run_config::RunConfig;
use super::section::ParallelSection;
use super::stage::StageSchema;

/// The values of these keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChosenLayout {
    pub(crate) parallel: ParallelSection,
    /// `[gemini] device_memory`.
    pub(crate) device_memory: Option<ByteSize>,
    /// `[train] micro_batch_size`.
    pub(crate) micro_batch_size: usize,
    /// `[train] gradient_accumulation_steps`.
    pub(crate) gradient_accumulation_steps: usize,
    /// `[train] activation_checkpointing`.
    pub(crate) activation_checkpointing: bool,
}

impl RunConfig {
    /// The layout that the configuration has.
    pub(crate) fn layout(&self) -> ChosenLayout {
        ChosenLayout {
            parallel: self.parallel.clone(),
            device_memory: self.gemini.device_memory,
            micro_batch_size: self.train.micro_batch_size,
            gradient_accumulation_steps: self.train.gradient_accumulation_steps,
            activation_checkpointing: self.train.activation_checkpointing,
        }
    }

    /// Moves the models to the CPU, where a plan is made for any device. What leaves a device goes to the
    /// host, and what leaves the CPU to the disk.
    pub(crate) fn stay_on_cpu(&mut self) {
        if self.model.device == DeviceSetting::Cpu {
            return;
        }
        self.model.device = DeviceSetting::Cpu;
        self.gemini.host_memory = None;
        if self.gemini.placement == PlacementPolicy::Cpu {
            self.gemini.placement = PlacementPolicy::Disk;
        }
    }

    /// Takes a layout that `[parallel] auto` has chosen, which is then the origin of every value that
    /// changes. How bytes are sent, and the hardware that was planned for, stay.
    pub(crate) fn set_layout(&mut self, layout: ChosenLayout, stage: &StageSchema) -> anyhow::Result<()> {
        let was = self.to_toml(stage)?;
        let (transport, hardware) = (self.parallel.transport, self.parallel.hardware.take());
        self.parallel = ParallelSection { hardware, transport, ..layout.parallel };
        self.gemini.device_memory = layout.device_memory;
        self.train.micro_batch_size = layout.micro_batch_size;
        self.train.gradient_accumulation_steps = layout.gradient_accumulation_steps;
        self.train.activation_checkpointing = layout.activation_checkpointing;
        for difference in differences(&was, &self.to_toml(stage)?, &[])? {
            self.origins.set(difference.key, "[parallel] auto");
        }
        Ok(())
    }
}
