//! Finds and reads the rows of a task's splits.
//!
//! A split is a file, or several files of one, within the folder of the task: `test.parquet`, `test.jsonl`,
//! `test-00000-of-00002.parquet`, or a folder `test/`. Folders are looked for as the task names them, and as
//! the hub lays them out (`REPOSITORY/CONFIG/`). Nothing is downloaded here.
//!
//! A split that lies there in part, or twice, is an error: half a benchmark gives a score that looks whole.

use std::collections::{BTreeMap, BTreeSet};
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
    let formats: BTreeSet<_> = found.iter().map(|path| path.extension()).collect();
    if formats.len() > 1 {
        return Err(Error::TwoFormats { split: split.to_owned(), folder: folder.to_owned() });
    }
    let wrong = |problem, fix| {
        let (split, folder) = (split.to_owned(), folder.to_owned());
        Err(Error::SplitFiles { split, folder, problem, fix })
    };
    if let Some(two) = two_layouts(folder, &found) {
        return wrong(format!("lies there twice, as {two}"), "remove one of them");
    }
    if let Some(missing) = missing_part(&found) {
        return wrong(format!("lacks {missing}"), "download all of its parts");
    }
    Ok(found)
}

/// Two files of a split that say the same rows in two layouts: one in the folder and one below it, or a whole
/// file and a part.
fn two_layouts(folder: &Path, files: &[PathBuf]) -> Option<String> {
    let is_within = |path: &&PathBuf| path.parent() == Some(folder);
    let is_part = |path: &&PathBuf| Part::of(path).is_some();
    let shown = |path: &Path| path.strip_prefix(folder).unwrap_or(path).display().to_string();
    let two = |first: Option<&PathBuf>, second: Option<&PathBuf>| {
        first.zip(second).map(|(first, second)| format!("{} and {}", shown(first), shown(second)))
    };
    let inner = files.iter().find(is_within);
    two(inner, files.iter().find(|path| !is_within(path))).or_else(|| {
        let mut within = files.iter().filter(is_within);
        two(within.clone().find(|path| !is_part(path)), within.find(is_part))
    })
}

/// The name of the first part that is not among `files`, though the names of others say that there is one.
fn missing_part(files: &[PathBuf]) -> Option<String> {
    let mut present: BTreeMap<_, (BTreeSet<usize>, Part<'_>)> = BTreeMap::new();
    for file in files {
        let Some(part) = Part::of(file) else { continue };
        let key = (file.parent(), part.name, part.count);
        present.entry(key).or_insert((BTreeSet::new(), part)).0.insert(part.index.parse().ok()?);
    }
    present.into_values().find_map(|(indices, part)| {
        let count: usize = part.count.parse().ok()?;
        let missing = (0..count).find(|index| !indices.contains(index))?;
        let Part { name, index, count, extension } = part;
        Some(format!("{name}-{missing:0width$}-of-{count}.{extension}", width = index.len()))
    })
}

/// The name of a part of a table: `NAME-INDEX-of-COUNT.EXTENSION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part<'a> {
    name: &'a str,
    index: &'a str,
    count: &'a str,
    extension: &'a str,
}

impl<'a> Part<'a> {
    fn of(path: &'a Path) -> Option<Self> {
        let (head, tail) = path.file_name()?.to_str()?.rsplit_once("-of-")?;
        let (name, index) = head.rsplit_once('-')?;
        let (count, extension) = tail.split_once('.')?;
        let is_number = |text: &str| text.parse::<usize>().is_ok();
        (is_number(index) && is_number(count)).then_some(Self { name, index, count, extension })
    }
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

    #[test]
    fn a_split_in_part_or_in_two_layouts_is_refused() {
        for (names, words) in [
            (&["test-00000-of-00002.jsonl"][..], "lacks test-00001-of-00002.jsonl; download"),
            (&["test-00001-of-00002.jsonl"], "lacks test-00000-of-00002.jsonl"),
            (&["test/data-0-of-3.jsonl", "test/data-2-of-3.jsonl"], "lacks data-1-of-3.jsonl"),
            // Parts of two downloads.
            (&["test-00000-of-00001.jsonl", "test-00000-of-00002.jsonl"], "lacks test-00001-of-00002.jsonl"),
            (&["test.jsonl", "test/a.jsonl"], "twice, as test.jsonl and test/a.jsonl; remove one"),
            (&["test.jsonl", "test-00000-of-00001.jsonl"], "twice, as test.jsonl and test-00000-of-00001"),
            (&["test-00000-of-00001.jsonl", "test/0000.jsonl"], "twice, as test-00000-of-00001.jsonl and"),
            (&["test-00000-of-00002.jsonl", "test-00001-of-00002.jsonl"], ""),
            (&["test/data-0-of-2.jsonl", "test/data-1-of-2.jsonl", "train-0-of-2.jsonl"], ""),
        ] {
            let data = tempfile::tempdir().unwrap();
            for name in names {
                let path = data.path().join("mine").join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "{\"a\": 1}\n").unwrap();
            }
            let found = read(data.path(), &source(), "test");
            if words.is_empty() {
                assert_eq!(found.unwrap().len(), 2, "{names:?}");
                continue;
            }
            let error = found.unwrap_err().to_string();
            assert!(error.contains("mine: the split \"test\"") && error.contains(words), "{error}");
        }
    }
}
