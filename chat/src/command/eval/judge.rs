//! `eval judge`: models answer questions, and a judge rates or compares their answers.
//!
//! Everything that can be known is checked before a model is loaded: questions, reference answers, files of
//! answers, the judge's prompt, the endpoints, the output folder. Answers and verdicts are kept as they come,
//! so the same command continues what was broken off and asks again what failed. What is asked and what
//! counts is in `eval::judge`; here models are run, and files are written.

mod plan;
mod questions;
mod reward;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use eval::judge::results::{JudgeResults, html};
use eval::judge::{
    AnswerSettings, AnswerSheet, Answers, Comparison, Judge, JudgePrompt, Question, Rated, Round, answer,
    common,
};
use eval::page::Table;
use eval::request::LanguageModel;
use eval::request_set::Progress;
use eval::response_cache::ResponseCache;
use inference::shared_weights::SharedWeights;
use parallel::LocalRank;
use serde_json::{Value, json};
use text::number::counted;

use crate::args::{EvalJudgeArgs, JudgeMode};
use crate::console::{print, print_stderr, table};
use crate::evaluation::output::{OutputFolder, file_name, json_bytes};
use crate::evaluation::progress::RequestProgress;
use crate::exit::FAILED;
use crate::failure::Failure;
use crate::feedback::timestamp::Timestamp;
use crate::own_folder::FolderKind;
use crate::shell;
use plan::Plan;
use reward::RewardJudge;

/// The answers so far.
const ANSWER_CACHE: &str = "answer_responses.jsonl";
/// What the judge said so far.
const JUDGE_CACHE: &str = "judge_responses.jsonl";

/// Judges the answers of models.
pub(super) fn run(arguments: &EvalJudgeArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    let plan = Plan::new(arguments)?;
    let folder =
        OutputFolder::open(&plan.output(arguments), FolderKind::Judge, &plan.settings, arguments.force)?;
    print_stderr(&format!(
        "{} questions, {} models, judged by {}; results go to {}",
        plan.questions.len(),
        plan.models.len() + plan.files.len(),
        plan.judge.name,
        folder.path().display()
    ));

    let sheets = answers(&plan, arguments, &folder)?;
    let (ratings, comparisons) = match &plan.prompt {
        Some(prompt) => judged(&plan, arguments, prompt, &folder, &sheets)?,
        None => (Vec::new(), by_reward(&plan, arguments, &sheets)?),
    };
    let mut results = JudgeResults::new(&plan.judge.name, &sheets, ratings, comparisons)?;
    results.program = format!("colossal-chat {}", env!("CARGO_PKG_VERSION"));
    results.settings = plan.settings.clone();
    write(&folder, &plan, &results, &sheets, started.elapsed())?;
    show(arguments, &results, &folder)?;
    conclude(&plan, &results)
}

/// The answers of all models, each written as soon as it is whole: those of models, then those of files.
fn answers(
    plan: &Plan,
    arguments: &EvalJudgeArgs,
    folder: &OutputFolder,
) -> anyhow::Result<Vec<AnswerSheet>> {
    let settings = AnswerSettings {
        max_gen_toks: arguments.answers.max_gen_toks.map_or(plan::MAX_GEN_TOKS, usize::from),
        temperatures: plan.temperatures(arguments.answers.temperature),
    };

    let mut cache = folder.responses(ANSWER_CACHE)?;
    let mut sheets = Vec::with_capacity(plan.models.len() + plan.files.len());
    let mut weights = SharedWeights::default();
    for candidate in &plan.models {
        let mut model = candidate.open(&arguments.host.host(), LocalRank::SINGLE, &mut weights)?;
        let mut progress = RequestProgress::of(candidate);
        let found = answer(model.as_mut(), &plan.questions, &settings, &mut cache, &mut |turn, state| {
            progress.show(&format!("{}, turn {turn}", candidate.name), state);
        });
        progress.end(&found);
        sheets.push(found?);
        put_answers(folder, plan, sheets.last().expect("it was pushed"))?;
    }

    for sheet in &plan.files {
        put_answers(folder, plan, sheet)?;
        sheets.push(sheet.clone());
    }
    Ok(sheets)
}

fn put_answers(folder: &OutputFolder, plan: &Plan, sheet: &AnswerSheet) -> anyhow::Result<()> {
    let file = format!("answers/{}.jsonl", file_name(&sheet.model));
    folder.put(&file, &lines(&sheet.rows(&plan.questions)))
}

