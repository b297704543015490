//! From files to training rows, and what becomes of the others.

use std::fs;

use super::*;
use crate::rows::NO_LOSS;
use crate::tokenizer::tests::small;

fn options(max_length: usize, on_overlong: Overlong) -> LoadOptions {
    LoadOptions { layout: None, max_length, on_overlong }
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
    let wanted = Counts { read: 4, kept: 2, truncated: 1, dropped_overlong: 0, dropped_empty: 2 };
    assert_eq!(cut.counts, wanted);
    assert_eq!(cut.lengths(), [3, 4]);
    assert_eq!(cut.rows[1].labels, [NO_LOSS, 6, NO_LOSS, NO_LOSS]);
    assert_eq!(cut.layouts(), [Layout::Tokens]);
    let dropped = load(Overlong::Drop);
    assert_eq!(
        dropped.counts,
        Counts { read: 4, kept: 1, truncated: 0, dropped_overlong: 2, dropped_empty: 1 }
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
    assert_eq!(rows.counts, Counts { read: 2, kept: 1, truncated: 1, dropped_overlong: 0, dropped_empty: 1 });
    assert_eq!((&rows.rows[0].chosen[..], &rows.rows[0].rejected[..]), (&[5, 6, 7, 8][..], &[5, 6, 8][..]));
}

#[test]
fn long_prompts_are_dropped() {
    let (_folder, path) =
        write("{\"prompt\": \"1\", \"answer\": 3}\n{\"prompt\": \"12345678901234567890\"}\n");
    let tokenizer = small();
    let rows =
        EncodedDataset::<PromptRow>::load(&[&path], &tokenizer, &options(25, Overlong::Truncate)).unwrap();
    assert_eq!(rows.counts, Counts { read: 2, kept: 1, truncated: 0, dropped_overlong: 1, dropped_empty: 0 });
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
    assert!(
        error.contains("x.jsonl row 2 (counted from 0): the conversation has no assistant turn"),
        "{error}"
    );
    let error =
        EncodedDataset::<PreferenceRow>::load(&[&path], &small(), &options(64, Overlong::Drop)).unwrap_err();
    assert!(error.to_string().contains("has the columns messages, but preference rows need"), "{error}");
}
