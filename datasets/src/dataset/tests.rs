//! From files to training rows, and what becomes of the others.

use std::fs;

use super::load::fit;
use super::*;
use crate::conversation::Message;
use crate::rows::IGNORE_INDEX;
use crate::tokenizer::tests::small;

fn options(max_length: usize, on_overlong: Overlong) -> LoadOptions {
    LoadOptions::new(max_length, on_overlong)
}

fn write(content: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.jsonl");
    fs::write(&path, content).unwrap();
    (folder, path.to_str().unwrap().to_owned())
}

#[test]
fn long_rows_are_cut_or_dropped_and_counted() {
    // Labels count from position 1: the second row has none left when cut to 4.
    let (_folder, path) = write(
        "{\"input_ids\": [5, 6, 7], \"labels\": [-100, -100, 7]}\n\
         {\"input_ids\": [5, 6, 7, 8, 9], \"labels\": [5, -100, -100, -100, 9]}\n\
         {\"input_ids\": [5, 6, 7, 8, 9], \"labels\": [-100, 6, -100, -100, 9]}\n\
         {\"input_ids\": [5, 6], \"labels\": [5, -100]}\n",
    );
    let load =
        |on_overlong| EncodedDataset::<SftRow>::load(&[&path], &small(), &options(4, on_overlong)).unwrap();
    let cut = load(Overlong::Truncate);
    let wanted = Counts { read: 4, kept: 2, truncated: 1, dropped_overlong: 0, dropped_empty: 2, skipped: 0 };
    assert_eq!(cut.counts, wanted);
    assert_eq!(cut.lengths(), [3, 4]);
    assert_eq!(cut.rows[1].labels, [IGNORE_INDEX, 6, IGNORE_INDEX, IGNORE_INDEX]);
    assert_eq!(cut.layouts(), [Layout::Tokens]);
    let dropped = load(Overlong::Drop);
    assert_eq!(
        dropped.counts,
        Counts { read: 4, kept: 1, truncated: 0, dropped_overlong: 2, dropped_empty: 1, skipped: 0 }
    );
}

#[test]
fn pairs_never_lose_a_whole_answer() {
    let (_folder, path) = write(
        "{\"chosen_input_ids\": [5, 6, 7, 8, 9], \"rejected_input_ids\": [5, 6, 8], \"prompt_length\": 2}\n\
         {\"chosen_input_ids\": [5, 6, 7, 8, 9], \"rejected_input_ids\": [5, 6, 7, 8, 3], \"prompt_length\": 4}\n",
    );
    let rows =
        EncodedDataset::<PreferenceRow>::load(&[&path], &small(), &options(4, Overlong::Truncate)).unwrap();
    assert_eq!(
        rows.counts,
        Counts { read: 2, kept: 1, truncated: 1, dropped_overlong: 0, dropped_empty: 1, skipped: 0 }
    );
    assert_eq!((&rows.rows[0].chosen[..], &rows.rows[0].rejected[..]), (&[5, 6, 7, 8][..], &[5, 6, 8][..]));
}

#[test]
fn long_prompts_are_dropped() {
    let (_folder, path) =
        write("{\"prompt\": \"1\", \"answer\": 3}\n{\"prompt\": \"12345678901234567890\"}\n");
    let tokenizer = small();
    let rows =
        EncodedDataset::<PromptRow>::load(&[&path], &tokenizer, &options(25, Overlong::Truncate)).unwrap();
    assert_eq!(
        rows.counts,
        Counts { read: 2, kept: 1, truncated: 0, dropped_overlong: 1, dropped_empty: 0, skipped: 0 }
    );
    assert_eq!(rows.rows[0].answer.as_deref(), Some("3"));
    let text = tokenizer.decode(&rows.rows[0].input_ids, false).unwrap();
    assert_eq!(text, "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn rows_keep_their_order_on_any_number_of_threads() {
    let lines: Vec<String> = (0..9000).map(|number| format!("{{\"text\": \"{number}\"}}\n")).collect();
    let (_folder, path) = write(&lines.concat());
    let tokenizer = small();
    let rows = EncodedDataset::<SftRow>::load(&[&path], &tokenizer, &options(64, Overlong::Drop)).unwrap();
    assert_eq!(rows.len(), 9000);
    for (number, row) in rows.rows.iter().enumerate() {
        assert_eq!(tokenizer.decode(&row.input_ids, true).unwrap(), number.to_string());
    }
}

#[test]
fn errors_inside_a_row_name_the_row() {
    let good = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n";
    let bad = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n";
    let (_folder, path) = write(&[good, good, bad].concat());
    let error = EncodedDataset::<SftRow>::load(&[&path], &small(), &options(64, Overlong::Drop)).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("x.jsonl line 3: the conversation has no assistant turn"), "{error}");
    let error =
        EncodedDataset::<PreferenceRow>::load(&[&path], &small(), &options(64, Overlong::Drop)).unwrap_err();
    assert!(error.to_string().contains("no layout of preference rows fits the columns messages"), "{error}");
}

