//! From the rows of a task to what is asked of the model (`api/task.py` of lm-evaluation-harness 0.4.13).
//!
//! A document is a row under evaluation. Its prompt is the description, then the examples, each with its
//! answer, then its own text. This module renders templates and joins texts; it knows no model.

use datasets::{Message, Role, Row, RowTemplate, TemplateRow};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Error;
use crate::few_shot::{FEW_SHOT_SEED, FewShot};
use crate::request::{Prompt, Request, sha256};
use crate::task::{Choices, OutputType, Task};
use crate::text_filters::TEXT_FILTERS;

/// How prompts are made, for all tasks of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptOptions {
    /// The number of examples, where a task leaves it open.
    pub num_fewshot: Option<usize>,
    /// Whether the chat template of the model renders the prompt.
    pub apply_chat_template: bool,
    /// With a chat template: whether each example is a turn of its own. Otherwise all are one user turn.
    pub fewshot_as_multiturn: bool,
    /// A text before everything else, in a chat the system message.
    pub system_instruction: Option<String>,
    /// The most tokens of a reply, in place of the task's own number.
    #[serde(default)]
    pub max_gen_toks: Option<usize>,
    /// The number of first rows that are evaluated.
    pub limit: Option<usize>,
}

/// The right answer of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Target {
    /// The index of the right choice.
    Index(usize),
    /// The indices of the right choices.
    Indices(Vec<usize>),
    /// A text.
    Text(String),
    /// Texts that are all right.
    Texts(Vec<String>),
}

/// A row with what is asked about it.
#[derive(Clone, Debug)]
pub struct Document {
    /// The index of the row in its split, from 0.
    pub doc_id: usize,
    /// The row.
    pub row: Row,
    /// The right answer.
    pub target: Target,
    /// The choices.
    pub choices: Vec<String>,
    /// What filters read choices and words from.
    pub input: String,
    /// What clusters rows.
    pub cluster: Option<String>,
    /// The rows of the examples in their pool.
    pub fewshot_rows: Vec<usize>,
    /// What is asked of the model, in order.
    pub requests: Vec<Request>,
}

/// The documents of a task.
#[derive(Clone, Debug)]
pub struct Documents {
    /// The rows of the split.
    pub original: usize,
    /// The number of examples in a prompt.
    pub shots: usize,
    /// The documents that are evaluated.
    pub documents: Vec<Document>,
    /// A hash of all requests: scores with equal hashes were asked the same.
    pub prompt_hash: String,
    /// A hash of all requests, right answers and rules of scoring: scores with equal hashes mean the same.
    pub protocol_hash: String,
}

/// Makes the documents of a task from the rows under evaluation and the rows of the examples. Without
/// `pool`, the rows under evaluation are the pool too.
pub fn build(
    task: &Task,
    rows: Vec<Row>,
    pool: Option<Vec<Row>>,
    options: &PromptOptions,
) -> Result<Documents, Error> {
    let templates = Templates::new(task)?;
    let shots = task.shots(options.num_fewshot);
    let rows = templates.kept(task, rows)?;
    let pool = pool.map(|pool| templates.kept(task, pool)).transpose()?;
    let pool: &[Row] = pool.as_deref().unwrap_or(&rows);
    let exclude = task.fewshot.excludes_document();
    let mut sampler = FewShot::new(task.fewshot.sampler.clone(), shots, pool.len(), exclude, FEW_SHOT_SEED);

    let original = rows.len();
    let effective = options.limit.unwrap_or(original).min(original);
    let mut documents = Vec::with_capacity(effective);
    for (doc_id, row) in rows.iter().take(effective).enumerate() {
        let in_row =
            |error: Error| Error::InRow { task: task.task.clone(), row: doc_id, source: Box::new(error) };
        let fewshot_rows = sampler.draw(|other| pool[other] == *row).map_err(in_row)?;
        let examples: Vec<&Row> = fewshot_rows.iter().map(|&row| &pool[row]).collect();
        let document = templates.document(task, (doc_id, row), &examples, options).map_err(in_row)?;
        documents.push(Document { fewshot_rows, ..document });
    }

    let all: String = documents.iter().flat_map(|document| &document.requests).map(Request::key).collect();
    let protocol_hash = protocol_hash(task, &documents, &all);
    Ok(Documents { original, shots, documents, prompt_hash: sha256(all.as_bytes()), protocol_hash })
}

/// A hash of what decides the scores of given answers: the requests, the right answers and the rules.
fn protocol_hash(task: &Task, documents: &[Document], requests: &str) -> String {
    let answers: Vec<_> = documents.iter().map(|document| (&document.target, &document.choices)).collect();
    let rules = (&task.filter_list, &task.metric_list, &task.code_execution);
    let text =
        serde_json::to_string(&(requests, answers, rules)).expect("tasks and documents are plain data");
    sha256(text.as_bytes())
}

