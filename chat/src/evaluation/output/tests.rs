//! Whose results are replaced, and what stays.

use super::*;

#[test]
fn a_folder_that_a_rank_does_not_share_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = OutputFolder::check_shared(&folder.path().join("out"), 3).unwrap_err().to_string();
    assert!(error.contains("rank 3 does not see") && error.contains("--output"), "{error}");
    OutputFolder::start(&folder.path().join("out"), &json!({}), false).unwrap();
    assert!(OutputFolder::check_shared(&folder.path().join("out"), 3).is_ok());
}

#[test]
fn names_of_models_never_leave_the_folder() {
    for (name, file) in
        [("../x", ".._x-"), ("..", "model-"), ("", "model-"), ("a/b c", "a_b_c-"), ("中文", "__-")]
    {
        assert_eq!(file_name(name).rsplit_once('-').unwrap().0, &file[..file.len() - 1]);
    }
    assert_eq!(file_name("sft-1.5"), "sft-1.5");
}

#[test]
fn names_that_differ_are_files_that_differ() {
    let long = "x".repeat(100);
    let names = ["模型甲", "模型乙", "___", &long, &format!("{long}1"), &format!("{long}2"), "a/b", "a_b"];
    let files: std::collections::BTreeSet<String> = names.iter().map(|name| file_name(name)).collect();
    assert_eq!(files.len(), names.len(), "{files:?}");
}

fn open(path: &Path, settings: &Value, force: bool) -> anyhow::Result<OutputFolder> {
    OutputFolder::open(path, FolderKind::Eval, settings, force)
}

/// The names in a folder that are not hidden, sorted.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names
}

/// Writes results of the settings `settings` into a folder.
fn results(path: &Path, settings: &Value, force: bool, files: &[&str]) {
    let folder = open(path, settings, force).unwrap();
    folder.begin_results().unwrap();
    for file in files {
        folder.put(file, b"{}").unwrap();
    }
}

#[test]
fn the_results_of_other_settings_go_and_answers_and_files_of_others_stay() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("results");
    let settings = json!({"tasks": ["a"]});
    results(&path, &settings, false, &["results.json", "samples/old/a.jsonl", "lm_eval/old.json"]);
    fs::write(path.join("responses.jsonl"), "{}").unwrap();
    // Names that this program writes as well, in files that it did not write.
    fs::write(path.join("samples/old/mine.jsonl"), "mine").unwrap();
    fs::write(path.join("summary.md"), "mine").unwrap();
    results(&path, &settings, false, &[]);
    assert_eq!(fs::read_dir(path.join("samples/old")).unwrap().count(), 2);

    // A command with other settings that fails before its results leaves those of the others.
    drop(open(&path, &json!({"tasks": ["b"]}), true).unwrap());
    assert!(path.join("results.json").exists() && path.join("lm_eval/old.json").exists());
    results(&path, &json!({"tasks": ["b"]}), true, &[]);
    assert_eq!(names(&path), ["responses.jsonl", "samples", "settings.json", "summary.md"]);
    assert_eq!(fs::read_to_string(path.join("samples/old/mine.jsonl")).unwrap(), "mine");
    assert_eq!(fs::read_dir(path.join("samples/old")).unwrap().count(), 1);
    assert!(own_folder::listed_files(&path).unwrap().iter().eq([SETTINGS]));
}

#[test]
fn a_folder_is_one_evaluations_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("results");
    let settings = json!({"places": [], "tasks": ["a"], "limit": 1, "python": null});
    results(&path, &settings, false, &[]);
    for (other, words) in [
        (json!({"places": [], "tasks": ["a"], "limit": 2, "python": null}), "other limit)"),
        (json!({"places": [], "tasks": ["b"], "limit": 1, "python": null}), "other tasks)"),
        (json!({"places": [], "tasks": ["a"], "limit": 1, "python": null, "new": 1}), "other new)"),
    ] {
        let error = open(&path, &other, false).err().unwrap().to_string();
        assert!(error.contains(words) && error.contains("--force"), "{error}");
    }
    let other = json!({"command": "eval judge"});
    let error = OutputFolder::open(&path, FolderKind::Judge, &other, true).err().unwrap().to_string();
    assert!(error.contains("it holds results of `eval`"), "{error}");
    let more = json!({"places": ["m"], "tasks": ["b", "a"], "limit": 1, "python": "3.12"});
    results(&path, &more, false, &["results.json"]);
    assert_eq!(held_settings(&path).unwrap(), Some(more));
}

#[test]
fn a_folder_of_somebody_else_is_refused_with_force_too() {
    let settings = json!({"tasks": ["a"]});
    for (name, text) in [
        ("mine.txt", "mine"),
        ("settings.json", r#"{"tasks": ["a"]}"#),
        ("settings.json", r#"{"editor.fontSize": 12}"#),
        (LOCK, ""),
    ] {
        let foreign = tempfile::tempdir().unwrap();
        fs::create_dir(foreign.path().join("samples")).unwrap();
        fs::write(foreign.path().join("samples/mine"), "mine").unwrap();
        fs::write(foreign.path().join(name), text).unwrap();
        let error = open(foreign.path(), &settings, true).err().unwrap().to_string();
        assert!(error.contains("something else than an evaluation"), "{name}: {error}");
        assert_eq!(fs::read_to_string(foreign.path().join(name)).unwrap(), text);
        assert_eq!(fs::read_dir(foreign.path()).unwrap().count(), 2);
    }
}

#[test]
fn a_command_that_keeps_nothing_leaves_no_folder() {
    let scratch = tempfile::tempdir().unwrap();
    let settings = json!({"tasks": ["a"]});
    for name in ["new", "empty"] {
        let path = scratch.path().join(name);
        let folder = open(&path, &settings, false).unwrap();
        drop(folder.responses("responses.jsonl").unwrap());
        drop(folder);
        assert!(!path.exists());
        fs::create_dir_all(scratch.path().join("empty")).unwrap();
    }
    let path = scratch.path().join("answered");
    let folder = open(&path, &settings, false).unwrap();
    fs::write(path.join("responses.jsonl"), "{}").unwrap();
    drop(folder);
    assert!(own_folder::is_ours(&path) && path.join("responses.jsonl").exists());
}
