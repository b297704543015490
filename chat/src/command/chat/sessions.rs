//! The sessions of the chat on disk: one JSON file each, written whole after every change.
//!
//! They lie in `$XDG_DATA_HOME/colossal-chat/sessions` or `~/.local/share/colossal-chat/sessions`, for the
//! owner alone. Beside them, `history.jsonl` holds the messages that were sent, one JSON string a line. Files
//! of other people or programs may lie there as well, so names and contents are checked.

use std::cell::RefCell;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use parallel::regular_file;
use serde_json::{Value, json};
use tui::chat::event::{Saved, SessionSummary};

use crate::console::print_stderr;
use crate::feedback::timestamp::Timestamp;
use crate::{own_file, user_folders};

/// The longest file that is read as a session, in bytes.
const MAX_SESSION: u64 = 64 << 20;

/// How often a lock file is opened that others remove at the same time.
const ATTEMPTS: usize = 10;

/// The most messages that are remembered.
const HISTORY: usize = 1000;

/// The end of the history that is read, in bytes.
const LONGEST_HISTORY: u64 = 16 << 20;

/// The folder of the sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    folder: PathBuf,
    /// The session that this chat may write.
    held: RefCell<Option<Held>>,
}

/// A locked session. The lock file goes with it.
#[derive(Debug)]
struct Held {
    id: String,
    path: PathBuf,
    _lock: File,
}

impl Drop for Held {
    fn drop(&mut self) {
        // It is still locked, so nobody else has taken it. If it stays, the next chat locks it again.
        let _ = fs::remove_file(&self.path);
    }
}

