//! The language model of an evaluation: answers requests with a model of this process.
//!
//! Protocol: `models/huggingface.py` and `api/model.py` of lm-evaluation-harness 0.4.13, with a batch size of
//! one. White space at the end of a context moves to the continuation, the two are encoded together, and the
//! cut is made by the number of tokens of the context; what is too long loses tokens on the left.
//!
//! Rows are scored without padding, longest first, so that a batch that does not fit fails at once and the
//! time left is a pessimistic guess. A context that several continuations share runs once. Batches depend on
//! the requests alone.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use datasets::Tokenizer;
use eval::request::{LanguageModel, OnResponses, Prompt, Request, Response, move_trailing_space};
use inference::generate::{self, GenerationOptions, RequestIds};
use inference::request::FinishReason;
use inference::sample::SamplingParams;
use inference::session::Session;
use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::head;
use parallel::Segmented;
use sha2::{Digest, Sha256};
use tch::{Device, no_grad};

/// The tokens of a batch of rows to score. More tokens do not make a processor faster, and cost memory.
const BATCH_TOKENS: usize = 4096;
/// The replies that are generated at once; they are kept together.
pub(crate) const REPLIES: usize = 64;
/// The keys and values that the replies of a batch may take, in bytes. Long replies run with fewer at once.
const CACHE_BYTES: usize = 4 << 30;
/// Changes when the same request gets other numbers from this engine.
const ENGINE: &str = "colossal-chat engine 4";

/// A model of this process.
pub(crate) struct Engine<'a> {
    model: &'a CausalLm,
    tokenizer: &'a Tokenizer,
    name: String,
    digest: String,
    max_length: usize,
    /// The token that stands before a text without a context.
    prefix: i64,
    /// Its text. A text that begins with it gets no special tokens.
    prefix_text: String,
}

/// A model that was loaded from a folder.
pub(super) struct FolderModel {
    session: Session<CausalLm>,
    name: String,
    digest: String,
    max_length: Option<usize>,
}

impl FolderModel {
    /// Takes a loaded model. `max_length` limits the tokens of a row below what the model allows.
    pub(super) fn new(
        session: Session<CausalLm>,
        name: String,
        folder: &Path,
        max_length: Option<usize>,
    ) -> anyhow::Result<Self> {
        let tokenizer = session.tokenizer()?;
        let engine = Engine::new(&session.model, tokenizer, name.clone(), max_length);
        let kind = session.model.decoder().kind();
        // What ends a reply may come from another file; a template may print the date.
        let (stop_ids, tokenizer) = (tokenizer.stop_ids(), tokenizer.fingerprint()?);
        let settings = format!("{ENGINE} {} {kind:?} {stop_ids:?} {tokenizer}", engine.max_length);
        Ok(Self { digest: digest(folder, &settings)?, session, name, max_length })
    }
}

impl LanguageModel for FolderModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> &str {
        &self.digest
    }

    fn respond(
        &mut self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), eval::Error> {
        let tokenizer = self.session.tokenizer()?;
        let mut engine = Engine::new(&self.session.model, tokenizer, self.name.clone(), self.max_length);
        engine.respond(requests, answered, on_responses)
    }
}

/// A context with the continuations that are scored after it.
struct Row {
    /// The tokens that all readers share.
    prefix: Vec<i64>,
    /// What the model reads after the prefix.
    branches: Vec<Vec<i64>>,
    /// The tokens of the prefix and of all branches.
    tokens: usize,
    readers: Vec<Reader>,
}

/// A request that scores the last `targets.len()` positions of the prefix and its branch.
struct Reader {
    request: usize,
    branch: Option<usize>,
    targets: Vec<i64>,
}

/// The tokens of a request: what the model reads, cut where other requests may continue alike, and what is
/// scored at its end.
struct Tokens {
    prefix: Vec<i64>,
    branch: Vec<i64>,
    targets: Vec<i64>,
    /// What the context lost at its beginning.
    cut: usize,
}

