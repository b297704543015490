//! The hub, played by a server of this process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one repository, `owner/tiny`, that notes the requests it gets.
struct LocalHub {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl LocalHub {
    fn start(files: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let files: BTreeMap<String, String> =
            files.iter().map(|&(name, content)| (name.to_owned(), content.to_owned())).collect();
        let seen = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &files, &seen);
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
        }
    }
}

fn answer(mut stream: TcpStream, files: &BTreeMap<String, String>, seen: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let request = lines.next().unwrap().unwrap();
    let headers: Vec<String> = lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    let header = |name: &str| {
        let found = headers.iter().find(|line| line.to_lowercase().starts_with(&format!("{name}:")));
        found.map(|line| line[name.len() + 1..].trim().to_owned())
    };
    let path = request.split(' ').nth(1).unwrap().to_owned();
    seen.lock().unwrap().push(format!("{path} {}", header("authorization").unwrap_or_default()));
    let reply = if path == "/api/models/owner/tiny/revision/main" {
        let siblings: Vec<_> = files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
        let body = serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string();
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    } else if let Some(content) =
        path.strip_prefix(&format!("/owner/tiny/resolve/{COMMIT}/")).and_then(|name| files.get(name))
    {
        let range = header("range").unwrap();
        let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let first: usize = first.parse().unwrap();
        let last = last.parse().unwrap_or(content.len() - 1);
        let body = &content[first..=last];
        format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {first}-{last}/{}\r\nETag: \
             \"{:x}\"\r\nx-repo-commit: {COMMIT}\r\nConnection: close\r\n\r\n{body}",
            body.len(),
            content.len(),
            content.bytes().fold(5381_u64, |hash, byte| hash.wrapping_mul(33) ^ u64::from(byte)),
        )
    } else {
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned()
    };
    stream.write_all(reply.as_bytes()).unwrap();
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
    // A second time only the list of files is asked for.
    settings.resolve("owner/tiny").unwrap();
    assert_eq!(hub.requests.lock().unwrap().len(), requests.len() + 1);
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
}
