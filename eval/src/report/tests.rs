//! The three files of a report: keys, escaping, honesty about what is missing, and drawings.

use serde_json::{Map, Value, json};

use super::*;
use crate::page::tests::check_page;
use crate::results::Results;

fn results() -> Results {
    let score = |value: f64| {
        json!({
            "task": "world", "filter": "none", "metric": "exact_match", "higher_is_better": true, "n": 400,
            "unparsed": 0, "failed": 0, "cut": 0, "value": value, "standard_error": 0.02,
            "interval": [value - 0.04, value + 0.04],
        })
    };
    let model =
        |name: &str, value: f64| json!({"name": name, "digest": "d", "scores": [score(value)], "groups": []});
    serde_json::from_value(json!({
        "format": 1, "program": "p", "settings": {}, "comparisons": [],
        "tasks": [{
            "task": "world", "protocol_id": "i", "protocol": null, "version": 1.0, "output_type": "generate_until",
            "num_fewshot": 0, "original": 400, "effective": 400, "prompt_hash": "h",
        }],
        "models": [model("sft", 0.6), model("dpo", 0.68)],
    }))
    .unwrap()
}

fn curve(scale: f64) -> Vec<(f64, f64)> {
    (0..100).map(|step| (f64::from(step), scale * (4.0 - 0.02 * f64::from(step)))).collect()
}

fn full() -> Report {
    let run = RunPart {
        name: "demo/sft".into(),
        stage: "sft".into(),
        status: "finished".into(),
        steps: 100,
        settings: vec![("train.lr".into(), "0.1".into(), "0.2".into())],
        numbers: vec![MetricSummary { metric: "loss".into(), rows: 100, lowest: 1e-7, ..Default::default() }],
        samples: vec![RunSample { prompt: "2 + 2 = ?".into(), reply: "4".into(), ..Default::default() }],
    };

    Report {
        title: "Two <stages>".into(),
        command: "colossal-chat demo".into(),
        settings: Map::from_iter([("seed".to_owned(), Value::from(7))]),
        machine: Map::from_iter([("cores".to_owned(), Value::from(2))]),
        benchmarks: Some(Benchmarks { report: "eval/report.html".into(), results: results() }),
        reward_model: Some(RewardModel { accuracy: 0.91, low: 0.88, high: 0.93, n: 500 }),
        seconds: vec![("data", 2.0), ("sft", 300.0), ("dpo", 3_700.0)],
        peak_rss_bytes: Some(1_610_612_736),
        runs: vec![run],
        curves: vec![Overlay {
            stage: "sft".into(),
            metric: "loss".into(),
            curves: vec![("demo/sft".into(), curve(1.0))],
        }],
    }
}

fn markdown_and_page(report: &Report) -> [String; 2] {
    let [_, (_, text), (_, page)] = files(report).unwrap();
    [text, page]
}

#[test]
fn json_has_the_agreed_keys() {
    let json = serde_json::to_value(full()).unwrap();
    for pointer in [
        "/benchmarks/results/models/1/scores/0/value",
        "/reward_model/accuracy",
        "/reward_model/low",
        "/reward_model/high",
        "/reward_model/n",
        "/seconds/data",
        "/seconds/dpo",
        "/peak_rss_bytes",
        "/runs/0/numbers/0/lowest",
        "/curves/0/curves/0/1/99/1",
    ] {
        assert!(json.pointer(pointer).is_some_and(Value::is_number), "{pointer}");
    }
}

#[test]
fn every_model_of_the_evaluation_is_in_the_tables_and_the_page() {
    let [text, page] = markdown_and_page(&full());
    assert!(text.contains("## Tasks") && text.contains("eval/report.html"), "{text}");
    for model in ["sft", "dpo"] {
        assert!(text.lines().any(|line| line.starts_with('|') && line.contains(model)), "{model}: {text}");
        assert!(page.contains(model), "{model}");
    }
    assert!(text.contains("91.0 % (88.0 to 93.0) of 500 held-out pairs ranked right"), "{text}");
    assert!(text.contains("| total | 1 h 06 min |") && text.contains("1.50 GiB"), "{text}");
    assert!(page.contains("eval/report.html#samples") && page.contains("0.6800"), "{page}");
}