/// A conversation and texts far beyond any limit, with every kind of run that a tokenizer may look far ahead
/// in.
fn long_sources() -> Vec<Demonstration> {
    let words = "the quick brown fox, 12345 jumps over.\n\nthe lazy dog 中文很好 😀 ".repeat(6000);
    let runs = format!("{}{}{}", "a".repeat(150_000), " ".repeat(150_000), "=-".repeat(80_000));
    let turns = |first: &str, answer: &str| {
        vec![
            Message::user("q"),
            Message::assistant("short"),
            Message::user(first),
            Message::assistant(answer),
            Message::user("r"),
            Message::assistant("end"),
        ]
    };
    vec![
        Demonstration::Text(words.clone()),
        Demonstration::Text(runs.clone()),
        Demonstration::without_tools(turns("b", &words)),
        Demonstration::without_tools(turns(&words, "b")),
        Demonstration::without_tools(turns(&runs, &words)),
        Demonstration::PromptCompletion {
            prompt: vec![Message::user(words.clone())],
            completion: vec![Message::assistant("a")],
            tools: None,
        },
        Demonstration::PromptCompletion {
            prompt: vec![Message::user("q")],
            completion: vec![Message::assistant(runs)],
            tools: None,
        },
    ]
}

#[test]
fn the_head_of_a_long_row_is_the_head_of_all_of_it() {
    let tokenizer = small();
    for (number, source) in long_sources().iter().enumerate() {
        let all = tokenizer.encode_demonstration(source).unwrap();
        for limit in [3, 40, 1025] {
            let head = SftRow::encode(&tokenizer, source, limit).unwrap();
            assert!(!head.whole && head.row.input_ids.len() < all.input_ids.len() / 4, "source {number}");
            assert_eq!(head.row.input_ids[..limit], all.input_ids[..limit], "source {number}");
            assert_eq!(head.row.labels[..limit], all.labels[..limit], "source {number}");
            for on_overlong in [Overlong::Drop, Overlong::Truncate] {
                let options = options(limit - 1, on_overlong);
                let whole = TokenPrefix { row: all.clone(), whole: true };
                let head = SftRow::encode(&tokenizer, source, limit).unwrap();
                assert_eq!(fit(head, source, &options), fit(whole, source, &options), "source {number}");
            }
        }
    }
}

#[test]
fn long_pairs_are_cut_as_if_they_had_been_tokenized_whole() {
    let tokenizer = small();
    let words = "one two three four. ".repeat(30_000);
    let pair = |prompt: &str, chosen: &str, rejected: &str| Preference::Messages {
        prompt: vec![Message::user(prompt)],
        chosen: vec![Message::assistant(chosen)],
        rejected: vec![Message::assistant(rejected)],
        tools: None,
        margin: None,
    };
    let sources = [
        pair("q", &words, "short"),
        pair("q", "short", &words),
        pair("q", &words, &format!("{words}!")),
        pair("q", &words, &words),
        pair(&words, "a", "b"),
    ];
    for (number, source) in sources.iter().enumerate() {
        let all = tokenizer.encode_preference(source).unwrap();
        for on_overlong in [Overlong::Drop, Overlong::Truncate] {
            let options = options(100, on_overlong);
            let head = PreferenceRow::encode(&tokenizer, source, 101).unwrap();
            assert!(!head.whole);
            let whole = TokenPrefix { row: all.clone(), whole: true };
            assert_eq!(fit(head, source, &options), fit(whole, source, &options), "pair {number}");
        }
    }
}

#[test]
fn turns_of_weight_0_are_read_and_not_learned() {
    let (_folder, path) = write(
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\", \"weight\": 0}, \
         {\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"c\"}]}\n",
    );
    let tokenizer = small();
    let rows = EncodedDataset::<SftRow>::load(&[&path], &tokenizer, &options(64, Overlong::Drop)).unwrap();
    let learned: Vec<i64> =
        rows.rows[0].labels.iter().copied().filter(|&label| label != IGNORE_INDEX).collect();
    assert_eq!(tokenizer.decode(&learned, false).unwrap(), "c<|im_end|>");
}

