//! The results of a judge as one HTML page: charts, tables, warnings, and every item with its texts.
//!
//! The page has no script: items are filtered with radio buttons and sibling selectors alone.

use std::fmt::Write as _;

use super::JudgeResults;
use crate::judge::{
    AnswerSheet, Comparison, JudgedPair, Order, Outcome, Preference, Question, Rated, RatedTurn,
};
use crate::page::chart::{Dot, dot_chart};
use crate::page::number::percent;
use crate::page::{self, Page, Table, block, escape_html, isolated, note, section};
use crate::statistics::Estimate;

/// The most characters of a text on the page. The whole text is in the files beside it.
const MOST: usize = 20_000;

const OF_PAIRS: [(&str, &str); 6] = [
    ("all", "all"),
    ("win", "won"),
    ("tie", "tied"),
    ("loss", "lost"),
    ("unparsed", "unparsed"),
    ("failed", "failed"),
];
const OF_TURNS: [(&str, &str); 5] =
    [("all", "all"), ("low", "up to 4"), ("high", "above 4"), ("unparsed", "unparsed"), ("failed", "failed")];
/// The largest rating of the class `low`.
const LOW: f64 = 4.0;

/// An item of the page.
struct Item {
    /// The class of its rows, by which it is filtered.
    class: &'static str,
    cells: Vec<String>,
    /// Its texts, as HTML.
    texts: String,
}

/// Renders the page. `sheets` are the answers to `questions` that were judged.
pub fn html(results: &JudgeResults, questions: &[Question], sheets: &[AnswerSheet], command: &str) -> String {
    let warnings: Vec<String> = results.all_warnings().iter().map(|warning| isolated(warning)).collect();
    let mut body = page::warnings(&warnings) + &charts(results);
    for table in results.tables() {
        body.push_str(&section(&escape_html(&table.title), &table.html(false)));
    }

    let sheet_of = |name: &str| sheets.iter().find(|sheet| sheet.model == name);
    for (number, rated) in results.ratings.iter().enumerate() {
        let item = |item| rated_item(item, questions, sheet_of(&rated.model));
        let heading = format!("Ratings of {}", isolated(&rated.model));
        let columns = ["question", "category", "turn", "rating", "length"];
        let items: Vec<Item> = rated.items.iter().map(item).collect();
        body.push_str(&item_section(&heading, &format!("rated-{number}"), &columns, &OF_TURNS, &items));
    }
    for (number, comparison) in results.comparisons.iter().enumerate() {
        let sheets = [&comparison.system, &comparison.baseline].map(|name| sheet_of(name));
        let item = |item| pair_item(comparison, item, questions, sheets);
        let heading = format!("{} against {}", isolated(&comparison.system), isolated(&comparison.baseline));
        let columns = ["question", "category", "turn", "outcome", "verdicts", "lengths"];
        let items: Vec<Item> = comparison.items.iter().map(item).collect();
        body.push_str(&item_section(&heading, &format!("pairs-{number}"), &columns, &OF_PAIRS, &items));
    }
    body.push_str(&reproduction(results, command));
    Page { title: &format!("Judged by {}", results.judge), kind: "judge", body, script: None }.html()
}

/// The headline numbers with their intervals.
fn charts(results: &JudgeResults) -> String {
    let dot = |label: &String, estimate: Estimate, scale: f64, text: String| Dot {
        label: label.clone(),
        class: "sft".to_owned(),
        is_filled: true,
        values: [estimate.mean, estimate.low, estimate.high].map(|value| scale * value),
        text,
    };
    let rating =
        |rated: &Rated| rated.rating.map(|found| dot(&rated.model, found, 1.0, format!("{:.2}", found.mean)));
    let rate = |row: &Comparison| row.win_rate.map(|rate| dot(&row.system, rate, 100.0, percent(rate.mean)));
    let ratings: Vec<Dot> = results.ratings.iter().filter_map(rating).collect();
    let rates: Vec<Dot> = results.comparisons.iter().filter_map(rate).collect();
    let rates_title = "Win rate against the baseline, %, with its 95 % interval";
    let drawings = [
        dot_chart("Mean rating with its 95 % interval", &ratings, (1.0, 10.0)),
        dot_chart(rates_title, &rates, (0.0, 100.0)),
    ];
    let figure = |drawing: String| format!("<figure>{drawing}</figure>\n");
    drawings.into_iter().flatten().map(figure).collect()
}

/// A section with a table of items: a row of cells for each, and one with its texts.
fn item_section(
    heading: &str,
    name: &str,
    columns: &[&str],
    kinds: &[(&str, &str)],
    items: &[Item],
) -> String {
    let count = |kind: &str| items.iter().filter(|item| kind == "all" || item.class == kind).count();
    let name_cell = |column: &&str| format!("<th scope=\"col\">{column}</th>");
    let cell = |cell: &String| format!("<td>{}</td>", isolated(cell));
    let head: String = columns.iter().map(name_cell).collect();
    let mut rows = String::new();
    for Item { class, cells, texts } in items {
        let columns = cells.len();
        let cells: String = cells.iter().map(cell).collect();
        let _ = writeln!(
            rows,
            "<tr class=\"{class}\">{cells}</tr>\n<tr class=\"{class} texts\"><td colspan=\"{columns}\">\
             <details><summary>texts</summary>{texts}</details></td></tr>"
        );
    }
    let table = format!("<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n");
    let filters = page::filters(name, kinds, count);
    section(heading, &format!("<div class=\"filtered\">\n{filters}{}</div>\n", page::wide("items", &table)))
}

