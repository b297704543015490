//! Asks a person questions, line by line, until each answer passes its check.
//!
//! A question has a default answer, a flag that answers it, or both. This file does not know what is asked.

use std::io::{self, BufRead, IsTerminal, Write};

use text::{sanitize, single_line};

use crate::config::ConfigError;
use crate::failure::Failure;
use crate::{exit, user_folders};

/// How many lines that do not pass the check one question may get, so that a broken terminal ends the dialog.
const TRIES: usize = 20;

/// One question.
pub(super) struct Question<'a> {
    /// The question, without its end.
    pub(super) text: &'a str,
    /// The answers that there are, each with what it means; empty if there are others.
    pub(super) choices: Vec<(&'static str, String)>,
    /// What an empty line means.
    pub(super) default: Option<String>,
    /// The flag that answers it.
    pub(super) flag: &'static str,
}

/// A conversation with a person, or with nobody.
pub(super) struct Dialog<R, W> {
    input: R,
    output: W,
    who: Who,
    asked: usize,
}

/// Who answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// A person at a terminal.
    Person,
    /// The defaults, because of `--yes`.
    Defaults,
    /// Nobody, because there is no terminal.
    Nobody,
}

impl Dialog<io::StdinLock<'static>, io::Stderr> {
    /// A dialog over stdin and stderr. With `yes`, the defaults answer.
    pub(super) fn on_terminal(yes: bool) -> Self {
        let who = match (yes, io::stdin().is_terminal() && io::stderr().is_terminal()) {
            (true, _) => Who::Defaults,
            (false, true) => Who::Person,
            (false, false) => Who::Nobody,
        };
        Self { input: io::stdin().lock(), output: io::stderr(), who, asked: 0 }
    }
}

impl<R: BufRead, W: Write> Dialog<R, W> {
    /// Asks until `check` accepts an answer, and returns what it makes of it.
    pub(super) fn ask<T>(
        &mut self,
        question: &Question<'_>,
        mut check: impl FnMut(&str) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        match (self.who, &question.default) {
            (Who::Person, _) => {}
            (Who::Defaults, Some(answer)) => return check(answer),
            (Who::Defaults, None) => {
                return Err(unanswered(question, "nothing here answers it").into());
            }
            // A default that nobody has seen is no answer: only --yes agrees to the defaults.
            (Who::Nobody, _) => {
                return Err(unanswered(question, "this is no terminal, and there is no --yes").into());
            }
        }

        self.asked += 1;
        for (name, meaning) in &question.choices {
            writeln!(self.output, "   {name:<8} {meaning}")?;
        }
        for _ in 0..TRIES {
            let given = self.read(question)?;
            let answer = if given.is_empty() { question.default.clone().unwrap_or_default() } else { given };
            if answer.is_empty() {
                writeln!(self.output, "   there is no default: type an answer, or end with Ctrl-C")?;
                continue;
            }
            // No shell has seen what is typed here.
            let answer = user_folders::expand_home(&answer).map_err(anyhow::Error::from);
            match answer.and_then(|answer| check(&answer)) {
                Ok(accepted) => return Ok(accepted),
                Err(error) => writeln!(self.output, "   {}", sanitize(&exit::text(&error)))?,
            }
        }
        Err(unanswered(question, "no answer passed its check").into())
    }

    /// Says something that needs no answer.
    pub(super) fn say(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.output, "{}", sanitize(text))
    }

    /// Reads one line, without white space around it.
    fn read(&mut self, question: &Question<'_>) -> anyhow::Result<String> {
        let default =
            question.default.as_ref().map_or_else(String::new, |text| format!(" [{}]", single_line(text)));
        write!(self.output, "{}. {}{default}: ", self.asked, question.text)?;
        self.output.flush()?;
        let mut line = String::new();
        if self.input.read_line(&mut line).map_err(Failure::Stdin)? == 0 {
            writeln!(self.output)?;
            return Err(unanswered(question, "the input has ended").into());
        }
        Ok(line.trim().to_owned())
    }
}

/// A question that got no answer.
fn unanswered(question: &Question<'_>, reason: &str) -> ConfigError {
    let problem = format!("{reason}: give this flag, it answers {:?}", question.text);
    ConfigError::Argument { argument: question.flag.to_owned(), problem }
}

#[cfg(test)]
impl<'a> Dialog<&'a [u8], Vec<u8>> {
    /// A dialog with a person who types `input`.
    pub(super) fn typed(input: &'a str) -> Self {
        Self { input: input.as_bytes(), output: Vec::new(), who: Who::Person, asked: 0 }
    }

    /// The number of questions, and what the person sees.
    pub(super) fn seen(self) -> (usize, String) {
        (self.asked, String::from_utf8(self.output).unwrap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(default: Option<&str>) -> Question<'static> {
        Question {
            text: "How many",
            choices: Vec::new(),
            default: default.map(str::to_owned),
            flag: "--many",
        }
    }

    fn number(text: &str) -> anyhow::Result<u32> {
        text.parse().map_err(|_| anyhow::anyhow!("{text} is no number"))
    }

    #[test]
    fn a_question_is_asked_until_the_answer_passes() {
        let mut dialog = Dialog::typed("\nmany\u{1b}[2J\n 7 \n");
        assert_eq!(dialog.ask(&question(None), number).unwrap(), 7);
        let (asked, seen) = dialog.seen();
        assert_eq!(asked, 1);
        assert_eq!(seen.matches("1. How many: ").count(), 3, "{seen}");
        assert!(seen.contains("there is no default") && seen.contains("many␛[2J is no number"), "{seen}");
    }

    #[test]
    fn an_empty_line_takes_the_default_and_the_end_of_input_is_an_error() {
        let mut dialog = Dialog::typed("\n");
        assert_eq!(dialog.ask(&question(Some("3")), number).unwrap(), 3);
        let error = dialog.ask(&question(Some("3")), number).unwrap_err().to_string();
        assert!(error.contains("--many") && error.contains("has ended"), "{error}");
        assert!(dialog.seen().1.contains("1. How many [3]: "));
    }

    #[test]
    fn without_a_person_the_flag_is_named() {
        let silent = |who| Dialog { input: &b""[..], output: Vec::new(), who, asked: 0 };
        assert_eq!(silent(Who::Defaults).ask(&question(Some("3")), number).unwrap(), 3);
        for (who, default) in [(Who::Defaults, None), (Who::Nobody, Some("3"))] {
            let error = silent(who).ask(&question(default), number).unwrap_err().to_string();
            assert!(error.starts_with("--many: "), "{error}");
        }
    }
}
