//! What a task is: a TOML file that says where its rows lie, how a row becomes a prompt, what is asked of the
//! model, and how the answer is scored.
//!
//! The keys are those of lm-evaluation-harness where it has them. `doc_to_*` are Jinja templates over the
//! columns of a row; a template that is one expression, such as `{{ choices.text }}`, gives its value, any
//! other gives text. A file with `[[subset]]` tables is a family of tasks: the keys of a subset replace those
//! of the file, `{{ subset }}` is its name, and `[[group]]` tables average them. `docs/tasks.md` explains the
//! file to people.
//!
//! This module reads and checks files. It knows no rows and no model.

mod definition;
mod embedded;
mod file;
mod protocol;
mod registry;

pub use definition::{
    Choices, DatasetSource, FewShotConfig, GenerationKwargs, Group, MetricConfig, OutputType, Task,
};
pub use file::{TaskFile, parse};
pub use registry::{Registry, Selection, matches};
