//! The replies of an evaluation, by a model of this process.
//!
//! A reply ends before the first of its stop strings, and a prompt that leaves no room for the reply loses
//! tokens on the left. The batches and the draws of a reply depend on the requests alone.

use std::ops::ControlFlow;

use eval::request::{OnResponses, Prompt, Request, Response};
use models::causal_lm::CausalLm;

use super::encoder::{Encoder, Refusal, is_text};
use super::error::AnswerError;
use crate::Error;
use crate::generate::{self, GenerationOptions, GeneratorOptions, RequestIds};
use crate::request::FinishReason;
use crate::sample::SamplingParams;

/// The most replies that are generated at once; they are kept together.
pub const MAX_NUM_SEQS: usize = 64;
/// The keys and values that the replies of a batch may take, in bytes. Long replies run with fewer at once.
const CACHE_BYTES: usize = 4 << 30;

/// Generates replies with a model.
pub(super) struct Generator<'a> {
    pub(super) model: &'a CausalLm,
    pub(super) encoder: &'a Encoder<'a>,
}

/// Prompts whose replies have the same settings, and so may be generated together.
struct PromptGroup {
    settings: ReplySettings,
    prompts: Vec<PromptTokens>,
}

/// What decides a reply besides its prompt.
#[derive(Clone, Copy, PartialEq)]
struct ReplySettings {
    max_gen_toks: usize,
    temperature: f64,
    /// Whether a chat template made the prompt: such a reply ends with a turn, too.
    is_chat: bool,
}

/// The prompt of a request.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PromptTokens {
    request: usize,
    ids: Vec<i64>,
    /// What the prompt lost at its beginning.
    cut: usize,
}

