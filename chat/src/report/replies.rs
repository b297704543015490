//! Samples replies of a model to questions with one right answer, and scores them.
//!
//! A reply is scored by exact match, never by a reward model. A question is a prompt as token ids; the caller
//! applies the chat template. Several replies may be sampled per question; the statistics average within a
//! question first.

use std::ops::ControlFlow;

use eval::metric::exact_match;
use eval::report::Reply;
use models::causal_lm::CausalLm;
use models::generate::{self, GenerationOptions, RequestIds};
use models::sample::SamplingParams;

/// A prompt and the only right reply to it.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The prompt as token ids, including the generation prompt.
    pub(crate) prompt: Vec<i64>,
    /// The right reply.
    pub(crate) answer: String,
}

/// How replies are sampled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SamplingOptions {
    /// Replies per question.
    pub(crate) samples: usize,
    /// The sampling temperature; 0 means greedy decoding.
    pub(crate) temperature: f64,
    /// The longest reply in tokens.
    pub(crate) max_new_tokens: usize,
    /// The seed of the sampling.
    pub(crate) seed: u64,
}

/// Samples the replies to each question and marks each reply as right or wrong.
///
/// `stop_ids` end a reply; `decode` turns token ids into text without special tokens.
pub(crate) fn replies(
    model: &CausalLm,
    questions: &[Question],
    drawing: SamplingOptions,
    stop_ids: &[i64],
    decode: &dyn Fn(&[i64]) -> String,
) -> Result<Vec<Vec<Reply>>, models::Error> {
    let prompts: Vec<Vec<i64>> = questions
        .iter()
        .flat_map(|question| std::iter::repeat_n(question.prompt.clone(), drawing.samples))
        .collect();

    let options = GenerationOptions {
        sampling: SamplingParams { temperature: drawing.temperature, ..SamplingParams::default() },
        max_new_tokens: drawing.max_new_tokens,
        stop_ids: stop_ids.to_vec(),
        seed: drawing.seed,
        request_ids: RequestIds::From(0),
        max_num_seqs: 256,
    };

    let completions = generate::generate(model, &prompts, &options, &mut |_, _| ControlFlow::Continue(()))?;

    let marked = |(question, completions): (&Question, &[generate::Completion])| {
        completions
            .iter()
            .map(|completion| {
                let text = decode(&completion.ids);
                let correct = exact_match(&text, &question.answer);
                Reply { text, correct }
            })
            .collect()
    };
    Ok(questions.iter().zip(completions.chunks(drawing.samples.max(1))).map(marked).collect())
}
