//! Bootstrap intervals of strengths: draws of how often each cluster of comparisons occurs.
//!
//! This file does not know how strengths are computed.

use super::comparisons::Comparisons;
use super::connectivity::separated;
use super::fit::fit;
use crate::Error;
use crate::statistics::bootstrap::{Draws, percentile_interval};
use crate::statistics::estimate::CONFIDENCE;

/// The largest number of outcomes and clusters over all resamples: a few minutes.
const MOST_DRAWS: f64 = 1e10;

/// Ends of the interval of each strength. `None` where no resample differs from another.
type Intervals = Vec<Option<(f64, f64)>>;

/// The intervals of the strengths, and the number of resamples whose strengths are not finite. No intervals
/// without resamples, or if that number is above the share of resamples that lie outside at one end.
pub(super) fn intervals(
    comparisons: &Comparisons,
    strengths: &[f64],
    resamples: usize,
) -> Result<(Option<Intervals>, usize), Error> {
    check_draws((comparisons.outcomes.len() + comparisons.clusters) as f64 * resamples as f64)?;
    let mut draws = Draws::new();
    let mut drawn = vec![Vec::with_capacity(resamples); strengths.len()];
    let mut undetermined = 0;
    for _ in 0..resamples {
        let points = comparisons.points(&resample(comparisons.clusters, &mut draws));
        if separated(&points, comparisons.anchor).is_some() {
            undetermined += 1;
            continue;
        }
        let resampled = fit(&points, comparisons.anchor, Some(strengths))?;
        drawn.iter_mut().zip(resampled).for_each(|(drawn, strength)| drawn.push(strength));
    }

    let tail = (1.0 - CONFIDENCE) / 2.0;
    if resamples == 0 || undetermined as f64 > tail * resamples as f64 {
        return Ok((None, undetermined));
    }
    let ends_of = |mut drawn: Vec<f64>| {
        drawn.sort_by(f64::total_cmp);
        let (low, high) = percentile_interval(&drawn);
        // Equal resamples differ by what is left of the last step of the fit.
        (high - low > 1e-9).then_some((low, high))
    };
    Ok((Some(drawn.into_iter().map(ends_of).collect()), undetermined))
}

fn check_draws(draws: f64) -> Result<(), Error> {
    if draws <= MOST_DRAWS {
        return Ok(());
    }
    let fix = "ask for fewer resamples; so many comparisons need few";
    let field = "the number of comparisons times the number of resamples".into();
    Err(Error::OutOfRange { field, got: draws, low: 0.0, high: MOST_DRAWS, fix })
}

/// How often each of the clusters occurs in one resample of as many.
fn resample(clusters: usize, draws: &mut Draws) -> Vec<u32> {
    let mut counts = vec![0; clusters];
    for _ in 0..clusters {
        counts[draws.index(clusters)] += 1;
    }
    counts
}
