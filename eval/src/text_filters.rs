//! The filters from text to text that templates of tasks have in addition to Jinja's: the functions that
//! lm-evaluation-harness applies to columns before a prompt is made of them (`tasks/*/utils.py`).

use std::sync::LazyLock;

use datasets::TextFilter;

use crate::math_answer::{boxed, minerva};
use crate::python_regex::PythonRegex;
use crate::python_text::strip;

/// The filters by name.
pub(crate) const TEXT_FILTERS: &[(&str, TextFilter)] = &[
    ("hellaswag_clean", hellaswag_clean),
    ("wikitext_detokenize", wikitext_detokenize),
    ("last_boxed", last_boxed),
    ("minerva_normalize", minerva_normalize),
];

fn pattern(pattern: &str) -> PythonRegex {
    PythonRegex::new(pattern).expect("the pattern is written here")
}

/// Removes the marks of `WikiHow` from a text of HellaSwag.
fn hellaswag_clean(text: &str) -> Result<String, String> {
    static BRACKETS: LazyLock<PythonRegex> = LazyLock::new(|| pattern(r"\[.*?\]"));
    let text = strip(text).replace(" [title]", ". ");
    let text = BRACKETS.remove_from(&text).map_err(|error| error.to_string())?;
    Ok(text.replace("  ", " "))
}

/// Joins the tokens of WikiText to ordinary text.
fn wikitext_detokenize(text: &str) -> Result<String, String> {
    const PLAIN: [(&str, &str); 10] = [
        ("s '", "s'"),
        (" @-@ ", "-"),
        (" @,@ ", ","),
        (" @.@ ", "."),
        (" : ", ": "),
        (" ; ", "; "),
        (" . ", ". "),
        (" ! ", "! "),
        (" ? ", "? "),
        (" , ", ", "),
    ];
    const MARKS: [(&str, &str); 7] = [
        ("= = = =", "===="),
        ("= = =", "==="),
        ("= =", "=="),
        (" \u{b0} ", "\u{b0}"),
        (" \n", "\n"),
        ("\n ", "\n"),
        (" N ", " 1 "),
    ];
    /// Pairs of signs whose content loses the spaces at its ends.
    static PAIRS: LazyLock<[(PythonRegex, char, char); 5]> = LazyLock::new(|| {
        [
            (pattern(r"\(\s*([^\)]*?)\s*\)"), '(', ')'),
            (pattern(r"\[\s*([^\]]*?)\s*\]"), '[', ']'),
            (pattern(r"{\s*([^}]*?)\s*}"), '{', '}'),
            (pattern(r#"\"\s*([^\"]*?)\s*\""#), '"', '"'),
            (pattern(r"'\s*([^']*?)\s*'"), '\'', '\''),
        ]
    });

    let mut text = text.to_owned();
    for (from, to) in PLAIN {
        text = text.replace(from, to);
    }
    for (pair, open, close) in PAIRS.iter() {
        text = pair
            .replace_all(&text, |groups| format!("{open}{}{close}", groups[0]))
            .map_err(|error| error.to_string())?;
    }
    for (from, to) in MARKS {
        text = text.replace(from, to);
    }
    Ok(text.replace(" 's", "'s"))
}

/// The content of the last box of a solution.
fn last_boxed(text: &str) -> Result<String, String> {
    boxed::last_content(text).map(str::to_owned).ok_or_else(|| "the text has no \\boxed{}".to_owned())
}

/// An answer in the normal form of Minerva.
#[expect(clippy::unnecessary_wraps, reason = "every filter may fail")]
fn minerva_normalize(text: &str) -> Result<String, String> {
    Ok(minerva::normalized(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellaswag_loses_its_brackets_and_one_of_two_spaces() {
        // Of three spaces, two become one in a single pass, as in Python.
        let clean = |text| hellaswag_clean(text).unwrap();
        assert_eq!(clean(" [header] How to [title] Do it [step]  now "), " How to. Do it  now");
        assert_eq!(clean("a    b"), "a  b");
    }

    #[test]
    fn wikitext_is_joined() {
        let text = wikitext_detokenize(
            " = Title = \n the dogs ' ( a b ) cost 1 @,@ 000 @-@ ish . It 's \" x \" , ok",
        )
        .unwrap();
        // The two apostrophes are a pair, so the text between them loses its outer spaces.
        assert_eq!(text, " = Title =\nthe dogs'(a b) cost 1,000-ish. It's \"x\", ok");
    }
}
