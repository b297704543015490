//! The three files of a report: keys, escaping, honesty about what is missing, and drawings whose coordinates
//! are checked by hand.

use super::escape::{escape_html, escape_markdown};
use super::*;

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
        seconds: Seconds {
            data: Some(2.0),
            base: Some(160.0),
            sft: Some(100.0),
            rm: Some(40.0),
            ppo: Some(3_700.0),
            eval: Some(9.4),
        },
        peak_rss_bytes: Some(1_610_612_736),
        families: vec![Family { name: "weekday|星期".into(), exact_match }],
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
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), full());
}

#[test]
fn a_stage_that_did_not_run_is_absent_everywhere() {
    let mut report = full();
    report.exact_match.ppo = None;
    report.families[0].exact_match.ppo = None;
    report.samples[0].replies.ppo = None;
    (report.paired_gain, report.paired_gain_greedy, report.seconds.ppo, report.kl) = (None, None, None, None);
    let json = serde_json::to_value(&report).unwrap();
    for pointer in ["/exact_match/ppo", "/paired_gain", "/seconds/ppo", "/kl", "/samples/0/ppo"] {
        assert!(json.pointer(pointer).is_none(), "{pointer}");
    }
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    assert!(!markdown(&report).contains("PPO"));
    assert!(!html(&report).contains("PPO"));
}

#[test]
fn an_empty_report_still_writes_and_reads() {
    let dir = tempfile::tempdir().unwrap();
    let report = Report { title: "nothing ran".into(), ..Report::default() };
    write(&report, dir.path()).unwrap();
    let json = fs::read_to_string(dir.path().join("report.json")).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    assert!(!html(&report).contains("<svg"));
}

#[test]
fn three_files_and_no_leftovers() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("out/report");
    write(&full(), &folder).unwrap();
    write(&full(), &folder).unwrap();
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["report.html", "report.json", "report.md"]);
    assert_eq!(fs::read_to_string(folder.join("report.md")).unwrap(), markdown(&full()));
}

#[test]
fn an_unwritable_folder_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("taken");
    fs::write(&file, "").unwrap();
    let error = write(&full(), &file).unwrap_err();
    assert!(matches!(&error, Error::Write { path, .. } if *path == file), "{error}");
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
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(write(&report, dir.path()), Err(Error::NotFinite { field, .. }) if field == "kl"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn untrusted_text_stays_text() {
    let attack = "</pre><script>alert(1)</script>|`*[x](javascript:y)\u{1b}[31m\u{202e}";
    let mut report = full();
    report.title = attack.into();
    report.command = format!("{attack} ```");
    report.settings = Map::from_iter([(attack.to_owned(), Value::from(attack))]);
    report.families[0].name = attack.into();
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
fn escapes_worked_by_hand() {
    assert_eq!(escape_html("a<b>&\"'\n\u{7}\u{9b}"), "a&lt;b&gt;&amp;&quot;&#39;\n␇\u{fffd}");
    assert_eq!(escape_markdown("1*2|3\n<b>_"), "1\\*2\\|3 ↵ &lt;b&gt;\\_");
    assert_eq!(escape_markdown("星期三"), "星期三");
    // What GitHub makes a link of without any brackets.
    assert_eq!(escape_markdown("see www.x.com, WWW.X.COM"), "see www&#46;x.com, WWW&#46;X.COM");
    assert_eq!(escape_markdown("http://x ftp://y 1.5 ww.w"), "http&#58;//x ftp&#58;//y 1.5 ww.w");
}

#[test]
fn the_page_needs_no_network_and_no_script() {
    let page = html(&full());
    for loads in ["http://", "https://", "src=", "url(", "@import", "<link", "<script", "javascript"] {
        assert!(!page.contains(loads), "{loads}");
    }
    assert!(page.contains("default-src 'none'"));
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
}

/// Every element that is opened is closed, in order: enough of a parser for a page without raw text elements
/// but `style`.
#[test]
fn the_page_is_well_nested() {
    let page = html(&full());
    let (head, tail) = page.split_once("<style>").unwrap();
    let page = format!("{head}{}", tail.split_once("</style>").unwrap().1);
    let mut open = Vec::new();
    for tag in page.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap();
        let name: String =
            tag.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "at </{tag}>");
        } else if !(tag.ends_with('/') || ["", "meta", "input"].contains(&name.as_str())) {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<String>::new());
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
    let svg = chart::scores(&models).unwrap();
    assert!(svg.contains(r#"cx="384.0""#), "{svg}");
    assert!(svg.contains("M368.4 27.0H399.6"), "{svg}");
    assert!(svg.contains("mark hollow") && svg.contains("60.0 %") && svg.contains(">100<"));
    assert!(chart::scores(&PerModel::default()).is_none());
}

#[test]
fn curves_break_where_they_are_not_finite() {
    let points = vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0), (3.0, 2.0)];
    assert_eq!(curve::raw(&points), [vec![(0.0, 1.0)], vec![(2.0, 3.0), (3.0, 2.0)]]);
    assert_eq!(curve::gaps(&points), 1);
    let drawn = Curve { stage: "ppo".into(), metric: "kl".into(), points };
    let svg = chart::curve(&drawn).unwrap();
    assert!(!svg.contains("NaN") && svg.contains("h0"), "{svg}");
    let json = serde_json::to_string(&drawn).unwrap();
    assert!(json.contains("[1.0,null]"), "{json}");
    assert!(serde_json::from_str::<Curve>(&json).unwrap().points[1].1.is_nan());
    let nothing = Curve { points: vec![(0.0, f64::NAN)], ..drawn };
    assert!(chart::curve(&nothing).is_none());
}

