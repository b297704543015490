//! `plan --search`: the layouts of a number of ranks in which a step of a stage is fastest.
//!
//! What is chosen: the size of each axis of the mesh, the mode of sequence parallelism, the stage of ZeRO,
//! the schedule of the pipeline, activation checkpointing, the micro-batch, and a budget where nothing fits
//! without one. The rows of a step stay as they are. Every layout is one that `plan` predicts to fit into the
//! memory of a rank, and its seconds are those that `plan` predicts of it. [`planner::search`] says how the
//! best are found.

mod found;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use gemini::config::memory::ByteSize;
use gemini::{StateBytes, ZeroStage};
use models::decoder::build;
use parallel::pipeline::ScheduleKind;
use parallel::{Axis, Mesh, ProcessGroups};
use planner::layout::SequenceMode as PlannedSequence;
use planner::search::{Candidate, Space};
use planner::{Hardware, search};
use text::number;

pub(crate) use found::{FastLayout, Found};

use super::fit;
use super::model_memory::{ModelBytes, PlannedModel};
use super::model_parallel::model_parallel;
use super::peak_memory;
use super::segments;
use super::tasks;
use super::work::{PlannedRun, Work};
use crate::config::section::SequenceMode;
use crate::config::{Difference, RunConfig, StageSchema, differences};
use crate::launch;

/// How many layouts are told.
const KEPT: usize = 5;
/// The schedules of a pipeline, with the stages of a rank where these are open.
const SCHEDULES: [(ScheduleKind, usize); 6] = [
    (ScheduleKind::OneForwardOneBackward, 1),
    (ScheduleKind::GPipe, 1),
    (ScheduleKind::Interleaved, 2),
    (ScheduleKind::Interleaved, 4),
    (ScheduleKind::ZeroBubbleH1, 1),
    (ScheduleKind::ZeroBubbleV, 2),
];
/// Budgets are multiples of this.
const ROUNDING_BYTES: usize = 16 << 20;

/// The layouts among which the fastest are searched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SearchScope {
    /// The number of ranks.
    pub(crate) ranks: usize,
    /// Whether micro-batch and activation checkpointing stay as the run file has them.
    pub(crate) keeps_micro_batch: bool,
}

/// The search for the layouts of a stage.
struct Search<'a> {
    stage: &'a StageSchema,
    config: &'a RunConfig,
    work: Work<'a>,
    hardware: &'a Hardware,
    scope: SearchScope,
    /// Whether the models can be divided so, by the sizes of the axes that divide them.
    divides: RefCell<HashMap<Division, bool>>,
}

/// What divides a model: everything but the data axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Division {
    pipeline: usize,
    schedule: (ScheduleKind, usize),
    expert: usize,
    sequence: (PlannedSequence, usize),
    tensor: usize,
}

/// Finds the fastest layouts of a scope on the hardware.
pub(super) fn fastest(
    (stage, config): (&StageSchema, &RunConfig),
    work: Work<'_>,
    hardware: &Hardware,
    scope: SearchScope,
) -> anyhow::Result<Found> {
    let search = Search { stage, config, work, hardware, scope, divides: RefCell::default() };
    let mut candidates = search.space().candidates();
    candidates.retain(|candidate| search.is_possible(candidate));
    let layouts = candidates.len();
    let bound = |candidate: &Candidate| search.least_seconds(candidate);
    let exact = |candidate: &Candidate, slowest: f64| search.predict(candidate, slowest);
    let found = search::best(candidates, KEPT, bound, exact)?;
    let mut fastest = Vec::new();
    for (_, layout) in found {
        fastest.push(FastLayout { settings: search.settings(&layout.config)?, ..layout });
    }
    let (device, ranks) = (device_name(hardware), scope.ranks);
    let advice = search.advice();
    Ok(Found { device, ranks, layouts, available: work.machine_bytes, fastest, advice })
}

