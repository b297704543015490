//! `generate`: generates replies to prompts and writes rows of `ids`, `text` and `finish_reason`.
//!
//! Every input row has one output row. With `--n` it holds a list of samples, as vLLM's `RequestOutput` holds
//! its `outputs`; with `--best-of` it holds the sample with the highest score ([`best_of`]). The samples of a
//! prompt follow one another, so that they share the computation of the prompt.

mod best_of;
mod reply;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use datasets::{Conversation, Message, RowLocation};
use inference::generate::{self, Completion, GenerationOptions, GeneratorOptions, RequestIds};
use inference::sample::SamplingParams;
use inference::session::Session;
use models::causal_lm::CausalLm;
use serde::Serialize;

use self::best_of::BestOf;
use self::reply::Reply;
use crate::adapters;
use crate::args::{GenerateArgs, SamplingArgs};
use crate::config::ConfigError;
use crate::input::{self, Input, InputKind, RowInput};
use crate::output;
use crate::session::{self, Speculation};

/// An output row of `--n`.
#[derive(Serialize)]
struct Samples<'a> {
    samples: &'a [Reply],
}

/// Generates replies to each prompt and writes them.
pub(crate) fn run(arguments: &GenerateArgs) -> anyhow::Result<()> {
    check_samples(arguments)?;
    if let Some(output) = &arguments.output {
        let inputs: Vec<&Path> = arguments.source.input.iter().map(PathBuf::as_path).collect();
        output::check_output_file(output, arguments.force, &inputs)?;
    }
    let inputs = inputs(arguments)?;
    let best_of = BestOf::find(&arguments.samples)?;

    let source = adapters::one_model(arguments.model.source(), arguments.adapter.as_deref())?;
    let speculation = arguments.speculation.speculation(&source);
    let session = session::causal_lm(&source)?;
    let prompts = prompts(&session, &inputs, arguments.raw)?;
    let mut scorers = match &best_of {
        Some(best_of) => Some(best_of.load(&session, &inputs, &prompts, arguments)?),
        None => None,
    };

    let completions = complete(&session, &prompts, &speculation, arguments)?;
    if let Some(scorers) = &mut scorers {
        return scorers.write(&session, completions, arguments);
    }
    let replies = Reply::decode_all(&session, completions)?;
    let (output, force) = (arguments.output.as_deref(), arguments.force);
    match arguments.samples.n {
        None => input::write(&replies, output, force),
        Some(count) => {
            let rows = replies.chunks(count).map(|samples| Samples { samples });
            input::write(&rows.collect::<Vec<_>>(), output, force)
        }
    }
}

const NO_TEMPLATE: &str = "give --raw to continue the text as it is, or --template";

/// The generation options that the arguments specify.
pub(crate) fn options(arguments: &SamplingArgs, stop_ids: Vec<i64>) -> GenerationOptions {
    GenerationOptions {
        sampling: SamplingParams {
            temperature: arguments.temperature,
            top_k: arguments.top_k,
            top_p: arguments.top_p,
            ..SamplingParams::default()
        },
        max_new_tokens: arguments.max_new_tokens.get(),
        stop_ids: if arguments.ignore_eos { Vec::new() } else { stop_ids },
        seed: arguments.seed,
        request_ids: RequestIds::From(0),
    }
}

/// Refuses several samples of a prompt that would all be the same, and samples that nothing scores.
fn check_samples(arguments: &GenerateArgs) -> Result<(), ConfigError> {
    let (samples, sampling) = (&arguments.samples, &arguments.sampling);
    let refuse = |argument: &str, problem: &str| {
        Err(ConfigError::Argument { argument: argument.to_owned(), problem: problem.to_owned() })
    };
    if samples.count() > 1 && (sampling.temperature == 0.0 || sampling.top_k == 1) {
        let argument = if sampling.temperature == 0.0 { "--temperature 0" } else { "--top-k 1" };
        return refuse(
            argument,
            "the most likely token is taken each time, so all samples of a prompt are the same: draw them, or \
             leave --n and --best-of out",
        );
    }
    if samples.best_of.is_some() && samples.reward_model.is_empty() && samples.config.is_none() {
        return refuse("--best-of", "say what scores the replies: --reward-model DIR, or --config FILE");
    }
    Ok(())
}

fn inputs(arguments: &GenerateArgs) -> anyhow::Result<Vec<Input>> {
    let inputs = match (&arguments.source.prompt, &arguments.source.input) {
        (Some(prompt), _) => {
            vec![Input {
                value: RowInput::Text(prompt.clone()),
                answer: None,
                at: RowLocation { path: "--prompt".into(), row: 0 },
            }]
        }
        (None, Some(path)) => input::read(path, InputKind::Prompt)?,
        (None, None) => unreachable!("clap asks for --prompt or --input"),
    };
    let is_conversation = |input: &&Input| matches!(input.value, RowInput::Messages { .. });
    if let Some(input) = inputs.iter().find(is_conversation).filter(|_| arguments.raw) {
        let problem = format!("{} has turns or tools, which need a chat template: leave --raw out", input.at);
        return Err(ConfigError::Argument { argument: "--raw".to_owned(), problem }.into());
    }
    Ok(inputs)
}

/// The ids of each prompt, which the model takes.
fn prompts(session: &Session<CausalLm>, inputs: &[Input], raw: bool) -> anyhow::Result<Vec<Vec<i64>>> {
    let (vocab_size, longest) = (session.model.config().vocab_size(), session.model.config().max_positions());
    let mut prompts = Vec::with_capacity(inputs.len());
    for input in inputs {
        let ids = prompt_ids(session, &input.value, raw).map_err(|error| match error {
            datasets::Error::NoChatTemplate { .. } => anyhow::Error::from(error).context(NO_TEMPLATE),
            error => error.in_row(&input.at).into(),
        })?;
        // One position is reserved for the first token of the reply.
        input::check_ids(&ids, &input.at, vocab_size, longest - 1)?;
        prompts.push(ids);
    }
    Ok(prompts)
}

fn prompt_ids(session: &Session<CausalLm>, given: &RowInput, raw: bool) -> Result<Vec<i64>, datasets::Error> {
    match given {
        RowInput::Ids(ids) => Ok(ids.clone()),
        RowInput::Text(text) if raw => session.tokenizer()?.encode(text, true),
        RowInput::Text(text) => session.tokenizer()?.encode_prompt(&[Message::user(text)]),
        RowInput::Messages { messages, tools } => {
            session.tokenizer()?.encode_prompt(Conversation::with_tools(messages, tools.as_ref()))
        }
        RowInput::Pair { .. } => unreachable!("pairs are not read"),
    }
}

/// Generates the replies to all prompts, the samples of a prompt one after the other.
fn complete(
    session: &Session<CausalLm>,
    prompts: &[Vec<i64>],
    speculation: &Speculation,
    arguments: &GenerateArgs,
) -> anyhow::Result<Vec<Completion>> {
    let draft = speculation.load_draft()?;
    let options = options(&arguments.sampling, session.stop_ids());
    let samples = arguments.samples.count();
    let prompts: Vec<Vec<i64>> =
        prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt.clone(), samples)).collect();
    let model = &session.model;
    let room = GeneratorOptions {
        speculative_tokens: speculation.tokens,
        draft: draft.as_ref(),
        ..GeneratorOptions::for_prompts(model, &prompts, options.max_new_tokens, arguments.batch_size.get())
    };
    let on_token = &mut |_: usize, _: i64| ControlFlow::Continue(());
    Ok(generate::generate(model, &prompts, &room, &options, on_token)?)
}
