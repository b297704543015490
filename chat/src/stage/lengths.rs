//! How long the sequences of tokens are that run through the models of a stage.

use datasets::dataset::TrainingRow;
use planner::segment::RowTokens;

use super::rows::EncodedRows;

/// The replies to tasks that a model in training generates at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskReplies {
    /// Their number in each process.
    pub(super) count: usize,
    /// The tokens of the longest with its prompt, for which the cache has room.
    pub(super) capacity: usize,
    /// The bytes that a program takes that is made of a reply and run; 0 if no task runs code.
    pub(super) programs: usize,
}

/// The sequences of tokens that run through the models.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SequenceLengths {
    /// Mean and standard deviation of the number of tokens.
    pub(super) mean: f64,
    pub(super) deviation: f64,
    /// The tokens of the longest sequence.
    pub(super) longest: usize,
    /// Whether attention has to pad sequences of different lengths.
    pub(super) are_mixed: bool,
    pub(super) num_rows: usize,
    /// The sequences of a row: two for a pair.
    pub(super) per_row: usize,
    /// The tokens of the longest reply of a rollout, for which its cache has room; 0 in a stage without
    /// rollouts.
    pub(super) new_tokens: usize,
    /// The tokens that replies are taken to have in training.
    pub(super) reply_tokens: usize,
    /// The replies to a prompt that become rows, in a stage that makes rows of the replies of a rollout. The
    /// policy runs on no replies before it learns from them. `None` in every other stage.
    pub(super) learned_per_prompt: Option<usize>,
    /// The mean row; in a stage with rollouts, the mean prompt.
    pub(super) row: RowTokens,
    /// The mean row of the language-modelling term of PPO, if there is one.
    pub(super) ptx: Option<RowTokens>,
    /// What the loss of each row reads without gradients before the step begins.
    pub(super) before_step: Option<RowTokens>,
    /// The bytes of a position with logits that a step keeps of models that are not trained: their last
    /// hidden states.
    pub(super) frozen_state: usize,
    /// The replies to the tasks of `[eval]`, if there are any.
    pub(super) task_replies: Option<TaskReplies>,
}

impl SequenceLengths {
    /// The lengths of rows with `per_row` sequences each, whose mean is `row`.
    pub(super) fn of<T: TrainingRow>(encoded: &EncodedRows<T>, per_row: usize, row: RowTokens) -> Self {
        let EncodedRows { rows, tokens, longest, .. } = encoded;
        let count = rows.len().max(1) as f64;
        let mean = *tokens as f64 / count;
        let squares = rows.iter().map(|row| (row.num_tokens() as f64 - mean).powi(2));
        let deviation = (squares.sum::<f64>() / count).sqrt();
        let (longest, num_rows, are_mixed) = (*longest, rows.len(), deviation > 0.0);
        Self { mean, deviation, longest, are_mixed, num_rows, per_row, row, ..Self::default() }
    }

    /// The lengths of bins of packed rows, whose mean is `row`: nearly full bins, each with several rows of
    /// different lengths.
    pub(super) fn packed<T>(rows: &EncodedRows<T>, bin_tokens: usize, row: RowTokens) -> Self {
        let (mean, num_rows) = (bin_tokens as f64, rows.tokens.div_ceil(bin_tokens));
        let row = row.times(rows.rows.len() as f64 / num_rows.max(1) as f64);
        Self {
            mean,
            deviation: 0.0,
            longest: bin_tokens,
            are_mixed: true,
            num_rows,
            per_row: 1,
            row,
            ..Self::default()
        }
    }

    /// Sequences that are all as long as the mean, with the shortest replies: at least one micro-batch takes
    /// as much memory as these.
    pub(super) fn at_least(self) -> Self {
        let sequences = if self.new_tokens > 0 { 1 } else { self.per_row };
        let mean = self.row.tokens / sequences as f64;
        let reply_tokens = self.new_tokens.min(1);
        Self { mean, deviation: 0.0, longest: mean as usize, are_mixed: false, reply_tokens, ..self }
    }

    /// The tokens of the largest micro-batch of `rows` rows. Of `n` values of a normal distribution, the
    /// largest is about `sqrt(2 ln n)` deviations above the mean.
    pub(super) fn largest_micro_batch(&self, rows: usize) -> usize {
        let sequences = (rows * self.per_row) as f64;
        let num_micro_batches = self.num_rows.div_ceil(rows).max(1) as f64;
        let above = self.deviation * sequences.sqrt() * (2.0 * num_micro_batches.ln()).sqrt();
        let expected = (self.mean * sequences + above).min(self.longest as f64 * sequences);
        (expected + self.reply_tokens as f64 * sequences) as usize
    }
}
