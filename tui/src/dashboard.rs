//! The training dashboard: the state of one run as it is watched, the keys, and the effects of keys.
//!
//! [`Dashboard::update`] takes what happens (a key, a row of numbers, a sample, news of the run) and returns
//! what the caller must do; [`Dashboard::draw`] draws the state. The state changes nowhere else, so a screen
//! is a function of the events before it. This module reads no files, keeps no clock and knows no process:
//! the caller says how the run is.

pub(crate) mod chart;
mod draw;
mod event;
mod hint;
mod keys;
mod layout;
mod painter;
mod pane;
mod selection;
mod series;
mod state;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use state::keep;

pub use event::{Effect, Event, Request};
pub use series::Series;
pub use state::{Charts, Dashboard, Memory, RankState, RunFacts, Sample, Status, THROUGHPUT};

impl Dashboard {
    /// Takes in what has happened, and returns what the caller must do.
    pub fn update(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Key(key) => return keys::press(self, key),
            Event::Row { step, numbers } => self.add_row(step, numbers),
            Event::Sample(sample) => self.add_sample(sample),
            Event::Message(text) | Event::Problem(text) => keep(&mut self.messages, text),
            Event::Notice(text) => {
                self.notice.clone_from(&text);
                keep(&mut self.messages, text);
            }
            Event::Run(run) => self.run = run,
            Event::Ranks(ranks) => self.ranks = ranks,
            Event::Memory(memory) => self.memory = memory,
            Event::ForgetRows => {
                self.series.clear();
                self.newest_step = 0;
            }
            Event::ForgetSamples => {
                self.samples.clear();
                self.sample_back = 0;
            }
        }
        Vec::new()
    }

    /// Draws the dashboard over the whole frame.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        self.draw_in(area, frame.buffer_mut());
    }

    /// Draws the dashboard into a part of a buffer.
    pub fn draw_in(&self, area: Rect, buffer: &mut Buffer) {
        draw::draw(self, area.intersection(buffer.area), buffer);
    }

    /// What the rules say about the run, one sentence each.
    pub fn hints(&self) -> Vec<String> {
        hint::hints(self).into_iter().map(|hint| hint.text()).collect()
    }
}

#[cfg(test)]
mod tests;