/// The rows of all requests, while they are collected.
#[derive(Default)]
struct Rows {
    all: Vec<Row>,
    /// The first row of each prefix, which stands for the prefix, and the one that takes further branches.
    of_prefix: HashMap<Vec<i64>, (usize, usize)>,
    /// The row of each branch of a prefix, and its place in the row.
    of_branch: HashMap<(usize, Vec<i64>), (usize, usize)>,
}

impl Rows {
    /// Adds what a request reads and scores. A prefix whose branches fill a batch goes on in another row:
    /// without a context, all continuations of a task have the same prefix.
    fn add(&mut self, request: usize, Tokens { prefix, branch, targets, .. }: Tokens) {
        let (first, last) = match self.of_prefix.get(&prefix) {
            Some(&rows) => rows,
            None => self.open(prefix, None),
        };
        if branch.is_empty() {
            self.all[first].readers.push(Reader { request, branch: None, targets });
            return;
        }

        let key = (first, branch);
        if !self.of_branch.contains_key(&key) {
            let is_full = self.all[last].tokens + key.1.len() > BATCH_TOKENS;
            let has_room = !is_full || self.all[last].branches.is_empty();
            let row = if has_room { last } else { self.open(self.all[last].prefix.clone(), Some(first)).1 };
            self.of_branch.insert(key.clone(), (row, self.all[row].branches.len()));
            self.all[row].tokens += key.1.len();
            self.all[row].branches.push(key.1.clone());
        }
        let (row, place) = self.of_branch[&key];
        self.all[row].readers.push(Reader { request, branch: Some(place), targets });
    }

    /// Begins a row. Returns the first row of the prefix and this one.
    fn open(&mut self, prefix: Vec<i64>, first: Option<usize>) -> (usize, usize) {
        let row = self.all.len();
        let rows = (first.unwrap_or(row), row);
        self.of_prefix.insert(prefix.clone(), rows);
        self.all.push(Row { tokens: prefix.len(), prefix, branches: Vec::new(), readers: Vec::new() });
        rows
    }

    /// The rows, longest first.
    fn sorted(mut self) -> Vec<Row> {
        self.all.iter_mut().for_each(Row::join_single_branch);
        let order = |left: &Row, right: &Row| {
            right.tokens.cmp(&left.tokens).then_with(|| left.prefix.cmp(&right.prefix))
        };
        self.all.sort_by(order);
        self.all
    }
}

impl Row {
    /// A single continuation is no branch: it is read with the prefix.
    fn join_single_branch(&mut self) {
        if self.branches.len() == 1 && self.readers.iter().all(|reader| reader.branch.is_some()) {
            self.prefix.append(&mut self.branches[0]);
            self.branches.clear();
            self.readers.iter_mut().for_each(|reader| reader.branch = None);
        }
    }
}

/// The log-likelihood of a request so far. A long text has several rows.
#[derive(Clone, Copy)]
struct Sum {
    logprob: f64,
    is_greedy: bool,
    cut: usize,
    /// The rows that are not scored yet.
    left: usize,
}

/// What is computed for the requests for log-likelihoods.
struct ScorePlan {
    /// Longest first.
    rows: Vec<Row>,
    /// By request, what its rows add to.
    sums: Vec<Option<Sum>>,
    /// What is answered without a row.
    without_rows: Vec<(usize, Response)>,
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

/// Why a request cannot be answered; it becomes [`Response::Failed`].
type Refusal = String;

impl<'a> Engine<'a> {
    /// Takes a model that is in training. Its answers are kept nowhere, so `name` is all that tells it apart.
    pub(crate) fn new(
        model: &'a CausalLm,
        tokenizer: &'a Tokenizer,
        name: String,
        max_length: Option<usize>,
    ) -> Self {
        let eos = model.config().eos_token_ids().first().copied();
        let prefix = tokenizer.bos_id().or_else(|| tokenizer.eos_id()).or(eos).unwrap_or(0);
        let longest = model.config().max_positions() as usize;
        let max_length = max_length.unwrap_or(longest).min(longest);
        let prefix_text = tokenizer.decode(&[prefix], false).unwrap_or_default();
        Self { model, tokenizer, digest: name.clone(), name, max_length, prefix, prefix_text }
    }

    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<i64>, Refusal> {
        let has_prefix = !self.prefix_text.is_empty() && text.starts_with(&self.prefix_text);
        let add_special = add_special && !has_prefix;
        let encoded = self.tokenizer.encode(text, add_special);
        encoded.map_err(|error| error.to_string())
    }

