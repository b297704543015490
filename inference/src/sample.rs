//! Samples one token from one row of logits.
//!
//! The temperature divides the logits. Top-k keeps the `k` largest. Top-p (nucleus sampling) then keeps the
//! smallest set of most likely tokens whose probabilities reach `p` (Holtzman et al. 2020, arXiv 1904.09751),
//! which always contains the most likely token. Min-p keeps the tokens with at least the fraction `p` of the
//! largest probability (Nguyen et al. 2024, arXiv 2407.01082). The kept tokens are renormalized, and one
//! uniform number draws from them by inverting the cumulative sum. Temperature 0 takes the largest logit;
//! ties go to the lowest id. On the host, thresholds are found by partial selection, so nothing of vocabulary
//! size is sorted. On a GPU ([`SamplingParams::sample_rows`]), the same steps run on all rows at once, and
//! only the sampled tokens leave it. Every request has its own generator, so a reply does not depend on the
//! other requests of the batch.

use parallel::softmax::RowWeights;
use parallel::upload;
use rand::Rng;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::Error;

/// The sampling parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f64,
    /// Keeps this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the most likely tokens that together reach this probability; 1 keeps all.
    pub top_p: f64,
    /// Keeps the tokens with at least this fraction of the largest probability; 0 keeps all.
    pub min_p: f64,
    /// Divides the positive logits of the tokens of prompt and reply, and multiplies the negative ones; 1
    /// changes none (Keskar et al. 2019, arXiv 1909.05858, section 4.1).
    pub repetition_penalty: f64,
    /// Subtracted from the logits of the tokens of the reply (`OpenAI`'s API).
    pub presence_penalty: f64,
    /// Subtracted from the logits of the tokens of the reply, once for each time that they are there
    /// (`OpenAI`'s API).
    pub frequency_penalty: f64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        }
    }
}

/// A sampled token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledToken {
    /// The token id.
    pub id: i64,
    /// The log-probability under the full distribution at the sampling temperature (before top-k and top-p).
    /// At temperature 0 it is the log-probability at temperature 1.
    pub logprob: f32,
    /// The entropy of the same distribution in nats.
    pub entropy: f32,
}

impl SamplingParams {
    /// Greedy decoding: always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Logits divided by less than this leave the range of fp32.
    const LOWEST_TEMPERATURE: f64 = 1e-6;

