//! `generate`: generates replies to prompts and writes rows of `ids`, `text` and `finish_reason`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use datasets::{Message, RowLocation};
use inference::generate::{self, Completion, GenerationOptions, GeneratorOptions, RequestIds};
use inference::request::FinishReason;
use inference::sample::SamplingParams;
use inference::session::Session;
use models::causal_lm::CausalLm;
use serde::Serialize;

use crate::adapters;
use crate::args::{GenerateArgs, SamplingArgs};
use crate::config::ConfigError;
use crate::input::{self, Input, InputKind, RowInput};
use crate::output;
use crate::session;

/// One output row.
#[derive(Serialize)]
struct Reply {
    ids: Vec<i64>,
    /// The decoded text. Absent without a tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    finish_reason: FinishReason,
}

/// Generates a reply to each prompt and writes the replies.
pub(crate) fn run(arguments: &GenerateArgs) -> anyhow::Result<()> {
    if let Some(output) = &arguments.output {
        let inputs: Vec<&Path> = arguments.source.input.iter().map(PathBuf::as_path).collect();
        output::check_output_file(output, arguments.force, &inputs)?;
    }
    let inputs = inputs(arguments)?;

    let source = adapters::one_model(arguments.model.source(), arguments.adapter.as_deref())?;
    let speculation = arguments.speculation.speculation(&source);
    let session = session::causal_lm(&source)?;
    let draft = speculation.load_draft()?;
    let options = options(&arguments.sampling, session.stop_ids());
    let (vocab_size, longest) = (session.model.config().vocab_size(), session.model.config().max_positions());

    let mut prompts = Vec::with_capacity(inputs.len());
    for input in &inputs {
        let ids = prompt_ids(&session, &input.value, arguments.raw).map_err(|error| match error {
            datasets::Error::NoChatTemplate { .. } => anyhow::Error::from(error).context(NO_TEMPLATE),
            error => error.in_row(&input.at).into(),
        })?;
        // One position is reserved for the first token of the reply.
        input::check_ids(&ids, &input.at, vocab_size, longest - 1)?;
        prompts.push(ids);
    }

    let model = &session.model;
    let room = GeneratorOptions {
        speculative_tokens: speculation.tokens,
        draft: draft.as_ref(),
        ..GeneratorOptions::for_prompts(model, &prompts, options.max_new_tokens, arguments.batch_size.get())
    };
    let on_token = &mut |_: usize, _: i64| ControlFlow::Continue(());
    let completions = generate::generate(model, &prompts, &room, &options, on_token)?;
    let replies: Vec<Reply> =
        completions.into_iter().map(|completion| reply(&session, completion)).collect::<Result<_, _>>()?;
    input::write(&replies, arguments.output.as_deref(), arguments.force)
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

fn inputs(arguments: &GenerateArgs) -> anyhow::Result<Vec<Input>> {
    let inputs = match (&arguments.source.prompt, &arguments.source.input) {
        (Some(prompt), _) => {
            vec![Input {
                value: RowInput::Text(prompt.clone()),
                at: RowLocation { path: "--prompt".into(), row: 0 },
            }]
        }
        (None, Some(path)) => input::read(path, InputKind::Prompt)?,
        (None, None) => unreachable!("clap asks for --prompt or --input"),
    };
    let is_conversation = |input: &&Input| matches!(input.value, RowInput::Messages(_));
    if let Some(input) = inputs.iter().find(is_conversation).filter(|_| arguments.raw) {
        let problem = format!("{} has messages, which need a chat template: leave --raw out", input.at);
        return Err(ConfigError::Argument { argument: "--raw".to_owned(), problem }.into());
    }
    Ok(inputs)
}

fn prompt_ids(session: &Session<CausalLm>, given: &RowInput, raw: bool) -> Result<Vec<i64>, datasets::Error> {
    match given {
        RowInput::Ids(ids) => Ok(ids.clone()),
        RowInput::Text(text) if raw => session.tokenizer()?.encode(text, true),
        RowInput::Text(text) => session.tokenizer()?.encode_prompt(&[Message::user(text)]),
        RowInput::Messages(messages) => session.tokenizer()?.encode_prompt(messages),
        RowInput::Pair(_) => unreachable!("pairs are not read"),
    }
}

fn reply(session: &Session<CausalLm>, completion: Completion) -> Result<Reply, datasets::Error> {
    let text = session.text(&completion.ids)?;
    Ok(Reply { ids: completion.ids, text, finish_reason: completion.finish_reason })
}
