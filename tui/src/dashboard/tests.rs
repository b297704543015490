//! Screens as text, at the sizes that matter, and random events.

use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::layout::Pane;
use super::state::Overlay;
use super::*;
use crate::theme::{Symbols, Theme, ThemeName};

fn empty(theme: ThemeName, symbols: Symbols) -> Dashboard {
    Dashboard::new(Theme::new(theme), symbols)
}

fn charts(stage: &str) -> Charts {
    match stage {
        "ppo" => &[
            ("reward", &["objective/scores"]),
            ("KL to the reference", &["objective/kl"]),
            ("policy loss", &["loss/policy_avg"]),
            ("entropy", &["objective/entropy"]),
            ("clip fraction, policy and value", &["policy/clipfrac_avg", "val/clipfrac_avg"]),
            ("value loss", &["loss/value_avg"]),
            ("reply length", &["response_length/mean"]),
            ("cut replies", &["truncated_rate"]),
            ("reward minus KL penalty", &["objective/rlhf_reward"]),
            ("explained variance", &["val/explained_variance"]),
            ("gradient norm", &["grad_norm", "critic_grad_norm"]),
            ("throughput, tokens/s", &[THROUGHPUT]),
        ],
        "rm" => &[
            ("loss", &["loss"]),
            ("accuracy", &["accuracy", "eval/accuracy"]),
            ("margin", &["margin", "eval/margin"]),
            ("scores, preferred and other", &["chosen_score", "rejected_score"]),
            ("gradient norm", &["grad_norm"]),
            ("throughput, tokens/s", &[THROUGHPUT]),
        ],
        "sft" => &[
            ("loss", &["loss", "eval/loss"]),
            ("accuracy", &["eval/accuracy"]),
            ("gradient norm", &["grad_norm"]),
            ("learning rate", &["lr"]),
            ("throughput, tokens/s", &[THROUGHPUT]),
        ],
        _ => &[],
    }
}

fn facts(stage: &str, unit: &str, total: u64, status: Status) -> Event {
    let (name, stage, unit) = (format!("runs/{stage}"), stage.to_owned(), unit.to_owned());
    let settings = vec![("ppo.kl_target".to_owned(), 6.0)];
    Event::Run(RunFacts {
        name,
        charts: charts(&stage),
        has_samples: stage == "ppo",
        stage,
        unit,
        total_steps: Some(total),
        status,
        takes_requests: true,
        settings,
    })
}

fn row(step: u64, numbers: &[(&str, f64)]) -> Event {
    Event::Row { step, numbers: numbers.iter().map(|&(name, value)| (name.to_owned(), value)).collect() }
}

