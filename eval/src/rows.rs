//! Finds and reads the rows of a task's splits.
//!
//! A split is a file, or several files of one, within the folder of the task: `test.parquet`, `test.jsonl`,
//! `test-00000-of-00002.parquet`, or a folder `test/`. Folders are looked for as the task names them, and as
//! the hub lays them out (`REPOSITORY/CONFIG/`). Nothing is downloaded here.
//!
//! A repository with several configurations, such as the subjects of MMLU, has a folder for each. Rows of all
//! configurations in one place are told apart by a column, or not used.
//!
//! A split that lies there in part, or twice, is an error: half a benchmark gives a score that looks whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use datasets::{Row, TableReader};
use serde_json::Value;

use crate::Error;
use crate::task::DatasetSource;

/// The most rows of a split that are read.
const MOST_ROWS: usize = 5_000_000;

/// What the hub calls the only configuration of a dataset.
const UNNAMED: [&str; 2] = ["default", "plain_text"];

/// A folder where the rows of a task may lie.
struct Place {
    folder: PathBuf,
    /// Whether the rows of other configurations may lie there too.
    is_shared: bool,
}

/// The files of a split, sorted.
pub fn files(data: &Path, source: &DatasetSource, split: &str) -> Result<Vec<PathBuf>, Error> {
    Ok(found(data, source, split)?.0)
}

/// The rows of a split. Where those of all configurations lie together, the column that names the
/// configuration chooses.
pub fn read(data: &Path, source: &DatasetSource, split: &str) -> Result<Vec<Row>, Error> {
    let (files, chosen_by) = found(data, source, split)?;
    let (mut rows, mut count) = (Vec::new(), 0);
    for file in files {
        for row in TableReader::open(&file)?.rows(None)? {
            if count == MOST_ROWS {
                return Err(Error::TooManyRows { path: file, most: MOST_ROWS });
            }
            count += 1;
            let row = row?.1;
            if chosen_by.as_ref().map_or(Ok(true), |chosen_by| chosen_by.keeps(&row, &file))? {
                rows.push(row);
            }
        }
    }
    match chosen_by {
        Some(chosen_by) if rows.is_empty() => Err(chosen_by.no_rows(data, source)),
        _ => Ok(rows),
    }
}

/// The files of a split, and what chooses among their rows.
fn found<'a>(
    data: &Path,
    source: &'a DatasetSource,
    split: &str,
) -> Result<(Vec<PathBuf>, Option<ConfigColumn<'a>>), Error> {
    let places = places(data, source);
    for Place { folder, is_shared } in &places {
        let found = files_in(folder, split)?;
        if !found.is_empty() {
            let columns = source.config_column.as_deref().zip(source.config.as_deref());
            let chosen_by = columns.filter(|_| *is_shared && source.is_one_of_several);
            return Ok((found, chosen_by.map(|(column, config)| ConfigColumn { column, config })));
        }
    }
    let folders = places.into_iter().map(|place| place.folder).collect();
    Err(Error::NoRowsFound { split: split.to_owned(), folders, hub: source.hub.clone().unwrap_or_default() })
}

/// Where the rows of a task may lie, the best place first. The repository itself is no place for one of
/// several configurations whose rows nothing tells apart.
fn places(data: &Path, source: &DatasetSource) -> Vec<Place> {
    let own = |folder| Place { folder, is_shared: false };
    let mut places = vec![own(data.join(&source.folder))];
    if let Some(hub) = &source.hub {
        let mut repositories = vec![data.join(hub)];
        repositories.extend(hub.rsplit_once('/').map(|(_, name)| data.join(name)));
        for repository in repositories {
            places.extend(configs(source).iter().map(|config| own(repository.join(config))));
            if may_share(source) {
                let shared = [repository.join("data"), repository];
                places.extend(shared.map(|folder| Place { folder, is_shared: true }));
            }
        }
    }

    // A task's own folder may be one of those of its repository.
    let mut seen = BTreeSet::new();
    places.retain(|place| seen.insert(place.folder.clone()));
    places
}

/// Whether the rows of a source may lie beside those of other configurations.
fn may_share(source: &DatasetSource) -> bool {
    !source.is_one_of_several || source.config_column.is_some()
}

/// The column that names the configuration of a row, and the configuration that is asked.
struct ConfigColumn<'a> {
    column: &'a str,
    config: &'a str,
}