impl Search<'_> {
    /// What to do if nothing fits.
    fn advice(&self) -> String {
        let mut advice =
            vec!["take more ranks", "shorter rows ([data] max_length)", "adapters ([model.lora])"];
        if self.scope.keeps_micro_batch {
            advice.insert(0, "start a new run, whose micro-batch is open");
        }
        let tier = self.hardware.outer_tier().err();
        let tier = tier.map(|problem| format!(" ({problem})")).unwrap_or_default();
        let last = advice.pop().unwrap_or_default();
        format!("{} or {last}{tier}", advice.join(", "))
    }

    fn space(&self) -> Space {
        let architectures = || self.work.models.iter().map(|model| model.config.architecture());
        let layers = architectures().map(|model| model.num_layers).max().unwrap_or(1);
        let heads = architectures().map(|model| model.num_heads).min().unwrap_or(1);
        let experts =
            architectures().filter_map(|model| model.experts.as_ref()).map(|experts| experts.num_experts);
        // A teacher with experts sees all rows of its rank.
        let is_teacher = |model: &PlannedModel<'_>| model.role == "teacher";
        let teachers = self.work.models.iter().filter(|model| is_teacher(model));
        let shares_experts = teachers.clone().all(|model| model.config.architecture().experts.is_none());
        let most_experts = if shares_experts { experts.max().unwrap_or(1) } else { 1 };
        // Tasks are asked during the run on whole models only.
        let asks_tasks = tasks::has_tasks(self.config) && self.stage.reads("eval.tasks");
        let ranks = self.scope.ranks;
        let factors = |most: usize| (1..=most.min(ranks)).filter(move |&size| ranks.is_multiple_of(size));
        // Predictions divide a model evenly.
        let divides_heads =
            |&size: &usize| architectures().all(|model| (model.num_heads as usize).is_multiple_of(size));

        let rows = peak_memory::step_rows(self.config, self.work.lengths);
        Space {
            ranks,
            tensor: factors(heads as usize).filter(divides_heads).collect(),
            // The embedding and the head are segments, too.
            most_stages: if asks_tasks { 1 } else { layers as usize + 2 },
            expert: factors(most_experts as usize).collect(),
            sequence: vec![
                PlannedSequence::None,
                PlannedSequence::Megatron,
                PlannedSequence::Ulysses,
                PlannedSequence::Ring,
            ],
            most_sequence_ranks: self.work.lengths.longest.max(1),
            zero: if asks_tasks { vec![0, 1, 2] } else { vec![0, 1, 2, 3] },
            schedules: SCHEDULES.to_vec(),
            recomputes: self.recomputes(),
            rows,
            micro_batch_sizes: self.micro_batch_sizes(rows),
        }
    }

    /// Whether activations are computed again, as far as it is open.
    fn recomputes(&self) -> Vec<bool> {
        if self.scope.keeps_micro_batch {
            return vec![self.config.train.activation_checkpointing];
        }
        vec![false, true]
    }

    /// Powers of two, and the one of the run file. In a supervised stage they divide the rows of a step.
    fn micro_batch_sizes(&self, rows: usize) -> Vec<usize> {
        let own = self.config.train.micro_batch_size;
        if self.scope.keeps_micro_batch {
            return vec![own];
        }
        let powers = std::iter::successors(Some(1), |size| Some(2 * size)).take_while(|&size| size <= rows);
        let mut sizes: Vec<usize> = powers.chain([own]).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes.retain(|&size| self.stage.has_rollouts || rows.is_multiple_of(size));
        sizes
    }

    /// Whether the models can be divided so.
    fn is_possible(&self, candidate: &Candidate) -> bool {
        let layout = &candidate.layout;
        let division = Division {
            pipeline: layout.size(Axis::Pipeline),
            schedule: (layout.schedule, layout.chunks),
            expert: layout.size(Axis::Expert),
            sequence: (layout.sequence, layout.size(Axis::Sequence)),
            tensor: layout.size(Axis::Tensor),
        };
        if let Some(&known) = self.divides.borrow().get(&division) {
            return known;
        }
        let mut config = self.configuration(candidate);
        config.parallel.data = Some(1);
        let ranks = layout.mesh.world_size() / layout.size(Axis::Data);
        let is_possible = launch::mesh(&config.parallel, 0, ranks).is_ok_and(|mesh| {
            // The first and the last rank have the first and the last stage, heads and experts.
            let splits = [0, ranks - 1]
                .map(|rank| model_parallel(&config, &ProcessGroups::fake(&mesh.for_rank(rank))));
            let models = || self.work.models.iter().map(|model| model.config);
            splits.iter().all(|split| models().all(|model| build::check_model_parallel(model, split).is_ok()))
        });
        self.divides.borrow_mut().insert(division, is_possible);
        is_possible
    }

    /// The run file with the layout of a candidate.
    fn configuration(&self, candidate: &Candidate) -> RunConfig {
        let Candidate { layout, micro_batch_size } = candidate;
        let mut config = self.config.clone();
        let rows = config.train.batch_size();

        let parallel = &mut config.parallel;
        parallel.data = Some(layout.size(Axis::Data));
        parallel.pipeline.size = layout.size(Axis::Pipeline);
        parallel.pipeline.schedule = layout.schedule;
        parallel.pipeline.chunks = layout.chunks;
        parallel.expert.size = layout.size(Axis::Expert);
        parallel.tensor.size = layout.size(Axis::Tensor);
        parallel.sequence.size = layout.size(Axis::Sequence);
        parallel.sequence.mode = match layout.sequence {
            PlannedSequence::None => SequenceMode::None,
            PlannedSequence::Megatron => SequenceMode::Megatron,
            PlannedSequence::Ulysses => SequenceMode::Ulysses,
            PlannedSequence::Ring => SequenceMode::Ring,
        };
        parallel.zero = layout.zero.try_into().expect("the space has the stages of ZeRO");

        if self.needs_budget(&config) {
            let bytes = self.work.machine_bytes.unwrap_or(0).saturating_sub(self.work.program_bytes);
            config.gemini.device_memory = Some(ByteSize((bytes / ROUNDING_BYTES * ROUNDING_BYTES) as u64));
        }
        config.train.micro_batch_size = *micro_batch_size;
        if !self.stage.has_rollouts {
            config.train.gradient_accumulation_steps = rows / micro_batch_size;
        }
        config.train.activation_checkpointing = layout.recomputes;
        config
    }

    /// On a GPU, ZeRO divides the state of models under a budget alone.
    fn needs_budget(&self, config: &RunConfig) -> bool {
        let is_gpu = self.hardware.device.threads.is_none();
        is_gpu && config.parallel.zero > ZeroStage::None && self.config.gemini.device_memory.is_none()
    }

    /// Never more seconds than a step of the candidate is predicted to take.
    fn least_seconds(&self, candidate: &Candidate) -> anyhow::Result<f64> {
        let config = self.configuration(candidate);
        let mesh = &candidate.layout.mesh;
        let state = of_fullest_rank(&config, mesh, self.work)?;
        PlannedRun { config: &config, mesh, work: self.work, state: &state }.least_seconds(self.hardware)
    }

    /// What is predicted of a candidate with its seconds; `None` if it does not fit, or if it surely takes
    /// longer than `slowest` seconds. A layout that fits only with a budget gets one.
    fn predict(&self, candidate: &Candidate, slowest: f64) -> anyhow::Result<Option<(f64, FastLayout)>> {
        let config = self.configuration(candidate);
        let mesh = &candidate.layout.mesh;
        let state = of_fullest_rank(&config, mesh, self.work)?;
        let run = PlannedRun { config: &config, mesh, work: self.work, state: &state };
        if self.fits(run)? {
            return self.predicted(run).map(Some);
        }
        let Some(config) = self.offloaded(run, slowest)? else { return Ok(None) };
        let run = PlannedRun { config: &config, ..run };
        if fit::lacks_beside(run)?.is_some() {
            return Ok(None);
        }
        self.predicted(run).map(Some)
    }

    /// Whether a layout fits without moving chunks, or with those of the budget of the run file.
    fn fits(&self, run: PlannedRun<'_>) -> anyhow::Result<bool> {
        let Work { program_bytes, machine_bytes, .. } = self.work;
        let held = run.held_bytes();
        // Most layouts of a large model do not hold its state, which is known at once.
        let has_budget = self.config.gemini.device_memory.is_some();
        if !has_budget && machine_bytes.is_some_and(|available| held + program_bytes > available) {
            return Ok(false);
        }
        match run.config.gemini.device_memory.filter(|_| self.needs_budget(run.config)) {
            // Nothing is to leave the device for a budget that only ZeRO asks for.
            Some(budget) => {
                let peak = peak_memory::predict(run)?;
                let fits = held + peak.activations.max(peak.rollout) <= budget.0 as usize;
                Ok(fits && !run.moves_chunks()?)
            }
            None => Ok(fit::lacks_beside(run)?.is_none()),
        }
    }

    /// The same with the largest budget, if the run file has none, the hardware holds what leaves the device,
    /// and it may take at most `slowest` seconds.
    fn offloaded(&self, run: PlannedRun<'_>, slowest: f64) -> anyhow::Result<Option<RunConfig>> {
        let budget = fit::machine_budget(run.config, self.work);
        let budget = budget.filter(|_| self.config.gemini.device_memory.is_none());
        let (Some(budget), Ok(tier)) = (budget, self.hardware.outer_tier()) else { return Ok(None) };
        let outside = run.held_bytes().saturating_sub(budget.0 as usize);
        // A step reads all weights and all of the state of the optimizer.
        let gradients: usize = run.state.iter().map(|model| model.bytes.gradients).sum();
        let least_seconds = outside.saturating_sub(gradients) as f64 / tier.read;
        if least_seconds > slowest {
            return Ok(None);
        }
        // Tensors push further chunks out.
        let peak = peak_memory::predict(run)?;
        let outside = (outside + peak.activations.max(peak.rollout)) as u64;
        if tier.memory.is_some_and(|memory| outside > memory) {
            return Ok(None);
        }
        let mut config = run.config.clone();
        config.gemini.device_memory = Some(budget);
        Ok(Some(config))
    }

    fn predicted(&self, run: PlannedRun<'_>) -> anyhow::Result<(f64, FastLayout)> {
        let step_time = run.step_time(self.hardware)?;
        let found = FastLayout {
            mesh: run.mesh.clone(),
            config: run.config.clone(),
            settings: BTreeMap::new(),
            step_time,
            peak_memory: peak_memory::predict(run)?,
            memory: run.state.to_vec(),
        };
        Ok((step_time.seconds, found))
    }

    /// The keys of the run file that the layout changes.
    fn settings(&self, chosen: &RunConfig) -> anyhow::Result<BTreeMap<String, String>> {
        let mut config = chosen.clone();
        // What the number of ranks leaves for it.
        config.parallel.data = self.config.parallel.data;
        let [was, now] = [self.config.to_toml(self.stage)?, config.to_toml(self.stage)?];
        let changed = differences(&was, &now, &[])?.into_iter();
        Ok(changed.map(|Difference { key, now, .. }| (key, now.trim_matches('"').to_owned())).collect())
    }
}

