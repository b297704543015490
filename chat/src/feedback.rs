//! The judgements of people on answers of a model: a row, and the log to which rows are appended.
//!
//! A log is a folder with one file a month, `YYYY-MM.jsonl`, and each line is one [`FeedbackRow`]. Rows are
//! only appended; a changed mind is a new row. This file does not know how rows become training data; see
//! `data import-feedback`.

pub(crate) mod read;
pub(crate) mod timestamp;
pub(crate) mod training_rows;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use datasets::{Message, Role};
use parallel::regular_file;
use serde::{Deserialize, Serialize};

use self::timestamp::Timestamp;
use crate::user_folders;

/// How a judgement was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    /// Two answers stood side by side, and one was picked, or neither.
    Compare,
    /// One of several answers to the same turn was preferred.
    Sibling,
    /// An answer was corrected: the corrected text is chosen, the original is rejected.
    Edit,
    /// One answer was called good or bad.
    Thumb,
    /// One answer got 1 to 5 points.
    Rating,
}

impl Source {
    /// Whether rows of this source hold two answers.
    pub(crate) fn is_pair(self) -> bool {
        matches!(self, Self::Compare | Self::Sibling | Self::Edit)
    }

    /// The name of the source in a row.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Compare => "compare",
            Self::Sibling => "sibling",
            Self::Edit => "edit",
            Self::Thumb => "thumb",
            Self::Rating => "rating",
        }
    }
}

/// One judgement of a person on answers of a model.
///
/// Which fields a row has depends on its source; see [`FeedbackRow::check`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FeedbackRow {
    /// A random name, so that a row that is read twice counts once.
    pub(crate) id: String,
    /// When the judgement was made, RFC 3339 in UTC.
    pub(crate) time: String,
    /// The session of the chat.
    pub(crate) session: String,
    /// How the judgement was made.
    pub(crate) source: Source,
    /// Every turn before the answer, with the system turn.
    pub(crate) prompt: Vec<Message>,
    /// The better answer of a pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chosen: Option<String>,
    /// The worse answer of a pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rejected: Option<String>,
    /// Whether two compared answers are equally good. `chosen` and `rejected` then have no order.
    #[serde(default)]
    pub(crate) tie: bool,
    /// The single answer that a thumb or a rating judges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) completion: Option<String>,
    /// The verdict of a thumb: true is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<bool>,
    /// The points of a rating, 1 to 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rating: Option<u8>,
    /// The models that wrote the chosen answer and then the rejected one, or the single answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) models: Vec<String>,
    /// Whether the person could not see which model wrote which answer.
    #[serde(default)]
    pub(crate) blind: bool,
    /// How the answers were drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sampling: Option<serde_json::Value>,
    /// The seed of the draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    /// What the person wrote about the judgement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// Words to find the row by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<String>,
}

/// A field of a row that does not go with the others.
#[derive(Debug, thiserror::Error)]
#[error("field {field} {problem}")]
pub(crate) struct RowProblem {
    field: &'static str,
    /// What is wrong with it, and how to fix it.
    problem: String,
}

impl RowProblem {
    fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

impl FeedbackRow {
    /// Starts a row with a new name and the present time.
    pub(crate) fn new(source: Source, session: impl Into<String>, prompt: Vec<Message>) -> Self {
        Self {
            id: format!("{:032x}", rand::random::<u128>()),
            time: Timestamp::now().to_string(),
            session: session.into(),
            source,
            prompt,
            chosen: None,
            rejected: None,
            tie: false,
            completion: None,
            label: None,
            rating: None,
            models: Vec::new(),
            blind: false,
            sampling: None,
            seed: None,
            note: None,
            tags: Vec::new(),
        }
    }

