//! Answers that were given before, in a file that grows by a line for each.
//!
//! A batch is written as soon as it is answered, so a process that is killed loses the batch at work and
//! nothing else. A line that was cut off is ignored when the file is read again, and its batch is asked
//! again. Answers lie under the hash of the model and of the request. A failure is kept for the processes
//! that work together, and its request is asked again.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::request::Response;

/// The longest line that is read back, in bytes.
const LONGEST_LINE: u64 = 64 << 20;

/// The answers in one file, or in memory alone.
#[derive(Debug, Default)]
pub struct ResponseCache {
    file: Option<(PathBuf, File)>,
    held: HashMap<String, Response>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    model: String,
    request: String,
    response: Response,
}

impl ResponseCache {
    /// Keeps answers in memory alone.
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// Opens the file of a folder, or starts it. Lines that are no answers are skipped.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
            return Err(Error::NotAFile { path: path.to_owned() });
        }
        let file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        Self::of_file(path, file)
    }

    /// Takes the file at `path`, open to read and to append. Lines that are no answers are skipped.
    pub fn of_file(path: &Path, mut file: File) -> Result<Self, Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let held = read_answers(&file).map_err(failed)?;
        // The next line must not continue one that was cut off.
        if !line_is_whole(&mut file).map_err(failed)? {
            file.write_all(b"\n").map_err(failed)?;
        }
        Ok(Self { file: Some((path.to_owned(), file)), held })
    }

    /// Takes over the answers in the file at `path` that another process writes.
    pub fn read_also(&mut self, path: &Path, file: &File) -> Result<(), Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        for (key, response) in read_answers(file).map_err(failed)? {
            keep(&mut self.held, key, response);
        }
        Ok(())
    }

    /// The answer of a model to a request.
    pub fn get(&self, model: &str, request: &str) -> Option<&Response> {
        self.last(model, request).filter(|response| !matches!(response, Response::Failed { .. }))
    }

    /// The answer of a model to a request, or why there is none.
    pub fn last(&self, model: &str, request: &str) -> Option<&Response> {
        self.held.get(&format!("{model} {request}"))
    }

    /// Keeps the answers of a batch.
    pub fn put<'a>(
        &mut self,
        model: &str,
        batch: impl Iterator<Item = (&'a str, &'a Response)>,
    ) -> Result<(), Error> {
        let mut lines = String::new();
        for (request, response) in batch {
            let line =
                Line { model: model.to_owned(), request: request.to_owned(), response: response.clone() };
            lines.push_str(&serde_json::to_string(&line)?);
            lines.push('\n');
            keep(&mut self.held, format!("{model} {request}"), response.clone());
        }
        match &mut self.file {
            Some((path, file)) => {
                let failed = |source| Error::Write { path: path.clone(), source };
                file.write_all(lines.as_bytes()).map_err(failed)
            }
            None => Ok(()),
        }
    }

    /// Waits until everything is on the disk.
    pub fn sync(&self) -> Result<(), Error> {
        match &self.file {
            Some((path, file)) => {
                file.sync_all().map_err(|source| Error::Write { path: path.clone(), source })
            }
            None => Ok(()),
        }
    }
}

/// The answers in a file, under the hashes of model and request.
fn read_answers(file: &File) -> std::io::Result<HashMap<String, Response>> {
    let mut held = HashMap::new();
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(held);
        }
        if let Ok(Line { model, request, response }) = serde_json::from_slice(&line) {
            keep(&mut held, format!("{model} {request}"), response);
        }
    }
}

/// Keeps the newest answer; a failure does not replace one.
fn keep(held: &mut HashMap<String, Response>, key: String, response: Response) {
    let is_failed = matches!(response, Response::Failed { .. });
    if !is_failed || !held.contains_key(&key) || matches!(held[&key], Response::Failed { .. }) {
        held.insert(key, response);
    }
}

/// Whether the file is empty or ends with a newline.
fn line_is_whole(file: &mut File) -> std::io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_is_found_again_and_half_a_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("responses.jsonl");
        let response = Response::Loglikelihood { logprob: -0.1, is_greedy: true, cut: 0 };
        let failed = Response::Failed { problem: "no".to_owned() };
        let mut cache = ResponseCache::open(&path).unwrap();
        cache.put("m", [("a", &response), ("b", &failed)].into_iter()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], &whole[..whole.len() / 2]].concat()).unwrap();

        let mut cache = ResponseCache::open(&path).unwrap();
        assert_eq!(cache.get("m", "a"), Some(&response));
        assert_eq!((cache.get("m", "b"), cache.get("other", "a")), (None, None));
        // The other processes can tell why, and a failure hides no answer.
        assert_eq!(cache.last("m", "b"), Some(&failed));
        cache.put("m", [("a", &failed)].into_iter()).unwrap();
        assert_eq!(cache.get("m", "a"), Some(&response));
        cache.put("m", [("c", &response)].into_iter()).unwrap();
        assert_eq!(ResponseCache::open(&path).unwrap().get("m", "c"), Some(&response));

        std::os::unix::fs::symlink(&path, folder.path().join("link")).unwrap();
        assert!(ResponseCache::open(&folder.path().join("link")).is_err());
    }
}