#[test]
fn the_first_rows_alone() {
    let lines: Vec<String> = (0..1000).map(|number| format!("{{\"text\": \"{number}\"}}\n")).collect();
    let (_folder, path) = write(&lines.concat());
    let options = LoadOptions { limit: Some(3), ..options(64, Overlong::Drop) };
    let rows = EncodedDataset::<SftRow>::load(&[&path, &path], &small(), &options).unwrap();
    assert_eq!((rows.len(), rows.counts.read), (3, 3));
}

#[test]
fn the_cache_gives_back_what_was_made_and_notices_every_change() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache { folder: folder.path().join("cache"), least_bytes: 1 };
    let (_data, path) = write("{\"text\": \"one\", \"note\": 1}\n{\"text\": \"two\"}\n");
    let mut tokenizer = small();
    let mut options = LoadOptions { cache: Some(cache), ..options(64, Overlong::Drop) };
    let load = |tokenizer: &Tokenizer, options: &LoadOptions| {
        EncodedDataset::<SftRow>::load(&[&path], tokenizer, options).unwrap()
    };
    let made = load(&tokenizer, &options);
    let CacheUse::Written(file) = made.cache.clone() else { panic!("{:?}", made.cache) };
    let read = load(&tokenizer, &options);
    assert_eq!(read.cache, CacheUse::Read(file.clone()));
    assert_eq!((read.rows, read.counts, read.files), (made.rows.clone(), made.counts, made.files));
    // Nothing temporary and no lock stays behind.
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    let whole = fs::read(&file).unwrap();
    for place in [0, 25, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[place] ^= 1;
        fs::write(&file, damaged).unwrap();
        let mended = load(&tokenizer, &options);
        assert_eq!((mended.rows, mended.cache), (made.rows.clone(), CacheUse::Rebuilt(file.clone())));
        assert_eq!(fs::read(&file).unwrap(), whole);
    }
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(load(&tokenizer, &options).cache, CacheUse::Rebuilt(file.clone()));
    let written =
        |dataset: EncodedDataset<SftRow>| matches!(dataset.cache, CacheUse::Written(new) if new != file);
    options.max_length = 63;
    assert!(written(load(&tokenizer, &options)));
    options.max_length = 64;
    options.reading.drop = vec!["note".to_owned()];
    assert!(written(load(&tokenizer, &options)));
    options.reading.drop = Vec::new();
    tokenizer.set_built_in_template("plain").unwrap();
    assert!(written(load(&tokenizer, &options)));
    fs::write(&path, "{\"text\": \"one\"}\n{\"text\": \"three\"}\n").unwrap();
    assert!(written(load(&small(), &options)));
}

#[test]
fn a_cache_file_or_lock_that_is_a_link_or_a_pipe_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache { folder: folder.path().join("cache"), least_bytes: 1 };
    let (_data, path) = write("{\"text\": \"one\"}\n");
    let options = LoadOptions { cache: Some(cache), ..options(64, Overlong::Drop) };
    let load = || EncodedDataset::<SftRow>::load(&[&path], &small(), &options).unwrap();
    let CacheUse::Written(rows) = load().cache else { panic!("it is new") };
    let mine = folder.path().join("mine");
    fs::write(&mine, "mine").unwrap();
    for path in [rows.clone(), rows.with_extension("lock")] {
        let make_pipe =
            || assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let make_link = |target: &std::path::Path| std::os::unix::fs::symlink(target, &path).unwrap();
        let to_mine = || make_link(&mine);
        let to_zeros = || make_link("/dev/zero".as_ref());
        for make in [&make_pipe as &dyn Fn(), &to_mine, &to_zeros] {
            let _ = fs::remove_file(&path);
            make();
            let loaded = load();
            assert_eq!(loaded.rows.len(), 1);
            let is_refused =
                matches!(&loaded.cache, CacheUse::Failed(why) if why.contains("no regular file"));
            assert_eq!(is_refused, path == rows, "{:?}", loaded.cache);
            assert!(!fs::symlink_metadata(&path).unwrap().is_file());
        }
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(fs::read_to_string(mine).unwrap(), "mine");
}

#[test]
fn a_cache_that_cannot_be_written_does_not_stop_the_run() {
    let (_data, path) = write("{\"text\": \"one\"}\n");
    let folder = format!("{path}/below/a/file");
    let cache = Cache { folder: folder.into(), least_bytes: 0 };
    let options = LoadOptions { cache: Some(cache), ..options(64, Overlong::Drop) };
    let rows = EncodedDataset::<SftRow>::load(&[&path], &small(), &options).unwrap();
    assert!(rows.len() == 1 && matches!(rows.cache, CacheUse::Failed(_)), "{:?}", rows.cache);
}

