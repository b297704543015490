//! The hub, played by a server of this process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one repository, `owner/tiny`, that notes the requests it gets.
struct LocalHub {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

/// What the hub says beside the contents of its files.
#[derive(Clone, Default)]
struct Manners {
    /// The commit; absent: [`COMMIT`].
    commit: Option<String>,
    /// The `ETag` of every file; absent: a hash of its content.
    etag: Option<String>,
    /// Where every file is really kept: the address of another server.
    elsewhere: Option<String>,
    /// Bytes after which a transfer breaks off once.
    breaks_after: Option<usize>,
    /// The size that every file is said to have; absent: that of its content.
    announced: Option<u64>,
    /// What of every file comes at ten bytes a second.
    drips: Drips,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Drips {
    #[default]
    Nothing,
    Headers,
    Content,
}

impl LocalHub {
    fn start(files: &[(&str, &str)]) -> Self {
        Self::with(files, Manners::default())
    }

    fn with(files: &[(&str, &str)], mut manners: Manners) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let files: BTreeMap<String, String> =
            files.iter().map(|&(name, content)| (name.to_owned(), content.to_owned())).collect();
        let seen = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &files, &mut manners, &seen);
            }
        });
        Self { endpoint, requests }
    }

    fn settings(&self, cache: &Path) -> HubSettings {
        HubSettings {
            cache: cache.to_owned(),
            endpoint: self.endpoint.clone(),
            token: Some("secret".to_owned()),
            offline: false,
            progress: false,
            timeout: Duration::from_secs(1),
        }
    }
}

fn answer(
    mut stream: TcpStream,
    files: &BTreeMap<String, String>,
    manners: &mut Manners,
    seen: &Mutex<Vec<String>>,
) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let request = lines.next().unwrap().unwrap();
    let headers: Vec<String> = lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    let header = |name: &str| {
        let found = headers.iter().find(|line| line.to_lowercase().starts_with(&format!("{name}:")));
        found.map(|line| line[name.len() + 1..].trim().to_owned())
    };
    let path = request.split(' ').nth(1).unwrap().to_owned();
    seen.lock().unwrap().push(format!("{path} {}", header("authorization").unwrap_or_default()));
    let commit = manners.commit.clone().unwrap_or_else(|| COMMIT.to_owned());
    let resolve = format!("/owner/tiny/resolve/{COMMIT}/");
    let content = path.strip_prefix("/datasets").unwrap_or(&path).strip_prefix(&resolve);
    let reply = if path.ends_with("s/owner/tiny/revision/main") {
        let siblings: Vec<_> = files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
        let body = serde_json::json!({"sha": commit, "siblings": siblings}).to_string();
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    } else if let Some(content) = content.and_then(|name| files.get(name)) {
        let hash = content.bytes().fold(5381_u64, |hash, byte| hash.wrapping_mul(33) ^ u64::from(byte));
        let etag = manners.etag.clone().unwrap_or_else(|| format!("{hash:x}"));
        if let Some(host) = &manners.elsewhere {
            format!(
                "HTTP/1.1 302 Found\r\nLocation: {host}{path}\r\nX-Linked-ETag: \"{etag}\"\r\nContent-Length: 0\r\n\
                 Connection: close\r\n\r\n"
            )
        } else {
            let range = header("range").unwrap();
            let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            let first: usize = first.parse().unwrap();
            let last = last.parse().unwrap_or(content.len() - 1);
            let body = &content[first..=last];
            let sent = if last > 0 { manners.breaks_after.take().unwrap_or(body.len()) } else { body.len() };
            format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {first}-{last}/{}\r\nETag: \
                 \"{etag}\"\r\nx-repo-commit: {COMMIT}\r\nConnection: close\r\n\r\n{}",
                body.len(),
                manners.announced.unwrap_or(content.len() as u64),
                &body[..sent],
            )
        }
    } else {
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned()
    };
    let length = reply.find("\r\n\r\n").unwrap() + 4;
    let (at_once, slowly) = match manners.drips {
        Drips::Headers if content.is_some() => (0, length),
        // One byte of content answers the question for the size of a file.
        Drips::Content if content.is_some() && reply.len() > length + 1 => (length, reply.len()),
        _ => (reply.len(), reply.len()),
    };
    stream.write_all(&reply.as_bytes()[..at_once]).unwrap();
    // The client may have gone.
    let drop = |&byte| stream.write_all(&[byte]).is_ok().then(|| thread::sleep(Duration::from_millis(100)));
    let _ = reply.as_bytes()[at_once..slowly].iter().try_for_each(drop);
}

