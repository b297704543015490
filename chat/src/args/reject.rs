//! The flags of `reject`.

use std::path::PathBuf;

use clap::Args;

use super::train::Overrides;

/// `reject`.
#[derive(Debug, Args)]
pub(crate) struct RejectArgs {
    /// The run file, TOML.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) overrides: Overrides,
}
