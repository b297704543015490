//! The full-screen chat: the loop between the terminal, the state of `tui::chat`, and the thread with the
//! models.
//!
//! Everything that happens is applied at once. A frame is drawn at most every 33 ms, so a fast model slows
//! neither the input nor itself, and at most 8 ms after the user did something. The loop ends with the chat;
//! a signal ends it like `/quit`, with the session kept.

use std::io::Write;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use tui::chat::event::{Answer, Effect, Event, Feedback, Notice, PairSource, Verdict};
use tui::chat::{ChatScreen, Setup};
use tui::screen::{Input, Options, Screen};

use super::export;
use super::sessions::Sessions;
use super::worker::{Work, Worker, to_messages};
use crate::failure::Failure;
use crate::feedback::{FeedbackLog, FeedbackRow, Source};
use crate::{console, exit, interrupt};

/// The least time between two frames: of what models write, of what the user does, and of nothing.
const FRAMES: [Duration; 3] = [Duration::from_millis(33), Duration::from_millis(8), Duration::from_secs(1)];

/// How long the loop waits for input while an answer is written, and while nothing happens.
const WAIT: [Duration; 2] = [Duration::from_millis(8), Duration::from_millis(50)];

/// What the chat keeps of a user.
pub(super) struct Kept {
    /// `None` if nothing is kept.
    pub(super) sessions: Option<Sessions>,
    pub(super) log: FeedbackLog,
}

/// What the loop works with.
struct Loop {
    screen: Screen,
    inputs: Receiver<Input>,
    worker: Worker,
    sessions: Option<Sessions>,
    log: FeedbackLog,
    events: Vec<Event>,
    /// Whether the session is kept as it is.
    is_saved: bool,
    ends: bool,
}

/// Shows the chat until the user ends it.
pub(super) fn run(setup: Setup, worker: Worker, kept: Kept, open: Option<String>) -> anyhow::Result<()> {
    let _graceful = interrupt::enter_graceful();
    let started = Instant::now();
    // Whatever the program says meanwhile is shown as a notice.
    let messages = console::divert_stderr();
    let screen = Screen::enter(Options { mouse: setup.mouse }).context("cannot take the terminal")?;
    let inputs = screen.read_input();
    let Kept { sessions, log } = kept;
    let (mut chat, effects) = ChatScreen::new(setup);
    let mut work =
        Loop { screen, inputs, worker, sessions, log, events: Vec::new(), is_saved: true, ends: false };
    for effect in effects {
        work.perform(effect);
    }
    if let Some(id) = open {
        work.perform(Effect::Open { id: Some(id).filter(|id| !id.is_empty()), current: String::new() });
    }

    let outcome = work.until_the_end(&mut chat, &messages, started);
    // Whatever ended the loop, the session is kept and the terminal given back.
    for effect in chat.close() {
        work.perform(effect);
    }
    drop(messages);
    let outcome = match outcome {
        Ok(()) if !work.is_saved => Err(anyhow::anyhow!("the session is not kept")),
        other => other,
    };
    work.end(&outcome);
    outcome
}

/// What decides when the next frame is drawn.
#[derive(Default)]
struct Frames {
    drawn: Option<Instant>,
    is_dirty: bool,
    is_urgent: bool,
}

impl Frames {
    fn note(&mut self, happened: &[Event]) {
        self.is_dirty |= !happened.is_empty();
        self.is_urgent |= happened.iter().any(|event| matches!(event, Event::Input(_)));
    }

    /// The time until the next frame may be drawn. Zero if it may be drawn now.
    fn time_left(&self, now: Instant) -> Duration {
        let least = match (self.is_urgent, self.is_dirty) {
            (true, _) => FRAMES[1],
            (false, true) => FRAMES[0],
            // A notice that is old enough goes without an event.
            (false, false) => FRAMES[2],
        };
        self.drawn.map_or(Duration::ZERO, |at| (at + least).saturating_duration_since(now))
    }
}

