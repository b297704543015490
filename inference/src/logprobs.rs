//! Log-probabilities of tokens that were not drawn: those of a prompt, and the most likely ones.

use models::causal_lm::CausalLm;
use tch::{Device, Kind, Tensor, no_grad};

use crate::Error;
use crate::request::TopLogprob;

/// The rows of logits that are computed at once. A vocabulary of 150,000 tokens takes 40 MiB then.
const ROWS: i64 = 64;

/// The log-probabilities of the tokens of a prompt at temperature 1.
pub(crate) struct PromptLogprobs {
    /// Of each target.
    pub(crate) targets: Vec<f32>,
    /// The most likely tokens in the place of each target, best first.
    pub(crate) top: Vec<Vec<TopLogprob>>,
}

/// Scores the tokens that follow hidden states `[N, H]`, one for each, with the `count` most likely tokens in
/// its place.
pub(crate) fn of_prompt(
    model: &CausalLm,
    hidden: &Tensor,
    targets: &[i64],
    count: usize,
) -> Result<PromptLogprobs, Error> {
    let mut found = PromptLogprobs { targets: Vec::new(), top: Vec::new() };
    for (chunk, first) in targets.chunks(ROWS as usize).zip((0..).step_by(ROWS as usize)) {
        let hidden = hidden.narrow(0, first, chunk.len() as i64);
        let logprobs = no_grad(|| model.head().logits(&hidden))?.log_softmax(-1, Kind::Float);
        let targets = parallel::upload(chunk, logprobs.device()).unsqueeze(1);
        found
            .targets
            .extend(numbers(&logprobs.gather(1, &targets, false)).into_iter().map(|value| value as f32));
        found.top.extend(most_likely(&logprobs, count));
    }
    Ok(found)
}

/// The `count` most likely tokens of each row of logits `[N, V]` at a temperature, best first. Temperature 0
/// counts as 1.
pub(crate) fn top(logits: &Tensor, count: usize, temperature: f64) -> Vec<Vec<TopLogprob>> {
    if count == 0 {
        return vec![Vec::new(); logits.size()[0] as usize];
    }
    let divisor = if temperature == 0.0 { 1.0 } else { temperature };
    most_likely(&(logits / divisor).log_softmax(-1, Kind::Float), count)
}

fn most_likely(logprobs: &Tensor, count: usize) -> Vec<Vec<TopLogprob>> {
    let [rows, vocab_size]: [i64; 2] = logprobs.size().try_into().expect("a matrix");
    let count = (count as i64).min(vocab_size);
    if count == 0 {
        return vec![Vec::new(); rows as usize];
    }
    let (values, ids) = logprobs.topk(count, 1, true, true);
    // Ids are exact in fp64.
    let pairs = numbers(&ids).into_iter().zip(numbers(&values));
    let pairs: Vec<TopLogprob> = pairs.map(|(id, value)| (id as i64, value as f32)).collect();
    pairs.chunks(count as usize).map(<[TopLogprob]>::to_vec).collect()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    let vector = tensor.to_device(Device::Cpu).to_kind(Kind::Double).reshape([-1]);
    Vec::try_from(vector).expect("a vector of numbers")
}
