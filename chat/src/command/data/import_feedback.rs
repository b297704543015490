//! `data import-feedback`: writes training rows that are made of judgements.
//!
//! `feedback::training_rows` has the rules. Nothing is written unless every requested file gets at least one
//! row.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use datasets::Record;
use datasets::table::write_records_over;
use serde::Serialize;
use text::number::counted;

use crate::args::{FeedbackOutputs, ImportFeedbackArgs};
use crate::config::ConfigError;
use crate::console::{print, print_stderr};
use crate::failure::Failure;
use crate::feedback::read::{self, Feedback};
use crate::feedback::training_rows::{self, LeftOut, TrainingRows};
use crate::feedback::{FeedbackRow, default_folder};
use crate::output::check_named_file;

/// The maximum number of contradicted rows that are named on stderr.
const MAX_NAMED_ROWS: usize = 5;

/// What was read, written and left out.
#[derive(Debug, Serialize)]
struct Report {
    /// The files that were read.
    files: Vec<PathBuf>,
    /// The number of rows that were used.
    rows: usize,
    /// The number of rows that were in the files more than once.
    repeated: usize,
    /// The number of rows that `--session` left out.
    other_sessions: usize,
    /// The number of rows that `--since` left out.
    before_since: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    preference: Option<Output>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unpaired: Option<Output>,
}

/// What was written to one file.
#[derive(Debug, Serialize)]
struct Output {
    file: PathBuf,
    rows: usize,
    left_out: LeftOut,
    /// The ids of rows that a later row contradicts.
    contradicted: Vec<String>,
}

/// Reads the feedback, writes the requested files, and reports what was left out.
pub(crate) fn run(arguments: &ImportFeedbackArgs) -> anyhow::Result<()> {
    let paths = if arguments.paths.is_empty() { vec![default_folder()?] } else { arguments.paths.clone() };
    let files = read::files(&paths)?;
    check_outputs(arguments, &files)?;
    let mut feedback = read::read(&files)?;
    let [other_sessions, before_since] = select(&mut feedback.rows, arguments);

    let Feedback { rows, repeated } = feedback;
    let preferences = training_rows::preferences(&rows, arguments.min_rating_gap);
    let unpaired = training_rows::unpaired(&rows);
    let outputs = &arguments.outputs;
    let report = Report {
        files,
        rows: rows.len(),
        repeated,
        other_sessions,
        before_since,
        preference: outputs.preference.as_deref().map(|file| Output::new(file, &preferences)),
        unpaired: outputs.unpaired.as_deref().map(|file| Output::new(file, &unpaired)),
    };
    report.lines().iter().for_each(|line| print_stderr(line));
    report.check()?;

    if let Some(file) = &outputs.preference {
        write_records_over(file, &preferences.rows, arguments.force)?;
    }
    if let Some(file) = &outputs.unpaired {
        write_records_over(file, &unpaired.rows, arguments.force)?;
    }
    if arguments.json {
        print(&serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}

/// Refuses files that must not be written.
fn check_outputs(arguments: &ImportFeedbackArgs, files: &[PathBuf]) -> Result<(), ConfigError> {
    let inputs: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let FeedbackOutputs { preference, unpaired } = &arguments.outputs;
    for (flag, path) in [("--preference", preference), ("--unpaired", unpaired)] {
        if let Some(path) = path {
            check_named_file(flag, path, arguments.force, &inputs)?;
        }
    }

    // The file that is written last would replace the first one, even without --force.
    if let (Some(preference), Some(unpaired)) = (preference, unpaired)
        && is_same_file(preference, unpaired)
    {
        let argument = format!("--unpaired {}", unpaired.display());
        let problem = format!("--preference {} is the same file: choose another name", preference.display());
        return Err(ConfigError::Argument { argument, problem });
    }
    Ok(())
}

/// Whether two paths name the same file, which need not exist: by the file itself, which may have several
/// names, or by its folder and its name.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    file(one).is_some_and(|file_of_one| file(other) == Some(file_of_one)) || place(one) == place(other)
}

/// The path of a file without links, whether or not the file and its folders exist. A link that leads nowhere
/// is a file of its own: what is written replaces it.
fn place(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let real = |path: &Path| fs::canonicalize(path).ok();
    let found = path.ancestors().find_map(|above| Some((real(above)?, path.strip_prefix(above).ok()?)));
    let Some((mut place, missing)) = found else { return path };

    // What does not exist has no links, so `..` leads back to where it came from.
    for part in missing.components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            part => place.push(part),
        }
    }
    place
}

/// Keeps the rows that `--session` and `--since` ask for, and returns how many each of them left out.
fn select(rows: &mut Vec<FeedbackRow>, arguments: &ImportFeedbackArgs) -> [usize; 2] {
    let all = rows.len();
    rows.retain(|row| arguments.session.as_ref().is_none_or(|session| row.session == *session));
    let of_session = rows.len();
    rows.retain(|row| match (arguments.since, row.moment()) {
        (Some(since), Ok(moment)) => since <= moment,
        _ => true,
    });
    [all - of_session, of_session - rows.len()]
}

impl Output {
    fn new<R: Record>(file: &Path, made: &TrainingRows<R>) -> Self {
        Self {
            file: file.to_owned(),
            rows: made.rows.len(),
            left_out: made.left_out.clone(),
            contradicted: made.contradicted.clone(),
        }
    }

    fn lines(&self, kind: &str) -> Vec<String> {
        let mut lines = vec![format!("{:>8} rows  {} ({kind})", self.rows, self.file.display())];
        for (reason, rows) in &self.left_out {
            lines.push(format!("{rows:>8} left out: {}", reason.in_words()));
        }
        if !self.contradicted.is_empty() {
            let named = self.contradicted.iter().take(MAX_NAMED_ROWS).cloned().collect::<Vec<_>>();
            let more = self.contradicted.len() - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            lines.push(format!("         contradicted by a later judgement: {}{more}", named.join(", ")));
        }
        lines
    }
}

impl Report {
    fn lines(&self) -> Vec<String> {
        let files = counted(self.files.len() as u64, "file");
        let mut lines = vec![format!("{:>8} rows  of feedback in {files}", self.rows)];
        for (rows, what) in [
            (self.repeated, "rows that were read before"),
            (self.other_sessions, "rows of other sessions"),
            (self.before_since, "rows from before --since"),
        ] {
            if rows > 0 {
                lines.push(format!("{rows:>8} left out: {what}"));
            }
        }
        lines.extend(self.preference.iter().flat_map(|output| output.lines("preference")));
        lines.extend(self.unpaired.iter().flat_map(|output| output.lines("unpaired")));
        lines
    }

    /// Refuses to write a file without rows.
    fn check(&self) -> Result<(), Failure> {
        for (output, flag, advice) in [
            (
                &self.preference,
                "--preference",
                "compare, prefer or edit answers, or judge several to one prompt",
            ),
            (&self.unpaired, "--unpaired", "call answers good or bad, or rate them"),
        ] {
            if let Some(Output { file, rows: 0, .. }) = output {
                let problem = format!(
                    "the feedback gives no row for {flag}, and nothing was written: {advice}, or leave {flag} out"
                );
                return Err(Failure::File { path: file.clone(), problem });
            }
        }
        Ok(())
    }
}
