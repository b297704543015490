//! The progress display of a training stage: on a terminal a block that is redrawn in place, otherwise
//! occasional plain lines.
//!
//! A frame is one write: it moves the cursor to the top of the block, writes each line followed by "erase to
//! the end of the line", and ends with "erase below". The cursor is never hidden and every style ends within
//! its line. Between two writes the terminal is therefore always in its normal state with the cursor below
//! the block, and a panic or a kill leaves nothing to restore. The block is redrawn at most ten times per
//! second. A terminal that became narrower has rewrapped the old block, so the height of the block is
//! recomputed before each redraw.
//!
//! All other output during a stage must use [`Progress::message`]. This module knows steps and named numbers,
//! but not what they mean.

mod rate;
mod stage;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use ratatui::style::Stylize;
use ratatui::text::Line;

use crate::terminal::{Every, Layout, Mode, paint};
use rate::Rate;
use stage::{Outcome, Stage, fit};

/// Time between two redraws of the live block.
const FRAME: Duration = Duration::from_millis(100);

/// A clock: the time since some fixed moment.
type Clock = Box<dyn FnMut() -> Duration + Send>;

/// Shows the stages of a run one after another on `sink`, usually standard error.
pub struct Progress<W: Write> {
    sink: W,
    mode: Mode,
    clock: Clock,
    /// Number of stages of the run, and number of stages begun or skipped.
    stages: usize,
    begun: usize,
    /// The name of one step of the next stage.
    unit: &'static str,
    stage: Option<Stage>,
    /// Widths of the lines of the block on the screen.
    drawn: Vec<usize>,
    /// The time and the step of the last write for this stage.
    written: Option<(Duration, u64)>,
}

impl<W: Write> Progress<W> {
    /// Creates a display for a run of one stage.
    pub fn new(sink: W, mode: Mode) -> Self {
        let origin = Instant::now();
        Self::with_clock(sink, mode, move || origin.elapsed())
    }

    /// Like [`Progress::new`], with the time taken from `clock`, which must not run backwards.
    pub fn with_clock(sink: W, mode: Mode, clock: impl FnMut() -> Duration + Send + 'static) -> Self {
        let clock = Box::new(clock);
        let unit = "step";
        Self { sink, mode, clock, stages: 1, begun: 0, unit, stage: None, drawn: Vec::new(), written: None }
    }

    /// Sets the number of stages of the run; stages are then numbered as in `[2/5] sft`.
    #[must_use]
    pub fn of_stages(mut self, stages: usize) -> Self {
        self.stages = stages;
        self
    }

    /// Sets the number of stages of the run; the next stage has number `next` (from 1).
    #[must_use]
    pub fn starting_at_stage(mut self, next: usize, stages: usize) -> Self {
        self.stages = stages;
        self.begun = next.saturating_sub(1);
        self
    }

    /// Sets the name of one step for the following stages, in the singular. The default is `step`.
    pub fn call_steps(&mut self, unit: &'static str) {
        self.unit = unit;
    }

    /// Begins a stage of `total` steps. A stage that is still running is finished first.
    pub fn start(&mut self, stage: &str, total: u64) -> io::Result<()> {
        self.start_at(stage, total, 0)
    }

    /// Begins a stage of `total` steps with `step` steps already done, for example after a resume.
    pub fn start_at(&mut self, stage: &str, total: u64, step: u64) -> io::Result<()> {
        self.finish()?;
        let label = self.next_label(stage);
        let now = (self.clock)();
        self.stage = Some(Stage {
            label,
            unit: self.unit,
            total,
            step,
            began: now,
            updated: now,
            tokens: 0,
            rate: Rate::default(),
            metrics: Vec::new(),
            history: Vec::new(),
        });
        self.written = None;
        if matches!(self.mode.layout, Layout::Live(_)) { self.write_if_due(now) } else { Ok(()) }
    }

    /// Counts a stage that does not need to run, and shows the reason, such as `already done`.
    pub fn skip(&mut self, stage: &str, why: &str) -> io::Result<()> {
        self.finish()?;
        let label = self.next_label(stage);
        self.keep(&Line::from(vec![label.bold(), format!("  {}", text::single_line(why)).dim()]))
    }

    /// Adds tokens to the count of the next update.
    pub fn count_tokens(&mut self, tokens: u64) {
        if let Some(stage) = &mut self.stage {
            stage.tokens += tokens;
        }
    }

    /// Records that `step` steps are done, with their metrics. The most important metric comes first and gets
    /// the sparkline.
    pub fn update(&mut self, step: u64, metrics: &[(&str, f64)]) -> io::Result<()> {
        let now = (self.clock)();
        let Some(stage) = &mut self.stage else { return Ok(()) };
        stage.update(step, metrics, now);
        self.write_if_due(now)
    }