    /// Checks that the settings are in range.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |key, value: f64, wanted| Err(Error::Sampling { key, value, wanted });
        let lowest = Self::LOWEST_TEMPERATURE;
        if !(self.temperature == 0.0 || self.temperature >= lowest && self.temperature.is_finite()) {
            return refuse("temperature", self.temperature, "must be 0 (greedy), or a millionth or more");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p", self.top_p, "must be more than 0 and at most 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refuse("min_p", self.min_p, "must be between 0 and 1");
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return refuse("repetition_penalty", self.repetition_penalty, "must be more than 0");
        }
        let penalties =
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)];
        match penalties.into_iter().find(|(_, value)| !(-2.0..=2.0).contains(value)) {
            Some((key, value)) => refuse(key, value, "must be between -2 and 2"),
            None => Ok(()),
        }
    }

    /// Whether the tokens of prompt and reply change the logits.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// The generator of request `index` under `seed`.
    pub fn generator(seed: u64, index: u64) -> ChaCha8Rng {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(index);
        generator
    }

    /// Samples from one row of logits. `row` is working memory that is reused between calls. Returns `None`
    /// if a logit is NaN or none is finite, because there is no distribution then.
    pub fn sample(
        &self,
        logits: &[f32],
        generator: &mut ChaCha8Rng,
        row: &mut RowWeights,
    ) -> Option<SampledToken> {
        let inverse = if self.temperature == 0.0 { 1.0 } else { (1.0 / self.temperature) as f32 };
        row.compute(logits, inverse);
        let (best, total) = (row.best(), row.total());
        if !total.is_finite() {
            return None;
        }

        let logprob = |id: usize| ((logits[id] - logits[best]) * inverse) - total.ln() as f32;
        let entropy = row.entropy() as f32;
        let sampled = |id: usize| Some(SampledToken { id: id as i64, logprob: logprob(id), entropy });
        if self.temperature == 0.0 {
            return sampled(best);
        }
        let draw: f64 = generator.random();
        let threshold = self.threshold(row.weights(), total);
        sampled(if threshold > 0.0 {
            draw_above(threshold, row.weights(), draw)
        } else {
            row.find(draw * total)
        })
    }

    /// Like [`sample`](Self::sample), for all rows of `logits` `[B, V]`, fp32, on their device. `draws` has a
    /// uniform number in `[0, 1)` for each row. One copy to the device and one copy back.
    pub fn sample_rows(&self, logits: &Tensor, draws: &[f64]) -> Vec<Option<SampledToken>> {
        let inverse = if self.temperature == 0.0 { 1.0 } else { 1.0 / self.temperature };
        let (highest, best) = logits.max_dim(1, true);
        let scaled = (logits - highest) * inverse;
        let weights = scaled.exp();
        let total = weights.sum_dim_intlist(1, true, Kind::Double);

        let chosen = if self.temperature == 0.0 {
            best
        } else {
            let draws = upload(draws, logits.device()).unsqueeze(1);
            let kept = match self.row_thresholds(&weights, &total) {
                Some(thresholds) => weights.masked_fill(&weights.lt_tensor(&thresholds), 0.0),
                None => weights.shallow_clone(),
            };
            // The first token whose cumulative sum exceeds the draw, or the last kept one if rounding leaves
            // none.
            let cumulative = kept.cumsum(1, Kind::Double);
            let mass = cumulative.narrow(1, -1, 1);
            let last = cumulative.lt_tensor(&mass).sum_dim_intlist(1, true, Kind::Int64);
            cumulative.le_tensor(&(draws * mass)).sum_dim_intlist(1, true, Kind::Int64).minimum(&last)
        };

        let logprobs = scaled.gather(1, &chosen, false).to_kind(Kind::Double) - total.log();
        // Minus infinity times the weight 0 would be NaN.
        let terms = (&scaled.clamp_min(-200.0) * &weights).sum_dim_intlist(1, true, Kind::Double);
        let entropies = total.log() - terms / &total;
        // Ids are exact in fp64, so that one copy brings all.
        let rows = Tensor::cat(&[chosen.to_kind(Kind::Double), logprobs, entropies], 1);
        let rows =
            Vec::<f64>::try_from(rows.to_device(Device::Cpu).reshape([-1])).expect("a vector of numbers");
        rows.chunks_exact(3)
            .map(|row| {
                let (id, logprob, entropy) = (row[0] as i64, row[1] as f32, row[2] as f32);
                logprob.is_finite().then_some(SampledToken { id, logprob, entropy })
            })
            .collect()
    }

    /// The [threshold](Self::threshold) of each row of `weights` `[B, V]`, as `[B, 1]`; `None` to keep all.
    fn row_thresholds(&self, weights: &Tensor, total: &Tensor) -> Option<Tensor> {
        let min_p = || Tensor::full([weights.size()[0], 1], self.min_p, (weights.kind(), weights.device()));
        match self.row_thresholds_of_top(weights, total) {
            Some(thresholds) => Some(thresholds.clamp_min(self.min_p)),
            None => (self.min_p > 0.0).then(min_p),
        }
    }

    /// The row thresholds of top-k and top-p.
    fn row_thresholds_of_top(&self, weights: &Tensor, total: &Tensor) -> Option<Tensor> {
        let wants_k = self.top_k > 0 && (self.top_k as i64) < weights.size()[1];
        if !wants_k && self.top_p >= 1.0 {
            return None;
        }
        let kth = wants_k.then(|| weights.topk(self.top_k as i64, 1, true, true).0.narrow(1, -1, 1));
        if self.top_p >= 1.0 {
            return kth;
        }

        let pool = match &kth {
            Some(kth) => weights.masked_fill(&weights.lt_tensor(kth), 0.0),
            None => weights.shallow_clone(),
        };
        let mass = if wants_k { pool.sum_dim_intlist(1, true, Kind::Double) } else { total.shallow_clone() };
        let (sorted, _) = pool.sort(1, true);
        let cumulative = sorted.cumsum(1, Kind::Double);
        // The index of the first weight with which the sum reaches top-p.
        let cutoff = cumulative.lt_tensor(&(mass * self.top_p)).sum_dim_intlist(1, true, Kind::Int64);
        Some(sorted.gather(1, &cutoff.clamp_max(sorted.size()[1] - 1), false))
    }

    /// The filter: the smallest unnormalized weight that top-k, top-p and min-p keep, or 0 to keep all. The
    /// largest weight is 1. Equal weights are kept together.
    /// transformers: `TopKLogitsWarper`, `TopPLogitsWarper`, `MinPLogitsWarper`.
    fn threshold(&self, weights: &[f32], total: f64) -> f32 {
        self.threshold_of_top(weights, total).max(self.min_p as f32)
    }

    /// The threshold of top-k and top-p.
    /// vLLM: `apply_top_k_top_p`.
    fn threshold_of_top(&self, weights: &[f32], total: f64) -> f32 {
        let descending = |left: &f32, right: &f32| right.total_cmp(left);
        let wants_k = self.top_k > 0 && self.top_k < weights.len();
        let mut threshold = 0.0;
        let mut pool: Vec<f32> = Vec::new();
        let mut mass = total;
        if wants_k {
            pool = weights.to_vec();
            let (_, &mut kth, _) = pool.select_nth_unstable_by(self.top_k - 1, descending);
            threshold = kth;
            pool.retain(|&weight| weight >= kth);
            mass = sum(&pool);
        }

        if self.top_p >= 1.0 {
            return threshold;
        }
        if !wants_k {
            // All tokens below this weight together have less mass than top-p leaves out, so none of them is
            // kept.
            let floor = (mass * (1.0 - self.top_p) / weights.len() as f64) as f32;
            pool = weights.iter().copied().filter(|&weight| weight >= floor).collect();
        }

        pool.sort_unstable_by(descending);
        let mut reached = 0.0;
        for weight in pool {
            reached += f64::from(weight);
            threshold = weight;
            if reached >= self.top_p * mass {
                break;
            }
        }
        threshold
    }
}

