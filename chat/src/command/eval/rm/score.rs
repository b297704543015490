//! Runs a reward model over the replies of files.
//!
//! Conversations are encoded as in training and scored at the last token. One that is too long loses tokens
//! on the left, so that the reply stays; `RewardBench` does the same. Equal conversations are scored once, so
//! equal replies have equal scores. Batches run without padding, the longest conversations first, so that a
//! batch that does not fit into memory fails at once.

use std::cmp::Reverse;
use std::collections::HashMap;

use datasets::RowLocation;
use eval::request::{Response, sha256};
use eval::response_cache::ResponseCache;
use eval::reward_model::ScoredFile;
use eval::reward_model::data::DataFile;
use inference::model_folder::ModelFolder;
use inference::session::Session;
use models::scalar_model::ScalarModel;

use crate::args::EvalRmArgs;
use crate::evaluation::model::reward_digest;
use crate::input;
use crate::session::WeightSettings;

/// A reward model that scores conversations.
pub(super) struct Scorer {
    session: Session<ScalarModel>,
    max_length: usize,
    batch_size: usize,
}

/// The scores that a reward model has given so far, in a file.
pub(super) struct HeldScores {
    /// The file.
    pub(super) cache: ResponseCache,
    /// The hash of what decides scores.
    pub(super) digest: String,
}

impl HeldScores {
    /// The scores of a batch, if all are held.
    fn get(&self, batch: &[&[i64]]) -> Option<Vec<f64>> {
        let score = |ids: &&[i64]| match self.cache.get(&self.digest, &key(ids))? {
            Response::Loglikelihood { logprob, .. } => Some(*logprob),
            _ => None,
        };
        batch.iter().map(score).collect()
    }

    /// Keeps the scores of a batch. A score stands where a log-likelihood would.
    fn put(&mut self, batch: &[&[i64]], scores: &[f64]) -> Result<(), eval::Error> {
        let response = |&logprob: &f64| Response::Loglikelihood { logprob, is_greedy: false, cut: 0 };
        let kept: Vec<(String, Response)> =
            batch.iter().map(|ids| key(ids)).zip(scores.iter().map(response)).collect();
        self.cache.put(&self.digest, kept.iter().map(|(key, response)| (key.as_str(), response)))
    }
}

/// The hash of an encoded conversation.
fn key(ids: &[i64]) -> String {
    sha256(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())
}

/// A conversation to score, and the row that has it first.
struct Conversation {
    ids: Vec<i64>,
    at: RowLocation,
}

/// The conversations of all files, each once.
#[derive(Default)]
struct Plan {
    conversations: Vec<Conversation>,
    places: HashMap<Vec<i64>, usize>,
}

impl Plan {
    /// The place of a conversation, which is new or known.
    fn place(&mut self, ids: Vec<i64>, at: &RowLocation) -> usize {
        if let Some(&place) = self.places.get(&ids) {
            return place;
        }
        let place = self.conversations.len();
        self.places.insert(ids.clone(), place);
        self.conversations.push(Conversation { ids, at: at.clone() });
        place
    }
}

impl Scorer {
    /// Takes a loaded model, which must have a tokenizer.
    pub(super) fn new(session: Session<ScalarModel>, arguments: &EvalRmArgs) -> anyhow::Result<Self> {
        session.tokenizer()?;
        let longest = session.model.config().max_positions() as usize;
        let max_length = arguments.max_length.map_or(longest, usize::from).min(longest);
        Ok(Self { session, max_length, batch_size: arguments.batch_size.get() })
    }

    /// The most tokens of a conversation.
    pub(super) fn max_length(&self) -> usize {
        self.max_length
    }

    /// The hash of what decides scores.
    pub(super) fn digest(&self, folder: &ModelFolder, weights: WeightSettings) -> anyhow::Result<String> {
        reward_digest(&self.session, folder, weights, self.max_length)
    }

    /// Scores every reply whose score is not held. `on_batch` is told how many of all conversations are done.
    pub(super) fn score(
        &self,
        files: Vec<DataFile>,
        held: &mut HeldScores,
        on_batch: &mut dyn FnMut(usize, usize),
    ) -> anyhow::Result<Vec<ScoredFile>> {
        let mut plan = Plan::default();
        let mut planned: Vec<(DataFile, Vec<Vec<usize>>, usize)> = Vec::with_capacity(files.len());
        for file in files {
            let mut cut = 0;
            let mut places = Vec::with_capacity(file.entries.len());
            for entry in &file.entries {
                let mut of_entry = Vec::with_capacity(entry.replies.len());
                for reply in 0..entry.replies.len() {
                    let encoded = self.session.tokenizer()?.encode_scored(&entry.conversation(reply));
                    let mut ids = encoded.map_err(|error| error.in_row(&entry.at))?;
                    let too_many = ids.len().saturating_sub(self.max_length);
                    cut += usize::from(too_many > 0);
                    ids.drain(..too_many);
                    of_entry.push(plan.place(ids, &entry.at));
                }
                places.push(of_entry);
            }
            planned.push((file, places, cut));
        }

        let scores = self.run(&plan.conversations, held, on_batch)?;
        let scored = |(data, places, cut): (DataFile, Vec<Vec<usize>>, usize)| {
            let of_entry = |places: &Vec<usize>| places.iter().map(|&place| scores[place]).collect();
            ScoredFile { data, scores: places.iter().map(of_entry).collect(), cut }
        };
        Ok(planned.into_iter().map(scored).collect())
    }

    /// The score of each conversation. A batch is run whole, or not at all if all of its scores are held, so
    /// that the numbers do not depend on where an earlier run ended.
    fn run(
        &self,
        conversations: &[Conversation],
        held: &mut HeldScores,
        on_batch: &mut dyn FnMut(usize, usize),
    ) -> anyhow::Result<Vec<f64>> {
        let (vocab_size, longest) =
            (self.session.model.config().vocab_size(), self.session.model.config().max_positions());
        for Conversation { ids, at } in conversations {
            input::check_ids(ids, at, vocab_size, longest)?;
        }
        let mut order: Vec<usize> = (0..conversations.len()).collect();
        order.sort_by_key(|&index| Reverse(conversations[index].ids.len()));

        let mut scores = vec![0.0; conversations.len()];
        let mut done = 0;
        on_batch(done, order.len());
        for batch in order.chunks(self.batch_size) {
            let ids: Vec<&[i64]> = batch.iter().map(|&index| conversations[index].ids.as_slice()).collect();
            let found = if let Some(found) = held.get(&ids) {
                found
            } else {
                let found = Vec::<f32>::try_from(&rlhf::reward::score(&self.session.model, &ids)?)?;
                for (&index, score) in batch.iter().zip(&found) {
                    input::check_finite(&conversations[index].at, [score])?;
                }
                let found: Vec<f64> = found.into_iter().map(f64::from).collect();
                held.put(&ids, &found)?;
                found
            };
            for (&index, score) in batch.iter().zip(found) {
                scores[index] = score;
            }
            done += batch.len();
            on_batch(done, order.len());
        }
        Ok(scores)
    }
}
