//! `kind = "code"`: a Python program made of the reply runs to its end without an exception.
//!
//! The program is a template over `reply`, `answer` and `prompt` (the text of the last turn before the
//! reply), with the filter `fenced`, which takes the last block between three backticks out of a text:
//!
//! ```text
//! {{ reply | fenced }}
//! {{ answer }}
//! ```
//!
//! with tests as the answers of the rows. Programs go out through [`CodeRunner`], which runs them in a
//! sandbox: a program that fails, leaves early or takes too long has the score 0. If the sandbox itself
//! fails, no reply of the batch has a score. This file knows no process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datasets::{Message, Row, RowTemplate, TemplateRow, TextFilter};
use eval::code_execution::{CodeRunner, Program, Verdict};
use serde_json::Value;

use crate::entry::CodeConfig;
use crate::error::Wrong;
use crate::extract::last_fenced;
use crate::score::{LONGEST_TEXT, Reply, ScoreError, Scorer, at_most, quoted};

/// The longest time that a program may take, in seconds.
const LONGEST_TIMEOUT: f64 = 600.0;

/// The filters that a template has in addition to Jinja's.
const FILTERS: &[(&str, TextFilter)] = &[("fenced", fenced)];

/// What runs the programs that a model writes.
pub(crate) type Runner = Arc<dyn CodeRunner + Send + Sync>;

/// A template over the columns of a reply.
#[derive(Debug)]
pub(crate) struct ReplyTemplate(RowTemplate);

impl ReplyTemplate {
    /// Compiles the value of `key`.
    pub(crate) fn new(key: &'static str, source: &str) -> Result<Self, Wrong> {
        let wrong = |problem: String| {
            Wrong::new(key, problem, "give a Jinja template over `reply`, `answer` and `prompt`")
        };
        if source.trim().is_empty() {
            return Err(wrong("is missing".to_owned()));
        }
        let template = RowTemplate::new(key, source, FILTERS);
        let template = Self(template.map_err(|error| wrong(format!("cannot be used: {error}")))?);
        // A column that no reply has, or a filter that Jinja does not know, is found before the first step.
        if let Err(datasets::Error::RowTemplate { missing, reason, .. }) = template.render("", Some(""), "") {
            if let Some(column) = missing.first() {
                return Err(wrong(format!("reads `{column}`, which is no column of a reply")));
            }
            if reason.starts_with("unknown ") {
                return Err(wrong(format!("cannot be used: {reason}")));
            }
        }
        Ok(template)
    }

    /// Whether it cannot be filled in without the answer of the row.
    pub(crate) fn needs_answer(&self) -> bool {
        let Err(datasets::Error::RowTemplate { missing, .. }) = self.render("", None, "") else {
            return false;
        };
        missing.iter().any(|column| column == "answer")
    }

    fn render(&self, reply: &str, answer: Option<&str>, prompt: &str) -> Result<String, datasets::Error> {
        let mut columns = Row::new();
        columns.insert("reply".to_owned(), Value::from(reply));
        columns.insert("prompt".to_owned(), Value::from(prompt));
        columns.extend(answer.map(|answer| ("answer".to_owned(), Value::from(answer))));
        self.0.text(&TemplateRow::new(&columns))
    }
}

/// The last block between three backticks, or all of a text without one.
#[expect(clippy::unnecessary_wraps, reason = "every filter may fail")]
fn fenced(text: &str) -> Result<String, String> {
    Ok(last_fenced(text).unwrap_or(text).to_owned())
}

/// Runs programs that are made of replies.
pub(crate) struct Code {
    template: ReplyTemplate,
    needs_answer: bool,
    timeout: Duration,
    runner: Runner,
}

impl fmt::Debug for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Code").field("template", &self.template).finish_non_exhaustive()
    }
}

/// The template and the time limit of an entry.
fn settings(config: &CodeConfig) -> Result<(ReplyTemplate, Duration), Wrong> {
    let template = ReplyTemplate::new("program", &config.program)?;
    if !(config.timeout > 0.0 && config.timeout <= LONGEST_TIMEOUT) {
        let fix = format!("give seconds above 0 and up to {LONGEST_TIMEOUT}");
        return Err(Wrong::new("timeout", format!("is {}", config.timeout), fix));
    }
    Ok((template, Duration::from_secs_f64(config.timeout)))
}

/// Refuses settings that cannot work.
pub(crate) fn check(config: &CodeConfig) -> Result<(), Wrong> {
    settings(config).map(|_| ())
}

impl Code {
    pub(crate) fn new(config: &CodeConfig, runner: Runner) -> Result<Self, Wrong> {
        let (template, timeout) = settings(config)?;
        Ok(Self { needs_answer: template.needs_answer(), template, timeout, runner })
    }

    fn program(&self, reply: &Reply<'_>) -> Result<Program, ScoreError> {
        let answer = reply.answer.filter(|answer| !answer.trim().is_empty());
        if self.needs_answer && answer.is_none() {
            return Err(ScoreError::NoAnswer);
        }
        at_most(reply.text, LONGEST_TEXT)?;
        at_most(answer.unwrap_or_default(), LONGEST_TEXT)?;
        let prompt = reply.prompt.last().map_or("", |message: &Message| message.content.as_str());
        let source = self.template.render(reply.text, answer, prompt);
        let source = source.map_err(|error| ScoreError::Template { reason: quoted(&error.to_string()) })?;
        Ok(Program { source, timeout: self.timeout })
    }
}