fn sum(weights: &[f32]) -> f64 {
    // Eight partial sums let the compiler use vector instructions, and the result stays deterministic.
    let mut lanes = [0f32; 8];
    let mut total = 0.0;
    for block in weights.chunks(4096) {
        lanes.fill(0.0);
        let (body, tail) = block.as_chunks::<8>();
        for chunk in body {
            for (lane, weight) in lanes.iter_mut().zip(chunk) {
                *lane += weight;
            }
        }
        total += lanes.iter().chain(tail).map(|&value| f64::from(value)).sum::<f64>();
    }
    total
}

/// Draws one of the tokens whose weights reach `threshold`, of which there is one at least: the token at
/// which their cumulative sum passes the fraction `draw` of their sum.
fn draw_above(threshold: f32, weights: &[f32], draw: f64) -> usize {
    let kept = || weights.iter().enumerate().filter(|&(_, &weight)| weight >= threshold);
    let mut left = draw * kept().map(|(_, &weight)| f64::from(weight)).sum::<f64>();
    let mut chosen = 0;
    for (id, &weight) in kept() {
        chosen = id;
        left -= f64::from(weight);
        if left < 0.0 {
            break;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(sampling: SamplingParams, logits: &[f32], draws: usize) -> Vec<f64> {
        let mut generator = SamplingParams::generator(3, 0);
        let mut counts = vec![0.0; logits.len()];
        let mut row = RowWeights::default();
        for _ in 0..draws {
            counts[sampling.sample(logits, &mut generator, &mut row).unwrap().id as usize] +=
                1.0 / draws as f64;
        }
        counts
    }

    /// Probabilities 0.5, 0.25, 0.125, 0.125 at temperature 1.
    fn logits() -> Vec<f32> {
        [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln() + 3.0).collect()
    }

    fn expect(found: &[f64], wanted: &[f64]) {
        for (found, wanted) in found.iter().zip(wanted) {
            // Four standard deviations of 40 000 draws are at most 0.01.
            assert!((found - wanted).abs() < 0.01, "{found} against {wanted}");
        }
    }

    #[test]
    fn frequencies_follow_the_distribution() {
        expect(&frequencies(SamplingParams::default(), &logits(), 40_000), &[0.5, 0.25, 0.125, 0.125]);
    }

    #[test]
    fn temperature_sharpens() {
        // At temperature 1/2 probabilities square: 16 : 4 : 1 : 1.
        let sampling = SamplingParams { temperature: 0.5, ..SamplingParams::default() };
        expect(&frequencies(sampling, &logits(), 40_000), &[16.0 / 22.0, 4.0 / 22.0, 1.0 / 22.0, 1.0 / 22.0]);
    }

    #[test]
    fn top_k_and_top_p_cut_and_renormalize() {
        let top_k = SamplingParams { top_k: 2, ..SamplingParams::default() };
        expect(&frequencies(top_k, &logits(), 40_000), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        // 0.5 does not reach 0.6, 0.5 + 0.25 does.
        let top_p = SamplingParams { top_p: 0.6, ..SamplingParams::default() };
        expect(&frequencies(top_p, &logits(), 40_000), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        // top-p acts on what top-k left: 2/3 reaches 0.6 alone.
        let both = SamplingParams { top_k: 2, top_p: 0.6, ..SamplingParams::default() };
        expect(&frequencies(both, &logits(), 1_000), &[1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn min_p_keeps_a_fraction_of_the_largest_probability() {
        // A quarter of 0.5 is 0.125, which all tokens have; of a little more, two have it.
        let frequencies_with = |min_p| {
            let sampling = SamplingParams { min_p, ..SamplingParams::default() };
            frequencies(sampling, &logits(), 40_000)
        };
        expect(&frequencies_with(0.249), &[0.5, 0.25, 0.125, 0.125]);
        expect(&frequencies_with(0.251), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        expect(&frequencies_with(1.0), &[1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_reports_its_logprob() {
        let mut generator = SamplingParams::generator(0, 0);
        let drawn = SamplingParams::greedy()
            .sample(&[1.0, 2.0, 2.0], &mut generator, &mut RowWeights::default())
            .unwrap();
        assert_eq!(drawn.id, 1);
        // e / (1 + 2e), by hand.
        assert!(
            (drawn.logprob - (std::f32::consts::E / (1.0 + 2.0 * std::f32::consts::E)).ln()).abs() < 1e-6
        );
    }

    #[test]
    fn the_logprob_is_that_of_the_uncut_distribution() {
        let mut generator = SamplingParams::generator(1, 0);
        let sampling = SamplingParams { top_k: 1, ..SamplingParams::default() };
        let drawn = sampling.sample(&logits(), &mut generator, &mut RowWeights::default()).unwrap();
        assert!((drawn.logprob - 0.5f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn a_token_with_no_probability_is_never_drawn() {
        let mut generator = SamplingParams::generator(5, 0);
        let row = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
        for _ in 0..1000 {
            assert_eq!(
                SamplingParams::default()
                    .sample(&row, &mut generator, &mut RowWeights::default())
                    .unwrap()
                    .id,
                1
            );
        }
    }

    #[test]
    fn rows_at_once_are_sampled_as_one_by_one() {
        let (rows, vocabulary) = (64, 97);
        let logit = |index: usize| ((index as f32 * 12.9898).sin() * 43_758.547).fract() * 6.0;
        let logits: Vec<f32> = (0..rows * vocabulary).map(logit).collect();
        let tensor = Tensor::from_slice(&logits).view([rows as i64, vocabulary as i64]);
        for (temperature, top_k, top_p) in [
            (1.0, 0, 1.0),
            (0.0, 0, 1.0),
            (0.7, 5, 1.0),
            (1.3, 0, 0.6),
            (1.0, 9, 0.5),
            (2.0, 1, 0.1),
            (1.0, 500, 1.0),
            (1.0, 0, 0.99),
        ] {
            let min_p = if top_k == 0 { 0.05 } else { 0.0 };
            let sampling = SamplingParams { temperature, top_k, top_p, min_p, ..SamplingParams::default() };
            let generators = || (0..rows as u64).map(|row| SamplingParams::generator(7, row));
            let draws: Vec<f64> = generators().map(|mut generator| generator.random()).collect();
            let at_once = sampling.sample_rows(&tensor, &draws);
            for ((row, mut generator), at_once) in logits.chunks(vocabulary).zip(generators()).zip(at_once) {
                let alone = sampling.sample(row, &mut generator, &mut RowWeights::default()).unwrap();
                let at_once = at_once.unwrap();
                assert_eq!(alone.id, at_once.id, "{sampling:?}");
                assert!((alone.logprob - at_once.logprob).abs() < 1e-5, "{alone:?} {at_once:?}");
                assert!((alone.entropy - at_once.entropy).abs() < 1e-5, "{alone:?} {at_once:?}");
            }
        }
    }

    #[test]
    fn a_row_that_is_no_distribution_does_not_disturb_the_others() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let rows =
            Tensor::from_slice2(&[[0.0, 1.0], [0.0, nan], [nan, 0.0], [-inf, -inf], [inf, 0.0], [-inf, 0.0]]);
        for sampling in [SamplingParams::default(), SamplingParams::greedy()] {
            let ids: Vec<Option<i64>> = sampling
                .sample_rows(&rows, &[0.999; 6])
                .into_iter()
                .map(|token| token.map(|token| token.id))
                .collect();
            assert_eq!(ids, [Some(1), None, None, None, None, Some(1)], "{sampling:?}");
        }
    }

    #[test]
    fn what_is_no_distribution_is_not_drawn_from() {
        let mut generator = SamplingParams::generator(5, 0);
        for row in [[0.0, f32::NAN], [f32::NAN, 0.0], [f32::NEG_INFINITY; 2], [f32::INFINITY, 0.0]] {
            for sampling in [SamplingParams::default(), SamplingParams::greedy()] {
                assert_eq!(
                    sampling.sample(&row, &mut generator, &mut RowWeights::default()),
                    None,
                    "{row:?}"
                );
            }
        }
    }

    #[test]
    fn requests_have_streams_of_their_own() {
        let draw = |seed, index| SamplingParams::generator(seed, index).random::<u64>();
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }
}
