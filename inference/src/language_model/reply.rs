//! The replies of an evaluation, by a model of this process: one generator for all requests.
//!
//! A reply ends before the first of its stop strings, and a prompt that leaves no room for the reply loses
//! tokens on the left. The draws of a reply depend on its request alone. Its logits depend in their last bits
//! on what is computed beside it, so the requests are answered in parts that depend on the requests alone:
//! an evaluation that was broken off does the part again in which it was, and gets the same replies.

use std::ops::ControlFlow;

use eval::request::{OnResponses, Prompt, Request, Response};
use models::causal_lm::CausalLm;

use super::encoder::{Encoder, Refusal, is_text};
use super::error::AnswerError;
use crate::Error;
use crate::generate::{Completion, GenerationOptions, Generator, GeneratorOptions, RequestIds};
use crate::request::FinishReason;
use crate::sample::SamplingParams;

/// The most replies that are generated at once.
pub const MAX_NUM_SEQS: usize = 64;
/// The most replies of a part. At its end fewer and fewer replies are under way, so a part is several times
/// as long as there are replies at once.
const PART: usize = 4 * MAX_NUM_SEQS;
/// The most keys and values of the replies at once, in bytes. Long replies wait until there is room for them.
const CACHE_BYTES: usize = 4 << 30;

/// Answers the requests for replies.
pub(super) struct ReplyWriter<'a> {
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

impl ReplyWriter<'_> {
    /// Answers the requests for replies.
    pub(super) fn respond(
        &self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), AnswerError> {
        let (groups, refused) = self.grouped(requests);
        if !refused.is_empty() {
            on_responses(refused)?;
        }

        let is_open = |prompt: &PromptTokens| !answered[prompt.request];
        if !groups.iter().flat_map(|group| &group.prompts).any(is_open) {
            return Ok(());
        }
        let mut generator = Generator::new(self.model, &self.room(&groups))?;
        for PromptGroup { settings, mut prompts } in groups {
            prompts.sort_by(|left, right| right.ids.len().cmp(&left.ids.len()).then_with(|| left.cmp(right)));
            for part in prompts.chunks(PART).filter(|part| part.iter().any(is_open)) {
                self.write(&mut generator, requests, part, settings, on_responses)?;
            }
        }
        Ok(())
    }

    /// The prompts of all requests for replies, and the answers to those that are refused.
    fn grouped(&self, requests: &[Request]) -> (Vec<PromptGroup>, Vec<(usize, Response)>) {
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
        (groups, refused)
    }

    /// Room for the longest replies, if the keys and values stay within [`CACHE_BYTES`].
    fn room(&self, groups: &[PromptGroup]) -> GeneratorOptions<'static> {
        let longest = |group: &PromptGroup| {
            let prompt = group.prompts.iter().map(|prompt| prompt.ids.len()).max().unwrap_or(0);
            prompt + group.settings.max_gen_toks
        };
        let count: usize = groups.iter().map(|group| group.prompts.len()).sum();
        GeneratorOptions {
            max_num_seqs: count.min(MAX_NUM_SEQS),
            longest: groups.iter().map(longest).max().unwrap_or(0),
            most_cached_tokens: CACHE_BYTES / self.model.decoder().cache_bytes_per_token().max(1),
            speculative_tokens: 0,
            draft: None,
        }
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

    /// Generates the replies to some prompts, each of which goes out once it has ended.
    fn write(
        &self,
        generator: &mut Generator,
        requests: &[Request],
        part: &[PromptTokens],
        settings: ReplySettings,
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), AnswerError> {
        let tokenizer = self.encoder.tokenizer;
        let stream = |prompt: &PromptTokens| stream(&requests[prompt.request]);
        let options = GenerationOptions {
            sampling: SamplingParams { temperature: settings.temperature, ..SamplingParams::default() },
            max_new_tokens: settings.max_gen_toks,
            stop_ids: self.stop_ids(settings.is_chat),
            seed: 0,
            request_ids: RequestIds::Given(part.iter().map(stream).collect()),
        };
        let prompts: Vec<Vec<i64>> = part.iter().map(|prompt| prompt.ids.clone()).collect();

        let mut watches: Vec<StopWatch<'_>> =
            part.iter().map(|prompt| StopWatch::new(&requests[prompt.request])).collect();
        let mut on_token = |index: usize, id: i64| {
            watches[index].see(id, |ids| tokenizer.decode(ids, false).unwrap_or_default())
        };
        let mut failed = None;
        let mut on_reply = |index: usize, completion: &Completion| {
            let response = self.response(requests, &part[index], completion);
            match response.and_then(|response| Ok(on_responses(vec![response])?)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        generator.generate_each(&prompts, &options, &mut on_token, &mut on_reply)?;
        failed.map_or(Ok(()), Err)
    }

    /// The tokens that end a reply.
    fn stop_ids(&self, is_chat: bool) -> Vec<i64> {
        let tokenizer = self.encoder.tokenizer;
        let mut stop_ids = self.model.config().eos_token_ids();
        stop_ids.extend(tokenizer.eos_id());
        if is_chat {
            stop_ids.extend(tokenizer.stop_ids());
        }
        stop_ids
    }

    /// The answer to a request whose reply has ended.
    fn response(
        &self,
        requests: &[Request],
        &PromptTokens { request, cut, .. }: &PromptTokens,
        completion: &Completion,
    ) -> Result<(usize, Response), AnswerError> {
        let text = self.encoder.tokenizer.decode(&completion.ids, true).map_err(Error::from)?;
        let text = eval::filter::cut_at_stop(&text, until(&requests[request])).to_owned();
        let ended = completion.finish_reason != FinishReason::Length;
        Ok((request, Response::Reply { text, tokens: completion.ids.len(), ended, cut }))
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
