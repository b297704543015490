//! The log-likelihoods of an evaluation, by a model of this process.
//!
//! Protocol: `models/huggingface.py` and `api/model.py` of lm-evaluation-harness 0.4.13, with a batch size of
//! one: what is too long loses tokens on the left.
//!
//! Rows are scored without padding, longest first, so that a batch that does not fit fails at once and the
//! time left is a pessimistic guess. A context that several continuations share runs once. Batches depend on
//! the requests alone.

use std::collections::HashMap;

use eval::request::{OnResponses, Request, Response};
use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::head;
use parallel::Segmented;
use tch::{Device, no_grad};

use super::encoder::{Encoder, Refusal, is_text};
use super::error::AnswerError;
use crate::Error;

/// The tokens of a batch of rows to score. More tokens do not make a processor faster, and cost memory.
const BATCH_TOKENS: usize = 4096;

/// Scores texts with a model.
pub(super) struct Scorer<'a> {
    pub(super) model: &'a CausalLm,
    pub(super) encoder: &'a Encoder<'a>,
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

impl Scorer<'_> {
    /// Answers the requests for log-likelihoods.
    pub(super) fn respond(
        &self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), AnswerError> {
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
    fn score_rows(&self, rows: &[Row]) -> Result<Vec<(f64, bool)>, Error> {
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
        let logprobs = Vec::<f32>::try_from(&scores.logprobs).map_err(models::Error::from)?;
        let best = Vec::<i64>::try_from(&scores.argmax).map_err(models::Error::from)?;

        let mut scored = Vec::new();
        let mut next = 0;
        for reader in rows.iter().flat_map(|row| &row.readers) {
            let range = next..next + reader.targets.len();
            next = range.end;
            let sum: f64 = logprobs[range.clone()].iter().map(|&logprob| f64::from(logprob)).sum();
            if !sum.is_finite() {
                return Err(Error::LogitsNotFinite { index: reader.request });
            }
            let is_greedy =
                range.zip(&reader.targets).all(|(at, target)| best[sources[at] as usize] == *target);
            scored.push((sum, is_greedy));
        }
        Ok(scored)
    }

    /// The tokens of a request for a log-likelihood. A long text has several parts.
    fn tokens(&self, request: &Request) -> Result<Vec<Tokens>, Refusal> {
        match request {
            Request::Loglikelihood { context, continuation } => {
                let (context, continuation) =
                    self.encoder.encode_pair(&self.encoder.text(context)?, continuation, is_text(context))?;
                self.of_pair(context, continuation).map(|tokens| vec![tokens])
            }
            Request::LoglikelihoodRolling { text } => {
                let ids = self.encoder.encode(text, true)?;
                let windows = rolling_windows(&ids, self.encoder.prefix, self.encoder.max_length).into_iter();
                let tokens = |(prefix, targets)| Tokens { prefix, branch: Vec::new(), targets, cut: 0 };
                Ok(windows.map(tokens).collect())
            }
            Request::GenerateUntil { .. } => Ok(Vec::new()),
        }
    }

    fn of_pair(&self, context: Vec<i64>, continuation: Vec<i64>) -> Result<Tokens, Refusal> {
        if continuation.is_empty() {
            return Err("the continuation has no tokens; check doc_to_choice and doc_to_target".to_owned());
        }
        if context.is_empty() {
            return Err("the context has no tokens: it is white space alone; check doc_to_text".to_owned());
        }
        if continuation.len() > self.encoder.max_length {
            let (length, most) = (continuation.len(), self.encoder.max_length);
            return Err(format!("the continuation has {length} tokens, and the model takes {most}"));
        }
        // The last token is predicted, never read.
        let branch = continuation[..continuation.len() - 1].to_vec();
        if context.len() + branch.len() <= self.encoder.max_length {
            return Ok(Tokens { prefix: context, branch, targets: continuation, cut: 0 });
        }
        // Continuations of other lengths cut the context elsewhere, so nothing is shared.
        let mut prefix = [context, branch].concat();
        let cut = prefix.len() - self.encoder.max_length;
        prefix.drain(..cut);
        Ok(Tokens { prefix, branch: Vec::new(), targets: continuation, cut })
    }
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