    /// Updates the elapsed time on the screen during a long step.
    pub fn tick(&mut self) -> io::Result<()> {
        let now = (self.clock)();
        if matches!(self.mode.layout, Layout::Live(_)) { self.write_if_due(now) } else { Ok(()) }
    }

    /// Writes a permanent line above the live block.
    pub fn message(&mut self, message: &str) -> io::Result<()> {
        self.keep(&Line::from(text::single_line(message)))?;
        self.written = self.written.filter(|_| matches!(self.mode.layout, Layout::Lines(_)));
        self.tick()
    }

    /// Ends the stage and leaves a one-line summary. Does nothing without a stage.
    pub fn finish(&mut self) -> io::Result<()> {
        self.end(Outcome::Done)
    }

    /// Ends the stage, `failed` steps of which came to nothing, and leaves a one-line summary.
    pub fn finish_with_failures(&mut self, failed: u64) -> io::Result<()> {
        self.end(if failed == 0 { Outcome::Done } else { Outcome::Failures(failed) })
    }

    /// Ends the stage early and leaves one line with the reason.
    pub fn fail(&mut self, reason: &str) -> io::Result<()> {
        self.end(Outcome::Stopped(&text::single_line(reason)))
    }

    /// Returns the sink. A running stage stays on the screen as last written.
    pub fn into_sink(self) -> W {
        self.sink
    }

    fn next_label(&mut self, stage: &str) -> String {
        self.begun += 1;
        let name = text::single_line(stage);
        if self.stages > 1 { format!("[{}/{}] {name}", self.begun, self.stages) } else { name }
    }

    fn end(&mut self, outcome: Outcome<'_>) -> io::Result<()> {
        let Some(stage) = self.stage.take() else { return Ok(()) };
        let now = (self.clock)();
        self.keep(&stage.summary(now, outcome))
    }

    fn write_if_due(&mut self, now: Duration) -> io::Result<()> {
        let Some(stage) = &self.stage else { return Ok(()) };
        let due = match (self.mode.layout, self.written) {
            (_, None) => true,
            (Layout::Live(_), Some((last, _))) => now.saturating_sub(last) >= FRAME,
            (Layout::Lines(Every::Interval(interval)), Some((last, _))) => {
                now.saturating_sub(last) >= interval
            }
            (Layout::Lines(Every::Steps(steps)), Some((_, last))) => stage.step.saturating_sub(last) >= steps,
        };

        if !due {
            return Ok(());
        }
        self.written = Some((now, stage.step));

        match self.mode.layout {
            Layout::Lines(_) => {
                let line = stage.log_line(now);
                self.keep(&line)
            }
            Layout::Live(columns) => {
                let columns = columns.get();
                // The last column stays free, because some terminals keep the cursor at the end of a full
                // line.
                let block = stage.block(now, columns.saturating_sub(1).max(1));
                self.draw(&block, columns)
            }
        }
    }

    /// Replaces the block on screen.
    fn draw(&mut self, block: &[Line<'_>], columns: usize) -> io::Result<()> {
        let mut frame = self.to_top(columns);
        for line in block {
            let _ = write!(frame, "{}\u{1b}[K\r\n", paint(line, self.mode.color));
        }
        frame.push_str("\u{1b}[J");
        self.drawn = block.iter().map(Line::width).collect();
        self.sink.write_all(frame.as_bytes())?;
        self.sink.flush()
    }

    /// Writes a permanent line in place of the block. The next redraw puts the block below it.
    fn keep(&mut self, line: &Line<'_>) -> io::Result<()> {
        if let Layout::Live(columns) = self.mode.layout {
            let columns = columns.get();
            let line = fit(owned(line), columns.saturating_sub(1).max(1));
            self.draw(&[line], columns)?;
            self.drawn.clear();
            return Ok(());
        }
        writeln!(self.sink, "{}", paint(line, self.mode.color))?;
        self.sink.flush()
    }

    /// Moves the cursor from below the block to its first cell.
    fn to_top(&self, columns: usize) -> String {
        let rows: usize = self.drawn.iter().map(|width| width.div_ceil(columns).max(1)).sum();
        if rows == 0 { "\r".to_owned() } else { format!("\r\u{1b}[{rows}A") }
    }
}

fn owned(line: &Line<'_>) -> Line<'static> {
    let spans =
        line.spans.iter().map(|span| ratatui::text::Span::styled(span.content.to_string(), span.style));
    Line::from(spans.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests;
