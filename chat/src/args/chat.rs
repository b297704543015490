//! The flags of `chat`.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches, ValueEnum};
use tui::chat::Setting;
use tui::chat::event::ContextPolicy;
use tui::theme::ThemeName;

use super::{ModelArgs, SamplingArgs, SpeculationArgs};

/// `chat`.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    // It looks at flags that the fields below take out of the matches, so it comes first.
    #[command(flatten)]
    pub(crate) given: GivenSettings,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// An adapter of --model, on the same weights; may be given again and again. The first one answers, and
    /// /adapter switches.
    #[arg(long, value_name = "[NAME=]DIR", value_delimiter = ',')]
    pub(crate) adapter: Vec<String>,
    /// Instructions for the whole conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,
    /// What happens when the context is full: the oldest messages are left out, they are summarized by the
    /// model, or the message is refused [default: drop].
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) context: Option<FullContext>,
    #[command(flatten)]
    pub(crate) others: OtherModels,
    #[command(flatten)]
    pub(crate) kept: KeptArgs,
    /// The colours: dark, light or plain.
    #[arg(long, value_name = "NAME", value_parser = theme)]
    pub(crate) theme: Option<ThemeName>,
    /// Chat by lines instead of on a full screen.
    #[arg(long)]
    pub(crate) inline: bool,
    /// Read one message from stdin, and print the answer with its numbers as one JSON object.
    #[arg(long, conflicts_with = "inline")]
    pub(crate) json: bool,
}

/// The settings of a session that flags gave. The values themselves cannot tell: they have defaults.
#[derive(Debug)]
pub(crate) struct GivenSettings(pub(crate) Vec<Setting>);

impl GivenSettings {
    const FLAGS: [(&str, Setting); 7] = [
        ("system", Setting::System),
        ("temperature", Setting::Temperature),
        ("top_k", Setting::TopK),
        ("top_p", Setting::TopP),
        ("max_new_tokens", Setting::MaxNewTokens),
        ("seed", Setting::Seed),
        ("context", Setting::Context),
    ];
}

impl Args for GivenSettings {
    fn augment_args(command: clap::Command) -> clap::Command {
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        command
    }
}

impl FromArgMatches for GivenSettings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |flag: &str| matches.value_source(flag) == Some(ValueSource::CommandLine);
        Ok(Self(
            Self::FLAGS.into_iter().filter(|(flag, _)| is_given(flag)).map(|(_, setting)| setting).collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The models beside the one that answers.
#[derive(Debug, Args)]
pub(crate) struct OtherModels {
    /// Another model that answers side by side; may be given again and again.
    #[arg(long, value_name = "DIR")]
    pub(crate) compare: Vec<String>,
    /// Hide which model wrote which answer.
    #[arg(long, requires = "compare")]
    pub(crate) blind: bool,
    /// The reward model of /reward.
    #[arg(long, value_name = "DIR")]
    pub(crate) reward_model: Option<String>,
    /// The reference of /kl.
    #[arg(long, value_name = "DIR")]
    pub(crate) reference: Option<String>,
}

/// What the chat keeps.
#[derive(Debug, Args)]
pub(crate) struct KeptArgs {
    /// Where judgements are written [default: feedback/ in the data folder of the user].
    #[arg(long, value_name = "DIR")]
    pub(crate) feedback: Option<PathBuf>,
    /// Go on with the newest session.
    #[arg(long = "continue", conflicts_with = "session")]
    pub(crate) continue_newest: bool,
    /// Go on with this session.
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Keep neither sessions nor messages. Judgements are written all the same: each is a command of yours.
    #[arg(long, conflicts_with_all = ["session", "continue_newest"])]
    pub(crate) no_save: bool,
}

/// What happens when a conversation no longer fits into the context of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FullContext {
    /// The model no longer sees the oldest messages.
    Drop,
    /// The model sees a summary of the oldest messages.
    Summarize,
    /// The message is refused.
    Stop,
}

impl From<FullContext> for ContextPolicy {
    fn from(context: FullContext) -> Self {
        match context {
            FullContext::Drop => Self::Drop,
            FullContext::Summarize => Self::Summarize,
            FullContext::Stop => Self::Stop,
        }
    }
}

/// The name of a theme.
fn theme(name: &str) -> Result<ThemeName, String> {
    ThemeName::find(name).ok_or_else(|| "the themes are dark, light and plain".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn the_chat_knows_which_settings_were_given() {
        let given = |extra: &[&str]| {
            let words = ["colossal-chat", "chat", "--model", "m"];
            match Cli::try_parse_from(words.iter().chain(extra)).unwrap().command {
                Command::Chat(arguments) => arguments.given.0,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(given(&["--inline"]), []);
        assert_eq!(given(&["--seed", "0", "--context", "drop"]), [Setting::Seed, Setting::Context]);
    }
}
