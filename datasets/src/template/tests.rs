//! Templates as transformers renders them.

use std::path::Path;

use serde_json::Value as Json;

use super::*;
use crate::record::{Layout, Prompt, Record};

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
        // Jinja2's `safe` makes what is added to it escape HTML, an accident that this template meets when it
        // lists tools.
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

/// Renders a conversation that was read from a row, with or without its tools.
fn run_row(source: &str, golden: &Json, case: &Json) -> Result<Rendered> {
    // As Arrow stores turns, calls and tools: each object has the fields of all others.
    let mut turns = golden["conversations"][case["conversation"].as_str().unwrap()].clone();
    for turn in turns.as_array_mut().unwrap() {
        for name in ["content", "tool_calls", "name", "tool_call_id"] {
            turn.as_object_mut().unwrap().entry(name).or_insert(Json::Null);
        }
    }
    let mut tools = golden["tools"].clone();
    tools[1]["function"]["parameters"]["properties"] = serde_json::json!({"city": null, "days": null});
    tools[1]["function"]["parameters"]["required"] = Json::Null;
    let mut row = serde_json::json!({"prompt": turns});
    if case["tools"] == true {
        // Half of the cases have the text of the list.
        row["tools"] = if case["prompt"] == true { tools } else { golden["tools"].to_string().into() };
    }
    let at = crate::RowLocation { path: "x.jsonl".into(), row: 1 };
    let prompt = Prompt::parse(Layout::Prompt, row.as_object().unwrap(), &at)?;
    let options = RenderOptions { tools: prompt.tools, ..options(golden, case) };
    ChatTemplate::new(case["template"].as_str().unwrap(), source)?.render(&prompt.messages, &options)
}

#[test]
fn rows_with_tools_render_as_transformers_does() {
    let golden = golden("tools.json");
    for case in golden["cases"].as_array().unwrap() {
        let source = golden["templates"][case["template"].as_str().unwrap()].as_str().unwrap();
        match (run_row(source, &golden, case), case["text"].as_str()) {
            (Ok(rendered), Some(text)) => assert_eq!(rendered.text, text, "{case}"),
            (Err(Error::TemplateRender { .. }), None) => {}
            (outcome, _) => panic!("{outcome:?} for {case}"),
        }
    }
}

