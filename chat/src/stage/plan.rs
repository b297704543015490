//! The plan of a stage, which is printed before the stage starts.

use std::path::Path;

use parallel::{Axis, Mesh};
use planner::trace::Trace;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use text::number;

use super::fit::{NOTHING_FITS, Shortage};
use super::model_memory::{AdapterCounts, ModelBytes, ParameterCounts};
use super::peak_memory::PeakMemory;
use super::quantities::{in_seconds, mebibytes};
use super::rows::EncodedRows;
use super::search::Found;
use super::step_time::{DtypeTime, PlannedExchange, StepTime};
use crate::config::{RunConfig, StageSchema, Units};
use crate::console::{print, print_stderr};
use crate::own_file;

/// The memory of all models of a stage in the process that needs most, and the time of its steps.
#[derive(Clone, Debug)]
pub(crate) struct StagePlan {
    /// The numbers of parameters of each model, by role.
    pub(crate) parameters: Vec<(&'static str, ParameterCounts)>,
    /// Weights, gradients and optimizer state.
    pub(crate) models: Vec<ModelBytes>,
    /// The peak of the process; `None` for models on a GPU, for which there is no prediction.
    pub(crate) peak: Option<PeakMemory>,
    /// The time of a step; `None` if it is not known.
    pub(crate) step_time: Option<StepTime>,
    /// Why it cannot be told for this machine, although its speeds are known.
    pub(crate) time_problem: Option<String>,
    /// The time of a step with weights in the other dtype; `None` if it is not known.
    pub(crate) other_dtype: Option<DtypeTime>,
    /// The memory that the run lacks, if it lacks any.
    pub(crate) shortage: Option<Shortage>,
    /// The fastest layouts, if they are wanted.
    pub(crate) search: Option<Found>,
    /// A simulated step, if it is wanted.
    pub(crate) trace: Option<Trace>,
    /// What each rank of the pipeline sends in an optimizer step.
    pub(crate) communication: Vec<Vec<PlannedExchange>>,
}

impl StagePlan {
    /// The plan of models of which nothing is predicted, such as those on a GPU.
    pub(crate) fn of(parameters: Vec<(&'static str, ParameterCounts)>, models: Vec<ModelBytes>) -> Self {
        Self {
            parameters,
            models,
            peak: None,
            step_time: None,
            time_problem: None,
            other_dtype: None,
            shortage: None,
            search: None,
            trace: None,
            communication: Vec::new(),
        }
    }

    /// The bytes of weights, gradients and optimizer state of all models.
    pub(crate) fn model_bytes(&self) -> usize {
        self.models.iter().map(|model| model.bytes.total()).sum()
    }
}

/// The size and the layout of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Plan {
    pub(crate) stage: &'static str,
    /// The words for what is counted below.
    #[serde(skip)]
    pub(crate) units: Units,
    /// Number of parameters of each model, by role.
    #[serde(serialize_with = "as_object")]
    pub(crate) parameters: Vec<(&'static str, usize)>,
    /// Number of parameters of each model that are trained, by role.
    #[serde(serialize_with = "as_object")]
    pub(crate) trained_parameters: Vec<(&'static str, usize)>,
    /// The adapters of each model that trains some, by role.
    #[serde(serialize_with = "as_object", skip_serializing_if = "Vec::is_empty")]
    pub(crate) adapters: Vec<(&'static str, AdapterCounts)>,
    /// Number of training rows.
    pub(crate) rows: usize,
    /// Number of rows that were read but left out, for example because they were too long.
    pub(crate) dropped: usize,
    /// Number of tokens of all rows.
    pub(crate) tokens: usize,
    /// Number of optimizer steps; for PPO, of iterations.
    pub(crate) steps: u64,
    /// Number of rows per optimizer step; for PPO, of replies per iteration.
    pub(crate) rows_per_step: usize,
    /// The mesh of the ranks.
    #[serde(serialize_with = "with_places")]
    pub(crate) mesh: Mesh,
    /// Peak memory of each process up to the end of model loading.
    pub(crate) loaded_bytes: Vec<u64>,
    /// Bytes of weights, gradients and optimizer state of all models in the process that needs most, without
    /// activations.
    pub(crate) model_bytes: usize,
    /// The same for each model.
    pub(crate) memory: Vec<ModelBytes>,
    /// The predicted peak of the process that needs most; `None` for models on a GPU.
    pub(crate) peak_memory: Option<PeakMemory>,
    /// The predicted time of a step; `None` if it is not known.
    pub(crate) step_time: Option<StepTime>,
    #[serde(skip)]
    time_problem: Option<String>,
    /// The predicted time of a step with weights in the other dtype; `None` if it is not known.
    pub(crate) other_dtype: Option<DtypeTime>,
    /// The memory that the run lacks, and what would have to change to fit.
    pub(crate) shortage: Option<Shortage>,
    /// The fastest layouts, if they are wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) search: Option<Found>,
    /// A simulated step, if it is wanted.
    #[serde(skip)]
    pub(crate) trace: Option<Trace>,
    /// What each rank of the pipeline sends in an optimizer step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    communication: Vec<Vec<PlannedExchange>>,
}

impl Plan {
    /// Creates the plan of a stage that trains one model on `rows`, which are `num_examples` examples per
    /// epoch.
    pub(super) fn one_model<T>(
        stage: &StageSchema,
        config: &RunConfig,
        mesh: &Mesh,
        models: StagePlan,
        rows: &EncodedRows<T>,
        num_examples: usize,
    ) -> Self {
        let steps = (config.train.total_steps(num_examples), config.train.batch_size());
        Self::new(stage, mesh, models, rows, steps)
    }

    /// Creates the plan of a stage from its number of steps and the rows of a step.
    pub(super) fn new<T>(
        stage: &StageSchema,
        mesh: &Mesh,
        models: StagePlan,
        rows: &EncodedRows<T>,
        (steps, rows_per_step): (u64, usize),
    ) -> Self {
        Self {
            stage: stage.name,
            units: stage.units,
            rows: rows.rows.len(),
            dropped: rows.dropped,
            tokens: rows.tokens,
            steps,
            rows_per_step,
            mesh: mesh.clone(),
            loaded_bytes: Vec::new(),

            model_bytes: models.model_bytes(),
            parameters: models.parameters.iter().map(|&(role, count)| (role, count.all)).collect(),
            trained_parameters: models
                .parameters
                .iter()
                .map(|&(role, count)| (role, count.trained))
                .collect(),
            adapters: models
                .parameters
                .iter()
                .filter_map(|&(role, count)| Some((role, count.adapters?)))
                .collect(),
            peak_memory: models.peak,
            step_time: models.step_time,
            time_problem: models.time_problem,
            other_dtype: models.other_dtype,
            shortage: models.shortage,
            search: models.search,
            trace: models.trace,
            communication: models.communication,
            memory: models.models,
        }
    }

    /// Prints the plan to stderr.
    pub(crate) fn show(&self) {
        self.lines().iter().for_each(|line| print_stderr(line));
    }

    /// Prints the plan to stdout: as lines, or as a JSON object.
    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        let text = if json { serde_json::to_string_pretty(self)? } else { self.lines().join("\n") };
        Ok(print(&text)?)
    }

    /// Formats the plan as lines of text.
    fn lines(&self) -> Vec<String> {
        let models: Vec<String> = self
            .parameters
            .iter()
            .zip(&self.trained_parameters)
            .map(|(&(role, all), &(_, trained))| {
                let adapters = self.adapters.iter().find(|(of, _)| *of == role).map(|(_, adapters)| adapters);
                parameters_text(role, [all, trained], adapters)
            })
            .collect();
        let Units { row, step, sample } = self.units;
        let dropped = if self.dropped > 0 { format!(" ({} left out)", self.dropped) } else { String::new() };

        let mut lines = vec![format!(
            "{}: {} parameters; {}{dropped}, {} tokens; {} of {}; {:.0} MiB of weights, gradients and optimizer state{}",
            self.stage,
            models.join(", "),
            number::counted(self.rows as u64, row),
            number::count(self.tokens as f64),
            number::counted(self.steps, step),
            number::counted(self.rows_per_step as u64, sample),
            self.model_bytes as f64 / f64::from(1 << 20),
            if self.mesh.world_size() > 1 { " in each process" } else { "" },
        )];

        if let Some(search) = &self.search {
            lines.extend(search.lines());
            return lines;
        }

        lines.extend(self.memory.iter().map(model_line));
        lines.extend(self.peak_memory.as_ref().map(peak_line));
        if self.peak_memory.is_some() {
            lines.push(format!(
                "  {} time: {}",
                self.units.step,
                match &self.step_time {
                    Some(time) => time_text(time, self.other_dtype),
                    None => self.unknown_time(),
                }
            ));
        }
        lines.extend(self.shortage.iter().flat_map(shortage_lines));
        if self.loaded_bytes.len() > 1 {
            lines.push(format!("peak memory of the processes until here: {}", mebibytes(&self.loaded_bytes)));
        }
        if self.mesh.world_size() > 1 {
            lines.push(format!("{} processes: {}", self.mesh.world_size(), self.mesh));
            for rank in 0..self.mesh.world_size() {
                let seen = self.mesh.for_rank(rank);
                let place =
                    seen.axes_in_use().map(|axis| format!("{} {}", axis.name(), seen.coordinate(axis)));
                lines.push(format!("  rank {rank}: {}", place.collect::<Vec<_>>().join(", ")));
            }
        }
        lines
    }

    fn unknown_time(&self) -> String {
        let problem = self.time_problem.as_deref();
        format!("not known: {}", problem.unwrap_or("run `colossal-chat doctor --bench` once"))
    }

    /// Writes `plan.json`.
    pub(crate) fn write(&self, out: &Path) -> anyhow::Result<()> {
        Ok(own_file::write(&out.join("plan.json"), serde_json::to_string_pretty(self)?.as_bytes())?)
    }
}

/// Says how many parameters a model has, and which part of them its adapters train.
fn parameters_text(role: &str, [all, trained]: [usize; 2], adapters: Option<&AdapterCounts>) -> String {
    let count = |parameters: usize| number::count(parameters as f64);
    if trained == 0 || trained == all {
        return format!("{role} {}", count(all));
    }
    let percent = 100.0 * trained as f64 / all as f64;
    let by = adapters.map_or_else(String::new, |adapters| format!(": {}", adapters_text(adapters)));
    format!("{role} {} ({} of them are trained, {percent:.2} %{by})", count(all), count(trained))
}

fn adapters_text(AdapterCounts { layers, ranks: [least, most], other_tensors }: &AdapterCounts) -> String {
    let ranks = if least == most { format!("rank {least}") } else { format!("ranks {least} to {most}") };
    let others = match other_tensors {
        0 => String::new(),
        &count => format!(" and {}", number::counted(count as u64, "other tensor")),
    };
    format!("{ranks} on {}{others}", number::counted(*layers as u64, "layer"))
}

fn model_line(ModelBytes { role, bytes }: &ModelBytes) -> String {
    let [weights, gradients, optimizer] =
        [bytes.weights, bytes.gradients, bytes.optimizer].map(|bytes| mebibytes(&[bytes as u64]));
    let state = if bytes.gradients > 0 {
        format!(", {gradients} of gradients, {optimizer} of optimizer state")
    } else {
        String::new()
    };
    format!("  {role}: {weights} of weights{state}")
}

fn peak_line(peak: &PeakMemory) -> String {
    let size = |bytes: usize| mebibytes(&[bytes as u64]);
    let PeakMemory { activations, logits, rollout, kv_cache, program, sandbox, total } = *peak;
    let in_rollout = if rollout > 0 {
        format!("{} in a rollout, {} of it for the KV cache; ", size(rollout), size(kv_cache))
    } else {
        String::new()
    };
    let in_sandbox = if sandbox > 0 {
        format!("{} for a program that the model writes; ", size(sandbox))
    } else {
        String::new()
    };
    format!(
        "  beside them: {} in a training step, {} of it for logits; {in_rollout}{} for the program; {in_sandbox}peak \
         about {}",
        size(activations),
        size(logits),
        size(program),
        size(total)
    )
}

fn time_text(time: &StepTime, other_dtype: Option<DtypeTime>) -> String {
    let StepTime { seconds, computation, communication, waiting, rollout, update, offload } = *time;
    let parts = [
        (computation, "computation"),
        (communication, "communication"),
        (waiting, "waiting for other stages"),
        (rollout, "rollout"),
        (update, "updates"),
        (offload, "moving chunks"),
    ];
    let parts = parts.into_iter().filter(|(part, _)| *part > 0.0);
    let parts: Vec<String> = parts.map(|(part, name)| format!("{} of {name}", in_seconds(part))).collect();
    let other = other_dtype.map(|DtypeTime { dtype, seconds }| {
        format!("; with model.dtype = \"{}\" about {}", dtype.name(), in_seconds(seconds))
    });
    format!("about {} ({}){}", in_seconds(seconds), parts.join(", "), other.unwrap_or_default())
}

fn shortage_lines(shortage: &Shortage) -> Vec<String> {
    let title = if shortage.is_certain { "this cannot fit" } else { "this may not fit" };
    if shortage.changes.is_empty() {
        return vec![format!("{title}: {}; {NOTHING_FITS}", shortage.problem())];
    }
    let changes = shortage.changes.iter().map(|change| format!("  {change}"));
    let title = format!("{title}: {}. What would fit:", shortage.problem());
    std::iter::once(title).chain(changes).collect()
}

fn as_object<T: Copy + Serialize, S: Serializer>(
    values: &[(&str, T)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().copied())
}

/// Serializes the size of each axis, and the coordinates of each rank.
fn with_places<S: Serializer>(mesh: &Mesh, serializer: S) -> Result<S::Ok, S::Error> {
    let of_axes = |number: &dyn Fn(Axis) -> usize| -> Map<String, Value> {
        Axis::ALL.iter().map(|&axis| (axis.name().to_owned(), number(axis).into())).collect()
    };
    let place = |rank| {
        let seen = mesh.for_rank(rank);
        of_axes(&|axis| seen.coordinate(axis))
    };
    let places: Vec<_> = (0..mesh.world_size()).map(place).collect();
    json!({"sizes": of_axes(&|axis| mesh.size(axis)), "ranks": places}).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(stage: &'static str, units: Units, tokens: usize, count: u64) -> Plan {
        Plan {
            stage,
            units,
            parameters: vec![("model", 83)],
            trained_parameters: vec![("model", 83)],
            adapters: Vec::new(),
            rows: count as usize,
            dropped: 0,
            tokens,
            steps: count,
            rows_per_step: count as usize,
            mesh: Mesh::new(&[], 0, 1).unwrap(),
            loaded_bytes: Vec::new(),
            model_bytes: 0,
            memory: Vec::new(),
            peak_memory: None,
            step_time: None,
            time_problem: None,
            other_dtype: None,
            shortage: None,
            search: None,
            trace: None,
            communication: Vec::new(),
        }
    }

    #[test]
    fn few_tokens_are_told_and_one_is_no_plural() {
        let said = plan("sft", Units::ROWS, 83, 1).lines().join("");
        assert!(said.starts_with("sft: model 83 parameters; 1 row, 83 tokens; 1 step of 1 row;"), "{said}");
        let units = Units { row: "prompt", step: "iteration", sample: "reply" };
        let said = plan("ppo", units, 83_000, 2).lines().join("");
        assert!(said.contains("2 prompts, 83k tokens; 2 iterations of 2 replies;"), "{said}");
    }
}