impl ConfigColumn<'_> {
    fn keeps(&self, row: &Row, file: &Path) -> Result<bool, Error> {
        let (column, config) = (self.column.to_owned(), self.config.to_owned());
        match row.get(self.column).and_then(Value::as_str) {
            Some(name) => Ok(name == self.config),
            None => Err(Error::NoConfigColumn { path: file.to_owned(), column, config }),
        }
    }

    fn no_rows(&self, data: &Path, source: &DatasetSource) -> Error {
        let (column, config) = (self.column.to_owned(), self.config.to_owned());
        Error::NoRowsOfConfig { folder: data.join(&source.folder), column, config }
    }
}

/// The configuration of a source, or what it may be called if the repository has one alone.
fn configs(source: &DatasetSource) -> Vec<&str> {
    source.config.as_deref().map_or(UNNAMED.to_vec(), |config| vec![config])
}

/// Whether a path within the repository of `source` is a file of `split`, as the hub lays rows out:
/// `[CONFIG/|data/]SPLIT[-00000-of-00001].EXTENSION` or `[CONFIG/|data/]SPLIT/FILE.EXTENSION`.
pub fn is_file_of_split(path: &str, source: &DatasetSource, split: &str) -> bool {
    let within = |folder: &&str| path.strip_prefix(*folder)?.strip_prefix('/');
    let rest = configs(source).iter().find_map(within);
    let shared = || {
        // With configurations, a folder at the top is another configuration or split.
        within(&"data").or_else(|| (source.config.is_none() || !path.contains('/')).then_some(path))
    };
    let rest = rest.or_else(|| may_share(source).then(shared).flatten());
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
        // A folder of its own that is one of those of the repository is named once.
        let inside = DatasetSource { folder: "owner/name/easy".into(), ..source() };
        let error = read(data.path(), &inside, "test").unwrap_err().to_string();
        assert_eq!(error.matches("owner/name/easy").count(), 1, "{error}");
        std::fs::create_dir(data.path().join("mine")).unwrap();
        for name in ["test.jsonl", "test.csv"] {
            std::fs::write(data.path().join("mine").join(name), "{}\n").unwrap();
        }
        let error = read(data.path(), &source(), "test").unwrap_err();
        assert!(matches!(error, Error::TwoFormats { .. }));
    }

    /// One file with the rows of all subjects, beside the repository's own layout.
    #[test]
    fn rows_of_several_configurations_in_one_place_are_told_apart_or_not_used() {
        let source = DatasetSource { is_one_of_several: true, ..source() };
        let by_column = DatasetSource { config_column: Some("subject".to_owned()), ..source.clone() };
        let data = tempfile::tempdir().unwrap();
        let write = |place: &str, text: &str| {
            let path = data.path().join(place);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
        };
        let (easy, hard) = ("{\"subject\": \"easy\"}\n", "{\"subject\": \"hard\"}\n");
        for place in ["owner/name/test.jsonl", "owner/name/data/test.jsonl", "name/test.jsonl"] {
            write(place, &[easy, hard, hard].concat());
            assert_eq!(read(data.path(), &by_column, "test").unwrap().len(), 1, "{place}");
            let hard = DatasetSource { config: Some("hard".to_owned()), ..by_column.clone() };
            assert_eq!(read(data.path(), &hard, "test").unwrap().len(), 2, "{place}");
            // Without a column nothing tells them apart, and the error names the places of this one alone.
            let error = read(data.path(), &source, "test").unwrap_err().to_string();
            assert!(error.contains("name/easy") && !error.contains("name/data"), "{error}");
            // The only configuration may lie anywhere.
            let only = DatasetSource { is_one_of_several: false, ..source.clone() };
            assert_eq!(read(data.path(), &only, "test").unwrap().len(), 3, "{place}");
            std::fs::remove_file(data.path().join(place)).unwrap();
        }
        let failure = |text: &str| {
            write("owner/name/test.jsonl", text);
            read(data.path(), &by_column, "test").unwrap_err().to_string()
        };
        assert!(failure(&[hard, "{\"a\": 1}\n"].concat()).contains("no text in the column \"subject\""));
        assert!(failure(hard).contains("has \"easy\" in the column \"subject\""));
        // Of a folder of its own, no row is looked at.
        write("owner/name/easy/test.jsonl", "{\"a\": 1}\n");
        assert_eq!(read(data.path(), &by_column, "test").unwrap().len(), 1);
        assert!(is_file_of_split("data/test.jsonl", &by_column, "test"));
        assert!(!is_file_of_split("data/test.jsonl", &source, "test"));
        assert!(!is_file_of_split("test.jsonl", &source, "test"));
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
