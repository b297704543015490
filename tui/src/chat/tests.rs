//! The chat as a state machine: keys go in, effects and frames come out.

use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::event::*;
use super::*;
use crate::screen::Input;
use crate::theme::ThemeName;

/// A screen with a time that goes on by 10 ms an event, and all effects so far.
struct Harness {
    screen: ChatScreen,
    effects: Vec<Effect>,
    now: Duration,
}

impl Harness {
    fn new(models: &[&str], unicode: bool) -> Self {
        Self::with_adapters(models, &[], unicode)
    }

    /// A screen with models, and with adapters of the first one by name and path.
    fn with_adapters(models: &[&str], adapters: &[(&str, &str)], unicode: bool) -> Self {
        let mut number = 0;
        let new_id = move || {
            number += 1;
            format!("s{number}")
        };
        let setup = Setup {
            models: models.iter().map(|&model| model.to_owned()).collect(),
            adapters: adapters
                .iter()
                .map(|(name, path)| Adapter { name: (*name).to_owned(), path: (*path).to_owned() })
                .collect(),
            is_endpoint: |model| model.starts_with("http://"),
            compare: (models.len() > 1).then_some(Names::Shown),
            system: None,
            sampling: Sampling { temperature: 0.7, top_k: 0, top_p: 1.0, max_new_tokens: 64, seed: 42 },
            context: ContextPolicy::Drop,
            history: Vec::new(),
            theme: Theme::new(ThemeName::Plain),
            symbols: if unicode { Symbols::UNICODE } else { Symbols::ASCII },
            keys: Keymap::default(),
            vim: false,
            mouse: false,
            new_id: Box::new(new_id),
            saves: true,
            given: Vec::new(),
            feedback_folder: "/feedback".to_owned(),
        };
        let (screen, effects) = ChatScreen::new(setup);
        let mut harness = Self { screen, effects, now: Duration::ZERO };
        for slot in 0..models.len() + adapters.len() {
            let detail = "21 M parameters, context 256 tokens, on cpu".to_owned();
            harness.model(ModelEvent::Loaded { slot, context: Some(256), detail });
        }
        harness
    }

    fn event(&mut self, event: Event) {
        self.now += Duration::from_millis(10);
        self.effects.extend(self.screen.update(event, self.now));
    }

    fn model(&mut self, event: ModelEvent) {
        self.event(Event::Model(event));
    }

    fn key(&mut self, text: &str) {
        let (modifiers, code) = match text.split_once('-') {
            Some(("ctrl", rest)) => (KeyModifiers::CONTROL, rest),
            Some(("alt", rest)) => (KeyModifiers::ALT, rest),
            _ => (KeyModifiers::NONE, text),
        };
        let code = match code {
            "enter" => KeyCode::Enter,
            "esc" => KeyCode::Esc,
            "up" => KeyCode::Up,
            "left" => KeyCode::Left,
            "right" => KeyCode::Right,
            "tab" => KeyCode::Tab,
            "pageup" => KeyCode::PageUp,
            other => KeyCode::Char(other.chars().next().unwrap()),
        };
        self.event(Event::Input(Input::Key(KeyEvent::new(code, modifiers))));
    }

    /// Types a line and sends it.
    fn say(&mut self, text: &str) {
        self.event(Event::Input(Input::Paste(text.to_owned())));
        self.key("enter");
    }

    /// Lets the model write the oldest answer that is asked for.
    fn answer(&mut self, text: &str) {
        let turn = self.screen.running.front().expect("an answer is asked for").turn;
        self.model(ModelEvent::Started { turn, prompt_tokens: 10, dropped: 0 });
        for piece in text.split_inclusive(' ') {
            self.model(ModelEvent::Piece { turn, text: piece.to_owned(), new_tokens: 1, rate: None });
        }
        self.model(ModelEvent::Finished { turn, statistics: statistics("stop") });
    }

