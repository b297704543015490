//! The page as a whole: its numbers are those of the results, no text leaves its place, the samples in it are
//! the ones that matter, and the drawings point the right way.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::samples::{embed, embed_within};
use super::*;
use crate::contamination::Contamination;
use crate::document::PromptOptions;
use crate::page::number::{number, signed};
use crate::page::safe_json;
use crate::page::strip::{self, Scale, shares, strip};
use crate::request::{LanguageModel, OnResponses, Prompt, Request, Response};
use crate::response_cache::ResponseCache;
use crate::task::{Group, Selection, parse};

/// Ends elements, opens comments, separates lines, turns text around.
const HOSTILE: &str =
    "</script><!--<script>alert(1)</script>\u{2028}\u{202e}&amp;<img src=x onerror=alert(2)>\u{0}";

const TASKS: [&str; 2] = [
    r#"
    task = "colours"
    version = 2
    output_type = "multiple_choice"
    doc_to_text = "Q: {{ question }}\nA:"
    doc_to_target = "{{ answer }}"
    doc_to_choice = ["black", "white"]
    metric_list = [{ metric = "acc" }, { metric = "acc_norm" }]
    [dataset]
    folder = "colours"
    split = "test"
    "#,
    r#"
    task = "sums"
    output_type = "generate_until"
    doc_to_text = "{{ question }}"
    doc_to_target = "{{ answer }}"
    metric_list = [{ metric = "exact_match" }]
    [dataset]
    folder = "sums"
    split = "test"
    [[filter_list]]
    name = "number"
    filter = [{ function = "regex", regex_pattern = '(\d+)' }, { function = "take_first" }]
    [[filter_list]]
    name = "plain"
    filter = [{ function = "take_first" }]
    "#,
];

/// A model that answers by a function.
struct Double {
    name: String,
    answer: fn(&str, &Request) -> Response,
}

impl LanguageModel for Double {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> &str {
        &self.name
    }

    fn respond(
        &mut self,
        requests: &[Request],
        _answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), Error> {
        let answer = |(index, request)| (index, (self.answer)(prompt(request), request));
        on_responses(requests.iter().enumerate().map(answer).collect())
    }
}

fn prompt(request: &Request) -> &str {
    match request {
        Request::Loglikelihood { context: Prompt::Text(text), .. }
        | Request::GenerateUntil { context: Prompt::Text(text), .. }
        | Request::LoglikelihoodRolling { text } => text,
        _ => panic!("the tasks have no conversations"),
    }
}

/// `black` or `white`, whichever is more likely.
fn choose(is_black: bool, request: &Request) -> Response {
    let Request::Loglikelihood { continuation, .. } = request else { panic!("wanted choices") };
    let logprob = if (continuation == " black") == is_black { -1.25 } else { -2.5 };
    Response::Loglikelihood { logprob, is_greedy: false, cut: 0 }
}

fn reply(text: &str) -> Response {
    Response::Reply { text: text.to_owned(), tokens: text.chars().count(), ended: text.len() < 30, cut: 0 }
}

/// Always black; sums: right up to 4, a hostile reply for 5 to 7, no digit for 8, a failure for 9.
fn first(prompt: &str, request: &Request) -> Response {
    if matches!(request, Request::Loglikelihood { .. }) {
        return choose(true, request);
    }
    match prompt.trim_start_matches(HOSTILE).parse().unwrap() {
        sum @ 0..=4 => reply(&sum.to_string()),
        5..=7 => reply(&format!("{HOSTILE} 77")),
        8 => reply("who knows"),
        _ => Response::Failed { problem: format!("the prompt is too long {HOSTILE}") },
    }
}

/// Black for 0 to 7; sums: wrong for 0, right for the rest.
fn second(prompt: &str, request: &Request) -> Response {
    if matches!(request, Request::Loglikelihood { .. }) {
        let number: usize = prompt["Q: ".len()..].split(':').next().unwrap().parse().unwrap();
        return choose(number <= 7, request);
    }
    match prompt.trim_start_matches(HOSTILE).parse().unwrap() {
        0 => reply("12"),
        sum => reply(&format!("{sum}")),
    }
}

/// Ten rows of each task, a group of both, and runs of two models.
struct Fixture {
    evaluation: Evaluation,
    runs: Vec<ModelRun>,
    _folder: TempDir,
}

