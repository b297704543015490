//! Changes the logits of a reply before a token is drawn: by what has been said, and by what the request
//! wants.

use std::collections::BTreeMap;
use std::sync::Arc;

use parallel::upload;
use tch::{Kind, Tensor};

use crate::request::Request;
use crate::sample::SamplingParams;

/// The tokens that a penalty looks at, and the bias of tokens.
#[derive(Clone, Debug)]
pub(crate) struct Adjustments {
    params: SamplingParams,
    bias: Arc<[(i64, f32)]>,
    /// How often each token of prompt and reply is in the reply.
    counts: BTreeMap<i64, u32>,
}

impl Adjustments {
    /// The adjustments of a request whose reply is empty; `None` if it wants none.
    pub(crate) fn new(request: &Request) -> Option<Self> {
        let params = request.sampling;
        if !params.has_penalties() && request.logit_bias.is_empty() {
            return None;
        }
        let counts = if params.has_penalties() { &*request.prompt } else { &[] };
        let counts = counts.iter().map(|&id| (id, 0)).collect();
        Some(Self { params, bias: Arc::clone(&request.logit_bias), counts })
    }

    /// Notes a token of the reply.
    pub(crate) fn push(&mut self, id: i64) {
        if self.params.has_penalties() {
            *self.counts.entry(id).or_default() += 1;
        }
    }

    /// Changes one row of logits `[V]`, fp32, in place.
    ///
    /// transformers: `RepetitionPenaltyLogitsProcessor`; the penalties of `OpenAI`'s API, whose documentation
    /// gives the formula.
    pub(crate) fn apply(&self, logits: &Tensor) {
        let SamplingParams { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.params;
        let device = logits.device();
        if !self.counts.is_empty() {
            let ids = upload(&self.counts.keys().copied().collect::<Vec<i64>>(), device);
            let penalty = |&count: &u32| {
                let presence = if count > 0 { presence_penalty } else { 0.0 };
                (presence + frequency_penalty * f64::from(count)) as f32
            };
            let penalties: Vec<f32> = self.counts.values().map(penalty).collect();
            let said = logits.index_select(0, &ids);
            let said = (&said / repetition_penalty).where_self(&said.gt(0.0), &(&said * repetition_penalty));
            add(logits, &ids, &said, &penalties, -1.0);
        }
        if !self.bias.is_empty() {
            let (ids, bias): (Vec<i64>, Vec<f32>) = self.bias.iter().copied().unzip();
            let ids = upload(&ids, device);
            add(logits, &ids, &logits.index_select(0, &ids), &bias, 1.0);
        }
    }
}

/// Writes `values + sign * changes` to the places `ids` of `logits`.
fn add(logits: &Tensor, ids: &Tensor, values: &Tensor, changes: &[f32], sign: f64) {
    let changed = values + upload(changes, logits.device()).to_kind(Kind::Float) * sign;
    let mut logits = logits.shallow_clone();
    let _ = logits.index_copy_(0, ids, &changed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adjusted(params: SamplingParams, bias: &[(i64, f32)], prompt: &[i64], reply: &[i64]) -> Vec<f32> {
        let request = Request { logit_bias: bias.into(), ..Request::new(prompt.into(), params) };
        let logits = Tensor::from_slice(&[1.0f32, -1.0, 2.0, -2.0]);
        if let Some(mut adjustments) = Adjustments::new(&request) {
            for &id in reply {
                adjustments.push(id);
            }
            adjustments.apply(&logits);
        }
        Vec::try_from(logits).unwrap()
    }

    #[test]
    fn penalties_by_hand() {
        let params = SamplingParams::default();
        assert_eq!(adjusted(params, &[], &[0, 1], &[2, 2]), [1.0, -1.0, 2.0, -2.0]);
        // Prompt and reply alike: positive logits are halved, negative ones doubled.
        let repetition = SamplingParams { repetition_penalty: 2.0, ..params };
        assert_eq!(adjusted(repetition, &[], &[0, 1], &[2]), [0.5, -2.0, 1.0, -2.0]);
        // The reply alone: once, and once for each time.
        let presence = SamplingParams { presence_penalty: 0.5, ..params };
        assert_eq!(adjusted(presence, &[], &[0], &[2, 2, 3]), [1.0, -1.0, 1.5, -2.5]);
        let frequency = SamplingParams { frequency_penalty: 0.5, ..params };
        assert_eq!(adjusted(frequency, &[], &[0], &[2, 2, 3]), [1.0, -1.0, 1.0, -2.5]);
    }

    #[test]
    fn a_bias_is_added_after_the_penalties() {
        let repetition = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::default() };
        let bias = [(0, 10.0), (3, -100.0)];
        assert_eq!(adjusted(repetition, &bias, &[0], &[]), [10.5, -1.0, 2.0, -102.0]);
        assert_eq!(adjusted(SamplingParams::default(), &bias, &[0], &[]), [11.0, -1.0, 2.0, -102.0]);
    }
}
