//! The slash commands of the chat: one table with the name, the arguments and the help of each, and the
//! parser.
//!
//! A line that begins with `/` is a command, and `//` begins a message with one slash. A name may be
//! shortened as long as it stays unique. The help, the completion and the parser all read the same table.

/// A command of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Help {
    /// The name without its slash.
    pub name: &'static str,
    /// The arguments, as in `[DIR]`; empty for none.
    pub arguments: &'static str,
    /// What it does.
    pub help: &'static str,
    kind: Kind,
}

/// Which command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Shows all commands and keys.
    Help,
    /// Starts a new session.
    New,
    /// Lists the sessions.
    Sessions,
    /// Opens a session.
    Resume,
    /// Copies the branch on the screen into a new session.
    Fork,
    /// Gives the session a title.
    Rename,
    /// Writes the conversation to a file.
    Export,
    /// Switches the model.
    Model,
    /// Switches the adapter on the model.
    Adapter,
    /// Asks several models at once.
    Compare,
    /// Chooses an answer of a comparison.
    Prefer,
    /// Calls an answer good.
    Good,
    /// Calls an answer bad.
    Bad,
    /// Rates an answer from 1 to 5.
    Rate,
    /// Adds a note to the next judgement.
    Note,
    /// Sets the tags of judgements.
    Tag,
    /// Scores the answer with a reward model.
    Reward,
    /// Shows where the model and a reference part.
    Kl,
    /// Shows the log-probability of each token.
    Logprobs,
    /// Sets the instructions.
    System,
    /// Sets the chat template.
    Template,
    /// Shows or changes a sampling parameter.
    Set,
    /// Chooses what happens when the context is full.
    Context,
    /// Stops the answer.
    Stop,
    /// Writes another answer.
    Regen,
    /// Writes on where the answer was cut.
    Continue,
    /// Edits the last message, or the answer.
    Edit,
    /// Goes back by one exchange.
    Undo,
    /// Begins the next answer with a text.
    Prefill,
    /// Shows the text that the model gets.
    Prompt,
    /// Copies an answer or a code block.
    Copy,
    /// Searches the conversation.
    Find,
    /// Shows numbers of the last answer.
    Stats,
    /// Changes the theme.
    Theme,
    /// Switches the keys of vim on or off.
    Vim,
    /// Switches the mouse on or off.
    Mouse,
    /// Ends the chat.
    Quit,
}

const fn row(kind: Kind, name: &'static str, arguments: &'static str, help: &'static str) -> Help {
    Help { name, arguments, help, kind }
}