#[test]
fn public_templates_render_rows_with_tools_as_in_transformers() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/tok/chat_templates"));
    if !folder.is_dir() {
        eprintln!("skipped: {} is not there", folder.display());
        return;
    }
    let golden = golden("tools.json");
    let mut failures = Vec::new();
    for case in golden["public"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let mut source = String::new();
        let file = std::fs::File::open(folder.join(name)).unwrap();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(file), &mut source).unwrap();
        // As above: an accident of Jinja2, and values that this engine takes for empty lists or for lists.
        let is_accident = name.contains("functionary-medium-v3.1") && case["tools"] == true
            || ["NoneType", "generator"].iter().any(|word| case["error"].to_string().contains(word));
        match (run_row(&source, &golden, case), case["fnv"].as_str()) {
            _ if is_accident => {}
            (Ok(rendered), Some(hash)) if fnv(&rendered.text) == hash => {}
            (Err(_), None) => {}
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

/// What a template of a stranger may try, each with a word of what is said of it.
const HOSTILE: [(&str, &str); 39] = [
    ("{% for i in range(10**9) %}x{% endfor %}", "range"),
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "steps"),
    ("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}", "steps"),
    ("{{ 'a' * 10**9 }}", "MiB"),
    ("{{ 10**9 * 'a' }}", "MiB"),
    ("{% if 'a' * 10**9 == 'a' * 10**9 %}x{% endif %}", "MiB"),
    ("{{ ('a' * 10**8) ~ ('a' * 10**8) ~ ('a' * 10**8) }}", "MiB"),
    ("{{ ([0] * 10**15)|length }}", "MiB"),
    ("{{ 1 in [0] * 10**15 }}", "MiB"),
    ("{{ ([0] * 10**15)|list }}", "MiB"),
    ("{{ [0] * 10**15 }}", "MiB"),
    ("{{ \"%0999999999d\"|format(1) }}", "MiB"),
    ("{{ \"%*d\"|format(999999999, 1) }}", "MiB"),
    ("{{ \"{:>999999999}\".format(1) }}", "MiB"),
    ("{{ 'a\n'|indent(10**9) }}", "MiB"),
    ("{{ ('a\n' * 10**6)|indent(10**4, true) }}", "MiB"),
    ("{{ ('a\n' * 10**6)|indent(width=10**4) }}", "MiB"),
    ("{{ ('a' * 10**5)|replace('a', 'b' * 10**5) }}", "MiB"),
    ("{{ ('a' * 10**5).replace('a', 'b' * 10**5) }}", "MiB"),
    ("{{ range(99999)|join('a' * 10**5) }}", "MiB"),
    ("{{ ('a' * 10**5).join(range(99999)|list) }}", "MiB"),
    ("{{ ['a' * 10**6]|batch(10**9, 'x') }}", "MiB"),
    ("{{ range(10**5)|map('replace', '', 'b' * 10**7)|list }}", "MiB"),
    (
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "MiB",
    ),
    (
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "MiB",
    ),
    (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "MiB",
    ),
    (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "MiB",
    ),
    (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
        "MiB",
    ),
    ("{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}", "deep"),
    (
        "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = ns.x|batch(1) %}{% endfor %}",
        "deep",
    ),
    ("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "deep"),
    ("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns == ns.x }}{{ ns|tojson }}", "deep"),
    ("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "recursion"),
    ("{% macro m(n) %}{{ m(n + 1) ~ m(n + 1) }}{% endmacro %}{{ m(0) }}", "recursion"),
    ("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}x{% endmacro %}{{ m(60) }}", "steps"),
    ("{% set x %}{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}{% endset %}{{ x }}", "MiB"),
    ("{% filter indent(10**9) %}a\n{% endfilter %}", "MiB"),
    ("{{ ['b'] | map('indent', 10**9, true) | join }}", "MiB"),
    ("{% for x in [[1]] * 9 recursive %}{{ loop([x] * 9) }}{% endfor %}", "recurs"),
];

/// The bytes of this process in memory.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// The time that this thread has run, which does not depend on what else the machine does.
fn processor_seconds() -> f64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    times.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

#[test]
fn a_hostile_template_ends_with_an_error_in_time_and_memory() {
    for (source, wanted) in HOSTILE {
        let (before, started) = (resident(), processor_seconds());
        let rendered = ChatTemplate::new("m", source)
            .and_then(|template| template.render(&[Message::user("a")], &RenderOptions::default()));
        let error = rendered.expect_err(source).to_string();
        assert!(error.contains(wanted), "{source}: {error}");
        let seconds = processor_seconds() - started;
        assert!(seconds < 2.0, "{source}: {seconds} s");
        assert!(resident() < before + (1 << 30), "{source}");
        assert!(error.len() < 1000, "{source}");
    }
}

#[test]
fn a_hostile_source_ends_with_an_error_in_time_and_memory() {
    let raw = format!("{{% for i in range(99999) %}}{}{{% endfor %}}", "x".repeat(200_000));
    let constants = format!("{{{{ {}'x' }}}}", "('x' * 10**8) ~ ".repeat(10_000));
    let sources = [
        ("x".repeat(300_000), "bytes"),
        (format!("{{{{ {} }}}}", "(".repeat(100_000)), "recursion"),
        (raw, "MiB"),
        (constants, "MiB"),
        ("{{ a.b(*[1]) }}".to_owned(), "cannot use"),
        ("{% include 'chat' %}".to_owned(), "cannot use"),
    ];
    for (source, wanted) in sources {
        let started = std::time::Instant::now();
        let rendered = ChatTemplate::new("m", source.clone())
            .and_then(|template| template.render(&[Message::user("a")], &RenderOptions::default()));
        let error = rendered.expect_err(&source.chars().take(20).collect::<String>()).to_string();
        assert!(error.contains(wanted), "{}: {error}", source.chars().take(20).collect::<String>());
        assert!(
            started.elapsed().as_secs_f64() < 20.0,
            "{}: {:?}",
            source.chars().take(20).collect::<String>(),
            started.elapsed()
        );
    }
    // As deep as a source can be without a bracket: read, not overflowed.
    for source in [
        format!("{{{{ {}1 }}}}", "1~".repeat(100_000)),
        format!("{{{{ 1{} }}}}", "|d".repeat(100_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(20_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(60_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(200_000)),
        format!("{{{{ {}1 }}}}", "0 if 0 else ".repeat(20_000)),
    ] {
        let _ = ChatTemplate::new("m", source)
            .and_then(|template| template.render(&[Message::user("a")], &RenderOptions::default()));
    }
}

#[test]
fn a_long_conversation_is_not_taken_for_an_attack() {
    let template = ChatTemplate::new("m", built_in("chatml").unwrap()).unwrap();
    let turns: Vec<Message> = (0..20_000)
        .flat_map(|turn| [Message::user(format!("question {turn}")), Message::assistant("word ".repeat(100))])
        .collect();
    let rendered = template.render(&turns, &RenderOptions::default()).unwrap();
    assert!(rendered.text.len() > 10_000_000);
    let long = [Message::user("x".repeat(50_000_000)), Message::assistant("y")];
    assert!(template.render(&long, &RenderOptions::default()).unwrap().text.len() > 50_000_000);
}

#[test]
fn control_characters_of_a_template_do_not_reach_the_terminal() {
    let template = ChatTemplate::new("m", "{{ raise_exception('a\u{1b}[31m\u{7}b') }}").unwrap();
    let error = template.render(&[Message::user("a")], &RenderOptions::default()).unwrap_err().to_string();
    assert!(!error.chars().any(char::is_control), "{error:?}");
    let error = ChatTemplate::new("m", "{{ \u{1b}[31m }}").unwrap_err().to_string();
    assert!(!error.chars().any(char::is_control), "{error:?}");
}

/// What Jinja2 3.1 prints.
#[test]
fn tuples_are_those_of_python() {
    for (source, wanted) in [
        ("{{ (1, 'a') }} {{ (1,) }} {{ () }}", "(1, 'a') (1,) ()"),
        ("{{ (1, 2) + (3,) }} {{ (1, 2, 3)[::-1] }} {{ (1,) * 2 }}", "(1, 2, 3) (3, 2, 1) (1, 1)"),
        ("{{ {'a': 1}.items() | list }} {{ {'a': 1} | items | list }}", "[('a', 1)] [('a', 1)]"),
        ("{{ {'b': 2} | dictsort }} {{ (1, 2) | tojson }}", "[('b', 2)] [1, 2]"),
        ("{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}", "3 7 "),
        ("{% set (x, y) = (5, 6) %}{{ x }}{{ y }}", "56"),
    ] {
        let rendered = ChatTemplate::new("m", source).unwrap().render(&[], &RenderOptions::default());
        assert_eq!(rendered.unwrap().text, wanted, "{source}");
    }
}
