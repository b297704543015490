//! The numbers as tables: one form for the terminal, Markdown and the HTML page, so that they never differ.

mod benchmarks;

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::best_of_n::BestOfN;
use super::numbers::{FileReport, RewardModelReport};
use super::over_optimization::{CurvePoint, OverOptimization};
use super::pairs::{GroupReport, PairReport, Spread};
use crate::page::number::{interval, number, optional, or_nothing};
use crate::page::{Table, escape_markdown};
use crate::statistics::Estimate;
use benchmarks::{reward_bench, reward_bench_2};

/// The most parts of a file in a table; the JSON has all.
const MOST_GROUPS: usize = 60;
/// The most points of a run in a table.
const MOST_POINTS: usize = 20;

/// The pairs of a file, with its name.
type Named<'a> = (&'a str, &'a PairReport);

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
        let _ = write!(text, "\n## {}\n\n{}", escape_markdown(&table.title), table.markdown());
        if !table.note.is_empty() {
            let _ = writeln!(text, "\n{}", escape_markdown(&table.note));
        }
    }
    let [program, digest] = [&report.program, &report.model.digest].map(|text| escape_markdown(text));
    let _ = writeln!(text, "\n{program}; model {digest}.");
    text
}

fn files(files: &[FileReport]) -> Table {
    Table::of(
        "Files",
        2,
        files,
        &[
            ("file", &|file| file.file.clone()),
            ("rows are", &|file| file.kind.name().to_owned()),
            ("rows", &|file| file.rows.to_string()),
            ("left out", &|file| file.skipped.to_string()),
            ("replies cut", &|file| file.cut.to_string()),
        ],
    )
    .note(
        "Left out: rows without a pair. Replies cut: conversations too long for the model lost tokens on the left.",
    )
}