    fn frame(&mut self, columns: u16, rows: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| self.screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn requests(&self) -> Vec<&Request> {
        let mut requests = Vec::new();
        for effect in &self.effects {
            if let Effect::Generate(asked) = effect {
                requests.extend(asked);
            }
        }
        requests
    }

    fn judgements(&self) -> Vec<&Feedback> {
        let mut judgements = Vec::new();
        for effect in &self.effects {
            if let Effect::Judge(feedback) = effect {
                judgements.push(feedback);
            }
        }
        judgements
    }
}

fn statistics(reason: &str) -> Statistics {
    Statistics {
        prompt_tokens: 10,
        new_tokens: 5,
        context: 256,
        first_token: Duration::from_millis(100),
        total: Duration::from_millis(500),
        finish_reason: reason.to_owned(),
    }
}

fn texts(request: &Request) -> Vec<&str> {
    request.messages.iter().map(|(_, text)| text.as_str()).collect()
}

#[test]
fn a_message_asks_the_model_and_its_answer_is_kept() {
    let mut chat = Harness::new(&["runs/ppo/final"], true);
    chat.say("hello");
    assert_eq!(texts(chat.requests()[0]), ["hello"]);
    chat.answer("good day ");
    let Some(Effect::Save(saved)) = chat.effects.last() else { panic!("{:?}", chat.effects.last()) };
    assert_eq!(saved.conversation.turn(1).text, "good day ");
    assert_eq!((saved.conversation.turn(1).finish.as_deref(), saved.id.as_str()), (Some("stop"), "s1"));
    chat.say("again");
    assert_eq!(texts(chat.requests()[1]), ["hello", "good day ", "again"]);
}

#[test]
fn thirty_pasted_lines_are_one_message() {
    let mut chat = Harness::new(&["m"], true);
    let lines: Vec<String> = (0..30).map(|line| format!("line {line}")).collect();
    chat.say(&lines.join("\r\n"));
    assert_eq!(texts(chat.requests()[0]), [lines.join("\n")]);
}

#[test]
fn a_message_during_an_answer_stays_in_the_input() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("one");
    chat.say("two");
    assert_eq!((chat.requests().len(), chat.screen.editor.text().as_str()), (1, "two"));
    chat.key("esc");
    assert_eq!(chat.effects.last(), Some(&Effect::Stop));
}

#[test]
fn another_answer_stands_beside_the_first_and_has_another_seed() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("q");
    chat.answer("a");
    chat.key("ctrl-t");
    chat.answer("b");
    let seeds: Vec<u64> = chat.requests().iter().map(|request| request.sampling.seed).collect();
    assert_eq!(seeds, [42, 43]);
    assert!(chat.frame(80, 24).contains("2/2"));
    chat.key("alt-left");
    assert_eq!(chat.screen.talk.path(), [0, 1]);
    chat.say("/prefer b");
    let Verdict::Pair { chosen, rejected, source, .. } = &chat.judgements()[0].verdict else { panic!() };
    assert_eq!((chosen.text.as_str(), rejected.text.as_str(), *source), ("b", "a", PairSource::Sibling));
    assert_eq!(chat.screen.talk.path(), [0, 2]);
}

#[test]
fn an_edited_message_is_a_branch_and_an_edited_answer_a_preference() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("q");
    chat.answer("a");
    chat.now += Duration::from_secs(3);
    chat.key("esc");
    assert_eq!(chat.screen.editor.text(), "q");
    chat.screen.editor.clear();
    chat.say("p");
    chat.answer("c");
    assert_eq!(texts(chat.requests()[1]), ["p"]);
    assert_eq!(chat.screen.talk.siblings(0), [0, 2]);
    chat.say("/edit answer");
    chat.screen.editor.clear();
    chat.say("better");
    let Verdict::Pair { chosen, rejected, source, .. } = &chat.judgements()[0].verdict else { panic!() };
    assert_eq!((chosen.text.as_str(), rejected.text.as_str(), *source), ("better", "c", PairSource::Edit));
    assert_eq!(chosen.model, None);
    chat.say("more");
    assert_eq!(texts(chat.requests()[2]), ["p", "better", "more"]);
}

#[test]
fn a_comparison_asks_all_models_with_one_seed_and_goes_on_from_the_choice() {
    let mut chat = Harness::new(&["runs/sft/final", "runs/ppo/final"], true);
    chat.say("q");
    let requests = chat.requests();
    assert_eq!(
        requests.iter().map(|request| (request.slot, request.sampling.seed)).collect::<Vec<_>>(),
        [(0, 42), (1, 42)]
    );
    chat.answer("from sft");
    chat.answer("from ppo");
    let frame = chat.frame(80, 24);
    assert!(frame.contains("a sft/final") && frame.contains("b ppo/final"), "{frame}");
    assert!(frame.lines().any(|line| line.contains("from sft") && line.contains("from ppo")), "{frame}");
    chat.say("/good");
    assert!(chat.judgements().is_empty());
    chat.say("/prefer b");
    let Verdict::Pair { chosen, rejected, source, blind } = &chat.judgements()[0].verdict else { panic!() };
    assert_eq!(
        (chosen.model.as_deref(), rejected.model.as_deref()),
        (Some("runs/ppo/final"), Some("runs/sft/final"))
    );
    assert_eq!((*source, *blind), (PairSource::Compare, false));
    chat.say("more");
    assert_eq!(texts(chat.requests()[2]), ["q", "from ppo", "more"]);
}

