//! Whether a run fits into its memory, and what would have to change to fit.
//!
//! ```text
//!   with a budget      what must be in memory at one moment   <=  [gemini] device_memory
//!   without a budget   predicted peak                         <=  memory of the machine
//! ```
//! A change is named only if the same prediction, made for the changed configuration, fits. Predictions are
//! off by up to a tenth, and the largest micro-batch is an estimate. So a run is refused only if it lacks
//! more than a tenth with micro-batches of mean length. What never leaves memory (weights and states without
//! a budget, or under a placement that does not move them) is known exactly.

use std::fmt;

use gemini::config::memory::ByteSize;
use gemini::placement::PlacementPolicy;
use gemini::{TrainConfig, ZeroStage};
use parallel::Mesh;
use serde::Serialize;

use super::model_memory;
use super::peak_memory;
use super::work::{PlannedRun, Work};
use crate::config::RunConfig;
use crate::launch;

/// How far predictions are off.
const TOLERANCE: f64 = 0.1;
/// Suggested budgets are multiples of this.
const ROUNDING_BYTES: usize = 16 << 20;
/// More processes are not suggested.
const MAX_PROCESSES: usize = 256;

/// What limits a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limit {
    /// `[gemini] device_memory`.
    DeviceMemory,
    /// The memory of the machine.
    Machine,
}

/// The memory that a run lacks.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Shortage {
    /// What limits it.
    pub(crate) limit: Limit,
    /// The bytes that a process needs.
    pub(crate) needed: usize,
    /// The bytes that it has.
    pub(crate) available: usize,
    /// Whether the prediction is far enough above to refuse the run.
    pub(crate) is_certain: bool,
    /// What would fit instead, each in words.
    pub(crate) changes: Vec<String>,
}

/// A configuration with its mesh, and the changes that led to it.
#[derive(Clone)]
struct Variant {
    config: RunConfig,
    mesh: Mesh,
    changes: Vec<String>,
}

impl Shortage {
    /// What a run lacks; `None` if it fits.
    pub(super) fn find(config: &RunConfig, mesh: &Mesh, work: Work<'_>) -> anyhow::Result<Option<Self>> {
        let Some(shortage) = lacks(config, mesh, work)? else { return Ok(None) };
        let changes = changes_that_fit(config, mesh, work)?;
        Ok(Some(Self { changes, ..shortage }))
    }

    /// What is lacking, without what to do.
    pub(crate) fn problem(&self) -> String {
        let [needed, available] = [self.needed, self.available].map(|bytes| bytes >> 20);
        match self.limit {
            Limit::DeviceMemory => format!(
                "the models need {needed} MiB at the same time, and [gemini] device_memory is {available} MiB"
            ),
            Limit::Machine => {
                format!("each process needs {needed} MiB, and this machine has {available} MiB")
            }
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.problem())?;
        match self.changes.as_slice() {
            [] => write!(f, "{NOTHING_FITS}"),
            changes => write!(f, "set {}", changes.join(", or ")),
        }
    }
}

/// The advice where no change is enough.
pub(super) const NOTHING_FITS: &str =
    "no setting makes it fit: use a smaller model, or shorter rows ([data] max_length)";

/// What a run lacks, without changes.
fn lacks(config: &RunConfig, mesh: &Mesh, work: Work<'_>) -> anyhow::Result<Option<Shortage>> {
    let state = model_memory::of_fullest_process(config, mesh, work.models)?;
    lacks_beside(PlannedRun { config, mesh, work, state: &state })
}

/// What a run lacks whose state is known, without changes.
pub(super) fn lacks_beside(run: PlannedRun<'_>) -> anyhow::Result<Option<Shortage>> {
    let PlannedRun { config, work, state, .. } = run;
    let held = run.held_bytes();
    let optimizer: usize = state.iter().map(|model| model.bytes.optimizer).sum();
    let least = work.lengths.at_least();
    let least = PlannedRun { work: Work { lengths: &least, ..work }, ..run };
    let (limit, [needed, least], exact, available) = if let Some(budget) = config.gemini.device_memory {
        let placement = config.gemini.placement;
        let stays = match placement {
            PlacementPolicy::Cuda => held,
            PlacementPolicy::Static => held - optimizer,
            _ => 0,
        };
        let needed = |run: PlannedRun<'_>| Ok::<_, models::Error>(run.chunk_uses(1)?.least_bytes(placement));
        (Limit::DeviceMemory, [needed(run)?, needed(least)?], stays, budget.0 as usize)
    } else if let Some(machine) = work.machine_bytes {
        let peak = |run| Ok::<_, models::Error>(peak_memory::predict(run)?.total);
        (Limit::Machine, [peak(run)?, peak(least)?], held, machine)
    } else {
        return Ok(None);
    };
    let is_certain = exact > available || least as f64 > (1.0 + TOLERANCE) * available as f64;
    let shortage = Shortage { limit, needed, available, is_certain, changes: Vec::new() };
    Ok((needed > available).then_some(shortage))
}

