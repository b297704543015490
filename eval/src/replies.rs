//! Replies of a model to questions with one right answer, and whether they are right.
//!
//! The judge is exact match and never a reward model. A question is a prompt as token ids: which template made it is the caller's.
//! Sampled replies are drawn several to a question; statistics average within a question first.

use std::ops::ControlFlow;

use models::causal_lm::CausalLm;
use models::generate::{self, GenerationOptions};
use models::sample::SamplingParams;

use crate::metric::exact_match;
use crate::{Error, report::Reply};

/// A prompt and the only right reply to it.
#[derive(Clone, Debug)]
pub struct Question {
    /// The prompt, generation prompt included.
    pub prompt: Vec<i64>,
    /// The right reply.
    pub answer: String,
}

/// How replies are drawn.
#[derive(Clone, Copy, Debug)]
pub struct SamplingOptions {
    /// Replies to each question.
    pub samples: usize,
    /// 0 is greedy.
    pub temperature: f64,
    /// The longest reply in tokens.
    pub max_new_tokens: usize,
    /// Chooses the draws.
    pub seed: u64,
}

/// For each question its replies, each marked right or wrong.
///
/// `stop_ids` end a reply; `decode` turns ids into text without special tokens.
pub fn replies(
    model: &CausalLm,
    questions: &[Question],
    drawing: SamplingOptions,
    stop_ids: &[i64],
    decode: &dyn Fn(&[i64]) -> String,
) -> Result<Vec<Vec<Reply>>, Error> {
    let prompts: Vec<Vec<i64>> = questions
        .iter()
        .flat_map(|question| std::iter::repeat_n(question.prompt.clone(), drawing.samples))
        .collect();
    let options = GenerationOptions {
        sampling: SamplingParams { temperature: drawing.temperature, ..SamplingParams::default() },
        max_new_tokens: drawing.max_new_tokens,
        stop_ids: stop_ids.to_vec(),
        seed: drawing.seed,
        request_offset: 0,
        max_num_seqs: 256,
    };
    let completions = generate::generate(model, &prompts, &options, &mut |_, _| ControlFlow::Continue(()))?;
    let judged = |(question, completions): (&Question, &[generate::Completion])| {
        completions
            .iter()
            .map(|completion| {
                let text = decode(&completion.ids);
                let correct = exact_match(&text, &question.answer);
                Reply { text, correct }
            })
            .collect()
    };
    Ok(questions.iter().zip(completions.chunks(drawing.samples.max(1))).map(judged).collect())
}
