//! The models that an evaluation asks: implementations of `eval::request::LanguageModel`.
//!
//! ```text
//! FolderModel ──> Session, LocalModel ──> Encoder, Scorer, ReplyWriter
//! EndpointModel ──> remote::RemoteModel, StopText
//! ```
//! A [`LocalModel`] computes in this process: it encodes requests, scores texts with passes over whole rows,
//! and generates replies with an engine. A [`FolderModel`] owns its model, and has a digest of the folder,
//! under which answers are kept. An [`EndpointModel`] asks a server.
//!
//! The crate `eval` decides what is asked, and scores the answers.

mod encoder;
mod endpoint;
mod error;
mod local;
mod reply;
mod score;

pub use endpoint::{ENDPOINT_DIGEST, EndpointModel, EndpointOptions};
pub use local::{FolderModel, LocalModel, folder_digest};
pub use reply::MAX_NUM_SEQS;
