//! The flags of `serve`.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use super::SpeculationArgs;
use crate::session::WeightSettings;

/// `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Model folders or hub names, each as NAME=DIR or DIR. Requests ask for a model by its name.
    #[arg(long, value_name = "[NAME=]DIR", value_delimiter = ',', required = true)]
    pub(crate) model: Vec<String>,
    /// An adapter of a model of --model, which is served by its own name on the same weights; may be given
    /// again and again.
    #[arg(long, value_name = "[NAME=]DIR", value_delimiter = ',')]
    pub(crate) adapter: Vec<String>,
    #[command(flatten)]
    pub(crate) weights: WeightSettings,
    /// A built-in chat template, or Jinja source [default: each model's own].
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// The address on which the server listens.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = host)]
    pub(crate) host: IpAddr,
    /// The port; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub(crate) port: u16,
    /// A file with one key in each line. Keys may also be in `COLOSSAL_CHAT_SERVE_KEYS`, parted by commas.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Replies of a model that are in work at once.
    #[arg(long, value_name = "N", default_value = "32")]
    pub(crate) max_num_seqs: NonZeroUsize,
    /// Tokens for which the KV cache of a model has room. A prompt with its reply may be that long, if the
    /// model takes it.
    #[arg(long, value_name = "N", default_value = "32768")]
    pub(crate) kv_cache_tokens: NonZeroUsize,
    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,
    /// Requests of a model that are in work or wait; more are refused with 429.
    #[arg(long, value_name = "N", default_value = "256")]
    pub(crate) max_requests: NonZeroUsize,
    /// The most seconds that requests may go on after the first signal to stop.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) drain: u64,
}

/// The IP address of an interface of this machine.
fn host(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| {
        let address = "give the IP address of an interface of this machine, such as 127.0.0.1 or 192.168.0.2, or \
                       0.0.0.0 for all of them";
        match text.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => {
                format!("the port is a flag of its own, --port {port}; here {address}")
            }
            _ => address.to_owned(),
        }
    })
}