/// What a judge that is a language model says.
fn judged(
    plan: &Plan,
    arguments: &EvalJudgeArgs,
    prompt: &JudgePrompt,
    folder: &OutputFolder,
    sheets: &[AnswerSheet],
) -> anyhow::Result<(Vec<Rated>, Vec<Comparison>)> {
    let mut weights = SharedWeights::default();
    let mut model = plan.judge.open(&arguments.host.host(), LocalRank::SINGLE, &mut weights)?;
    let mut bench = Bench {
        cache: folder.responses(JUDGE_CACHE)?,
        model: model.as_mut(),
        prompt,
        questions: &plan.questions,
    };

    let (mut ratings, mut comparisons) = (Vec::new(), Vec::new());
    let mut progress = RequestProgress::of(&plan.judge);
    let mut judge_all = || -> Result<(), eval::Error> {
        if plan.mode == JudgeMode::Single {
            for sheet in sheets {
                ratings.extend(bench.rate(sheet, &mut progress)?);
            }
            return Ok(());
        }
        for (system, baseline) in plan.pairs(sheets) {
            comparisons.extend(bench.compare(system, baseline, &mut progress)?);
        }
        Ok(())
    };
    let outcome = judge_all();
    progress.end(&outcome);
    outcome?;
    Ok((ratings, comparisons))
}

/// A judge at work.
struct Bench<'a> {
    model: &'a mut dyn LanguageModel,
    prompt: &'a JudgePrompt,
    cache: ResponseCache,
    questions: &'a [Question],
}

impl Bench<'_> {
    /// Rates one model. `None` if it answered no question.
    fn rate(
        &mut self,
        sheet: &AnswerSheet,
        progress: &mut RequestProgress,
    ) -> Result<Option<Rated>, eval::Error> {
        let (rows, answers) = common(&[sheet]);
        if rows.is_empty() {
            return Ok(None);
        }
        let questions = at(self.questions, &rows);
        let mut judge = Judge { model: &mut *self.model, prompt: self.prompt };
        let mut show = |round, state| progress.show(&round_name(round, &sheet.model), state);
        let mut rated = judge.rate(&questions, &answers[0], &mut self.cache, &mut show)?;
        rated.place_among(&rows);
        Ok(Some(rated))
    }

    /// Compares a model with the baseline. `None` if they have no answered question in common.
    fn compare(
        &mut self,
        system: &AnswerSheet,
        baseline: &AnswerSheet,
        progress: &mut RequestProgress,
    ) -> Result<Option<Comparison>, eval::Error> {
        let (rows, answers) = common(&[system, baseline]);
        if rows.is_empty() {
            return Ok(None);
        }
        let questions = at(self.questions, &rows);
        let mut judge = Judge { model: &mut *self.model, prompt: self.prompt };
        let what = format!("{} against {}", system.model, baseline.model);
        let mut show = |round, state: Progress| progress.show(&round_name(round, &what), state);
        let mut comparison =
            judge.compare(&questions, &answers[0], &answers[1], &mut self.cache, &mut show)?;
        comparison.place_among(&rows);
        Ok(Some(comparison))
    }
}

/// What a reward model says. The scores are computed anew each time: that takes one forward pass for each
/// answer.
fn by_reward(
    plan: &Plan,
    arguments: &EvalJudgeArgs,
    sheets: &[AnswerSheet],
) -> anyhow::Result<Vec<Comparison>> {
    let folder = plan.judge.folder().expect("a reward model has a folder");
    let judge = RewardJudge::load(&plan.judge.name, folder, &arguments.host.host())?;
    let mut progress = RequestProgress::new();
    let mut score_all = || -> anyhow::Result<BTreeMap<&str, Vec<reward::Score>>> {
        let mut scores = BTreeMap::new();
        for sheet in sheets {
            let name = format!("rewards of {}", sheet.model);
            let of_sheet = judge.scores(&plan.questions, sheet, &mut |state| progress.show(&name, state))?;
            scores.insert(sheet.model.as_str(), of_sheet);
        }
        Ok(scores)
    };
    let outcome = score_all();
    progress.end(&outcome);
    let scores = outcome?;

    let is_training_reward = |name: &str| {
        let candidate = plan.models.iter().find(|candidate| candidate.name == name);
        let model = candidate.and_then(|candidate| candidate.folder());
        model.is_some_and(|model| {
            reward::is_training_reward(model.path(), folder.path(), &plan.judge.argument)
        })
    };
    let mut comparisons = Vec::new();
    for (system, baseline) in plan.pairs(sheets) {
        let (rows, answers) = common(&[system, baseline]);
        if rows.is_empty() {
            continue;
        }
        let pair: [(&Answers, Vec<reward::Score>); 2] = [(&answers[0], system), (&answers[1], baseline)]
            .map(|(answers, sheet)| (answers, at(&scores[sheet.model.as_str()], &rows)));
        let biased = is_training_reward(&system.model) || is_training_reward(&baseline.model);
        let mut comparison = judge.compare(&at(&plan.questions, &rows), &pair, biased)?;
        comparison.place_among(&rows);
        comparisons.push(comparison);
    }
    Ok(comparisons)
}