/// The compiled templates of a task.
struct Templates {
    text: RowTemplate,
    target: RowTemplate,
    choices: Vec<RowTemplate>,
    /// Whether the choices are one template that gives a list.
    is_list: bool,
    continuation: Option<RowTemplate>,
    input: Option<RowTemplate>,
    cluster: Option<RowTemplate>,
    keep_if: Option<RowTemplate>,
    example_text: Option<RowTemplate>,
    example_target: Option<RowTemplate>,
}

impl Templates {
    fn new(task: &Task) -> Result<Self, Error> {
        let compile = |name: &str, source: &str| RowTemplate::new(name, source, TEXT_FILTERS);
        let optional = |name: &str, source: &Option<String>| {
            source.as_ref().map(|source| compile(name, source)).transpose()
        };
        let sources: &[String] = match &task.doc_to_choice {
            Some(Choices::List(list)) => std::slice::from_ref(list),
            Some(Choices::Each(each)) => each,
            None => &[],
        };
        Ok(Self {
            text: compile("doc_to_text", &task.doc_to_text)?,
            target: compile("doc_to_target", &task.doc_to_target)?,
            choices: sources
                .iter()
                .map(|source| compile("doc_to_choice", source))
                .collect::<Result<_, _>>()?,
            is_list: matches!(task.doc_to_choice, Some(Choices::List(_))),
            continuation: optional("doc_to_continuation", &task.doc_to_continuation)?,
            input: optional("doc_to_input", &task.doc_to_input)?,
            cluster: optional("doc_to_cluster", &task.doc_to_cluster)?,
            keep_if: optional("dataset.keep_if", &task.dataset.keep_if)?,
            example_text: optional("fewshot.doc_to_text", &task.fewshot.doc_to_text)?,
            example_target: optional("fewshot.doc_to_target", &task.fewshot.doc_to_target)?,
        })
    }

    /// The rows that the task keeps.
    fn kept(&self, task: &Task, rows: Vec<Row>) -> Result<Vec<Row>, Error> {
        let Some(keep_if) = &self.keep_if else { return Ok(rows) };
        let mut kept = Vec::new();
        for (number, row) in rows.into_iter().enumerate() {
            let value = keep_if.value(&TemplateRow::new(&row)).map_err(|error| Error::InRow {
                task: task.task.clone(),
                row: number,
                source: Box::new(error.into()),
            })?;
            if is_true(&value) {
                kept.push(row);
            }
        }
        Ok(kept)
    }

    fn document(
        &self,
        task: &Task,
        (doc_id, row): (usize, &Row),
        examples: &[&Row],
        options: &PromptOptions,
    ) -> Result<Document, Error> {
        let columns = TemplateRow::new(row);
        let choices = self.choices(&columns)?;
        let target = target(&self.target.value(&columns)?, &choices, task)?;
        let question = self.question(&columns)?;
        let optional = |template: &Option<RowTemplate>| {
            template.as_ref().map(|template| template.text(&columns)).transpose()
        };
        let continuation = optional(&self.continuation)?;
        let input = optional(&self.input)?.unwrap_or_else(|| question.text());
        let cluster = optional(&self.cluster)?;

        let mut turns = Vec::with_capacity(examples.len());
        for example in examples {
            turns.push(self.example(task, example)?);
        }
        let prompt = PromptBuilder { task, turns, options };
        let requests = match task.output_type {
            OutputType::MultipleChoice => {
                let request = |choice: &String| prompt.loglikelihood(&question, choice);
                choices.iter().map(request).collect()
            }
            OutputType::MultipleContext => {
                let continuation = continuation.unwrap_or_default();
                let request =
                    |context: &String| prompt.loglikelihood(&Question::Text(context.clone()), &continuation);
                choices.iter().map(request).collect()
            }
            OutputType::Loglikelihood => vec![Request::Loglikelihood {
                context: prompt.context(&question),
                continuation: target.text(&choices)?.to_owned(),
            }],
            OutputType::LoglikelihoodRolling => {
                vec![Request::LoglikelihoodRolling { text: target.text(&choices)?.to_owned() }]
            }
            OutputType::GenerateUntil => prompt.generate(&question),
        };
        Ok(Document {
            doc_id,
            row: row.clone(),
            target,
            choices,
            input,
            cluster,
            fewshot_rows: Vec::new(),
            requests,
        })
    }

