//! The three files of a report: keys, escaping, honesty about what is missing, and drawings whose coordinates
//! are checked by hand.

use super::*;
use crate::page::tests::check_page;

#[expect(clippy::unnecessary_wraps, reason = "every use fills an optional field")]
fn score(mean: f64, low: f64, high: f64) -> Option<Score> {
    Some(Score { mean, low, high, n: 400 })
}

fn full() -> Report {
    let scores = |a: f64| Scores {
        greedy: score(a, a - 0.04, a + 0.04),
        sampled: score(a - 0.05, a - 0.08, a - 0.02),
    };
    let exact_match = PerModel { base: Some(scores(0.10)), sft: Some(scores(0.60)), ppo: Some(scores(0.68)) };
    let reply = |text: &str, correct| Some(Reply { text: text.into(), correct });
    let loss = (0..100).map(|step| (f64::from(step), 4.0 - 0.02 * f64::from(step))).collect();
    Report {
        benchmarks: None,
        title: "Nine <tasks>".into(),
        command: "colossal-chat demo".into(),
        settings: Map::from_iter([("seed".to_owned(), Value::from(7)), ("lr".to_owned(), Value::from(1e-4))]),
        machine: Map::from_iter([("cores".to_owned(), Value::from(2))]),
        exact_match,
        paired_gain: Some(Gain { mean: 0.08, low: 0.051, high: 0.109 }),
        paired_gain_greedy: Some(Gain { mean: 0.0, low: -0.02, high: 0.02 }),
        reward_model: Some(RewardModel { accuracy: 0.91, low: 0.88, high: 0.93, n: 500 }),
        kl: Some(0.125),
        seconds: vec![
            ("data", 2.0),
            ("base", 160.0),
            ("sft", 100.0),
            ("rm", 40.0),
            ("ppo", 3_700.0),
            ("eval", 9.4),
        ],
        peak_rss_bytes: Some(1_610_612_736),
        curves: vec![Curve { stage: "sft".into(), metric: "loss".into(), points: loss }],
        samples: vec![Sample {
            prompt: "2 + 2 = ?".into(),
            answer: "4".into(),
            replies: PerModel { base: reply("five", false), sft: reply("5", false), ppo: reply("4", true) },
        }],
    }
}

#[test]
fn json_has_the_agreed_keys() {
    let json = serde_json::to_value(full()).unwrap();
    for model in ["base", "sft", "ppo"] {
        for decoding in ["greedy", "sampled"] {
            for key in ["mean", "low", "high", "n"] {
                assert!(json["exact_match"][model][decoding][key].is_number(), "{model}.{decoding}.{key}");
            }
        }
    }
    for pointer in [
        "/paired_gain/mean",
        "/paired_gain/low",
        "/paired_gain/high",
        "/reward_model/accuracy",
        "/reward_model/low",
        "/reward_model/high",
        "/reward_model/n",
        "/kl",
        "/seconds/data",
        "/seconds/base",
        "/seconds/sft",
        "/seconds/rm",
        "/seconds/ppo",
        "/seconds/eval",
        "/peak_rss_bytes",
    ] {
        assert!(json.pointer(pointer).is_some_and(Value::is_number), "{pointer}");
    }
    assert_eq!(json["samples"][0]["ppo"]["text"], "4");
}

#[test]
fn a_stage_that_did_not_run_is_absent_everywhere() {
    let mut report = full();
    report.exact_match.ppo = None;
    report.samples[0].replies.ppo = None;
    (report.paired_gain, report.paired_gain_greedy, report.kl) = (None, None, None);
    report.seconds.retain(|(part, _)| *part != "ppo");
    let json = serde_json::to_value(&report).unwrap();
    for pointer in ["/exact_match/ppo", "/paired_gain", "/seconds/ppo", "/kl", "/samples/0/ppo"] {
        assert!(json.pointer(pointer).is_none(), "{pointer}");
    }
    assert!(!markdown(&report).contains("PPO"));
    assert!(!html(&report).contains("PPO"));
}