fn accuracy(named: &[Named<'_>]) -> Table {
    let calibration =
        |pairs: &PairReport| optional(pairs.calibration.as_ref().map(|calibration| calibration.error));
    Table::of(
        "Pairs",
        1,
        named,
        &[
            ("file", &|(name, _)| (*name).to_owned()),
            ("pairs", &|(_, pairs)| pairs.accuracy.n.to_string()),
            ("accuracy", &|(_, pairs)| number(pairs.accuracy.mean)),
            ("95 % interval", &|(_, pairs)| interval(pairs.accuracy.interval())),
            ("ties", &|(_, pairs)| format!("{} ({:.1} %)", pairs.ties, 100.0 * pairs.tie_share)),
            ("ties as half", &|(_, pairs)| number(pairs.accuracy_with_half_ties.mean)),
            ("loss", &|(_, pairs)| number(pairs.loss)),
            ("margin", &|(_, pairs)| number(pairs.margin.mean)),
            ("SD", &|(_, pairs)| optional(pairs.margin.standard_deviation)),
            ("ECE", &|(_, pairs)| calibration(pairs)),
        ],
    )
    .note(
        "Accuracy: the chosen reply has strictly the higher score. Loss: the mean of -ln sigmoid(margin). ECE: \
         calibration error of sigmoid(|margin|) in 10 bins from 0.5 to 1.",
    )
}

fn lengths(named: &[Named<'_>]) -> Table {
    let rate = |estimate: Option<Estimate>| {
        or_nothing(estimate, |estimate| format!("{} ({})", number(estimate.mean), estimate.n))
    };
    Table::of(
        "Length of replies",
        1,
        named,
        &[
            ("file", &|(name, _)| (*name).to_owned()),
            ("score, length: Pearson", &|(_, pairs)| optional(pairs.length.score_pearson)),
            ("Spearman", &|(_, pairs)| optional(pairs.length.score_spearman)),
            ("margin, difference: Pearson", &|(_, pairs)| optional(pairs.length.margin_pearson)),
            ("Spearman", &|(_, pairs)| optional(pairs.length.margin_spearman)),
            ("chosen longer", &|(_, pairs)| rate(pairs.length.chosen_longer)),
            ("chosen shorter", &|(_, pairs)| rate(pairs.length.chosen_shorter)),
            ("equal", &|(_, pairs)| rate(pairs.length.equal_length)),
            ("longer scored higher", &|(_, pairs)| rate(pairs.length.longer_scored_higher)),
            ("longer is chosen", &|(_, pairs)| rate(pairs.length.longer_is_chosen)),
        ],
    )
    .note(
        "Correlations with the number of characters; then the accuracy on pairs whose chosen reply is longer, \
         shorter or as long, with their number; then how often the longer reply gets the higher score, and how \
         often it is the chosen one.",
    )
}

fn scores(named: &[Named<'_>]) -> Table {
    let head = ["file", "of", "mean", "SD", "lowest", "5 %", "25 %", "50 %", "75 %", "95 %", "highest"];
    let mut rows = Vec::new();
    for (name, pairs) in named {
        let parts =
            [("margin", &pairs.margin), ("chosen", &pairs.chosen_score), ("rejected", &pairs.rejected_score)];
        for (of, Spread { mean, standard_deviation, quantiles }) in parts {
            let mut row =
                vec![(*name).to_owned(), of.to_owned(), number(*mean), optional(*standard_deviation)];
            row.extend(quantiles.iter().map(|(_, value)| number(*value)));
            rows.push(row);
        }
    }
    let head = head.map(str::to_owned).to_vec();
    Table { title: "Scores".to_owned(), head, rows, words: 2, is_detail: true, ..Table::default() }
}

fn calibration(named: &[Named<'_>]) -> Table {
    let bins = |(name, pairs): &Named<'_>| {
        let bins = pairs.calibration.iter().flat_map(|calibration| calibration.bins.clone());
        let name = (*name).to_owned();
        bins.filter(|bin| bin.n > 0).map(move |bin| (name.clone(), bin)).collect::<Vec<_>>()
    };
    let table = Table::of(
        "Calibration",
        2,
        &named.iter().flat_map(bins).collect::<Vec<_>>(),
        &[
            ("file", &|(name, _)| name.clone()),
            ("probability", &|(_, bin)| format!("{:.2} to {:.2}", bin.low, bin.high)),
            ("pairs", &|(_, bin)| bin.n.to_string()),
            ("mean probability", &|(_, bin)| optional(bin.confidence)),
            ("accuracy", &|(_, bin)| optional(bin.accuracy)),
        ],
    );
    let note = "Probability of the preferred reply, sigmoid(|margin|). Ties are left out.".to_owned();
    Table { note, is_detail: true, ..table }
}

fn groups(file: &FileReport) -> Table {
    let column = file.split_by.as_deref().unwrap_or_default();
    let mut shown: Vec<&GroupReport> = file.groups.iter().collect();
    let mut note = String::new();
    if shown.len() > MOST_GROUPS {
        note = format!("The {MOST_GROUPS} largest of {} parts; rm.json has all.", shown.len());
        shown.sort_by_key(|group| Reverse(group.accuracy.n));
        shown.truncate(MOST_GROUPS);
    }
    Table::of(
        format!("{} by {column}", file.file),
        1,
        &shown,
        &[
            (column, &|group| group.group.clone()),
            ("pairs", &|group| group.accuracy.n.to_string()),
            ("accuracy", &|group| number(group.accuracy.mean)),
            ("95 % interval", &|group| interval(group.accuracy.interval())),
            ("ties", &|group| group.ties.to_string()),
            ("margin", &|group| number(group.mean_margin)),
        ],
    )
    .note(note)
}

fn best_of_n(file: &FileReport, curve: &BestOfN) -> Table {
    let replies = match (curve.fewest_replies, curve.most_replies) {
        (fewest, most) if fewest == most => most.to_string(),
        (fewest, most) => format!("{fewest} to {most}"),
    };
    Table::of(
        format!("{}: best of n", file.file),
        0,
        &curve.points,
        &[
            ("n", &|point| point.n.to_string()),
            ("KL bound", &|point| number(point.kl_bound)),
            ("gold of the pick", &|point| number(point.gold.mean)),
            ("95 % interval", &|point| interval(point.gold.interval())),
            ("gain over 1", &|point| optional(point.gain.map(|gain| gain.mean))),
            ("95 % interval", &|point| interval(point.gain.as_ref().and_then(Estimate::interval))),
            ("gold best", &|point| number(point.gold_best.mean)),
            ("score", &|point| number(point.score.mean)),
        ],
    )
    .note(format!(
        "{} prompts with {replies} replies each. Mean over all subsets of n replies; intervals over prompts. KL bound: \
         ln n - (n - 1)/n. Score: of the picked reply.",
        curve.prompts,
    ))
}

fn over_optimization(curve: &OverOptimization) -> Table {
    let has_gold = curve.points.iter().any(|point| point.gold.is_some());
    let mut shown: Vec<&CurvePoint> =
        curve.points.iter().filter(|point| !has_gold || point.gold.is_some()).collect();
    let (every, last) = (shown.len().div_ceil(MOST_POINTS).max(1), shown.len().saturating_sub(1));
    let mut index = 0..;
    shown.retain(|_| index.next().is_some_and(|index| index % every == 0 || index == last));
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
    Table::of(
        format!("{}: over-optimization", curve.run),
        0,
        &shown,
        &[
            ("iteration", &|point| point.step.to_string()),
            ("KL", &|point| number(point.kl)),
            ("sqrt(KL)", &|point| number(point.root_kl)),
            ("proxy", &|point| number(point.proxy)),
            ("gold", &|point| optional(point.gold)),
            ("95 % interval", &|point| interval(point.gold_estimate.as_ref().and_then(Estimate::interval))),
        ],
    )
    .note(note)
}