    /// The text of a prompt; a conversation goes through the chat template.
    fn text(&self, prompt: &Prompt) -> Result<String, Refusal> {
        match prompt {
            Prompt::Text(text) => Ok(text.clone()),
            Prompt::Chat(messages) => {
                let rendered = self.tokenizer.render(messages, true);
                rendered.map(|rendered| rendered.text).map_err(|error| error.to_string())
            }
        }
    }

    /// The tokens of a request for a log-likelihood. A long text has several parts.
    fn tokens(&self, request: &Request) -> Result<Vec<Tokens>, Refusal> {
        match request {
            Request::Loglikelihood { context, continuation } => {
                let (context, continuation) =
                    self.encode_pair(&self.text(context)?, continuation, is_text(context))?;
                self.of_pair(context, continuation).map(|tokens| vec![tokens])
            }
            Request::LoglikelihoodRolling { text } => {
                let ids = self.encode(text, true)?;
                let windows = rolling_windows(&ids, self.prefix, self.max_length).into_iter();
                let tokens = |(prefix, targets)| Tokens { prefix, branch: Vec::new(), targets, cut: 0 };
                Ok(windows.map(tokens).collect())
            }
            Request::GenerateUntil { .. } => Ok(Vec::new()),
        }
    }

    /// The tokens of a context and of its continuation. `add_special` tells whether the tokenizer adds its
    /// special tokens.
    fn encode_pair(
        &self,
        context: &str,
        continuation: &str,
        add_special: bool,
    ) -> Result<(Vec<i64>, Vec<i64>), Refusal> {
        if context.is_empty() {
            let mut ids = self.encode(continuation, false)?;
            let has_prefix = ids.first() == Some(&self.prefix);
            let continuation = ids.split_off(usize::from(has_prefix));
            return Ok((vec![self.prefix], continuation));
        }
        let (kept, continuation) = move_trailing_space(context, continuation);
        let whole = self.encode(&format!("{kept}{continuation}"), add_special)?;
        let context = self.encode(kept, add_special)?;
        let continuation = whole.get(context.len()..).unwrap_or_default().to_vec();
        Ok((context, continuation))
    }

    fn of_pair(&self, context: Vec<i64>, continuation: Vec<i64>) -> Result<Tokens, Refusal> {
        if continuation.is_empty() {
            return Err("the continuation has no tokens; check doc_to_choice and doc_to_target".to_owned());
        }
        if context.is_empty() {
            return Err("the context has no tokens: it is white space alone; check doc_to_text".to_owned());
        }
        if continuation.len() > self.max_length {
            let (length, most) = (continuation.len(), self.max_length);
            return Err(format!("the continuation has {length} tokens, and the model takes {most}"));
        }
        // The last token is predicted, never read.
        let branch = continuation[..continuation.len() - 1].to_vec();
        if context.len() + branch.len() <= self.max_length {
            return Ok(Tokens { prefix: context, branch, targets: continuation, cut: 0 });
        }
        // Continuations of other lengths cut the context elsewhere, so nothing is shared.
        let mut prefix = [context, branch].concat();
        let cut = prefix.len() - self.max_length;
        prefix.drain(..cut);
        Ok(Tokens { prefix, branch: Vec::new(), targets: continuation, cut })
    }