    /// Refuses a row whose fields do not go with its source.
    ///
    /// A comparison, a preferred sibling and an edit have `chosen` and `rejected`; a thumb has `completion`
    /// and `label`; a rating has `completion` and `rating`. Only a comparison may be a tie.
    pub(crate) fn check(&self) -> Result<(), RowProblem> {
        if self.id.is_empty() {
            return Err(RowProblem::new("id", "is empty: give every row a name of its own"));
        }
        self.moment()?;
        self.check_prompt()?;

        // A field that another source has would say something else than its row.
        let (pair, source) = (self.source.is_pair(), self.source.as_str());
        for (field, present, wanted) in [
            ("chosen", self.chosen.is_some(), pair),
            ("rejected", self.rejected.is_some(), pair),
            ("completion", self.completion.is_some(), !pair),
            ("label", self.label.is_some(), self.source == Source::Thumb),
            ("rating", self.rating.is_some(), self.source == Source::Rating),
        ] {
            if present != wanted {
                let problem = if wanted { "is missing, and" } else { "must not be there:" };
                let verb = if wanted { "needs it" } else { "has none" };
                return Err(RowProblem::new(field, format!("{problem} a row of source {source} {verb}")));
            }
        }

        if self.tie && self.source != Source::Compare {
            let problem = format!("is true, but a row of source {source} has an order; leave it out");
            return Err(RowProblem::new("tie", problem));
        }
        match self.rating {
            Some(rating) if !(1..=5).contains(&rating) => {
                Err(RowProblem::new("rating", format!("is {rating}: give 1 to 5")))
            }
            _ => Ok(()),
        }
    }

    /// When the judgement was made.
    pub(crate) fn moment(&self) -> Result<Timestamp, RowProblem> {
        self.time.parse().map_err(|wrong| RowProblem::new("time", format!("is {:?}: {wrong}", self.time)))
    }

    fn check_prompt(&self) -> Result<(), RowProblem> {
        match self.prompt.last() {
            None => Err(RowProblem::new("prompt", "has no turns: give every turn before the answer")),
            Some(last) if last.role == Role::Assistant => {
                Err(RowProblem::new("prompt", "ends with an assistant turn: end it before the answer"))
            }
            Some(_) => Ok(()),
        }
    }
}

/// A folder to which rows are appended.
#[derive(Clone, Debug)]
pub(crate) struct FeedbackLog {
    folder: PathBuf,
}

impl FeedbackLog {
    /// Names the folder of a log. It is made when the first row is appended.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Appends a row to the file of its month, and returns the file.
    ///
    /// The row is one write at the end of the file, and it is on disk when this returns. If the file ends in
    /// the middle of a line, because the program or the machine crashed, the row begins on a new line.
    pub(crate) fn append(&self, row: &FeedbackRow) -> anyhow::Result<PathBuf> {
        row.check()?;
        let path = self.folder.join(format!("{}.jsonl", row.moment()?.month()));
        let mut line = serde_json::to_string(row)?;
        line.push('\n');
        let cannot = || format!("cannot write the feedback to {}", path.display());
        // Feedback quotes private conversations, so only its owner may read it.
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).with_context(cannot)?;
        append_line(&path, &line).with_context(cannot)?;
        Ok(path)
    }
}

/// Appends a line to a file, which is made if it is missing.
fn append_line(path: &Path, line: &str) -> io::Result<()> {
    let is_new = !path.exists();
    let mut options = OpenOptions::new();
    let mut file = regular_file::open(path, options.read(true).append(true).create(true).mode(0o600))?;
    let separator = if ends_with_half_line(&mut file)? { "\n" } else { "" };
    file.write_all(format!("{separator}{line}").as_bytes())?;
    file.sync_all()?;
    if is_new {
        // The name of a new file is durable only after its folder is synced.
        File::open(path.parent().expect("the file lies in the folder of the log"))?.sync_all()?;
    }
    Ok(())
}

