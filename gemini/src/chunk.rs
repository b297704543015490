//! Chunks: contiguous runs of parameters in order of use. A chunk is what is sharded over the ranks, evicted
//! and fetched as one piece. (Fang et al. 2022, arXiv 2108.05818. Colossal-AI: `zero/gemini/chunk`.)
//!
//! ```text
//!   layout   which parameter lies in which chunk, and how long the chunks are
//!   store    one tensor per parameter, in chunks
//!   manager  keeps chunks in memory while they are used, within a budget
//!   state    what the chunks of sharded weights and of gradients are in use for
//!   trace    the order of use, which predicts what is needed next
//! ```

pub mod layout;
pub mod manager;
pub mod state;
pub mod store;
mod trace;

pub use layout::{
    ALIGNMENT, ChunkConfiguration, ChunkGroup, ChunkLayout, ChunkSizes, ChunkSpec, ParamSlot, ParamSpec,
    SearchBounds, Waste, ZeroSize, search_chunk_configuration,
};
