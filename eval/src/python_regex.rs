//! Regular expressions with the meaning that Python's `re` gives them (Python 3.11, no flags but those in the
//! pattern): what `re.findall` finds and what `re.sub` removes.
//!
//! A pattern is rewritten for [`fancy_regex`], which knows look-around and back-references. It backtracks, so
//! a search has a limit of steps, and a pattern that exceeds it is an error.

mod translate;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock, OnceLock};

use fancy_regex::{Captures, Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::Error;
use translate::{Boundaries, translate};

/// The steps that one search may take: a second or less, and enough for a pattern without repeated groups on
/// a reply of a megabyte.
const STEPS: usize = 10_000_000;

/// A pattern of Python's `re`. In a file it is the pattern's text.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PythonRegex {
    pattern: String,
    compiled: Arc<Compiled>,
}

struct Compiled {
    /// For texts in which Rust and Python know the same word characters.
    usual: Search,
    /// For other texts, if the pattern asks for the boundaries of words: the translation.
    any_pattern: Option<String>,
    /// What `any_pattern` is compiled to. It takes long, and few texts need it.
    any_search: OnceLock<Search>,
}

struct Search {
    regex: Regex,
    /// Finds what `regex` finds, but no empty match at the place where the search begins.
    beyond: Regex,
}

impl PythonRegex {
    /// Compiles `pattern`.
    pub fn new(pattern: &str) -> Result<Self, Error> {
        let unsupported = |construct| Error::UnsupportedPattern { pattern: pattern.to_owned(), construct };
        let usual = translate(pattern, Boundaries::Rust).map_err(unsupported)?;
        let any = translate(pattern, Boundaries::Python).map_err(unsupported)?;
        let any_pattern = (any != usual).then_some(any);
        let compiled =
            Compiled { usual: Search::new(pattern, &usual)?, any_pattern, any_search: OnceLock::new() };
        Ok(Self { pattern: pattern.to_owned(), compiled: Arc::new(compiled) })
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.pattern
    }

    /// One item of the list that `re.findall` returns: the texts of the groups, or the whole match as the
    /// only text of a pattern without groups. A `select` below zero counts from the end. `None` where the
    /// list has no such item.
    pub fn find<'t>(&self, text: &'t str, select: isize) -> Result<Option<Vec<&'t str>>, Error> {
        let mut found = Vec::new();
        self.search(text, |captures| {
            found.push(groups(captures, self.compiled.usual.regex.captures_len()));
            let enough = usize::try_from(select).is_ok_and(|index| found.len() > index);
            if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let index = if select < 0 { found.len().checked_add_signed(select) } else { Some(select as usize) };
        Ok(index.filter(|&index| index < found.len()).map(|index| found.swap_remove(index)))
    }

    /// The list that `re.findall` returns. See [`Self::find`] for its items.
    pub fn find_all<'t>(&self, text: &'t str) -> Result<Vec<Vec<&'t str>>, Error> {
        let mut found = Vec::new();
        self.search(text, |captures| {
            found.push(groups(captures, self.compiled.usual.regex.captures_len()));
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// `text` without what the pattern matches, `re.sub(pattern, "", text)`.
    pub fn remove_from(&self, text: &str) -> Result<String, Error> {
        self.replace_all(text, |_| String::new())
    }

    /// `text` with each match replaced by what `replacement` makes of its groups, `re.sub` with a function.
    /// The groups are those of [`Self::find`].
    pub fn replace_all(&self, text: &str, replacement: impl Fn(&[&str]) -> String) -> Result<String, Error> {
        let (mut kept, mut end) = (String::with_capacity(text.len()), 0);
        self.search(text, |captures| {
            let range = whole(captures);
            kept.push_str(&text[end..range.start]);
            kept.push_str(&replacement(&groups(captures, self.compiled.usual.regex.captures_len())));
            end = range.end;
            ControlFlow::Continue(())
        })?;
        kept.push_str(&text[end..]);
        Ok(kept)
    }

    /// Calls `visit` on each match from the left. As in Python, matches do not overlap, an empty match may
    /// follow another match directly, and after an empty match the next one is not empty or lies further
    /// right.
    fn search<'t>(
        &self,
        text: &'t str,
        mut visit: impl FnMut(&Captures<'t>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let search = self.search_of(text)?;
        let (mut start, mut after_empty) = (0, false);
        loop {
            let regex = if after_empty { &search.beyond } else { &search.regex };
            let found = regex.captures_from_pos(text, start).map_err(|_| self.too_slow(text))?;
            let Some(captures) = found else { return Ok(()) };
            if visit(&captures).is_break() {
                return Ok(());
            }

            let range = whole(&captures);
            after_empty = range.is_empty();
            start = range.end;
        }
    }

    /// The search that is exact for `text`.
    fn search_of(&self, text: &str) -> Result<&Search, Error> {
        let compiled = &*self.compiled;
        let Some(any) = compiled.any_pattern.as_ref().filter(|_| has_other_words(text)) else {
            return Ok(&compiled.usual);
        };
        if let Some(search) = compiled.any_search.get() {
            return Ok(search);
        }
        let search = Search::new(&self.pattern, any)?;
        Ok(compiled.any_search.get_or_init(|| search))
    }

    fn too_slow(&self, text: &str) -> Error {
        Error::SlowPattern { pattern: self.pattern.clone(), steps: STEPS, bytes: text.len() }
    }
}

impl Search {
    /// Compiles the translation of `pattern`.
    fn new(pattern: &str, translated: &str) -> Result<Self, Error> {
        let compile = |text: &str| {
            let built = RegexBuilder::new(text).backtrack_limit(STEPS).build();
            built.map_err(|source| Error::Pattern { pattern: pattern.to_owned(), source: Box::new(source) })
        };
        // `\G` is the place where the search begins.
        let beyond = format!(r"(?:{translated})(?!\G)");
        Ok(Self { regex: compile(translated)?, beyond: compile(&beyond)? })
    }
}

/// Whether `text` has a character that is a word character either to Rust or to Python, but not to both: a
/// combining mark, `²`, a joiner.
fn has_other_words(text: &str) -> bool {
    static OTHERS: LazyLock<Regex> = LazyLock::new(|| {
        let pattern = r"[\w--[\p{L}\p{N}_]]|[[\p{L}\p{N}]--\w]";
        Regex::new(pattern).expect("the pattern is a constant that a test compiles")
    });
    // The pattern never backtracks, so the search cannot fail.
    !text.is_ascii() && OTHERS.is_match(text).unwrap_or(true)
}

fn whole(captures: &Captures<'_>) -> std::ops::Range<usize> {
    captures.get(0).expect("a match has group 0").range()
}

/// The texts of the groups but group 0, which is the text of a pattern without groups. A group that took no
/// part has an empty text.
fn groups<'t>(captures: &Captures<'t>, count: usize) -> Vec<&'t str> {
    let first = usize::from(count > 1);
    (first..count).map(|index| captures.get(index).map_or("", |group| group.as_str())).collect()
}

impl fmt::Debug for PythonRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pattern.fmt(f)
    }
}

impl PartialEq for PythonRegex {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern
    }
}

impl TryFrom<String> for PythonRegex {
    type Error = Error;

    fn try_from(pattern: String) -> Result<Self, Error> {
        Self::new(&pattern)
    }
}

impl From<PythonRegex> for String {
    fn from(regex: PythonRegex) -> Self {
        regex.pattern
    }
}

#[cfg(test)]
mod tests;
