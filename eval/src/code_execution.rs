//! Programs that test the code of a model, and what came of running them.
//!
//! A task with a table `[code_execution]` makes one program of each reply: the code with the tests of its row
//! (`build_predictions` and `references` of lm-evaluation-harness 0.4.13, which its `code_eval` joins). The
//! number of programs that pass decides [`pass@k`](crate::statistics::pass_at_k). This module knows no
//! interpreter and no process: programs go out through the trait [`CodeRunner`].

use std::fmt::Debug;
use std::time::Duration;

use datasets::{Row, RowTemplate, TemplateRow};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;
use crate::text_filters::TEXT_FILTERS;

/// The columns that a program has in addition to those of the row. They hide columns of the same name.
const REPLY: &str = "reply";
const TARGET: &str = "target";

/// How the code of a reply is tested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeExecution {
    /// The Python program: a template over the columns of the row, `reply` and `target`.
    pub program: String,
    /// The seconds that a program may take.
    #[serde(default = "default_timeout")]
    pub timeout: f64,
}

/// The limit of `code_eval`.
fn default_timeout() -> f64 {
    3.0
}

/// A Python program that passes if it runs to its end without an exception.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// The text of the program.
    pub source: String,
    /// The wall-clock time that it may take.
    pub timeout: Duration,
}

/// What came of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It ran to its end.
    Passed,
    /// It ended early.
    Failed {
        /// The exception, or how the process ended.
        reason: String,
    },
    /// It did not end in time.
    TimedOut,
}

/// Why programs could not be run at all.
pub type RunnerError = Box<dyn std::error::Error + Send + Sync>;

/// Runs programs whose author is not trusted. May be called from another thread while the calling one does
/// something else.
pub trait CodeRunner: Debug + Sync {
    /// The interpreter and its version, on which verdicts may depend.
    fn interpreter(&self) -> String;

    /// Runs each program by itself, and returns a verdict for each, in the order of the programs.
    fn run(&self, programs: &[Program]) -> Result<Vec<Verdict>, RunnerError>;
}

impl CodeExecution {
    /// The compiled template of the program.
    pub(crate) fn template(&self) -> Result<RowTemplate, Error> {
        Ok(RowTemplate::new("code_execution.program", &self.program, TEXT_FILTERS)?)
    }

    /// The program that tests each of `replies`, for a row with the right answer `target`.
    pub(crate) fn programs<'r>(
        &self,
        row: &Row,
        target: &str,
        replies: impl Iterator<Item = &'r str>,
    ) -> Result<Vec<Program>, Error> {
        let template = self.template()?;
        let timeout = Duration::from_secs_f64(self.timeout);
        let program = |reply: &str| {
            let mut columns = row.clone();
            columns.insert(REPLY.to_owned(), Value::from(reply));
            columns.insert(TARGET.to_owned(), Value::from(target));
            Ok(Program { source: template.text(&TemplateRow::new(&columns))?, timeout })
        };
        replies.map(program).collect()
    }
}
