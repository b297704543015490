//! What counts as a folder of this program, and what does not.

use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;

const CLAIM: Claim<'static> =
    Claim { kind: FolderKind::Run, names: &["run.toml", "tensorboard", "checkpoints"] };

/// A folder with these files.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

#[test]
fn a_folder_is_ours_by_the_line_in_its_marker() {
    for kind in FolderKind::ALL {
        let folder = tree(&[]);
        Claim { kind, ..CLAIM }.mark(folder.path()).unwrap();
        let text = fs::read_to_string(folder.path().join(MARKER)).unwrap();
        assert_eq!(text, format!("colossal-chat 1 {}\n", kind.name()));
        assert_eq!(super::kind(folder.path()).unwrap(), Some(kind));
    }
    for text in ["", "mine", "colossal-chat 2 run\n", "colossal-chat 1 runs\n", "colossal-chat 1\n"] {
        let folder = tree(&[(MARKER, text)]);
        assert!(!is_ours(folder.path()));
        let error = CLAIM.mark(folder.path()).unwrap_err().to_string();
        assert!(error.contains("does not begin with a line"), "{text}: {error}");
        assert_eq!(fs::read_to_string(folder.path().join(MARKER)).unwrap(), text);
    }
}

#[test]
fn a_marker_lists_files_of_its_folder_alone() {
    for listed in ["../mine", "/etc/passwd", "samples/../../mine", "", ".."] {
        let folder = tree(&[(MARKER, &format!("colossal-chat 1 eval\n{listed}\n"))]);
        let error = listed_files(folder.path()).unwrap_err().to_string();
        assert!(error.contains("which is no file of this folder"), "{listed}: {error}");
    }
    let folder = tree(&[(MARKER, "colossal-chat 1 eval\n")]);
    list_file(folder.path(), "samples/a.jsonl").unwrap();
    list_file(folder.path(), "summary.md").unwrap();
    assert!(listed_files(folder.path()).unwrap().iter().eq(["samples/a.jsonl", "summary.md"]));
}

#[test]
fn a_folder_of_an_earlier_version_is_known_by_its_lock_and_its_settings() {
    const WRITTEN: &str = "process 12 on here\n";
    for (lock, name, text, kind) in [
        (WRITTEN, "run.toml", "out = \"x\"\n", Some(FolderKind::Run)),
        (WRITTEN, "run.toml", "out = \"x\"\n[pipeline]\n", Some(FolderKind::Pipeline)),
        (WRITTEN, "settings.json", r#"{"tasks": []}"#, Some(FolderKind::Eval)),
        (WRITTEN, "settings.json", r#"{"command": "eval judge"}"#, Some(FolderKind::Judge)),
        (WRITTEN, "settings.json", r#"{"report": "reward model"}"#, Some(FolderKind::RewardModel)),
        (WRITTEN, "settings.json", r#"{"editor.fontSize": 12}"#, None),
        (WRITTEN, "run.toml", "[package]\nname = \"x\"\n", None),
        (WRITTEN, "run.toml", "{", None),
        (WRITTEN, "plan.json", "{}", None),
        ("", "run.toml", "out = \"x\"\n", None),
        ("process mine on here", "run.toml", "out = \"x\"\n", None),
    ] {
        let folder = tree(&[(LOCK, lock), (name, text)]);
        assert_eq!(super::kind(folder.path()).unwrap(), kind, "{lock:?} {name} {text}");
    }

    let folder = tree(&[
        (LOCK, WRITTEN),
        ("settings.json", r#"{"tasks": []}"#),
        ("results.json", "{}"),
        ("samples/m/t.jsonl", ""),
        ("samples/mine.txt", ""),
        ("lm_eval/m.json", ""),
        ("responses.jsonl", ""),
    ]);
    Claim { kind: FolderKind::Eval, names: &[] }.mark(folder.path()).unwrap();
    let listed: Vec<String> = listed_files(folder.path()).unwrap().into_iter().collect();
    assert_eq!(listed, ["lm_eval/m.json", "results.json", "samples/m/t.jsonl", "settings.json"]);
}

#[test]
fn names_of_ours_in_a_foreign_folder_and_other_kinds_are_refused() {
    for (name, words) in
        [("run.toml", "run.toml: no run"), (LOCK, ".lock: no run"), ("tensorboard/x", "tensorboard")]
    {
        let folder = tree(&[(name, "mine")]);
        assert!(CLAIM.mark(folder.path()).unwrap_err().to_string().contains(words));
        assert!(!folder.path().join(MARKER).exists());
    }
    let folder = tree(&[("notes", "mine"), ("tensorboard/.keep", "")]);
    fs::remove_file(folder.path().join("tensorboard/.keep")).unwrap();
    CLAIM.mark(folder.path()).unwrap();
    let other = Claim { kind: FolderKind::Eval, ..CLAIM };
    assert!(other.check(folder.path()).unwrap_err().to_string().contains("it holds a run"));
}

#[test]
fn nothing_under_our_names_is_a_link_or_a_pipe_and_other_names_are_left_alone() {
    let marked = [
        (MARKER, "colossal-chat 1 run\n"),
        ("checkpoints/step-2/critic/config.json", ""),
        ("checkpoints/notes/x", ""),
        ("tensorboard/notes", ""),
    ];
    for (name, is_refused) in [
        ("run.toml", true),
        ("tensorboard/events.out.tfevents.1", true),
        ("checkpoints/step-4", true),
        ("checkpoints/step-2/model.safetensors", true),
        ("checkpoints/step-2/critic/model.safetensors", true),
        (LOCK, true),
        ("notes", false),
        ("tensorboard/mine", false),
        ("checkpoints/newest", false),
        ("checkpoints/notes/y", false),
    ] {
        for is_link in [true, false] {
            let folder = tree(&marked);
            let path = folder.path().join(name);
            if is_link {
                symlink(folder.path(), &path).unwrap();
            } else {
                assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            }
            let found = CLAIM.check(folder.path()).map_err(|error| error.to_string());
            let kind = if is_link { "this is a link" } else { "this is a pipe" };
            match found {
                Ok(()) => assert!(!is_refused, "{name}"),
                Err(error) => {
                    assert!(is_refused && error.contains(name) && error.contains(kind), "{error}");
                }
            }
        }
    }
    // A link to an empty folder, too: what is written below would leave the folder.
    let folder = tree(&[("elsewhere/.keep", "")]);
    fs::remove_file(folder.path().join("elsewhere/.keep")).unwrap();
    symlink("elsewhere", folder.path().join("checkpoints")).unwrap();
    assert!(CLAIM.check(folder.path()).unwrap_err().to_string().contains("this is a link"));
}
