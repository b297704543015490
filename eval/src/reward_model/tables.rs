//! The numbers as tables: one form for the terminal, Markdown and the HTML page, so that they never differ.

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::{
    BestOfN, FileReport, GroupReport, OverOptimization, PairReport, RewardBench, RewardBench2,
    RewardModelReport, Spread,
};
use crate::report::escape_markdown;
use crate::results::number;
use crate::statistics::Estimate;

/// The most parts of a file in a table; the JSON has all.
const MOST_GROUPS: usize = 60;
/// The most points of a run in a table.
const MOST_POINTS: usize = 20;

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// The heading, then the lines; all have as many cells.
    pub rows: Vec<Vec<String>>,
    /// How many columns at the left are text.
    pub left: usize,
    /// What must be known to read it.
    pub note: String,
    /// Whether a terminal leaves it out.
    pub is_detail: bool,
}

impl Table {
    fn new(title: impl Into<String>, left: usize, head: &[&str]) -> Self {
        let rows = vec![head.iter().map(|&cell| cell.to_owned()).collect()];
        Self { title: title.into(), rows, left, note: String::new(), is_detail: false }
    }

    fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    fn detail(mut self) -> Self {
        self.is_detail = true;
        self
    }
}

/// All tables of a report.
pub fn tables(report: &RewardModelReport) -> Vec<Table> {
    let mut named: Vec<(&str, &PairReport)> =
        report.files.iter().filter_map(|file| Some((file.file.as_str(), file.pairs.as_ref()?))).collect();
    named.extend(report.all_pairs.as_ref().map(|pairs| ("all pairs", pairs)));

    let mut tables = vec![files(&report.files)];
    if !named.is_empty() {
        tables.extend([accuracy(&named), lengths(&named), scores(&named), calibration(&named)]);
    }
    for file in &report.files {
        tables.extend(file.reward_bench.as_ref().map(|bench| reward_bench(file, bench)));
        if file.groups.len() > 1 {
            tables.push(groups(file));
        }
        tables.extend(file.reward_bench_2.as_ref().map(|bench| reward_bench_2(file, bench)));
        tables.extend(file.best_of_n.as_ref().map(|curve| best_of_n(file, curve)));
    }
    tables.extend(report.over_optimization.as_ref().map(over_optimization));
    tables
}

/// The tables as a Markdown document.
pub fn markdown(report: &RewardModelReport) -> String {
    let mut text = format!("# Reward model {}\n", escape_markdown(&report.model.name));
    for table in tables(report) {
        let _ = write!(text, "\n## {}\n\n", escape_markdown(&table.title));
        for (index, row) in table.rows.iter().enumerate() {
            let cells: Vec<String> = row.iter().map(|cell| escape_markdown(cell)).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
            if index == 0 {
                let rules: Vec<&str> =
                    (0..row.len()).map(|column| if column < table.left { "---" } else { "---:" }).collect();
                let _ = writeln!(text, "|{}|", rules.join("|"));
            }
        }
        if !table.note.is_empty() {
            let _ = writeln!(text, "\n{}", escape_markdown(&table.note));
        }
    }
    let [program, digest] = [&report.program, &report.model.digest].map(|text| escape_markdown(text));
    let _ = writeln!(text, "\n{program}; model {digest}.");
    text
}

fn files(files: &[FileReport]) -> Table {
    let mut table = Table::new("Files", 2, &["file", "rows are", "rows", "left out", "replies cut"]).note(
        "Left out: rows without a pair. Replies cut: conversations too long for the model lost tokens on the left.",
    );
    for file in files {
        let counts = [file.rows, file.skipped, file.cut].map(|count| count.to_string());
        let mut row = vec![file.file.clone(), file.kind.name().to_owned()];
        row.extend(counts);
        table.rows.push(row);
    }
    table
}

fn accuracy(named: &[(&str, &PairReport)]) -> Table {
    let head =
        ["file", "pairs", "accuracy", "95 % interval", "ties", "ties as half", "loss", "margin", "SD", "ECE"];
    let mut table = Table::new("Pairs", 1, &head).note(
        "Accuracy: the chosen reply has strictly the higher score. Loss: the mean of -ln sigmoid(margin). ECE: \
         calibration error of sigmoid(|margin|) in 10 bins from 0.5 to 1.",
    );
    for (name, pairs) in named {
        table.rows.push(vec![
            (*name).to_owned(),
            pairs.accuracy.n.to_string(),
            number(pairs.accuracy.mean),
            interval(&pairs.accuracy),
            format!("{} ({:.1} %)", pairs.ties, 100.0 * pairs.tie_share),
            number(pairs.accuracy_with_half_ties.mean),
            number(pairs.loss),
            number(pairs.margin.mean),
            optional(pairs.margin.standard_deviation),
            optional(pairs.calibration.as_ref().map(|calibration| calibration.error)),
        ]);
    }
    table
}

