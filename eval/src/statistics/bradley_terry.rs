//! Strengths of models from pairwise comparisons (Bradley and Terry 1952, Biometrika 39, p. 324), on the
//! scale of Elo.
//!
//! Model i beats model j with probability `sigmoid(theta_i - theta_j)`. With `w_ij` the points of i against
//! j, a win being one point and a tie half a point for both, the strengths maximize
//!
//! ```text
//! sum over i, j of w_ij ln sigmoid(theta_i - theta_j)
//! ```
//!
//! by Newton's method. The maximum is finite and unique if and only if from each model a chain of models
//! leads to each other model in which every one took points from the next (Ford 1957; Hunter 2004, "MM
//! algorithms for generalized Bradley-Terry models", Annals of Statistics 32, assumption 1). Otherwise some
//! models are infinitely stronger than others, and the error names them.
//!
//! The rating is `anchor + 400 / ln 10 (theta_i - theta_anchor)`: 400 points more are odds of 10 to 1, and
//! the anchor has the rating that it was given. Only differences of ratings mean something.
//!
//! The interval is that of the percentile bootstrap over clusters (Davison and Hinkley 1997, "Bootstrap
//! Methods and their Application", section 3.8): comparisons of one cluster, such as all votes on all models'
//! answers to one question, are drawn together, because they are not independent. Where each cluster is one
//! comparison, it is the bootstrap of Chatbot Arena (Chiang et al. 2024, arXiv 2403.04132).
//!
//! This file does not know who judged.

mod connectivity;
mod interval;

use serde::{Deserialize, Serialize};

use super::bootstrap::check_resamples;
use super::newton::{LogLikelihood, log_sigmoid, maximize, sigmoid};
use super::total;
use crate::Error;
use connectivity::separated;
use interval::intervals;

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

/// The model whose rating is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Anchor<'a> {
    /// Its name.
    pub model: &'a str,
    /// Its rating; 1000 is usual.
    pub rating: f64,
}

/// The rating of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rating {
    /// The model.
    pub model: String,
    /// Its rating on the scale of Elo.
    pub rating: f64,
    /// The ends of the 95 % bootstrap interval of the difference to the anchor, shifted to the anchor's
    /// rating. `None` without resamples; if in more than 2.5 % of them some rating was infinite, because the
    /// ends could then be infinite too; and where no resample differs, as for the anchor itself.
    pub interval: Option<(f64, f64)>,
    /// The number of comparisons with this model.
    pub comparisons: u64,
}

/// The ratings of all compared models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratings {
    /// The models, best first.
    pub models: Vec<Rating>,
    /// The number of bootstrap resamples.
    pub resamples: usize,
    /// How many of them had no finite ratings. The intervals are over the others.
    pub undetermined: usize,
}

/// One Newton step costs the cube of the number of models.
const MOST_MODELS: usize = 1000;

/// The ratings of the models of all tallies, with intervals from `resamples` bootstrap resamples (1000 is
/// usual; 0 for no intervals). Each entry of `clusters` has the comparisons that are drawn together; entries
/// are independent of one another.
pub fn bradley_terry(clusters: &[Vec<Tally>], anchor: Anchor, resamples: usize) -> Result<Ratings, Error> {
    check_resamples(resamples)?;
    if !anchor.rating.is_finite() {
        return Err(Error::NotFinite { field: "the rating of the anchor".into(), got: anchor.rating });
    }
    let comparisons = Comparisons::new(clusters, anchor.model)?;
    let points = comparisons.points(&vec![1; clusters.len()]);
    if let Some((unbeaten, others)) = separated(&points, comparisons.anchor) {
        let names =
            |models: Vec<usize>| models.iter().map(|&model| comparisons.models[model].into()).collect();
        return Err(Error::Undetermined { unbeaten: names(unbeaten), others: names(others) });
    }

    let strengths = fit(&points, comparisons.anchor, None)?;
    let (intervals, undetermined) = intervals(&comparisons, &strengths, resamples)?;

    let elo = |strength: f64| anchor.rating + 400.0 / std::f64::consts::LN_10 * strength;
    let rating = |(model, &strength): (usize, &f64)| Rating {
        model: comparisons.models[model].into(),
        rating: elo(strength),
        interval: intervals.as_ref().and_then(|ends| ends[model]).map(|(low, high)| (elo(low), elo(high))),
        comparisons: comparisons.of_model(model),
    };
    let mut models: Vec<Rating> = strengths.iter().enumerate().map(rating).collect();
    models.sort_by(|left, right| right.rating.total_cmp(&left.rating));
    Ok(Ratings { models, resamples, undetermined })
}

