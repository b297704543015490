//! The tables of a judge's results, for the terminal, Markdown and the page alike.

use std::fmt::Write as _;

use super::JudgeResults;
use crate::judge::{Comparison, GroupRate, Rated};
use crate::report::{escape_html, escape_markdown, isolated};
use crate::statistics::Estimate;

/// What stands in a cell without a number.
const NOTHING: &str = "–";

/// A table of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What it shows.
    pub heading: String,
    /// The names of the columns.
    pub head: Vec<String>,
    /// The cells.
    pub rows: Vec<Vec<String>>,
    /// The number of first columns that hold words; the others hold numbers.
    pub words: usize,
}

impl Table {
    fn new(heading: &str, head: &[&str], words: usize) -> Self {
        let head = head.iter().map(|&name| name.to_owned()).collect();
        Self { heading: heading.to_owned(), head, rows: Vec::new(), words }
    }

    pub(super) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| escape_markdown(cell)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = |at: usize| if at < self.words { "---" } else { "---:" };
        let rules: Vec<&str> = (0..self.head.len()).map(rule).collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}| {} |\n{rows}", line(&self.head), rules.join(" | "))
    }

    pub(super) fn html(&self) -> String {
        let class = |at: usize| if at < self.words { "" } else { " class=\"num\"" };
        let mut table = String::from("<div class=\"wide\"><table>\n<thead><tr>");
        for (at, name) in self.head.iter().enumerate() {
            let _ = write!(table, "<th{}>{}</th>", class(at), escape_html(name));
        }
        table.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            table.push_str("<tr>");
            for (at, cell) in row.iter().enumerate() {
                let _ = write!(table, "<td{}>{}</td>", class(at), isolated(cell));
            }
            table.push_str("</tr>\n");
        }
        table + "</tbody>\n</table></div>\n"
    }
}

impl JudgeResults {
    /// All tables that have rows.
    pub fn tables(&self) -> Vec<Table> {
        let mut groups = [
            self.means_table("Ratings by category", "category", |rated| &rated.categories),
            self.means_table("Ratings by turn", "turn", |rated| &rated.turns),
            self.rates_table("Win rates by category", "category", |comparison| &comparison.categories),
            self.rates_table("Win rates by turn", "turn", |comparison| &comparison.turns),
        ];
        // A single group says what the whole says.
        groups.iter_mut().filter(|table| table.rows.len() == 1).for_each(|table| table.rows.clear());
        let mut tables = vec![self.ratings_table(), self.comparison_table(), self.standings_table()];
        tables.extend(groups);
        tables.push(self.models_table());
        tables.retain(|table| !table.rows.is_empty());
        tables
    }

    fn ratings_table(&self) -> Table {
        let head = ["model", "rating", "95 % interval", "questions", "turns", "unparsed", "failed"];
        let mut table = Table::new("Ratings from 1 to 10", &head, 1);
        for rated in &self.ratings {
            let (mean, interval) = of_estimate(rated.rating.as_ref(), |value| format!("{value:.2}"));
            let turns = rated.items.iter().filter(|item| item.rating.is_some()).count();
            table.rows.push(vec![
                rated.model.clone(),
                mean,
                interval,
                rated.rating.map_or(NOTHING.to_owned(), |estimate| estimate.n.to_string()),
                turns.to_string(),
                rated.unparsed.to_string(),
                rated.failed.to_string(),
            ]);
        }
        table
    }

    fn comparison_table(&self) -> Table {
        let head = [
            "model",
            "baseline",
            "win rate",
            "95 % interval",
            "at equal lengths",
            "95 % interval",
            "wins",
            "ties",
            "losses",
            "orders disagree",
            "unparsed",
            "failed",
        ];
        let mut table = Table::new("Win rates", &head, 2);
        let rewards = self.comparisons.iter().any(|comparison| comparison.mean_rewards.is_some());
        if rewards {
            table.head.push("mean rewards".to_owned());
        }
        for comparison in &self.comparisons {
            let (rate, interval) = of_estimate(comparison.win_rate.as_ref(), percent);
            let controlled = comparison.length_controlled.as_ref().map(|controlled| &controlled.win_rate);
            let (equal, equal_interval) = of_estimate(controlled, percent);
            let Comparison { wins, ties, losses, unparsed, failed, .. } = comparison;
            let mut row = vec![comparison.system.clone(), comparison.baseline.clone()];
            row.extend([rate, interval, equal, equal_interval]);
            row.extend([wins, ties, losses].map(ToString::to_string));
            row.push(comparison.disagreements.map_or(NOTHING.to_owned(), percent));
            row.extend([unparsed, failed].map(ToString::to_string));
            if rewards {
                let pair = |[ours, theirs]: [f64; 2]| format!("{ours:+.3}, {theirs:+.3}");
                row.push(comparison.mean_rewards.map_or(NOTHING.to_owned(), pair));
            }
            table.rows.push(row);
        }
        table
    }