#[test]
fn adapters_are_listed_switched_and_compared_in_one_conversation() {
    let adapters = [("sql", "runs/sql/final"), ("life", "runs/life/final")];
    let mut chat = Harness::with_adapters(&["runs/base/final"], &adapters, true);
    let loaded = |effect: &Effect| match effect {
        Effect::Load { slot, model } => Some((*slot, model.clone())),
        _ => None,
    };
    let loaded: Vec<(usize, String)> = chat.effects.iter().filter_map(loaded).collect();
    let wanted = [(0, "runs/base/final"), (1, "runs/sql/final"), (2, "runs/life/final")];
    assert_eq!(loaded, wanted.map(|(slot, model)| (slot, model.to_owned())));

    // The first adapter answers, and the last line tells its name.
    chat.say("one");
    chat.answer("first");
    assert!(chat.frame(90, 20).contains("adapter sql"), "{}", chat.frame(90, 20));
    chat.say("/adapter");
    let list = chat.frame(90, 20);
    assert!(list.contains("> sql  runs/sql/final") && list.contains("  off  runs/base/final"), "{list}");
    chat.key("esc");

    chat.say("/adapter life");
    chat.say("two");
    chat.answer("second");
    chat.say("/adapter off");
    assert!(!chat.frame(90, 20).contains("adapter"), "{}", chat.frame(90, 20));
    chat.say("three");
    chat.answer("third");
    assert_eq!(chat.requests().iter().map(|request| request.slot).collect::<Vec<_>>(), [1, 2, 0]);
    assert_eq!(texts(chat.requests()[2]), ["one", "first", "two", "second", "three"]);

    // A judgement names the folder of the adapter that wrote the answer.
    chat.key("alt-up");
    chat.key("alt-up");
    chat.key("alt-up");
    chat.say("/good");
    let Verdict::Thumb { answer, .. } = &chat.judgements()[0].verdict else { panic!("no thumb") };
    assert_eq!((answer.text.as_str(), answer.model.as_deref()), ("second", Some("runs/life/final")));

    chat.say("/adapter other");
    assert!(chat.frame(90, 20).contains("there is no adapter other: /adapter takes off, sql, life"));
    chat.say("/compare sql life");
    chat.say("four");
    let slots: Vec<usize> = chat.requests()[3..].iter().map(|request| request.slot).collect();
    assert_eq!(slots, [1, 2]);

    let mut chat = Harness::new(&["m"], true);
    chat.say("/adapter sql");
    assert!(chat.frame(90, 20).contains("start the chat with --model DIR --adapter DIR"));
}

#[test]
fn a_blind_comparison_hides_the_names_until_the_choice() {
    let mut chat = Harness::new(&["runs/sft/final", "runs/ppo/final"], true);
    chat.say("/compare runs/sft/final runs/ppo/final blind");
    chat.say("q");
    chat.answer("one");
    chat.answer("two");
    let frame = chat.frame(80, 24);
    assert!(!frame.contains("sft") && !frame.contains("ppo"), "{frame}");
    chat.say("/prefer tie");
    assert!(matches!(chat.judgements()[0].verdict, Verdict::Tie { blind: true, .. }));
    assert!(chat.frame(80, 24).contains("/final"));
}

#[test]
fn thumbs_and_ratings_are_written_with_their_note_once() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("q");
    chat.say("/good");
    assert!(chat.judgements().is_empty(), "an answer that is being written cannot be judged");
    chat.screen.editor.clear();
    chat.answer("a");
    chat.say("/bad too short");
    chat.say("/rate 2");
    let [thumb, rating] = chat.judgements()[..] else { panic!() };
    assert!(matches!(&thumb.verdict, Verdict::Thumb { answer, good: false } if answer.text == "a"));
    assert_eq!((thumb.note.as_deref(), rating.note.as_deref()), (Some("too short"), None));
    assert!(matches!(rating.verdict, Verdict::Rating { rating: 2, .. }));
    assert_eq!(thumb.prompt, [(Role::User, "q".to_owned())]);
    chat.say("/rate 6");
    assert_eq!(chat.judgements().len(), 2);
}

#[test]
fn a_refused_message_returns_to_the_input() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("long");
    chat.model(ModelEvent::Failed { turn: 1, error: "too long\u{1b}[2J".to_owned() });
    assert_eq!((chat.screen.editor.text().as_str(), chat.screen.talk.path().len()), ("long", 0));
    let frame = chat.frame(80, 24);
    assert!(frame.contains("too long") && !frame.contains('\u{1b}'), "{frame}");
}

#[test]
fn sequences_of_a_model_do_not_reach_the_terminal() {
    let mut chat = Harness::new(&["m\u{1b}[31m"], true);
    chat.say("q");
    chat.answer("\u{1b}]52;c;cm0=\u{7} \u{202e}end");
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| chat.screen.draw(frame)).unwrap();
    let cells = terminal.backend().buffer().content();
    assert!(!cells.iter().any(|cell| cell.symbol().chars().any(|c| c.is_control() || c == '\u{202e}')));
}

#[test]
fn a_new_session_keeps_the_old_one_and_a_saved_one_opens() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("q");
    chat.answer("a");
    let Some(Effect::Save(saved)) = chat.effects.last().cloned() else { panic!() };
    chat.say("/new");
    assert!(chat.screen.talk.is_empty() && chat.screen.id() == "s2");
    chat.event(Event::Opened(saved));
    assert_eq!((chat.screen.id(), chat.screen.talk.path().len()), ("s1", 2));
    chat.say("/fork");
    assert_eq!((chat.screen.id(), chat.screen.talk.path().len()), ("s3", 2));
}