/// The entries of a list at some places.
fn at<T: Clone>(all: &[T], rows: &[usize]) -> Vec<T> {
    rows.iter().map(|&row| all[row].clone()).collect()
}

fn round_name(round: Round, what: &str) -> String {
    match round {
        Round::Verdicts => format!("verdicts on {what}"),
        Round::Reminders => format!("reminders on {what}"),
    }
}

/// Writes the results. Only `environment.json` depends on the time.
fn write(
    folder: &OutputFolder,
    plan: &Plan,
    results: &JudgeResults,
    sheets: &[AnswerSheet],
    elapsed: Duration,
) -> anyhow::Result<()> {
    let command = shell::own_command();
    folder.begin_results()?;
    folder.put("judgements.jsonl", &lines(&results.judgements()?))?;
    folder.put("summary.md", results.markdown().as_bytes())?;
    folder.put("report.html", html(results, &plan.questions, sheets, &command).as_bytes())?;
    let environment = json!({
        "finished": Timestamp::now().to_string(),
        "seconds": elapsed.as_secs_f64(),
        "command": command,
    });
    folder.put("environment.json", &json_bytes(&environment)?)?;
    // The last file: where it stands, all is judged that could be.
    folder.put("judge.json", &json_bytes(&results.summary()?)?)
}

/// Rows as lines of JSON.
fn lines(rows: &[Value]) -> Vec<u8> {
    rows.iter().flat_map(|row| format!("{row}\n").into_bytes()).collect()
}

/// Prints the results: the tables, or JSON.
fn show(arguments: &EvalJudgeArgs, results: &JudgeResults, folder: &OutputFolder) -> anyhow::Result<()> {
    if arguments.json {
        print(&serde_json::to_string_pretty(&results.summary()?)?)?;
    } else {
        let text = |shown: &Table| format!("{}\n{}", shown.title, table(&shown.lines(), shown.words));
        print(&results.tables().iter().map(text).collect::<Vec<_>>().join("\n\n"))?;
    }
    for warning in results.all_warnings() {
        print_stderr(&format!("warning: {warning}"));
    }
    print_stderr(&format!("the report is {}", folder.path().join("report.html").display()));
    Ok(())
}

/// Fails if a model left questions unanswered, if the judge did not answer, or if it gave no verdict at all.
fn conclude(plan: &Plan, results: &JudgeResults) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    // What a file does not hold cannot be asked again.
    for model in results.models.iter().take(plan.models.len()) {
        if let Some(problem) = &model.problem {
            problems.push(format!(
                "{} left {} of {} questions without an answer, the first because {problem}; they are not judged, and \
                 the same command asks them again",
                model.name, model.unanswered, results.questions
            ));
        }
    }
    for (what, failed, all, problem) in results.failures() {
        let again = if plan.prompt.is_some() { ", and the same command asks them again" } else { "" };
        problems.push(format!(
            "{} left {failed} of {all} {what} without a verdict, the first because {problem}; they do not count{again}",
            results.judge
        ));
    }
    if problems.is_empty() {
        match results.verdicts() {
            (0, _) => problems.push("no question has an answer that could be judged".to_owned()),
            (shown, 0) => problems.push(format!(
                "{} gave no verdict that can be read, on {}: use a judge that keeps to its format, or another --prompt",
                results.judge,
                counted(shown as u64, "item")
            )),
            _ => return Ok(()),
        }
    }
    for problem in problems {
        print_stderr(&format!("error: {problem}"));
    }
    Err(Failure::AlreadyReported { code: FAILED }.into())
}