    /// The question of a row: text, or the turns of a conversation.
    fn question(&self, columns: &TemplateRow) -> Result<Question, Error> {
        if !self.text.is_expression() {
            return Ok(Question::Text(self.text.text(columns)?));
        }
        let value = self.text.value(columns)?;
        if !value.is_array() {
            return Ok(Question::Text(self.text.text(columns)?));
        }
        let turn = |turn: &Value| {
            let role: Role = serde_json::from_value(turn.get("role")?.clone()).ok()?;
            Some(Message::new(role, turn.get("content")?.as_str()?))
        };
        let turns: Option<Vec<Message>> = value.as_array().into_iter().flatten().map(turn).collect();
        turns.filter(|turns| !turns.is_empty()).map(Question::Turns).ok_or_else(|| Error::BadColumn {
            key: "doc_to_text",
            problem: format!("gives {}, which is no list of turns with role and content", shown(&value)),
        })
    }

    fn choices(&self, columns: &TemplateRow) -> Result<Vec<String>, Error> {
        if !self.is_list {
            return Ok(self.choices.iter().map(|choice| choice.text(columns)).collect::<Result<_, _>>()?);
        }
        let Some(list) = self.choices.first() else { return Ok(Vec::new()) };
        let value = list.value(columns)?;
        let texts = value.as_array().map(|items| items.iter().map(plain).collect::<Option<Vec<String>>>());
        match texts.flatten() {
            Some(texts) if !texts.is_empty() => Ok(texts),
            _ => Err(Error::BadColumn {
                key: "doc_to_choice",
                problem: format!("gives {}, which is no list of texts", shown(&value)),
            }),
        }
    }

    /// The question and the answer of an example, and the text between them.
    fn example(&self, task: &Task, row: &Row) -> Result<(String, String), Error> {
        let columns = TemplateRow::new(row);
        let text = self.example_text.as_ref().unwrap_or(&self.text).text(&columns)?;
        if let Some(template) = &self.example_target {
            return Ok((text, template.text(&columns)?));
        }
        let choices = self.choices(&columns)?;
        let answer = target(&self.target.value(&columns)?, &choices, task)?;
        Ok((text, answer.text(&choices)?.to_owned()))
    }
}

/// The value of `doc_to_target` as an answer. An index must be that of a choice.
fn target(value: &Value, choices: &[String], task: &Task) -> Result<Target, Error> {
    let wrong = |problem: String| Err(Error::BadColumn { key: "doc_to_target", problem });
    let index = |value: &Value| value.as_u64().map(|index| index as usize);
    let is_choice = matches!(task.output_type, OutputType::MultipleChoice | OutputType::MultipleContext);
    if !is_choice {
        // A continuation and a program need one text; replies may be compared with several.
        let several = task.output_type == OutputType::GenerateUntil && task.code_execution.is_none();
        let items = value.as_array().filter(|items| several && !items.is_empty());
        let texts = || items?.iter().map(plain).collect::<Option<Vec<String>>>().map(Target::Texts);
        return plain(value)
            .map(Target::Text)
            .or_else(texts)
            .map_or_else(|| wrong(format!("gives {}, which is no text", shown(value))), Ok);
    }

    match value {
        Value::String(text) => match choices.iter().position(|choice| choice == text) {
            Some(index) => Ok(Target::Index(index)),
            None => wrong(format!("gives {}, which is none of the choices", shown(value))),
        },
        Value::Array(items) => {
            // An index beyond the choices is a right answer that no choice can be (BBQ has one).
            let indices: Option<Vec<usize>> = items.iter().map(index).collect();
            match indices.filter(|indices| indices.iter().any(|&index| index < choices.len())) {
                Some(indices) => Ok(Target::Indices(indices)),
                None => wrong(format!("gives {}, which are no indices of choices", shown(value))),
            }
        }
        _ => match index(value).filter(|&index| index < choices.len()) {
            Some(index) => Ok(Target::Index(index)),
            None => wrong(format!("gives {}, with {} choices", shown(value), choices.len())),
        },
    }
}

impl Target {
    /// The right answer as text: the choice, or the text itself; of several, the first.
    pub fn text<'a>(&'a self, choices: &'a [String]) -> Result<&'a str, Error> {
        let index = match self {
            Self::Text(text) => return Ok(text),
            Self::Texts(texts) => return Ok(texts.first().map_or("", String::as_str)),
            Self::Index(index) => *index,
            Self::Indices(indices) => indices.first().copied().unwrap_or(0),
        };
        choices.get(index).map(String::as_str).ok_or_else(|| Error::BadColumn {
            key: "doc_to_target",
            problem: format!("gives the index {index}, with {} choices", choices.len()),
        })
    }