/// The largest budget that leaves room for the program and for a sandbox.
pub(super) fn machine_budget(config: &RunConfig, work: Work<'_>) -> Option<ByteSize> {
    let bytes = ((1.0 - TOLERANCE) * work.machine_bytes? as f64) as usize;
    let beside = peak_memory::in_dtype(work.program_bytes, config) + peak_memory::sandbox_bytes(work.lengths);
    let bytes = bytes.saturating_sub(beside) / ROUNDING_BYTES * ROUNDING_BYTES;
    (bytes > 0).then_some(ByteSize(bytes as u64))
}

/// The changes that make a run fit: of one setting if there are such, otherwise of several.
fn changes_that_fit(config: &RunConfig, mesh: &Mesh, work: Work<'_>) -> anyhow::Result<Vec<String>> {
    let original = Variant { config: config.clone(), mesh: mesh.clone(), changes: Vec::new() };
    let singles = original.fitting(work)?;
    if !singles.is_empty() {
        return Ok(singles);
    }
    let checkpointing = original.with_checkpointing();
    let budget = original.with_machine_budget(work);
    let both = checkpointing.as_ref().and_then(|variant| variant.with_machine_budget(work));
    let smallest =
        |variant: &Option<Variant>| variant.as_ref().and_then(|variant| variant.with_micro_batch(1));
    let (small, small_budget, small_both) = (smallest(&checkpointing), smallest(&budget), smallest(&both));
    for variant in [checkpointing, budget, both, small, small_budget, small_both].into_iter().flatten() {
        let changes = variant.fitting(work)?;
        if !changes.is_empty() {
            return Ok(changes);
        }
    }
    Ok(Vec::new())
}

impl Variant {
    fn fits(&self, work: Work<'_>) -> anyhow::Result<bool> {
        Ok(lacks(&self.config, &self.mesh, work)?.is_none())
    }

    /// This variant if it fits by itself; otherwise those with one change more that fit.
    fn fitting(&self, work: Work<'_>) -> anyhow::Result<Vec<String>> {
        if !self.changes.is_empty() && self.fits(work)? {
            return Ok(vec![self.changes.join(" and ")]);
        }
        let mut found = Vec::new();
        let plain = [
            self.with_enough_memory(work)?,
            self.with_machine_budget(work),
            self.with_placement_auto(),
            self.with_largest_micro_batch(work)?,
            self.with_checkpointing(),
            self.with_processes(work)?,
        ];
        for variant in plain.into_iter().flatten() {
            if variant.fits(work)? {
                found.push(variant.changes.join(" and "));
            }
        }
        Ok(found)
    }

    fn changed(&self, words: String, change: impl FnOnce(&mut RunConfig)) -> Self {
        let mut variant = self.clone();
        change(&mut variant.config);
        variant.changes.push(words);
        variant
    }

    /// The least budget that fits, with what predictions are off.
    fn with_enough_memory(&self, work: Work<'_>) -> anyhow::Result<Option<Self>> {
        let Some(shortage) = lacks(&self.config, &self.mesh, work)? else { return Ok(None) };
        if shortage.limit != Limit::DeviceMemory {
            return Ok(None);
        }
        let bytes = ((1.0 + TOLERANCE) * shortage.needed as f64) as usize;
        Ok(Some(self.with_budget(ByteSize(bytes.next_multiple_of(ROUNDING_BYTES) as u64))))
    }

    fn with_machine_budget(&self, work: Work<'_>) -> Option<Self> {
        machine_budget(&self.config, work)
            .filter(|_| self.config.gemini.device_memory.is_none())
            .map(|size| self.with_budget(size))
    }

    fn with_budget(&self, size: ByteSize) -> Self {
        self.changed(format!("[gemini] device_memory = \"{size}\""), |config| {
            config.gemini.device_memory = Some(size);
        })
    }

