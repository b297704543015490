//! Results as Markdown and CSV.

use std::fmt::Write as _;

use super::{Comparison, ModelResults, Results, TaskInfo};
use crate::contamination::Contamination;
use crate::evaluation::Score;
use crate::page::number::{
    interval, number, optional, or_nothing, p_value, plain_signed, plain_signed_interval,
};
use crate::page::{Table, escape_markdown};

impl Results {
    /// Tables for people: scores with intervals, then comparisons. The columns are those of
    /// lm-evaluation-harness, with the interval, and what could not be parsed or answered.
    pub fn markdown(&self) -> String {
        let mut text = format!("# Evaluation\n{}", self.markdown_tables("##"));
        if !self.contamination.is_empty() {
            let table = contamination_table(&self.contamination);
            let head = table.head.iter().map(|name| name[..1].to_uppercase() + &name[1..]).collect();
            let table = Table { head, ..table };
            let _ = write!(text, "\n## Rows in the training data\n\n{}", table.markdown());
        }
        let rows = |task: &TaskInfo| format!("{} of {}", task.effective, task.original);
        let protocols = Table::of(
            "Protocols",
            3,
            &self.tasks,
            &[("task", &|task| task.task.clone()), ("id", &|task| task.protocol_id.clone()), ("rows", &rows)],
        );
        text + "\n## Protocols\n\n" + &protocols.markdown()
    }

    /// The tables of scores and differences, under headings of the given level.
    pub(crate) fn markdown_tables(&self, level: &str) -> String {
        let mut text = String::new();
        for model in &self.models {
            let table = self.score_table(model).markdown();
            let _ = write!(text, "\n{level} {}\n\n{table}", escape_markdown(&model.name));
        }
        if !self.comparisons.is_empty() {
            let table = comparison_table(&self.comparisons).markdown();
            let _ = write!(text, "\n{level} Differences, paired by document\n\n{table}");
        }
        text
    }

    fn score_table(&self, model: &ModelResults) -> Table {
        let scores: Vec<&Score> = model.all().collect();
        Table::of(
            "Scores",
            6,
            &scores,
            &[
                ("Tasks", &|score| score.task.clone()),
                ("Version", &|score| self.version_and_shots(score)[0].clone()),
                ("Filter", &|score| score.filter.clone()),
                ("n-shot", &|score| self.version_and_shots(score)[1].clone()),
                ("Metric", &|score| score.metric.clone()),
                ("", &|score| if score.higher_is_better { "↑" } else { "↓" }.to_owned()),
                ("Value", &|score| number(score.aggregated.value)),
                ("", &|_| "±".to_owned()),
                ("Stderr", &|score| score.aggregated.standard_error.map_or("N/A".to_owned(), number)),
                ("95 % interval", &|score| interval_or_empty(score)),
                ("n", &|score| score.n.to_string()),
                ("unparsed", &|score| score.unparsed.to_string()),
                ("failed", &|score| score.failed.to_string()),
            ],
        )
    }

    /// The version and the examples of the task of a score; empty for groups.
    pub fn version_and_shots(&self, score: &Score) -> [String; 2] {
        let Some(info) = self.task(&score.task) else { return Default::default() };
        let version = info.version.map_or(String::new(), |version| version.to_string());
        [version, info.num_fewshot.to_string()]
    }

    /// One line for each score.
    pub fn csv(&self) -> String {
        let scores = self.models.iter().flat_map(|model| model.all().map(move |score| (model, score)));
        let scores: Vec<(&ModelResults, &Score)> = scores.collect();
        let known = |value: Option<f64>| {
            value.filter(|value| !value.is_nan()).map_or(String::new(), |value| value.to_string())
        };
        let table = Table::of(
            "Scores",
            0,
            &scores,
            &[
                ("model", &|(model, _)| csv_cell(&model.name)),
                ("task", &|(_, score)| csv_cell(&score.task)),
                ("version", &|(_, score)| self.version_and_shots(score)[0].clone()),
                ("num_fewshot", &|(_, score)| self.version_and_shots(score)[1].clone()),
                ("filter", &|(_, score)| csv_cell(&score.filter)),
                ("metric", &|(_, score)| csv_cell(&score.metric)),
                ("higher_is_better", &|(_, score)| score.higher_is_better.to_string()),
                ("value", &|(_, score)| known(Some(score.aggregated.value))),
                ("standard_error", &|(_, score)| known(score.aggregated.standard_error)),
                ("low", &|(_, score)| known(score.aggregated.interval.map(|ends| ends.0))),
                ("high", &|(_, score)| known(score.aggregated.interval.map(|ends| ends.1))),
                ("n", &|(_, score)| score.n.to_string()),
                ("unparsed", &|(_, score)| score.unparsed.to_string()),
                ("failed", &|(_, score)| score.failed.to_string()),
            ],
        );
        table.lines().iter().map(|cells| cells.join(",") + "\n").collect()
    }
}

/// The interval of a score, or nothing.
pub fn interval_or_empty(score: &Score) -> String {
    score.aggregated.interval.map_or(String::new(), |ends| interval(Some(ends)))
}

fn comparison_table(comparisons: &[Comparison]) -> Table {
    Table::of(
        "Differences",
        3,
        comparisons,
        &[
            ("Model", &|row| format!("{} - {}", row.model, row.baseline)),
            ("Task", &|row| row.task.clone()),
            ("Metric", &|row| format!("{},{}", row.metric, row.filter)),
            ("Difference", &|row| plain_signed(row.difference.estimate.mean)),
            ("95 % interval", &|row| plain_signed_interval(row.interval())),
            ("more, equal, less", &|row| format!("{}, {}, {}", row.more, row.equal, row.less)),
            ("p", &|row| p_value(row.p_value)),
            ("p (Holm)", &|row| p_value(row.p_value_holm)),
            ("detectable", &|row| number(row.detectable)),
        ],
    )
}

/// How many rows of each task the training data holds, and what that does to the scores.
pub fn contamination_table(rows: &[Contamination]) -> Table {
    Table::of(
        "Contamination",
        3,
        rows,
        &[
            ("task", &|row| row.task.clone()),
            ("model", &|row| row.model.clone()),
            ("metric", &|row| row.metric.clone()),
            ("in the training data", &|row| format!("{} of {}", row.contaminated, row.checked)),
            ("not examined", &|row| row.unexamined.to_string()),
            ("clean rows", &|row| optional(row.clean_score)),
            ("rows in the training data", &|row| optional(row.dirty_score)),
            ("difference", &|row| or_nothing(row.difference(), plain_signed)),
            ("95 % interval", &|row| plain_signed_interval(row.difference_interval)),
        ],
    )
}

/// A cell of CSV. A cell that a spreadsheet would take for a formula gets an apostrophe.
fn csv_cell(text: &str) -> String {
    let text =
        if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}