    /// Answers the requests for log-likelihoods.
    fn score(
        &self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> anyhow::Result<()> {
        let ScorePlan { rows, mut sums, without_rows } = self.plan(requests);
        if !without_rows.is_empty() {
            on_responses(without_rows)?;
        }

        for batch in batches(&rows) {
            let needed = |row: &Row| row.readers.iter().any(|reader| !answered[reader.request]);
            if !batch.iter().any(needed) {
                continue;
            }
            let scored = self.score_rows(batch)?;

            let mut done = Vec::new();
            for (reader, (logprob, is_greedy)) in batch.iter().flat_map(|row| &row.readers).zip(scored) {
                let sum = sums[reader.request].as_mut().expect("a request with rows has a sum");
                sum.logprob += logprob;
                sum.is_greedy &= is_greedy;
                sum.left -= 1;
                if sum.left == 0 {
                    let Sum { logprob, is_greedy, cut, .. } = *sum;
                    done.push((reader.request, Response::Loglikelihood { logprob, is_greedy, cut }));
                }
            }
            on_responses(done)?;
        }
        Ok(())
    }

    /// The rows of all requests, and what they add to.
    fn plan(&self, requests: &[Request]) -> ScorePlan {
        let mut rows = Rows::default();
        let mut sums = vec![None; requests.len()];
        let mut without_rows = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            if matches!(request, Request::GenerateUntil { .. }) {
                continue;
            }
            let parts = match self.tokens(request) {
                Ok(parts) => parts,
                Err(problem) => {
                    without_rows.push((index, Response::Failed { problem }));
                    continue;
                }
            };

            // Nothing to score has probability one.
            if parts.is_empty() {
                without_rows.push((index, Response::Loglikelihood { logprob: 0.0, is_greedy: true, cut: 0 }));
            }
            let cut = parts.iter().map(|tokens| tokens.cut).sum();
            sums[index] = Some(Sum { logprob: 0.0, is_greedy: true, cut, left: parts.len() });
            for tokens in parts {
                rows.add(index, tokens);
            }
        }
        ScorePlan { rows: rows.sorted(), sums, without_rows }
    }

    /// The log-likelihood of the targets of each reader of the rows, and whether greedy decoding gives them.
    fn score_rows(&self, rows: &[Row]) -> anyhow::Result<Vec<(f64, bool)>> {
        let model = self.model;
        let batch = collate(rows, model.device());
        let starts = batch.first_indices();

        // Positions that several readers share are computed once.
        let mut places: HashMap<i64, i64> = HashMap::new();
        let mut positions: Vec<i64> = Vec::new();
        let mut sources: Vec<i64> = Vec::new();
        let mut targets: Vec<i64> = Vec::new();
        let mut sequence = 0;
        for row in rows {
            for reader in &row.readers {
                let prefix_length = row.prefix.len() as i64;
                let branch = reader.branch.map_or(0, |branch| row.branches[branch].len() as i64);
                let end = prefix_length + branch;
                for position in end - reader.targets.len() as i64..end {
                    let token = match reader.branch {
                        Some(branch) if position >= prefix_length => {
                            starts[sequence + 1 + branch] + position - prefix_length
                        }
                        _ => starts[sequence] + position,
                    };
                    sources.push(*places.entry(token).or_insert_with(|| {
                        positions.push(token);
                        positions.len() as i64 - 1
                    }));
                }
                targets.extend(&reader.targets);
            }
            sequence += 1 + row.branches.len();
        }

        let batch = batch.with_outputs(&positions);
        let scores = no_grad(|| {
            let hidden = model.forward_no_grad(&batch)?;
            head::target_logprobs(&hidden, model.head(), &sources, &targets)
        })?;
        let logprobs = Vec::<f32>::try_from(&scores.logprobs)?;
        let best = Vec::<i64>::try_from(&scores.argmax)?;

        let mut scored = Vec::new();
        let mut next = 0;
        for reader in rows.iter().flat_map(|row| &row.readers) {
            let range = next..next + reader.targets.len();
            next = range.end;
            let sum: f64 = logprobs[range.clone()].iter().map(|&logprob| f64::from(logprob)).sum();
            if !sum.is_finite() {
                return Err(inference::Error::LogitsNotFinite { index: reader.request }.into());
            }
            let is_greedy =
                range.zip(&reader.targets).all(|(at, target)| best[sources[at] as usize] == *target);
            scored.push((sum, is_greedy));
        }
        Ok(scored)
    }