impl Fixture {
    fn new(names: [&str; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, row: &dyn Fn(usize) -> Value| {
            let lines: Vec<String> = (0..10).map(|number| row(number).to_string()).collect();
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("test.jsonl"), lines.join("\n") + "\n").unwrap();
        };
        write("colours", &|n| json!({"question": format!("{n}: black?"), "answer": n % 2}));
        write("sums", &|n| json!({"question": format!("{HOSTILE}{n}"), "answer": n.to_string()}));

        let tasks = TASKS.map(|text| parse(text, folder.path()).unwrap().tasks.remove(0));
        let group: Group = serde_json::from_value(json!({
            "group": "both", "tasks": ["colours"], "metrics": ["acc"],
        }))
        .unwrap();
        let groups = vec![(group, vec!["colours".to_owned()])];
        let selection = Selection { tasks: tasks.to_vec(), groups };
        let evaluation = Evaluation::prepare(selection, folder.path(), PromptOptions::default()).unwrap();

        let answers: [fn(&str, &Request) -> Response; 2] = [first, second];
        let mut runs = Vec::new();
        for (name, answer) in names.into_iter().zip(answers) {
            let mut cache = ResponseCache::open(&folder.path().join("cache.jsonl")).unwrap();
            let mut model = Double { name: name.to_owned(), answer };
            runs.push(evaluation.run(&mut model, &mut cache, &mut |_| ()).unwrap());
        }
        Self { evaluation, runs, _folder: folder }
    }

    fn results(&self, settings: Value) -> Results {
        Results::new(&self.evaluation, &self.runs, "colossal-chat 1".to_owned(), settings).unwrap()
    }

    fn page(&self, notes: &Notes) -> String {
        html(&self.results(json!({"limit": null})), &self.evaluation, &self.runs, notes).unwrap()
    }
}

fn contamination(name: &str) -> Contamination {
    Contamination {
        task: name.to_owned(),
        model: name.to_owned(),
        metric: name.to_owned(),
        contaminated: 3,
        checked: 10,
        unexamined: 2,
        difference_interval: Some((-0.125, 0.5)),
        clean_score: Some(0.5),
        dirty_score: Some(0.75),
    }
}

/// The samples in a page.
fn data(page: &str) -> Value {
    let json = page.split("id=\"samples-data\">").nth(1).unwrap().split("</script>").next().unwrap();
    serde_json::from_str(json).unwrap()
}

/// The page without what is text of rows and of models.
fn without_data(page: &str) -> String {
    let (before, after) = page.split_once("<script type=\"application/json\"").unwrap();
    format!("{before}{}", after.split_once("</script>").unwrap().1)
}

#[test]
fn numbers_in_the_html_are_those_of_the_results() {
    let fixture = Fixture::new(["sft", "ppo"]);
    let results = fixture.results(json!({}));
    let page = fixture.page(&Notes::default());
    let mut scores = 0;
    for score in results.models.iter().flat_map(|model| model.groups.iter().chain(&model.scores)) {
        assert!(page.contains(&format!("<b>{}</b>", number(score.aggregated.value))), "{score:?}");
        let (low, high) = score.aggregated.interval.unwrap();
        assert!(page.contains(&format!("{} to {}", number(low), number(high))), "{score:?}");
        scores += 1;
    }
    // acc of the group; acc and acc_norm of colours, exact_match under two filters: for two models.
    assert_eq!(scores, 10);
    for comparison in &results.comparisons {
        let difference = signed(comparison.difference.estimate.mean);
        assert!(page.contains(&format!("<b>{difference}</b>")), "{comparison:?}");
    }
    for task in &results.tasks {
        assert!(page.contains(&task.protocol_id) && page.contains(">10 of 10<"));
    }

    // Always black: rows 0, 2, 4, 6, 8 are right. Black up to 7: 9 is right too, 8 is not.
    let colours = data(&page)["tasks"][0]["samples"].as_array().unwrap().clone();
    assert_eq!(colours.len(), 10);
    assert_eq!(colours[3]["models"][0]["logprobs"], json!(["-1.2500", "-2.5000"]));
    assert_eq!((&colours[3]["models"][0]["best"], &colours[3]["right"]), (&json!(0), &json!([1])));
}

