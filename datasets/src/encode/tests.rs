//! Ids and masks of conversations under real and made templates.

use serde_json::json;

use super::*;
use crate::tokenizer::tests::{golden, list, small, stories, with_special};

fn talk() -> Vec<Message> {
    vec![
        Message::system("Be brief."),
        Message::user("What is 1 plus 2? 😀"),
        Message::assistant("The answer is 3."),
        Message::user("请问 4 加一等于几?"),
        Message::assistant("答案是 5。"),
    ]
}

/// The text of each run of tokens that the assistant speaks.
fn spoken(tokenizer: &Tokenizer, encoded: &Encoded) -> Vec<String> {
    let mut runs: Vec<Vec<i64>> = Vec::new();
    let mut before = false;
    for (&id, &speaks) in encoded.input_ids.iter().zip(&encoded.assistant_mask) {
        if speaks && !before {
            runs.push(Vec::new());
        }
        if speaks {
            runs.last_mut().unwrap().push(id);
        }
        before = speaks;
    }
    runs.iter().map(|run| tokenizer.decode(run, false).unwrap()).collect()
}

fn with_template(source: &str) -> Tokenizer {
    let mut tokenizer = small();
    tokenizer.set_chat_template(source).unwrap();
    tokenizer
}

#[test]
fn chatml_answers_end_with_their_end_of_turn() {
    let tokenizer = small();
    let encoded = tokenizer.encode_conversation(&talk()).unwrap();
    assert_eq!(spoken(&tokenizer, &encoded), ["The answer is 3.<|im_end|>", "答案是 5。<|im_end|>"]);
    // The line break behind the last end of turn is there, but not learned.
    let whole = tokenizer.decode(&encoded.input_ids, false).unwrap();
    assert!(whole.ends_with("答案是 5。<|im_end|>\n"));
    assert_eq!(encoded.assistant_mask.last(), Some(&false));
    assert_eq!(encoded.input_ids, tokenizer.encode(&whole, false).unwrap());
}

#[test]
fn masks_are_those_of_transformers() {
    let Some(folder) = stories() else { return };
    let mut tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let golden = golden();
    for marked in [true, false] {
        let source = golden["template"].as_str().unwrap().to_owned();
        // Without its markers the template must give the same mask, found by way of the prompts.
        let source = if marked {
            source
        } else {
            source.replace("{% generation %}", "").replace("{% endgeneration %}", "")
        };
        tokenizer.set_chat_template(source).unwrap();
        for case in golden["conversations"].as_array().unwrap() {
            let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
            let encoded = tokenizer.encode_conversation(&messages).unwrap();
            assert_eq!(encoded.input_ids, list(&case["ids"]));
            let mask: Vec<i64> = encoded.assistant_mask.iter().map(|&speaks| i64::from(speaks)).collect();
            assert_eq!(mask, list(&case["mask"]), "markers: {marked}");
            let prompt = tokenizer.encode_prompt(&messages[..messages.len() - 1]).unwrap();
            assert_eq!(prompt, list(&case["prompt_ids"]));
        }
    }
}

