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

mod comparisons;
mod connectivity;
mod fit;
mod interval;

use serde::{Deserialize, Serialize};

use super::bootstrap::check_resamples;
use crate::Error;
use comparisons::Comparisons;
pub use comparisons::Tally;
use connectivity::separated;
use fit::fit;
use interval::intervals;

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