fn lengths(named: &[(&str, &PairReport)]) -> Table {
    let head = [
        "file",
        "score, length: Pearson",
        "Spearman",
        "margin, difference: Pearson",
        "Spearman",
        "chosen longer",
        "chosen shorter",
        "equal",
        "longer scored higher",
        "longer is chosen",
    ];
    let mut table = Table::new("Length of replies", 1, &head).note(
        "Correlations with the number of characters; then the accuracy on pairs whose chosen reply is longer, \
         shorter or as long, with their number; then how often the longer reply gets the higher score, and how \
         often it is the chosen one.",
    );
    let rate = |estimate: &Option<Estimate>| {
        estimate.map_or_else(absent, |estimate| format!("{} ({})", number(estimate.mean), estimate.n))
    };
    for (name, pairs) in named {
        let length = &pairs.length;
        table.rows.push(vec![
            (*name).to_owned(),
            optional(length.score_pearson),
            optional(length.score_spearman),
            optional(length.margin_pearson),
            optional(length.margin_spearman),
            rate(&length.chosen_longer),
            rate(&length.chosen_shorter),
            rate(&length.equal_length),
            rate(&length.longer_scored_higher),
            rate(&length.longer_is_chosen),
        ]);
    }
    table
}

fn scores(named: &[(&str, &PairReport)]) -> Table {
    let head = ["file", "of", "mean", "SD", "lowest", "5 %", "25 %", "50 %", "75 %", "95 %", "highest"];
    let mut table = Table::new("Scores", 2, &head).detail();
    for (name, pairs) in named {
        let parts =
            [("margin", &pairs.margin), ("chosen", &pairs.chosen_score), ("rejected", &pairs.rejected_score)];
        for (of, spread) in parts {
            let Spread { mean, standard_deviation, quantiles } = spread;
            let mut row =
                vec![(*name).to_owned(), of.to_owned(), number(*mean), optional(*standard_deviation)];
            row.extend(quantiles.iter().map(|(_, value)| number(*value)));
            table.rows.push(row);
        }
    }
    table
}

fn calibration(named: &[(&str, &PairReport)]) -> Table {
    let head = ["file", "probability", "pairs", "mean probability", "accuracy"];
    let mut table = Table::new("Calibration", 2, &head)
        .note("Probability of the preferred reply, sigmoid(|margin|). Ties are left out.")
        .detail();
    for (name, pairs) in named {
        let bins = pairs.calibration.iter().flat_map(|calibration| &calibration.bins);
        for bin in bins.filter(|bin| bin.n > 0) {
            table.rows.push(vec![
                (*name).to_owned(),
                format!("{:.2} to {:.2}", bin.low, bin.high),
                bin.n.to_string(),
                optional(bin.confidence),
                optional(bin.accuracy),
            ]);
        }
    }
    table
}

fn groups(file: &FileReport) -> Table {
    let column = file.split_by.as_deref().unwrap_or_default();
    let title = format!("{} by {column}", file.file);
    let mut table = Table::new(title, 1, &[column, "pairs", "accuracy", "95 % interval", "ties", "margin"]);
    let mut shown: Vec<&GroupReport> = file.groups.iter().collect();
    if shown.len() > MOST_GROUPS {
        table.note = format!("The {MOST_GROUPS} largest of {} parts; rm.json has all.", shown.len());
        shown.sort_by_key(|group| Reverse(group.accuracy.n));
        shown.truncate(MOST_GROUPS);
    }
    for group in shown {
        table.rows.push(vec![
            group.group.clone(),
            group.accuracy.n.to_string(),
            number(group.accuracy.mean),
            interval(&group.accuracy),
            group.ties.to_string(),
            number(group.mean_margin),
        ]);
    }
    table
}

const PARTIAL: &str = "Rows or subsets of the benchmark are missing: these are not its published numbers.";

fn reward_bench(file: &FileReport, bench: &RewardBench) -> Table {
    let mut table = Table::new(
        format!("{}: RewardBench", file.file),
        1,
        &["section", "score", "95 % interval", "rows", "rows of the benchmark"],
    );
    for section in &bench.sections {
        table.rows.push(vec![
            section.section.to_owned(),
            number(section.score.mean),
            interval(&section.score),
            section.score.n.to_string(),
            section.expected.to_string(),
        ]);
    }
    if let Some(score) = bench.score {
        let row = ["mean of sections", &number(score), "", &file.rows.to_string(), "2985"];
        table.rows.push(row.map(str::to_owned).to_vec());
    }
    table.note(if bench.is_whole { "" } else { PARTIAL })
}

