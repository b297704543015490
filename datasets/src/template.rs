//! Chat templates: the Jinja source in a model folder, rendered like HF transformers renders it.
//!
//! Protocol (transformers `apply_chat_template`): `trim_blocks`, `lstrip_blocks`, loop controls, Python's
//! string and dict methods, `raise_exception`, `strftime_now`, a `tojson` that escapes nothing, and the
//! variables `messages`, `tools`, `documents`, `add_generation_prompt` and the special tokens. Text inside
//! `{% generation %}` is reported as byte ranges of the rendered text. `strftime_now` reads the clock (UTC)
//! once, when the template is compiled, so that all renderings of a run agree.
//!
//! A template is a program that comes with a model and may be hostile. Its steps and the size of its output
//! are limited (`limits.rs`, `guard.rs`). This module knows no token ids.

mod generation;
mod guard;
mod limits;
mod python;
pub mod row;

use std::collections::BTreeMap;
use std::ops::Range;

use minijinja::machinery::{CodeGenerator, Instructions, eval, make_string_output, parse};
use minijinja::syntax::{SyntaxConfig, SyntaxConfigBuilder};
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value};
use serde::Serialize;

use crate::conversation::Message;
use crate::error::{Error, Result};

/// Names of the built-in templates, for error messages.
pub const BUILT_IN: &str = "chatml, plain";

const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] \
                      + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}\
                      {{ '<|im_start|>assistant\n' }}{% endif %}";

const PLAIN: &str = "{{ bos_token }}{% for message in messages %}\
    {% if message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}\
    {% if not loop.last %}{{ '\n\n' }}{% endif %}\
    {% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}\
    {% elif message['role'] == 'tool' %}{{ 'Tool: ' + message['content'] + '\n\n' }}\
    {% else %}{{ 'User: ' + message['content'] + '\n\n' }}{% endif %}{% endfor %}\
    {% if add_generation_prompt %}\
    {% if messages and messages[-1]['role'] == 'assistant' %}{{ '\n\n' }}{% endif %}{{ 'Assistant:' }}{% endif %}";

/// The Jinja source of a built-in template: `chatml` for tokenizers with `<|im_start|>` and `<|im_end|>`,
/// `plain` for any tokenizer with an end-of-sequence token.
pub fn built_in(name: &str) -> Result<&'static str> {
    match name {
        "chatml" => Ok(CHATML),
        "plain" => Ok(PLAIN),
        _ => Err(Error::UnknownTemplate { given: name.to_owned(), known: BUILT_IN }),
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    program: Program,
    source: String,
    name: String,
    marked: bool,
}

/// The variables of a template other than the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// Whether to end the text with the generation prompt, after which the assistant's reply begins.
    pub add_generation_prompt: bool,
    /// Tool descriptions, in the form that the template expects.
    pub tools: Option<serde_json::Value>,
    /// The texts of `bos_token`, `eos_token` and other special tokens, by name.
    pub special_tokens: BTreeMap<String, String>,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Byte ranges of `text` inside `{% generation %}` blocks; `None` if the template has no such block.
    pub generated: Option<Vec<Range<usize>>>,
}

impl ChatTemplate {
    /// Compiles Jinja `source`. `name` is for error messages, usually the model folder.
    pub fn new(name: impl Into<String>, source: impl Into<String>) -> Result<Self> {
        let (name, source) = (name.into(), source.into());
        let wrong = |reason: String| Error::TemplateSyntax { name: name.clone(), reason };
        if source.len() > limits::SOURCE_BYTES {
            return Err(wrong(format!("it has {} bytes, more than {}", source.len(), limits::SOURCE_BYTES)));
        }
        let (rewritten, marked) = generation::rewrite(&source);
        let program = Program::new(rewritten, &chat_syntax(), environment())
            .map_err(|error| wrong(describe(&error)))?;
        Ok(Self { program, source, name, marked })
    }

    /// The Jinja source, as given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template marks the assistant's text itself, with `{% generation %}` blocks.
    pub(crate) fn has_blocks(&self) -> bool {
        self.marked
    }