#[test]
fn ctrl_c_stops_then_clears_then_ends() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("q");
    chat.key("ctrl-c");
    assert_eq!(chat.effects.last(), Some(&Effect::Stop));
    chat.answer("a");
    chat.event(Event::Input(Input::Paste("text".into())));
    chat.key("ctrl-c");
    assert!(chat.screen.editor.is_empty() && !chat.effects.contains(&Effect::Quit));
    chat.key("ctrl-c");
    assert!(!chat.effects.contains(&Effect::Quit) && chat.frame(80, 24).contains("again ends the chat"));
    chat.now += Duration::from_secs(3);
    chat.key("ctrl-c");
    assert!(!chat.effects.contains(&Effect::Quit), "the first press was too long ago");
    chat.key("ctrl-c");
    assert_eq!(chat.effects.last(), Some(&Effect::Quit));
}

#[test]
fn a_blind_comparison_stays_blind_when_its_session_is_closed_before_the_choice() {
    let mut chat = Harness::new(&["sft", "ppo"], true);
    chat.say("/compare sft ppo blind");
    chat.say("q");
    chat.answer("one");
    chat.answer("two");
    let Some(Effect::Save(saved)) = chat.effects.last().cloned() else { panic!() };
    let mut chat = Harness::new(&["sft"], true);
    chat.event(Event::Opened(saved));
    let frame = chat.frame(80, 24);
    assert!(frame.contains("name hidden  2/2"), "{frame}");
    chat.say("/prefer a");
    let Verdict::Pair { blind, source, .. } = chat.judgements()[0].verdict else { panic!() };
    assert_eq!((blind, source), (true, PairSource::Compare));
    assert!(!chat.frame(80, 24).contains("hidden"));
}

#[test]
fn a_correction_of_a_hidden_answer_is_not_hidden() {
    let mut chat = Harness::new(&["sft", "ppo"], true);
    chat.say("/compare sft ppo blind");
    chat.say("q");
    chat.answer("one");
    chat.answer("two");
    let Some(Effect::Save(saved)) = chat.effects.last().cloned() else { panic!() };
    let mut chat = Harness::new(&["sft"], true);
    chat.event(Event::Opened(saved));
    chat.say("/edit answer");
    chat.screen.editor.clear();
    chat.say("mine");
    assert!(chat.screen.talk.is_blind(2) && !chat.screen.talk.is_blind(3));
}

#[test]
fn a_judgement_that_is_not_written_is_not_shown() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("q");
    chat.answer("a");
    chat.say("/rate 2");
    chat.say("/good");
    let Feedback { session, turn, before, .. } = chat.judgements()[1].clone();
    chat.event(Event::NotWritten { session, turn, before });
    let judgement = chat.screen.talk.turn(1).judgement;
    assert_eq!((judgement.good, judgement.rating), (None, Some(2)));
}

#[test]
fn a_preference_among_three_that_is_not_written_is_not_shown() {
    let mut chat = Harness::new(&["a", "b", "c"], true);
    chat.say("q");
    for answer in ["one", "two", "three"] {
        chat.answer(answer);
    }
    chat.say("/prefer b");
    assert!(chat.screen.talk.turn(2).judgement.preferred);
    let judgements: Vec<Feedback> = chat.judgements().into_iter().cloned().collect();
    assert_eq!(judgements.len(), 2);
    for Feedback { session, turn, before, .. } in judgements {
        chat.event(Event::NotWritten { session, turn, before });
    }
    assert!(!chat.screen.talk.turn(2).judgement.preferred);
}

#[test]
fn escape_just_after_an_answer_edits_nothing_and_later_it_does() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("q");
    chat.answer("a");
    chat.key("esc");
    assert!(chat.screen.editor.is_empty());
    chat.now += Duration::from_secs(3);
    chat.key("esc");
    assert_eq!(chat.screen.editor.text(), "q");
    // A command is a command, whatever is being edited.
    chat.screen.editor.clear();
    chat.say("/set seed 5");
    assert_eq!((chat.screen.sampling.seed, chat.screen.draft), (5, Draft::Message));
}

#[test]
fn the_text_that_is_searched_for_is_on_the_screen_and_marked() {
    let mut chat = Harness::new(&["m"], true);
    for number in 0..20 {
        chat.say(&format!("question {number}"));
        chat.answer(&format!("answer {number}"));
    }
    assert!(!chat.frame(60, 16).contains("answer 3"));
    chat.key("ctrl-f");
    for letter in "ANSWER 3".chars() {
        chat.event(Event::Input(Input::Key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE))));
    }
    assert!(chat.frame(60, 16).contains("answer 3"));
    chat.key("esc");
    chat.key("ctrl-r");
    chat.key("1");
    chat.key("enter");
    assert_eq!(chat.screen.editor.text(), "question 19");
}

