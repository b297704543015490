//! The results of a judge as one HTML page: charts, tables, warnings, and every item with its texts.
//!
//! The page has no script and loads nothing. Names, questions, answers and the judge's replies are untrusted
//! text, so everything is escaped. Items are filtered with radio buttons and sibling selectors alone.

use std::fmt::Write as _;

use super::JudgeResults;
use crate::judge::{
    AnswerSheet, Comparison, JudgedPair, Order, Outcome, Preference, Question, Rated, RatedTurn,
};
use crate::report::{IntervalRow, escape_html, head, interval_chart, isolated, section};

/// What this page adds to the style of every report.
const STYLE: &str = include_str!("style.css");
/// The most characters of a text on the page. The whole text is in the files beside it.
const MOST: usize = 20_000;

/// A filter of the items: the class of its rows, and its label.
type Filter = (&'static str, &'static str);

const OF_PAIRS: [Filter; 6] = [
    ("all", "all"),
    ("win", "won"),
    ("tie", "tied"),
    ("loss", "lost"),
    ("unparsed", "unparsed"),
    ("failed", "failed"),
];
const OF_TURNS: [Filter; 5] =
    [("all", "all"), ("low", "up to 4"), ("high", "above 4"), ("unparsed", "unparsed"), ("failed", "failed")];
/// The largest rating of the class `low`.
const LOW: f64 = 4.0;

/// Renders the page. `sheets` are the answers to `questions` that were judged.
pub fn html(results: &JudgeResults, questions: &[Question], sheets: &[AnswerSheet], command: &str) -> String {
    let mut page = head(&format!("Judged by {}", results.judge), STYLE);
    let warnings = results.all_warnings();
    if !warnings.is_empty() {
        page.push_str("<ul class=\"warnings\" aria-label=\"warnings\">\n");
        for warning in warnings {
            let _ = writeln!(page, "<li>{}</li>", isolated(&warning));
        }
        page.push_str("</ul>\n");
    }
    page.push_str(&charts(results));
    for table in results.tables() {
        page.push_str(&section(&escape_html(&table.heading), &table.html()));
    }

    let sheet_of = |name: &str| sheets.iter().find(|sheet| sheet.model == name);
    for (number, rated) in results.ratings.iter().enumerate() {
        let row = |item| rated_row(item, questions, sheet_of(&rated.model));
        let rows: Vec<_> = rated.items.iter().map(row).collect();
        let heading = format!("Ratings of {}", isolated(&rated.model));
        let columns = ["question", "category", "turn", "rating", "length"];
        page.push_str(&items(&heading, &format!("rated-{number}"), &columns, &OF_TURNS, &rows));
    }
    for (number, comparison) in results.comparisons.iter().enumerate() {
        let sheets = [&comparison.system, &comparison.baseline].map(|name| sheet_of(name));
        let row = |item| pair_row(comparison, item, questions, sheets);
        let rows: Vec<_> = comparison.items.iter().map(row).collect();
        let heading = format!("{} against {}", isolated(&comparison.system), isolated(&comparison.baseline));
        let columns = ["question", "category", "turn", "outcome", "verdicts", "lengths"];
        page.push_str(&items(&heading, &format!("pairs-{number}"), &columns, &OF_PAIRS, &rows));
    }
    page.push_str(&reproduction(results, command));
    page + "</main>\n</body>\n</html>\n"
}

/// The headline numbers with their intervals.
fn charts(results: &JudgeResults) -> String {
    let row = |(name, estimate, text): (&String, crate::statistics::Estimate, String)| IntervalRow {
        label: name.clone(),
        mean: estimate.mean,
        low: estimate.low,
        high: estimate.high,
        text,
    };
    let rating = |rated: &Rated| {
        let estimate = rated.rating?;
        Some(row((&rated.model, estimate, format!("{:.2}", estimate.mean))))
    };
    let rate = |comparison: &Comparison| {
        let mut estimate = comparison.win_rate?;
        for number in [&mut estimate.mean, &mut estimate.low, &mut estimate.high] {
            *number *= 100.0;
        }
        Some(row((&comparison.system, estimate, format!("{:.1} %", estimate.mean))))
    };
    let ratings: Vec<IntervalRow> = results.ratings.iter().filter_map(rating).collect();
    let rates: Vec<IntervalRow> = results.comparisons.iter().filter_map(rate).collect();
    let mut figures = String::new();
    for (title, rows, range) in [
        ("Mean rating with its 95 % interval", ratings, (1.0, 10.0)),
        ("Win rate against the baseline, %, with its 95 % interval", rates, (0.0, 100.0)),
    ] {
        if !rows.is_empty() {
            let _ = writeln!(figures, "<figure>{}</figure>", interval_chart(title, &rows, range));
        }
    }
    figures
}

