//! The paths of the service.

pub(crate) mod answer;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod models;
pub(crate) mod pooling;
pub(crate) mod sampling;
pub(crate) mod status;
mod stream;
pub(crate) mod tokens;