const SHARDED: [(&str, &str); 6] = [
    ("config.json", "{}"),
    ("tokenizer.json", "{\"a\": 1}"),
    (
        "model.safetensors.index.json",
        r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}"#,
    ),
    ("model-1.safetensors", "one"),
    ("model-2.safetensors", "two"),
    ("pytorch_model.bin", "not wanted"),
];

#[test]
fn a_sharded_model_is_fetched_once_and_then_found_offline() {
    let hub = LocalHub::start(&SHARDED);
    let cache = tempfile::tempdir().unwrap();
    let mut settings = hub.settings(cache.path());
    let folder = settings.resolve("owner/tiny").unwrap();
    assert!(folder.ends_with(format!("models--owner--tiny/snapshots/{COMMIT}")));
    for (name, content) in &SHARDED[..5] {
        assert_eq!(&fs::read_to_string(folder.join(name)).unwrap(), content);
    }
    assert!(!folder.join("pytorch_model.bin").exists());
    let requests = hub.requests.lock().unwrap().clone();
    assert!(requests.iter().all(|request| request.ends_with("Bearer secret")), "{requests:?}");
    assert_eq!(fs::read_to_string(cache.path().join("models--owner--tiny/refs/main")).unwrap(), COMMIT);
    // A second time only the list of files is asked for, and nothing of a commit.
    settings.resolve("owner/tiny").unwrap();
    assert_eq!(hub.requests.lock().unwrap().len(), requests.len() + 1);
    assert_eq!(settings.resolve(&format!("owner/tiny@{COMMIT}")).unwrap(), folder);
    assert_eq!(hub.requests.lock().unwrap().len(), requests.len() + 1);
    assert_eq!(settings.cached_model(&folder), Some(("owner/tiny".to_owned(), COMMIT.to_owned())));
    for other in
        [cache.path(), folder.parent().unwrap(), folder.join("config.json").as_path(), Path::new("/tmp")]
    {
        assert_eq!(settings.cached_model(other), None);
    }
    settings.offline = true;
    settings.endpoint = "http://127.0.0.1:1".to_owned();
    assert_eq!(settings.resolve("owner/tiny").unwrap(), folder);
    fs::remove_file(folder.join("model-2.safetensors")).unwrap();
    let error = settings.resolve("owner/tiny").unwrap_err().to_string();
    assert!(error.contains("model-2.safetensors is not in the cache"), "{error}");
    let error = settings.resolve("owner/other").unwrap_err().to_string();
    assert!(error.contains("owner/other: config.json is not in the cache"), "{error}");
}

