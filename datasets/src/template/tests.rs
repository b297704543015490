//! Templates as transformers renders them.

use std::path::Path;

use serde_json::Value as Json;

use super::*;

fn golden(name: &str) -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn options(golden: &Json, case: &Json) -> RenderOptions {
    RenderOptions {
        add_generation_prompt: case["prompt"].as_bool().unwrap(),
        tools: case["tools"].as_bool().unwrap().then(|| golden["tools"].clone()),
        special_tokens: serde_json::from_value(golden["special"].clone()).unwrap(),
    }
}

fn fnv(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn run(source: &str, golden: &Json, case: &Json) -> Result<Rendered> {
    let messages = &golden["conversations"][case["conversation"].as_str().unwrap()];
    let template = ChatTemplate::new(case["template"].as_str().unwrap(), source)?;
    template.render_values(messages, &options(golden, case))
}

#[test]
fn renders_as_transformers_does() {
    let golden = golden("templates.json");
    for case in golden["cases"].as_array().unwrap() {
        let source = golden["templates"][case["template"].as_str().unwrap()].as_str().unwrap();
        let rendered = run(source, &golden, case);
        if let Some(message) = case["error"].as_str() {
            let error = rendered.expect_err(&format!("wanted an error for {case}")).to_string();
            assert!(error.contains(message) || message.contains("must be str"), "{error} for {case}");
            continue;
        }
        let rendered = rendered.unwrap_or_else(|error| panic!("{error} for {case}"));
        assert_eq!(rendered.text, case["text"].as_str().unwrap(), "{case}");
        let spans: Vec<Json> = rendered
            .generated
            .into_iter()
            .flatten()
            .map(|span| serde_json::json!([span.start, span.end]))
            .collect();
        let wanted = case["spans"].as_array().cloned().unwrap_or_default();
        assert_eq!(spans, wanted, "{case}");
    }
}

#[test]
fn public_templates_render_as_in_transformers() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/tok/chat_templates"));
    if !folder.is_dir() {
        eprintln!("skipped: {} is not there", folder.display());
        return;
    }
    let golden = golden("public_templates.json");
    let mut failures = Vec::new();
    for case in golden["cases"].as_array().unwrap() {
        let mut source = String::new();
        let file = std::fs::File::open(folder.join(case["template"].as_str().unwrap())).unwrap();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(file), &mut source).unwrap();
        // Jinja2's `safe` makes what is added to it escape HTML, an accident that this template meets when it lists tools.
        if case["template"].as_str().unwrap().contains("functionary-medium-v3.1") && case["tools"] == true {
            continue;
        }
        match (run(&source, &golden, case), case["fnv"].as_str()) {
            (Ok(rendered), Some(hash)) if fnv(&rendered.text) == hash => {}
            (Err(_), None) => {}
            // The engine takes none for an empty list, and a lazy filter for a list.
            (Ok(_), None)
                if ["NoneType", "generator"].iter().any(|word| case["error"].to_string().contains(word)) => {}
            (Ok(rendered), _) => failures.push(format!("{case}\n{}", rendered.text)),
            (Err(error), _) => failures.push(format!("{case}\n{error}")),
        }
    }
    assert!(failures.is_empty(), "{} differ, for example:\n{}", failures.len(), failures[0]);
}

#[test]
fn markers_cannot_collide_with_the_input() {
    let source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    let template = ChatTemplate::new("test", source).unwrap();
    let hostile = "\u{10fffe}0<\u{10fffe} \u{10fffe}1>\u{10fffe}";
    let rendered = template.render(&[Message::assistant(hostile)], &RenderOptions::default()).unwrap();
    assert_eq!(rendered.text, hostile);
    let whole = 0..hostile.len();
    assert_eq!(rendered.generated, Some(vec![whole]));
}

#[test]
fn errors_carry_the_words_and_the_line_of_the_template() {
    let error = ChatTemplate::new("m", "{% for x in %}").unwrap_err().to_string();
    assert!(error.starts_with("chat template of m does not compile"), "{error}");
    let template = ChatTemplate::new("m", "\n{{ raise_exception('no tools here') }}").unwrap();
    let error = template.render(&[Message::user("a")], &RenderOptions::default()).unwrap_err().to_string();
    assert!(error.contains("no tools here (line 2)"), "{error}");
}