#[test]
fn an_empty_report_has_its_files() {
    let report = Report { title: "nothing ran".into(), ..Report::default() };
    let [(_, json), ..] = files(&report).unwrap();
    assert!(json.contains("\"title\": \"nothing ran\""), "{json}");
    assert!(!html(&report).contains("<svg"));
}

#[test]
fn impossible_figures_are_refused() {
    let mut report = full();
    report.exact_match.sft = Some(Scores { greedy: score(0.9, 0.1, 0.2), sampled: None });
    let message = report.check().unwrap_err().to_string();
    assert!(
        message.starts_with("exact_match.SFT.greedy: mean 0.9 lies outside its interval 0.1 to 0.2"),
        "{message}"
    );
    let mut report = full();
    report.kl = Some(f64::NAN);
    assert!(matches!(files(&report), Err(Error::NotFinite { field, .. }) if field == "kl"));
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
    report.samples[0].prompt = attack.into();
    report.samples[0].replies.ppo = Some(Reply { text: attack.into(), correct: false });
    let page = html(&report);
    assert!(!page.contains("<script") && !page.contains("</pre><s"));
    assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    let text = markdown(&report);
    let (before, after) = (text.find("````sh").unwrap(), text.rfind("````").unwrap());
    for outside in [&text[..before], &text[after..]] {
        assert!(!outside.contains("<script") && !outside.contains("](") && !outside.contains('\u{1b}'));
    }
    let row = text.lines().find(|line| line.starts_with("| &lt;/pre") && line.contains(" 4 ")).unwrap();
    assert_eq!(row.replace("\\|", "").matches('|').count(), 6, "{row}");
}

#[test]
fn the_page_is_whole_without_network_and_script() {
    let page = html(&full());
    check_page(&page);
    assert!(!page.contains("<script"));
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
}

#[test]
fn whiskers_stand_where_the_numbers_say() {
    // The axis runs from x = 150 at 0 % to x = 540 at 100 %: 3.9 per point. 60 % is 384, its interval 56..64
    // is 368.4..399.6.
    let models = PerModel {
        base: None,
        sft: Some(Scores { greedy: score(0.6, 0.56, 0.64), sampled: None }),
        ppo: None,
    };
    let svg = html::score_chart(&models).unwrap();
    assert!(svg.contains(r#"cx="384.0""#), "{svg}");
    assert!(svg.contains("M368.4 27.0H399.6"), "{svg}");
    assert!(svg.contains("mark hollow") && svg.contains("60.0 %") && svg.contains(">100<"));
    assert!(html::score_chart(&PerModel::default()).is_none());
}

#[test]
fn a_value_that_is_not_finite_is_null_in_json() {
    let mut report = full();
    report.curves[0].points[1].1 = f64::NAN;
    let json = serde_json::to_string(&report).unwrap();
    assert!(json.contains("[1.0,null]"), "{json}");
    assert!(html(&report).contains("<b class=\"wrong\">1 not finite</b>"));
}

#[test]
fn verdicts_follow_the_interval() {
    let gain = |low, high| Gain { mean: f64::midpoint(low, high), low, high };
    assert!(contents::verdict(&gain(0.01, 0.1)).starts_with("PPO is better"));
    assert!(contents::verdict(&gain(-0.01, 0.1)).starts_with("No difference shown"));
    assert!(contents::verdict(&gain(-0.1, -0.01)).starts_with("PPO is worse"));
}

#[test]
fn markdown_tables_hold_the_scores() {
    let text = markdown(&full());
    assert!(text.contains("| SFT | 60.0 % (56.0 to 64.0) | 55.0 % (52.0 to 58.0) | 400 |"), "{text}");
    assert!(text.contains("sampled:** +8.0 points (+5.1 to +10.9). PPO is better"), "{text}");
    assert!(text.contains("| sft | loss | 100 | 4.0000 | 2.0200 | 2.0200 | 4.0000 | 0 |"), "{text}");
    assert!(text.contains("| 2 + 2 = ? | 4 | ✗ five | ✗ 5 | ✓ 4 |"), "{text}");
    assert!(text.contains("| total | 1 h 06 min |") && text.contains("1.50 GiB"), "{text}");
}
