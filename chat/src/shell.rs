//! Writes a path so that a shell reads it back as one word.
//!
//! A name without special characters stays as it is, any other is put in single quotes. A name with control
//! characters, bidirectional overrides or bytes that are not UTF-8 is written as `$'...'` with escapes, as
//! bash, zsh and ksh read it (POSIX 2024), so that the terminal gets printable characters only.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use text::single_line;

/// Returns the path as a word of a command line.
pub(crate) fn quote(path: &Path) -> String {
    // A command would take a name that begins with a dash for a flag.
    let prefix = if path.as_os_str().as_bytes().starts_with(b"-") { "./" } else { "" };
    word(prefix, path.as_os_str())
}

/// Returns the command line of this process, without its folder.
pub(crate) fn own_command() -> String {
    let words = std::env::args_os().skip(1).map(|argument| word("", &argument));
    std::iter::once("colossal-chat".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn word(prefix: &str, text: &OsStr) -> String {
    let bytes = text.as_bytes();
    match text.to_str() {
        Some(text) if single_line(text) != text => escaped(prefix, bytes),
        Some(text) if !text.is_empty() && text.chars().all(is_plain) => format!("{prefix}{text}"),
        Some(text) => format!("'{prefix}{}'", text.replace('\'', r"'\''")),
        None => escaped(prefix, bytes),
    }
}

fn is_plain(character: char) -> bool {
    character.is_alphanumeric() || "/._-+:@%,=".contains(character)
}

fn escaped(prefix: &str, bytes: &[u8]) -> String {
    let byte = |&byte: &u8| match byte {
        b'\'' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        other => format!("\\{other:03o}"),
    };
    format!("$'{prefix}{}'", bytes.iter().map(byte).collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn names_are_quoted_as_little_as_possible() {
        for (name, quoted) in [
            ("runs/sft-2/final", "runs/sft-2/final"),
            ("数据/a.parquet", "数据/a.parquet"),
            ("my data.jsonl", "'my data.jsonl'"),
            ("it's", r"'it'\''s'"),
            ("$(reboot)", "'$(reboot)'"),
            ("-rf", "./-rf"),
            ("- x", "'./- x'"),
            ("", "''"),
            ("~", "'~'"),
            ("a\u{1b}[2J'\n", r"$'a\033[2J\'\012'"),
            ("\u{202e}x", r"$'\342\200\256x'"),
        ] {
            assert_eq!(quote(Path::new(name)), quoted);
        }
    }

    #[test]
    fn bash_reads_every_byte_back() {
        let bytes: Vec<u8> = (1..=255).collect();
        let word = quote(Path::new(OsStr::from_bytes(&bytes)));
        let output = Command::new("bash").args(["-c", &format!("printf %s {word}")]).output().unwrap();
        assert_eq!(output.stdout, bytes);
    }
}