/// What the screens show: a conversation with Chinese and emoji, a comparison, and the help.
#[test]
fn screens() {
    let mut shown = String::new();
    for (columns, rows, unicode) in [(40, 12, false), (80, 24, true), (120, 30, true)] {
        let mut chat = Harness::new(&["runs/ppo/final"], unicode);
        let mut show = |name: &str, chat: &mut Harness| {
            shown.extend([&format!("=== {name} at {columns} x {rows}\n"), &chat.frame(columns, rows), "\n"]);
        };
        show("empty", &mut chat);
        chat.say("今天星期几？ 👩‍👩‍👧 what is **bold**?");
        chat.answer("今天是**星期三**。\n\n```rust\nfn main() {}\n```\n\n- one\n- two 👍🏽\n\n| a | b |\n|---|---|\n| 1 | 二 |\n");
        chat.say("/rate 4");
        chat.event(Event::Input(Input::Paste("下一个".into())));
        show("answered", &mut chat);
        chat.screen.editor.clear();
        chat.event(Event::Input(Input::Paste("/re".into())));
        show("completion", &mut chat);
        chat.screen.editor.clear();
        chat.say("/help");
        show("help", &mut chat);
        let mut chat = Harness::new(&["runs/sft/final", "runs/ppo/final"], unicode);
        chat.say("what is 37 + 45?");
        chat.answer("37 + 45 = 72");
        chat.answer("82");
        show("comparison", &mut chat);
        chat.say("/prefer b");
        let token = |text: &str, logprob, reference| TokenScore {
            text: text.to_owned(),
            logprob,
            reference: Some(reference),
            kl: Some(0.25),
            alternatives: vec![Alternative { text: "7".into(), logprob: -1.5, reference: Some(-0.5) }],
        };
        let tokens = vec![token("8", -0.1, -1.2), token("2", -0.2, -0.2), token("\n", -2.0, -0.1)];
        let models = [Some("ppo/final".to_owned()), Some("sft/final".to_owned())];
        chat.model(ModelEvent::Tokens(Box::new(TokenReport { models, tokens })));
        show("tokens", &mut chat);
    }
    insta::assert_snapshot!(shown);
}

/// A burst of 10 000 tokens costs a frame only for what is visible, and a transcript of 50 000 tokens scrolls
/// at once. The bounds are far above what a debug build needs.
#[test]
fn long_answers_and_transcripts_stay_quick() {
    let mut chat = Harness::new(&["m"], true);
    for number in 0..100 {
        chat.say(&format!("question {number}"));
        chat.answer(&"some words of an answer. ".repeat(100));
    }
    chat.frame(100, 40);
    let started = std::time::Instant::now();
    for _ in 0..20 {
        chat.key("pageup");
        chat.frame(100, 40);
    }
    let frame = started.elapsed() / 20;
    assert!(frame < Duration::from_millis(100), "{frame:?} a frame");
}

const KEYS: [KeyCode; 24] = [
    KeyCode::Enter,
    KeyCode::Esc,
    KeyCode::Up,
    KeyCode::Down,
    KeyCode::Left,
    KeyCode::Right,
    KeyCode::PageUp,
    KeyCode::PageDown,
    KeyCode::Home,
    KeyCode::End,
    KeyCode::Tab,
    KeyCode::Backspace,
    KeyCode::F(1),
    KeyCode::F(2),
    KeyCode::F(3),
    KeyCode::Char('q'),
    KeyCode::Char('/'),
    KeyCode::Char('d'),
    KeyCode::Char('y'),
    KeyCode::Char('星'),
    KeyCode::Char('t'),
    KeyCode::Char('f'),
    KeyCode::Char('r'),
    KeyCode::Char('o'),
];

const LINES: &str = "hello|/new|/regen|/continue|/edit|/edit answer|/undo|/good|/rate 3|/prefer a|/prefer tie|\
    /compare a b blind|/compare off|/model b|/system x|/fork|/find a|/kl|/stats|/copy|/prefill so|/sessions|/vim|\
    /stop|/quit|星期三\n👩‍👩‍👧";

fn any_event() -> impl Strategy<Value = Event> {
    let key = |(code, modifiers)| Event::Input(Input::Key(KeyEvent::new(code, modifiers)));
    let modifiers = vec![KeyModifiers::NONE, KeyModifiers::CONTROL, KeyModifiers::ALT];
    let lines: Vec<&str> = LINES.split('|').collect();
    let model = |event| Event::Model(event);
    let (turn, error) = (0..8_usize, "no".to_owned());
    let failed = error.clone();
    prop_oneof![
        4 => (prop::sample::select(KEYS.to_vec()), prop::sample::select(modifiers)).prop_map(key),
        3 => prop::sample::select(lines).prop_map(|line| Event::Input(Input::Paste(line.to_owned()))),
        2 => turn.clone().prop_map(move |turn| {
            model(ModelEvent::Piece { turn, text: "a *b* 星\n".to_owned(), new_tokens: 3, rate: Some(9.0) })
        }),
        2 => turn.clone().prop_map(move |turn| {
            model(ModelEvent::Finished { turn, statistics: statistics("length") })
        }),
        1 => turn.prop_map(move |turn| model(ModelEvent::Failed { turn, error: failed.clone() })),
        1 => (0..3_usize).prop_map(move |slot| model(ModelEvent::LoadFailed { slot, error: error.clone() })),
        1 => Just(Event::Sessions(vec![SessionSummary {
            id: "x".into(),
            title: "t".into(),
            age: "now".into(),
            turns: 2,
        }])),
    ]
}

