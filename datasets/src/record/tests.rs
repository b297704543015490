//! Rows that are right, and what every wrong one is told.

use std::path::Path;

use serde_json::{Value, json};

use super::*;

fn at() -> RowLocation {
    RowLocation { path: "data.jsonl".into(), row: 3 }
}

fn parse<R: Record>(layout: Layout, row: impl std::borrow::Borrow<Value>) -> Result<R> {
    R::parse(layout, row.borrow().as_object().unwrap(), &at())
}

fn message<R: Record + std::fmt::Debug>(layout: Layout, row: impl std::borrow::Borrow<Value>) -> String {
    parse::<R>(layout, row).unwrap_err().to_string()
}

#[test]
fn texts_stand_for_turns() {
    let row: Preference =
        parse(Layout::Preference, json!({"prompt": "q", "chosen": "a", "rejected": "b", "margin": 2}))
            .unwrap();
    let wanted = Preference::Messages {
        prompt: vec![Message::user("q")],
        chosen: vec![Message::assistant("a")],
        rejected: vec![Message::assistant("b")],
        tools: None,
        margin: Some(2.0),
    };
    assert_eq!(row, wanted);
    let row: Demonstration = parse(
        Layout::PromptCompletion,
        json!({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "completion": "a"}),
    )
    .unwrap();
    let wanted = Demonstration::PromptCompletion {
        prompt: vec![Message::system("s"), Message::user("q")],
        completion: vec![Message::assistant("a")],
        tools: None,
    };
    assert_eq!(row, wanted);
}

#[test]
fn null_fields_of_turns_are_passed_over() {
    let turn =
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}], "tool_calls": null, "name": ""}]);
    let row: Demonstration = parse(Layout::Messages, json!({"messages": turn})).unwrap();
    assert_eq!(row, Demonstration::without_tools(vec![Message::user("a")]));
}

#[test]
fn errors_name_row_field_and_fix() {
    let turns =
        |role: &str| json!({"messages": [{"role": "user", "content": "a"}, {"role": role, "content": "b"}]});
    assert_eq!(
        message::<Demonstration>(Layout::Messages, turns("bot")),
        "data.jsonl line 3: the field messages[1].role is \"bot\", which is none of the roles system, user, assistant and \
         tool; if it is the assistant, convert the file with --map bot=assistant"
    );
    assert_eq!(
        message::<Demonstration>(Layout::Messages, json!({"messages": [{"role": "user"}]})),
        "data.jsonl line 3: the field messages[0].content is missing or null; it must be text, or a list of \
         {type: \"text\", text}"
    );
    let cases = [
        (json!({"messages": []}), "field messages has no turns"),
        (
            json!({"messages": "hello"}),
            "field messages is the text \"hello\"; it must be a list of {role, content}",
        ),
        (json!({"messages": null}), "field messages is missing or null"),
        (json!({"messages": [3]}), "field messages[0] is the number 3; it must be an object"),
    ];
    for (row, wanted) in cases {
        let error = message::<Demonstration>(Layout::Messages, row);
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn answers_are_one_assistant_turn_with_content() {
    let pair = |chosen: Value| json!({"prompt": "q", "chosen": chosen, "rejected": "b"});
    let error = message::<Preference>(Layout::Preference, pair(json!(" ")));
    assert!(error.contains("field chosen is empty"), "{error}");
    let two = json!([{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]);
    let error = message::<Preference>(Layout::Preference, pair(two));
    assert!(
        error.contains("field chosen has the turns assistant, user; it must be one assistant turn"),
        "{error}"
    );
}

#[test]
fn labels_must_be_as_many_as_ids() {
    let error = message::<Demonstration>(Layout::Tokens, json!({"input_ids": [1, 2, 3], "labels": [1, 2]}));
    assert!(error.contains("field labels has 2 entries and input_ids has 3"), "{error}");
    let error = message::<Demonstration>(Layout::Tokens, json!({"input_ids": [1, 2.5]}));
    assert!(error.contains("input_ids[1] is the number 2.5"), "{error}");
}

#[test]
fn the_prompt_of_tokenized_pairs_is_checked() {
    let pair = |length: i64| json!({"chosen_input_ids": [1, 2, 3, 4], "rejected_input_ids": [1, 2, 5], "prompt_length": length});
    let row: Preference = parse(Layout::PreferenceTokens, pair(2)).unwrap();
    assert!(matches!(row, Preference::Tokens { prompt_length: 2, .. }));
    for length in [3, -1] {
        let error = message::<Preference>(Layout::PreferenceTokens, pair(length));
        assert!(error.contains("the pair shares its first 2 ids and its sides have 4 and 3"), "{error}");
    }
}

#[test]
fn implicit_prompts_are_what_the_sides_share() {
    let side =
        |answer: &str| json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]);
    let row: Preference =
        parse(Layout::ImplicitPreference, json!({"chosen": side("a"), "rejected": side("b")})).unwrap();
    assert!(matches!(row, Preference::Messages { prompt, .. } if prompt == [Message::user("q")]));
    let error = message::<Preference>(Layout::ImplicitPreference, json!({"chosen": "x", "rejected": "y"}));
    assert!(error.contains("field prompt is missing"), "{error}");
}

#[test]
fn layouts_are_told_by_columns_or_refused() {
    let detect = |columns: &[&str]| {
        let columns: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
        Demonstration::detect(&columns, Path::new("x.parquet")).map_err(|error| error.to_string())
    };
    assert_eq!(detect(&["id", "messages"]), Ok(Layout::Messages));
    assert_eq!(detect(&["prompt", "completion", "label"]), Ok(Layout::PromptCompletion));
    let error = detect(&["text", "messages"]).unwrap_err();
    assert!(
        error.contains(
            "the columns text, messages fit more than one layout: messages (messages) or text (text);"
        ),
        "{error}"
    );
    let error = detect(&["dialogue"]).unwrap_err();
    assert!(error.contains("no layout of demonstration rows fits the columns dialogue; wanted are messages (messages) or sharegpt"), "{error}");
    let columns = ["prompt", "chosen", "rejected"].map(str::to_owned);
    assert_eq!(Preference::detect(&columns, Path::new("x")).unwrap(), Layout::Preference);
    assert!(Prompt::require(Layout::Text, &columns, Path::new("x")).is_err());
    assert!(Preference::require(Layout::PreferenceTokens, &columns, Path::new("x")).is_err());
}

#[test]
fn layouts_have_names_that_read_back() {
    for layout in Layout::ALL {
        assert_eq!(layout.name().parse::<Layout>().unwrap(), layout);
    }
    assert!("parquet".parse::<Layout>().is_err());
}