/// Whether the last line of the file has no line feed.
fn ends_with_half_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// The folder of the log of this user, in the data folder of the user.
pub(crate) fn default_folder() -> anyhow::Result<PathBuf> {
    let data = user_folders::data().context("there is no place for feedback: set HOME or XDG_DATA_HOME")?;
    Ok(data.join("feedback"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn thumb(answer: &str, good: bool) -> FeedbackRow {
        let mut row = FeedbackRow::new(Source::Thumb, "s1", vec![Message::user("hi")]);
        row.completion = Some(answer.to_owned());
        row.label = Some(good);
        row
    }

    fn pair(source: Source) -> FeedbackRow {
        let mut row = FeedbackRow::new(source, "s1", vec![Message::system("be kind"), Message::user("hi")]);
        row.chosen = Some("hello".to_owned());
        row.rejected = Some("what".to_owned());
        row
    }

    #[test]
    fn a_row_survives_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let log = FeedbackLog::new(folder.path().join("deep/feedback"));
        let rows = [thumb("two\nlines", true), pair(Source::Compare)];
        let paths = rows.each_ref().map(|row| log.append(row).unwrap());
        let text = fs::read_to_string(&paths[0]).unwrap();
        let read: Vec<FeedbackRow> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, rows);
        assert_ne!(rows[0].id, rows[1].id);
        assert_eq!(paths[0].file_stem().unwrap().to_str().unwrap(), &rows[0].time[..7]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&paths[0]), mode(paths[0].parent().unwrap())), (0o600, 0o700));
    }

    #[test]
    fn a_file_that_is_a_link_or_a_pipe_is_refused_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let log = FeedbackLog::new(folder.path().join("log"));
        let path = log.append(&thumb("a", true)).unwrap();
        let mine = folder.path().join("mine");
        fs::rename(&path, &mine).unwrap();
        let before = fs::read_to_string(&mine).unwrap();
        let make_link = || std::os::unix::fs::symlink(&mine, &path).unwrap();
        let make_pipe =
            || assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        for (make, words) in [(&make_link as &dyn Fn(), "a link"), (&make_pipe, "a pipe")] {
            make();
            let error = format!("{:#}", log.append(&thumb("b", true)).unwrap_err());
            assert!(error.contains(".jsonl") && error.contains(words), "{error}");
            let error = read::files(&[folder.path().join("log")]).unwrap_err().to_string();
            assert!(error.contains(".jsonl") && error.contains(words), "{error}");
            assert!(!fs::symlink_metadata(&path).unwrap().is_file());
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(fs::read_to_string(mine).unwrap(), before);
    }

    #[test]
    fn a_row_after_a_half_line_stands_on_a_line_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let log = FeedbackLog::new(folder.path().to_owned());
        let path = log.append(&thumb("a", true)).unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"id\": \"ha").unwrap();
        log.append(&thumb("b", false)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[1]), (3, "{\"id\": \"ha"));
        assert!(serde_json::from_str::<FeedbackRow>(lines[2]).is_ok());
    }

    #[test]
    fn a_row_has_the_fields_of_its_source_and_no_others() {
        let good = [pair(Source::Compare), pair(Source::Sibling), pair(Source::Edit), thumb("x", true)];
        assert!(good.iter().all(|row| row.check().is_ok()));
        let rating = |points| FeedbackRow {
            source: Source::Rating,
            label: None,
            rating: Some(points),
            ..thumb("x", true)
        };
        assert!(rating(5).check().is_ok());
        for (row, words) in [
            (rating(6), "field rating is 6"),
            (rating(0), "field rating is 0"),
            (FeedbackRow { rejected: None, ..pair(Source::Edit) }, "field rejected is missing"),
            (FeedbackRow { chosen: Some("x".into()), ..thumb("x", true) }, "field chosen must not be there"),
            (FeedbackRow { label: None, ..thumb("x", true) }, "field label is missing"),
            (FeedbackRow { tie: true, ..pair(Source::Sibling) }, "field tie is true"),
            (FeedbackRow { prompt: Vec::new(), ..thumb("x", true) }, "field prompt has no turns"),
            (
                FeedbackRow { prompt: vec![Message::assistant("x")], ..thumb("x", true) },
                "field prompt ends with an assistant turn",
            ),
            (FeedbackRow { time: "yesterday".into(), ..thumb("x", true) }, "field time is \"yesterday\""),
            (FeedbackRow { id: String::new(), ..thumb("x", true) }, "field id is empty"),
        ] {
            let error = row.check().unwrap_err().to_string();
            assert!(error.starts_with(words), "{words}: {error}");
        }
        assert!(FeedbackRow { tie: true, ..pair(Source::Compare) }.check().is_ok());
    }

    #[test]
    fn a_field_that_nobody_knows_is_refused() {
        let mut row = serde_json::to_value(thumb("x", true)).unwrap();
        row["verdict"] = "fine".into();
        let error = serde_json::from_value::<FeedbackRow>(row).unwrap_err().to_string();
        assert!(error.contains("unknown field `verdict`"), "{error}");
    }
}