impl Loop {
    /// Runs until the user or a signal ends the chat, or the terminal fails.
    fn until_the_end(
        &mut self,
        chat: &mut ChatScreen,
        messages: &Receiver<String>,
        started: Instant,
    ) -> anyhow::Result<()> {
        let mut frames = Frames::default();
        while !self.ends {
            // What happened shortly after a frame must not wait for the next event to be shown.
            let longest = WAIT[usize::from(!chat.is_busy())];
            let mut happened = self.wait(longest.min(frames.time_left(Instant::now())));
            happened.extend(messages.try_iter().map(|text| Event::Notice(Notice::done(text))));

            // A signal ends the chat like /quit, but with its own exit code.
            if interrupt::is_stop_requested() {
                return Err(Failure::Interrupted.into());
            }

            frames.note(&happened);
            happened.push(Event::Tick);
            for event in happened {
                for effect in chat.update(event, started.elapsed()) {
                    self.perform(effect);
                }
            }

            if frames.time_left(Instant::now()).is_zero() && !self.ends {
                self.screen.draw(|frame| chat.draw(frame)).context("cannot draw on the terminal")?;
                frames = Frames { drawn: Some(Instant::now()), ..Frames::default() };
            }
        }
        Ok(())
    }

    /// Gives the terminal back, says what failed after the last frame, and ends the thread of the models. If
    /// that is still at work, the program ends here: the exit handlers of libtorch must not run beside it.
    fn end(self, outcome: &anyhow::Result<()>) {
        drop(self.screen);
        let mut said: Option<String> = None;
        for event in self.events {
            if let Event::Notice(Notice { text, is_error: true }) = event
                && said.as_ref() != Some(&text)
            {
                console::print_stderr(&format!("error: {text}"));
                said = Some(text);
            }
        }

        if !self.worker.end() {
            if let Err(error) = outcome
                && !exit::is_already_reported(error)
            {
                console::print_stderr(&format!("error: {}", exit::text(error)));
            }
            let code = outcome.as_ref().map_or_else(exit::code, |()| 0);
            signal_hook::low_level::exit(code.into());
        }
    }