proptest! {
    #![proptest_config(crate::testing::cases(128))]

    #[test]
    fn no_sequence_of_events_panics_and_the_caret_stays_on_the_screen(
        events in prop::collection::vec(any_event(), 1..80),
        sizes in prop::collection::vec((1_u16..90, 1_u16..30), 4),
    ) {
        let mut chat = Harness::new(&["a", "b"], true);
        for (place, event) in events.into_iter().enumerate() {
            let is_paste = matches!(event, Event::Input(Input::Paste(_)));
            chat.event(event);
            if is_paste && place % 2 == 0 {
                chat.key("enter");
            }
            let (columns, rows) = sizes[place % sizes.len()];
            let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
            terminal.draw(|frame| chat.screen.draw(frame)).unwrap();
            let caret = terminal.get_cursor_position().unwrap();
            prop_assert!(caret.x < columns && caret.y < rows);
        }
    }
}

/// A terminal that two parts of a test hold.
#[derive(Clone)]
struct Vt100(std::rc::Rc<std::cell::RefCell<vt100::Parser>>);

impl std::io::Write for Vt100 {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().process(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The bytes that go to a terminal give the screen that was drawn: cells, wide characters and the caret.
#[test]
fn a_terminal_shows_what_is_drawn() {
    use ratatui::backend::CrosstermBackend;
    use ratatui::layout::Rect;
    use ratatui::{TerminalOptions, Viewport};

    let (columns, rows) = (50, 16);
    let viewport = Viewport::Fixed(Rect::new(0, 0, columns, rows));
    let shown = Vt100(std::rc::Rc::new(vt100::Parser::new(rows, columns, 0).into()));
    let backend = CrosstermBackend::new(shown.clone());
    let mut bytes = Terminal::with_options(backend, TerminalOptions { viewport }).unwrap();
    let mut cells = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    let mut chat = Harness::new(&["m"], true);
    let mut check = |chat: &mut Harness| {
        bytes.draw(|frame| chat.screen.draw(frame)).unwrap();
        cells.draw(|frame| chat.screen.draw(frame)).unwrap();
        let parser = shown.0.borrow();
        let caret = cells.get_cursor_position().unwrap();
        assert_eq!(parser.screen().cursor_position(), (caret.y, caret.x));
        let buffer = cells.backend().buffer();
        for (y, line) in parser.screen().rows(0, columns).enumerate() {
            let row: Vec<&str> = (0..columns).map(|x| buffer[(x, y as u16)].symbol()).collect();
            let mut drawn = String::new();
            let mut x = 0;
            while x < row.len() {
                drawn.push_str(row[x]);
                x += text::width(row[x]).max(1);
            }
            assert_eq!(line.trim_end(), drawn.trim_end(), "row {y}");
        }
    };
    check(&mut chat);
    chat.say("今天星期几？");
    check(&mut chat);
    chat.answer("今天是**星期三**。\n\n```python\nprint(1)\n```\n\n> 引用 quote\n");
    check(&mut chat);
    for text in ["下", "一个", " ok", "\nzwei", "/he"] {
        chat.event(Event::Input(Input::Paste(text.into())));
        check(&mut chat);
    }
    chat.key("pageup");
    check(&mut chat);
}

#[test]
fn an_undecided_comparison_can_be_closed_and_opened_again() {
    let mut chat = Harness::new(&["runs/sft/final", "runs/ppo/final"], true);
    chat.say("q");
    chat.answer("one");
    chat.answer("two");
    let Some(Effect::Save(saved)) = chat.effects.last().cloned() else { panic!() };
    chat.say("/compare off");
    chat.event(Event::Opened(saved));
    assert_eq!(chat.screen.talk.path(), [0, 2]);
    chat.say("more");
    assert_eq!(texts(chat.requests()[2]), ["q", "two", "more"]);
    assert!(chat.screen.talk.check().is_ok());
}

#[test]
fn a_longer_answer_stands_beside_the_one_that_was_cut() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("q");
    chat.answer("so far");
    chat.say("/good");
    chat.say("/model other");
    chat.say("/continue");
    assert_eq!((chat.requests()[1].prefix.as_str(), chat.requests()[1].slot), ("so far", 1));
    chat.answer(" and on");
    let talk = &chat.screen.talk;
    assert_eq!((talk.turn(1).text.as_str(), talk.turn(2).text.as_str()), ("so far", "so far and on"));
    assert_eq!((talk.turn(1).model.as_deref(), talk.turn(2).model.as_deref()), (Some("m"), Some("other")));
}

#[test]
fn the_model_of_the_preferred_answer_writes_it_on_and_again() {
    let models = ["runs/sft/final", "runs/ppo/final"];
    let mut chat = Harness::new(&models, true);
    chat.say("q");
    chat.answer("from a");
    chat.answer("from b");
    chat.say("/prefer b");
    chat.say("/continue");
    chat.answer(" and on");
    chat.say("/good");
    chat.say("/regen");
    chat.answer("again");
    let asked: Vec<(usize, &str)> =
        chat.requests().into_iter().map(|request| (request.slot, request.prefix.as_str())).collect();
    assert_eq!(asked[2..], [(1, "from b"), (1, "")]);
    let Verdict::Thumb { answer, good: true } = &chat.judgements()[1].verdict else { panic!() };
    assert_eq!((answer.text.as_str(), answer.model.as_deref()), ("from b and on", Some(models[1])));
    // From an answer of the other model, that one goes on.
    chat.say("/prefer a");
    chat.say("/regen");
    assert_eq!(chat.requests()[4].slot, 0);
}

#[test]
fn an_endpoint_that_is_preferred_answers_again_and_writes_nothing_on() {
    let mut chat = Harness::new(&["sft", "http://host/v1"], true);
    chat.say("q");
    chat.answer("from a");
    chat.answer("from b");
    chat.say("/prefer b");
    chat.say("/continue");
    assert_eq!(chat.requests().len(), 2);
    let frame = chat.frame(120, 24);
    assert!(frame.contains("host/v1 is behind an endpoint, which begins answers by itself"), "{frame}");
    chat.say("/regen");
    assert_eq!(chat.requests()[2].slot, 1);
}

#[test]
fn the_answer_that_was_there_returns_when_another_one_fails() {
    let mut chat = Harness::new(&["a", "b"], true);
    chat.say("q");
    chat.answer("one");
    chat.answer("two");
    chat.say("/prefer a");
    chat.say("/regen");
    chat.model(ModelEvent::Failed { turn: 3, error: "no".to_owned() });
    assert_eq!(chat.screen.talk.path(), [0, 1]);
}

#[test]
fn the_tokens_of_an_answer_are_those_of_its_model() {
    let mut chat = Harness::new(&["sft", "ppo", "http://host/v1"], true);
    for (letter, slot) in [("b", Some(1)), ("c", None)] {
        chat.say("q");
        for answer in ["one", "two", "three"] {
            chat.answer(answer);
        }
        chat.say(&format!("/prefer {letter}"));
        chat.effects.clear();
        chat.say("/kl");
        let asked = chat.effects.iter().find_map(|effect| match effect {
            Effect::Tokens { slot, .. } => Some(*slot),
            _ => None,
        });
        assert_eq!(asked, slot);
    }
    assert!(chat.frame(120, 24).contains("host/v1 is behind an endpoint"), "{}", chat.frame(120, 24));
}

#[test]
fn the_order_of_a_blind_comparison_differs_from_session_to_session() {
    let firsts: Vec<usize> = (0..64).map(|number| shuffled(2, mixed(&format!("s{number}"), 1))[0]).collect();
    let ones = firsts.iter().filter(|&&first| first == 1).count();
    assert!((16..=48).contains(&ones), "{firsts:?}");
}

#[test]
fn a_judgement_has_the_instructions_and_the_sampling_of_its_answer() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("/system be short");
    chat.say("q");
    chat.answer("a");
    chat.say("/system be long");
    chat.say("/set temperature 0");
    chat.say("/good");
    let judgement = chat.judgements()[0];
    assert_eq!(judgement.prompt, [(Role::System, "be short".to_owned()), (Role::User, "q".to_owned())]);
    let Verdict::Thumb { answer, .. } = &judgement.verdict else { panic!() };
    assert_eq!(answer.sampling.map(|sampling| (sampling.temperature, sampling.seed)), Some((0.7, 42)));
    // Answers to other instructions are no pair: the row has one prompt.
    chat.key("ctrl-t");
    chat.answer("b");
    chat.say("/note why");
    chat.say("/prefer b");
    chat.say("/prefer tie");
    assert_eq!(chat.judgements().len(), 1);
    assert!(chat.frame(80, 24).contains("other instructions"));
    assert_eq!(chat.screen.note.as_deref(), Some("why"), "the note waits for a judgement that is written");
}

