//! Comparisons of models, and the points that they give.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::statistics::check::total;

/// The outcomes of the comparisons of two models. A pair may have several tallies, in either order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// One model.
    pub first: String,
    /// The other model.
    pub second: String,
    /// Comparisons that `first` won.
    pub wins: u64,
    /// Comparisons without a winner.
    pub ties: u64,
    /// Comparisons that `second` won.
    pub losses: u64,
}

/// One Newton step costs the cube of the number of models.
const MOST_MODELS: usize = 1000;

/// What the comparisons of two models in one cluster gave: points for both.
#[derive(Clone, Copy)]
pub(super) struct Outcome {
    first: usize,
    second: usize,
    /// The index of the cluster.
    cluster: usize,
    /// The points of the first and of the second; together, the number of comparisons.
    points: [f64; 2],
}

/// The tallies with models as indices.
pub(super) struct Comparisons<'a> {
    /// The names, ascending.
    pub(super) models: Vec<&'a str>,
    pub(super) anchor: usize,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) clusters: usize,
}

impl<'a> Comparisons<'a> {
    pub(super) fn new(clusters: &'a [Vec<Tally>], anchor: &str) -> Result<Self, Error> {
        let tallies = || clusters.iter().flatten();
        if let Some(tally) = tallies().find(|tally| tally.first == tally.second) {
            return Err(Error::SelfComparison { model: tally.first.clone() });
        }
        let mut models: Vec<&str> =
            tallies().flat_map(|tally| [tally.first.as_str(), tally.second.as_str()]).collect();
        models.sort_unstable();
        models.dedup();
        if models.len() > MOST_MODELS {
            let (field, fix) = ("the number of models".into(), "rate fewer models at once");
            let (got, low, high) = (models.len() as f64, 2.0, MOST_MODELS as f64);
            return Err(Error::OutOfRange { field, got, low, high, fix });
        }
        let index = |name: &str| models.binary_search(&name);
        let unknown = |_| Error::UnknownAnchor {
            model: anchor.into(),
            known: models.iter().map(|&name| name.into()).collect(),
        };
        let anchor = index(anchor).map_err(unknown)?;

        let counts: Vec<u64> = tallies().flat_map(|tally| [tally.wins, tally.ties, tally.losses]).collect();
        total("comparisons of a rating", &counts)?;
        let outcome = |(cluster, tally): (usize, &Tally)| {
            let [first, second] =
                [&tally.first, &tally.second].map(|name| index(name).expect("all names are in the list"));
            let half = 0.5 * tally.ties as f64;
            Outcome { first, second, cluster, points: [tally.wins as f64 + half, tally.losses as f64 + half] }
        };
        let of_cluster =
            |(cluster, tallies): (usize, &'a Vec<Tally>)| tallies.iter().map(move |tally| (cluster, tally));
        let outcomes = clusters.iter().enumerate().flat_map(of_cluster).map(outcome).collect();
        Ok(Self { models, anchor, outcomes, clusters: clusters.len() })
    }

    /// The points of each model against each other one, if each cluster occurs as often as `counts` says.
    pub(super) fn points(&self, counts: &[u32]) -> Points {
        let mut points = Points { models: self.models.len(), of: vec![0.0; self.models.len().pow(2)] };
        for outcome in &self.outcomes {
            let Outcome { first, second, cluster, points: [won, lost] } = *outcome;
            let count = f64::from(counts[cluster]);
            points.of[first * points.models + second] += won * count;
            points.of[second * points.models + first] += lost * count;
        }
        points
    }

    pub(super) fn of_model(&self, model: usize) -> u64 {
        let with_model =
            self.outcomes.iter().filter(|outcome| [outcome.first, outcome.second].contains(&model));
        with_model.map(|outcome| outcome.points[0] + outcome.points[1]).sum::<f64>() as u64
    }
}

/// The points `w_ij` of model i against model j.
pub(super) struct Points {
    pub(super) models: usize,
    /// `[models, models]`, row by row
    of: Vec<f64>,
}

impl Points {
    pub(super) fn get(&self, model: usize, other: usize) -> f64 {
        self.of[model * self.models + other]
    }
}
