//! The files of rows that a run file names: which stage reads which, and whether it can.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use datasets::{
    Demonstration, Error, Layout, Preference, Prompt, ReadOptions, Record, TableReader, Unpaired,
    open_records, table,
};

use text::single_line;

use super::check::{as_text, refused};
use super::dialog::{Dialog, Question};
use crate::args::{Goal, InitArgs};
use crate::nearby::{self, Nearby};
use crate::stage::definition::RowKind;

/// How many rows of each file are read.
const CHECKED_ROWS: usize = 100;

/// The files of each kind of rows that a stage which runs learns from.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rows(BTreeMap<RowKind, Vec<String>>);

impl Rows {
    /// Takes the files that flags name, or asks for them.
    pub(super) fn ask<R: BufRead, W: Write>(
        goal: Goal,
        arguments: &InitArgs,
        nearby: &Nearby,
        dialog: &mut Dialog<R, W>,
    ) -> anyhow::Result<Self> {
        let flags = kinds(goal).into_iter().map(|kind| (kind, given(kind, arguments).to_vec()));
        let flags: BTreeMap<_, _> = flags.filter(|(_, files)| !files.is_empty()).collect();
        if !flags.is_empty() {
            return Self(flags).checked(goal);
        }

        let (what, flag) = match goal {
            Goal::Stage(stage) => (stage.init.rows.text(), stage.init.rows.flag()),
            Goal::All => ("demonstrations, pairs and prompts", RowKind::Demonstrations.flag()),
        };
        let text = format!("Files of {what}, with commas between them");
        let question =
            Question { text: &text, choices: Vec::new(), default: default_files(goal, nearby), flag };
        dialog.ask(&question, |text| Self::from_answer(goal, text)?.checked(goal))
    }

    /// The files of a kind.
    pub(super) fn of(&self, kind: RowKind) -> &[String] {
        self.0.get(&kind).map_or(&[], Vec::as_slice)
    }

    /// The files that an answer names, with commas between them.
    fn from_answer(goal: Goal, text: &str) -> anyhow::Result<Self> {
        let files = text.split(',').map(|file| file.trim().to_owned()).filter(|file| !file.is_empty());
        let files: Vec<String> = files.collect();
        match goal {
            Goal::Stage(stage) => Ok(Self(BTreeMap::from([(stage.init.rows, files)]))),
            // One question asks for the rows of all stages, so the columns tell them apart.
            Goal::All => by_columns(&kinds(goal), &files),
        }
    }

    /// Checks that every stage that runs has rows that it can read. A file for all stages may take its
    /// prompts from its pairs.
    fn checked(mut self, goal: Goal) -> anyhow::Result<Self> {
        if goal.is_all() && self.of(RowKind::Prompts).is_empty() {
            let pairs = self.of(RowKind::Pairs).to_vec();
            self.0.insert(RowKind::Prompts, pairs);
        }
        for kind in kinds(goal) {
            let (flag, files) = (kind.flag(), self.of(kind));
            match kind {
                RowKind::Demonstrations => check_rows::<Demonstration>(flag, files),
                RowKind::Pairs => check_rows::<Preference>(flag, files),
                RowKind::Rated => check_rows::<Unpaired>(flag, files),
                RowKind::Prompts => check_rows::<Prompt>(flag, files),
            }?;
        }
        Ok(self)
    }
}

/// The kinds of rows that the stages of a goal learn from.
fn kinds(goal: Goal) -> Vec<RowKind> {
    goal.stages().into_iter().map(|stage| stage.init.rows).collect()
}

/// The files of a kind that flags name.
pub(super) fn given(kind: RowKind, arguments: &InitArgs) -> &[String] {
    match kind {
        RowKind::Demonstrations => &arguments.data,
        RowKind::Pairs | RowKind::Rated => &arguments.preferences,
        RowKind::Prompts => &arguments.prompts,
    }
}

/// The first file that was found for each stage that runs.
pub(super) fn default_files(goal: Goal, nearby: &Nearby) -> Option<String> {
    let first = |kind: RowKind| {
        let mut files = nearby.files.iter().filter(|file| file.kind() == Some(kind) && !file.is_held_out());
        // A comma would part the name in two, and nobody wants a name with control characters by default.
        files.find_map(|file| {
            as_text(&file.path).filter(|path| !path.contains(',') && single_line(path) == *path)
        })
    };
    let pairs = || first(RowKind::Pairs);
    match goal {
        // Pairs have prompts, and answers with a label.
        Goal::Stage(stage) => match stage.init.rows {
            kind @ (RowKind::Prompts | RowKind::Rated) => first(kind).or_else(pairs),
            kind => first(kind),
        },
        Goal::All => {
            let files = kinds(goal).into_iter().map(|kind| match kind {
                RowKind::Prompts => Some(first(kind)),
                _ => first(kind).map(Some),
            });
            let files: Vec<Option<String>> = files.collect::<Option<_>>()?;
            Some(files.into_iter().flatten().collect::<Vec<_>>().join(", "))
        }
    }
}

/// Tells from the columns of each file which of `kinds` its rows are.
fn by_columns(kinds: &[RowKind], files: &[String]) -> anyhow::Result<Rows> {
    let mut rows = Rows::default();
    for name in files {
        for path in table::expand(&[name])? {
            let layout = Layout::guess(TableReader::open(&path)?.columns(), &path)?;
            let Some(kind) = nearby::kind_of(layout).filter(|kind| kinds.contains(kind)) else {
                let problem = format!("no stage of this file trains on the layout {layout}: leave it out");
                return Err(refused(name, problem).into());
            };
            let list = rows.0.entry(kind).or_default();
            if list.last() != Some(name) {
                list.push(name.clone());
            }
        }
    }
    Ok(rows)
}

/// Reads the first rows of files as a stage would.
fn check_rows<R: Record>(flag: &str, files: &[String]) -> anyhow::Result<()> {
    if files.is_empty() {
        return Err(refused(flag, format!("there is no file of {} rows: name one", R::KIND)).into());
    }
    for path in table::expand(files)? {
        table::refuse_stream(&path)?;
        let mut rows = open_records::<R>(&path, &ReadOptions::default())?.take(CHECKED_ROWS).peekable();
        if rows.peek().is_none() {
            return Err(Error::NoRows { path }.into());
        }
        rows.try_for_each(|row| row.map(drop))?;
    }
    Ok(())
}