    /// Waits a moment for input, and returns everything that has happened.
    fn wait(&mut self, longest: Duration) -> Vec<Event> {
        let mut happened = std::mem::take(&mut self.events);
        let patience = if happened.is_empty() { longest } else { Duration::ZERO };
        match self.inputs.recv_timeout(patience) {
            Ok(input) => happened.push(Event::Input(input)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => happened.push(Event::Input(Input::Closed)),
        }
        happened.extend(self.inputs.try_iter().map(Event::Input));
        happened.extend(std::iter::from_fn(|| self.worker.event()));
        happened
    }

    fn tell(&mut self, outcome: anyhow::Result<Option<String>>) {
        match outcome {
            Ok(None) => {}
            Ok(Some(text)) => self.events.push(Event::Notice(Notice::done(text))),
            Err(error) => self.events.push(Event::Notice(Notice::error(exit::text(&error)))),
        }
    }

    fn perform(&mut self, effect: Effect) {
        let outcome = self.try_perform(effect);
        self.tell(outcome);
    }

    /// Does what the screen asks for. A text is a notice for the user.
    fn try_perform(&mut self, effect: Effect) -> anyhow::Result<Option<String>> {
        match effect {
            Effect::Stop => self.worker.stop(),
            Effect::Save(saved) => {
                let outcome = self.sessions.as_ref().map_or(Ok(()), |sessions| sessions.save(&saved));
                self.is_saved = outcome.is_ok();
                outcome?;
            }
            Effect::ListSessions => {
                let list = self.kept_sessions()?.list();
                self.events.push(Event::Sessions(list));
            }
            Effect::Open { id, current } => {
                let sessions = self.kept_sessions()?;
                let id = id.map_or_else(|| sessions.newest(&current), Ok)?;
                let saved = sessions.take(&id)?;
                self.events.push(Event::Opened(Box::new(saved)));
            }
            Effect::Delete(id) => self.kept_sessions()?.delete(&id)?,
            Effect::Judge(feedback) => {
                let Feedback { turn, before, .. } = feedback;
                let session = feedback.session.clone();
                // The screen shows it already, so it has to take it back.
                if let Err(error) = self.log.append(&row(feedback)) {
                    self.events.push(Event::NotWritten { session, turn, before });
                    return Err(error.context("the judgement is not written"));
                }
            }
            Effect::Remember(message) => {
                if let Some(sessions) = &self.sessions {
                    sessions.remember(&message)?;
                }
            }
            Effect::Copy(text) => {
                let is_short = self.screen.copy(&text)?;
                anyhow::ensure!(
                    is_short,
                    "this text is too long for the clipboard; /export md writes it to a file"
                );
                return Ok(Some(format!("copied {} characters", text.chars().count())));
            }
            Effect::Export { format, path, title, messages } => {
                let path = export::write(&format, path.as_deref(), &title, &to_messages(messages))?;
                return Ok(Some(format!("written to {}", path.display())));
            }
            Effect::OpenEditor(text) => {
                let edited = self.screen.suspend(|| edit(&text))??;
                self.events.push(Event::Edited(edited));
            }
            Effect::Mouse(on) => self.screen.set_mouse(on)?,
            Effect::Redraw => self.screen.redraw()?,
            Effect::Quit => self.ends = true,
            work => self.worker.send(model_work(work))?,
        }
        Ok(None)
    }

    fn kept_sessions(&self) -> anyhow::Result<&Sessions> {
        self.sessions.as_ref().context("sessions are not kept: leave --no-save out")
    }
}

/// The work of the models that an effect asks for.
fn model_work(effect: Effect) -> Work {
    match effect {
        Effect::Load { slot, model } => Work::Load { slot, model },
        Effect::Generate(requests) => Work::Generate(requests),
        Effect::Template { slot, template } => Work::Template { slot, template },
        Effect::Score { session, turn, messages, model } => {
            Work::Score { session, turn, messages: to_messages(messages), model }
        }
        Effect::Tokens { slot, messages, against, ends } => {
            Work::Tokens { slot, messages: to_messages(messages), against, ends }
        }
        Effect::Prompt(request) => Work::Prompt(request),
        other => unreachable!("the screen carries out {other:?} itself"),
    }
}

/// Opens the editor of the user with a text, and returns what became of it.
fn edit(text: &str) -> anyhow::Result<String> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let editor =
        variable("VISUAL").or_else(|| variable("EDITOR")).context("set VISUAL or EDITOR to an editor")?;
    let mut file = tempfile::Builder::new().prefix("message-").suffix(".md").tempfile()?;
    file.write_all(text.as_bytes())?;
    // The variable may hold arguments, as in `code --wait`, so a shell splits it.
    let status = Command::new("sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(file.path())
        .status()
        .with_context(|| format!("cannot start {editor}"))?;
    anyhow::ensure!(status.success(), "{editor} ended with {status}; the input is as before");
    let bytes = std::fs::read(file.path())?;
    String::from_utf8(bytes).context("the editor wrote text that is not UTF-8")
}

/// The row of a judgement.
fn row(feedback: Feedback) -> FeedbackRow {
    let source = match &feedback.verdict {
        Verdict::Pair { source: PairSource::Compare, .. } | Verdict::Tie { .. } => Source::Compare,
        Verdict::Pair { source: PairSource::Sibling, .. } => Source::Sibling,
        Verdict::Pair { source: PairSource::Edit, .. } => Source::Edit,
        Verdict::Thumb { .. } => Source::Thumb,
        Verdict::Rating { .. } => Source::Rating,
    };
    let mut row = FeedbackRow::new(source, feedback.session, to_messages(feedback.prompt));
    let name = |answer: &Answer| answer.model.clone().unwrap_or_else(|| "human".to_owned());
    let sampling = match feedback.verdict {
        Verdict::Pair { chosen, rejected, blind, .. } => {
            (row.models, row.blind) = (vec![name(&chosen), name(&rejected)], blind);
            (row.chosen, row.rejected) = (Some(chosen.text), Some(rejected.text));
            rejected.sampling
        }
        Verdict::Tie { answers: [left, right], blind } => {
            (row.models, row.blind, row.tie) = (vec![name(&left), name(&right)], blind, true);
            (row.chosen, row.rejected) = (Some(left.text), Some(right.text));
            left.sampling
        }
        Verdict::Thumb { answer, good } => {
            (row.models, row.label) = (vec![name(&answer)], Some(good));
            row.completion = Some(answer.text);
            answer.sampling
        }
        Verdict::Rating { answer, rating } => {
            (row.models, row.rating) = (vec![name(&answer)], Some(rating));
            row.completion = Some(answer.text);
            answer.sampling
        }
    };

    row.seed = sampling.map(|sampling| sampling.seed);
    row.sampling = sampling.map(|sampling| {
        json!({
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "max_new_tokens": sampling.max_new_tokens,
        })
    });
    (row.note, row.tags) = (feedback.note, feedback.tags);
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_shortly_after_a_frame_is_shown_within_eight_milliseconds() {
        let now = Instant::now();
        let after = |milliseconds| now + Duration::from_millis(milliseconds);
        let frames = |is_dirty, is_urgent| Frames { drawn: Some(now), is_dirty, is_urgent };
        assert_eq!(frames(true, true).time_left(after(3)), Duration::from_millis(5));
        assert_eq!(frames(true, true).time_left(after(9)), Duration::ZERO);
        assert_eq!(frames(true, false).time_left(after(3)), Duration::from_millis(30));
        assert_eq!(Frames::default().time_left(now), Duration::ZERO);
    }
}