impl Sessions {
    /// The sessions of a folder, which is made when the first one is kept.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, held: RefCell::new(None) }
    }

    /// Locks a session. Two chats that write one session would lose the turns of one of them.
    fn lock(&self, id: &str) -> anyhow::Result<Held> {
        let path = self.path(id)?.with_extension("lock");
        let cannot = || format!("cannot lock the session with {}", path.display());
        self.make_folder().with_context(cannot)?;
        for _ in 0..ATTEMPTS {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = regular_file::open(&path, &options).with_context(cannot)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    anyhow::bail!("session {id} is open in another chat: close it there first")
                }
                Err(TryLockError::Error(reason)) => print_stderr(&format!(
                    "warning: {}: this file system has no locks ({reason}): do not open session {id} twice",
                    self.folder.display()
                )),
            }
            // The chat before may have removed the file between the two calls: then this is a file without a
            // name.
            if is_same_file(&file, &path) {
                return Ok(Held { id: id.to_owned(), path, _lock: file });
            }
        }
        anyhow::bail!("{} changes all the time: remove it, or start with --no-save", path.display())
    }

    /// Whether this chat holds the session.
    fn holds(&self, id: &str) -> bool {
        self.held.borrow().as_ref().is_some_and(|held| held.id == id)
    }

    /// Reads a session that this chat goes on with, and gives the one before back.
    pub(super) fn take(&self, id: &str) -> anyhow::Result<Saved> {
        if self.holds(id) {
            return self.open(id);
        }
        let held = self.lock(id)?;
        let saved = self.open(id)?;
        *self.held.borrow_mut() = Some(held);
        Ok(saved)
    }

    /// A name that no session has: the time, and a few random digits.
    pub(super) fn new_id() -> String {
        let digits = |text: String| text.chars().filter(char::is_ascii_digit).take(14).collect::<String>();
        format!("{}-{:06x}", digits(Timestamp::now().to_string()), rand::random::<u32>() & 0xff_ffff)
    }

    fn path(&self, id: &str) -> anyhow::Result<PathBuf> {
        let is_plain = |character: char| character.is_ascii_alphanumeric() || character == '-';
        anyhow::ensure!(
            !id.is_empty() && id.len() <= 64 && id.chars().all(is_plain),
            "`{id}` is no name of a session; /sessions lists them"
        );
        Ok(self.folder.join(format!("{id}.json")))
    }

    fn make_folder(&self) -> std::io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)
    }

    /// Writes a session, replacing its earlier form.
    pub(super) fn save(&self, session: &Saved) -> anyhow::Result<()> {
        let path = self.path(&session.id)?;
        let cannot = || format!("cannot keep the session in {}", path.display());
        if !self.holds(&session.id) {
            let held = self.lock(&session.id)?;
            *self.held.borrow_mut() = Some(held);
        }
        own_file::write(&path, &serde_json::to_vec(session)?).with_context(cannot)
    }

    /// Reads a session.
    fn open(&self, id: &str) -> anyhow::Result<Saved> {
        let path = self.path(id)?;
        let missing = || format!("there is no session {id} in {}", self.folder.display());
        let no_session = || format!("{} is no session", path.display());
        let text = regular_file::read_to_string(&path, MAX_SESSION);
        let text = text.with_context(|| if path.exists() { no_session() } else { missing() })?;
        let mut value: Value = serde_json::from_str(&text).with_context(no_session)?;
        match value["version"].as_u64() {
            Some(1) => upgrade(&mut value),
            Some(version) if version > Saved::VERSION.into() => anyhow::bail!(
                "{} has version {version}, and this program reads versions up to {}: use a newer one",
                path.display(),
                Saved::VERSION
            ),
            _ => {}
        }
        let saved: Saved = serde_json::from_value(value).with_context(no_session)?;
        anyhow::ensure!(saved.id == id, "{} holds the session {}", path.display(), saved.id);
        if let Err(damaged) = saved.conversation.check() {
            let turn = damaged.turn.map_or(String::new(), |turn| format!("turn {turn}: "));
            anyhow::bail!("{} is damaged: {turn}{}", path.display(), damaged.problem);
        }
        Ok(saved)
    }

    /// The names of all sessions with the time of their last change, the newest first.
    fn ids(&self) -> Vec<(String, SystemTime)> {
        let entry = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let id = name.strip_suffix(".json")?.to_owned();
            self.path(&id).ok()?;
            Some((id, entry.metadata().ok()?.modified().ok()?))
        };
        let mut ids: Vec<_> =
            fs::read_dir(&self.folder).into_iter().flatten().flatten().filter_map(entry).collect();
        ids.sort_by(|left, right| right.1.cmp(&left.1).then_with(|| right.0.cmp(&left.0)));
        ids
    }

    /// The newest session other than `current`.
    pub(super) fn newest(&self, current: &str) -> anyhow::Result<String> {
        let newest = self.ids().into_iter().map(|(id, _)| id).find(|id| id != current);
        newest.with_context(|| format!("there is no earlier session in {}", self.folder.display()))
    }

    /// All sessions, the newest first. A file that is no session is listed as such.
    pub(super) fn list(&self) -> Vec<SessionSummary> {
        let now = SystemTime::now();
        let summary = |(id, changed): (String, SystemTime)| {
            let age = age(now.duration_since(changed).unwrap_or_default().as_secs());
            match self.open(&id) {
                Ok(saved) => SessionSummary {
                    title: saved.title.or_else(|| saved.conversation.title()).unwrap_or_default(),
                    turns: saved.conversation.len(),
                    age,
                    id,
                },
                Err(error) => SessionSummary { title: format!("({error:#})"), turns: 0, age, id },
            }
        };
        self.ids().into_iter().map(summary).collect()
    }

    /// Deletes a session.
    pub(super) fn delete(&self, id: &str) -> anyhow::Result<()> {
        let path = self.path(id)?;
        // A session that another chat has open stays.
        let _lock = if self.holds(id) { None } else { Some(self.lock(id)?) };
        let deleted = regular_file::check(&path).and_then(|()| fs::remove_file(&path));
        deleted.with_context(|| format!("cannot delete {}", path.display()))
    }

    fn history_path(&self) -> PathBuf {
        self.folder.join("history.jsonl")
    }

    /// The messages that were sent, the oldest first. A line that is no JSON string is left out.
    pub(super) fn history(&self) -> Vec<String> {
        let text = read_end(&self.history_path()).unwrap_or_default();
        let lines: Vec<String> = String::from_utf8_lossy(&text)
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        lines[lines.len().saturating_sub(HISTORY)..].to_vec()
    }

    /// Appends a message to the history.
    pub(super) fn remember(&self, message: &str) -> anyhow::Result<()> {
        let path = self.history_path();
        let append = || {
            self.make_folder()?;
            let mut file =
                regular_file::open(&path, OpenOptions::new().append(true).create(true).mode(0o600))?;
            file.write_all(format!("{}\n", serde_json::Value::from(message)).as_bytes())
        };
        append().with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Turns a session of version 1 into one of version 2. An answer of version 1 had only its seed; it is taken
/// to have been asked for with the settings of the session.
fn upgrade(session: &mut Value) {
    let (system, sampling) = (session["conversation"]["system"].clone(), session["sampling"].clone());
    for turn in session["conversation"]["turns"].as_array_mut().into_iter().flatten() {
        let Some(seed) = turn.as_object_mut().and_then(|turn| turn.remove("seed")) else { continue };
        let mut asked = json!({ "system": system, "sampling": sampling });
        asked["sampling"]["seed"] = seed;
        turn["asked"] = asked;
    }
    session["version"] = Saved::VERSION.into();
}

/// The end of a file of lines.
fn read_end(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = regular_file::open(path, File::options().read(true))?;
    let start = file.metadata()?.len().saturating_sub(LONGEST_HISTORY);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(LONGEST_HISTORY).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether `path` still names this open file.
fn is_same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// The folder of all that the chat keeps for this user.
pub(super) fn default_folder() -> anyhow::Result<PathBuf> {
    let data = user_folders::data().context("there is no place for sessions: set HOME or XDG_DATA_HOME")?;
    Ok(data.join("sessions"))
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => "now".to_owned(),
        60..3600 => format!("{} min", seconds / 60),
        3600..86400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use tui::chat::conversation::{Conversation, Role};
    use tui::chat::event::{ContextPolicy, Sampling};

    use super::*;

    fn saved(id: &str) -> Saved {
        let mut conversation = Conversation::new(None);
        conversation.add(None, Role::User, "hello\nthere");
        let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, max_new_tokens: 8, seed: 1 };
        let (model, context) = ("m".to_owned(), ContextPolicy::Drop);
        Saved {
            version: Saved::VERSION,
            id: id.to_owned(),
            title: None,
            model,
            sampling,
            context,
            conversation,
        }
    }

    #[test]
    fn a_session_is_kept_listed_opened_and_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let sessions = Sessions::new(folder.path().join("deep"));
        assert!(sessions.list().is_empty() && sessions.newest("").is_err());
        sessions.save(&saved("one")).unwrap();
        assert_eq!(sessions.open("one").unwrap(), saved("one"));
        assert_eq!(sessions.list()[0].title, "hello");
        assert!(sessions.newest("one").is_err());
        assert_eq!(sessions.newest("two").unwrap(), "one");
        sessions.delete("one").unwrap();
        assert!(sessions.open("one").is_err());
    }

    #[test]
    fn two_chats_do_not_write_one_session() {
        let folder = tempfile::tempdir().unwrap();
        let [mine, theirs] = [0; 2].map(|_| Sessions::new(folder.path().to_owned()));
        mine.save(&saved("one")).unwrap();
        for refused in [theirs.take("one").map(drop), theirs.save(&saved("one")), theirs.delete("one")] {
            assert!(refused.unwrap_err().to_string().contains("open in another chat"));
        }
        mine.save(&saved("two")).unwrap();
        theirs.take("one").unwrap();
        drop((mine, theirs));
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(names.into_iter().all(|name| name.to_string_lossy().ends_with(".json")));
    }

    #[test]
    fn a_session_of_version_1_is_read_and_one_of_the_future_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let sessions = Sessions::new(folder.path().to_owned());
        let write = |id: &str, version: u32| {
            let text = r#"{"version":VERSION,"id":"ID","model":"m","context":"drop",
                "sampling":{"temperature":0.5,"top_k":0,"top_p":1.0,"max_new_tokens":8,"seed":1},
                "conversation":{"system":"be short","head":1,"turns":[
                    {"parent":null,"role":"user","text":"q"},
                    {"parent":0,"role":"assistant","text":"a","model":"m","finish":"stop","seed":7}]}}"#;
            let text = text.replace("VERSION", &version.to_string()).replace("ID", id);
            fs::write(folder.path().join(format!("{id}.json")), text).unwrap();
        };
        write("old", 1);
        write("new", 3);
        let asked = sessions.open("old").unwrap().conversation.turn(1).asked.clone().unwrap();
        assert_eq!((asked.system.as_deref(), asked.sampling.seed), (Some("be short"), 7));
        assert!((asked.sampling.temperature - 0.5).abs() < 1e-12);
        assert!(sessions.open("new").unwrap_err().to_string().contains("has version 3"));
    }

    #[test]
    fn names_and_files_of_strangers_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let sessions = Sessions::new(folder.path().to_owned());
        for name in ["../one", "", "a/b", "a.b", "\u{1b}[2J"] {
            assert!(sessions.open(name).unwrap_err().to_string().contains("is no name"), "{name}");
        }
        fs::write(folder.path().join("bad.json"), "{").unwrap();
        assert!(sessions.open("bad").unwrap_err().to_string().contains("bad.json is no session"));
        let other = serde_json::to_string(&saved("other")).unwrap();
        fs::write(folder.path().join("mine.json"), other).unwrap();
        assert!(sessions.open("mine").unwrap_err().to_string().contains("holds the session other"));
        assert_eq!(sessions.list().len(), 2);
    }

    #[test]
    fn links_and_pipes_are_named_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let sessions = Sessions::new(folder.path().to_owned());
        let path = |name: &str| folder.path().join(name);
        fs::write(path("mine"), "mine").unwrap();
        for name in ["a.json", "history.jsonl", "b.lock"] {
            std::os::unix::fs::symlink(path("mine"), path(name)).unwrap();
        }
        std::os::unix::fs::symlink("/dev/zero", path("zero.json")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("pipe.json")).status().unwrap().success());

        assert_eq!(sessions.list().len(), 3);
        for (id, words) in [("a", "a link"), ("zero", "a link"), ("pipe", "a pipe")] {
            for refused in [sessions.open(id).map(drop), sessions.save(&saved(id)), sessions.delete(id)] {
                let error = format!("{:#}", refused.unwrap_err());
                assert!(error.contains(&format!("{id}.json")) && error.contains(words), "{error}");
            }
        }
        assert!(format!("{:#}", sessions.save(&saved("b")).unwrap_err()).contains("b.lock"));
        assert!(sessions.remember("hi").is_err() && sessions.history().is_empty());
        assert_eq!(fs::read_to_string(path("mine")).unwrap(), "mine");
        let kept = ["a.json", "b.lock", "history.jsonl", "pipe.json", "zero.json"];
        assert!(kept.iter().all(|name| !fs::symlink_metadata(path(name)).unwrap().is_file()));
    }

    #[test]
    fn the_history_survives_lines_that_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let sessions = Sessions::new(folder.path().to_owned());
        sessions.remember("two\nlines").unwrap();
        OpenOptions::new().append(true).open(sessions.history_path()).unwrap().write_all(b"{half\n").unwrap();
        sessions.remember("/help").unwrap();
        assert_eq!(sessions.history(), ["two\nlines", "/help"]);
    }
}
