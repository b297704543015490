//! The fields of a request that say how tokens are drawn, in the words of OpenAI's API and of vLLM.

use std::collections::BTreeMap;
use std::sync::Arc;

use inference::request::Request;
use inference::sample::SamplingParams;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::state::{Limits, Ready};

/// How tokens are drawn.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct Sampling {
    /// Divides the logits; 0 is greedy. 1 if absent.
    temperature: Option<f64>,
    /// Keeps the most likely tokens that together reach this probability.
    top_p: Option<f64>,
    /// Keeps this many of the most likely tokens; 0 and -1 keep all.
    top_k: Option<i64>,
    /// Keeps the tokens with at least this fraction of the largest probability.
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    /// What is added to the logits of tokens, by token id.
    logit_bias: Option<BTreeMap<String, f32>>,
    /// The seed of the draws. If absent, every request has another one.
    seed: Option<i64>,
    /// The strings before which a reply ends.
    stop: Option<OneOrMany>,
    /// Whether a reply goes on after its end-of-sequence token.
    #[serde(default)]
    ignore_eos: bool,
    /// The number of replies.
    n: Option<u32>,
}

/// A string or several.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string, or an array of strings")]
pub(crate) enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Sampling {
    /// The number of replies.
    pub(crate) fn samples(&self, limits: &Limits) -> Result<u32, ApiError> {
        match self.n.unwrap_or(1) {
            samples if (1..=limits.samples).contains(&samples) => Ok(samples),
            samples => Err(ApiError::field("n", format!("{samples} replies; from 1 to {}", limits.samples))),
        }
    }

    /// The stop strings.
    pub(crate) fn stops(&self, limits: &Limits) -> Result<Vec<String>, ApiError> {
        let stops = match &self.stop {
            None => Vec::new(),
            Some(OneOrMany::One(stop)) => vec![stop.clone()],
            Some(OneOrMany::Many(stops)) => stops.clone(),
        };
        if stops.len() > limits.stops {
            return Err(ApiError::field(
                "stop",
                format!("{} strings; at most {}", stops.len(), limits.stops),
            ));
        }
        match stops.iter().find(|stop| stop.is_empty() || stop.len() > limits.stop_bytes) {
            Some(stop) => {
                let problem =
                    format!("a stop string has {} bytes; from 1 to {}", stop.len(), limits.stop_bytes);
                Err(ApiError::field("stop", problem))
            }
            None => Ok(stops),
        }
    }

    /// A request for a prompt, with everything but its length.
    pub(crate) fn request(
        &self,
        prompt: Arc<[i64]>,
        model: &Ready,
        limits: &Limits,
    ) -> Result<Request, ApiError> {
        let defaults = SamplingParams::default();
        let top_k = self.top_k.unwrap_or(0);
        let sampling = SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: usize::try_from(top_k.max(0)).unwrap_or(usize::MAX),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
        };
        if let Err(inference::Error::Sampling { key, value, wanted }) = sampling.check() {
            return Err(ApiError::field(key, format!("{value} {wanted}")));
        }

        Ok(Request {
            samples: self.samples(limits)?,
            logit_bias: self.bias(model.vocab_size)?,
            seed: self.seed.map_or_else(rand::random, i64::cast_unsigned),
            stop_ids: if self.ignore_eos { Arc::new([]) } else { Arc::clone(&model.stop_ids) },
            ..Request::new(prompt, sampling)
        })
    }

    fn bias(&self, vocab_size: i64) -> Result<Arc<[(i64, f32)]>, ApiError> {
        let bias = self.logit_bias.iter().flatten().map(|(id, &value)| {
            let token: Option<i64> = id.parse().ok().filter(|token| (0..vocab_size).contains(token));
            let Some(id) = token else {
                return Err(ApiError::field(
                    "logit_bias",
                    format!("`{id}` is no token id below {vocab_size}"),
                ));
            };
            if !(-100.0..=100.0).contains(&value) {
                return Err(ApiError::field(
                    "logit_bias",
                    format!("{value} for the token {id}; from -100 to 100"),
                ));
            }
            Ok((id, value))
        });
        bias.collect()
    }
}

/// The number of new tokens that a request wants.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// The field that says so.
    pub(crate) field: &'static str,
    /// The number.
    pub(crate) tokens: usize,
}

/// The number of new tokens for a prompt: what the request wants, or all that fit.
pub(crate) fn new_tokens(wanted: Option<Wanted>, prompt: usize, model: &Ready) -> Result<usize, ApiError> {
    let room = model.context.tokens.saturating_sub(prompt);
    match wanted {
        _ if room == 0 => Err(ApiError::long_prompt(prompt, model.context)),
        Some(Wanted { field, tokens }) if tokens > room => {
            Err(ApiError::long_reply(prompt, field, tokens, model.context))
        }
        Some(Wanted { tokens, .. }) => Ok(tokens),
        None => Ok(room),
    }
}
