//! `watch`: shows a running or finished run, as a dashboard on a terminal, as lines elsewhere.
//!
//! The run does not notice that it is watched: this program reads the run folder, and writes a file into it
//! only when it asks the run for something. Closing the dashboard leaves the run alone.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use text::number;
use tui::dashboard::{Dashboard, Effect, Event, Request, Status};
use tui::screen::{Input, Options, Screen};
use tui::terminal::{Environment, Layout, Mode};
use tui::theme::{Symbols, Theme, ThemeName};

use crate::args::WatchArgs;
use crate::console::{print, print_stderr};
use crate::interrupt;
use crate::live::RequestKind;
use crate::run_reader::RunReader;

/// The time between two looks at the run folder.
const POLL: Duration = Duration::from_millis(250);

/// Watches a run.
pub(crate) fn run(arguments: &WatchArgs) -> anyhow::Result<()> {
    interrupt::listen()?;
    let mut reader = RunReader::open(&arguments.run)?;
    if arguments.once {
        return print_once(&mut reader, arguments.json);
    }
    let mode = Mode::detect(std::io::stdout().is_terminal(), &Environment::read());
    if arguments.json || mode.layout == lines_layout() || !std::io::stdin().is_terminal() {
        return print_lines(&mut reader, arguments.json);
    }
    show(reader, mode.color)?;
    Ok(())
}

/// The layout of what is no terminal.
fn lines_layout() -> Layout {
    Mode::detect(false, &Environment::default()).layout
}

/// An empty dashboard for this terminal.
fn dashboard(color: bool) -> Dashboard {
    let theme = Theme::new(if color { ThemeName::Dark } else { ThemeName::Plain });
    Dashboard::new(theme, Symbols::detect(std::env::var_os))
}

/// Shows the dashboard until the user closes it. Returns how the run was then.
pub(crate) fn show(mut reader: RunReader, color: bool) -> anyhow::Result<Status> {
    let mut dashboard = dashboard(color);
    let mut screen = Screen::enter(Options::default())?;
    let input = screen.read_input();
    let mut next_poll = Instant::now();
    loop {
        // A long run is read in parts, one a turn, so that keys are heard in between.
        let mut is_changed = false;
        if Instant::now() >= next_poll {
            let (events, is_more) = reader.poll();
            is_changed = !events.is_empty();
            for event in events {
                dashboard.update(event);
            }
            next_poll = Instant::now() + if is_more { Duration::ZERO } else { POLL };
        }

        match input.recv_timeout(next_poll.saturating_duration_since(Instant::now())) {
            Ok(Input::Key(key)) => {
                is_changed = true;
                for effect in dashboard.update(Event::Key(key)) {
                    match effect {
                        Effect::Close => return Ok(dashboard.run().status),
                        Effect::Ask(request) => ask(&reader, request, &mut dashboard),
                    }
                }
            }
            Ok(Input::Resize) => is_changed = true,
            Ok(Input::Closed) | Err(RecvTimeoutError::Disconnected) => return Ok(dashboard.run().status),
            Ok(Input::Paste(_) | Input::Mouse(_)) | Err(RecvTimeoutError::Timeout) => {}
        }

        if is_changed {
            screen.draw(|frame| dashboard.draw(frame))?;
        }
    }
}

/// Sends a request, and shows why if that is not possible.
fn ask(reader: &RunReader, request: Request, dashboard: &mut Dashboard) {
    let request = match request {
        Request::Pause => RequestKind::Pause,
        Request::Continue => RequestKind::Continue,
        Request::Checkpoint => RequestKind::Checkpoint,
        Request::Stop => RequestKind::Stop,
    };
    if let Err(error) = reader.ask(request) {
        dashboard.update(Event::Notice(format!("the run cannot be asked: {error:#}")));
    }
}

/// Prints one line for every row, and every message, until the run ends.
fn print_lines(reader: &mut RunReader, json: bool) -> anyhow::Result<()> {
    loop {
        let (events, is_more) = reader.poll();
        for event in events {
            match event {
                Event::Row { step, numbers } => print(&row_line(&reader.run().unit, step, &numbers, json))?,
                Event::Message(text) | Event::Problem(text) | Event::Notice(text) => print_stderr(&text),
                Event::ForgetRows => print_stderr("the run was resumed: its rows follow from the beginning"),
                _ => {}
            }
        }
        if is_more {
            continue;
        }
        let status = reader.run().status;
        if !status.is_alive() && status != Status::Waiting {
            print_stderr(&status.text());
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
}

fn row_line(unit: &str, step: u64, numbers: &[(String, f64)], json: bool) -> String {
    if json {
        let mut row = Map::from_iter([("step".to_owned(), json!(step))]);
        row.extend(numbers.iter().map(|(name, value)| (name.clone(), json!(value))));
        return Value::Object(row).to_string();
    }
    let numbers = numbers.iter().map(|(name, value)| format!("  {name} {}", number::metric(*value)));
    format!("{unit} {step}{}", numbers.collect::<String>())
}

/// Reads the whole run into a dashboard.
fn read_all(reader: &mut RunReader, dashboard: &mut Dashboard) -> Vec<String> {
    let mut messages = Vec::new();
    loop {
        let (events, is_more) = reader.poll();
        for event in events {
            if let Event::Message(text) | Event::Problem(text) | Event::Notice(text) = &event {
                messages.push(text.clone());
            }
            dashboard.update(event);
        }
        if !is_more {
            return messages;
        }
    }
}

/// Prints how the run is now.
fn print_once(reader: &mut RunReader, json: bool) -> anyhow::Result<()> {
    let mut dashboard = dashboard(false);
    let messages = read_all(reader, &mut dashboard);
    let run = dashboard.run();
    let newest = |name: &str| dashboard.series().iter().find(|series| series.name == name)?.last();
    if json {
        let numbers: Map<String, Value> =
            dashboard.series().iter().map(|series| (series.name.clone(), json!(series.last()))).collect();
        let state = json!({
            "run": run.name,
            "stage": run.stage,
            "status": run.status.text(),
            "is_alive": run.status.is_alive(),
            "step": dashboard.newest_step(),
            "total_steps": run.total_steps,
            "remaining_seconds": dashboard.remaining_seconds(),
            "numbers": numbers,
            "hints": dashboard.hints(),
            "messages": messages,
        });
        return Ok(print(&serde_json::to_string_pretty(&state)?)?);
    }

    let total = run.total_steps.map_or_else(String::new, |total| format!("/{total}"));
    let stage = if run.stage.is_empty() { "run" } else { &run.stage };
    let mut lines = vec![format!("{stage}  {}  {}", run.name, run.status.text())];
    lines.push(format!("{} {}{total}", run.unit, dashboard.newest_step()));
    if let Some(seconds) =
        dashboard.remaining_seconds().filter(|seconds| run.status.is_alive() && *seconds < 1e9)
    {
        lines.push(format!("{} left", number::duration(Duration::from_secs_f64(seconds.max(0.0)))));
    }
    let names = dashboard.series().iter().map(|series| series.name.as_str());
    lines
        .extend(names.map(|name| format!("{name:<30} {}", number::metric(newest(name).unwrap_or(f64::NAN)))));
    lines.extend(dashboard.hints().into_iter().map(|hint| format!("! {hint}")));
    lines.extend(messages.into_iter().filter(|message| message.starts_with("warning: ")));
    Ok(print(&lines.join("\n"))?)
}

/// The line that says how to watch a run again.
pub(crate) fn how_to_watch(out: &Path) -> String {
    format!("watch it again with: colossal-chat watch {}", out.display())
}
