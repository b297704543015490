//! Prepares the lines of a training curve: the raw line, thinned without losing its spikes, and a smoothed
//! line.
//!
//! Smoothing is a centred moving average: the value at a point is the mean of the finite values within `half`
//! points on both sides. Near the ends `half` shrinks, so that both sides always have the same number of
//! points. Unlike an exponential average, it does not lag behind a falling loss. The window is about a
//! twentieth of the points, at least 5. A point that is not finite leaves a gap in both lines.

/// Raw lines are thinned to at most this many points.
const MOST_POINTS: usize = 800;

/// Curves with fewer points than this get no smoothed line.
const FEWEST_TO_SMOOTH: usize = 20;

/// A line split at values that are not finite.
pub(crate) type Pieces = Vec<Vec<(f64, f64)>>;

/// Number of points that the smoothed line averages over (odd), or `None` if there are too few points to
/// smooth.
pub(crate) fn window(points: &[(f64, f64)]) -> Option<usize> {
    (points.len() >= FEWEST_TO_SMOOTH).then(|| (points.len() / 20).max(5) | 1)
}

/// The raw line. If it has too many points to draw, only the lowest and highest value of each run of
/// neighbours remain.
pub(super) fn raw(points: &[(f64, f64)]) -> Pieces {
    let run = (2 * points.len()).div_ceil(MOST_POINTS).max(1);
    pieces(points).into_iter().map(|piece| if run <= 2 { piece } else { thin(&piece, run) }).collect()
}

/// The smoothed line; `window` is odd.
pub(super) fn smoothed(points: &[(f64, f64)], window: usize) -> Pieces {
    // With prefix sums over the finite values, each mean costs two subtractions.
    let mut sums = vec![(0.0, 0_usize)];
    for &(_, y) in points {
        let (sum, count) = sums[sums.len() - 1];
        sums.push(if y.is_finite() { (sum + y, count + 1) } else { (sum, count) });
    }
    let last = points.len().saturating_sub(1);
    let smooth = |i: usize| {
        let half = (window / 2).min(i).min(last - i);
        let ((before, skip), (sum, count)) = (sums[i - half], sums[i + half + 1]);
        let (x, y) = points[i];
        (x, if y.is_finite() { (sum - before) / (count - skip) as f64 } else { y })
    };
    let every = points.len().div_ceil(MOST_POINTS).max(1);
    let drawn = |&i: &usize| i % every == 0 || i == last || !points[i].1.is_finite();
    pieces(&(0..points.len()).filter(drawn).map(smooth).collect::<Vec<_>>())
}

/// Number of points that are not finite and therefore not drawn.
pub(crate) fn gaps(points: &[(f64, f64)]) -> usize {
    points.iter().filter(|(x, y)| !(x.is_finite() && y.is_finite())).count()
}

fn pieces(points: &[(f64, f64)]) -> Pieces {
    let drawable = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
    let split = points.split(|point| !drawable(point));
    split.filter(|piece| !piece.is_empty()).map(<[_]>::to_vec).collect()
}

fn thin(piece: &[(f64, f64)], run: usize) -> Vec<(f64, f64)> {
    let extremes = |run: &[(f64, f64)]| {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let low = *run.iter().min_by(by_value).expect("chunks are not empty");
        let high = *run.iter().max_by(by_value).expect("chunks are not empty");
        if low.0 <= high.0 { [low, high] } else { [high, low] }
    };
    piece.chunks(run).flat_map(extremes).collect()
}