    /// All right answers as texts.
    pub fn texts<'a>(&'a self, choices: &'a [String]) -> Result<Vec<&'a str>, Error> {
        match self {
            Self::Texts(texts) => Ok(texts.iter().map(String::as_str).collect()),
            one => Ok(vec![one.text(choices)?]),
        }
    }

    /// Whether the choice `index` is right.
    pub fn is_right(&self, index: usize) -> bool {
        match self {
            Self::Index(right) => *right == index,
            Self::Indices(right) => right.contains(&index),
            Self::Text(_) | Self::Texts(_) => false,
        }
    }
}

/// What is asked in one row.
enum Question {
    /// Text.
    Text(String),
    /// A conversation, which is always rendered by a chat template.
    Turns(Vec<Message>),
}

impl Question {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Turns(turns) => {
                turns.iter().map(|turn| turn.content.as_str()).collect::<Vec<_>>().join("\n\n")
            }
        }
    }

    fn turns(&self) -> Vec<Message> {
        match self {
            Self::Text(text) => vec![Message::user(text)],
            Self::Turns(turns) => turns.clone(),
        }
    }
}

/// Joins the parts of a prompt.
struct PromptBuilder<'a> {
    task: &'a Task,
    /// The questions and answers of the examples.
    turns: Vec<(String, String)>,
    options: &'a PromptOptions,
}

impl PromptBuilder<'_> {
    /// The prompt that ends with `question`.
    fn context(&self, question: &Question) -> Prompt {
        match question {
            Question::Text(text) if !self.options.apply_chat_template => Prompt::Text(self.plain(text)),
            question => self.chat(question),
        }
    }

    fn plain(&self, text: &str) -> String {
        let mut prompt = self.opening();
        prompt.push_str(&self.plain_examples());
        prompt.push_str(text);
        prompt
    }

    /// The examples in one text.
    fn plain_examples(&self) -> String {
        let fewshot = &self.task.fewshot;
        let between = fewshot.target_delimiter.as_ref().unwrap_or(&self.task.target_delimiter);
        let example =
            |(text, answer): &(String, String)| format!("{text}{between}{answer}{}", fewshot.delimiter);
        self.turns.iter().map(example).collect()
    }

    /// The system instruction and the description. Two newlines separate them, unless white space does.
    fn opening(&self) -> String {
        let description = &self.task.description;
        let Some(instruction) = &self.options.system_instruction else { return description.clone() };
        let parted = description.is_empty()
            || instruction.ends_with(char::is_whitespace)
            || description.starts_with(char::is_whitespace);
        format!("{instruction}{}{description}", if parted { "" } else { "\n\n" })
    }

    fn chat(&self, question: &Question) -> Prompt {
        let opening = self.opening();
        let mut messages = Vec::new();
        if !opening.is_empty() {
            messages.push(Message::system(&opening));
        }
        if self.options.fewshot_as_multiturn {
            for (question, answer) in &self.turns {
                messages.extend([Message::user(question), Message::assistant(answer)]);
            }
            messages.extend(question.turns());
        } else {
            let mut turns = question.turns();
            if let Some(first) = turns.first_mut() {
                first.content = format!("{}{}", self.plain_examples(), first.content);
            }
            messages.extend(turns);
        }
        Prompt::Chat(messages)
    }

    /// A choice after the prompt. In a chat the template ends the prompt, so nothing stands between them.
    fn loglikelihood(&self, question: &Question, choice: &str) -> Request {
        let context = self.context(question);
        let delimiter = match &context {
            Prompt::Text(_) => self.task.target_delimiter.as_str(),
            Prompt::Chat(_) => "",
        };
        Request::Loglikelihood { context, continuation: format!("{delimiter}{choice}") }
    }

    fn generate(&self, question: &Question) -> Vec<Request> {
        let kwargs = &self.task.generation_kwargs;
        let request = |sample| Request::GenerateUntil {
            context: self.context(question),
            until: kwargs.until.clone(),
            max_gen_toks: self.options.max_gen_toks.unwrap_or(kwargs.max_gen_toks),
            temperature: kwargs.temperature,
            sample: sample as u64,
        };
        (0..kwargs.repeats).map(request).collect()
    }
}

/// A text, number or truth value as the text that Python prints.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(true) => Some("True".to_owned()),
        Value::Bool(false) => Some("False".to_owned()),
        _ => None,
    }
}

/// Python's truth of a value.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !Map::is_empty(map),
    }
}

/// The beginning of a value, for an error message.
fn shown(value: &Value) -> String {
    const SHOWN: usize = 80;
    value.to_string().chars().take(SHOWN).collect()
}