#[test]
fn thinning_keeps_the_spike() {
    let mut points: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i), 1.0)).collect();
    points[54_321].1 = 99.0;
    let line = curve::raw(&points);
    assert!(line[0].len() <= 801, "{}", line[0].len());
    assert!(line[0].contains(&(54_321.0, 99.0)));
    assert!(line[0].is_sorted_by(|a, b| a.0 <= b.0));
}

#[test]
fn smoothing_does_not_trail() {
    // A straight line is its own centred average, the ends too; an exponential average would lag behind it.
    let line: Vec<(f64, f64)> = (0..50).map(|i| (f64::from(i), 100.0 - 2.0 * f64::from(i))).collect();
    for (smooth, raw) in curve::smoothed(&line, 5)[0].iter().zip(&line) {
        assert!((smooth.1 - raw.1).abs() < 1e-9);
    }
    // By hand, window 3: (1 + 2 + 6) / 3 = 3 in the middle, the ends as they are.
    let smooth = curve::smoothed(&[(0.0, 1.0), (1.0, 2.0), (2.0, 6.0)], 3);
    assert_eq!(smooth, [vec![(0.0, 1.0), (1.0, 3.0), (2.0, 6.0)]]);
    // Neighbours of a gap average over what is finite: (2 + 4) / 2.
    let smooth = curve::smoothed(&[(0.0, 2.0), (1.0, 4.0), (2.0, f64::NAN), (3.0, 8.0)], 3);
    assert_eq!(smooth, [vec![(0.0, 2.0), (1.0, 3.0)], vec![(3.0, 8.0)]]);
    assert_eq!(curve::window(&[(0.0, 0.0); 19]), None);
    assert_eq!(curve::window(&[(0.0, 0.0); 1000]), Some(51));
}

