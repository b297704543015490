//! Finds and reads the rows of a task's splits.
//!
//! A split is a file, or several files of one, within the folder of the task: `test.parquet`, `test.jsonl`,
//! `test-00000-of-00002.parquet`, or a folder `test/`. Folders are looked for as the task names them, and as
//! the hub lays them out (`REPOSITORY/CONFIG/`). Nothing is downloaded here.

use std::path::{Path, PathBuf};

use datasets::{Row, TableReader};

use crate::Error;
use crate::task::DatasetSource;

/// The most rows of a split that are read.
const MOST_ROWS: usize = 5_000_000;

/// What the hub calls the only configuration of a dataset.
const UNNAMED: [&str; 2] = ["default", "plain_text"];

/// The files of a split, sorted.
pub fn files(data: &Path, source: &DatasetSource, split: &str) -> Result<Vec<PathBuf>, Error> {
    let folders = folders(data, source);
    for folder in &folders {
        let found = files_in(folder, split)?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Err(Error::NoRowsFound { split: split.to_owned(), folders, hub: source.hub.clone().unwrap_or_default() })
}

/// The rows of a split with their numbers within it, from 0.
pub fn read(data: &Path, source: &DatasetSource, split: &str) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for file in files(data, source, split)? {
        for row in TableReader::open(&file)?.rows(None)? {
            if rows.len() == MOST_ROWS {
                return Err(Error::TooManyRows { path: file, most: MOST_ROWS });
            }
            rows.push(row?.1);
        }
    }
    Ok(rows)
}

/// Where the rows of a task may lie, the best place first.
fn folders(data: &Path, source: &DatasetSource) -> Vec<PathBuf> {
    let mut folders = vec![data.join(&source.folder)];
    let configs = configs(source);
    if let Some(hub) = &source.hub {
        let mut repositories = vec![data.join(hub)];
        repositories.extend(hub.rsplit_once('/').map(|(_, name)| data.join(name)));
        for repository in repositories {
            folders.extend(configs.iter().map(|config| repository.join(config)));
            folders.extend([repository.join("data"), repository]);
        }
    }
    folders
}

/// The configuration of a source, or what it may be called if the repository has one alone.
fn configs(source: &DatasetSource) -> Vec<&str> {
    source.config.as_deref().map_or(UNNAMED.to_vec(), |config| vec![config])
}

/// Whether a path within the repository of `source` is a file of `split`, as the hub lays rows out:
/// `[CONFIG/|data/]SPLIT[-00000-of-00001].EXTENSION` or `[CONFIG/|data/]SPLIT/FILE.EXTENSION`.
pub fn is_file_of_split(path: &str, source: &DatasetSource, split: &str) -> bool {
    let within = |folder: &&str| path.strip_prefix(*folder)?.strip_prefix('/');
    let rest = configs(source).iter().chain(&["data"]).find_map(within).or_else(|| {
        // With configurations, a folder at the top is another configuration or split.
        (source.config.is_none() || !path.contains('/')).then_some(path)
    });
    let Some(rest) = rest else { return false };
    let is_table = [".parquet", ".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".csv.gz"]
        .iter()
        .any(|extension| rest.ends_with(extension));
    let is_named = match rest.split_once('/') {
        Some((folder, file)) => folder == split && !file.contains('/'),
        None => rest.strip_prefix(split).is_some_and(|rest| rest.starts_with('.') || is_shard(rest)),
    };
    is_table && is_named
}

fn files_in(folder: &Path, split: &str) -> Result<Vec<PathBuf>, Error> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| Error::Read { path: folder.to_owned(), source })?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let rest = name.strip_prefix(split);
        if path.is_file() && rest.is_some_and(|rest| rest.starts_with('.') || is_shard(rest)) {
            found.push(path);
        } else if path.is_dir() && name == split {
            found.extend(datasets::expand(&[path.to_string_lossy()])?);
        }
    }
    found.sort();
    // The same rows in two formats would count twice.
    let formats: std::collections::BTreeSet<_> = found.iter().map(|path| path.extension()).collect();
    if formats.len() > 1 {
        return Err(Error::TwoFormats { split: split.to_owned(), folder: folder.to_owned() });
    }
    Ok(found)
}

/// Whether a name goes on as that of a part, such as `-00000-of-00002.parquet`.
fn is_shard(rest: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((first, rest)) = rest.strip_prefix('-').and_then(|rest| rest.split_once("-of-")) else {
        return false;
    };
    number(first) && rest.split_once('.').is_some_and(|(count, _)| number(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> DatasetSource {
        let text = r#"{"folder": "mine", "hub": "owner/name", "config": "easy", "split": "test"}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn files_of_a_split_are_recognized_in_a_repository() {
        let source = source();
        let no_config = DatasetSource { config: None, ..source.clone() };
        for (path, with_config, without) in [
            ("easy/test-00000-of-00001.parquet", true, false),
            ("easy/test/0000.parquet", true, false),
            ("hard/test-00000-of-00001.parquet", false, false),
            ("data/test.jsonl.gz", true, true),
            ("test.csv", true, true),
            ("test/0000.parquet", false, true),
            ("default/test/0000.parquet", false, true),
            ("easy/testing.parquet", false, false),
            ("easy/train.parquet", false, false),
            ("easy/test.py", false, false),
            ("easy/test/deep/0000.parquet", false, false),
        ] {
            assert_eq!(is_file_of_split(path, &source, "test"), with_config, "{path}");
            assert_eq!(is_file_of_split(path, &no_config, "test"), without, "{path}");
        }
    }

    #[test]
    fn a_split_is_found_in_each_layout_and_never_twice() {
        for place in [
            "mine/test.jsonl",
            "mine/test/a.jsonl",
            "owner/name/easy/test.jsonl",
            "name/data/test-00000-of-00001.jsonl",
        ] {
            let data = tempfile::tempdir().unwrap();
            let path = data.path().join(place);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "{\"a\": 1}\n{\"a\": 2}\n").unwrap();
            std::fs::write(path.with_file_name("testing.jsonl"), "{\"a\": 3}\n").unwrap();
            let rows = read(data.path(), &source(), "test").unwrap();
            let wanted = if place.contains("test/") { 3 } else { 2 };
            assert_eq!(rows.len(), wanted, "{place}");
        }
        let data = tempfile::tempdir().unwrap();
        let error = read(data.path(), &source(), "test").unwrap_err().to_string();
        assert!(error.contains("owner/name") && error.contains("mine"), "{error}");
        std::fs::create_dir(data.path().join("mine")).unwrap();
        for name in ["test.jsonl", "test.csv"] {
            std::fs::write(data.path().join("mine").join(name), "{}\n").unwrap();
        }
        let error = read(data.path(), &source(), "test").unwrap_err();
        assert!(matches!(error, Error::TwoFormats { .. }));
    }
}