impl Generator<'_> {
    /// Answers the requests for replies.
    pub(super) fn respond(
        &self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), AnswerError> {
        let mut groups: Vec<PromptGroup> = Vec::new();
        let mut refused = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            let &Request::GenerateUntil { ref context, max_gen_toks, temperature, .. } = request else {
                continue;
            };
            let (ids, cut) = match self.prompt(context, max_gen_toks) {
                Ok(found) => found,
                Err(problem) => {
                    refused.push((index, Response::Failed { problem }));
                    continue;
                }
            };
            let settings = ReplySettings { max_gen_toks, temperature, is_chat: !is_text(context) };
            let prompt = PromptTokens { request: index, ids, cut };
            match groups.iter_mut().find(|group| group.settings == settings) {
                Some(group) => group.prompts.push(prompt),
                None => groups.push(PromptGroup { settings, prompts: vec![prompt] }),
            }
        }
        if !refused.is_empty() {
            on_responses(refused)?;
        }

        for PromptGroup { settings, mut prompts } in groups {
            prompts.sort_by(|left, right| right.ids.len().cmp(&left.ids.len()).then_with(|| left.cmp(right)));
            for chunk in prompts.chunks(MAX_NUM_SEQS) {
                if chunk.iter().any(|prompt| !answered[prompt.request]) {
                    on_responses(self.replies(requests, chunk, settings)?)?;
                }
            }
        }
        Ok(())
    }

    /// The tokens of a prompt, of which the last ones remain if the reply would not fit, and the number of
    /// those that it lost.
    fn prompt(&self, context: &Prompt, max_gen_toks: usize) -> Result<(Vec<i64>, usize), Refusal> {
        let mut ids = self.encoder.encode(&self.encoder.text(context)?, is_text(context))?;
        let Some(room) = self.encoder.max_length.checked_sub(max_gen_toks).filter(|&room| room > 0) else {
            let most = self.encoder.max_length;
            return Err(format!(
                "the reply may have {max_gen_toks} tokens, and the model takes {most} with the prompt; set a \
                 smaller max_gen_toks"
            ));
        };
        if ids.is_empty() {
            return Err("the prompt has no tokens; check doc_to_text".to_owned());
        }
        let cut = ids.len().saturating_sub(room);
        Ok((ids.split_off(cut), cut))
    }

    /// The replies that are generated at once, so that their keys and values stay within [`CACHE_BYTES`].
    fn num_seqs(&self, longest_prompt: usize, max_gen_toks: usize) -> usize {
        let tokens = (longest_prompt + max_gen_toks).min(self.encoder.max_length);
        (CACHE_BYTES / (tokens * self.model.decoder().cache_bytes_per_token()).max(1)).clamp(1, MAX_NUM_SEQS)
    }

    /// Generates the replies to some prompts. The draws of a reply depend on its request alone.
    fn replies(
        &self,
        requests: &[Request],
        chunk: &[PromptTokens],
        settings: ReplySettings,
    ) -> Result<Vec<(usize, Response)>, Error> {
        let ReplySettings { max_gen_toks, temperature, is_chat } = settings;
        let tokenizer = self.encoder.tokenizer;
        let config = self.model.config();
        let mut stop_ids = config.eos_token_ids();
        stop_ids.extend(tokenizer.eos_id());
        if is_chat {
            stop_ids.extend(tokenizer.stop_ids());
        }
        let longest = chunk.iter().map(|prompt| prompt.ids.len()).max().unwrap_or(0);
        let options = GenerationOptions {
            sampling: SamplingParams { temperature, ..SamplingParams::default() },
            max_new_tokens: max_gen_toks,
            stop_ids,
            seed: 0,
            request_ids: RequestIds::Given(
                chunk.iter().map(|prompt| stream(&requests[prompt.request])).collect(),
            ),
        };

        let prompts: Vec<Vec<i64>> = chunk.iter().map(|prompt| prompt.ids.clone()).collect();
        let mut watches: Vec<StopWatch<'_>> =
            chunk.iter().map(|prompt| StopWatch::new(&requests[prompt.request])).collect();
        let num_seqs = self.num_seqs(longest, max_gen_toks);
        let room = GeneratorOptions::for_prompts(self.model, &prompts, max_gen_toks, num_seqs);
        let completions = generate::generate(self.model, &prompts, &room, &options, &mut |index, id| {
            watches[index].see(id, |ids| tokenizer.decode(ids, false).unwrap_or_default())
        })?;

        let mut responses = Vec::with_capacity(chunk.len());
        for (&PromptTokens { request, cut, .. }, completion) in chunk.iter().zip(completions) {
            let text = tokenizer.decode(&completion.ids, true)?;
            let until = until(&requests[request]);
            responses.push((
                request,
                Response::Reply {
                    text: eval::filter::cut_at_stop(&text, until).to_owned(),
                    tokens: completion.ids.len(),
                    ended: completion.finish_reason != FinishReason::Length,
                    cut,
                },
            ));
        }
        Ok(responses)
    }
}

/// Watches a reply for its stop texts.
struct StopWatch<'a> {
    until: &'a [String],
    /// The last tokens, as many as a stop text can have and a few more.
    tail: Vec<i64>,
    longest: usize,
}

impl<'a> StopWatch<'a> {
    fn new(request: &'a Request) -> Self {
        let until = until(request);
        let longest = until.iter().map(String::len).max().unwrap_or(0) + 2;
        Self { until, tail: Vec::new(), longest }
    }

    /// Ends the reply once a stop text is in it.
    fn see(&mut self, id: i64, decode: impl Fn(&[i64]) -> String) -> ControlFlow<()> {
        if self.until.is_empty() {
            return ControlFlow::Continue(());
        }
        self.tail.push(id);
        let start = self.tail.len().saturating_sub(self.longest);
        self.tail.drain(..start);
        let text = decode(&self.tail);
        let found = self.until.iter().any(|stop| !stop.is_empty() && text.contains(stop.as_str()));
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn until(request: &Request) -> &[String] {
    match request {
        Request::GenerateUntil { until, .. } => until,
        _ => &[],
    }
}

/// The stream of random draws of a request: a number that its key gives.
fn stream(request: &Request) -> u64 {
    u64::from_str_radix(&request.key()[..16], 16).expect("a key is a hash in hexadecimal")
}
