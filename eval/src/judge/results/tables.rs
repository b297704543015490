//! The tables of a judge's results, for the terminal, Markdown and the page alike.

use super::JudgeResults;
use crate::judge::{Comparison, GroupMean, GroupRate, Rated};
use crate::page::Table;
use crate::page::number::{or_nothing, percent};
use crate::statistics::Estimate;

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
        let turns = |rated: &Rated| rated.items.iter().filter(|item| item.rating.is_some()).count();
        Table::of(
            "Ratings from 1 to 10",
            1,
            &self.ratings,
            &[
                ("model", &|rated| rated.model.clone()),
                ("rating", &|rated| or_nothing(rated.rating.as_ref(), |rating| two(rating.mean))),
                ("95 % interval", &|rated| or_nothing(rated.rating.as_ref(), |rating| ends(rating, two))),
                ("questions", &|rated| or_nothing(rated.rating, |rating| rating.n.to_string())),
                ("turns", &|rated| turns(rated).to_string()),
                ("unparsed", &|rated| rated.unparsed.to_string()),
                ("failed", &|rated| rated.failed.to_string()),
            ],
        )
    }

    fn comparison_table(&self) -> Table {
        let equal = |row: &Comparison| row.length_controlled.as_ref().map(|controlled| controlled.win_rate);
        let mut table = Table::of(
            "Win rates",
            2,
            &self.comparisons,
            &[
                ("model", &|row| row.system.clone()),
                ("baseline", &|row| row.baseline.clone()),
                ("win rate", &|row| or_nothing(row.win_rate, |rate| percent(rate.mean))),
                ("95 % interval", &|row| or_nothing(row.win_rate, |rate| ends(&rate, percent))),
                ("at equal lengths", &|row| or_nothing(equal(row), |rate| percent(rate.mean))),
                ("95 % interval", &|row| or_nothing(equal(row), |rate| ends(&rate, percent))),
                ("wins", &|row| row.wins.to_string()),
                ("ties", &|row| row.ties.to_string()),
                ("losses", &|row| row.losses.to_string()),
                ("orders disagree", &|row| or_nothing(row.disagreements, percent)),
                ("unparsed", &|row| row.unparsed.to_string()),
                ("failed", &|row| row.failed.to_string()),
            ],
        );
        if self.comparisons.iter().any(|row| row.mean_rewards.is_some()) {
            table.head.push("mean rewards".to_owned());
            for (row, comparison) in table.rows.iter_mut().zip(&self.comparisons) {
                let pair = |[ours, theirs]: [f64; 2]| format!("{ours:+.3}, {theirs:+.3}");
                row.push(or_nothing(comparison.mean_rewards, pair));
            }
        }
        table
    }

    fn standings_table(&self) -> Table {
        let models = self.standings.as_ref().map_or(&[][..], |standings| standings.models.as_slice());
        // The anchor's rating is given.
        let interval = |interval: Option<(f64, f64)>| {
            let ends = interval.filter(|(low, high)| low < high);
            or_nothing(ends, |(low, high)| format!("{low:.0} to {high:.0}"))
        };
        Table::of(
            "Standings (Bradley-Terry, the baseline at 1000)",
            1,
            models,
            &[
                ("model", &|rating| rating.model.clone()),
                ("rating", &|rating| format!("{:.0}", rating.rating)),
                ("95 % interval", &|rating| interval(rating.interval)),
                ("votes", &|rating| rating.comparisons.to_string()),
            ],
        )
    }

    /// One row for each group, one column for each model.
    fn means_table(&self, title: &str, group: &str, groups: fn(&Rated) -> &Vec<GroupMean>) -> Table {
        let named = |mean: &GroupMean| {
            let interval = mean.interval.map(|(low, high)| format!(" ({low:.2} to {high:.2})"));
            (mean.name.clone(), two(mean.mean) + &interval.unwrap_or_default())
        };
        let column = |rated: &Rated| (rated.model.clone(), groups(rated).iter().map(named).collect());
        group_table(title, group, self.ratings.iter().map(column).collect())
    }

    /// One row for each group, one column for each comparison.
    fn rates_table(&self, title: &str, group: &str, groups: fn(&Comparison) -> &Vec<GroupRate>) -> Table {
        let text = |rate: Estimate| format!("{} ({})", percent(rate.mean), ends(&rate, percent));
        let named = |rate: &GroupRate| (rate.name.clone(), or_nothing(rate.win_rate, text));
        let column = |row: &Comparison| (row.system.clone(), groups(row).iter().map(named).collect());
        group_table(title, group, self.comparisons.iter().map(column).collect())
    }

    fn models_table(&self) -> Table {
        Table::of(
            "Answers",
            1,
            &self.models,
            &[
                ("model", &|model| model.name.clone()),
                ("answered", &|model| model.answered.to_string()),
                ("unanswered", &|model| model.unanswered.to_string()),
                ("replies at the limit", &|model| model.cut.to_string()),
                ("mean length, characters", &|model| format!("{:.0}", model.mean_length)),
            ],
        )
    }
}

/// A table of groups. `columns` are their headings, each with the names of groups and the cells.
fn group_table(title: &str, group: &str, columns: Vec<(String, Vec<(String, String)>)>) -> Table {
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in columns.iter().flat_map(|(_, cells)| cells) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut table = Table::of(title, 1, &names, &[(group, &|name| (*name).clone())]);
    for (row, name) in table.rows.iter_mut().zip(&names) {
        let cell = |(_, cells): &(String, Vec<(String, String)>)| {
            or_nothing(cells.iter().find(|(of, _)| of == *name), |(_, cell)| cell.clone())
        };
        row.extend(columns.iter().map(cell));
    }
    table.head.extend(columns.into_iter().map(|(heading, _)| heading));
    table
}

/// The ends of the interval of an estimate.
fn ends(estimate: &Estimate, number: fn(f64) -> String) -> String {
    format!("{} to {}", number(estimate.low), number(estimate.high))
}

fn two(number: f64) -> String {
    format!("{number:.2}")
}