    fn with_placement_auto(&self) -> Option<Self> {
        let auto = PlacementPolicy::Auto;
        let change = |config: &mut RunConfig| config.gemini.placement = auto;
        let words = "[gemini] placement = \"auto\"".to_owned();
        (self.config.gemini.placement != auto).then(|| self.changed(words, change))
    }

    fn with_checkpointing(&self) -> Option<Self> {
        let words = "[train] activation_checkpointing = true".to_owned();
        let change = |config: &mut RunConfig| config.train.activation_checkpointing = true;
        (!self.config.train.activation_checkpointing).then(|| self.changed(words, change))
    }

    fn with_micro_batch(&self, size: usize) -> Option<Self> {
        let TrainConfig { micro_batch_size, .. } = self.config.train;
        let words = format!("[train] micro_batch_size = {size}");
        let change = |config: &mut RunConfig| config.train.micro_batch_size = size;
        (size < micro_batch_size).then(|| self.changed(words, change))
    }

    /// The largest micro-batch that fits, by bisection: a smaller one never takes more memory.
    fn with_largest_micro_batch(&self, work: Work<'_>) -> anyhow::Result<Option<Self>> {
        let fits = |size: usize| self.with_micro_batch(size).map_or(Ok(false), |variant| variant.fits(work));
        if !fits(1)? {
            return Ok(None);
        }
        let (mut fitting, mut too_large) = (1, self.config.train.micro_batch_size);
        while too_large - fitting > 1 {
            let middle = usize::midpoint(fitting, too_large);
            if fits(middle)? {
                fitting = middle;
            } else {
                too_large = middle;
            }
        }
        Ok(self.with_micro_batch(fitting))
    }