fn reward_bench_2(file: &FileReport, bench: &RewardBench2) -> Table {
    let head = ["subset", "score", "95 % interval", "rows", "highest score shared"];
    let mut table = Table::new(format!("{}: RewardBench 2", file.file), 1, &head);
    let mut notes = Vec::new();
    for subset in &bench.subsets {
        table.rows.push(vec![
            subset.subset.clone(),
            optional(subset.score),
            subset.estimate.as_ref().map_or_else(String::new, interval),
            subset.rows.to_string(),
            if subset.ties.is_some() { String::new() } else { subset.shared.to_string() },
        ]);
        if let Some(ties) = subset.ties {
            notes.push(format!(
                "{}: accuracy {} with several right replies and {} with one; margins {} and {}; ratio {}.",
                subset.subset,
                number(ties.tied_accuracy),
                number(ties.ref_accuracy),
                number(ties.margin),
                number(ties.hard_margin),
                number(ties.ratio)
            ));
        } else if subset.score.is_none() {
            notes.push(format!("{}: no prompt is there both as ref:I and as tied:I.", subset.subset));
        }
    }
    if let Some(score) = bench.score {
        let row = ["mean of subsets", &number(score), "", &file.rows.to_string(), ""];
        table.rows.push(row.map(str::to_owned).to_vec());
    }
    if !bench.is_whole {
        notes.push(PARTIAL.to_owned());
    }
    table.note(notes.join(" "))
}

fn best_of_n(file: &FileReport, curve: &BestOfN) -> Table {
    let head = [
        "n",
        "KL bound",
        "gold of the pick",
        "95 % interval",
        "gain over 1",
        "95 % interval",
        "gold best",
        "score",
    ];
    let mut table = Table::new(format!("{}: best of n", file.file), 0, &head).note(format!(
        "{} prompts with {} replies each. Mean over all subsets of n replies; intervals over prompts. KL bound: ln n \
         - (n - 1)/n. Score: of the picked reply.",
        curve.prompts,
        if curve.fewest_replies == curve.most_replies {
            curve.most_replies.to_string()
        } else {
            format!("{} to {}", curve.fewest_replies, curve.most_replies)
        }
    ));
    for point in &curve.points {
        table.rows.push(vec![
            point.n.to_string(),
            number(point.kl_bound),
            number(point.gold.mean),
            interval(&point.gold),
            optional(point.gain.map(|gain| gain.mean)),
            point.gain.as_ref().map_or_else(absent, interval),
            number(point.gold_best.mean),
            number(point.score.mean),
        ]);
    }
    table
}

fn over_optimization(curve: &OverOptimization) -> Table {
    let head = ["iteration", "KL", "sqrt(KL)", "proxy", "gold", "95 % interval"];
    let mut table = Table::new(format!("{}: over-optimization", curve.run), 0, &head);
    let with_gold = curve.points.iter().filter(|point| point.gold.is_some()).count();
    let candidates: Vec<_> =
        curve.points.iter().filter(|point| with_gold == 0 || point.gold.is_some()).collect();
    let every = candidates.len().div_ceil(MOST_POINTS).max(1);
    let last = candidates.len().saturating_sub(1);
    let shown = candidates.iter().enumerate().filter(|(index, _)| index % every == 0 || *index == last);
    for (_, point) in shown {
        table.rows.push(vec![
            point.step.to_string(),
            number(point.kl),
            number(point.root_kl),
            number(point.proxy),
            optional(point.gold),
            point.gold_estimate.as_ref().map_or_else(absent, interval),
        ]);
    }
    let note = curve.peak.map_or_else(
        || "The run logs no gold reward, and no file of gold values was given.".to_owned(),
        |peak| {
            format!(
                "The gold value is highest at iteration {} (KL {}). From there to the last gold value it changes by \
                 {}, and the proxy by {}.",
                peak.step,
                number(peak.kl),
                number(peak.gold_change),
                number(peak.proxy_change)
            )
        },
    );
    table.note(note)
}

fn interval(estimate: &Estimate) -> String {
    estimate.interval().map_or_else(absent, |(low, high)| format!("{} to {}", number(low), number(high)))
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(absent, number)
}

fn absent() -> String {
    "–".to_owned()
}
