//! What a run takes on hardware that it does not run on yet, as pure functions of numbers.
//!
//! ```text
//!   segments of a model | layout | hardware   ->   seconds of a step, by what they are spent on
//! ```
//! [`segment::Segment`] has the numbers of a part of a model, [`layout::Layout`] says how ranks divide them,
//! and [`hardware::Hardware`] how fast a device and its links are. [`pass`] puts the three together for one
//! micro-batch, [`step`] for an optimizer step, in which [`timeline`] runs the real schedule of a pipeline on
//! a simulated clock ([`trace`] writes it as a file), and [`rollout`] for the replies of a policy. [`state`]
//! has the bytes of weights and optimizer, [`memory`] those of the tensors of a step, and [`search`] finds
//! the best of all layouts. This crate loads no model, opens no connection and measures nothing.

pub mod collective;
mod error;
pub mod hardware;
pub mod layout;
pub mod memory;
pub mod pass;
pub mod rollout;
pub mod search;
pub mod segment;
pub mod state;
pub mod step;
pub mod timeline;
pub mod trace;
pub mod traffic;

pub use error::{Error, HardwareError};
pub use hardware::Hardware;
pub use layout::{Divided, Layout};
pub use segment::Segment;