    /// Answers the requests for replies.
    fn generate(
        &self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> anyhow::Result<()> {
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
            for chunk in prompts.chunks(REPLIES) {
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
        let mut ids = self.encode(&self.text(context)?, is_text(context))?;
        let Some(room) = self.max_length.checked_sub(max_gen_toks).filter(|&room| room > 0) else {
            let most = self.max_length;
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
        let tokens = (longest_prompt + max_gen_toks).min(self.max_length);
        (CACHE_BYTES / (tokens * self.model.decoder().cache_bytes_per_token()).max(1)).clamp(1, REPLIES)
    }

    /// Generates the replies to some prompts. The draws of a reply depend on its request alone.
    fn replies(
        &self,
        requests: &[Request],
        chunk: &[PromptTokens],
        settings: ReplySettings,
    ) -> anyhow::Result<Vec<(usize, Response)>> {
        let ReplySettings { max_gen_toks, temperature, is_chat } = settings;
        let tokenizer = self.tokenizer;
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
            max_num_seqs: self.num_seqs(longest, max_gen_toks),
            speculative_tokens: 0,
            draft: None,
        };

        let prompts: Vec<Vec<i64>> = chunk.iter().map(|prompt| prompt.ids.clone()).collect();
        let mut watches: Vec<StopWatch<'_>> =
            chunk.iter().map(|prompt| StopWatch::new(&requests[prompt.request])).collect();
        let completions = generate::generate(self.model, &prompts, &options, &mut |index, id| {
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

impl LanguageModel for Engine<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> &str {
        &self.digest
    }

    fn respond(
        &mut self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), eval::Error> {
        let name = self.name.clone();
        let failed = |error: anyhow::Error| match error.downcast::<eval::Error>() {
            Ok(error) => error,
            Err(error) => {
                eval::Error::Model { name, source: error.reallocate_into_boxed_dyn_error_without_backtrace() }
            }
        };
        let mut respond = || {
            self.score(requests, answered, on_responses)?;
            self.generate(requests, answered, on_responses)
        };
        respond().map_err(failed)
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

/// Whether a prompt is plain text. A chat template writes the special tokens itself.
fn is_text(prompt: &Prompt) -> bool {
    matches!(prompt, Prompt::Text(_))
}

/// The stream of random draws of a request: a number that its key gives.
fn stream(request: &Request) -> u64 {
    u64::from_str_radix(&request.key()[..16], 16).expect("a key is a hash in hexadecimal")
}

/// The flat batch of some rows: each prefix, and behind it its branches, which continue it.
fn collate(rows: &[Row], device: Device) -> Batch {
    let mut sequences: Vec<&[i64]> = Vec::new();
    let mut prefixes = Vec::new();
    for row in rows {
        let prefix = sequences.len();
        sequences.push(&row.prefix);
        prefixes.push(None);
        sequences.extend(row.branches.iter().map(Vec::as_slice));
        prefixes.extend(row.branches.iter().map(|_| Some(prefix)));
    }
    Batch::with_prefixes(&sequences, &prefixes, device)
}

/// Divides rows into batches of at most [`BATCH_TOKENS`] tokens; a longer row is a batch of its own.
fn batches(rows: &[Row]) -> Vec<&[Row]> {
    let mut batches = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (index, row) in rows.iter().enumerate() {
        if index > start && tokens + row.tokens > BATCH_TOKENS {
            batches.push(&rows[start..index]);
            (start, tokens) = (index, 0);
        }
        tokens += row.tokens;
    }
    if start < rows.len() {
        batches.push(&rows[start..]);
    }
    batches
}

/// The windows of a long text (`get_rolling_token_windows` with a context of one token): each predicts the
/// next `max_length` tokens at most, and every token once. What is read, and what is predicted at its end.
fn rolling_windows(ids: &[i64], prefix: i64, max_length: usize) -> Vec<(Vec<i64>, Vec<i64>)> {
    let mut windows = Vec::new();
    if ids.is_empty() {
        return windows;
    }
    let first = ids.len().min(max_length);
    let mut read = vec![prefix];
    read.extend_from_slice(&ids[..first - 1]);
    windows.push((read, ids[..first].to_vec()));

    let mut predicted = first;
    while predicted < ids.len() {
        let length = (ids.len() - predicted).min(max_length);
        let end = predicted + length;
        windows.push((ids[end - max_length - 1..end - 1].to_vec(), ids[predicted..end].to_vec()));
        predicted = end;
    }
    windows
}

/// A hash of the files that decide a model's answers, and of `settings`.
pub(crate) fn digest(folder: &Path, settings: &str) -> anyhow::Result<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let known = ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"];
        if name.ends_with(".safetensors") || known.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort();
    let mut hash = Sha256::new();
    hash.update(settings);
    for name in names {
        hash.update(&name);
        let mut file = std::fs::File::open(folder.join(&name))?;
        std::io::copy(&mut file, &mut hash)?;
    }
    Ok(format!("{:x}", hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_predict_every_token_once_and_keep_the_context_full() {
        let ids: Vec<i64> = (1..=10).collect();
        let windows = rolling_windows(&ids, 0, 4);
        let predicted: Vec<i64> = windows.iter().flat_map(|window| window.1.clone()).collect();
        assert_eq!(predicted, ids);
        assert_eq!(windows[0].0, [0, 1, 2, 3]);
        assert_eq!(windows[1], (vec![4, 5, 6, 7], vec![5, 6, 7, 8]));
        assert_eq!(windows[2], (vec![6, 7, 8, 9], vec![9, 10]));
        assert!(rolling_windows(&[], 0, 4).is_empty());
    }

    #[test]
    fn continuations_without_a_context_fill_several_rows() {
        // 3,000 continuations of two tokens, of which one is read, after the same prefix; each one twice.
        let mut rows = Rows::default();
        for request in 0..6000 {
            let branch = vec![request as i64 % 3000];
            rows.add(request, Tokens { prefix: vec![1; 1097], branch, targets: vec![5, 6], cut: 0 });
        }
        let rows = rows.sorted();
        // By hand: 1097 + 2999 tokens fill a batch; the last continuation has a row of its own, in one piece.
        assert_eq!(rows.iter().map(|row| row.tokens).collect::<Vec<_>>(), [BATCH_TOKENS, 1098]);
        assert_eq!(rows.iter().map(|row| row.readers.len()).collect::<Vec<_>>(), [2 * 2999, 2]);
        assert_eq!(rows[1].prefix.len(), 1098);
    }

    #[test]
    fn batches_hold_at_most_their_tokens() {
        let row = |tokens: usize| Row {
            prefix: vec![0; tokens],
            branches: Vec::new(),
            tokens,
            readers: Vec::new(),
        };
        let rows: Vec<Row> = [5000, 3000, 1000, 96, 1].map(row).into_iter().collect();
        let lengths: Vec<usize> = batches(&rows).iter().map(|batch| batch.len()).collect();
        assert_eq!(lengths, [1, 3, 1]);
    }
}
