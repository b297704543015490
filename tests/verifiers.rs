//! Rewards that programs and servers of the user give, through the binary: what fails costs the replies that
//! were asked about, and no more; a reply is scored once in a job; nothing is left running; and what cannot
//! work is refused before the first step.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::gemini::same_bits;
use crate::groups::{back_to_step, column, line, nearly_equal, with_run_file};
use crate::harness::{Outcome, Scratch, descendants, free_port, is_running, names, signal};
use crate::ranks::worst;
use crate::training::{copy, metrics};

/// The replies of an iteration of the run file.
const REPLIES: usize = 16;

/// A program that scores replies by the length of their text, and keeps its requests. It does `BEFORE` before
/// it answers, with `$id`, the number of the request, and `$scores`.
const PROGRAM: &str = r#"while IFS= read -r line; do
  printf '%s\n' "$line" >> "requests.$$"
  id=${line#*\"id\":}; id=${id%%[,\}]*}
  scores=; rest=$line
  while [ "$rest" != "${rest#*\"reply\":}" ]; do
    rest=${rest#*\"reply\":}; text=${rest%%\"tokens\":*}; scores="$scores,$((${#text} % 5))"
  done
  scores=${scores#,}
  BEFORE
  printf '{"id":%s,"scores":[%s]}\n' "$id" "$scores"
done
"#;

/// A scratch folder whose run file has one reward, by this program. `keys` are further ones of the entry.
fn with_program(before_answer: &str, keys: &str) -> Scratch {
    let scratch = with_run_file();
    write_program(&scratch, before_answer);
    let command = format!("command = ['/bin/sh', '{}']", scratch.path("score.sh").display());
    write_reward(&scratch, &format!("kind = 'command'\nname = 'own'\n{command}\n{keys}\n"));
    scratch
}

fn write_program(scratch: &Scratch, before_answer: &str) {
    scratch.write("score.sh", &PROGRAM.replace("BEFORE", before_answer));
}

/// Puts an entry in the place of the rewards of the run file.
fn write_reward(scratch: &Scratch, entry: &str) {
    let text = scratch.read("run.toml");
    let (before, _) = text.split_once("[[reward]]").unwrap();
    scratch.write("run.toml", &format!("{before}[[reward]]\n{entry}"));
}

/// The replies that the programs were asked about, each with the turns before it. Sorted.
fn asked(scratch: &Scratch) -> Vec<String> {
    let files = scratch.names().into_iter().filter(|name| name.starts_with("requests."));
    let requests: String = files.map(|name| scratch.read(&name)).collect();
    replies_of(requests.lines().map(|line| serde_json::from_str(line).unwrap()))
}

/// The replies of requests, each with the turns before it. Sorted.
fn replies_of(requests: impl Iterator<Item = Value>) -> Vec<String> {
    let of = |request: Value| request["replies"].as_array().unwrap().clone();
    let text = |reply: Value| json!([reply["prompt"], reply["reply"]]).to_string();
    let mut replies: Vec<String> = requests.flat_map(of).map(text).collect();
    replies.sort();
    replies
}

fn forget_requests(scratch: &Scratch) {
    for name in scratch.names().iter().filter(|name| name.starts_with("requests.")) {
        std::fs::remove_file(scratch.path(name)).unwrap();
    }
}

/// The programs of a scratch folder that run.
fn programs(scratch: &Scratch) -> Vec<u32> {
    let path = scratch.path("score.sh").display().to_string();
    let is_program = |process: &u32| {
        let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(&path) && is_running(*process)
    };
    let processes = std::fs::read_dir("/proc").unwrap();
    processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(is_program).collect()
}

/// Waits until none of these processes runs.
#[track_caller]
fn wait_for_end(processes: &[u32]) {
    let started = Instant::now();
    while processes.iter().any(|process| is_running(*process)) {
        assert!(started.elapsed() < Duration::from_secs(20), "one of {processes:?} is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The run went on to its end, learned from what had scores, and these shares of its rollouts had none.
#[track_caller]
fn goes_on(scratch: &Scratch, outcome: &Outcome, out: &str, shares: &[f64]) {
    outcome.succeeds();
    assert_eq!(column(scratch, out, "rewards/own/failed"), shares, "{outcome:#?}");
    assert_eq!(column(scratch, out, "monitor/excluded"), shares, "{outcome:#?}");
    let is_told = outcome.stderr.contains("warning: a reply has no score: ");
    assert_eq!(is_told, shares.iter().any(|&share| share > 0.0), "{outcome:#?}");
    assert!(column(scratch, out, "grad_norm").iter().all(|&norm| norm > 0.0));
    assert!(scratch.path(&format!("{out}/final/model.safetensors")).exists());
}

/// The first request has no replies, and a rollout is four batches: the third request is the second batch.
const THIRD: &str = "[ \"$id\" != 3 ] || ";

#[test]
fn a_program_that_fails_costs_the_replies_of_one_request() {
    let scratch = with_program("", "batch_size = 4\ntimeout = 20");
    for (number, (failure, lost, said)) in [
        ("exit 3", 4.0, "exit status: 3"),
        ("kill -9 $$", 4.0, "signal: 9"),
        (r#"{ printf '{"id":3,"sco'; exit 0; }"#, 4.0, "which is no answer"),
        ("{ echo hello; continue; }", 4.0, "hello"),
        (r#"{ printf '{"id":3,"scores":[NaN,1,1,1]}\n'; continue; }"#, 4.0, "NaN"),
        (r#"{ printf '{"id":3,"scores":[1e999,1,1,1]}\n'; continue; }"#, 4.0, "1e999"),
        (r#"{ printf '{"id":3,"error":"no licence"}\n'; continue; }"#, 4.0, "no licence"),
        ("scores=${scores#*,}", 4.0, "3 scores for 4 replies"),
        ("id=77", 4.0, "77"),
        // One score of the four.
        ("scores=null${scores#?}", 1.0, "no score"),
        (r#"scores='"one"'${scores#?}"#, 1.0, "one"),
    ]
    .into_iter()
    .enumerate()
    {
        write_program(&scratch, &format!("{THIRD}{failure}"));
        let out = format!("out-{number}");
        let outcome = scratch.run(&line("grpo", &out, "--set ppo.iterations=2"));
        goes_on(&scratch, &outcome, &out, &[lost / REPLIES as f64, 0.0]);
        assert!(outcome.stderr.contains(said), "{said} is not in {outcome:#?}");
        // No reply is asked about again.
        assert_eq!(asked(&scratch).len(), 2 * REPLIES, "{failure}");
        assert_eq!(programs(&scratch).len(), 0, "{failure}");
        forget_requests(&scratch);
    }
}

#[test]
fn a_program_that_hangs_is_ended_at_its_limit() {
    let scratch = with_program(&format!("{THIRD}sleep 1000"), "batch_size = 4\ntimeout = 2");
    for (processes, share) in [(1, 0.25), (2, 0.5)] {
        // On two processes, each program has a third request.
        let out = format!("out-{processes}");
        let settings = format!("--nproc {processes} --set ppo.iterations=2");
        let outcome = scratch.run(&line("grpo", &out, &settings));
        goes_on(&scratch, &outcome, &out, &[share, 0.0]);
        assert!(outcome.stderr.contains("no score within 2 s"), "{outcome:#?}");
        assert_eq!(programs(&scratch).len(), 0);
    }
}

#[test]
fn a_verifier_that_is_held_out_and_fails_excludes_nobody() {
    let scratch = with_program(&format!("{THIRD}exit 1"), "batch_size = 4\nweight = 0");
    let text = scratch.read("run.toml");
    scratch.write("run.toml", &format!("{text}\n[[reward]]\nkind = 'repetition'\nngram = 1\n"));
    scratch.run(&line("grpo", "out", "--set ppo.iterations=2")).succeeds();
    assert_eq!(column(&scratch, "out", "rewards/own/failed"), [0.25, 0.0]);
    assert_eq!(column(&scratch, "out", "monitor/excluded"), [0.0, 0.0]);
}

#[test]
fn programs_of_several_processes_are_asked_once_about_each_reply() {
    let scratch = with_program("", "batch_size = 3\nconcurrency = 2");
    scratch.run(&line("grpo", "alone", "")).succeeds();
    let alone = asked(&scratch);
    assert_eq!(alone.len(), 3 * REPLIES);
    for (number, (mesh, requests)) in [
        ("--nproc 2", 4),
        // The ranks of a model have one scorer.
        ("--nproc 2 --set parallel.tensor.size=2", 2),
        ("--nproc 2 --set parallel.pipeline.size=2", 2),
        ("--nproc 2 --set parallel.sequence.mode='ulysses' --set parallel.sequence.size=2", 4),
    ]
    .into_iter()
    .enumerate()
    {
        forget_requests(&scratch);
        let out = format!("mesh-{number}");
        scratch.run(&line("grpo", &out, mesh)).succeeds();
        nearly_equal(&scratch, "alone", &out);
        assert_eq!(asked(&scratch), alone, "{mesh}");
        let files = scratch.names().into_iter().filter(|name| name.starts_with("requests."));
        assert_eq!(files.count(), requests, "{mesh}");
        assert_eq!(metrics(&scratch, &out).len(), 3, "{mesh}");
    }
}

#[test]
fn the_scores_of_a_rollout_that_was_drawn_ahead_are_kept() {
    let scratch = with_program("", "normalize = 'running'");
    let settings = "--set ppo.staleness=1 --set ppo.iterations=4";
    scratch.run(&line("grpo", "whole", settings)).succeeds();
    assert_eq!(asked(&scratch).len(), 4 * REPLIES);
    copy(&scratch.path("whole"), &scratch.path("resumed"));
    back_to_step(&scratch, "resumed", 2, 4);
    forget_requests(&scratch);
    scratch.run(&line("grpo", "resumed", &format!("{settings} --resume"))).succeeds();
    // The checkpoint has the third rollout.
    assert_eq!(asked(&scratch).len(), REPLIES);
    same_bits(&scratch, "resumed", "whole");
}

#[test]
fn no_program_is_left_of_a_run_that_is_killed_or_interrupted() {
    // What a program has started ends with it.
    let scratch = with_program("[ \"$helper\" ] || { sleep 98765 & helper=$!; }; sleep 0.05", "");
    let is_helper = |process: &&u32| {
        std::fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|words| words == b"sleep\x0098765\0")
    };
    for (name, code) in [("KILL", None), ("INT", Some(130))] {
        for processes in [1, 2] {
            let out = format!("{name}-{processes}");
            let words = line("grpo", &out, &format!("--nproc {processes} --set ppo.iterations=1000"));
            let mut child = scratch.command(&words.split(' ').collect::<Vec<_>>()).spawn().unwrap();
            scratch.wait_for_rows(&format!("{out}/metrics.jsonl"), 2);
            let started = descendants(child.id());
            // A shell that has just forked for a command looks like another one.
            assert!(programs(&scratch).len() >= processes, "{started:?}");
            assert_eq!(started.iter().filter(is_helper).count(), processes, "{started:?}");
            signal(name, child.id());
            assert_eq!(child.wait().unwrap().code(), code);
            wait_for_end(&started);
            wait_for_end(&programs(&scratch));
        }
    }
}

/// What a server does with a request.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Scores the replies.
    Score,
    /// Answers with this status, and headers behind it.
    Refuse(&'static str),
    /// Answers with this body.
    Say(&'static str),
    /// Closes the connection.
    Close,
    /// Waits until the client closes the connection.
    Hang,
}

/// A server that scores replies by the length of their text.
struct ScoreServer {
    url: String,
    seen: Arc<Mutex<Seen>>,
}

/// The requests about replies.
#[derive(Default)]
struct Seen {
    /// All of them, in their order.
    all: Vec<Value>,
    /// Those whose replies have got scores.
    scored: Vec<Value>,
}

impl ScoreServer {
    /// Starts a server. `act` says what it does with a request: those about replies have numbers from 1 on,
    /// and those about none the number 0.
    fn start(act: impl Fn(usize) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/score", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (act, of_server) = (Arc::new(act), Arc::clone(&seen));
        std::thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let (act, seen) = (Arc::clone(&act), Arc::clone(&of_server));
                std::thread::spawn(move || answer(&connection, &seen, &*act));
            }
        });
        Self { url, seen }
    }

    /// A scratch folder whose run file has one reward, by this server.
    fn scratch(&self) -> Scratch {
        let scratch = with_run_file();
        let keys = "batch_size = 4\nconcurrency = 1\ntimeout = 3\n";
        write_reward(&scratch, &format!("kind = 'http'\nname = 'own'\nurl = '{}'\n{keys}", self.url));
        scratch
    }

    fn all(&self) -> Vec<Value> {
        self.seen.lock().unwrap().all.clone()
    }

    /// The replies that have got scores, each with the turns before it. Sorted.
    fn scored(&self) -> Vec<String> {
        replies_of(self.seen.lock().unwrap().scored.iter().cloned())
    }
}

fn answer(connection: &TcpStream, seen: &Mutex<Seen>, act: &dyn Fn(usize) -> Act) {
    let Some(request) = receive(connection) else { return };
    let replies = request["replies"].as_array().unwrap().clone();
    let number = {
        let mut seen = seen.lock().unwrap();
        if !replies.is_empty() {
            seen.all.push(request.clone());
        }
        if replies.is_empty() { 0 } else { seen.all.len() }
    };
    match act(number) {
        Act::Score => {
            let score = |reply: &Value| reply["reply"].as_str().unwrap().len() % 5;
            let scores: Vec<usize> = replies.iter().map(score).collect();
            seen.lock().unwrap().scored.push(request);
            send(connection, "200 OK", &json!({"scores": scores}).to_string());
        }
        Act::Refuse(status) => send(connection, status, "not now"),
        Act::Say(body) => send(connection, "200 OK", body),
        Act::Close => {}
        Act::Hang => {
            let mut connection = connection;
            while connection.read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
        }
    }
}

fn receive(connection: &TcpStream) -> Option<Value> {
    let mut reader = BufReader::new(connection);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let lower = head.to_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    serde_json::from_slice(&body).ok()
}

fn send(mut connection: &TcpStream, status: &str, body: &str) {
    let length = body.len();
    // The client may have closed the connection.
    let _ = write!(connection, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
}

#[test]
fn a_server_that_fails_costs_the_replies_of_one_request() {
    for (act, lost, is_sent_again) in [
        // The server has not taken the request.
        (Act::Refuse("429 Too Many Requests\r\nRetry-After: 1"), 0.0, true),
        (Act::Refuse("503 Service Unavailable"), 0.0, true),
        // The pause is longer than the limit of a request.
        (Act::Refuse("429 Too Many Requests\r\nRetry-After: 100"), 4.0, false),
        (Act::Refuse("500 Internal Server Error"), 4.0, false),
        (Act::Refuse("302 Found\r\nLocation: http://127.0.0.1:1/"), 4.0, false),
        (Act::Say("hello"), 4.0, false),
        (Act::Say(r#"{"scores": [1, 2]}"#), 4.0, false),
        (Act::Say(r#"{"scores": [NaN, 1, 1, 1]}"#), 4.0, false),
        (Act::Say(r#"{"error": "no licence"}"#), 4.0, false),
        (Act::Say(r#"{"scores": [null, 1, 3, "2"]}"#), 2.0, false),
        (Act::Close, 4.0, false),
        (Act::Hang, 4.0, false),
    ] {
        let server = ScoreServer::start(move |number| if number == 2 { act } else { Act::Score });
        let scratch = server.scratch();
        let outcome = scratch.run(&line("grpo", "out", "--set ppo.iterations=2"));
        goes_on(&scratch, &outcome, "out", &[lost / REPLIES as f64, 0.0]);

        // Eight batches, and no reply is scored twice.
        let all = server.all();
        assert_eq!(all.len(), 8 + usize::from(is_sent_again), "{act:?}");
        assert_eq!(all[1] == all[2], is_sent_again, "{act:?}");
        let scored = 2 * REPLIES - if is_sent_again { 0 } else { 4 };
        assert_eq!(server.scored().len(), scored, "{act:?}");
    }
}

#[test]
fn several_processes_know_of_a_failure_that_one_of_them_had() {
    let scored = |act: Act, mesh: &str, share: f64| {
        let server = ScoreServer::start(move |number| if number == 2 { act } else { Act::Score });
        let scratch = server.scratch();
        // Copies of the model that had learned different things would end the run.
        let outcome = scratch.run(&line("grpo", "out", &format!("{mesh} --set ppo.iterations=2")));
        goes_on(&scratch, &outcome, "out", &[share, 0.0]);
        server.scored()
    };
    let refused = Act::Refuse("429 Too Many Requests\r\nRetry-After: 0");
    let alone = scored(refused, "", 0.0);
    assert_eq!(alone.len(), 2 * REPLIES);
    for mesh in ["--nproc 2", "--nproc 2 --set parallel.zero=3"] {
        assert_eq!(scored(refused, mesh, 0.0), alone);
        assert_eq!(scored(Act::Refuse("500 Oops"), mesh, 0.25).len(), 2 * REPLIES - 4);
    }
}

#[test]
fn a_run_without_any_reward_ends_and_saves_no_model() {
    // All restarts are used up, and later requests reach no program.
    let scratch = with_program("[ \"$id\" = 1 ] || exit 3", "batch_size = 4");
    let settings = "--set ppo.iterations=9";
    let outcome = scratch.run(&line("grpo", "out", settings));
    outcome
        .fails(1, &["no reply of the last 3 iterations can be learned from", "exit status: 3", "[[reward]]"]);
    let error = outcome.stderr.lines().find(|line| line.starts_with("error: ")).unwrap();
    assert!(!error.contains("warning"), "{error}");
    assert!(!scratch.path("out/final").exists());
    assert_eq!(column(&scratch, "out", "rewards/own/failed"), [1.0, 1.0]);
    assert!(metrics(&scratch, "out").iter().all(|row| row["objective/scores"].is_null()));
    // Nothing was learned.
    let model = |folder: &str| scratch.path(&format!("{folder}/model.safetensors"));
    assert_eq!(worst(&model("life/sft/final"), &model("out/checkpoints/step-2")), 0.0);

    let outcome = scratch.run(&line("grpo", "two", &format!("{settings} --nproc 2")));
    assert_eq!(outcome.code, 1, "{outcome:#?}");
    assert!(outcome.stderr.contains("no reply of the last 3 iterations can be learned from"), "{outcome:#?}");
    assert!(!scratch.path("two/final").exists());
    assert_eq!(programs(&scratch).len(), 0);
}

#[test]
fn what_cannot_score_is_refused_before_the_first_step() {
    let scratch = with_run_file();
    scratch.write("half.jsonl", "{\"prompt\": \"1 + 1\"}\n{\"prompt\": \"2 + 2\", \"answer\": \"4\"}\n");
    let address = format!("{{kind='http',url='http://127.0.0.1:{}/x'}}", free_port());
    for (reward, more, code, words) in [
        ("{kind='command',command=['/no/such/program']}", "", 2, ["/no/such/program", "PATH"]),
        ("{kind='command',command=['true']}", "", 2, ["`reward \"command\".command`", "exit status: 0"]),
        ("{kind='command',command=['echo','hello']}", "", 2, ["hello", "one JSON object a line"]),
        (&address, "", 2, ["nothing listens there", "start the server"]),
        (
            "{kind='command',comand=['true']}",
            "",
            2,
            ["unknown key `reward[0].comand`", "`reward[0].command`"],
        ),
        ("{kind='verifier'}", "", 2, ["`reward[0].kind` is \"verifier\"", "command, http"]),
        ("{kind='regex',pattern='('}", "", 2, ["`reward[0].pattern`", "parenthesis"]),
        ("{kind='exact'}", "--set data.train=half.jsonl", 2, ["1 of 2 rows", "column `answer`"]),
        ("{kind='ifeval'}", "", 2, ["`reward.ifeval`: cannot read", "is no JSON list of instructions"]),
        ("{kind='model',model='life/sft/final'}", "", 3, ["life/sft/final", "not a reward model"]),
        // Programs that a model writes run only if that is allowed.
        ("{kind='code',program='{{reply}}'}", "", 2, ["\"code\"", "allow_code_execution"]),
    ] {
        let outcome = scratch.run(&line("grpo", "no", &format!("--set reward=[{reward}] {more}")));
        outcome.fails(code, &words);
        assert!(!scratch.path("no").exists(), "{reward}");
    }
    // The same on two processes, whose logs are in the folder of the run.
    for reward in ["{kind='command',command=['/no/such/program']}", &address] {
        let outcome = scratch.run(&line("grpo", "two", &format!("--set reward=[{reward}] --nproc 2")));
        assert_eq!(outcome.code, 2, "{outcome:#?}");
        assert!(outcome.stderr.contains("gives no answer"), "{outcome:#?}");
        let left = names(&scratch.path("two"));
        assert!(!left.iter().any(|name| name == "metrics.jsonl" || name == "checkpoints"), "{left:?}");
    }
}

#[test]
fn a_server_that_does_not_score_is_refused_before_the_first_step() {
    for (act, words) in [
        (Act::Refuse("404 Not Found"), ["404", "not now"]),
        (Act::Say("{}"), ["without `scores`", "{\"scores\": []}"]),
        (Act::Say("hello"), ["hello", "url"]),
        (Act::Close, ["the connection ended", "url"]),
    ] {
        let server = ScoreServer::start(move |_| act);
        let scratch = server.scratch();
        let outcome = scratch.run(&line("grpo", "no", ""));
        outcome.fails(2, &words);
        assert!(server.all().is_empty() && !scratch.path("no").exists(), "{act:?}");
    }
}

/// Plumbing alone: a model of 260 thousand parameters solves none of these problems.
#[test]
fn problems_of_gsm8k_are_rows_with_verifier_rewards() {
    let shared = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared"));
    let [problems, model] =
        ["data/eval/gsm8k_train.jsonl.gz", "models/stories260k"].map(|name| shared.join(name));
    let [Ok(problems), Ok(model)] = [problems, model].map(|path| path.canonicalize()) else {
        eprintln!("skipped: there is no shared/data and shared/models beside the repository");
        return;
    };
    let scratch = Scratch::new();
    let problems = problems.display().to_string();
    let convert = ["data", "convert", &problems, "--map", "prompt=question", "--output", "rows.parquet"];
    scratch.run_with(&convert, "").succeeds();
    // The solution of a row ends with its number, after `####`.
    scratch.write(
        "run.toml",
        &format!(
            "out = 'run'\nmodel.path = '{}'\ntokenizer.template = 'plain'\ndata.train = 'rows.parquet'\n\
             data.limit = 100\ndata.max_length = 400\n[[reward]]\nkind = 'numeric'\n[[reward]]\nkind = 'regex'\n\
             pattern = 'he'\nweight = 0.1\n[ppo]\niterations = 2\nrollout_batch_size = 4\nsamples_per_prompt = 4\n\
             mini_batch_size = 16\nmax_new_tokens = 24\n",
            model.display()
        ),
    );
    scratch.run("grpo --config run.toml").succeeds();
    for (name, bounds) in [
        ("rewards/numeric/failed", 0.0..=0.0),
        ("rewards/numeric/mean", 0.0..=0.2),
        ("rewards/regex/mean", 0.05..=0.95),
        ("monitor/excluded", 0.0..=0.0),
        ("grad_norm", 1e-6..=1e6),
    ] {
        let numbers = column(&scratch, "run", name);
        assert!(
            numbers.len() == 2 && numbers.iter().all(|number| bounds.contains(number)),
            "{name}: {numbers:?}"
        );
    }
    let samples = scratch.read("run/samples.jsonl");
    let first: Value = serde_json::from_str(samples.lines().next().unwrap()).unwrap();
    assert!(first["prompt"].as_str().unwrap().ends_with("?\n\nAssistant:"), "{first}");
}