    /// The name for error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Renders a conversation.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<Rendered> {
        self.render_values(messages, options)
    }

    /// Renders messages of any shape that the template understands: tool calls, lists of content parts and so
    /// on.
    pub fn render_values(&self, messages: impl Serialize, options: &RenderOptions) -> Result<Rendered> {
        let mut context: BTreeMap<&str, Value> = BTreeMap::new();
        context.insert("messages", Value::from(Serde(messages)));
        context.insert(
            "tools",
            options.tools.as_ref().map_or(Value::from(()), |tools| Value::from(Serde(tools))),
        );
        context.insert("documents", Value::from(()));
        context.insert("add_generation_prompt", Value::from(options.add_generation_prompt));
        for (name, text) in &options.special_tokens {
            context.insert(name, Value::from(text.as_str()));
        }
        if !self.marked {
            return Ok(Rendered { text: self.run(&context)?, generated: None });
        }
        let markers = generation::Markers::absent_from(&self.source, &context);
        context.insert(generation::OPEN_VARIABLE, Value::from(markers.open.as_str()));
        context.insert(generation::CLOSE_VARIABLE, Value::from(markers.close.as_str()));
        let (text, ranges) = markers.strip(&self.run(&context)?);
        Ok(Rendered { text, generated: Some(ranges) })
    }

    fn run(&self, context: &BTreeMap<&str, Value>) -> Result<String> {
        let input = context.values().map(limits::size).sum();
        let root = Value::from_pairs(context.iter().map(|(&name, value)| (name.to_owned(), value.clone())));
        self.program
            .run(root, input)
            .map_err(|error| Error::TemplateRender { name: self.name.clone(), reason: describe(&error) })
    }
}

/// A compiled template with the environment that it runs in.
#[derive(Debug)]
struct Program {
    environment: Environment<'static>,
    instructions: Instructions<'static>,
}

impl Program {
    fn new(
        source: String,
        syntax: &SyntaxConfigBuilder,
        environment: Environment<'static>,
    ) -> std::result::Result<Self, minijinja::Error> {
        Ok(Self { environment, instructions: compile(source, syntax)? })
    }

    /// Renders with the variables `root`, whose size is `input` bytes.
    fn run(&self, root: Value, input: usize) -> std::result::Result<String, minijinja::Error> {
        // The step limit belongs to the environment, so a long input gets its own copy with a higher limit.
        let long = (limits::steps(input) > 2 * limits::STEPS).then(|| {
            let mut environment = self.environment.clone();
            environment.set_fuel(Some(limits::steps(input)));
            environment
        });

        let mut text = String::new();
        let blocks = BTreeMap::new();
        let mut output = make_string_output(&mut text);
        let environment = long.as_ref().unwrap_or(&self.environment);
        let render =
            || eval(environment, &self.instructions, root, &blocks, &mut output, AutoEscape::None).map(drop);
        limits::with_budget(input, render)?;
        Ok(text)
    }
}

/// Stack size of the parser in bytes: per byte of source, and as a constant. The parser recurses once per
/// operator in a row, and the shortest operator takes two bytes.
const READER_STACK: [usize; 2] = [4 << 10, 2 << 20];

/// What transformers does with white space around blocks.
fn chat_syntax() -> SyntaxConfigBuilder {
    let mut syntax = SyntaxConfig::builder();
    syntax.lstrip_blocks(true).trim_blocks(true);
    syntax
}

/// Parses a template and adds its limits.
fn compile(
    source: String,
    syntax: &SyntaxConfigBuilder,
) -> std::result::Result<Instructions<'static>, minijinja::Error> {
    let stack_size = READER_STACK[0] * source.len() + READER_STACK[1];
    let syntax = syntax.build()?;
    let read = move || {
        let tree = parse(&source, "chat", syntax)?;
        let guarded = guard::statement(&tree)?;
        let mut generator = CodeGenerator::new("chat", "");
        generator.compile_stmt(&guarded);
        Ok(generator.finish().0)
    };
    let reader = std::thread::Builder::new().stack_size(stack_size).spawn(read);
    let failed = |problem: String| minijinja::Error::new(ErrorKind::SyntaxError, problem);
    let reader = reader.map_err(|error| failed(format!("no thread can be started to read it: {error}")))?;
    reader.join().unwrap_or_else(|_| Err(failed("its reader failed".to_owned())))
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    limits::install(&mut environment);
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("string", |value: &Value| python::text(value));
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    let now = python::Clock::now();
    environment.add_function("strftime_now", move |format: &str| now.strftime(format));
    environment
}

/// The longest error message of a template, in characters.
const MESSAGE_CHARACTERS: usize = 500;

/// The error message: the template's own text if it raises an exception, otherwise the engine's, with the
/// line if it is known.
fn describe(error: &minijinja::Error) -> String {
    let message = match error.detail() {
        _ if error.kind() == ErrorKind::OutOfFuel => {
            format!("it takes more than {} steps for a short conversation", limits::STEPS)
        }
        Some(detail) if error.kind() == ErrorKind::InvalidOperation => detail.to_owned(),
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    // The text comes from an untrusted template, so its control characters must not reach a terminal.
    let message: String = message
        .chars()
        .take(MESSAGE_CHARACTERS)
        .flat_map(|letter| if letter.is_control() { letter.escape_default().collect() } else { vec![letter] })
        .collect();
    error.line().map_or(message.clone(), |line| format!("{message} (line {line})"))
}

#[cfg(test)]
mod tests;
