//! A rollout that was drawn ahead, as the file `trainer_state/rollout.bin` of a checkpoint.
//!
//! It holds what no later step could make again: the tokens, what the sampler said of them, and the scores of
//! programs and servers, which are asked once for each reply. The file is binary (postcard), because as text
//! some million numbers would be larger than a state may be; the checkpoint's list of files has its hash.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::data::Rollout;
use crate::Error;

const FILE: &str = "trainer_state/rollout.bin";
/// What the file begins with: its kind and version.
const HEADER: &[u8] = b"colossal-chat rollout 1\n";

/// A rollout that waits for its iteration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrawnAhead {
    /// The replies.
    pub rollout: Rollout,
    /// The greedy replies to the same prompts, if a baseline needs them.
    pub greedy: Option<Rollout>,
    /// The scores of each scorer, for the replies and then for the greedy ones.
    pub scores: Vec<Vec<Option<f64>>>,
}

/// Writes the file into a checkpoint folder, which is still under its temporary name.
pub fn write(folder: &Path, drawn: &DrawnAhead) -> Result<(), Error> {
    let path = folder.join(FILE);
    let mut content = HEADER.to_vec();
    content.extend(postcard::to_allocvec(drawn).expect("plain data has a binary form"));
    fs::write(&path, content).map_err(|source| Error::Io { path, source })
}

/// Reads the file of a checkpoint folder.
pub fn read(folder: &Path) -> Result<DrawnAhead, Error> {
    let path = folder.join(FILE);
    let content = match fs::read(&path) {
        Ok(content) => content,
        Err(source) => return Err(Error::Io { path, source }),
    };
    let rollout = content.strip_prefix(HEADER).and_then(|content| postcard::from_bytes(content).ok());
    rollout.ok_or_else(|| Error::RunFolder {
        path,
        problem: "is not a rollout of this version: remove this checkpoint, and --resume continues from the previous \
                  one"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_comes_back_as_it_was_and_a_damaged_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("trainer_state")).unwrap();
        let rollout =
            Rollout { ids: vec![1, -2, 300], sampler_logprobs: vec![-0.1, f32::MIN], ..Rollout::default() };
        let drawn = DrawnAhead { rollout, greedy: None, scores: vec![vec![Some(0.1), None]] };
        write(folder.path(), &drawn).unwrap();
        assert_eq!(read(folder.path()).unwrap(), drawn);

        fs::write(folder.path().join(FILE), b"colossal-chat rollout 2\n").unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("remove this checkpoint"), "{error}");
        fs::remove_file(folder.path().join(FILE)).unwrap();
        assert!(matches!(read(folder.path()), Err(Error::Io { .. })));
    }
}
