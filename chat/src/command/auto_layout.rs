//! `[parallel] auto`: the layout of a run, chosen when the run starts.
//!
//! A new run gets the layout that `plan --search` names first. A run that goes on keeps the layout in its
//! `run.toml`. With another number of ranks it gets the fastest mesh of these ranks, and keeps its
//! micro-batch and activation checkpointing.

use anyhow::{Context, anyhow};
use parallel::{Mesh, ProcessGroups, World};
use planner::Hardware;
use text::number;

use crate::config::{self, ChosenLayout, ConfigError, RunConfig};
use crate::console::{divert_stderr, print_stderr};
use crate::failure::Failure;
use crate::stage::context::{PlanRequest, RunMode};
use crate::stage::plan::Plan;
use crate::stage::search::SearchScope;
use crate::stage::{self, Stage};
use crate::{folder, hardware, launch, own_folder};

/// A run whose layout is open.
pub(crate) struct OpenRun<'a> {
    pub(crate) stage: &'static Stage,
    pub(crate) config: &'a RunConfig,
    pub(crate) mode: RunMode<'a>,
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
        // Rank 0 shares its error, too, so that no rank waits for it.
        let shared = world.store_broadcast("layout", &serde_json::to_string(&shared)?)?;
        if let Some(chosen) = chosen {
            return chosen;
        }
        let shared: Option<Result<ChosenLayout, String>> = serde_json::from_str(&shared)?;
        shared.context("rank 0 has sent no layout")?.map_err(|problem| anyhow!("rank 0: {problem}"))
    }

    /// Chooses the layout, and says so.
    pub(crate) fn choose(&self) -> anyhow::Result<ChosenLayout> {
        let Self { config, ranks, .. } = *self;
        let saved = self.saved()?;
        if let Some(saved) = &saved
            && launch::mesh(&saved.parallel, 0, ranks).is_ok()
        {
            print_stderr("[parallel] auto: the run keeps the layout in its run.toml");
            // A budget may change between two parts of a run.
            let device_memory = config.gemini.device_memory.or(saved.gemini.device_memory);
            return Ok(ChosenLayout { device_memory, ..saved.layout() });
        }

        let mut open = config.clone();
        open.stay_on_cpu();
        open.parallel = config.parallel.open();
        if let Some(saved) = &saved {
            open.train.micro_batch_size = saved.train.micro_batch_size;
            open.train.gradient_accumulation_steps = saved.train.gradient_accumulation_steps;
            open.train.activation_checkpointing = saved.train.activation_checkpointing;
        }
        let scope = SearchScope { ranks, keeps_micro_batch: saved.is_some() };
        let found = self.plan(&open, scope)?.search.context("a plan with a search has its result")?;
        let Some(fastest) = found.fastest.first() else {
            return Err(Failure::DoesNotFit(format!("[parallel] auto: {}", found.nothing_fits())).into());
        };
        print_stderr(&format!("[parallel] auto: {}", found.chosen(fastest)));
        Ok(fastest.layout())
    }

    /// The configuration of the run that goes on; `None` for a new run.
    fn saved(&self) -> anyhow::Result<Option<RunConfig>> {
        let (out, schema) = (&self.config.out, &self.stage.schema);
        if matches!(self.mode, RunMode::Plan(_)) || !folder::holds_run(out)? {
            return Ok(None);
        }
        if !self.resume {
            return Err(ConfigError::OutHasRun(out.clone()).into());
        }
        own_folder::require_ours(out)?;
        let path = out.join(folder::CONFIGURATION);
        let saved = config::load(&path, &[], schema, &stage::schemas())?.config;
        let [was, now] = [&saved, self.config].map(|config| config.train.batch_size());
        if !schema.has_rollouts && was != now {
            let key = "train.micro_batch_size x train.gradient_accumulation_steps".to_owned();
            let [was, now] = [was, now].map(|rows| rows.to_string());
            return Err(ConfigError::Changed { path, key, was, now }.into());
        }
        Ok(Some(saved))
    }

    /// Searches the layouts of a scope.
    fn plan(&self, open: &RunConfig, scope: SearchScope) -> anyhow::Result<Plan> {
        let request = PlanRequest { search: Some(scope), hardware: Some(self.hardware()?), trace: false };
        // The run prints the same warnings about its rows later.
        let muted = divert_stderr();
        let groups = ProcessGroups::single();
        let plan = self.stage.plan(&request, open, (&groups.into(), &Mesh::new(&[], 0, 1)?));
        let messages: Vec<String> = muted.try_iter().collect();
        drop(muted);
        plan.map_err(|error| {
            for message in &messages {
                print_stderr(message);
            }
            self.name_hardware(error)
        })
    }

    /// Names the key whose hardware lacks something for the plan, such as links for as many ranks.
    fn name_hardware(&self, error: anyhow::Error) -> anyhow::Error {
        let is_named = self.config.parallel.hardware.is_some();
        let key = if is_named { "parallel.hardware" } else { "parallel.auto" };
        match error.downcast::<planner::Error>() {
            Ok(error) => refused(key, error.to_string()),
            Err(error) => error,
        }
    }

    /// The hardware that the command line or the run file names, or this machine.
    fn hardware(&self) -> anyhow::Result<Hardware> {
        if let RunMode::Plan(PlanRequest { hardware: Some(hardware), .. }) = self.mode {
            return Ok(hardware.clone());
        }

        // A plan may be for another machine, and a run may not.
        let is_plan = matches!(self.mode, RunMode::Plan(_));
        if let Some(name) = &self.config.parallel.hardware {
            let hardware = hardware::find(name)?;
            if !is_plan && hardware.device.threads.is_none() != self.is_on_gpu {
                let device = if self.is_on_gpu { "on GPUs" } else { "on the CPU" };
                let problem = format!("{name:?} is other hardware: this run computes {device}");
                return Err(refused("parallel.hardware", problem));
            }
            return Ok(hardware);
        }

        if self.is_on_gpu {
            let problem = "the speeds of a GPU are not measured: name its hardware with [parallel] hardware";
            return Err(refused("parallel.auto", problem.to_owned()));
        }
        hardware::load(self.threads)?.ok_or_else(|| {
            let problem = format!(
                "the speeds of this machine with {} are not known: run `colossal-chat doctor --bench` once, or name \
                 hardware with [parallel] hardware",
                number::counted(self.threads as u64, "thread")
            );
            refused("parallel.auto", problem)
        })
    }
}

fn refused(key: &str, message: String) -> anyhow::Error {
    ConfigError::Value { place: None, key: key.to_owned(), message }.into()
}