#[test]
fn other_families_have_exact_masks_too() {
    let inst = "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}\
                {% elif m.role == 'assistant' %}{{ ' ' + m.content + ' ' + eos_token }}{% else %}{{ m.content }}{% endif %}{% endfor %}";
    // This template ends every text without a generation prompt in EOS, so no turn but the last is a prefix
    // of the full text.
    let closing = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
                   {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% else %}{{ eos_token }}{% endif %}";
    // No special token ends the turn.
    let bare = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}\
                {% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";
    // The end of turn stands behind the marked block, and white space inside it.
    let outside = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}\
                   {% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}\
                   {{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    let inside = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}\
                  {% generation %}{{ m.content + '<|im_end|>\n' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>\n' }}\
                  {% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    // A thinking block opens each answer that comes last, and is left out of earlier turns.
    let thinking = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' and loop.last %}\
                    {{ '<think>\n\n</think>\n\n' }}{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}\
                    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    let cases = [
        (inst, [" The answer is 3. <|eos|>", " 答案是 5。 <|eos|>"]),
        (closing, ["The answer is 3.<|im_end|>", "答案是 5。<|im_end|>"]),
        (bare, [" The answer is 3.\n", " 答案是 5。\n"]),
        (outside, ["The answer is 3.<|im_end|>", "答案是 5。<|im_end|>"]),
        (inside, ["The answer is 3.<|im_end|>", "答案是 5。<|im_end|>"]),
        (thinking, ["The answer is 3.<|im_end|>", "<think>\n\n</think>\n\n答案是 5。<|im_end|>"]),
    ];
    for (source, wanted) in cases {
        let tokenizer = with_template(source);
        let encoded = tokenizer.encode_conversation(&talk()).unwrap();
        assert_eq!(spoken(&tokenizer, &encoded), wanted, "{source}");
    }
}

#[test]
fn plain_works_with_a_tokenizer_without_turn_tokens() {
    let Some(folder) = stories() else { return };
    let mut tokenizer = Tokenizer::from_folder(&folder).unwrap();
    assert!(matches!(tokenizer.encode_conversation(&talk()), Err(Error::NoChatTemplate { .. })));
    tokenizer.set_built_in_template("plain").unwrap();
    let encoded = tokenizer.encode_conversation(&talk()).unwrap();
    assert_eq!(spoken(&tokenizer, &encoded), ["The answer is 3.</s>", "答案是 5。</s>"]);
    assert_eq!(encoded.input_ids[..2].iter().filter(|&&id| id == 1).count(), 1);
    assert_eq!(tokenizer.stop_ids(), [2]);
}

#[test]
fn a_mask_that_cannot_be_exact_is_an_error() {
    // The generation prompt opens a thought that the conversation does not have.
    let forced = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
                  {% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>' }}{% endif %}";
    let error = with_template(forced).encode_conversation(&talk()).unwrap_err();
    assert!(matches!(error, Error::NotAPrefix { turn: 2, .. }), "{error}");
    assert!(error.to_string().contains("\"<think>\""), "{error}");
    // The template ignores add_generation_prompt: the header would be learned.
    let ignoring = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}";
    let error = with_template(ignoring).encode_conversation(&talk()).unwrap_err();
    assert!(error.to_string().contains("does not open the turn"), "{error}");
    // One block for two answers.
    let single = "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}";
    let error = with_template(single).encode_conversation(&talk()).unwrap_err();
    assert!(matches!(error, Error::GenerationBlocks { marked: 1, turns: 2, .. }), "{error}");
    let error = small().encode_conversation(&[Message::user("a")]).unwrap_err();
    assert!(matches!(error, Error::NoAssistantTurn));
}

#[test]
fn a_token_that_crosses_into_the_answer_is_an_error() {
    // The prompt ends in a space, which the tokenizer joins with the first word of the answer.
    let crossing = "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}\
                    {% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
    let error = with_template(crossing).encode_conversation(&talk()).unwrap_err();
    assert!(error.to_string().contains("a token crosses"), "{error}");
}

#[test]
fn only_the_completion_is_learned() {
    let tokenizer = small();
    let talk = talk();
    let (prompt, completion) = (talk[..3].to_vec(), talk[3..].to_vec());
    let row = Demonstration::PromptCompletion { prompt, completion, tools: None };
    let row = tokenizer.encode_demonstration(&row).unwrap();
    let learned: Vec<i64> = row.labels.iter().copied().filter(|&label| label != IGNORE_INDEX).collect();
    assert_eq!(tokenizer.decode(&learned, false).unwrap(), "答案是 5。<|im_end|>");
}

#[test]
fn text_gets_bos_and_eos_once() {
    let tokenizer = small();
    let row = tokenizer.encode_demonstration(&Demonstration::Text("hi".to_owned())).unwrap();
    assert_eq!(tokenizer.decode(&row.input_ids, false).unwrap(), "<|bos|>hi<|eos|>");
    assert_eq!(row.labels, row.input_ids);
    let again = tokenizer.encode_demonstration(&Demonstration::Text("<|bos|>hi<|eos|>".to_owned())).unwrap();
    assert_eq!(again, row);
}

#[test]
fn both_sides_of_a_pair_begin_with_the_prompt() {
    let tokenizer = small();
    let prompt = vec![Message::user("What is 1 plus 2?")];
    let row = tokenizer
        .encode_preference(&Preference::Messages {
            prompt: prompt.clone(),
            chosen: vec![Message::assistant("3")],
            rejected: vec![Message::assistant("The answer is 4")],
            tools: None,
            margin: Some(0.5),
        })
        .unwrap();
    let ids = tokenizer.encode_prompt(&prompt).unwrap();
    assert_eq!(row.prompt_length, ids.len());
    assert!(row.chosen.starts_with(&ids) && row.rejected.starts_with(&ids));
    assert_eq!(tokenizer.decode(&row.chosen[ids.len()..], false).unwrap(), "3<|im_end|>");
    assert_eq!(tokenizer.decode(&row.rejected[ids.len()..], false).unwrap(), "The answer is 4<|im_end|>");
    assert_eq!(row.margin, Some(0.5));
    // The reward model sees at the end what it saw in training.
    let scored = tokenizer.encode_scored(&[prompt[0].clone(), Message::assistant("3")]).unwrap();
    assert_eq!(scored, row.chosen);
    assert!(tokenizer.encode_scored(&prompt).unwrap_err().to_string().contains("nothing to score"));
}

#[test]
fn ready_ids_are_used_as_they_are_but_checked() {
    let tokenizer = small();
    let tokens = |input_ids: Vec<i64>, labels| Demonstration::Tokens { input_ids, labels };
    let row = tokenizer.encode_demonstration(&tokens(vec![5, 6], Some(vec![IGNORE_INDEX, 6]))).unwrap();
    assert_eq!((row.input_ids, row.labels), (vec![5, 6], vec![IGNORE_INDEX, 6]));
    let row = tokenizer.encode_demonstration(&tokens(vec![5, 6], None)).unwrap();
    assert_eq!(row.labels, [5, 6]);
    for bad in [tokens(vec![5, 300], None), tokens(vec![5, 6], Some(vec![-1, 6]))] {
        assert!(matches!(tokenizer.encode_demonstration(&bad), Err(Error::IdOutsideVocabulary { .. })));
    }
}

fn call(arguments: &serde_json::Value) -> Message {
    let call = json!({"type": "function", "function": {"name": "add", "arguments": arguments}});
    Message { tool_calls: vec![call], ..Message::assistant("") }
}

fn talk_with_calls(arguments: &serde_json::Value) -> Vec<Message> {
    vec![
        Message::user("What is 1 plus 2?"),
        call(arguments),
        Message::tool("3"),
        Message::assistant("It is 3."),
    ]
}

/// A `ChatML` in which a call is a line, with something more in a turn, and at the end.
fn calling(before_call: &str, at_end: &str) -> String {
    format!(
        "{{% for m in messages %}}{{{{ '<|im_start|>' + m.role + '\n' }}}}{before_call}{{{{ m.content or '' }}}}\
         {{% for c in m.tool_calls or [] %}}{{{{ 'call ' + c.function.name + ' ' + (c.function.arguments | tojson) }}}}\
         {{% endfor %}}{{{{ '<|im_end|>\n' }}}}{{% endfor %}}\
         {{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{{% else %}}{at_end}{{% endif %}}"
    )
}

#[test]
fn turns_that_call_tools_have_exact_masks() {
    // A think block opens the turn that comes last, so the rendering up to the call is no head of the whole.
    let thinking = "{% if m.role == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}";
    // Special tokens open the calls, and the text of the turn is left out.
    let listed = "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}\
                  {% elif m.tool_calls %}{{ '[CALLS]' + (m.tool_calls | tojson) + eos_token }}\
                  {% elif m.role == 'tool' %}{{ '[RESULT]' + m.content + '[/RESULT]' }}\
                  {% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}";
    // No special token ends a turn.
    let bare = "{% for m in messages %}{{ m.role + ':' }}{% if m.tool_calls %}{{ ' call ' + m.tool_calls[0].function.name }}\
                {% else %}{{ ' ' + m.content }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";
    // A special token of its own ends the call inside of the block, and the end of turn stands behind it.
    let marked = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}\
                  {% if m.tool_calls %}{{ '[CALLS]' + m.tool_calls[0].function.name + '[/CALLS]' }}{% else %}{{ m.content }}{% endif %}\
                  {% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}\
                  {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    let line = "call add {\"a\": 1}<|im_end|>";
    let list = "[CALLS][{\"type\": \"function\", \"function\": {\"name\": \"add\", \"arguments\": {\"a\": 1}}}]<|eos|>";
    for (source, calls, answer) in [
        (calling("", ""), line, "It is 3.<|im_end|>"),
        (calling("", "{{ eos_token }}"), line, "It is 3.<|im_end|>"),
        (calling(thinking, ""), line, "<think></think>It is 3.<|im_end|>"),
        (listed.to_owned(), list, "It is 3.<|eos|>"),
        (bare.to_owned(), " call add\n", " It is 3.\n"),
        (marked.to_owned(), "[CALLS]add[/CALLS]<|im_end|>", "It is 3.<|im_end|>"),
    ] {
        let special = ["[INST]", "[/INST]", "[CALLS]", "[/CALLS]", "[RESULT]", "[/RESULT]"];
        let mut tokenizer = with_special(&special);
        tokenizer.set_chat_template(source.clone()).unwrap();
        let talk = talk_with_calls(&json!({"a": 1}));
        let encoded =
            tokenizer.encode_conversation(&talk).unwrap_or_else(|error| panic!("{error}: {source}"));
        assert_eq!(spoken(&tokenizer, &encoded), [calls, answer], "{source}");
        // The call may be the last turn, too.
        let scored = tokenizer.encode_scored(&talk[..2]).unwrap();
        let prompt = tokenizer.encode_prompt(&talk[..1]).unwrap();
        let text = tokenizer.decode(&scored[prompt.len()..], false).unwrap();
        assert!(text.trim_end().ends_with(calls.trim_end()), "{text:?}: {source}");
    }
}

#[test]
fn the_text_of_a_special_token_inside_of_a_call_does_not_end_it() {
    let tokenizer = with_template(&calling("", ""));
    let encoded = tokenizer.encode_conversation(&talk_with_calls(&json!({"a": "<|im_end|> 1"}))).unwrap();
    assert_eq!(spoken(&tokenizer, &encoded)[0], "call add {\"a\": \"<|im_end|> 1\"}<|im_end|>");
    // Where the end of the turn can only be told by its token, such a call is refused.
    let thinking = "{% if m.role == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}";
    let tokenizer = with_template(&calling(thinking, ""));
    let error = tokenizer.encode_conversation(&talk_with_calls(&json!({"a": "<|im_end|>"}))).unwrap_err();
    assert!(error.to_string().contains("turn 2: no end-of-turn token ends its tool calls"), "{error}");
}

#[test]
fn a_call_that_the_generation_prompt_does_not_open_is_an_error() {
    let ignoring = calling("", "")
        .replace("{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% else %}{% endif %}", "");
    assert!(!ignoring.contains("add_generation_prompt"));
    let error = with_template(&ignoring).encode_conversation(&talk_with_calls(&json!({}))).unwrap_err();
    assert!(error.to_string().contains("the generation prompt does not open the turn"), "{error}");
}

#[test]
fn answers_that_call_tools_are_compared_behind_their_prompt() {
    let tokenizer = with_template(&format!("{{{{ tools | tojson if tools }}}}{}", calling("", "")));
    let tools = json!([{"name": "add"}]);
    let prompt = vec![Message::user("What is 1 plus 2?")];
    let row = tokenizer
        .encode_preference(&Preference::Messages {
            prompt: prompt.clone(),
            chosen: vec![call(&json!({"a": 1}))],
            rejected: vec![Message::assistant("4")],
            tools: Some(tools.clone()),
            margin: None,
        })
        .unwrap();
    let ids = tokenizer.encode_prompt(Conversation::with_tools(&prompt, Some(&tools))).unwrap();
    assert_eq!(row.prompt_length, ids.len());
    assert!(row.chosen.starts_with(&ids) && row.rejected.starts_with(&ids));
    assert!(tokenizer.decode(&ids, false).unwrap().starts_with("[{\"name\": \"add\"}]<|im_start|>user"));
    assert_eq!(tokenizer.decode(&row.chosen[ids.len()..], false).unwrap(), "call add {\"a\": 1}<|im_end|>");
    let row = Prompt { messages: prompt, tools: Some(tools), answer: None };
    assert_eq!(tokenizer.encode_prompt_row(&row).unwrap().input_ids, ids);
}