/// The weights, gradients and optimizer state of each model in the rank that needs most, from the numbers of
/// the models alone: what is rounded up where a size does not divide is not counted.
fn of_fullest_rank(
    config: &RunConfig,
    mesh: &Mesh,
    work: Work<'_>,
) -> Result<Vec<ModelBytes>, models::Error> {
    let layout = segments::layout(config, mesh);
    let numbers = work.numbers.of(&layout)?;
    let states: Vec<Vec<planner::state::StateBytes>> =
        numbers.iter().map(|model| planner::state::of_ranks(model, &layout)).collect();
    let total = |rank: usize| states.iter().map(|ranks| ranks[rank].total()).sum::<f64>();
    let fullest = (0..mesh.size(Axis::Pipeline)).max_by(|&left, &right| total(left).total_cmp(&total(right)));
    let fullest = fullest.expect("a pipeline has a rank");
    let bytes = work.models.iter().zip(&states).map(|(model, ranks)| {
        let state = ranks[fullest];
        let [weights, gradients, optimizer] =
            [state.weights, state.gradients, state.optimizer].map(|bytes| bytes as usize);
        ModelBytes { role: model.role, bytes: StateBytes { weights, gradients, optimizer } }
    });
    Ok(bytes.collect())
}

fn device_name(hardware: &Hardware) -> String {
    let name = &hardware.device.name;
    let threads = hardware.device.threads;
    threads.map_or_else(
        || name.clone(),
        |threads| format!("{name}, {}", number::counted(threads as u64, "thread")),
    )
}

