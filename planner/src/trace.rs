//! The timeline of an optimizer step as a file: a trace in Chrome's format, which `chrome://tracing` and
//! `ui.perfetto.dev` show, or a drawing (SVG).
//!
//! A lane is a rank of the pipeline. It has the actions of the schedule in their order, then what is
//! exchanged once in the step, and the update. The chunks that a budget moves are not in it.

use std::fmt::Write;

use parallel::pipeline::ComputationType;
use serde_json::{Value, json};

use crate::timeline::{Span, Timeline};

/// An optimizer step, lane by lane.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The events of each rank of the pipeline, in the order of their start.
    pub lanes: Vec<Vec<Event>>,
    /// The seconds of the step.
    pub seconds: f64,
}

/// What a rank does for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What it is.
    pub kind: EventKind,
    /// The stage and the micro-batch of a pass.
    pub pass: Option<[usize; 2]>,
    /// The second in which it starts.
    pub start: f64,
    /// How long it takes.
    pub seconds: f64,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A forward pass.
    Forward,
    /// A backward pass.
    Backward,
    /// The part of a backward pass that gives the gradients of inputs.
    BackwardInput,
    /// The part that gives the gradients of weights.
    BackwardWeight,
    /// What is exchanged once in a step: gradients, and weights that ZeRO divides.
    Exchange,
    /// The update of the weights.
    Update,
}

impl EventKind {
    const ALL: [Self; 6] = [
        Self::Forward,
        Self::Backward,
        Self::BackwardInput,
        Self::BackwardWeight,
        Self::Exchange,
        Self::Update,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::BackwardInput => "backward, inputs",
            Self::BackwardWeight => "backward, weights",
            Self::Exchange => "exchange",
            Self::Update => "update",
        }
    }

    /// Its name in the style sheet of a drawing.
    fn class(self) -> &'static str {
        match self {
            Self::Forward => "f",
            Self::Backward => "b",
            Self::BackwardInput => "i",
            Self::BackwardWeight => "w",
            Self::Exchange => "x",
            Self::Update => "u",
        }
    }

    fn color(self) -> &'static str {
        match self {
            Self::Forward => "#4e79a7",
            Self::Backward => "#f28e2b",
            Self::BackwardInput => "#edc948",
            Self::BackwardWeight => "#59a14f",
            Self::Exchange => "#b07aa1",
            Self::Update => "#79706e",
        }
    }
}

impl From<ComputationType> for EventKind {
    fn from(computation: ComputationType) -> Self {
        match computation {
            ComputationType::Forward => Self::Forward,
            ComputationType::FullBackward => Self::Backward,
            ComputationType::BackwardInput => Self::BackwardInput,
            ComputationType::BackwardWeight => Self::BackwardWeight,
        }
    }
}

impl Trace {
    /// A step whose passes follow a timeline. After them, what is exchanged once takes `exchange` seconds,
    /// and the update of the weights `update` seconds.
    pub fn new(timeline: &Timeline, exchange: f64, update: f64) -> Self {
        let lane = |spans: &Vec<Span>| {
            let passes = spans.iter().map(|span| Event {
                kind: span.action.computation.into(),
                pass: Some([span.action.stage, span.action.micro_batch]),
                start: span.start,
                seconds: span.end - span.start,
            });
            let after = [
                (EventKind::Exchange, timeline.seconds, exchange),
                (EventKind::Update, timeline.seconds + exchange, update),
            ];
            let after = after.into_iter().filter(|(.., seconds)| *seconds > 0.0);
            let after = after.map(|(kind, start, seconds)| Event { kind, pass: None, start, seconds });
            passes.chain(after).collect()
        };
        Self {
            lanes: timeline.spans.iter().map(lane).collect(),
            seconds: timeline.seconds + exchange + update,
        }
    }

