//! The strengths that make the points of models likeliest.

use super::comparisons::Points;
use crate::Error;
use crate::statistics::newton::{LogLikelihood, log_sigmoid, maximize, sigmoid};

/// The strengths relative to the anchor, whose own is 0. `start` is a guess.
pub(super) fn fit(points: &Points, anchor: usize, start: Option<&[f64]>) -> Result<Vec<f64>, Error> {
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