fn key(code: KeyCode) -> Event {
    Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn press(dashboard: &mut Dashboard, keys: &str) -> Vec<Effect> {
    keys.chars().flat_map(|c| dashboard.update(key(KeyCode::Char(c)))).collect()
}

/// The screen as text, without the spaces at the ends of its lines.
fn screen(dashboard: &Dashboard, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| dashboard.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect::<Vec<_>>().join("\n")
}

/// A PPO run of 40 of 100 iterations, whose KL has passed its target.
fn ppo(theme: ThemeName, symbols: Symbols) -> Dashboard {
    let mut dashboard = empty(theme, symbols);
    dashboard.update(facts("ppo", "iteration", 100, Status::Running));
    for step in 1..=40 {
        let x = step as f64 / 40.0;
        dashboard.update(row(
            step,
            &[
                ("objective/scores", -1.0 + 3.0 * x + 0.2 * (step as f64).sin()),
                ("objective/kl", 12.0 * x * x),
                ("objective/entropy", 2.5 - x),
                ("response_length/mean", 40.0 + 10.0 * x),
                ("truncated_rate", 0.1),
                ("loss", -0.01),
                ("loss/policy_avg", -0.01 - 0.01 * x),
                ("loss/value_avg", 1.0 - 0.5 * x),
                ("policy/clipfrac_avg", 0.1 + 0.1 * x),
                ("val/clipfrac_avg", 0.05),
                ("grad_norm", 1.0 + x),
                ("tokens", 6400.0),
                ("timing/rollout", 4.0),
                ("timing/score", 1.0),
                ("timing/update", 3.0),
                ("seconds", 8.0),
            ],
        ));
        dashboard.update(Event::Sample(Sample {
            step,
            prompt: format!("What is {step} + 1? \u{1b}[2J 今天是星期三"),
            reply: format!("It is {}.", step + 1),
            score: x,
        }));
    }
    let rank = |rank, phase: &str, age_seconds| RankState {
        rank,
        phase: phase.to_owned(),
        step: 40,
        resident_bytes: 800 << 20,
        age_seconds,
    };
    dashboard.update(Event::Ranks(vec![rank(0, "rollout", 0), rank(1, "rollout", 14)]));
    let models = [("policy", [40, 40, 80]), ("reference", [40, 0, 0])];
    dashboard.update(Event::Memory(Memory {
        models: models.map(|(name, sizes)| (name.to_owned(), sizes.map(|size| size << 20))).to_vec(),
        tiers: vec![("host".to_owned(), 120 << 20, Some(2 << 30))],
    }));
    dashboard.update(Event::Message("saved runs/ppo/checkpoints/step-40".to_owned()));
    dashboard
}

fn sft(theme: ThemeName, symbols: Symbols) -> Dashboard {
    let mut dashboard = empty(theme, symbols);
    dashboard.update(facts("sft", "step", 50, Status::Finished));
    for step in 1..=50 {
        let loss = 3.0 / (1.0 + 0.1 * step as f64);
        dashboard.update(row(
            step,
            &[("loss", loss), ("lr", 1e-4), ("grad_norm", 1.0), ("tokens", 512.0), ("seconds", 0.5)],
        ));
        if step % 10 == 0 {
            dashboard.update(row(step, &[("eval/loss", loss + 0.2), ("eval/accuracy", 0.5)]));
        }
    }
    dashboard
}

fn rm(theme: ThemeName, symbols: Symbols) -> Dashboard {
    let mut dashboard = empty(theme, symbols);
    dashboard.update(facts("rm", "step", 20, Status::Paused { step: 12 }));
    for step in 1..=12 {
        let x = step as f64 / 12.0;
        dashboard.update(row(
            step,
            &[
                ("loss", 0.7 - 0.2 * x),
                ("accuracy", 0.5 + 0.3 * x),
                ("chosen_score", x),
                ("rejected_score", -x),
                ("margin", 2.0 * x),
            ],
        ));
    }
    dashboard
}

/// Everything that a snapshot of one run shows: the small, the usual and the large screen.
fn screens(dashboard: &mut Dashboard) -> String {
    let mut text = String::new();
    for (width, height) in [(40, 12), (80, 24), (160, 50)] {
        text += &["===== ", &width.to_string(), "x", &height.to_string(), "\n"].concat();
        text += &screen(dashboard, width, height);
        text.push('\n');
    }
    text
}

#[test]
fn ppo_in_unicode() {
    insta::assert_snapshot!(screens(&mut ppo(ThemeName::Dark, Symbols::UNICODE)));
}

#[test]
fn ppo_in_ascii() {
    let mut dashboard = ppo(ThemeName::Plain, Symbols::ASCII);
    let text = screens(&mut dashboard);
    assert!(text.is_ascii(), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn sft_in_both() {
    let both = [(ThemeName::Dark, Symbols::UNICODE), (ThemeName::Plain, Symbols::ASCII)];
    insta::assert_snapshot!(both.map(|(theme, symbols)| screens(&mut sft(theme, symbols))).concat());
}

#[test]
fn rm_in_both() {
    let both = [(ThemeName::Dark, Symbols::UNICODE), (ThemeName::Plain, Symbols::ASCII)];
    insta::assert_snapshot!(both.map(|(theme, symbols)| screens(&mut rm(theme, symbols))).concat());
}

#[test]
fn an_empty_run_and_one_without_numbers() {
    let mut nothing = empty(ThemeName::Plain, Symbols::ASCII);
    let mut not_finite = empty(ThemeName::Plain, Symbols::ASCII);
    not_finite.update(facts("sft", "step", 3, Status::Ended));
    (1..=3).for_each(|step| drop(not_finite.update(row(step, &[("loss", f64::NAN), ("grad_norm", 1.0)]))));
    insta::assert_snapshot!(screens(&mut nothing) + &screens(&mut not_finite));
}

#[test]
fn every_pane_on_a_small_screen() {
    let mut dashboard = ppo(ThemeName::Plain, Symbols::ASCII);
    let mut text = String::new();
    for _ in Pane::ALL {
        text.push_str(&screen(&dashboard, 40, 12));
        text.push_str("\n=====\n");
        dashboard.update(key(KeyCode::Tab));
    }
    press(&mut dashboard, "?");
    text.push_str(&screen(&dashboard, 60, 16));
    insta::assert_snapshot!(text);
}

#[test]
fn no_row_is_wider_than_the_screen_and_no_escape_sequence_reaches_it() {
    let mut dashboard = ppo(ThemeName::Dark, Symbols::UNICODE);
    dashboard.update(row(41, &[("\u{1b}]0;title\u{7}evil", 1.0)]));
    dashboard.update(Event::Message("\u{1b}[31mred\nsecond".to_owned()));
    for (width, height) in [(40, 12), (80, 24), (160, 50)] {
        let text = screen(&dashboard, width, height);
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'));
        assert!(text.lines().all(|line| text::width(line) <= width.into()));
    }
}

#[test]
fn a_run_is_asked_only_if_it_can_answer() {
    let mut dashboard = sft(ThemeName::Plain, Symbols::ASCII);
    assert!(press(&mut dashboard, "psxy").is_empty());
    assert_eq!(dashboard.overlay, Overlay::None);
    dashboard.update(facts("sft", "step", 100, Status::Running));
    let asked = press(&mut dashboard, "ps");
    assert_eq!(asked, [Effect::Ask(Request::Pause), Effect::Ask(Request::Checkpoint)]);
    // Anything but y leaves the run alone.
    assert!(press(&mut dashboard, "xnxq").is_empty());
    assert_eq!(press(&mut dashboard, "xy"), [Effect::Ask(Request::Stop)]);
    dashboard.update(facts("sft", "step", 100, Status::Paused { step: 50 }));
    assert_eq!(press(&mut dashboard, "p"), [Effect::Ask(Request::Continue)]);
    assert_eq!(press(&mut dashboard, "q"), [Effect::Close]);
    assert_eq!(dashboard.update(key(KeyCode::Esc)), [Effect::Close]);
}

#[test]
fn ctrl_c_closes_the_dashboard_from_everywhere() {
    let mut dashboard = ppo(ThemeName::Plain, Symbols::ASCII);
    let ctrl_c = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    for keys in ["", "?", "x"] {
        press(&mut dashboard, keys);
        assert_eq!(dashboard.update(ctrl_c.clone()), [Effect::Close]);
    }
}

#[test]
fn an_older_sample_stays_while_new_ones_arrive() {
    let mut dashboard = ppo(ThemeName::Plain, Symbols::ASCII);
    press(&mut dashboard, "cc");
    (0..3).for_each(|_| drop(dashboard.update(key(KeyCode::Tab))));
    assert!(screen(&dashboard, 60, 14).contains("What is 38 + 1"));
    dashboard.update(Event::Sample(Sample { step: 41, ..Sample::default() }));
    assert!(screen(&dashboard, 60, 14).contains("What is 38 + 1"));
    press(&mut dashboard, "CCC");
    assert!(screen(&dashboard, 60, 14).contains("iteration 41"));
}

#[test]
fn the_rest_of_the_run_is_the_usual_step_times_the_steps_that_are_left() {
    assert_eq!(ppo(ThemeName::Plain, Symbols::ASCII).remaining_seconds(), Some(480.0));
    assert_eq!(empty(ThemeName::Plain, Symbols::ASCII).remaining_seconds(), None);
}

#[test]
fn a_hundred_thousand_rows_are_drawn_in_time() {
    let mut dashboard = empty(ThemeName::Dark, Symbols::UNICODE);
    dashboard.update(facts("sft", "step", 100_000, Status::Running));
    for step in 1..=100_000_u64 {
        let loss = 1.0 + (step as f64 * 0.37).sin() / step as f64;
        dashboard.update(row(step, &[("loss", loss), ("grad_norm", 1.0), ("tokens", 5.0), ("seconds", 0.1)]));
    }
    press(&mut dashboard, "+++");
    let started = std::time::Instant::now();
    let text = screen(&dashboard, 160, 50);
    // The limit leaves room for a build without optimization on a busy machine, and still finds work that
    // grows with the square of the rows.
    assert!(started.elapsed() < std::time::Duration::from_secs(30), "{:?}", started.elapsed());
    assert!(text.contains("100000/100000"));
}

fn any_key() -> impl Strategy<Value = Event> {
    let codes = prop_oneof![
        proptest::sample::select("qpsxynlc+-?C=zjk".chars().collect::<Vec<_>>()).prop_map(KeyCode::Char),
        proptest::sample::select(vec![
            KeyCode::Tab,
            KeyCode::BackTab,
            KeyCode::Left,
            KeyCode::Right,
            KeyCode::Up,
            KeyCode::Down,
            KeyCode::PageDown,
            KeyCode::Esc
        ]),
    ];
    codes.prop_map(key)
}

fn any_event() -> impl Strategy<Value = Event> {
    let name = prop_oneof![
        proptest::sample::select(vec![
            "loss",
            "seconds",
            "tokens",
            "timing/rollout",
            "objective/kl",
            "eval/loss"
        ])
        .prop_map(str::to_owned),
        ".{0,12}",
    ];
    let numbers = proptest::collection::vec((name, any::<f64>()), 0..5);
    let status = proptest::sample::select(vec![
        Status::Waiting,
        Status::Running,
        Status::Paused { step: u64::MAX },
        Status::Silent { seconds: 5 },
        Status::Ended,
    ]);
    let run = (".{0,20}", "(sft|rm|ppo|.{0,3})", any::<Option<u64>>(), status).prop_map(
        |(name, stage, total_steps, status)| {
            let (unit, settings) = ("step".to_owned(), vec![("ppo.kl_target".to_owned(), f64::NAN)]);
            let (charts, has_samples, takes_requests) = (charts(&stage), stage == "ppo", true);
            Event::Run(RunFacts {
                name,
                stage,
                charts,
                has_samples,
                unit,
                total_steps,
                status,
                takes_requests,
                settings,
            })
        },
    );
    let sample = (any::<u64>(), ".{0,40}", ".{0,40}", any::<f64>())
        .prop_map(|(step, prompt, reply, score)| Event::Sample(Sample { step, prompt, reply, score }));
    let ranks = (any::<usize>(), ".{0,9}", any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
        |(rank, phase, step, resident_bytes, age_seconds)| {
            Event::Ranks(vec![RankState { rank, phase, step, resident_bytes, age_seconds }])
        },
    );
    prop_oneof![
        4 => any_key(),
        4 => (any::<u64>(), numbers).prop_map(|(step, numbers)| Event::Row { step, numbers }),
        1 => run,
        1 => sample,
        1 => ranks,
        1 => ".{0,60}".prop_map(Event::Message),
        1 => Just(Event::ForgetRows),
        1 => Just(Event::ForgetSamples),
    ]
}

proptest! {
    #![proptest_config(crate::testing::cases(200))]

    #[test]
    fn no_events_at_any_size_make_it_panic(
        events in proptest::collection::vec(any_event(), 0..40),
        (width, height) in (0_u16..200, 0_u16..60),
        unicode: bool,
    ) {
        let symbols = if unicode { Symbols::UNICODE } else { Symbols::ASCII };
        let mut dashboard = empty(ThemeName::Plain, symbols);
        for event in events {
            dashboard.update(event);
            let area = Rect::new(0, 0, width, height);
            dashboard.draw_in(area, &mut Buffer::empty(area));
        }
    }
}