#[test]
fn kinds_of_samples_in_the_html_by_hand() {
    let fixture = Fixture::new(["sft", "ppo"]);
    let data = data(&fixture.page(&Notes::default()));
    let counts = |task: usize, filter: usize, model: usize| {
        let correct =
            |sample: &Value, model: usize| sample["models"][model]["results"][filter]["correct"].as_bool();
        let mut counts = [0; 6];
        for sample in data["tasks"][task]["samples"].as_array().unwrap() {
            let (was, is) = (correct(sample, 0), correct(sample, model));
            let kinds = [
                is == Some(true),
                is == Some(false),
                sample["models"][model]["results"][filter]["unparsed"] == true,
                sample["models"][model]["problem"].is_string(),
                was == Some(true) && is == Some(false),
                was == Some(false) && is == Some(true),
            ];
            for (is_kind, count) in kinds.into_iter().zip(&mut counts) {
                *count += usize::from(is_kind);
            }
        }
        counts
    };
    // Right, wrong, unparsed, failed, right → wrong, wrong → right.
    assert_eq!(counts(0, 0, 0), [5, 5, 0, 0, 0, 0]);
    assert_eq!(counts(0, 0, 1), [5, 5, 0, 0, 1, 1]);
    // sft: 0 to 4 right; 5 to 7 find "1" of alert(1); 8 finds nothing; 9 failed. ppo: 0 wrong.
    assert_eq!(data["tasks"][1]["filters"], json!(["number", "plain"]));
    assert_eq!(counts(1, 0, 0), [5, 4, 1, 1, 0, 0]);
    assert_eq!(counts(1, 0, 1), [9, 1, 0, 0, 1, 4]);
    assert_eq!(counts(1, 1, 0), [5, 4, 0, 1, 0, 0]);
}

#[test]
fn hostile_text_stays_in_its_place_in_the_html() {
    let fixture = Fixture::new([HOSTILE, "مرحبا"]);
    let notes = Notes {
        title: HOSTILE.to_owned(),
        command: HOSTILE.to_owned(),
        started: HOSTILE.to_owned(),
        ..Notes::default()
    };
    let mut results = fixture.results(json!({HOSTILE: HOSTILE}));
    results.contamination.push(contamination(HOSTILE));
    let page = html(&results, &fixture.evaluation, &fixture.runs, &notes).unwrap();
    assert_eq!((page.matches("<script").count(), page.matches("</script").count()), (2, 2));
    for forbidden in ["<!--", "<img", "<script>alert", "\u{2028}", "\u{202e}", "\0", "://"] {
        assert!(!page.contains(forbidden), "{forbidden:?}");
    }
    let data = data(&page);
    assert_eq!(data["models"][0], HOSTILE);
    let sample = &data["tasks"][1]["samples"][5];
    assert_eq!(sample["prompts"], json!([[["", format!("{HOSTILE}5")]]]));
    assert_eq!(sample["models"][0]["replies"][0]["text"], format!("{HOSTILE} 77"));
    assert_eq!(sample["models"][0]["replies"][0]["ended"], false);
    assert!(page.contains("<bdi>مرحبا</bdi>"));
}

#[test]
fn json_in_the_html_reads_back() {
    let text: String = (0..0x3000).filter_map(char::from_u32).collect();
    let safe = safe_json(&text).unwrap();
    assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
    assert!(!safe.contains(['<', '>', '&', '\u{2028}', '\u{2029}', '\u{202e}', '\u{85}']));
}

#[test]
fn the_html_allows_its_own_script_alone() {
    let page = Fixture::new(["sft", "ppo"]).page(&Notes::default());
    let script = page.split("<script>").nth(1).unwrap().split("</script>").next().unwrap();
    let policy =
        page.split("Content-Security-Policy\" content=\"").nth(1).unwrap().split('"').next().unwrap();
    let hash = STANDARD.encode(Sha256::digest(script.as_bytes()));
    assert!(
        policy.contains(&format!("script-src 'sha256-{hash}'")) && policy.starts_with("default-src 'none'")
    );
    assert!(!script.contains("innerHTML") && !script.contains("fetch(") && !script.contains("eval("));
    assert!(!without_data(&page).contains("://") && !page.contains("src=\"") && !page.contains("@import"));
    // The elements that the script looks for.
    for needed in
        ["id=\"samples\"", "<form", "class=\"list\"", "class=\"no-script\"", "class=\"shown\"", "data-step"]
    {
        assert!(page.contains(needed), "{needed}");
    }
}