#[test]
fn rows_are_fetched_into_a_folder_and_kept() {
    let hub = LocalHub::start(&[("easy/test.jsonl", "1"), ("easy/train.jsonl", "2"), ("README.md", "3")]);
    let scratch = tempfile::tempdir().unwrap();
    let (cache, target) = (scratch.path().join("cache"), scratch.path().join("rows"));
    let wanted = |path: &str| path.ends_with("test.jsonl");
    let paths = hub.settings(&cache).fetch_rows("owner/tiny", &wanted, &target).unwrap();
    assert_eq!(paths, [target.join("easy/test.jsonl")]);
    assert_eq!(fs::read_to_string(&paths[0]).unwrap(), "1");
    assert!(!target.join("easy/train.jsonl").exists());
    assert!(hub.requests.lock().unwrap()[0].starts_with("/api/datasets/owner/tiny/revision/main"));
    // The link of the cache leads to the blob.
    let snapshot = cache.join(format!("datasets--owner--tiny/snapshots/{COMMIT}/easy/test.jsonl"));
    assert_eq!(fs::read_to_string(snapshot).unwrap(), "1");

    fs::write(&paths[0], "mine").unwrap();
    hub.settings(&cache).fetch_rows("owner/tiny", &wanted, &target).unwrap();
    assert_eq!(fs::read_to_string(&paths[0]).unwrap(), "mine");

    let hostile = LocalHub::start(&[("../../test.jsonl", "1")]);
    let cache = scratch.path().join("other");
    let error = hostile.settings(&cache).fetch_rows("owner/tiny", &wanted, &target).unwrap_err();
    assert!(matches!(error, Error::HostileName { what: "file", .. }), "{error}");
    for name in ["tiny", "/owner/tiny", "owner/../tiny"] {
        let error = hub.settings(&cache).fetch_rows(name, &wanted, &target).unwrap_err();
        assert!(matches!(error, Error::DatasetName { .. }), "{error}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let hub = LocalHub::start(&SHARDED[..1]);
    let cache = tempfile::tempdir().unwrap();
    let settings = hub.settings(cache.path());
    let error = settings.resolve("owner/tiny").unwrap_err();
    assert!(matches!(error, Error::HubFileMissing { file: "tokenizer.json", .. }), "{error}");
    let hub = LocalHub::start(&SHARDED[..2]);
    let error = hub.settings(cache.path()).resolve("owner/tiny").unwrap_err();
    assert!(matches!(error, Error::HubFileMissing { file: "model.safetensors", .. }), "{error}");
    let error = settings.resolve("owner/none@v2").unwrap_err().to_string();
    assert!(error.contains("404") && error.contains("HF_TOKEN"), "{error}");
}

#[test]
fn folders_come_first_and_nonsense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let settings = HubSettings::from_variables(|_| None);
    assert_eq!(settings.resolve(folder.path().to_str().unwrap()).unwrap(), folder.path());
    for model in ["missing", "a/b/c", "./a", "/x", "a/b@", "../b", "a /b"] {
        assert!(matches!(settings.resolve(model), Err(Error::UnknownModel { .. })), "{model}");
    }
}

/// Every path below a folder.
fn tree(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(tree(&entry.path()));
        }
        found.insert(entry.path());
    }
    found
}

#[test]
fn an_index_that_leads_out_of_the_folder_is_refused_before_anything_else_is_fetched() {
    let outside = tempfile::tempdir().unwrap();
    let absolute = format!("{}/owned.safetensors", outside.path().display());
    for name in [
        "../../../../owned.safetensors",
        "sub/owned.safetensors",
        absolute.as_str(),
        "a\\..\\owned.safetensors",
        "owned\u{1b}[31m.safetensors",
        "owned\0.safetensors",
        "..",
        "",
        "config.json",
        "absent.safetensors",
    ] {
        let index = serde_json::json!({"weight_map": {"a": name}}).to_string();
        // The hub serves whatever is asked for, under its last part.
        let files = [
            ("config.json", "{}"),
            ("tokenizer.json", "{}"),
            ("model.safetensors.index.json", index.as_str()),
            ("owned.safetensors", "owned"),
        ];
        let hub = LocalHub::start(&files);
        let root = tempfile::tempdir().unwrap();
        let cache = root.path().join("home/cache");
        let error = hub.settings(&cache).resolve("owner/tiny").unwrap_err();
        assert!(matches!(error, Error::WeightIndex { .. }), "{name:?}: {error}");
        assert!(!error.to_string().chars().any(char::is_control), "{error}");
        // The listing and the index, which was asked for twice: its length, its bytes.
        assert_eq!(hub.requests.lock().unwrap().len(), 3, "{name:?}");
        assert!(tree(root.path()).iter().all(|path| path.starts_with(root.path().join("home"))), "{name:?}");
        assert!(tree(outside.path()).is_empty());
        // The same index in a local folder.
        let local = tempfile::tempdir().unwrap();
        fs::write(local.path().join("model.safetensors.index.json"), &index).unwrap();
        let answer = hub.settings(&cache).resolve(local.path().to_str().unwrap());
        assert_eq!(answer.is_err(), name != "absent.safetensors", "{name:?}");
    }
}