impl Scorer for Code {
    fn score(&mut self, replies: &[Reply<'_>]) -> Vec<Result<f64, ScoreError>> {
        let programs: Vec<Result<Program, ScoreError>> =
            replies.iter().map(|reply| self.program(reply)).collect();
        let written: Vec<Program> = programs.iter().flatten().cloned().collect();
        let verdicts = if written.is_empty() { Ok(Vec::new()) } else { self.runner.run(&written) };
        let mut verdicts = match verdicts {
            Ok(verdicts) => verdicts.into_iter(),
            Err(error) => {
                let failed = ScoreError::Sandbox { reason: quoted(&error.to_string()) };
                return programs.into_iter().map(|program| program.and(Err(failed.clone()))).collect();
            }
        };
        let mut score = |_| match verdicts.next() {
            Some(verdict) => Ok(f64::from(verdict == Verdict::Passed)),
            None => Err(ScoreError::Sandbox { reason: "it has no verdict on the program".to_owned() }),
        };
        programs.into_iter().map(|program| program.and_then(&mut score)).collect()
    }
}

#[cfg(test)]
mod tests {
    use eval::code_execution::RunnerError;

    use super::*;
    use crate::hostile_text::hostile_texts;

    /// Passes programs with "pass", does not end on "loop", and fails as a whole on "broken".
    #[derive(Debug)]
    struct Words;

    impl CodeRunner for Words {
        fn interpreter(&self) -> String {
            "words".to_owned()
        }

        fn run(&self, programs: &[Program]) -> Result<Vec<Verdict>, RunnerError> {
            let verdict = |program: &Program| {
                assert_eq!(program.timeout, Duration::from_secs(5));
                match program.source.as_str() {
                    "broken\n" => Err("no namespaces\u{1b}[2J".into()),
                    source if source.contains("pass") => Ok(Verdict::Passed),
                    source if source.contains("loop") => Ok(Verdict::TimedOut),
                    source => Ok(Verdict::Failed { reason: source.to_owned() }),
                }
            };
            programs.iter().map(verdict).collect()
        }
    }

    fn code(program: &str) -> Code {
        let config = CodeConfig { program: program.to_owned(), ..CodeConfig::default() };
        Code::new(&config, Arc::new(Words)).unwrap()
    }

    fn reply<'a>(text: &'a str, answer: Option<&'a str>) -> Reply<'a> {
        Reply { prompt: &[], text, answer, tokens: 0, stopped: true }
    }

    #[test]
    fn a_program_passes_or_fails() {
        let mut code = code("{{ reply | fenced }}\n{{ answer }}");
        let scores = code.score(&[
            reply("So:\n```python\npass\n```\n", Some("assert f(-1) == '1,000'")),
            reply("loop", Some("x")),
            reply("", Some("x")),
            reply("pass", None),
            reply("pass", Some(" ")),
            reply("字 pass", Some("é")),
        ]);
        let none = Err(ScoreError::NoAnswer);
        assert_eq!(scores, [Ok(1.0), Ok(0.0), Ok(0.0), none.clone(), none, Ok(1.0)]);
    }

    #[test]
    fn a_sandbox_that_fails_leaves_no_score() {
        let mut code = code("{{ reply }}\n");
        let scores = code.score(&[reply("pass", None), reply("broken", None)]);
        let failed = ScoreError::Sandbox { reason: "no namespaces␛[2J".to_owned() };
        assert_eq!(scores, [Err(failed.clone()), Err(failed)]);
        assert_eq!(code.score(&[]), []);
    }

    #[test]
    fn the_prompt_is_its_last_turn() {
        let mut code = code("{{ prompt }} {{ reply }}");
        let prompt = [Message::system("loop"), Message::user("pass")];
        let scores = code.score(&[Reply { prompt: &prompt, ..reply("x", None) }, reply("x", None)]);
        assert_eq!(scores, [Ok(1.0), Ok(0.0)]);
    }

    #[test]
    fn templates_say_what_they_need() {
        for (program, needs) in [
            ("{{ reply }}", false),
            ("{{ reply }} {{ answer }}", true),
            ("{% if answer is defined %}{{ answer }}{% endif %}", false),
            ("# the answer is {{ reply }}", false),
        ] {
            assert_eq!(ReplyTemplate::new("program", program).unwrap().needs_answer(), needs, "{program}");
        }
        for (program, part) in [
            ("", "is missing"),
            ("{{ reply", "cannot be used"),
            ("{{ tests }}", "reads `tests`"),
            ("{{ reply | nothing }}", "cannot be used"),
        ] {
            let wrong = ReplyTemplate::new("program", program).unwrap_err();
            assert!(wrong.problem.contains(part), "{program}: {wrong:?}");
        }
        for timeout in [0.0, -1.0, f64::NAN, 601.0] {
            let config = CodeConfig { program: "x".to_owned(), timeout };
            assert_eq!(check(&config).unwrap_err().key, "timeout");
        }
    }

    #[test]
    fn odd_texts_are_programs() {
        let mut code = code("{{ reply }}{{ answer | tojson }}");
        for text in hostile_texts() {
            let score = code.score(&[reply(&text, Some("'"))]).remove(0);
            assert!(matches!(score, Ok(_) | Err(ScoreError::Template { .. })), "{text:?}");
        }
    }
}
