//! `IFEval`: whether a reply follows instructions that a program can verify (Zhou et al. 2023,
//! "Instruction-Following Evaluation for Large Language Models", arXiv 2311.07911), such as "at least 300
//! words" or "no commas".
//!
//! A prompt has one or more instructions. Each is checked on two levels:
//!
//! - strict: on the reply as it is;
//! - loose: on eight variants of the reply, of which one must pass: with or without its first line, with or
//!   without its last line, with or without asterisks. Loose forgives "Sure, here it is:" and bold type.
//!
//! A blank reply, and a blank variant, follow nothing. Four accuracies come of this: the share of prompts
//! whose instructions are all followed, and the share of instructions, each strict and loose.
//!
//! `ifeval/kind.rs` lists the 25 kinds of instructions with their arguments and checks. All give the results
//! of lm-evaluation-harness 0.4.13 (task version 4.0), except those that [`Agreement::Approximate`] marks:
//! there the harness asks `langdetect` or the tokenizers of NLTK, which have large tables, or draws at
//! random. A report can count these apart. Keywords are regular expressions in Python's syntax
//! ([`crate::python_regex`]).
//!
//! This module does not know how prompts are read and replies are made.

mod arguments;
mod case;
mod json;
mod kind;
mod language;
mod layout;
mod pattern;
mod sentence;
mod word;

#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::Error;
use crate::python_text::strip;
use arguments::Arguments;
use kind::Check;
pub use kind::{Agreement, ids};

/// One instruction of a prompt, ready to be checked.
pub struct Instruction {
    id: &'static str,
    check: Check,
}

impl Instruction {
    /// Its kind, e.g. `punctuation:no_comma`.
    pub fn id(&self) -> &'static str {
        self.id
    }

    /// Whether its verdicts are those of lm-evaluation-harness.
    pub fn agreement(&self) -> Agreement {
        self.check.agreement
    }

    fn follows(&self, reply: &str) -> Result<bool, Error> {
        Ok(!strip(reply).is_empty() && (self.check.follows)(reply)?)
    }
}

/// The instructions of one prompt.
pub struct Prompt {
    instructions: Vec<Instruction>,
}

impl Prompt {
    /// Reads `instruction_id_list` and `kwargs` of one row. `row` names it in errors, e.g. `train.jsonl row
    /// 12`.
    ///
    /// As in the data set, an argument that is null, 0 or empty is absent. The harness draws an absent
    /// argument at random; here it is an error.
    pub fn parse(row: &str, instruction_id_list: &Value, kwargs: &Value) -> Result<Self, Error> {
        let refuse = |field: &str, problem: String, fix| {
            Err(Error::Instruction { place: format!("{row}, {field}"), problem, fix })
        };
        let Some(ids) = instruction_id_list.as_array().filter(|ids| !ids.is_empty()) else {
            let fix = "give one or more, such as [\"punctuation:no_comma\"]";
            return refuse("instruction_id_list", "is not a list of ids".to_owned(), fix);
        };
        let Some(kwargs) = kwargs.as_array() else {
            return refuse("kwargs", "is not a list".to_owned(), "give one object per instruction");
        };
        if kwargs.len() != ids.len() {
            let problem = format!("has {} objects for {} instructions", kwargs.len(), ids.len());
            return refuse(
                "kwargs",
                problem,
                "give one object per instruction, {} where it has no arguments",
            );
        }

        let read = |(index, (id, kwargs))| instruction(row, index, id, kwargs);
        let instructions = ids.iter().zip(kwargs).enumerate().map(read).collect::<Result<_, _>>()?;
        Ok(Self { instructions })
    }

    /// The instructions, in the order of the row.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Whether `reply` follows each instruction. It fails if a keyword of the row, a regular expression,
    /// takes too many steps on this reply.
    pub fn strict(&self, reply: &str) -> Result<Vec<bool>, Error> {
        self.instructions.iter().map(|instruction| instruction.follows(reply)).collect()
    }

    /// Whether one of the eight variants of `reply` follows each instruction. It fails as [`Prompt::strict`].
    pub fn loose(&self, reply: &str) -> Result<Vec<bool>, Error> {
        let variants = variants(reply);
        let any = |instruction: &Instruction| {
            for variant in &variants {
                if instruction.follows(variant)? {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        self.instructions.iter().map(any).collect()
    }

    /// Both verdicts of each instruction.
    pub fn verdicts(&self, reply: &str) -> Result<Vec<Verdict>, Error> {
        let levels = self.strict(reply)?.into_iter().zip(self.loose(reply)?);
        let verdict = |(instruction, (strict, loose)): (&Instruction, _)| Verdict {
            strict,
            loose,
            agreement: instruction.agreement(),
        };
        Ok(self.instructions.iter().zip(levels).map(verdict).collect())
    }
}

fn instruction(row: &str, index: usize, id: &Value, kwargs: &Value) -> Result<Instruction, Error> {
    let place = format!("{row}, instruction {index}");
    let Some(kind) = id.as_str().and_then(kind::find) else {
        let problem = format!("is {id}, which IFEval does not have");
        return Err(Error::Instruction { place, problem, fix: "use one of the 25 ids of the paper" });
    };

    let arguments = Arguments::read(&format!("{row}, {}", kind.id), kind.fields, kwargs)?;
    Ok(Instruction { id: kind.id, check: (kind.read)(&arguments)? })
}

/// The reply; without its first line, its last line, and both; and these four without asterisks.
fn variants(reply: &str) -> Vec<String> {
    let lines: Vec<&str> = reply.split('\n').collect();
    let inner = lines.get(1..lines.len() - 1).unwrap_or_default();
    let cut = |lines: &[&str]| strip(&lines.join("\n")).to_owned();
    let kept = [reply.to_owned(), cut(&lines[1..]), cut(&lines[..lines.len() - 1]), cut(inner)];
    let plain = kept.iter().map(|text| text.replace('*', "")).collect::<Vec<_>>();
    kept.into_iter().chain(plain).collect()
}

/// The result of one instruction for one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the reply follows it.
    pub strict: bool,
    /// Whether a variant of the reply follows it. It is true where `strict` is.
    pub loose: bool,
    /// Whether lm-evaluation-harness surely says the same.
    pub agreement: Agreement,
}
