//! The part of a reply that is compared ([`Extract`]).
//!
//! Of several places the last one counts: a reply that thinks first writes its answer at the end. Each search
//! is linear in the text, but that of a pattern, which has a limit of steps.

use std::error::Error as _;

use eval::math_answer::boxed;
use eval::python_regex::PythonRegex;

use crate::entry::Extract;
use crate::error::Wrong;
use crate::number;
use crate::score::{ScoreError, quoted};

/// The mark of a fenced block, at the beginning of a line.
const FENCE: &str = "```";

/// Takes the part out of a text.
#[derive(Debug)]
pub(crate) struct Extractor {
    how: Extract,
    pattern: Option<PythonRegex>,
}

impl Extractor {
    pub(crate) fn new(how: Extract, pattern: &str) -> Result<Self, Wrong> {
        let pattern = match (how, pattern.is_empty()) {
            (Extract::Pattern, false) => Some(compile(pattern)?),
            (Extract::Pattern, true) => {
                let problem = "is missing, and `extract` is \"pattern\"";
                return Err(Wrong::new(
                    "pattern",
                    problem,
                    "give the pattern, such as '<answer>(.*?)</answer>'",
                ));
            }
            (_, true) => None,
            (_, false) => {
                let problem = "has no effect, because `extract` is not \"pattern\"";
                return Err(Wrong::new("pattern", problem, "set extract = \"pattern\", or leave it out"));
            }
        };
        Ok(Self { how, pattern })
    }

    /// The part, without white space around it. `None` where the text has none.
    pub(crate) fn find(&self, text: &str) -> Result<Option<String>, ScoreError> {
        let found = match (self.how, &self.pattern) {
            (_, Some(pattern)) => last_match(pattern, text)?,
            (Extract::LastNumber, _) => return Ok(number::last(text).map(|number| number.text)),
            (Extract::LastLine, _) => text.lines().rev().find(|line| !line.trim().is_empty()),
            (Extract::Boxed, _) => boxed::last_content(text),
            (Extract::Fenced, _) => last_fenced(text),
            (Extract::Whole | Extract::Pattern, _) => Some(text),
        };
        Ok(found.map(|part| part.trim().to_owned()))
    }

    /// The part of a right answer: all of it, where the part is not in it.
    pub(crate) fn find_in_answer(&self, answer: &str) -> Result<String, ScoreError> {
        Ok(self.find(answer)?.unwrap_or_else(|| answer.to_owned()))
    }

    /// Whether the part is the last number of the text.
    pub(crate) fn is_number(&self) -> bool {
        self.how == Extract::LastNumber
    }
}

/// Compiles the value of the key `pattern`.
pub(crate) fn compile(pattern: &str) -> Result<PythonRegex, Wrong> {
    /// The longest pattern, in bytes.
    const LONGEST: usize = 10_000;
    if pattern.len() > LONGEST {
        let problem = format!("has {} bytes, more than {LONGEST}", pattern.len());
        return Err(Wrong::new("pattern", problem, "give a shorter one"));
    }
    // The messages of `eval` name the pattern and the fix as well.
    PythonRegex::new(pattern).map_err(|error| match error {
        eval::Error::UnsupportedPattern { construct, .. } => {
            let problem = format!("is {pattern:?}, which has {construct}");
            Wrong::new(
                "pattern",
                problem,
                "correct that, or write it in another way that Python's `re` takes",
            )
        }
        error => {
            let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            let problem = format!("is {pattern:?}, which cannot be compiled: {cause}");
            Wrong::new("pattern", problem, "write it as Python's `re` takes it")
        }
    })
}

/// The last match of a pattern, or its first group that is not empty.
fn last_match<'t>(pattern: &PythonRegex, text: &'t str) -> Result<Option<&'t str>, ScoreError> {
    let found = pattern.find(text, -1).map_err(|error| too_slow(&error))?;
    Ok(found.map(|groups| groups.into_iter().find(|group| !group.is_empty()).unwrap_or_default()))
}

/// The error of a search with a limit of steps.
pub(crate) fn too_slow(error: &eval::Error) -> ScoreError {
    ScoreError::SlowPattern { reason: quoted(&error.to_string()) }
}