#[test]
fn a_task_among_the_main_figures_has_the_figure_of_every_model() {
    let mut report = full();
    let results = &mut report.benchmarks.as_mut().unwrap().results;
    results.models.push(results.models[1].clone());
    for task in ["a", "b"] {
        let mut info = results.tasks[0].clone();
        info.task = task.to_owned();
        results.tasks.push(info);
        for model in &mut results.models {
            let mut score = model.scores[0].clone();
            score.task = task.to_owned();
            model.scores.push(score);
        }
    }
    // Nine scores are one more than there are tiles, so two tasks of three models are shown, and the reward model.
    let [_, page] = markdown_and_page(&report);
    assert_eq!(page.matches("class=\"tile\"").count(), 2 * 3 + 1);
}

#[test]
fn an_empty_report_has_its_files_and_says_nothing_of_absent_parts() {
    let report = Report { title: "nothing ran".into(), ..Report::default() };
    let [(_, json), (_, text), (_, page)] = files(&report).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let mut keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["command", "curves", "runs", "title"]);
    assert!(!text.contains("Tasks") && !text.contains("Reward") && !text.contains("Time"), "{text}");
    assert!(!page.contains("<svg") && !page.contains("<h2>Tasks"));
}

#[test]
fn impossible_figures_are_refused() {
    let mut report = full();
    report.reward_model = Some(RewardModel { accuracy: 0.9, low: 0.1, high: 0.2, n: 5 });
    let message = files(&report).unwrap_err().to_string();
    assert!(message.starts_with("reward_model: mean 0.9 lies outside its interval 0.1 to 0.2"), "{message}");
    let mut report = full();
    report.seconds[1].1 = f64::NAN;
    assert!(matches!(files(&report), Err(Error::NotFinite { field, .. }) if field == "seconds of sft"));
}

#[test]
fn untrusted_text_stays_text() {
    let attack = "</pre><script>alert(1)</script>|`*[x](javascript:y)\u{1b}[31m\u{202e}";
    let mut report = full();
    report.title = attack.into();
    report.command = format!("{attack} ```");
    report.settings = Map::from_iter([(attack.to_owned(), Value::from(attack))]);
    report.curves[0].stage = format!("\"{attack}");
    report.curves[0].metric = attack.into();
    report.runs[0].name = attack.into();
    report.runs[0].samples[0].reply = attack.into();
    let [text, page] = markdown_and_page(&report);
    assert!(!page.contains("<script") && !page.contains("</pre><s"));
    assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    let (before, after) = (text.find("````sh").unwrap(), text.rfind("````").unwrap());
    for outside in [&text[..before], &text[after..]] {
        assert!(!outside.contains("<script") && !outside.contains("](") && !outside.contains('\u{1b}'));
    }
    let row = text.lines().find(|line| line.starts_with("| 0 | 2 + 2")).unwrap();
    assert_eq!(row.replace("\\|", "").matches('|').count(), 5, "{row}");
}

#[test]
fn the_page_is_whole_without_network_and_script() {
    let [_, page] = markdown_and_page(&full());
    check_page(&page);
    assert!(!page.contains("<script"));
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
}

#[test]
fn a_single_curve_is_smoothed_and_several_are_numbered() {
    let [_, page] = markdown_and_page(&full());
    assert!(page.contains("100 points, centred average over 5 points"), "{page}");
    let mut report = full();
    report.curves[0].curves.push(("demo/b".into(), curve(2.0)));
    let [_, page] = markdown_and_page(&report);
    assert!(page.contains("1 demo/sft, 2 demo/b") && page.contains("class=\"run-1\""), "{page}");
}

#[test]
fn a_value_that_is_not_finite_is_null_in_json_and_counted_on_the_page() {
    let mut report = full();
    report.curves[0].curves[0].1[1].1 = f64::NAN;
    let [(_, json), _, (_, page)] = files(&report).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["curves"][0]["curves"][0][1][1][1].is_null());
    assert!(page.contains("<b class=\"wrong\">1 not finite</b>"));
}

#[test]
fn markdown_tables_hold_the_runs() {
    let [text, _] = markdown_and_page(&full());
    assert!(text.contains("## sft demo/sft\n\nfinished, 100 steps."), "{text}");
    assert!(text.contains("| train.lr | 0.2 | 0.1 |") && text.contains("1.00e-7"), "{text}");
}

#[test]
fn a_chart_of_its_own_is_a_whole_svg_file() {
    let curves = [("a".to_owned(), curve(1.0)), ("b".to_owned(), curve(2.0))];
    let svg = overlay_svg("loss", &curves);
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox"));
    assert!(svg.ends_with("</svg>") && svg.contains("<style>") && svg.contains("run-1"));
}
