//! What a search of layouts has found, and how it is told.

use std::collections::BTreeMap;

use parallel::Mesh;
use serde::Serialize;
use text::number;

use crate::config::{ChosenLayout, RunConfig};
use crate::stage::model_memory::ModelBytes;
use crate::stage::peak_memory::PeakMemory;
use crate::stage::quantities;
use crate::stage::step_time::StepTime;

/// What a search has found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Found {
    /// The device of a rank.
    pub(super) device: String,
    /// The number of ranks.
    pub(super) ranks: usize,
    /// The number of layouts that were compared.
    pub(super) layouts: usize,
    /// The memory of a rank, in bytes.
    pub(super) available: Option<usize>,
    /// The fastest layouts, the best first.
    pub(crate) fastest: Vec<FastLayout>,
    /// What to do if there is none.
    #[serde(skip)]
    pub(super) advice: String,
}

/// A layout with what is predicted of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FastLayout {
    #[serde(skip)]
    pub(super) mesh: Mesh,
    /// The run file with this layout, the data-parallel size included.
    #[serde(skip)]
    pub(super) config: RunConfig,
    /// The keys of the run file, with their values.
    pub(super) settings: BTreeMap<String, String>,
    /// The seconds of a step.
    pub(super) step_time: StepTime,
    /// The peak of the rank that needs most.
    pub(super) peak_memory: PeakMemory,
    /// Its weights, gradients and optimizer state.
    pub(super) memory: Vec<ModelBytes>,
}

impl Found {
    /// The layouts as lines of text.
    pub(in crate::stage) fn lines(&self) -> Vec<String> {
        let Self { device, available, fastest, .. } = self;
        if fastest.is_empty() {
            return vec![format!("search: {}", self.nothing_fits())];
        }

        let mut lines =
            vec![format!("search: the fastest of {} on {device}{}:", self.compared(), self.that_fit())];
        for (index, layout) in fastest.iter().enumerate() {
            lines.push(format!("  {}. {}", index + 1, layout.summary()));
            lines.push(format!("     {}", layout.reasons(*available)));
            let sets: Vec<String> =
                layout.settings.iter().map(|(key, value)| format!("--set {key}={value}")).collect();
            if !sets.is_empty() {
                lines.push(format!("     {}", sets.join(" ")));
            }
        }
        lines
    }

    /// Says that a layout is the fastest.
    pub(crate) fn chosen(&self, layout: &FastLayout) -> String {
        format!("the fastest of {}: {}", self.compared(), layout.summary())
    }

    /// Says that there is no layout, and what to do.
    pub(crate) fn nothing_fits(&self) -> String {
        let (compared, device, fit) = (self.compared(), &self.device, self.that_fit());
        format!("of {compared} on {device}, there are none{fit}: {}", self.advice)
    }

    fn compared(&self) -> String {
        let [layouts, ranks] = [(self.layouts, "layout"), (self.ranks, "rank")]
            .map(|(count, noun)| number::counted(count as u64, noun));
        format!("{layouts} of {ranks}")
    }

    fn that_fit(&self) -> String {
        self.available.map_or_else(String::new, |bytes| format!(" that fit into {}", mebibytes(bytes)))
    }
}

impl FastLayout {
    /// Its keys in a run file.
    pub(crate) fn layout(&self) -> ChosenLayout {
        self.config.layout()
    }

    fn summary(&self) -> String {
        let axes = self.mesh.axes_in_use().map(|axis| format!("{} {}", axis.name(), self.mesh.size(axis)));
        let mut axes = axes.collect::<Vec<_>>().join(", ");
        if axes.is_empty() {
            "one rank".clone_into(&mut axes);
        }
        format!("{}: {axes}", quantities::in_seconds(self.step_time.seconds))
    }

    /// What the seconds and the bytes are made of, the largest parts first.
    fn reasons(&self, available: Option<usize>) -> String {
        let StepTime { seconds, computation, communication, waiting, rollout, update, offload } =
            self.step_time;
        let spent = largest_parts(
            seconds,
            [
                (computation, "computation"),
                (communication, "communication"),
                (waiting, "waiting in the pipeline"),
                (rollout, "rollout"),
                (update, "updates"),
                (offload, "moving chunks"),
            ],
        );

        let sum = |part: fn(&ModelBytes) -> usize| self.memory.iter().map(part).sum::<usize>() as f64;
        let PeakMemory { activations, logits, rollout, program, total, .. } = self.peak_memory;
        let held = largest_parts(
            total as f64,
            [
                (sum(|model| model.bytes.weights), "weights"),
                (sum(|model| model.bytes.gradients), "gradients"),
                (sum(|model| model.bytes.optimizer), "optimizer state"),
                ((activations - logits) as f64, "activations"),
                (logits as f64, "logits"),
                (rollout as f64, "rollout"),
                (program as f64, "program"),
            ],
        );
        let of = available.map_or_else(String::new, |bytes| format!(" of {}", mebibytes(bytes)));
        format!("{spent}; {}{of}: {held}", mebibytes(total))
    }
}

/// The parts of a whole that are at least a hundredth of it, in percent.
fn largest_parts<const N: usize>(whole: f64, mut parts: [(f64, &str); N]) -> String {
    parts.sort_by(|(left, _), (right, _)| right.total_cmp(left));
    let percent = |(part, name): &(f64, &str)| {
        let percent = (100.0 * part / whole).round();
        (percent >= 1.0).then(|| format!("{percent} % {name}"))
    };
    parts.iter().filter_map(percent).collect::<Vec<_>>().join(", ")
}

fn mebibytes(bytes: usize) -> String {
    quantities::mebibytes(&[bytes as u64])
}