#[test]
fn the_html_embeds_what_differs_first() {
    let fixture = Fixture::new(["sft", "ppo"]);
    let ids = |embedded: &samples::Embedded, task: usize| -> Vec<u64> {
        let json = embedded.data.split_once('>').unwrap().1.split("</script>").next().unwrap();
        let data: Value = serde_json::from_str(json).unwrap();
        let samples = data["tasks"][task]["samples"].as_array().unwrap();
        samples.iter().map(|sample| sample["id"].as_u64().unwrap()).collect()
    };
    // Colours: 8 and 9 differ, then the wrong ones. Sums: 0 and 5 to 8 differ, 9 failed.
    let few = embed_within(&fixture.evaluation, &fixture.runs, 3, usize::MAX).unwrap();
    assert_eq!((ids(&few, 0), ids(&few, 1)), (vec![1, 8, 9], vec![0, 5, 6]));
    assert_eq!(few.counts, [(3, 10), (3, 10)]);
    assert!(few.data.contains("\"left_out\":7"));

    let all = embed(&fixture.evaluation, &fixture.runs).unwrap();
    let small = embed_within(&fixture.evaluation, &fixture.runs, 500, all.data.len() / 2).unwrap();
    assert!(small.data.len() < all.data.len() * 2 / 3);
    assert!(small.counts.iter().all(|&(shown, of)| shown > 0 && shown < 10 && of == 10));
    assert_eq!(embed_within(&fixture.evaluation, &fixture.runs, 500, 0).unwrap().counts[0], (0, 10));

    let results = fixture.results(json!({}));
    let protocols = overview::protocols(&results, &few.counts).body;
    assert_eq!(protocols.matches("<td class=\"num\">3</td></tr>").count(), 2);
    assert!(
        browser::section(&few, &fixture.evaluation, &fixture.runs)
            .body
            .contains("6 samples are in this page, and 14")
    );
}

#[test]
fn a_common_beginning_of_prompts_is_in_the_html_once() {
    let mut fixture = Fixture::new(["sft", "ppo"]);
    let examples = "One example after another. 例子\n".repeat(20);
    for document in &mut fixture.evaluation.tasks[1].documents.documents {
        for request in &mut document.requests {
            let Request::GenerateUntil { context: Prompt::Text(text), .. } = request else { continue };
            *text = format!("{examples}Question: {}", document.doc_id);
        }
    }
    let page = fixture.page(&Notes::default());
    assert_eq!(page.matches(&examples.replace('\n', "\\n")).count(), 1);
    let data = data(&page);
    assert_eq!(data["tasks"][1]["opening"], json!([["", examples]]));
    assert_eq!(data["tasks"][1]["samples"][7]["prompts"], json!([[["", "Question: 7"]]]));
    assert_eq!(data["tasks"][0]["opening"], json!([]));
}

#[test]
fn the_better_side_is_right_in_the_html_also_where_less_is_better() {
    let fixture = Fixture::new(["sft", "ppo"]);
    let mut results = fixture.results(json!({}));
    results.comparisons.truncate(1);
    let comparison = &mut results.comparisons[0];
    (comparison.higher_is_better, comparison.p_value_holm) = (false, 0.01);
    (comparison.more, comparison.equal, comparison.less) = (1, 2, 7);
    let estimate = &mut comparison.difference.estimate;
    (estimate.mean, estimate.low, estimate.high) = (-0.25, -0.5, -0.125);
    let plot = differences::section(&results).unwrap().body;
    // The scale reaches ±0.5: 0.25 lies at three quarters, the interval from 62.5 % to 100 %.
    assert!(plot.contains("<svg x=\"75.00%\" y=\"50%\"><path class=\"mark\" d=\"M0-6"), "{plot}");
    assert!(plot.contains("x1=\"62.50%\" x2=\"100.00%\""), "{plot}");
    assert!(plot.contains("<b>−0.2500</b>") && plot.contains("7 better, 2 equal, 1 worse"), "{plot}");
    assert!(plot.contains("<span class=\"better\">better, p 0.0100</span>"), "{plot}");
    assert!(
        plot.contains(">+0.25</text>") && plot.contains(">−0.5</text>") && plot.contains(">0</text>"),
        "{plot}"
    );

    let comparison = &mut results.comparisons[0];
    (comparison.p_value_holm, comparison.difference.estimate.low) = (0.00001, -3.0);
    let plot = differences::section(&results).unwrap().body;
    assert!(plot.contains("own scale of ±5.0000") && plot.contains("p &lt;0.0001"), "{plot}");
}