    fn standings_table(&self) -> Table {
        let head = ["model", "rating", "95 % interval", "votes"];
        let mut table = Table::new("Standings (Bradley-Terry, the baseline at 1000)", &head, 1);
        for rating in self.standings.iter().flat_map(|standings| &standings.models) {
            // The anchor's rating is given.
            let interval = |(low, high): (f64, f64)| {
                if low < high { format!("{low:.0} to {high:.0}") } else { NOTHING.to_owned() }
            };
            table.rows.push(vec![
                rating.model.clone(),
                format!("{:.0}", rating.rating),
                rating.interval.map_or(NOTHING.to_owned(), interval),
                rating.comparisons.to_string(),
            ]);
        }
        table
    }

    /// One row for each group, one column for each model.
    fn means_table(
        &self,
        heading: &str,
        group: &str,
        groups: fn(&Rated) -> &Vec<crate::judge::GroupMean>,
    ) -> Table {
        let mut table = Table::new(heading, &[group], 1);
        table.head.extend(self.ratings.iter().map(|rated| rated.model.clone()));
        for name in names(self.ratings.iter().flat_map(|rated| groups(rated).iter().map(|mean| &mean.name))) {
            let cell = |rated: &Rated| {
                let Some(mean) = groups(rated).iter().find(|mean| mean.name == name) else {
                    return NOTHING.to_owned();
                };
                let interval = mean.interval.map(|(low, high)| format!(" ({low:.2} to {high:.2})"));
                format!("{:.2}{}", mean.mean, interval.unwrap_or_default())
            };
            let cells: Vec<String> = self.ratings.iter().map(cell).collect();
            table.rows.push([vec![name.clone()], cells].concat());
        }
        table
    }

    /// One row for each group, one column for each comparison.
    fn rates_table(&self, heading: &str, group: &str, groups: fn(&Comparison) -> &Vec<GroupRate>) -> Table {
        let mut table = Table::new(heading, &[group], 1);
        table.head.extend(self.comparisons.iter().map(|comparison| comparison.system.clone()));
        let all =
            self.comparisons.iter().flat_map(|comparison| groups(comparison).iter().map(|rate| &rate.name));
        for name in names(all) {
            let cell = |comparison: &Comparison| {
                let found = groups(comparison).iter().find(|rate| rate.name == name);
                let Some(estimate) = found.and_then(|rate| rate.win_rate.as_ref()) else {
                    return NOTHING.to_owned();
                };
                let (rate, interval) = of_estimate(Some(estimate), percent);
                format!("{rate} ({interval})")
            };
            let cells: Vec<String> = self.comparisons.iter().map(cell).collect();
            table.rows.push([vec![name.clone()], cells].concat());
        }
        table
    }

    fn models_table(&self) -> Table {
        let head = ["model", "answered", "unanswered", "replies at the limit", "mean length, characters"];
        let mut table = Table::new("Answers", &head, 1);
        for model in &self.models {
            let counts = [model.answered, model.unanswered, model.cut].map(|count| count.to_string());
            let length = format!("{:.0}", model.mean_length);
            table.rows.push([vec![model.name.clone()], counts.to_vec(), vec![length]].concat());
        }
        table
    }
}

/// Names without repetition, in their order.
fn names<'a>(all: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in all {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// The mean and the interval of an estimate.
fn of_estimate(estimate: Option<&Estimate>, number: fn(f64) -> String) -> (String, String) {
    estimate.map_or((NOTHING.to_owned(), NOTHING.to_owned()), |estimate| {
        (number(estimate.mean), format!("{} to {}", number(estimate.low), number(estimate.high)))
    })
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
