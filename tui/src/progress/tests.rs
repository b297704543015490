//! Screens as a terminal emulator shows them, with a clock that the tests set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::terminal::Columns;

/// Milliseconds that only the test moves.
#[derive(Clone, Default)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn pass(&self, milliseconds: u64) {
        self.0.fetch_add(milliseconds, Ordering::Relaxed);
    }
}

fn display(layout: Layout, color: bool) -> (Progress<Vec<u8>>, Time) {
    let time = Time::default();
    let clock = time.clone();
    let mode = Mode { layout, color };
    let now = move || Duration::from_millis(clock.0.load(Ordering::Relaxed));
    (Progress::with_clock(Vec::new(), mode, now), time)
}

fn live(columns: u16) -> (Progress<Vec<u8>>, Time) {
    display(Layout::Live(Columns::Fixed(columns)), false)
}

fn emulator(bytes: &[u8], columns: u16) -> vt100::Parser {
    let mut parser = vt100::Parser::new(24, columns, 100);
    parser.process(bytes);
    parser
}

fn screen(progress: &Progress<Vec<u8>>, columns: u16) -> Vec<String> {
    let text = emulator(&progress.sink, columns).screen().contents();
    text.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[test]
fn iterations_are_called_so_and_one_is_no_plural() {
    let mode = Mode { layout: Layout::Lines(Every::Steps(1)), color: false };
    let mut progress = Progress::with_clock(Vec::new(), mode, || Duration::ZERO);
    progress.call_steps("iteration");
    progress.start("ppo", 1).unwrap();
    progress.update(1, &[]).unwrap();
    progress.finish().unwrap();
    let text = String::from_utf8(progress.into_sink()).unwrap();
    assert!(text.contains("ppo  ✓ 1 iteration in 0.0s"), "{text}");
    assert!(!text.contains("step"), "{text}");
}

#[test]
fn the_block_shows_where_the_stage_is() {
    let (progress, time) = live(80);
    let mut progress = progress.of_stages(5);
    progress.skip("data", "already done").unwrap();
    progress.start("sft", 8).unwrap();
    for (step, loss) in [(1, 4.0), (2, 3.0)] {
        time.pass(500);
        progress.count_tokens(600);
        progress.update(step, &[("loss", loss), ("lr", 3e-4)]).unwrap();
    }
    // Half a second a step: six more take 3 s. The bar has 40 cells, a quarter of them full. 1200 tokens in 1
    // s.
    let bar = format!("{}{}", "━".repeat(10), "─".repeat(30));
    assert_eq!(
        screen(&progress, 80),
        [
            "[1/5] data  already done",
            &format!("[2/5] sft  {bar}  2/8  25%  eta 3.0s"),
            "      loss 3  lr 3.00e-4",
            "      1.2k tok/s  500 ms/step  elapsed 1.0s  █▁",
        ]
    );
}

#[test]
fn a_finished_stage_leaves_one_line() {
    let (progress, time) = live(60);
    let mut progress = progress.of_stages(2);
    progress.start("rm", 2).unwrap();
    time.pass(192_000);
    progress.update(2, &[("loss", 0.4121), ("accuracy", 0.91)]).unwrap();
    progress.finish().unwrap();
    progress.start("ppo", 3).unwrap();
    time.pass(1_000);
    progress.update(1, &[("reward", f64::NAN)]).unwrap();
    progress.fail("loss is NaN;\nlower the lr").unwrap();
    progress.finish().unwrap();
    assert_eq!(
        screen(&progress, 60),
        [
            "[1/2] rm  ✓ 2 steps in 3m12s  loss 0.4121  accuracy 0.9100",
            "[2/2] ppo  ✗ stopped at 1/3 after 1.0s: loss is NaN;↵lower…",
        ]
    );
}

#[test]
fn a_stage_with_failures_says_how_many_and_is_not_ticked_off() {
    let (mut progress, time) = live(60);
    progress.call_steps("request");
    for (stage, failed) in [("m", 100), ("n", 0)] {
        progress.start(stage, 100).unwrap();
        time.pass(2_000);
        progress.update(100, &[]).unwrap();
        progress.finish_with_failures(failed).unwrap();
    }
    let lines = ["m  ✗ 100 of 100 requests failed, in 2.0s", "n  ✓ 100 requests in 2.0s"];
    assert_eq!(screen(&progress, 60), lines);
}

#[test]
fn at_most_ten_frames_a_second_but_the_state_is_not_lost() {
    let (mut progress, time) = live(80);
    progress.start("sft", 2000).unwrap();
    for step in 1..=1000 {
        time.pass(1);
        progress.update(step, &[("loss", 1.5)]).unwrap();
    }
    let frames = progress.sink.windows(3).filter(|bytes| bytes == b"\x1b[J").count();
    // One at the start and one each 100 ms of the second that passed.
    assert_eq!(frames, 11);
    assert!(screen(&progress, 80)[0].contains("1000/2000  50%  eta 1.0s"));
}

#[test]
fn between_frames_the_terminal_is_in_its_ordinary_state() {
    let (mut progress, time) = display(Layout::Live(Columns::Fixed(80)), true);
    progress.start("sft", 10).unwrap();
    time.pass(200);
    progress.update(1, &[("loss", 2.5)]).unwrap();
    let parser = emulator(&progress.sink, 80);
    assert!(!parser.screen().hide_cursor() && !parser.screen().alternate_screen());
    assert_eq!(parser.screen().cursor_position(), (3, 0));
    assert_eq!((parser.screen().fgcolor(), parser.screen().bold()), (vt100::Color::Default, false));
    assert!(parser.screen().cell(0, 0).unwrap().bold());
}

#[test]
fn no_colour_means_no_style_at_all() {
    let (mut progress, time) = live(80);
    progress.start("sft", 10).unwrap();
    time.pass(200);
    progress.update(1, &[("loss", f64::NAN)]).unwrap();
    progress.finish().unwrap();
    let bytes = String::from_utf8(progress.into_sink()).unwrap();
    let styled = bytes
        .split("\u{1b}[")
        .skip(1)
        .any(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'));
    assert!(!styled, "{bytes:?}");
}

#[test]
fn messages_stand_above_the_block() {
    let (mut progress, time) = live(80);
    progress.start("sft", 10).unwrap();
    time.pass(200);
    progress.update(5, &[("loss", 2.5)]).unwrap();
    progress.message("saved step-5 \u{1b}[2J").unwrap();
    let lines = screen(&progress, 80);
    assert_eq!(lines[0], "saved step-5 ␛[2J");
    assert!(lines[1].starts_with("sft  ━"), "{lines:?}");
    assert_eq!(lines.len(), 4);
}

#[test]
fn no_line_is_too_wide_for_any_terminal() {
    for columns in 2..100 {
        let (progress, time) = live(columns);
        let mut progress = progress.of_stages(5);
        progress.start("sft 中文", 1000).unwrap();
        time.pass(400);
        progress.count_tokens(5000);
        progress.update(420, &[("loss", 1.25), ("grad_norm", 0.5), ("kl", 0.08), ("entropy", 1.1)]).unwrap();
        assert!(
            progress.drawn.iter().all(|&width| width < usize::from(columns)),
            "{columns}: {:?}",
            progress.drawn
        );
        let cursor = emulator(&progress.sink, columns).screen().cursor_position();
        assert_eq!(usize::from(cursor.0), progress.drawn.len(), "at {columns} columns");
    }
}

#[test]
fn a_terminal_made_narrower_is_cleared_wholly() {
    let (mut progress, time) = live(80);
    progress.start("sft", 10).unwrap();
    // The head of an empty stage at 80 columns is 55 cells, which a terminal of 30 columns has wrapped into
    // two rows.
    let wide = progress.drawn[0];
    assert_eq!(wide, 5 + 40 + 2 + "0/10  0%".len());
    progress.mode.layout = Layout::Live(Columns::Fixed(30));
    let before = progress.sink.len();
    time.pass(200);
    progress.tick().unwrap();
    let frame = String::from_utf8(progress.sink[before..].to_vec()).unwrap();
    assert!(frame.starts_with("\r\u{1b}[3A"), "{frame:?}");
}

#[test]
fn off_a_terminal_there_are_plain_lines_at_intervals() {
    let (progress, time) = display(Layout::Lines(Every::Interval(Duration::from_secs(10))), false);
    let mut progress = progress.of_stages(2);
    progress.start("sft", 30).unwrap();
    for step in 1..=30 {
        time.pass(1000);
        progress.count_tokens(2048);
        progress.update(step, &[("loss", 2.0 - 0.05 * step as f64)]).unwrap();
    }
    progress.finish().unwrap();
    let text = String::from_utf8(progress.into_sink()).unwrap();
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        [
            "[1/2] sft 1/30 3%  loss 1.950  2.0k tok/s  1.00 s/step  elapsed 1.0s  eta 29s",
            "[1/2] sft 11/30 36%  loss 1.450  2.0k tok/s  1.00 s/step  elapsed 11s  eta 19s",
            "[1/2] sft 21/30 70%  loss 0.9500  2.0k tok/s  1.00 s/step  elapsed 21s  eta 9.0s",
            "[1/2] sft  ✓ 30 steps in 30s  loss 0.5000",
        ]
    );
}

#[test]
fn lines_may_come_by_steps() {
    let (mut progress, _) = display(Layout::Lines(Every::Steps(20)), false);
    progress.start("eval", 50).unwrap();
    for step in 1..=50 {
        progress.update(step, &[]).unwrap();
    }
    let text = String::from_utf8(progress.into_sink()).unwrap();
    let steps: Vec<_> = text.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(steps, ["1/50", "21/50", "41/50"]);
    assert!(!text.contains(['\r', '\u{1b}']));
}

#[test]
fn a_resumed_stage_does_not_count_old_steps_as_speed() {
    let (mut progress, time) = live(80);
    progress.start_at("sft", 1000, 900).unwrap();
    time.pass(2000);
    progress.update(901, &[]).unwrap();
    let lines = screen(&progress, 80);
    assert!(lines[0].ends_with("901/1000  90%  eta 3m18s"), "{lines:?}");
}

#[test]
fn a_stage_of_no_steps_is_whole() {
    let (mut progress, _) = live(80);
    progress.start("eval", 0).unwrap();
    assert!(screen(&progress, 80)[0].ends_with("━  0/0  100%"));
}

#[test]
fn a_broken_sink_is_reported() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mode = Mode { layout: Layout::Live(Columns::Fixed(80)), color: true };
    let error = Progress::new(Broken, mode).start("sft", 1).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}