#[cfg(test)]
mod tests {
    use models::config::Config;
    use models::decoder::HeadKind;
    use planner::segment::RowTokens;
    use tch::Kind;

    use super::*;
    use crate::stage::lengths::SequenceLengths;
    use crate::stage::model_memory::of_fullest_process;
    use crate::stage::segments::Numbers;
    use crate::stage::sft;

    /// Sizes that four divides; four layers of the width `hidden_size`, a multiple of 64.
    fn model(family: &str, hidden_size: usize) -> Config {
        let intermediate_size = 2 * hidden_size;
        let text = format!(
            r#"{{
              "model_type": "{family}", "vocab_size": 512, "max_position_embeddings": 64, "hidden_size": {hidden_size},
              "intermediate_size": {intermediate_size}, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
              "n_embd": {hidden_size}, "n_layer": 4, "n_head": 4, "n_positions": 64, "ffn_dim": {intermediate_size}, "num_local_experts": 4,
              "num_experts_per_tok": 2
            }}"#
        );
        Config::from_json(&text, "test").unwrap()
    }

    /// Calls `check` with a search over the layouts of `ranks` ranks for a step of 8 rows.
    fn with_search(family: &str, kind: Kind, ranks: usize, check: impl FnOnce(&Search<'_>)) {
        // A little more than what the smallest layouts need.
        with_search_of(&model(family, 64), kind, ranks, 3 << 20, check);
    }

    /// The same of a model on ranks with so many bytes.
    fn with_search_of(
        model: &Config,
        kind: Kind,
        ranks: usize,
        machine_bytes: usize,
        check: impl FnOnce(&Search<'_>),
    ) {
        let models = [PlannedModel::trained("model", model, HeadKind::Vocabulary, kind)];
        let mut config = RunConfig::default();
        config.train.micro_batch_size = 2;
        config.train.gradient_accumulation_steps = 4;
        let row = RowTokens { tokens: 32.0, squares: 1024.0, predicted: 32.0 };
        let lengths = SequenceLengths {
            mean: 32.0,
            longest: 32,
            num_rows: 64,
            per_row: 1,
            row,
            ..SequenceLengths::default()
        };
        let numbers = Numbers::new(&config, &models);
        let (program_bytes, machine_bytes) = (0, Some(machine_bytes));
        let work =
            Work { models: &models, numbers: &numbers, lengths: &lengths, program_bytes, machine_bytes };
        let hardware = planner::hardware::round_numbers();
        let (stage, divides) = (&sft::STAGE.schema, RefCell::default());
        let scope = SearchScope { ranks, keeps_micro_batch: false };
        check(&Search { stage, config: &config, work, hardware: &hardware, scope, divides });
    }

    #[test]
    fn the_numbers_of_a_model_have_the_state_that_its_tensors_have() {
        for (family, kind) in [
            ("llama", Kind::Float),
            ("gpt2", Kind::Float),
            ("mixtral", Kind::BFloat16),
            ("opt", Kind::BFloat16),
        ] {
            with_search(family, kind, 4, |search| {
                let mut candidates = search.space().candidates();
                candidates.retain(|candidate| search.is_possible(candidate));
                let mut meshes = 0;
                for candidate in candidates.iter().filter(|candidate| candidate.micro_batch_size == 1) {
                    let config = search.configuration(candidate);
                    let mesh = &candidate.layout.mesh;
                    let models = search.work.models;
                    let [planned, counted] = [
                        of_fullest_rank(&config, mesh, search.work).unwrap(),
                        of_fullest_process(&config, mesh, models).unwrap(),
                    ]
                    .map(|state| state[0].bytes.total() as f64);
                    let off = (planned / counted - 1.0).abs();
                    // Numbers count biases whole, of which ranks divide some.
                    assert!(off < 0.03, "{family} {mesh} {:?}: {planned}, {counted}", candidate.layout);
                    meshes += 1;
                }
                assert!(meshes > 50, "{meshes}");
            });
        }
    }

    #[test]
    fn the_best_are_those_of_all_layouts_and_no_bound_is_above_its_seconds() {
        with_search("llama", Kind::Float, 4, |search| {
            check_exhaustively(search, &|_| true);
            let (fit, candidates) = (all_layouts(search).len(), search.space().candidates().len());
            assert!(fit < candidates, "{fit} of {candidates}");
        });
    }

    #[test]
    fn layouts_that_do_not_fit_get_a_budget_whose_chunks_take_time() {
        // 2.5 M weights have 40 MB of state, which two ranks divide in a part of the layouts only.
        let model = model("llama", 256);
        with_search_of(&model, Kind::Float, 2, 36 << 20, |search| {
            let has_budget = |layout: &FastLayout| layout.config.gemini.device_memory.is_some();
            check_exhaustively(search, &has_budget);
            check_exhaustively(search, &|layout| !has_budget(layout));
            // What moves takes longer than a step in memory.
            let (mut moved, mut kept) = (f64::INFINITY, f64::INFINITY);
            for (_, layout) in all_layouts(search) {
                let least = if has_budget(&layout) { &mut moved } else { &mut kept };
                *least = least.min(layout.step_time.seconds);
                assert_eq!(has_budget(&layout), layout.step_time.offload > 0.0, "{:?}", layout.step_time);
            }
            assert!(moved > kept, "{moved} {kept}");
        });
        // A GPU whose host is not known has no such layouts.
        with_search_of(&model, Kind::Float, 2, 36 << 20, |search| {
            let mut hardware = search.hardware.clone();
            hardware.device.threads = None;
            let Search { stage, config, work, scope, .. } = *search;
            let search =
                Search { stage, config, work, hardware: &hardware, scope, divides: RefCell::default() };
            let is_offloaded = |(_, layout): &(f64, FastLayout)| layout.step_time.offload > 0.0;
            assert!(!all_layouts(&search).iter().any(is_offloaded));
            assert!(search.advice().contains("no `[host]`"), "{}", search.advice());
        });
    }

    /// Every layout that fits, with its seconds.
    fn all_layouts(search: &Search<'_>) -> Vec<(f64, FastLayout)> {
        let candidates = search.space().candidates().into_iter();
        let possible = candidates.filter(|candidate| search.is_possible(candidate));
        possible.filter_map(|candidate| search.predict(&candidate, f64::INFINITY).unwrap()).collect()
    }

    /// Checks that a search finds what the comparison of all layouts finds, some of which are as `is_there`
    /// says, and that no bound is above the seconds of its layout.
    fn check_exhaustively(search: &Search<'_>, is_there: &dyn Fn(&FastLayout) -> bool) {
        let mut candidates = search.space().candidates();
        candidates.retain(|candidate| search.is_possible(candidate));
        for candidate in &candidates {
            let Some((seconds, _)) = search.predict(candidate, f64::INFINITY).unwrap() else { continue };
            let least = search.least_seconds(candidate).unwrap();
            assert!(least <= seconds * (1.0 + 1e-9), "{candidate:?}: {least} above {seconds}");
        }
        let all = all_layouts(search);
        assert!(all.len() > 20, "{} of {}", all.len(), candidates.len());
        assert!(all.iter().any(|(_, layout)| is_there(layout)));

        let mut wanted: Vec<f64> = all.iter().map(|(seconds, _)| *seconds).collect();
        wanted.sort_by(f64::total_cmp);
        let Search { stage, config, work, hardware, scope, .. } = *search;
        let found = fastest((stage, config), work, hardware, scope).unwrap();
        let seconds: Vec<f64> = found.fastest.iter().map(|layout| layout.step_time.seconds).collect();
        assert_eq!(seconds, wanted[..KEPT]);
    }
}
