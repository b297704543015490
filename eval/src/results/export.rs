//! Results as Markdown and CSV.

use std::fmt::Write as _;

use super::{ModelResults, Results};
use crate::evaluation::Score;
use crate::report::escape_markdown;

impl Results {
    /// Tables for people: scores with intervals, then comparisons. The columns are those of
    /// lm-evaluation-harness, with the interval, and what could not be parsed or answered.
    pub fn markdown(&self) -> String {
        let mut text = format!("# Evaluation\n{}", self.markdown_tables("##"));
        if !self.contamination.is_empty() {
            let _ = write!(text, "\n## Rows in the training data\n\n{}", self.contamination_table());
        }
        text.push_str("\n## Protocols\n\n| task | id | rows |\n|---|---|---|\n");
        for task in &self.tasks {
            let rows = format!("{} of {}", task.effective, task.original);
            let [name, id] = [&task.task, &task.protocol_id].map(|text| escape_markdown(text));
            let _ = writeln!(text, "| {name} | {id} | {rows} |");
        }
        text
    }

    /// The tables of scores and differences, under headings of the given level.
    pub(crate) fn markdown_tables(&self, level: &str) -> String {
        let mut text = String::new();
        for model in &self.models {
            let _ = write!(text, "\n{level} {}\n\n{}", escape_markdown(&model.name), self.score_table(model));
        }
        if !self.comparisons.is_empty() {
            let table = self.comparison_table();
            let _ = write!(text, "\n{level} Differences, paired by document\n\n{table}");
        }
        text
    }

    fn score_table(&self, model: &ModelResults) -> String {
        let mut table = String::from(
            "| Tasks | Version | Filter | n-shot | Metric | | Value | | Stderr | 95 % interval | n | unparsed | failed |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for score in model.all() {
            let info = self.task(&score.task);
            let version =
                info.and_then(|info| info.version).map_or(String::new(), |version| version.to_string());
            let shots = info.map_or(String::new(), |info| info.num_fewshot.to_string());
            let arrow = if score.higher_is_better { "↑" } else { "↓" };
            let error = score.aggregated.standard_error.map_or("N/A".to_owned(), number);
            let _ = writeln!(
                table,
                "| {} | {version} | {} | {shots} | {} | {arrow} | {} | ± | {error} | {} | {} | {} | {} |",
                escape_markdown(&score.task),
                escape_markdown(&score.filter),
                escape_markdown(&score.metric),
                number(score.aggregated.value),
                interval(score),
                score.n,
                score.unparsed,
                score.failed,
            );
        }
        table
    }

    fn comparison_table(&self) -> String {
        let mut table = String::from(
            "| Model | Task | Metric | Difference | 95 % interval | more, equal, less | p | p (Holm) | detectable |\n\
             |---|---|---|---|---|---|---|---|---|\n",
        );
        for comparison in &self.comparisons {
            let interval = signed_interval(comparison.interval());
            let _ = writeln!(
                table,
                "| {} - {} | {} | {},{} | {:+.4} | {} | {}, {}, {} | {} | {} | {} |",
                escape_markdown(&comparison.model),
                escape_markdown(&comparison.baseline),
                escape_markdown(&comparison.task),
                escape_markdown(&comparison.metric),
                escape_markdown(&comparison.filter),
                comparison.difference.estimate.mean,
                interval,
                comparison.more,
                comparison.equal,
                comparison.less,
                p_value(comparison.p_value),
                p_value(comparison.p_value_holm),
                number(comparison.detectable),
            );
        }
        table
    }

    fn contamination_table(&self) -> String {
        let mut table = String::from(
            "| Task | Model | Metric | In the training data | Not examined | Clean rows | Rows in the training data | \
             Difference | 95 % interval |\n|---|---|---|---|---|---|---|---|---|\n",
        );
        for row in &self.contamination {
            let score = |score: Option<f64>| score.map_or("–".to_owned(), number);
            let _ = writeln!(
                table,
                "| {} | {} | {} | {} of {} | {} | {} | {} | {} | {} |",
                escape_markdown(&row.task),
                escape_markdown(&row.model),
                escape_markdown(&row.metric),
                row.contaminated,
                row.checked,
                row.unexamined,
                score(row.clean_score),
                score(row.dirty_score),
                row.difference().map_or("–".to_owned(), |difference| format!("{difference:+.4}")),
                signed_interval(row.difference_interval),
            );
        }
        table
    }

    /// One line for each score.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "model,task,version,num_fewshot,filter,metric,higher_is_better,value,standard_error,low,high,n,unparsed,failed\n",
        );
        for model in &self.models {
            for score in model.all() {
                let info = self.task(&score.task);
                let optional = |value: Option<f64>| {
                    value.filter(|value| !value.is_nan()).map_or(String::new(), |value| value.to_string())
                };
                let cells = [
                    csv_cell(&model.name),
                    csv_cell(&score.task),
                    optional(info.and_then(|info| info.version)),
                    info.map_or(String::new(), |info| info.num_fewshot.to_string()),
                    csv_cell(&score.filter),
                    csv_cell(&score.metric),
                    score.higher_is_better.to_string(),
                    optional(Some(score.aggregated.value)),
                    optional(score.aggregated.standard_error),
                    optional(score.aggregated.interval.map(|interval| interval.0)),
                    optional(score.aggregated.interval.map(|interval| interval.1)),
                    score.n.to_string(),
                    score.unparsed.to_string(),
                    score.failed.to_string(),
                ];
                text.push_str(&cells.join(","));
                text.push('\n');
            }
        }
        text
    }
}

/// A number with four decimals, or with four digits where that says too little; an en dash for NaN.
pub fn number(value: f64) -> String {
    if value.is_nan() {
        return "–".to_owned();
    }
    if value == 0.0 || (0.001..10_000.0).contains(&value.abs()) {
        return format!("{value:.4}");
    }
    format!("{value:.4e}")
}

/// An interval of a difference, with four decimals; an en dash where there is none.
pub fn signed_interval(interval: Option<(f64, f64)>) -> String {
    interval.map_or("–".to_owned(), |(low, high)| format!("{low:+.4} to {high:+.4}"))
}

fn interval(score: &Score) -> String {
    score
        .aggregated
        .interval
        .map_or(String::new(), |(low, high)| format!("{} to {}", number(low), number(high)))
}

/// A p-value with four decimals.
pub fn p_value(value: f64) -> String {
    if value < 0.0001 { "<0.0001".to_owned() } else { format!("{value:.4}") }
}

/// A cell of CSV. A cell that a spreadsheet would take for a formula gets an apostrophe.
fn csv_cell(text: &str) -> String {
    let text =
        if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}
