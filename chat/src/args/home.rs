//! The home folder on the command line: `~` at the beginning of a path is written out, also where a shell
//! leaves it alone, as in `--out=~/run` and behind a comma.
//!
//! A path is an argument whose type is a path, or a text whose name in the help says that it may be a path:
//! names of models may be folders, and patterns of files are texts.

use std::any::TypeId;
use std::path::PathBuf;

use clap::builder::{PathBufValueParser, StringValueParser, TypedValueParser};
use clap::{Arg, Command};

use crate::user_folders::expand_home;

/// What the name of an argument in the help says if it may be a path.
const PATH_NAMES: [&str; 3] = ["DIR", "FILE", "PATH"];

/// Expands the paths of a command and of all commands below it.
pub(super) fn expand(command: Command) -> Command {
    command.mut_args(expand_argument).mut_subcommands(expand)
}

fn expand_argument(argument: Arg) -> Arg {
    let names = argument.get_value_names().unwrap_or_default();
    let is_named = names.iter().any(|name| PATH_NAMES.iter().any(|word| name.contains(word)));
    let kind = argument.get_value_parser().type_id();
    if kind == TypeId::of::<PathBuf>() {
        // A name that is no text has no `~` that could be told from others.
        return argument.value_parser(PathBufValueParser::new().try_map(|path| match path.to_str() {
            Some(text) => expand_home(text).map(PathBuf::from),
            None => Ok(path),
        }));
    }
    if is_named && kind == TypeId::of::<String>() {
        return argument.value_parser(StringValueParser::new().try_map(|text| expand_home(&text)));
    }
    argument
}
