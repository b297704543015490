//! The display of a training stage: on a terminal one block that is redrawn in place, off it plain lines now and then.
//!
//! A frame is one write: cursor to the top of the block, each line followed by "erase to the end of the line", then "erase
//! below". The cursor is never hidden and every style ends within its line, so between two writes the terminal is always in
//! its ordinary state with the cursor below the block: a panic or a kill leaves nothing to restore. Redraws come at most ten
//! times a second. When the terminal was made narrower the old block has been rewrapped, and its height is reckoned anew.
//!
//! Anything else that is to appear while a stage runs goes through [`Progress::message`]. Knows steps and named numbers, not
//! what they mean.

mod rate;
mod stage;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use ratatui::style::Stylize;
use ratatui::text::Line;

use crate::terminal::{Every, Layout, Mode, paint};
use crate::text;
use rate::Rate;
use stage::{Stage, fit};

/// Time between two redraws of the live block.
const FRAME: Duration = Duration::from_millis(100);

/// Time since some fixed moment.
type Clock = Box<dyn FnMut() -> Duration + Send>;

/// Shows the stages of a run one after another on `sink`, which is standard error as a rule.
pub struct Progress<W: Write> {
    sink: W,
    mode: Mode,
    clock: Clock,
    /// Number of stages of the run, and of those begun or skipped.
    stages: usize,
    begun: usize,
    /// What the steps of the next stage are called.
    unit: &'static str,
    stage: Option<Stage>,
    /// Widths of the lines of the block on screen.
    drawn: Vec<usize>,
    /// When, and at which step, the stage was last written.
    written: Option<(Duration, u64)>,
}

impl<W: Write> Progress<W> {
    /// A display for a run of one stage.
    pub fn new(sink: W, mode: Mode) -> Self {
        let origin = Instant::now();
        Self::with_clock(sink, mode, move || origin.elapsed())
    }

    /// As [`Progress::new`], with the time taken from `clock`, which must not run backwards.
    pub fn with_clock(sink: W, mode: Mode, clock: impl FnMut() -> Duration + Send + 'static) -> Self {
        let clock = Box::new(clock);
        let unit = "step";
        Self { sink, mode, clock, stages: 1, begun: 0, unit, stage: None, drawn: Vec::new(), written: None }
    }

    /// The same display for a run of `stages` stages, which are numbered as `[2/5] sft`.
    #[must_use]
    pub fn of_stages(mut self, stages: usize) -> Self {
        self.stages = stages;
        self
    }

    /// The same display for a run of `stages` stages of which the next is number `next` (from 1).
    #[must_use]
    pub fn starting_at_stage(mut self, next: usize, stages: usize) -> Self {
        self.stages = stages;
        self.begun = next.saturating_sub(1);
        self
    }

    /// What the steps of the stages from here on are called, in the singular: `step` unless told.
    pub fn call_steps(&mut self, unit: &'static str) {
        self.unit = unit;
    }

    /// Begins a stage of `total` steps; a stage still running is finished first.
    pub fn start(&mut self, stage: &str, total: u64) -> io::Result<()> {
        self.start_at(stage, total, 0)
    }

    /// Begins a stage of which `step` of `total` steps are done already, as after a resume.
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

    /// Counts a stage that need not run, and says why, such as `already done`.
    pub fn skip(&mut self, stage: &str, why: &str) -> io::Result<()> {
        self.finish()?;
        let label = self.next_label(stage);
        self.keep(&Line::from(vec![label.bold(), format!("  {}", text::single_line(why)).dim()]))
    }

    /// Adds tokens to those that the next update stands for.
    pub fn count_tokens(&mut self, tokens: u64) {
        if let Some(stage) = &mut self.stage {
            stage.tokens += tokens;
        }
    }

    /// `step` steps are done, and these are their figures, the most telling first: the first gets the sparkline.
    pub fn update(&mut self, step: u64, metrics: &[(&str, f64)]) -> io::Result<()> {
        let now = (self.clock)();
        let Some(stage) = &mut self.stage else { return Ok(()) };
        stage.update(step, metrics, now);
        self.write_if_due(now)
    }

    /// Lets the clock on screen move on during a long step.
    pub fn tick(&mut self) -> io::Result<()> {
        let now = (self.clock)();
        if matches!(self.mode.layout, Layout::Live(_)) { self.write_if_due(now) } else { Ok(()) }
    }

    /// Writes a line that stays, above the live block.
    pub fn message(&mut self, message: &str) -> io::Result<()> {
        self.keep(&Line::from(text::single_line(message)))?;
        self.written = self.written.filter(|_| matches!(self.mode.layout, Layout::Lines(_)));
        self.tick()
    }

    /// Ends the stage; one line of it stays. Without a stage nothing happens.
    pub fn finish(&mut self) -> io::Result<()> {
        self.end(None)
    }

    /// Ends the stage early; one line with the reason stays.
    pub fn fail(&mut self, reason: &str) -> io::Result<()> {
        self.end(Some(&text::single_line(reason)))
    }

    /// The sink, with the stage that was running left as it was last written.
    pub fn into_sink(self) -> W {
        self.sink
    }

    fn next_label(&mut self, stage: &str) -> String {
        self.begun += 1;
        let name = text::single_line(stage);
        if self.stages > 1 { format!("[{}/{}] {name}", self.begun, self.stages) } else { name }
    }

    fn end(&mut self, failure: Option<&str>) -> io::Result<()> {
        let Some(stage) = self.stage.take() else { return Ok(()) };
        let now = (self.clock)();
        self.keep(&stage.summary(now, failure))
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
                // The last column stays free: a full line would leave some cursors hanging at its end.
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

    /// Writes a line that stays. The block on screen goes; the next redraw puts it below.
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