#[test]
fn a_commit_that_is_a_path_is_refused() {
    for commit in ["../../../owned", "/tmp/owned", "main", "", "0123456789abcdef0123456789abcdef0123456g"] {
        let hub = LocalHub::with(&SHARDED, Manners { commit: Some(commit.to_owned()), ..Manners::default() });
        let cache = tempfile::tempdir().unwrap();
        let error = hub.settings(cache.path()).resolve("owner/tiny").unwrap_err();
        assert!(matches!(error, Error::HostileName { what: "commit", .. }), "{commit:?}: {error}");
        assert!(tree(cache.path()).is_empty(), "{commit:?}");
    }
}

#[test]
fn an_etag_that_is_a_path_is_refused() {
    for etag in ["../../../owned", "/tmp/owned", "a/../b", ".."] {
        let hub = LocalHub::with(&SHARDED, Manners { etag: Some(etag.to_owned()), ..Manners::default() });
        let cache = tempfile::tempdir().unwrap();
        let error = hub.settings(cache.path()).resolve("owner/tiny").unwrap_err();
        assert!(matches!(error, Error::HostileName { what: "ETag", .. }), "{etag:?}: {error}");
        assert!(tree(cache.path()).is_empty(), "{etag:?}");
    }
}

#[test]
fn the_token_goes_to_no_other_host() {
    let store = LocalHub::start(&SHARDED);
    // The same machine under another name and at another port.
    let elsewhere = store.endpoint.replace("127.0.0.1", "localhost");
    let hub = LocalHub::with(&SHARDED, Manners { elsewhere: Some(elsewhere), ..Manners::default() });
    let cache = tempfile::tempdir().unwrap();
    hub.settings(cache.path()).resolve("owner/tiny").unwrap();
    let asked = store.requests.lock().unwrap().clone();
    assert_eq!(asked.len(), 2 * 5, "{asked:?}");
    assert!(asked.iter().all(|request| !request.contains("secret")), "{asked:?}");
    assert!(hub.requests.lock().unwrap().iter().all(|request| request.ends_with("Bearer secret")));
}