/// All commands, grouped as the help shows them.
pub const COMMANDS: [Help; 38] = [
    row(Kind::Help, "help", "", "all commands and keys"),
    row(Kind::New, "new", "", "start a new session; this one is kept"),
    row(Kind::Sessions, "sessions", "", "list the sessions, to open or delete one"),
    row(Kind::Resume, "resume", "[ID]", "open a session; without ID the newest other one"),
    row(Kind::Fork, "fork", "", "copy what is on the screen into a new session"),
    row(Kind::Rename, "rename", "TITLE", "give this session a title"),
    row(Kind::Export, "export", "md|json|jsonl|parquet [FILE]", "write the conversation to a file"),
    row(Kind::Regen, "regen", "", "write another answer; the old one stays beside it"),
    row(Kind::Continue, "continue", "", "write on where the answer was cut"),
    row(Kind::Edit, "edit", "[answer]", "edit your last message, or the answer"),
    row(Kind::Undo, "undo", "", "take back the last exchange; its text returns to the input"),
    row(Kind::Stop, "stop", "", "stop the answer and keep what is there"),
    row(Kind::Prefill, "prefill", "TEXT", "begin the next answer with this text"),
    row(Kind::Model, "model", "[DIR|URL|NAME]", "switch the model, or list the loaded ones"),
    row(Kind::Adapter, "adapter", "[NAME|off]", "answer with this adapter of --adapter, or without one"),
    row(Kind::System, "system", "[TEXT|-]", "show, set or remove the instructions"),
    row(Kind::Template, "template", "NAME", "use another chat template"),
    row(Kind::Set, "set", "[NAME VALUE]", "temperature, top_k, top_p, max_new_tokens, seed"),
    row(Kind::Context, "context", "drop|summarize|stop", "what happens when the context is full"),
    row(Kind::Compare, "compare", "[DIR…] [blind]|off", "ask several models the same, side by side"),
    row(Kind::Prefer, "prefer", "a|b|…|tie", "say which answer is best; it is written down"),
    row(Kind::Good, "good", "[NOTE]", "this answer is good; it is written down"),
    row(Kind::Bad, "bad", "[NOTE]", "this answer is bad; it is written down"),
    row(Kind::Rate, "rate", "1-5 [NOTE]", "rate this answer; it is written down"),
    row(Kind::Note, "note", "TEXT", "add a note to the next judgement"),
    row(Kind::Tag, "tag", "[TAG…]", "set the tags of all further judgements"),
    row(Kind::Reward, "reward", "[DIR]", "score this answer with a reward model"),
    row(Kind::Kl, "kl", "[DIR]", "show, token by token, where model and reference part"),
    row(Kind::Logprobs, "logprobs", "", "show each token's log-probability and alternatives"),
    row(Kind::Prompt, "prompt", "", "show exactly what the model gets"),
    row(Kind::Stats, "stats", "", "numbers of the last answer"),
    row(Kind::Copy, "copy", "[N]", "copy the answer, or its code block N"),
    row(Kind::Find, "find", "[TEXT]", "search the conversation"),
    row(Kind::Theme, "theme", "dark|light|plain", "change the colours"),
    row(Kind::Vim, "vim", "", "switch vim keys of the input on or off"),
    row(Kind::Mouse, "mouse", "", "let the wheel scroll, or the terminal select text"),
    row(Kind::Quit, "quit", "", "end the chat"),
    row(Kind::Quit, "exit", "", "end the chat, like /quit"),
];

/// A line of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A message for the model.
    Message(String),
    /// A command with its arguments, trimmed.
    Command(Kind, &'a str),
    /// No such command; a sentence says why.
    Unknown(String),
}

/// Parses what the user sends.
pub fn parse(text: &str) -> Line<'_> {
    let Some(rest) = text.strip_prefix('/') else { return Line::Message(text.to_owned()) };
    if rest.starts_with('/') {
        return Line::Message(rest.to_owned());
    }
    let (name, arguments) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let matches = completions(name);
    match matches[..] {
        [found] => Line::Command(found.kind, arguments.trim()),
        [] => Line::Unknown(format!("there is no command /{name}; /help lists all, and // begins a message")),
        _ => {
            let names: Vec<String> = matches.iter().map(|help| format!("/{}", help.name)).collect();
            Line::Unknown(format!("/{name} may be {}", names.join(", ")))
        }
    }
}

/// The commands that begin with `name`; only the one called so, if there is one.
pub fn completions(name: &str) -> Vec<&'static Help> {
    if let Some(exact) = COMMANDS.iter().find(|help| help.name == name) {
        return vec![exact];
    }
    COMMANDS.iter().filter(|help| help.name.starts_with(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_be_shortened_while_it_is_unique() {
        assert_eq!(parse("/exp md x.md "), Line::Command(Kind::Export, "md x.md"));
        assert_eq!(parse("/re"), Line::Unknown("/re may be /resume, /rename, /regen, /reward".into()));
        assert_eq!(parse("/good"), Line::Command(Kind::Good, ""));
        assert!(matches!(parse("/nothing"), Line::Unknown(_)));
    }

    #[test]
    fn two_slashes_begin_a_message_with_one() {
        assert_eq!(parse("//etc/fstab?"), Line::Message("/etc/fstab?".into()));
        assert_eq!(parse("a /b"), Line::Message("a /b".into()));
    }

    #[test]
    fn names_are_unique() {
        for help in &COMMANDS {
            assert_eq!(parse(&format!("/{}", help.name)), Line::Command(help.kind, ""), "{}", help.name);
        }
    }
}