#[test]
fn differences_without_a_width_are_a_dash() {
    let fixture = Fixture::new(["sft", "ppo"]);
    let mut results = fixture.results(json!({}));
    results.comparisons.truncate(1);
    let comparison = &mut results.comparisons[0];
    let estimate = &mut comparison.difference.estimate;
    (estimate.mean, estimate.low, estimate.high) = (0.25, f64::NAN, f64::NAN);
    comparison.detectable = f64::NAN;
    let page = differences::section(&results).unwrap().body;
    // The interval beside the plot; the interval and the detectable difference in the table.
    assert_eq!((page.matches("note\">–<").count(), page.matches("<td class=\"num\">–</td>").count()), (1, 2));
    let markdown = results.markdown();
    assert!(markdown.contains("| +0.2500 | – |") && markdown.contains("| – |\n"), "{markdown}");
    assert!(!page.contains("NaN") && !markdown.contains("NaN"));
}

#[test]
fn the_html_says_what_it_leaves_out_and_what_is_doubtful() {
    let fixture = Fixture::new(["sft", "ppo"]);
    let mut results = fixture.results(json!({}));
    let one = results.comparisons[0].clone();
    results.comparisons = vec![one; 43];
    let template = results.models[0].scores[0].clone();
    for model in &mut results.models {
        model.scores =
            (0..50).map(|n| crate::evaluation::Score { task: format!("t{n}"), ..template.clone() }).collect();
        model.scores[49].higher_is_better = false;
        model.scores[3].unparsed = 2;
        model.scores[4].failed = 1;
    }
    let page = html(&results, &fixture.evaluation, &fixture.runs, &Notes::default()).unwrap();
    // 50 scores and the group: 40 drawn, of one less is better.
    assert!(page.contains("10 scores for want of room, and 1 score of another kind"));
    assert!(page.contains("3 comparisons with larger p-values"));
    assert!(
        page.contains("⚠ 2 unparsed (20.0 %)") && page.contains("20.0 % of the replies of <bdi>sft</bdi>")
    );
    assert!(page.contains("1 failed") && page.contains("could not answer 1 document of <bdi>t4</bdi>"));
}

#[test]
fn the_html_of_one_model_compares_nothing() {
    let mut fixture = Fixture::new(["sft", "ppo"]);
    fixture.runs.truncate(1);
    let notes = Notes {
        command: "colossal-chat eval --tasks 'a,b'".to_owned(),
        elapsed_seconds: vec![160.0],
        ..Notes::default()
    };
    let mut results = fixture.results(json!({}));
    results.contamination.push(contamination("sums"));
    let page = html(&results, &fixture.evaluation, &fixture.runs, &notes).unwrap();
    assert!(!page.contains("id=\"differences\"") && !page.contains("value=\"lost\""));
    assert!(page.contains("--tasks &#39;a,b&#39;") && page.contains("2 min 40 s"));
    assert!(page.contains("3 of 10 (30.0 %)") && page.contains(">+0.2500<"));
    assert!(page.contains("<td class=\"num\">2</td>") && page.contains("−0.1250 to +0.5000"));
    assert!(!Fixture::new(["a", "b"]).page(&Notes::default()).contains("id=\"contamination\""));
}

#[test]
fn strips_of_the_html_stay_within_their_ends() {
    let mark = |value, interval| strip::Mark { class: "x", shape: strip::Shape::Disc, value, interval };
    let beyond = strip(Scale::SHARE, &[0.0], None, &mark(0.5, Some((-1.0, 2.0))));
    assert!(beyond.contains("x1=\"0.00%\" x2=\"100.00%\"") && beyond.contains("cx=\"50.00%\""));
    assert!(!strip(Scale::SHARE, &[], None, &mark(f64::NAN, None)).contains("circle"));
    for (reach, scale) in [(0.03, 0.05), (0.5, 0.5), (0.51, 1.0), (12.0, 20.0), (0.0, 1.0), (f64::NAN, 1.0)] {
        let found = Scale::around_zero(reach);
        assert!((found.high - scale).abs() < 1e-12 && found.low == -found.high, "{reach}: {found:?}");
    }
    assert_eq!(Scale::over([f64::NAN].into_iter()), None);
    assert!(Scale::over([1e308, -1e308].into_iter()).unwrap().at(0.0).is_finite());
    assert!(shares(&[("a", 1), ("b", 3)]).contains("x=\"25.00%\" y=\"20%\" width=\"75.00%\""));
    assert!(shares(&[("a", 0)]).contains("width=\"0.00%\""));
}