#[test]
fn a_silent_server_is_named_within_its_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = HubSettings::from_variables(|_| None);
    assert_eq!(settings.timeout, Duration::from_secs(10));
    settings.timeout = Duration::from_secs(1);
    settings.endpoint = format!("http://{}", listener.local_addr().unwrap());
    let started = Instant::now();
    let error = settings.resolve("owner/tiny").unwrap_err().to_string();
    assert!(error.contains("127.0.0.1 did not answer within 1 s"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_transfer_that_breaks_off_goes_on_where_it_stopped() {
    let hub = LocalHub::with(&SHARDED, Manners { breaks_after: Some(40), ..Manners::default() });
    let cache = tempfile::tempdir().unwrap();
    let folder = hub.settings(cache.path()).resolve("owner/tiny").unwrap();
    for (name, content) in &SHARDED[..5] {
        assert_eq!(&fs::read_to_string(folder.join(name)).unwrap(), content);
    }
    assert!(tree(cache.path()).iter().all(|path| path.extension().is_none_or(|end| end != "incomplete")));
}

#[test]
fn announced_sizes_must_fit_on_the_disk() {
    // 100 MB are free, 64 MiB of which stay free.
    measure_disks_with(|_| Ok(Some(100_000_000)));
    let cache = tempfile::tempdir().unwrap();
    let root = cache.path().join("not/there/yet");
    // Each of the three files fits, all of them do not.
    let whole = [("config.json", "{}"), ("tokenizer.json", "{}"), ("model.safetensors", "x")];
    let hub = LocalHub::with(&whole, Manners { announced: Some(20_000_000), ..Manners::default() });
    let error = hub.settings(&root).resolve("owner/tiny").unwrap_err();
    let Error::HubSpace { missing, free, .. } = error else { panic!("{error}") };
    assert_eq!((missing, free), (60_000_000, 100_000_000 - (64 << 20)));
    // The list and three sizes were asked for, and no bytes.
    assert_eq!(hub.requests.lock().unwrap().len(), 4);
    assert!(!root.exists());
}

#[test]
fn a_file_that_drips_is_given_up() {
    let long = "x".repeat(1000);
    let files = [("config.json", "{}"), ("tokenizer.json", "{}"), ("model.safetensors", long.as_str())];
    // At ten bytes a second the server is never silent, and would take 100 s, or 15 s for the headers.
    for (drips, said) in [
        (Drips::Content, ["cannot get model.safetensors", "16 KiB a second"]),
        (Drips::Headers, ["cannot get ", "did not answer within 3 s"]),
    ] {
        let hub = LocalHub::with(&files, Manners { drips, ..Manners::default() });
        let cache = tempfile::tempdir().unwrap();
        let error = hub.settings(cache.path()).resolve("owner/tiny").unwrap_err().to_string();
        assert!(said.iter().all(|words| error.contains(words)), "{error}");
    }
}

#[test]
fn bytes_that_do_not_have_their_checksum_are_refused_and_removed() {
    let hub = LocalHub::with(&SHARDED, Manners { etag: Some("0".repeat(64)), ..Manners::default() });
    let cache = tempfile::tempdir().unwrap();
    let error = hub.settings(cache.path()).resolve("owner/tiny").unwrap_err().to_string();
    assert!(error.contains("its SHA-256 is"), "{error}");
    assert!(!tree(cache.path()).iter().any(|path| path.to_string_lossy().contains("incomplete")));
}

#[test]
fn a_mistyped_folder_is_not_looked_up_in_the_hub() {
    let here = tempfile::tempdir().unwrap();
    let runs = here.path().join("runs");
    fs::create_dir_all(runs.join("sft-7b/final")).unwrap();
    fs::write(runs.join("config.json"), "{}").unwrap();
    let settings = HubSettings::from_variables(|_| None);
    let told = |path: &str| settings.resolve(&runs.join(path).display().to_string()).unwrap_err().to_string();
    assert!(told("stf-7b/final").contains("sft-7b/final\"?"), "{}", told("stf-7b/final"));
    assert!(told("config.json").contains("is a file"), "{}", told("config.json"));
    assert!(!told("nothing-like-it").contains("did you mean"), "{}", told("nothing-like-it"));
    // `src` is a folder where the tests of this crate run, so `src/nonsense` has the form of a name and is
    // none.
    let error = settings.resolve("src/tokeniser").unwrap_err().to_string();
    assert!(
        error.contains("did you mean \"src/tokenizer\"?") && error.contains("src/tokeniser@main"),
        "{error}"
    );
}

#[test]
fn a_pipe_in_a_model_folder_does_not_hang() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("tokenizer.json");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let error = crate::Tokenizer::from_folder(folder.path()).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn variables_have_their_usual_meaning() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("token"), "from file\n").unwrap();
    let with = |pairs: &[(&str, &str)]| {
        let mut pairs: BTreeMap<String, String> =
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        pairs.entry("HF_HOME".to_owned()).or_insert_with(|| home.path().to_str().unwrap().to_owned());
        HubSettings::from_variables(|name| pairs.get(name).cloned())
    };
    let settings = with(&[]);
    assert_eq!(settings.cache, home.path().join("hub"));
    assert_eq!(settings.token.as_deref(), Some("from file"));
    assert_eq!(settings.endpoint, "https://huggingface.co");
    assert!(!settings.offline);
    let settings = with(&[
        ("HF_HUB_CACHE", "/c"),
        ("HF_TOKEN", "t"),
        ("HF_ENDPOINT", "http://mirror/"),
        ("HF_HUB_OFFLINE", "1"),
    ]);
    assert_eq!((settings.cache.to_str(), settings.token.as_deref()), (Some("/c"), Some("t")));
    assert_eq!((settings.endpoint.as_str(), settings.offline), ("http://mirror", true));
    assert!(!with(&[("HF_HUB_OFFLINE", "0")]).offline);
    assert_eq!(with(&[("HF_TOKEN", " t\r\n")]).token.as_deref(), Some("t"));
}

#[test]
fn a_token_that_is_none_is_refused_and_not_shown() {
    let hub = LocalHub::start(&SHARDED);
    let cache = tempfile::tempdir().unwrap();
    for token in ["top\nsecret", "“topsecret”", "top secret"] {
        let mut settings = hub.settings(cache.path());
        settings.token = Some(token.to_owned());
        let error = settings.resolve("owner/tiny").unwrap_err().to_string();
        assert!(error.contains("a character that no token has") && !error.contains("secret"), "{error}");
    }
}