#[test]
fn a_constant_curve_has_an_axis() {
    let flat = Curve { stage: "sft".into(), metric: "lr".into(), points: vec![(0.0, 1e-4), (1.0, 1e-4)] };
    let svg = chart::curve(&flat).unwrap();
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn the_smallest_and_the_largest_numbers_have_an_axis() {
    let (tiny, most) = (5e-324, f64::MAX);
    // The step would be zero, denormal, or infinite.
    for (low, high) in
        [(0.0, tiny), (-tiny, tiny), (0.0, 3e-311), (1e-310, 2e-310), (-1e308, 1e308), (-most, most)]
    {
        assert_eq!(layout::ticks(low, high, 5), [low], "{low:e} to {high:e}");
    }
    assert_eq!(layout::ticks(0.0, most, 1), [0.0]);
    // Steps of 2e307 and of 1e-306, which are large and small but normal.
    assert_eq!((layout::ticks(0.0, 1e308, 5).len(), layout::ticks(0.0, 1e-306, 1).len()), (6, 2));
    assert_eq!(
        (layout::tick_label(-most, 0.0), layout::tick_label(2e12, 1e12)),
        ("−1.8e308".into(), "2.0e12".into())
    );

    for values in [[0.0, tiny], [-tiny, tiny], [1e308, -1e308], [-most, most], [most, most], [tiny, tiny]] {
        let points: Vec<(f64, f64)> = (0..40).map(|i| (f64::from(i), values[i as usize % 2])).collect();
        let curve = Curve { stage: "sft".into(), metric: "loss".into(), points: points.clone() };
        let overlay = chart::overlay("loss", &[("run".into(), points)]);
        for svg in [chart::curve(&curve).unwrap(), overlay] {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{values:?}: {svg}");
            // Every place lies on the drawing, and every label is short.
            assert!(svg.split(['"', ' ']).all(|word| word.len() < 100), "{values:?}: {svg}");
        }
    }
}

#[test]
fn figures_read_well() {
    assert_eq!(layout::seconds(9.44), "9.4 s");
    assert_eq!(layout::seconds(59.96), "1 min 00 s");
    assert_eq!(layout::seconds(160.2), "2 min 40 s");
    assert_eq!(layout::seconds(3_700.0), "1 h 01 min");
    assert_eq!(layout::bytes(1_610_612_736), "1.50 GiB");
    assert_eq!(layout::bytes(10 << 20), "10.0 MiB");
    assert_eq!(layout::points(0.08), "+8.0");
    assert_eq!(layout::points(-0.0512), "−5.1");
    assert_eq!(layout::points(-0.0001), "0.0");
    assert_eq!(layout::ticks(0.0, 100.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    assert_eq!(layout::ticks(-3.2, 3.2, 8), [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]);
    assert_eq!(layout::tick_label(0.25, 0.05), "0.25");
    assert_eq!(layout::tick_label(2000.0, 500.0), "2000");
    assert_eq!(layout::tick_label(20_000.0, 5_000.0), "20k");
    assert_eq!(layout::tick_label(-0.0, 0.5), "0.0");
}

#[test]
fn verdicts_follow_the_interval() {
    let gain = |low, high| Gain { mean: f64::midpoint(low, high), low, high };
    assert!(layout::verdict(&gain(0.01, 0.1)).starts_with("PPO is better"));
    assert!(layout::verdict(&gain(-0.01, 0.1)).starts_with("No difference shown"));
    assert!(layout::verdict(&gain(-0.1, -0.01)).starts_with("PPO is worse"));
}

#[test]
fn markdown_tables_hold_the_scores() {
    let text = markdown(&full());
    assert!(text.contains("| SFT | 60.0 % (56.0 to 64.0) | 55.0 % (52.0 to 58.0) | 400 |"), "{text}");
    assert!(text.contains("sampled:** +8.0 points (+5.1 to +10.9). PPO is better"), "{text}");
    assert!(text.contains("| weekday\\|星期 | 10.0 %"), "{text}");
    assert!(text.contains("| sft | loss | 100 | 4.0000 | 2.0200 | 2.0200 | 4.0000 | 0 |"), "{text}");
    assert!(text.contains("| 2 + 2 = ? | 4 | ✗ five | ✗ 5 | ✓ 4 |"), "{text}");
    assert!(text.contains("| total | 1 h 06 min |") && text.contains("1.50 GiB"), "{text}");
}