/// Two conversations, the second of which calls a tool.
const CALLING_ROWS: &str = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]}, {"role": "tool", "content": "3"}, {"role": "assistant", "content": "It is 3."}], "tools": "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {}}}]"}
"#;

/// A tokenizer whose template renders tools and calls.
fn calling() -> Tokenizer {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../tests/golden/tools.json")).unwrap();
    let mut tokenizer = small();
    tokenizer.set_chat_template(golden["templates"]["blocks"].as_str().unwrap()).unwrap();
    tokenizer
}

#[test]
fn rows_with_tools_are_learned_and_no_template_loses_them_in_silence() {
    let (_folder, path) = write(CALLING_ROWS);
    let load = |tokenizer: &Tokenizer, drop: &[&str]| {
        let mut options = options(512, Overlong::Drop);
        options.reading.drop = drop.iter().map(|&name| name.to_owned()).collect();
        EncodedDataset::<SftRow>::load(&[&path], tokenizer, &options)
    };
    let learned = |tokenizer: &Tokenizer, row: &SftRow| {
        let ids: Vec<i64> = row.labels.iter().copied().filter(|&label| label != IGNORE_INDEX).collect();
        tokenizer.decode(&ids, false).unwrap()
    };
    let tokenizer = calling();
    let rows = load(&tokenizer, &[]).unwrap();
    let call = "<call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</call>";
    assert_eq!(learned(&tokenizer, &rows.rows[1]), format!("{call}<|im_end|>It is 3.<|im_end|>"));
    let text = tokenizer.decode(&rows.rows[1].input_ids, false).unwrap();
    assert!(text.starts_with("<|im_start|>system\nTools:\n{\"type\": \"function\""), "{text}");
    assert!(text.contains("<|im_start|>user\n<result>3</result><|im_end|>"), "{text}");

    // ChatML knows neither tools nor calls.
    let chatml = small();
    let error = load(&chatml, &[]).unwrap_err().to_string();
    assert!(
        error.contains("x.jsonl line 2: chat template of") && error.contains("tool calls of turn 2"),
        "{error}"
    );
    assert!(error.contains("--drop tool_calls, or drop = [\"tool_calls\"] in [data]"), "{error}");
    let error = load(&chatml, &["tool_calls"]).unwrap_err().to_string();
    assert!(
        error.contains("x.jsonl line 2: chat template of") && error.contains("the tools of the row"),
        "{error}"
    );
    assert!(error.contains("--drop tools, or drop = [\"tools\"] in [data]"), "{error}");
    let rows = load(&chatml, &["tools", "tool_calls"]).unwrap();
    assert_eq!(learned(&chatml, &rows.rows[1]), "It is 3.<|im_end|>");
    let text = chatml.decode(&rows.rows[1].input_ids, false).unwrap();
    assert!(text.starts_with("<|im_start|>user\na<|im_end|>\n<|im_start|>tool\n3<|im_end|>"), "{text}");
}

#[test]
fn the_cache_keeps_the_tools_and_the_calls_of_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache { folder: folder.path().join("cache"), least_bytes: 1 };
    let rows = CALLING_ROWS.replace(
        "{\"role\": \"assistant\", \"content\": \"It is 3.\"}",
        "{\"role\": \"user\", \"content\": \"so?\"}",
    );
    let (_data, path) = write(&rows);
    let mut options = LoadOptions { cache: Some(cache), ..options(512, Overlong::Drop) };
    options.reading.layout = Some(Layout::PromptMessages);
    let load = || EncodedDataset::<PromptRow>::load(&[&path], &calling(), &options).unwrap();
    let made = load();
    assert!(matches!(made.cache, CacheUse::Written(_)), "{:?}", made.cache);
    let read = load();
    assert!(matches!(read.cache, CacheUse::Read(_)), "{:?}", read.cache);
    assert_eq!(read.rows, made.rows);
    let row = &read.rows[1];
    assert_eq!(row.tools.as_ref().unwrap()[0]["function"]["name"], "add");
    assert_eq!(row.messages[1].tool_calls[0]["function"]["arguments"], serde_json::json!({"a": 1}));
    assert_eq!((row.messages.len(), read.rows[0].tools.as_ref()), (4, None));
    let conversation = crate::Conversation::with_tools(&row.messages, row.tools.as_ref());
    assert_eq!(row.input_ids, calling().encode_prompt(conversation).unwrap());
}