/// What the comparisons of two models in one cluster gave: points for both.
#[derive(Clone, Copy)]
struct Outcome {
    first: usize,
    second: usize,
    /// The index of the cluster.
    cluster: usize,
    /// The points of the first and of the second; together, the number of comparisons.
    points: [f64; 2],
}

/// The tallies with models as indices.
struct Comparisons<'a> {
    /// The names, ascending.
    models: Vec<&'a str>,
    anchor: usize,
    outcomes: Vec<Outcome>,
    clusters: usize,
}

impl<'a> Comparisons<'a> {
    fn new(clusters: &'a [Vec<Tally>], anchor: &str) -> Result<Self, Error> {
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
    fn points(&self, counts: &[u32]) -> Points {
        let mut points = Points { models: self.models.len(), of: vec![0.0; self.models.len().pow(2)] };
        for outcome in &self.outcomes {
            let Outcome { first, second, cluster, points: [won, lost] } = *outcome;
            let count = f64::from(counts[cluster]);
            points.of[first * points.models + second] += won * count;
            points.of[second * points.models + first] += lost * count;
        }
        points
    }

    fn of_model(&self, model: usize) -> u64 {
        let with_model =
            self.outcomes.iter().filter(|outcome| [outcome.first, outcome.second].contains(&model));
        with_model.map(|outcome| outcome.points[0] + outcome.points[1]).sum::<f64>() as u64
    }
}

/// The points `w_ij` of model i against model j.
struct Points {
    models: usize,
    /// `[models, models]`, row by row
    of: Vec<f64>,
}

impl Points {
    fn get(&self, model: usize, other: usize) -> f64 {
        self.of[model * self.models + other]
    }
}

/// The strengths relative to the anchor, whose own is 0. `start` is a guess.
fn fit(points: &Points, anchor: usize, start: Option<&[f64]>) -> Result<Vec<f64>, Error> {
    let zeros = vec![0.0; points.models];
    let mut start = start.unwrap_or(&zeros).to_vec();
    start.remove(anchor);
    let with_anchor = |free: &[f64]| {
        let mut strengths = free.to_vec();
        strengths.insert(anchor, 0.0);
        strengths
    };
    let evaluate = |free: &[f64]| log_likelihood(points, anchor, &with_anchor(free));
    Ok(with_anchor(&maximize("a Bradley-Terry rating", start, evaluate)?))
}

/// The log-likelihood as a function of all strengths but the anchor's.
fn log_likelihood(points: &Points, anchor: usize, strengths: &[f64]) -> LogLikelihood {
    let k = points.models - 1;
    let (mut value, mut gradient, mut hessian) = (0.0, vec![0.0; k], vec![0.0; k * k]);
    // Where a model is among the free ones.
    let free = |model: usize| (model != anchor).then(|| model - usize::from(model > anchor));
    for i in 0..points.models {
        for j in 0..i {
            let (won, lost) = (points.get(i, j), points.get(j, i));
            if won + lost == 0.0 {
                continue;
            }
            let difference = strengths[i] - strengths[j];
            let (win, loss) = (sigmoid(difference), sigmoid(-difference));
            value += won * log_sigmoid(difference) + lost * log_sigmoid(-difference);
            let (slope, weight) = (won * loss - lost * win, (won + lost) * win * loss);

            for (model, sign) in [(free(i), 1.0), (free(j), -1.0)] {
                if let Some(model) = model {
                    gradient[model] += sign * slope;
                    hessian[model * k + model] += weight;
                }
            }
            if let (Some(row), Some(column)) = (free(i), free(j)) {
                hessian[row * k + column] -= weight;
            }
        }
    }
    LogLikelihood { value, gradient, negative_hessian: hessian }
}
