//! How long the replies of each model are, for tasks that generate. Lengths are in tokens.

use std::fmt::Write as _;

use super::scores::colour;
use super::section::Section;
use crate::evaluation::{Evaluation, ModelRun, Sample};
use crate::page::number::{count, percent_of};
use crate::page::strip::histogram;
use crate::page::{isolated, note};
use crate::request::Response;
use crate::statistics::quantile;
use crate::task::OutputType;

/// The most tasks with histograms.
const MOST_TASKS: usize = 12;
/// The bars of a histogram.
const BARS: usize = 32;

/// The replies of one model to one task.
struct Lengths {
    /// Sorted.
    tokens: Vec<usize>,
    /// The replies that reached the limit.
    cut: usize,
}

/// The histograms. `None` if no task generates.
pub(super) fn section(evaluation: &Evaluation, runs: &[ModelRun]) -> Option<Section> {
    let generates = |index: &usize| evaluation.tasks[*index].task.output_type == OutputType::GenerateUntil;
    let mut found = Vec::new();
    for index in (0..evaluation.tasks.len()).filter(generates) {
        let of_task =
            |run: &ModelRun| run.samples.get(index).map_or_else(|| Lengths::of(&[]), |s| Lengths::of(s));
        let lengths: Vec<Lengths> = runs.iter().map(of_task).collect();
        // An endpoint that does not count tokens gives zeros.
        if lengths.iter().any(|lengths| lengths.longest() > 0) {
            found.push((index, lengths));
        }
    }
    if found.is_empty() {
        return None;
    }

    let mut body = note(
        "Tokens of a reply, from 0 to the longest one of the task. A reply is cut if it reached the limit before it \
         ended.",
    );
    body.push_str("<div class=\"lengths\">\n");
    for (index, lengths) in found.iter().take(MOST_TASKS) {
        let task = &evaluation.tasks[*index].task;
        let limit = evaluation.options.max_gen_toks.unwrap_or(task.generation_kwargs.max_gen_toks);
        body.push_str(&figure(&task.task, limit, lengths, runs));
    }
    body.push_str("</div>\n");
    if let Some(rest) = found.len().checked_sub(MOST_TASKS).filter(|rest| *rest > 0) {
        let rest = count(rest, "task that generates is", "tasks that generate are");
        body.push_str(&note(&format!("{rest} not drawn, for want of room.")));
    }
    Some(Section { id: "lengths", heading: "Lengths of replies", body })
}

/// The histograms of one task, one below the other on one scale.
fn figure(task: &str, limit: usize, lengths: &[Lengths], runs: &[ModelRun]) -> String {
    let longest = lengths.iter().map(Lengths::longest).max().unwrap_or(0);
    let width = (longest + 1).div_ceil(BARS);
    let binned: Vec<Vec<usize>> = lengths.iter().map(|lengths| lengths.bins(width)).collect();
    let highest = binned.iter().flatten().copied().max().unwrap_or(0);

    let mut figure = format!(
        "<figure><figcaption><b>{}</b> <span class=\"note\">0 to {}</span></figcaption>\n",
        isolated(task),
        count(longest, "token", "tokens")
    );
    for (model, (lengths, bins)) in lengths.iter().zip(&binned).enumerate() {
        let _ = writeln!(
            figure,
            "{}\n<div class=\"note\">{}: {}</div>",
            histogram(&colour(model), bins, highest),
            isolated(&runs[model].name),
            lengths.summary(limit)
        );
    }
    figure + "</figure>\n"
}

impl Lengths {
    fn of(samples: &[Sample]) -> Self {
        let mut tokens = Vec::new();
        let mut cut = 0;
        for response in samples.iter().flat_map(|sample| &sample.responses) {
            if let Response::Reply { tokens: length, ended, .. } = response {
                tokens.push(*length);
                cut += usize::from(!ended);
            }
        }
        tokens.sort_unstable();
        Self { tokens, cut }
    }

    fn longest(&self) -> usize {
        self.tokens.last().copied().unwrap_or(0)
    }

    /// The number of replies within each `width` tokens.
    fn bins(&self, width: usize) -> Vec<usize> {
        let mut bins = vec![0; BARS];
        for tokens in &self.tokens {
            bins[(tokens / width.max(1)).min(BARS - 1)] += 1;
        }
        bins
    }

    fn summary(&self, limit: usize) -> String {
        let n = self.tokens.len();
        if n == 0 {
            return "no replies".to_owned();
        }
        let median = quantile(&self.tokens.iter().map(|&tokens| tokens as f64).collect::<Vec<_>>(), 0.5);
        let cut = match self.cut {
            0 => "none cut".to_owned(),
            cut => format!("{cut} cut ({}) at {limit} tokens", percent_of(cut, n)),
        };
        format!("median {median} of {}, {cut}", count(n, "reply", "replies"))
    }
}