    /// The least number of processes over which weights and states can be divided: a multiple of those that
    /// there are, by a power of two.
    fn with_processes(&self, work: Work<'_>) -> anyhow::Result<Option<Self>> {
        let mut processes = 2 * self.mesh.world_size();
        while processes <= MAX_PROCESSES {
            let mut words = format!("[parallel] zero = 3 on {processes} processes");
            if self.config.gemini.device_memory.is_none() {
                words.push_str(" of as many machines");
            }
            let mut variant = self.changed(words, |config| {
                config.parallel.zero = ZeroStage::Weights;
                config.parallel.data = None;
            });
            variant.mesh = launch::mesh(&variant.config.parallel, 0, processes)?;
            if variant.fits(work)? {
                return Ok(Some(variant));
            }
            processes *= 2;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use models::config::Config;
    use models::decoder::HeadKind;
    use planner::segment::RowTokens;
    use tch::Kind;

    use super::*;
    use crate::stage::lengths::SequenceLengths;
    use crate::stage::model_memory::PlannedModel;
    use crate::stage::segments::Numbers;

    /// 41.7 M parameters: 16.4 M in the embedding, 25.3 M in 8 blocks.
    const CONFIG: &str = r#"{
      "model_type": "llama", "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1376,
      "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 1024,
      "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true
    }"#;
    /// Weights, gradients and two moments.
    const STATE_MEBIBYTES: usize = (41_689_600 * 16) >> 20;

    fn find(config: &RunConfig, machine_mebibytes: usize) -> Option<Shortage> {
        let model = Config::from_json(CONFIG, "test").unwrap();
        let (head, kind) = (HeadKind::Vocabulary, Kind::Float);
        let models = [PlannedModel::trained("model", &model, head, kind)];
        let lengths = SequenceLengths {
            mean: 512.0,
            deviation: 0.0,
            longest: 512,
            are_mixed: false,
            num_rows: 100,
            per_row: 1,
            row: RowTokens { tokens: 512.0, squares: 512.0 * 512.0, predicted: 512.0 },
            ..SequenceLengths::default()
        };
        let numbers = Numbers::new(config, &models);
        let (program_bytes, machine_bytes) = (170 << 20, Some(machine_mebibytes << 20));
        let work =
            Work { models: &models, numbers: &numbers, lengths: &lengths, program_bytes, machine_bytes };
        let mesh = launch::mesh(&config.parallel, 0, 1).unwrap();
        Shortage::find(config, &mesh, work).unwrap()
    }

    fn with_budget(mebibytes: u64, placement: PlacementPolicy) -> RunConfig {
        let mut config = RunConfig::default();
        config.train.micro_batch_size = 8;
        config.train.gradient_accumulation_steps = 1;
        config.gemini.device_memory = Some(ByteSize(mebibytes << 20));
        config.gemini.placement = placement;
        config
    }

    #[track_caller]
    fn names(shortage: &Shortage, words: &[&str]) {
        for word in words {
            assert!(shortage.changes.iter().any(|change| change.contains(word)), "{word:?}: {shortage:#?}");
        }
    }

    #[test]
    fn a_run_that_fits_lacks_nothing() {
        assert!(find(&RunConfig::default(), 64 << 10).is_none());
        assert!(find(&with_budget(8 << 10, PlacementPolicy::Auto), 1).is_none());
        assert!(find(&with_budget(8 << 10, PlacementPolicy::Cuda), 1).is_none());
    }

    #[test]
    fn a_model_larger_than_the_machine_gets_a_budget_or_more_machines() {
        let shortage = find(&RunConfig::default(), 600).unwrap();
        assert_eq!(
            (shortage.limit, shortage.available, shortage.is_certain),
            (Limit::Machine, 600 << 20, true)
        );
        assert!(shortage.needed >> 20 > STATE_MEBIBYTES + 170, "{shortage:#?}");
        // 600 MiB less a tenth and the 170 MiB of the program, in multiples of 16 MiB.
        names(&shortage, &["[gemini] device_memory = \"368MiB\""]);
        let message = shortage.to_string();
        assert!(message.contains("this machine has 600 MiB: set "), "{message}");
        // Activations are a part of the memory that is missing, and no smaller batch makes room for the
        // states.
        assert!(!message.contains("micro_batch_size"), "{message}");
    }

    #[test]
    fn activations_over_the_budget_are_lowered() {
        let shortage = find(&with_budget(1000, PlacementPolicy::Auto), 1).unwrap();
        assert!(shortage.is_certain && shortage.limit == Limit::DeviceMemory, "{shortage:#?}");
        names(&shortage, &["device_memory", "micro_batch_size", "activation_checkpointing"]);
        // The least budget is enough, and less than nine tenths of it is not.
        let enough = ((shortage.needed as f64 * 1.1) as usize).next_multiple_of(16 << 20) >> 20;
        names(&shortage, &[&format!("device_memory = \"{}\"", ByteSize((enough as u64) << 20))]);
        assert!(find(&with_budget(enough as u64, PlacementPolicy::Auto), 1).is_none());
        assert!(find(&with_budget(enough as u64 * 8 / 10, PlacementPolicy::Auto), 1).is_some());
    }

    #[test]
    fn a_tenth_too_much_is_told_and_not_refused() {
        let config = with_budget(100, PlacementPolicy::Auto);
        let needed = find(&config, 1).unwrap().needed as u64 >> 20;
        assert!(!find(&with_budget(needed * 95 / 100, PlacementPolicy::Auto), 1).unwrap().is_certain);
        assert!(find(&with_budget(needed * 85 / 100, PlacementPolicy::Auto), 1).unwrap().is_certain);
    }

    #[test]
    fn states_that_a_placement_does_not_move_are_refused_exactly() {
        // With short activations, everything but 5 MiB fits.
        let mut config = with_budget(STATE_MEBIBYTES as u64 - 5, PlacementPolicy::Cuda);
        config.train.micro_batch_size = 1;
        config.train.activation_checkpointing = true;
        let shortage = find(&config, 1).unwrap();
        assert!(shortage.is_certain, "{shortage:#?}");
        names(&shortage, &["placement = \"auto\""]);
    }

    #[test]
    fn several_changes_are_joined_where_one_is_not_enough() {
        let mut config = with_budget(1, PlacementPolicy::Auto);
        // No room for the head's gradients and weights even with the smallest batch: only more memory helps.
        let shortage = find(&config, 1).unwrap();
        assert_eq!(shortage.changes.len(), 1, "{shortage:#?}");
        // A machine with too little memory for the activations as well.
        config.gemini.device_memory = None;
        config.train.micro_batch_size = 64;
        let shortage = find(&config, 800).unwrap();
        assert!(shortage.changes.iter().all(|change| change.contains(" and ")), "{shortage:#?}");
        assert!(shortage.changes.iter().any(|change| change.contains("device_memory")), "{shortage:#?}");
        assert!(find(&config, 100).unwrap().to_string().ends_with(NOTHING_FITS));
    }
}
