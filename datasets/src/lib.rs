//! The data pipeline from files to token batches: rows, conversations, chat templates, tokenizers, packing
//! and sampling. This crate does not depend on torch.

pub mod conversation;
pub mod convert;
pub mod dataset;
pub mod encode;
pub mod error;
pub mod hub;
mod one_or_many;
pub mod pack;
pub mod record;
pub mod rows;
pub mod sampler;
mod small_file;
pub mod synth;
pub mod table;
pub mod template;
pub mod tokenizer;
pub mod untrusted;

pub use conversation::{Conversation, Message, Role};
pub use convert::{ConvertReport, convert};
pub use dataset::{Cache, CacheUse, Counts, EncodedDataset, LoadOptions, Overlong, Progress};
pub use encode::Encoded;
pub use error::{Error, ErrorClass, Result, RowLocation};
pub use hub::{HubSettings, resolve};
pub use one_or_many::{Names, OneOrMany};
pub use pack::pack;
pub use record::{Demonstration, Layout, Mapping, Notes, Preference, Prompt, Record, Row, Unpaired};
pub use rows::{IGNORE_INDEX, PreferenceRow, PromptRow, SftRow, UnpairedRow};
pub use sampler::{Sampler, SamplerState};
pub use table::{
    ReadOptions, RecordReader, TableReader, expand, open_records, read_records, write_records, write_rows,
};
pub use template::row::{RowTemplate, TemplateRow, TextFilter};
pub use template::{ChatTemplate, RenderOptions, Rendered};
pub use tokenizer::Tokenizer;
pub use tokenizer::stream::StreamDecoder;
pub use tokenizer::train::TrainOptions;