    /// The trace in Chrome's format: complete events in microseconds, a thread for each lane.
    pub fn chrome(&self) -> String {
        const MICROSECONDS: f64 = 1e6;
        let mut events =
            vec![json!({"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "pipeline"}})];
        for (number, lane) in self.lanes.iter().enumerate() {
            let name = format!("rank {number} of the pipeline");
            events.push(
                json!({"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": name}}),
            );
            events.extend(lane.iter().map(|event| {
                let args = event.pass.map_or_else(
                    || json!({}),
                    |[stage, micro_batch]| json!({"stage": stage, "micro_batch": micro_batch}),
                );
                json!({
                    "name": event.kind.name(), "cat": event.kind.name(), "ph": "X", "pid": 0, "tid": number,
                    "ts": event.start * MICROSECONDS, "dur": event.seconds * MICROSECONDS, "args": args,
                })
            }));
        }
        json!({"displayTimeUnit": "ms", "traceEvents": Value::Array(events)}).to_string()
    }
}

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 12.0;
const LABEL: f64 = 56.0;
const LANE: f64 = 20.0;
const LINE: f64 = 18.0;
/// A micro-batch is numbered where there is room for two digits.
const NUMBERED_FROM: f64 = 13.0;

/// Traces below one another on one scale, each under its title, as a drawing.
pub fn svg(traces: &[(String, Trace)]) -> String {
    let longest = traces.iter().map(|(_, trace)| trace.seconds).fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LABEL - 2.0 * MARGIN) / longest;
    let mut body = String::new();
    let mut top = MARGIN;
    for (title, trace) in traces {
        let _ = writeln!(body, r#"<text x="{MARGIN}" y="{}">{}</text>"#, top + 12.0, escaped(title));
        top += LINE;
        for (number, lane) in trace.lanes.iter().enumerate() {
            let _ = writeln!(body, r#"<text x="{MARGIN}" y="{}">rank {number}</text>"#, top + 13.0);
            for event in lane {
                draw(&mut body, event, scale, top);
            }
            top += LANE;
        }
        top += MARGIN;
    }

    let used = |kind: &EventKind| {
        traces.iter().any(|(_, trace)| trace.lanes.iter().flatten().any(|event| event.kind == *kind))
    };
    let mut left = MARGIN;
    for kind in EventKind::ALL.into_iter().filter(used) {
        let (class, name) = (kind.class(), kind.name());
        let _ = writeln!(body, r#"<rect class="{class}" x="{left}" y="{top}" width="12" height="12"/>"#);
        let _ = writeln!(body, r#"<text x="{}" y="{}">{name}</text>"#, left + 17.0, top + 11.0);
        left += 40.0 + 7.0 * name.len() as f64;
    }
    let height = top + LINE + MARGIN;
    let colors =
        EventKind::ALL.map(|kind| format!(".{} {{ fill: {} }}\n", kind.class(), kind.color())).concat();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"#777\">\n<style>\n{colors}.n {{ fill: #fff; font-size: 10px; text-anchor: middle }}\n\
         </style>\n{body}</svg>\n"
    )
}

fn draw(body: &mut String, event: &Event, scale: f64, top: f64) {
    let (left, width) = (MARGIN + LABEL + event.start * scale, event.seconds * scale);
    // A gap separates an event from the next one, unless it would hide the event.
    let (class, shown, height) = (event.kind.class(), (width - 0.5).max(0.5 * width), LANE - 2.0);
    let _ = writeln!(
        body,
        r#"<rect class="{class}" x="{left:.1}" y="{top}" width="{shown:.1}" height="{height}"/>"#
    );
    if let Some([_, micro_batch]) = event.pass.filter(|_| width >= NUMBERED_FROM) {
        let (middle, base) = (left + width / 2.0, top + 13.0);
        let _ = writeln!(body, r#"<text class="n" x="{middle:.1}" y="{base}">{micro_batch}</text>"#);
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use parallel::pipeline::{Schedule, ScheduleKind};

    use super::*;
    use crate::pass::PassSeconds;
    use crate::timeline::simulate;

    fn trace(kind: ScheduleKind, ranks: usize, micro_batches: usize) -> Trace {
        let schedule = Schedule::new(kind, ranks, 2, micro_batches);
        let parts = (schedule.num_stages / ranks) as f64;
        let stage = PassSeconds { forward: 1.0 / parts, input: 1.0 / parts, weight: 1.0 / parts };
        let timeline = simulate(&schedule, &vec![stage; schedule.num_stages], 0.0);
        Trace::new(&timeline, 0.0, 0.0)
    }

    #[test]
    fn a_trace_has_every_action_and_what_comes_after_them() {
        let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 1, 3);
        let stage = PassSeconds { forward: 1.0, input: 1.0, weight: 1.0 };
        let timeline = simulate(&schedule, &[stage; 2], 0.5);
        let trace = Trace::new(&timeline, 2.0, 3.0);
        assert_eq!(trace.seconds, timeline.seconds + 5.0);

        let chrome: Value = serde_json::from_str(&trace.chrome()).unwrap();
        let events = chrome["traceEvents"].as_array().unwrap();
        let complete: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        // Three forward and three backward passes on each rank, an exchange and an update.
        assert_eq!((complete.len(), events.len()), (2 * 8, 2 * 8 + 3));
        // The backward pass of the first micro-batch on the second rank: forward passes of both ranks and a
        // message come before it.
        let first = complete.iter().find(|event| event["tid"] == 1 && event["name"] == "backward").unwrap();
        assert_eq!((first["ts"].as_f64(), first["dur"].as_f64()), (Some(2.5e6), Some(2e6)));
        assert_eq!(first["args"], json!({"stage": 1, "micro_batch": 0}));
        let update = complete.iter().find(|event| event["name"] == "update").unwrap();
        assert_eq!(update["ts"].as_f64().unwrap(), (timeline.seconds + 2.0) * 1e6);
    }

    #[test]
    fn a_drawing_has_a_rectangle_for_each_event_and_a_legend() {
        let trace = trace(ScheduleKind::ZeroBubbleH1, 4, 8);
        let text = svg(&[("a < b".to_owned(), trace.clone())]);
        // Three kinds of passes: forward, and both parts of the backward pass.
        let events: usize = trace.lanes.iter().map(Vec::len).sum();
        assert_eq!(text.matches("<rect").count(), events + 3, "{text}");
        assert!(text.contains("a &lt; b") && text.contains("backward, weights"));
    }

    #[test]
    fn the_drawing_of_the_documentation_is_current() {
        let schedules = [
            ("gpipe", ScheduleKind::GPipe),
            ("1f1b", ScheduleKind::OneForwardOneBackward),
            ("interleaved, 2 chunks", ScheduleKind::Interleaved),
            ("zb-h1", ScheduleKind::ZeroBubbleH1),
            ("zb-v", ScheduleKind::ZeroBubbleV),
        ];
        let traces = schedules.map(|(name, kind)| {
            let trace = trace(kind, 4, 8);
            (format!("{name}: {:.2}", trace.seconds), trace)
        });
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schedules.svg");
        let text = svg(&traces);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert!(std::fs::read_to_string(path).unwrap() == text, "docs/schedules.svg: set UPDATE_DOCS");
    }
}
