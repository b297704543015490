//! What is judged, by whom and how: everything that is known, and checked, before a model is loaded.

use std::path::{Path, PathBuf};

use eval::judge::{AnswerSheet, JudgePrompt, Question, VerdictKind, mt_bench_temperature};
use inference::remote::KeyPlan;
use serde_json::{Value, json};

use super::questions::{QuestionSource, read_answers, read_questions};
use crate::args::{EvalJudgeArgs, JudgeMode};
use crate::config::ConfigError;
use crate::evaluation::model::{Candidate, check_endpoint_flags, check_folder, check_folder_flags};
use crate::evaluation::output::file_name;
use crate::failure::Failure;

/// The most tokens of an answer (`max_new_token` of `gen_model_answer.py` of `FastChat`).
pub(super) const MAX_GEN_TOKS: usize = 1024;

/// What is judged, by whom and how.
pub(super) struct Plan {
    /// The questions with their reference answers.
    pub(super) questions: Vec<Question>,
    source: QuestionSource,
    /// The models that answer.
    pub(super) models: Vec<Candidate>,
    /// Answers that were given before.
    pub(super) files: Vec<AnswerSheet>,
    pub(super) judge: Candidate,
    /// Whether it rates or compares.
    pub(super) mode: JudgeMode,
    /// The template of the question to the judge; `None` for a reward model, which scores answers unasked.
    pub(super) prompt: Option<JudgePrompt>,
    /// The place of the baseline among models and files.
    baseline: usize,
    /// What decides the results. A folder holds the results of one such command.
    pub(super) settings: Value,
}

impl Plan {
    /// Reads and checks everything, and connects to the endpoints.
    pub(super) fn new(arguments: &EvalJudgeArgs) -> anyhow::Result<Self> {
        let (source, questions) = read_questions(arguments)?;
        let keys = KeyPlan::new(&arguments.answers.model, Some(&arguments.judge))?;
        let judge =
            Candidate::find(&arguments.judge, &arguments.host.host(), keys.choice(&arguments.judge, true))?;
        let mut models = Candidate::find_all(&arguments.answers.model, &arguments.host.host(), &keys)?;
        Candidate::add_adapters(&mut models, &arguments.answers.adapter)?;
        let remote = |candidate: &Candidate| candidate.folder().is_none();
        let all = || models.iter().chain([&judge]);
        check_endpoint_flags(&arguments.host.host(), all().any(remote))?;
        check_folder_flags(&arguments.host.host(), !all().all(remote))?;
        let files = read_answers(&arguments.answers.answers, &questions)?;
        let names = names(&models, &files)?;
        let baseline = baseline(arguments, &models, &names)?;

        let is_reward = check_models(&models, &judge)?;
        let mode = mode(arguments, source, names.len(), is_reward)?;
        let prompt = if is_reward { None } else { Some(prompt(arguments, source, mode)?) };
        if let Some(prompt) = &prompt {
            check_references(arguments, prompt, &questions)?;
            prompt.check_questions(&questions)?;
        }
        let protocol = prompt.as_ref().map_or_else(|| "reward/v1/pair".to_owned(), JudgePrompt::id);
        let settings = settings(arguments, &judge, &names, mode, &protocol, &names[baseline]);
        Ok(Self { questions, source, models, files, judge, mode, prompt, baseline, settings })
    }

    /// For each question, the temperature of its answers.
    pub(super) fn temperatures(&self, given: Option<f64>) -> Vec<f64> {
        let usual = |question: &Question| match self.source {
            QuestionSource::MtBench => mt_bench_temperature(&question.category),
            QuestionSource::ArenaHard | QuestionSource::File => 0.0,
        };
        self.questions.iter().map(|question| given.unwrap_or_else(|| usual(question))).collect()
    }

    /// Every other model with the baseline.
    pub(super) fn pairs<'a>(
        &self,
        sheets: &'a [AnswerSheet],
    ) -> impl Iterator<Item = (&'a AnswerSheet, &'a AnswerSheet)> {
        let baseline = self.baseline;
        let others = sheets.iter().enumerate().filter(move |(place, _)| *place != baseline);
        others.map(move |(_, sheet)| (sheet, &sheets[baseline]))
    }

    /// The folder of the results if none is given.
    pub(super) fn output(&self, arguments: &EvalJudgeArgs) -> PathBuf {
        let models = self.models.iter().map(Candidate::file_name);
        let files = self.files.iter().map(|sheet| file_name(&sheet.model));
        let names: Vec<String> =
            ["judge".to_owned(), self.judge.file_name()].into_iter().chain(models).chain(files).collect();
        let usual = || Path::new("eval-results").join(file_name(&names.join("-")));
        arguments.output.clone().unwrap_or_else(usual)
    }
}

/// Checks that the models can answer conversations, and that the judge can judge. Returns whether it is a
/// reward model.
fn check_models(models: &[Candidate], judge: &Candidate) -> anyhow::Result<bool> {
    for model in models {
        model.check_answers("--model", true)?;
    }
    if let Some(folder) = judge.folder()
        && folder.config()?.is_sequence_classification()
    {
        return check_folder(folder).map(|_| true);
    }
    judge.check_answers("--judge", true)?;
    Ok(false)
}