#[test]
fn a_corrected_answer_keeps_the_instructions_and_has_no_sampling() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("/system be short");
    chat.say("q");
    chat.answer("a");
    chat.say("/system -");
    chat.say("/edit answer");
    chat.screen.editor.clear();
    chat.say("better");
    let Verdict::Pair { chosen, rejected, .. } = &chat.judgements()[0].verdict else { panic!() };
    assert_eq!((chosen.sampling, rejected.sampling.is_some()), (None, true));
    assert_eq!(chat.judgements()[0].prompt[0], (Role::System, "be short".to_owned()));
}

#[test]
fn equal_answers_are_no_preference_and_the_note_stays() {
    let mut chat = Harness::new(&["a", "b"], true);
    chat.say("q");
    chat.answer("same");
    chat.answer("same");
    chat.say("/note clear");
    chat.say("/prefer a");
    assert!(chat.judgements().is_empty());
    assert!(chat.frame(80, 24).contains("no preference is written"));
    assert_eq!((chat.screen.note.as_deref(), chat.screen.talk.path()), (Some("clear"), vec![0, 1]));
}

#[test]
fn a_refused_comparison_and_a_refused_beginning_return_to_the_input() {
    let mut chat = Harness::new(&["a", "b"], true);
    chat.say("/prefill So");
    chat.say("long");
    for turn in [1, 2] {
        chat.model(ModelEvent::Failed { turn, error: "too long".to_owned() });
    }
    let prefill = chat.screen.prefill.as_deref();
    assert_eq!((chat.screen.editor.text().as_str(), prefill), ("long", Some("So")));
    assert!(chat.screen.talk.is_empty(), "a refused message leaves no trace");
    // One of two is enough to go on.
    chat.key("enter");
    chat.model(ModelEvent::Failed { turn: 1, error: "too long".to_owned() });
    assert!(chat.screen.editor.is_empty());
    chat.answer(" it is");
    assert_eq!(chat.screen.talk.turn(2).text, "So it is");
    chat.say("/prefer b");
    assert_eq!(chat.screen.talk.path(), [0, 2]);
}

