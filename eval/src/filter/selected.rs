//! The match that a pattern selects in a reply, and the text of a reply without one.

use crate::Error;
use crate::python_regex::PythonRegex;
use crate::python_text::strip;

/// The text that stands for a missing answer.
pub const INVALID: &str = "[invalid]";

pub(super) fn invalid() -> String {
    INVALID.to_owned()
}

/// One item of what the pattern finds: the whole match, or the only group, or of several groups the first
/// that is not empty; without white space at its ends.
pub(super) fn select(pattern: &PythonRegex, text: &str, select: isize) -> Result<Option<String>, Error> {
    let Some(groups) = pattern.find(text, select)? else { return Ok(None) };
    let several = groups.len() > 1;
    let group = groups.into_iter().find(|group| !several || !group.is_empty());
    Ok(group.map(|group| strip(group).to_owned()))
}
