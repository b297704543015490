//! What the service counts, in the text format of Prometheus. The names are vLLM's where it has them, so that
//! its dashboards need another prefix.

use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The name of a model.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ModelLabel {
    pub(crate) model_name: String,
}

/// The name of a model, and how a reply ended.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    pub(crate) model_name: String,
    pub(crate) finished_reason: String,
}

/// A status code of HTTP.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct StatusLabel {
    pub(crate) status: u16,
}

type Count = Family<ModelLabel, Counter<u64, AtomicU64>>;
type Level = Family<ModelLabel, Gauge<i64, AtomicI64>>;
type Seconds = Family<ModelLabel, Histogram>;

/// The metrics of the service.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) requests_running: Level,
    pub(crate) requests_waiting: Level,
    pub(crate) cached_tokens_used: Level,
    pub(crate) prompt_tokens: Count,
    pub(crate) shared_prompt_tokens: Count,
    pub(crate) generation_tokens: Count,
    pub(crate) preemptions: Count,
    pub(crate) draft_tokens: Count,
    pub(crate) accepted_tokens: Count,
    pub(crate) cancelled: Count,
    pub(crate) finished: Family<ReasonLabel, Counter>,
    pub(crate) responses: Family<StatusLabel, Counter>,
    pub(crate) time_to_first_token: Seconds,
    pub(crate) time_per_output_token: Seconds,
    pub(crate) request_seconds: Seconds,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let seconds = || Seconds::new_with_constructor(|| Histogram::new(BUCKETS));
        let mut metrics = Self {
            registry: Registry::with_prefix("colossal_chat"),
            requests_running: Level::default(),
            requests_waiting: Level::default(),
            cached_tokens_used: Level::default(),
            prompt_tokens: Count::default(),
            shared_prompt_tokens: Count::default(),
            generation_tokens: Count::default(),
            preemptions: Count::default(),
            draft_tokens: Count::default(),
            accepted_tokens: Count::default(),
            cancelled: Count::default(),
            finished: Family::default(),
            responses: Family::default(),
            time_to_first_token: seconds(),
            time_per_output_token: seconds(),
            request_seconds: seconds(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let levels = [
            ("num_requests_running", "Replies that are being computed", &self.requests_running),
            ("num_requests_waiting", "Requests that wait for room", &self.requests_waiting),
            ("kv_cache_used_tokens", "Tokens in the pages of the KV cache", &self.cached_tokens_used),
        ];
        let counts = [
            ("prompt_tokens", "Tokens of prompts that were computed", &self.prompt_tokens),
            ("prefix_cache_hits", "Tokens of prompts that were in the KV cache", &self.shared_prompt_tokens),
            ("generation_tokens", "Tokens of replies", &self.generation_tokens),
            ("num_preemptions", "Replies that gave up their pages for others", &self.preemptions),
            ("spec_decode_num_draft_tokens", "Tokens of replies that were guessed", &self.draft_tokens),
            ("spec_decode_num_accepted_tokens", "Guesses that were right", &self.accepted_tokens),
            ("requests_cancelled", "Requests whose client went away", &self.cancelled),
        ];
        let seconds = [
            ("time_to_first_token_seconds", "From a request to its first token", &self.time_to_first_token),
            ("time_per_output_token_seconds", "Between two tokens of a reply", &self.time_per_output_token),
            ("e2e_request_latency_seconds", "From a request to its end", &self.request_seconds),
        ];
        let registry = &mut self.registry;
        let _ = levels.map(|(name, help, metric)| registry.register(name, help, metric.clone()));
        let _ = counts.map(|(name, help, metric)| registry.register(name, help, metric.clone()));
        let _ = seconds.map(|(name, help, metric)| registry.register(name, help, metric.clone()));
        registry.register("request_success", "Replies, by why they ended", self.finished.clone());
        registry.register("http_responses", "Responses, by status", self.responses.clone());
    }

    /// The metrics as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes any text");
        text
    }
}

/// The upper ends of the classes of times, in seconds.
const BUCKETS: [f64; 14] =
    [0.001, 0.003, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 10.0, 40.0, 160.0];

/// Notes a time.
pub(crate) fn observe(family: &Seconds, label: &ModelLabel, time: Duration) {
    family.get_or_create(label).observe(time.as_secs_f64());
}
