//! Reads the questions, reference answers and answers that are judged.
//!
//! `mt_bench` and `arena_hard` are read as their repositories lay them out, from their own folder below
//! `--data` or from a copy of the repository. Files may have `.gz`. Nothing is downloaded.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use datasets::{Row, RowLocation, TableReader};
use eval::judge::{AnswerSheet, Question, add_references};

use crate::args::EvalJudgeArgs;
use crate::config::ConfigError;
use crate::failure::Failure;

/// Where questions come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuestionSource {
    MtBench,
    ArenaHard,
    /// A file of the user's.
    File,
}

/// A set of questions that has a name.
struct Benchmark {
    name: &'static str,
    source: QuestionSource,
    /// Where its files may lie below `--data`, the best place first.
    folders: &'static [&'static str],
    /// The reference answers in that folder.
    references: Option<&'static str>,
    /// The folder of its repository that holds the files.
    repository: &'static str,
}

const BENCHMARKS: [Benchmark; 2] = [
    Benchmark {
        name: "mt_bench",
        source: QuestionSource::MtBench,
        folders: &[
            "mt_bench",
            "fastchat/llm_judge/data/mt_bench",
            "FastChat/fastchat/llm_judge/data/mt_bench",
        ],
        references: Some("reference_answer/gpt-4.jsonl"),
        repository: "fastchat/llm_judge/data/mt_bench of https://github.com/lm-sys/FastChat",
    },
    Benchmark {
        name: "arena_hard",
        source: QuestionSource::ArenaHard,
        folders: &["arena_hard", "data/arena-hard-v0.1", "arena-hard-auto/data/arena-hard-v0.1"],
        references: None,
        repository: "data/arena-hard-v0.1 of https://github.com/lmarena/arena-hard-auto",
    },
];

/// The questions with their reference answers.
pub(super) fn read_questions(arguments: &EvalJudgeArgs) -> anyhow::Result<(QuestionSource, Vec<Question>)> {
    let benchmark = BENCHMARKS.iter().find(|benchmark| benchmark.name == arguments.questions);
    let (source, path, references) = match benchmark {
        Some(benchmark) => {
            let path = benchmark.find(&arguments.data)?;
            let beside = benchmark.references.and_then(|name| file(&path.with_file_name("").join(name)));
            (benchmark.source, path, beside)
        }
        None => (QuestionSource::File, PathBuf::from(&arguments.questions), None),
    };
    let mut questions = questions_of(&path, arguments.limit.map(usize::from))?;
    if let Some(references) = arguments.references.as_ref().or(references.as_ref()) {
        let rows: Vec<Row> = read(references)?.into_iter().map(|(_, row)| row).collect();
        add_references(&mut questions, &rows).map_err(|error| wrong(references, &error.to_string()))?;
    }
    Ok((source, questions))
}

impl Benchmark {
    fn find(&self, data: &Path) -> Result<PathBuf, Failure> {
        let places: Vec<PathBuf> =
            self.folders.iter().map(|folder| data.join(folder).join("question.jsonl")).collect();
        places.iter().find_map(|place| file(place)).ok_or_else(|| {
            let fix = "there or give its parent folder with --data";
            wrong(&places[0], &format!("there is no such file: copy the folder {} {fix}", self.repository))
        })
    }
}

/// The file, or the one with `.gz`.
fn file(path: &Path) -> Option<PathBuf> {
    let packed = PathBuf::from(format!("{}.gz", path.display()));
    [path.to_owned(), packed].into_iter().find(|path| path.is_file())
}

fn questions_of(path: &Path, limit: Option<usize>) -> anyhow::Result<Vec<Question>> {
    let mut rows = read(path)?;
    rows.truncate(limit.unwrap_or(usize::MAX));
    let mut questions = Vec::with_capacity(rows.len());
    let mut known: HashMap<String, usize> = HashMap::new();
    for (at, row) in &rows {
        let question = Question::from_row(row, at.row)
            .map_err(|error| wrong(path, &format!("row {}: {error}", at.row)))?;
        if let Some(before) = known.insert(question.id.clone(), at.row) {
            let (row, id) = (at.row, &question.id);
            let problem =
                format!("row {row}: the id {id:?} is that of row {before}: give each question its own");
            return Err(wrong(path, &problem).into());
        }
        questions.push(question);
    }
    if questions.is_empty() {
        return Err(wrong(path, "it holds no questions: give a file with rows").into());
    }
    Ok(questions)
}

/// The answers of files, one model each.
pub(super) fn read_answers(files: &[PathBuf], questions: &[Question]) -> anyhow::Result<Vec<AnswerSheet>> {
    let mut sheets = Vec::with_capacity(files.len());
    for path in files {
        let rows: Vec<Row> = read(path)?.into_iter().map(|(_, row)| row).collect();
        let sheet = AnswerSheet::from_rows(&name_of(path), &rows, questions)
            .map_err(|error| wrong(path, &error.to_string()))?;
        if let Some((missing, problem)) = sheet.missing()
            && missing == questions.len()
        {
            let problem = format!("it answers none of the {missing} questions: {problem}; check their ids");
            return Err(wrong(path, &problem).into());
        }
        sheets.push(sheet);
    }
    Ok(sheets)
}

/// The name of a file without its endings.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_owned()
}

fn read(path: &Path) -> anyhow::Result<Vec<(RowLocation, Row)>> {
    if !path.is_file() {
        let problem = "there is no such file".to_owned();
        return Err(ConfigError::Argument { argument: path.display().to_string(), problem }.into());
    }
    Ok(TableReader::open(path)?.rows(None)?.collect::<Result<_, _>>()?)
}

fn wrong(path: &Path, problem: &str) -> Failure {
    Failure::File { path: path.to_owned(), problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_without_their_endings() {
        for (path, name) in
            [("a/gpt-3.5-turbo.jsonl", "gpt-3.5-turbo"), ("b.jsonl.gz", "b"), ("c.parquet", "c"), ("d", "d")]
        {
            assert_eq!(name_of(Path::new(path)), name);
        }
    }
}