fn rated_item(item: &RatedTurn, questions: &[Question], sheet: Option<&AnswerSheet>) -> Item {
    let (class, rating) = match (item.rating, &item.failed) {
        (_, Some(_)) => ("failed", "failed".to_owned()),
        (None, None) => ("unparsed", "unparsed".to_owned()),
        (Some(rating), None) => (if rating <= LOW { "low" } else { "high" }, rating.to_string()),
    };
    let RatedTurn { question, category, turn, .. } = item;
    let reply = reply(sheet, item.row, *turn);
    let length = reply.chars().count().to_string();
    let texts = [
        asked(questions, item.row, *turn),
        text("answer", reply),
        said("judge", &item.replies, item.failed.as_deref()),
    ];
    let cells = vec![question.clone(), category.clone(), turn.to_string(), rating, length];
    Item { class, cells, texts: texts.concat() }
}

fn pair_item(
    comparison: &Comparison,
    item: &JudgedPair,
    questions: &[Question],
    sheets: [Option<&AnswerSheet>; 2],
) -> Item {
    let (class, outcome) = match item.outcome() {
        Outcome::Win => ("win", "won"),
        Outcome::Tie => ("tie", "tied"),
        Outcome::Loss => ("loss", "lost"),
        Outcome::Unparsed => ("unparsed", "unparsed"),
        Outcome::Failed => ("failed", "failed"),
    };
    let verdicts = match item.rewards {
        Some([ours, theirs]) => format!("{ours:+.3}, {theirs:+.3}"),
        None => item.orders.iter().map(verdict).collect::<Vec<_>>().join(", "),
    };
    let JudgedPair { question, category, turn, lengths: [ours, theirs], .. } = item;
    let (turn_text, lengths) = (turn.to_string(), format!("{ours}, {theirs}"));
    let cells = vec![question.clone(), category.clone(), turn_text, outcome.to_owned(), verdicts, lengths];
    let names = [&comparison.system, &comparison.baseline];
    let [ours, theirs] = sheets.map(|sheet| reply(sheet, item.row, *turn));
    let mut texts = format!(
        "{}<div class=\"replies\">{}{}</div>",
        asked(questions, item.row, *turn),
        text(names[0], ours),
        text(names[1], theirs)
    );
    for (order, first) in item.orders.iter().zip(names) {
        texts.push_str(&said(&format!("judge, {first} first"), &order.replies, order.failed.as_deref()));
    }
    Item { class, cells, texts }
}

/// The turns of the user up to the judged one.
fn asked(questions: &[Question], row: usize, turn: usize) -> String {
    let turns =
        questions.get(row).map_or(&[][..], |question| &question.turns[..turn.min(question.turns.len())]);
    turns.iter().map(|asked| text("user", asked)).collect()
}

fn reply(sheet: Option<&AnswerSheet>, row: usize, turn: usize) -> &str {
    let replies = sheet.and_then(|sheet| sheet.replies.get(row)?.as_ref().ok());
    replies.and_then(|replies| replies.get(turn.saturating_sub(1))).map_or("", String::as_str)
}

/// What a judge said: its replies, or why there are none.
fn said(who: &str, replies: &[String], failed: Option<&str>) -> String {
    let mut texts: String = replies.iter().map(|reply| text(who, reply)).collect();
    texts.extend(failed.map(|problem| text(&format!("{who}: no answer"), problem)));
    texts
}

fn text(what: &str, text: &str) -> String {
    block("reply", &isolated(what), text, MOST)
}

fn verdict(order: &Order) -> &'static str {
    match (order.verdict, &order.failed) {
        (_, Some(_)) => "failed",
        (None, None) => "unparsed",
        (Some(Preference::FirstMuch), None) => "much better",
        (Some(Preference::First), None) => "better",
        (Some(Preference::Tie), None) => "tie",
        (Some(Preference::Second), None) => "worse",
        (Some(Preference::SecondMuch), None) => "much worse",
    }
}

fn reproduction(results: &JudgeResults, command: &str) -> String {
    let protocols = Table::of(
        "protocols",
        2,
        &results.protocols(),
        &[("judged", &|(name, _)| name.clone()), ("protocol id", &|(_, id)| (*id).to_owned())],
    );
    let remark = note(&format!(
        "{}. Judgements are comparable exactly if their ids are equal.",
        escape_html(&results.program)
    ));
    section("How to make it again", &[page::command(command), protocols.html(false), remark].concat())
}