#[test]
fn an_answer_that_is_taken_back_is_selected_no_more() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("hello");
    chat.key("alt-up");
    assert!(chat.screen.selected.is_some());
    chat.model(ModelEvent::Failed { turn: 1, error: "no".to_owned() });
    assert_eq!((chat.screen.talk.len(), chat.screen.selected), (0, None));
    chat.event(Event::Input(Input::Key(KeyEvent::new(KeyCode::F(2), KeyModifiers::NONE))));
}

#[test]
fn a_version_of_a_message_that_is_taken_back_is_sent_as_a_message() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("hello");
    chat.model(ModelEvent::Finished { turn: 1, statistics: statistics("stop") });
    chat.say("/edit");
    chat.key("ctrl-t");
    chat.model(ModelEvent::Failed { turn: 2, error: "no".to_owned() });
    assert_eq!((chat.screen.talk.len(), chat.screen.editor.text().as_str()), (0, "hello"));
    chat.key("enter");
    let asked = chat.requests();
    assert_eq!((asked.len(), texts(asked[2])), (3, vec!["hello"]));
}

#[test]
fn flags_outweigh_the_first_session_that_opens_and_no_other() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("/system old");
    chat.say("q");
    chat.answer("a");
    let Some(Effect::Save(saved)) = chat.effects.last().cloned() else { panic!() };
    let mut chat = Harness::new(&["m"], true);
    chat.screen.sampling = Sampling { temperature: 0.0, top_k: 5, top_p: 0.5, max_new_tokens: 7, seed: 1 };
    chat.screen.talk.system = Some("new".to_owned());
    chat.screen.given = vec![Setting::System, Setting::Temperature, Setting::MaxNewTokens];
    chat.event(Event::Opened(saved.clone()));
    let sampling = Sampling { temperature: 0.0, max_new_tokens: 7, ..saved.sampling };
    assert_eq!((chat.screen.sampling, chat.screen.talk.system.as_deref()), (sampling, Some("new")));
    chat.event(Event::Opened(saved.clone()));
    assert_eq!((chat.screen.sampling, chat.screen.talk.system.as_deref()), (saved.sampling, Some("old")));
}

#[test]
fn who_types_when_something_opens_types_on() {
    let mut chat = Harness::new(&["m"], true);
    chat.key("h");
    chat.event(Event::Text { title: "the prompt".into(), text: "text".into() });
    for key in ["q", "d"] {
        chat.key(key);
    }
    assert_eq!((chat.screen.editor.text().as_str(), chat.screen.overlay.is_some()), ("hqd", true));
    // After a pause the keys belong to what is in front.
    chat.now += Duration::from_secs(2);
    chat.key("q");
    assert_eq!((chat.screen.editor.text().as_str(), chat.screen.overlay.is_some()), ("hqd", false));
    chat.screen.editor.clear();
    chat.say("/help");
    chat.key("w");
    assert_eq!((chat.screen.editor.text().as_str(), chat.screen.overlay.is_some()), ("w", false));
    chat.screen.editor.clear();
    chat.say("/help");
    chat.event(Event::Input(Input::Paste("pasted".into())));
    assert_eq!((chat.screen.editor.text().as_str(), chat.screen.overlay.is_some()), ("pasted", false));
}

#[test]
fn escape_in_the_normal_mode_of_vim_edits_nothing() {
    let mut chat = Harness::new(&["m"], true);
    chat.say("/vim");
    chat.say("q");
    chat.key("esc");
    chat.key("esc");
    assert_eq!(chat.effects.last(), Some(&Effect::Stop), "the answer is stopped first");
    chat.answer("a");
    chat.key("esc");
    assert!(chat.screen.editor.is_empty() && chat.screen.draft == Draft::Message);
}
