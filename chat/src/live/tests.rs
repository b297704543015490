//! What a run writes under `live/`, and what it leaves alone there.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::Command;

use rlhf::event::{Event, Recorder};

use super::*;

fn live(out: &Path) -> Live {
    Live::new(out, &ProcessGroups::single(), &ChunkManager::unlimited()).unwrap()
}

/// A run in `out` from its start to its end. Fails if observation ends it.
fn run(out: &Path, step: u64) {
    let live = live(out);
    let mut log = live.recorder();
    log.record(&Event::Started { stage: "sft", total_steps: 9, step }).unwrap();
    live.progress(Phase::Step, step);
    log.record(&Event::Paused { step: step + 1 }).unwrap();
    drop(live);
    log.end(&Ok(()));
}

fn events(out: &Path) -> Vec<String> {
    let text = fs::read_to_string(events_path(out)).unwrap();
    text.lines().map(|line| serde_json::from_str::<EventRow>(line).unwrap().event).collect()
}

fn state(out: &Path, rank: usize) -> RankFile {
    serde_json::from_str(&fs::read_to_string(rank_path(out, rank)).unwrap()).unwrap()
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_resumed_run_appends_to_the_events_and_a_fresh_one_begins_them_anew() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    run(out, 0);
    let mut file = OpenOptions::new().append(true).open(events_path(out)).unwrap();
    file.write_all(b"{\"cut").unwrap();
    run(out, 3);
    let text = fs::read_to_string(events_path(out)).unwrap();
    assert_eq!(text.lines().count(), 7);
    assert_eq!(text.lines().nth(3), Some("{\"cut"));
    run(out, 0);
    assert_eq!(events(out), ["started", "paused", "finished"]);
    // A resumed run whose events are missing begins them.
    fs::remove_file(events_path(out)).unwrap();
    run(out, 3);
    assert_eq!(events(out), ["started", "paused", "finished"]);
}

#[test]
fn what_an_earlier_run_left_is_removed_and_the_rest_stays() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let (live, requests) = (out.join(LIVE), requests_path(out));
    fs::create_dir_all(&requests).unwrap();
    let left = ["rank-7.json", "rank-12.tmp", "requests/1.json", "requests/.1.json.5-x.tmp"]
        .map(|name| live.join(name));
    let kept = ["notes.json", "rank-x.json", "rank-.json", "rank-1.json.tmp", "notes.tmp", "requests/notes"];
    let kept = kept.map(|name| live.join(name));
    for path in left.iter().chain(&kept) {
        fs::write(path, "mine").unwrap();
    }
    let (folder_of_user, requests_of_user) = (live.join("x.json"), requests.join("x.json"));
    fs::create_dir(&folder_of_user).unwrap();
    fs::create_dir(&requests_of_user).unwrap();
    let links = [live.join("rank-3.json"), requests.join("2.json")];
    for link in &links {
        symlink(live.join("notes.json"), link).unwrap();
    }
    make_pipe(&requests.join("pipe.json"));

    run(out, 0);
    assert!(left.iter().all(|path| !path.exists()));
    assert!(kept.iter().all(|path| fs::read_to_string(path).unwrap() == "mine"));
    assert!(links.iter().all(|link| link.is_symlink()) && requests.join("pipe.json").exists());
    assert!(folder_of_user.is_dir() && requests_of_user.is_dir());
    assert_eq!((events(out).len(), state(out, 0).phase.as_str()), (3, "step"));
}

#[test]
fn nothing_is_written_through_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let (out, mine) = (folder.path().join("out"), folder.path().join("mine"));
    fs::create_dir_all(out.join(LIVE)).unwrap();
    for step in [0, 3] {
        fs::write(&mine, "mine").unwrap();
        for name in ["events.jsonl", "events.tmp", "rank-0.json", "rank-0.tmp"] {
            let _ = fs::remove_file(out.join(LIVE).join(name));
            symlink(&mine, out.join(LIVE).join(name)).unwrap();
        }
        run(&out, step);
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
        assert!(events_path(&out).is_symlink() && rank_path(&out, 0).is_symlink());
    }
}

/// A name in the run folder, and what makes something there that a run must leave alone.
type Obstacle = (&'static str, fn(&Path));

#[test]
fn a_run_trains_on_where_it_cannot_be_watched() {
    let obstacles: [Obstacle; 6] = [
        ("live", |path| fs::write(path, "mine").unwrap()),
        ("live", |path| symlink(path.with_file_name("elsewhere"), path).unwrap()),
        ("live/requests", |path| fs::write(path, "mine").unwrap()),
        ("live/requests", |path| symlink("../elsewhere", path).unwrap()),
        ("live/events.jsonl", |path| fs::create_dir(path).unwrap()),
        ("live/events.jsonl", make_pipe),
    ];
    for (name, make) in obstacles {
        for step in [0, 3] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name);
            let elsewhere = folder.path().join("elsewhere");
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::create_dir_all(elsewhere.join("requests")).unwrap();
            fs::write(elsewhere.join("rank-0.json"), "mine").unwrap();
            fs::write(elsewhere.join("1.json"), "mine").unwrap();
            make(&path);
            let was = fs::symlink_metadata(&path).unwrap().file_type();

            run(folder.path(), step);
            assert_eq!(fs::symlink_metadata(&path).unwrap().file_type(), was, "{name}");
            assert_eq!(names(&elsewhere), ["1.json", "rank-0.json", "requests"], "{name}");
            assert_eq!(fs::read_to_string(elsewhere.join("rank-0.json")).unwrap(), "mine");
            // Nobody is told that there is a run to be watched.
            assert!(name == "live" || !rank_path(folder.path(), 0).exists(), "{name}");
        }
    }
}

#[test]
fn requests_are_files_in_a_folder_and_no_links() {
    let folder = tempfile::tempdir().unwrap();
    let (out, mine) = (folder.path().join("out"), folder.path().join("mine"));
    for path in [&out, &mine] {
        fs::create_dir_all(path).unwrap();
    }
    let live = live(&out);
    live.recorder().record(&Event::Started { stage: "sft", total_steps: 9, step: 0 }).unwrap();
    let requests = requests_path(&out);
    fs::write(requests.join("1.json"), "no request").unwrap();
    symlink(mine.join("1.json"), requests.join("2.json")).unwrap();
    make_pipe(&requests.join("3.json"));
    live.shared.take_requests();
    assert_eq!(names(&requests), ["2.json", "3.json"]);

    // The folder itself becomes a link to files of someone else.
    fs::remove_dir_all(&requests).unwrap();
    fs::write(mine.join("1.json"), "mine").unwrap();
    symlink(&mine, &requests).unwrap();
    live.shared.take_requests();
    assert_eq!(names(&mine), ["1.json"]);
}

#[test]
fn the_state_says_what_the_rank_does_and_stays_after_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let live = live(folder.path());
    live.recorder().record(&Event::Started { stage: "ppo", total_steps: 9, step: 0 }).unwrap();
    live.progress(Phase::Rollout, 4);
    live.progress(Phase::Update, 5);
    let run = live.shared.run.clone();
    drop(live);
    let state = state(folder.path(), 0);
    assert_eq!((state.phase.as_str(), state.step, state.process), ("update", 5, std::process::id()));
    assert!(state.resident_bytes > 0);
    assert_eq!(state.run, run);
}

#[test]
fn a_folder_that_this_machine_does_not_see_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("elsewhere");
    let live = live(&out);
    live.progress(Phase::Step, 1);
    drop(live);
    assert!(!out.exists());
}
