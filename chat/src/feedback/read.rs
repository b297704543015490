//! Reads the files of feedback logs.
//!
//! Every line must be a whole and valid row; the error names file, line and field. Nothing is skipped but
//! blank lines. A row that was read before, which its `id` tells, counts once. This file does not judge what
//! a row is good for.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use datasets::Message;
use parallel::regular_file;
use serde_json::Value;

use super::{FeedbackRow, Source};
use crate::failure::Failure;
use crate::own_file;

/// The longest file that is read, in bytes.
const LARGEST_LOG: u64 = 1 << 30;

/// The rows of some files.
#[derive(Debug, Default)]
pub(crate) struct Feedback {
    /// The rows, in the order of the files and their lines.
    pub(crate) rows: Vec<FeedbackRow>,
    /// The number of rows that had been read before.
    pub(crate) repeated: usize,
}

/// Returns the files that `paths` mean. A folder means its `.jsonl` files, by name, which must be regular
/// files; a file that is named itself may be a link or a pipe.
pub(crate) fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(files_of_folder(path)?);
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

fn files_of_folder(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |problem: String| Failure::File { path: folder.to_owned(), problem };
    let entries = fs::read_dir(folder).map_err(|error| failed(format!("cannot read the folder: {error}")))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| failed(format!("cannot read the folder: {error}")))?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") && !own_file::is_folder(&path) {
            let checked = regular_file::check(&path);
            checked.map_err(|error| Failure::File { path: path.clone(), problem: error.to_string() })?;
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(failed(NO_FEEDBACK.to_owned()));
    }
    files.sort();
    Ok(files)
}

/// What a person without feedback can do.
const NO_FEEDBACK: &str =
    "there is no feedback here: judge answers in `colossal-chat chat`, or name the files";

/// Reads every row of `files`.
pub(crate) fn read(files: &[PathBuf]) -> Result<Feedback, Failure> {
    let mut feedback = Feedback::default();
    // The index of each row by its id.
    let mut known = HashMap::new();
    for path in files {
        let refuse = |problem: String| Failure::File { path: path.clone(), problem };
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(LARGEST_LOG + 1).read_to_end(&mut bytes));
        read.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => refuse(NO_FEEDBACK.to_owned()),
            _ => refuse(format!("cannot read: {error}")),
        })?;
        if bytes.len() as u64 > LARGEST_LOG {
            return Err(refuse(format!("it has more than {LARGEST_LOG} bytes: divide it into files")));
        }

        for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let row = parse(line).and_then(|row| feedback.add(row, &mut known));
            row.map_err(|problem| refuse(format!("line {}: {problem}", index + 1)))?;
        }
    }
    Ok(feedback)
}

impl Feedback {
    /// Takes a row, unless it was read before. An id that stands for two different rows is an error: nobody
    /// can tell which of them is meant.
    fn add(&mut self, row: FeedbackRow, known: &mut HashMap<String, usize>) -> Result<(), String> {
        match known.get(&row.id) {
            None => {
                known.insert(row.id.clone(), self.rows.len());
                self.rows.push(row);
            }
            Some(&earlier) if self.rows[earlier] == row => self.repeated += 1,
            Some(_) => {
                return Err(format!(
                    "field id is {:?}, as in another row that says something else: give one of them a new id",
                    row.id
                ));
            }
        }
        Ok(())
    }
}

/// Reads one row, or says what is wrong with it.
fn parse(line: &[u8]) -> Result<FeedbackRow, String> {
    let row: FeedbackRow =
        serde_json::from_slice(line).map_err(|error| match serde_json::from_slice(line) {
            Ok(Value::Object(fields)) => in_field(&fields).unwrap_or_else(|| without_place(&error)),
            Ok(_) => "it is not a JSON object".to_owned(),
            Err(error) => {
                format!("it is not JSON ({error}): if a crash has cut the line off, remove it")
            }
        })?;
    row.check().map_err(|problem| problem.to_string())?;
    Ok(row)
}

/// The first field whose value does not have the type of the field. It is found by putting each value alone
/// into a valid row.
fn in_field(fields: &serde_json::Map<String, Value>) -> Option<String> {
    let valid = FeedbackRow::new(Source::Thumb, "", vec![Message::user("")]);
    let Ok(Value::Object(valid)) = serde_json::to_value(valid) else { return None };
    fields.iter().find_map(|(name, value)| {
        let mut row = valid.clone();
        row.insert(name.clone(), value.clone());
        let error = serde_json::from_value::<FeedbackRow>(Value::Object(row)).err()?;
        Some(format!("field {name}: {error}"))
    })
}

/// The message of an error without the line that the parser counts, which is always 1.
fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split(" at line ").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(change: impl FnOnce(&mut Value)) -> String {
        let mut row = FeedbackRow::new(Source::Thumb, "s", vec![Message::user("hi")]);
        row.completion = Some("hello".to_owned());
        row.label = Some(true);
        let mut value = serde_json::to_value(row).unwrap();
        change(&mut value);
        value.to_string()
    }

    fn problem(lines: &[String]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.jsonl");
        fs::write(&path, lines.join("\n")).unwrap();
        let error = read(&[path]).unwrap_err().to_string();
        error.split_once("x.jsonl: ").unwrap().1.to_owned()
    }

    #[test]
    fn a_bad_row_is_named_by_line_and_field() {
        let good = line(|_| {});
        for (bad, words) in [
            ("{\"id\": \"ha".to_owned(), "line 3: it is not JSON"),
            ("[1]".to_owned(), "line 3: it is not a JSON object"),
            ("{}".to_owned(), "line 3: missing field `id`"),
            (line(|row| row["label"] = "yes".into()), "line 3: field label: invalid type: string \"yes\""),
            (
                line(|row| row["prompt"][0]["role"] = "robot".into()),
                "line 3: field prompt: unknown variant `robot`",
            ),
            (line(|row| row["verdict"] = 1.into()), "line 3: field verdict: unknown field `verdict`"),
            (line(|row| row["rating"] = 300.into()), "line 3: field rating: invalid value: integer `300`"),
            (line(|row| row["rating"] = 3.into()), "line 3: field rating must not be there"),
        ] {
            let found = problem(&[good.clone(), String::new(), bad]);
            assert!(found.starts_with(words), "{words}: {found}");
        }
        let twin = line(|row| row["id"] = "twin".into());
        let other = line(|row| {
            row["id"] = "twin".into();
            row["label"] = false.into();
        });
        assert!(problem(&[twin, other]).starts_with("line 2: field id is \"twin\""));
    }

    #[test]
    fn a_row_counts_once_however_often_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("2026-02.jsonl"), format!("{}\r\n\n", line(|_| {}))).unwrap();
        fs::copy(path("2026-02.jsonl"), path("2026-01.jsonl")).unwrap();
        fs::write(path("notes.txt"), "not feedback").unwrap();
        let found = files(&[folder.path().to_owned()]).unwrap();
        assert_eq!(found, [path("2026-01.jsonl"), path("2026-02.jsonl")]);
        let feedback = read(&found).unwrap();
        assert_eq!((feedback.rows.len(), feedback.repeated), (1, 1));
    }

    #[test]
    fn a_place_without_feedback_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let empty = files(&[folder.path().to_owned()]).unwrap_err().to_string();
        let missing = read(&[folder.path().join("2026-01.jsonl")]).unwrap_err().to_string();
        assert!(empty.contains("colossal-chat chat") && missing.contains("colossal-chat chat"));
    }
}