/// The content of the last fenced block. A block that is not closed is none.
pub(crate) fn last_fenced(text: &str) -> Option<&str> {
    let (mut open, mut found, mut place) = (None, None, 0);
    for line in text.split_inclusive('\n') {
        let (start, end) = (place, place + line.len());
        place = end;
        if !line.trim_start().starts_with(FENCE) {
            continue;
        }
        match open.take() {
            // What follows the mark that opens a block is the name of its language.
            None => open = Some(end),
            Some(begin) => found = Some(&text[begin..start]),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile_text::hostile_texts;

    fn find(how: Extract, text: &str) -> Option<String> {
        let pattern = if how == Extract::Pattern { "<a>(.*?)</a>|is (.*)" } else { "" };
        Extractor::new(how, pattern).unwrap().find(text).unwrap()
    }

    #[test]
    fn the_last_part_counts() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(find(Extract::Whole, " a\nb\u{3000}\n"), some("a\nb"));
        assert_eq!(find(Extract::LastLine, "a\r\n b c\r\n \n\t"), some("b c"));
        assert_eq!(find(Extract::LastLine, " \n\n"), None);
        assert_eq!(find(Extract::LastNumber, "of 12 it is -1,250.50 $"), some("-1250.50"));
        assert_eq!(find(Extract::LastNumber, "seven"), None);
        assert_eq!(find(Extract::Boxed, r"\boxed{1} so \boxed{ \frac{1}{2} }"), some(r"\frac{1}{2}"));
        assert_eq!(find(Extract::Boxed, r"so \frac12"), None);
        assert_eq!(find(Extract::Pattern, "<a>x</a> <a> y </a>"), some("y"));
        assert_eq!(find(Extract::Pattern, "<a>x</a>, it is z"), some("z"));
        assert_eq!(find(Extract::Pattern, "<a></a>"), some(""));
        assert_eq!(find(Extract::Pattern, "none"), None);
    }

    #[test]
    fn a_fenced_block_is_closed() {
        let text = "one\n```json\n{1}\n```\ntwo\n  ```\n[2]\n\n  ```\nend";
        assert_eq!(last_fenced(text), Some("[2]\n\n"));
        assert_eq!(last_fenced("```\na\n```\n```\nb"), Some("a\n"));
        assert_eq!(last_fenced("```\n```"), Some(""));
        assert_eq!(last_fenced("```a"), None);
        assert_eq!(last_fenced("a ``` b ```"), None);
    }

    #[test]
    fn an_answer_without_the_part_is_compared_whole() {
        let boxed = Extractor::new(Extract::Boxed, "").unwrap();
        assert_eq!(boxed.find_in_answer(r"so \boxed{7}").unwrap(), "7");
        assert_eq!(boxed.find_in_answer("7").unwrap(), "7");
    }

    #[test]
    fn a_pattern_and_its_key_belong_together() {
        let wrong = |how, pattern| Extractor::new(how, pattern).unwrap_err();
        assert_eq!(wrong(Extract::Pattern, "").key, "pattern");
        assert!(wrong(Extract::Boxed, "x").problem.contains("no effect"));
        assert!(wrong(Extract::Pattern, "(x").problem.contains("cannot be compiled"));
        let told = |pattern| wrong(Extract::Pattern, pattern).of("reward[0]").to_string();
        assert_eq!(
            told("(["),
            "`reward[0].pattern` is \"([\", which has a class without its closing bracket; correct that, or \
             write it in another way that Python's `re` takes"
        );
        assert_eq!(
            told("(x"),
            "`reward[0].pattern` is \"(x\", which cannot be compiled: Parsing error at position 2: Opening \
             parenthesis without closing parenthesis; write it as Python's `re` takes it"
        );
        assert!(wrong(Extract::Pattern, &"x".repeat(20_000)).problem.contains("20000 bytes"));
    }

    #[test]
    fn a_slow_pattern_is_no_score() {
        let slow = Extractor::new(Extract::Pattern, "(?=(a|aa)+$)b").unwrap();
        let error = slow.find(&format!("{}!", "a".repeat(200))).unwrap_err();
        assert!(matches!(error, ScoreError::SlowPattern { .. }), "{error}");
    }

    #[test]
    fn odd_texts_end() {
        use Extract::{Boxed, Fenced, LastLine, LastNumber, Pattern, Whole};
        for text in hostile_texts() {
            for how in [Whole, LastLine, LastNumber, Boxed, Fenced, Pattern] {
                let _ = find(how, &text);
            }
        }
    }
}
