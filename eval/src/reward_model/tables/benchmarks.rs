//! The tables of `RewardBench` and of `RewardBench` 2.

use crate::page::Table;
use crate::page::number::{interval, number, optional};
use crate::reward_model::{FileReport, RewardBench, RewardBench2};

const PARTIAL: &str = "Rows or subsets of the benchmark are missing: these are not its published numbers.";

/// The last row of a table, with the mean of all others.
fn mean_row(table: &mut Table, cells: [&str; 5], score: Option<f64>) {
    if let Some(score) = score {
        let mut row = cells.map(str::to_owned).to_vec();
        row[1] = number(score);
        table.rows.push(row);
    }
}

pub(super) fn reward_bench(file: &FileReport, bench: &RewardBench) -> Table {
    let mut table = Table::of(
        format!("{}: RewardBench", file.file),
        1,
        &bench.sections,
        &[
            ("section", &|section| section.section.to_owned()),
            ("score", &|section| number(section.score.mean)),
            ("95 % interval", &|section| interval(section.score.interval())),
            ("rows", &|section| section.score.n.to_string()),
            ("rows of the benchmark", &|section| section.expected.to_string()),
        ],
    );
    mean_row(&mut table, ["mean of sections", "", "", &file.rows.to_string(), "2985"], bench.score);
    table.note(if bench.is_whole { "" } else { PARTIAL })
}

pub(super) fn reward_bench_2(file: &FileReport, bench: &RewardBench2) -> Table {
    let mut table = Table::of(
        format!("{}: RewardBench 2", file.file),
        1,
        &bench.subsets,
        &[
            ("subset", &|subset| subset.subset.clone()),
            ("score", &|subset| optional(subset.score)),
            ("95 % interval", &|subset| {
                subset.estimate.as_ref().map_or_else(String::new, |estimate| interval(estimate.interval()))
            }),
            ("rows", &|subset| subset.rows.to_string()),
            ("highest score shared", &|subset| {
                if subset.ties.is_some() { String::new() } else { subset.shared.to_string() }
            }),
        ],
    );
    mean_row(&mut table, ["mean of subsets", "", "", &file.rows.to_string(), ""], bench.score);
    let mut notes = Vec::new();
    for subset in &bench.subsets {
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
    notes.extend((!bench.is_whole).then(|| PARTIAL.to_owned()));
    table.note(notes.join(" "))
}
