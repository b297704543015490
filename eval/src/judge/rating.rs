//! Ratings of single answers. Turns are averaged within their question, so questions are the independent
//! units; turns without a rating are left out, as in `FastChat`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::judgement::{JudgedBy, warning_of_few, warnings_of_missing};
use crate::Error;
use crate::statistics::{Estimate, clustered_mean, mean_of_items};

/// The ends of the scale.
const LOWEST: f64 = 1.0;
const HIGHEST: f64 = 10.0;

/// One turn with its rating.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatedTurn {
    /// The index of the question.
    pub row: usize,
    /// The id of the question.
    pub question: String,
    /// Its category.
    pub category: String,
    /// The turn, from 1.
    pub turn: usize,
    /// The rating, from 1 to 10.
    pub rating: Option<f64>,
    /// Why the judge gave no answer. Without it and without a rating, its replies could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// The replies of the judge: the second one follows a reminder.
    pub replies: Vec<String>,
}

/// The mean rating of some turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupMean {
    /// The category, or the number of the turn.
    pub name: String,
    /// The mean.
    pub mean: f64,
    /// Its 95 % interval, with questions as the independent units. `None` with fewer than two questions.
    pub interval: Option<(f64, f64)>,
    /// The number of rated turns.
    pub n: usize,
}

/// The ratings of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rated {
    /// Who judged.
    pub by: JudgedBy,
    /// The name of the model.
    pub model: String,
    /// The mean over questions. `None` with fewer than two rated questions.
    pub rating: Option<Estimate>,
    /// The mean of the first turns, of the second turns, and so on.
    pub turns: Vec<GroupMean>,
    /// The mean of each category.
    pub categories: Vec<GroupMean>,
    /// The turns whose verdict could not be read. They do not count.
    pub unparsed: usize,
    /// The turns that the judge could not answer. They do not count.
    pub failed: usize,
    /// What speaks against these numbers.
    pub warnings: Vec<String>,
    /// All turns.
    pub items: Vec<RatedTurn>,
}

impl Rated {
    pub(super) fn new(by: JudgedBy, model: String, items: Vec<RatedTurn>) -> Result<Self, Error> {
        let failed = items.iter().filter(|item| item.failed.is_some()).count();
        let unparsed = items.iter().filter(|item| item.failed.is_none() && item.rating.is_none()).count();
        let mut questions: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for item in &items {
            if let Some(rating) = item.rating {
                questions.entry(item.row).or_default().push(rating);
            }
        }
        let questions: Vec<Vec<f64>> = questions.into_values().collect();
        let rated = items.iter().filter(|item| item.rating.is_some()).count();
        let mut warnings: Vec<String> = warning_of_few("questions", questions.len()).into_iter().collect();
        warnings.extend(warnings_of_missing("turns", rated, unparsed, failed));
        let rating = match questions.len() {
            0 | 1 => None,
            _ => Some(mean_of_items(&questions)?.within(LOWEST, HIGHEST)),
        };
        Ok(Self {
            by,
            model,
            rating,
            turns: means(&items, |item| (item.turn, item.turn.to_string()))?,
            categories: means(&items, |item| (0, item.category.clone()))?,
            unparsed,
            failed,
            warnings,
            items,
        })
    }
}

impl Rated {
    /// Turns the rows among the judged questions into rows among all: `rows` has them for each judged one.
    pub fn place_among(&mut self, rows: &[usize]) {
        self.items.iter_mut().for_each(|item| item.row = rows[item.row]);
    }
}

/// The mean of each group of turns, in the order of the keys; groups without a name are left out.
fn means(
    items: &[RatedTurn],
    group: impl Fn(&RatedTurn) -> (usize, String),
) -> Result<Vec<GroupMean>, Error> {
    let mut groups: BTreeMap<(usize, String), (Vec<f64>, Vec<usize>)> = BTreeMap::new();
    for item in items {
        if let Some(rating) = item.rating {
            let (ratings, rows) = groups.entry(group(item)).or_default();
            ratings.push(rating);
            rows.push(item.row);
        }
    }
    groups.retain(|(_, name), _| !name.is_empty());
    let mean = |((_, name), (ratings, rows)): ((usize, String), (Vec<f64>, Vec<usize>))| {
        let (mean, n) = (ratings.iter().sum::<f64>() / ratings.len() as f64, ratings.len());
        let interval = match clustered_mean(&ratings, &rows) {
            Ok(estimate) => estimate.within(LOWEST, HIGHEST).interval(),
            Err(Error::TooFewClusters { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(GroupMean { name, mean, interval, n })
    };
    groups.into_iter().map(mean).collect()
}