fn refuse<T>(argument: &str, problem: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Argument { argument: argument.to_owned(), problem: problem.into() })
}

/// The names of all models. No two are equal.
fn names(models: &[Candidate], files: &[AnswerSheet]) -> Result<Vec<String>, ConfigError> {
    let of_models = models.iter().map(|model| &model.name);
    let names: Vec<String> = of_models.chain(files.iter().map(|sheet| &sheet.model)).cloned().collect();
    match names.iter().enumerate().find(|(place, name)| names[..*place].contains(name)) {
        None => Ok(names),
        Some((_, name)) => refuse(
            "--answers",
            format!("two models are named {name:?}: change `model_id` in one of the files"),
        ),
    }
}

/// The place of the baseline: a model's name, or what the command line calls it.
fn baseline(arguments: &EvalJudgeArgs, models: &[Candidate], names: &[String]) -> Result<usize, ConfigError> {
    let Some(wanted) = &arguments.baseline else { return Ok(0) };
    let named = names.iter().position(|name| name == wanted);
    let typed = || models.iter().position(|model| model.argument == *wanted);
    match named.or_else(typed) {
        Some(place) => Ok(place),
        None => refuse(&format!("--baseline {wanted}"), format!("give one of {}", names.join(", "))),
    }
}

/// Whether the judge rates or compares.
fn mode(
    arguments: &EvalJudgeArgs,
    source: QuestionSource,
    models: usize,
    is_reward: bool,
) -> Result<JudgeMode, ConfigError> {
    let is_single = models == 1 || (source == QuestionSource::MtBench && arguments.baseline.is_none());
    let usual = if is_single && !is_reward { JudgeMode::Single } else { JudgeMode::Pairwise };
    let mode = arguments.mode.unwrap_or(usual);

    match mode {
        JudgeMode::Single if is_reward => refuse(
            "--mode single",
            "a reward model compares answers: leave the flag out, or give another --judge",
        ),
        JudgeMode::Single if arguments.baseline.is_some() => {
            refuse("--baseline", "ratings have no baseline: leave the flag out, or add --mode pairwise")
        }
        JudgeMode::Pairwise if models < 2 => {
            refuse("--model", "a comparison needs two models: add one with --model or --answers")
        }
        _ if is_reward && arguments.prompt.is_some() => {
            refuse("--prompt", "a reward model is asked nothing: leave the flag out")
        }
        _ if is_reward && arguments.references.is_some() => {
            refuse("--references", "a reward model reads no reference answers: leave the flag out")
        }
        _ => Ok(mode),
    }
}

/// What the judge is asked.
fn prompt(arguments: &EvalJudgeArgs, source: QuestionSource, mode: JudgeMode) -> anyhow::Result<JudgePrompt> {
    let usual = match (mode, source) {
        (JudgeMode::Single, _) => "mt_bench_single",
        (JudgeMode::Pairwise, QuestionSource::ArenaHard) => "five_way",
        (JudgeMode::Pairwise, _) => "mt_bench_pair",
    };
    let prompt = JudgePrompt::load(arguments.prompt.as_deref().unwrap_or(usual))?;

    let rates = prompt.verdict() == VerdictKind::Rating;
    if rates != (mode == JudgeMode::Single) {
        let (verdict, fix) =
            if rates { ("a rating", "--mode single") } else { ("a comparison", "--mode pairwise") };
        let argument = format!("--prompt {}", arguments.prompt.as_deref().unwrap_or(usual));
        refuse(&argument, format!("its verdict is {verdict}: add {fix}, or give another prompt"))?;
    }
    Ok(prompt)
}

/// Refuses questions that lack the reference answers that the judge is shown.
fn check_references(
    arguments: &EvalJudgeArgs,
    prompt: &JudgePrompt,
    questions: &[Question],
) -> Result<(), Failure> {
    let lacks = |question: &&Question| {
        prompt.wants_reference(&question.category) && question.references.len() < question.turns.len()
    };
    let Some(question) = questions.iter().find(lacks) else { return Ok(()) };
    let Question { id, category, turns, references } = question;
    let problem = format!(
        "question {id:?} of the category {category:?} has {} of {} reference answers, and the prompt {} shows them to \
         the judge: give them with --references, put `references` into the row, or give another --prompt",
        references.len(),
        turns.len(),
        prompt.name()
    );
    Err(Failure::File { path: PathBuf::from(&arguments.questions), problem })
}

fn settings(
    arguments: &EvalJudgeArgs,
    judge: &Candidate,
    names: &[String],
    mode: JudgeMode,
    protocol: &str,
    baseline: &str,
) -> Value {
    json!({
        "command": "eval judge",
        "models": names,
        "judge": judge.name,
        "mode": mode,
        "prompt": protocol,
        "baseline": (mode == JudgeMode::Pairwise).then_some(baseline),
        "questions": arguments.questions,
        "data": arguments.data,
        "references": arguments.references,
        "answers": arguments.answers.answers,
        "limit": arguments.limit,
        "max_gen_toks": arguments.answers.max_gen_toks,
        "temperature": arguments.answers.temperature,
        "dtype": arguments.host.weights.numbers(),
        "max_length": arguments.host.max_length,
    })
}