/// A section with a table of items. `rows` are their classes and their HTML.
fn items(
    heading: &str,
    id: &str,
    columns: &[&str],
    filters: &[Filter],
    rows: &[(&'static str, String)],
) -> String {
    let mut body = String::from("<div class=\"items\">\n");
    for (class, label) in filters {
        let count = rows.iter().filter(|(of_row, _)| *class == "all" || of_row == class).count();
        let checked = if *class == "all" { " checked" } else { "" };
        let _ = writeln!(
            body,
            "<input type=\"radio\" name=\"{id}\" id=\"{id}-{class}\" class=\"show-{class}\"{checked}>\
             <label for=\"{id}-{class}\">{label} ({count})</label>"
        );
    }
    body.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for column in columns {
        let _ = write!(body, "<th>{column}</th>");
    }
    body.push_str("</tr></thead>\n<tbody>\n");
    body.extend(rows.iter().map(|(_, row)| row.as_str()));
    body.push_str("</tbody>\n</table></div>\n</div>\n");
    section(heading, &body)
}

fn rated_row(
    item: &RatedTurn,
    questions: &[Question],
    sheet: Option<&AnswerSheet>,
) -> (&'static str, String) {
    let (class, rating) = match (item.rating, &item.failed) {
        (_, Some(_)) => ("failed", "failed".to_owned()),
        (None, None) => ("unparsed", "unparsed".to_owned()),
        (Some(rating), None) => (if rating <= LOW { "low" } else { "high" }, rating.to_string()),
    };
    let reply = reply(sheet, item.row, item.turn);
    let cells = [
        item.question.clone(),
        item.category.clone(),
        item.turn.to_string(),
        rating,
        reply.chars().count().to_string(),
    ];
    let texts = format!(
        "{}{}{}",
        asked(questions, item.row, item.turn),
        text("answer", reply),
        said("judge", &item.replies, item.failed.as_deref())
    );
    (class, row(class, &cells, &texts))
}

fn pair_row(
    comparison: &Comparison,
    item: &JudgedPair,
    questions: &[Question],
    sheets: [Option<&AnswerSheet>; 2],
) -> (&'static str, String) {
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
    let cells = [
        item.question.clone(),
        item.category.clone(),
        item.turn.to_string(),
        outcome.to_owned(),
        verdicts,
        format!("{}, {}", item.lengths[0], item.lengths[1]),
    ];
    let [ours, theirs] = sheets.map(|sheet| reply(sheet, item.row, item.turn));
    let mut texts = format!(
        "{}<div class=\"replies\">{}{}</div>",
        asked(questions, item.row, item.turn),
        text(&comparison.system, ours),
        text(&comparison.baseline, theirs)
    );
    let firsts = [&comparison.system, &comparison.baseline];
    for (order, first) in item.orders.iter().zip(firsts) {
        texts.push_str(&said(&format!("judge, {first} first"), &order.replies, order.failed.as_deref()));
    }
    (class, row(class, &cells, &texts))
}

/// A row of cells, and one with the texts.
fn row(class: &str, cells: &[String], texts: &str) -> String {
    let mut row = format!("<tr class=\"{class}\">");
    for cell in cells {
        let _ = write!(row, "<td>{}</td>", isolated(cell));
    }
    let columns = cells.len();
    let _ = writeln!(
        row,
        "</tr>\n<tr class=\"{class} texts\"><td colspan=\"{columns}\"><details><summary>texts</summary>{texts}</details></td></tr>"
    );
    row
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
    let shown = match text.char_indices().nth(MOST) {
        Some((end, _)) => {
            format!("{}… (cut here; the files beside this page have the whole text)", &text[..end])
        }
        None => text.to_owned(),
    };
    format!(
        "<div class=\"reply\"><span class=\"what\">{}</span><pre dir=\"auto\">{}</pre></div>\n",
        isolated(what),
        escape_html(&shown)
    )
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
    let mut body = format!("<pre class=\"command\">{}</pre>\n", escape_html(command));
    body.push_str(
        "<div class=\"wide\"><table>\n<thead><tr><th>judged</th><th>protocol id</th></tr></thead>\n<tbody>\n",
    );
    for (name, id) in results.protocols() {
        let _ = writeln!(body, "<tr><td>{}</td><td>{}</td></tr>", isolated(&name), isolated(id));
    }
    body.push_str("</tbody>\n</table></div>\n");
    let _ = writeln!(
        body,
        "<p class=\"note\">{}. Judgements are comparable exactly if their ids are equal.</p>",
        escape_html(&results.program)
    );
    section("How to make it again", &body)
}
