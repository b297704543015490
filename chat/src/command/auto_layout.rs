//! `[parallel] auto`: the layout of a run, chosen when the run starts.
//!
//! A new run gets the layout that `plan --search` names first. A run that goes on keeps the layout of its
//! `run.toml`. With another number of ranks it gets the fastest mesh of these ranks, and keeps its
//! micro-batch and activation checkpointing, which decide how numbers round.

use anyhow::Context;
use parallel::{Mesh, ProcessGroups, World};
use planner::Hardware;

use crate::config::section::ParallelSection;
use crate::config::{ChosenLayout, ConfigError, RunConfig};
use crate::console::{divert_stderr, print_stderr};
use crate::failure::Failure;
use crate::stage::Stage;
use crate::stage::context::{PlanRequest, SearchScope};
use crate::{folder, hardware, launch};

/// A run whose layout is open.
pub(crate) struct OpenRun<'a> {
    pub(crate) stage: &'static Stage,
    pub(crate) config: &'a RunConfig,
    /// Whether the run goes on.
    pub(crate) resume: bool,
    /// The number of ranks.
    pub(crate) ranks: usize,
    /// The threads of an operation.
    pub(crate) threads: usize,
    /// Whether the ranks compute on GPUs.
    pub(crate) is_on_gpu: bool,
}

impl OpenRun<'_> {
    /// Chooses on rank 0, for all ranks of the job.
    pub(crate) fn choose_for(&self, world: &World) -> anyhow::Result<ChosenLayout> {
        let chosen = if world.rank() == 0 { Some(self.choose()) } else { None };
        let shared: Option<Result<&ChosenLayout, String>> =
            chosen.as_ref().map(|chosen| chosen.as_ref().map_err(|error| format!("{error:#}")));
        let shared = world.store_broadcast("layout", &serde_json::to_string(&shared)?)?;
        if let Some(chosen) = chosen {
            return chosen;
        }
        let shared: Option<Result<ChosenLayout, String>> = serde_json::from_str(&shared)?;
        let shared = shared.context("rank 0 has sent no layout")?;
        shared.map_err(|problem| ConfigError::RankFailed { rank: 0, problem }.into())
    }

    /// Chooses the layout, and says so.
    pub(crate) fn choose(&self) -> anyhow::Result<ChosenLayout> {
        let Self { stage, config, ranks, .. } = *self;
        let saved =
            if self.resume { folder::saved_config(&config.out, &stage.schema)? } else { None };
        if let Some(saved) = &saved
            && launch::mesh(&saved.parallel, 0, ranks).is_ok()
        {
            print_stderr("[parallel] auto: the layout is that of run.toml");
            // A budget may change between two parts of a run.
            let device_memory = config.gemini.device_memory.or(saved.gemini.device_memory);
            return Ok(ChosenLayout { device_memory, ..saved.layout() });
        }

        let mut open = config.clone();
        open.parallel =
            ParallelSection { transport: config.parallel.transport, ..ParallelSection::default() };
        if let Some(saved) = &saved {
            open.train.micro_batch_size = saved.train.micro_batch_size;
            open.train.gradient_accumulation_steps = saved.train.gradient_accumulation_steps;
            open.train.activation_checkpointing = saved.train.activation_checkpointing;
        }
        let scope = SearchScope { ranks, keeps_micro_batch: saved.is_some() };
        let request = PlanRequest { search: Some(scope), hardware: Some(self.hardware()?), trace: false };
        // The run itself tells what there is to tell of its rows.
        let muted = divert_stderr();
        let groups = ProcessGroups::single();
        let plan = stage.plan(&request, &open, (&groups.into(), &Mesh::new(&[], 0, 1)?));
        drop(muted);
        let found = plan?.search.context("a plan with a search has its result")?;
        let Some(fastest) = found.fastest.first() else {
            return Err(Failure::DoesNotFit(format!("[parallel] auto: {}", found.nothing_fits())).into());
        };
        print_stderr(&format!("[parallel] auto: {}", found.chosen(fastest)));
        Ok(fastest.layout())
    }

    /// The hardware that the run file names, or this machine.
    fn hardware(&self) -> anyhow::Result<Hardware> {
        let refused = |key: &str, message: &str| {
            let (key, message) = (key.to_owned(), message.to_owned());
            anyhow::Error::from(ConfigError::Value { place: None, key, message })
        };
        if let Some(name) = &self.config.parallel.hardware {
            let hardware = hardware::find(name)?;
            if hardware.device.threads.is_none() != self.is_on_gpu {
                let device = if self.is_on_gpu { "on GPUs" } else { "on the CPU" };
                let message = format!("{name:?} is other hardware: this run computes {device}");
                return Err(refused("parallel.hardware", &message));
            }
            return Ok(hardware);
        }
        if self.is_on_gpu {
            let message = "the speeds of a GPU are not measured: name its hardware with [parallel] hardware";
            return Err(refused("parallel.auto", message));
        }
        hardware::load(self.threads)?.ok_or_else(|| {
            let message = format!(
                "the speeds of this machine with {} are not known: run `colossal-chat doctor --bench` once, or name \
                 hardware with [parallel] hardware",
                text::number::counted(self.threads as u64, "thread")
            );
            refused("parallel.auto", &message)
        })
    }
}
