//! The 25 kinds of instructions: id, arguments, check. The groups are those of the paper.

use super::arguments::Arguments;
use super::pattern::{Pattern, anywhere, whole_word};
use super::{case, language, layout, sentence, word};
use crate::Error;
use crate::python_text::strip;

/// One kind of instruction.
pub(super) struct Kind {
    pub(super) id: &'static str,
    /// The names of its arguments.
    pub(super) fields: &'static [&'static str],
    /// Makes the check of one instruction from its arguments.
    pub(super) read: fn(&Arguments) -> Result<Check, Error>,
}

/// How surely a verdict is the one of lm-evaluation-harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// It is the same for every reply.
    Exact,
    /// It may differ for some replies, or the harness itself draws at random.
    Approximate,
}

/// The check of one instruction.
pub(super) struct Check {
    pub(super) agreement: Agreement,
    pub(super) follows: Follows,
}

/// Whether a reply that is not blank follows an instruction.
type Follows = Box<dyn Fn(&str) -> Result<bool, Error> + Send + Sync>;

/// The kind named `id`.
pub(super) fn find(id: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.id == id)
}

/// The ids of all kinds.
pub fn ids() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.id)
}

#[rustfmt::skip]
static KINDS: [Kind; 25] = [
    // Keywords. Each is a regular expression, searched anywhere and without regard to case.
    Kind { id: "keywords:existence", fields: &["keywords"], read: |given| {
        let keywords = given.patterns("keywords", anywhere)?;
        exact(move |reply| every(&keywords, |keyword| keyword.found(reply)))
    }},
    Kind { id: "keywords:frequency", fields: &["keyword", "frequency", "relation"], read: |given| {
        let keyword = given.pattern("keyword", anywhere)?;
        let (bound, relation) = (given.count("frequency")?, given.relation("relation")?);
        exact(move |reply| Ok(relation.is_at_least() == keyword.found_times(reply, bound)?))
    }},
    Kind { id: "keywords:forbidden_words", fields: &["forbidden_words"], read: |given| {
        let words = given.patterns("forbidden_words", whole_word)?;
        exact(move |reply| every(&words, |word| Ok(!word.found(reply)?)))
    }},
    // Another character than a letter is counted here; the harness counts a random letter instead.
    Kind { id: "keywords:letter_frequency",
           fields: &["letter", "let_frequency", "let_relation"], read: |given| {
        let letter = letter(given)?;
        let (bound, relation) = (given.count("let_frequency")?, given.relation("let_relation")?);
        let agreement = if letter.is_ascii_lowercase() { Agreement::Exact } else { Agreement::Approximate };
        let count = move |reply: &str| reply.to_lowercase().matches(letter).count();
        let follows = move |reply: &str| Ok(relation.holds(count(reply), bound));
        Ok(Check { agreement, follows: Box::new(follows) })
    }},

    // A reply whose language cannot be told follows.
    Kind { id: "language:response_language", fields: &["language"], read: |given| {
        let language = known_language(given)?;
        approximate(move |reply| language::identify(reply).is_none_or(|found| found == language))
    }},

    // Lengths.
    Kind { id: "length_constraints:number_paragraphs", fields: &["num_paragraphs"], read: |given| {
        let count = given.count("num_paragraphs")?;
        exact(move |reply| Ok(layout::divided_paragraphs(reply) == Some(count)))
    }},
    Kind { id: "length_constraints:number_words", fields: &["num_words", "relation"], read: |given| {
        let (bound, relation) = (given.count("num_words")?, given.relation("relation")?);
        exact(move |reply| Ok(relation.holds(layout::words(reply), bound)))
    }},
    Kind { id: "length_constraints:number_sentences", fields: &["num_sentences", "relation"], read: |given| {
        let (bound, relation) = (given.count("num_sentences")?, given.relation("relation")?);
        approximate(move |reply| relation.holds(sentence::split(reply).len(), bound))
    }},
    Kind { id: "length_constraints:nth_paragraph_first_word",
           fields: &["num_paragraphs", "nth_paragraph", "first_word"], read: |given| {
        let (count, nth) = (given.count("num_paragraphs")?, nth_paragraph(given)?);
        let word = given.text("first_word")?.to_lowercase();
        exact(move |reply| Ok(layout::has_first_word(reply, count, nth, &word)))
    }},

    // Content.
    Kind { id: "detectable_content:postscript", fields: &["postscript_marker"], read: |given| {
        let postscript = given.pattern("postscript_marker", |marker| match marker {
            "P.P.S" => r"(?m)\s*p\.\s?p\.\s?s.*$".to_owned(),
            "P.S." => r"(?m)\s*p\.\s?s\..*$".to_owned(),
            other => [r"(?m)\s*", &other.to_lowercase(), ".*$"].concat(),
        })?;
        exact(move |reply| postscript.found(&reply.to_lowercase()))
    }},
    Kind { id: "detectable_content:number_placeholders", fields: &["num_placeholders"], read: |given| {
        let least = given.count("num_placeholders")?;
        exact(move |reply| Ok(layout::placeholders(reply)? >= least))
    }},

    // Format.
    Kind { id: "detectable_format:number_bullet_lists", fields: &["num_bullets"], read: |given| {
        let count = given.count("num_bullets")?;
        exact(move |reply| Ok(layout::bullets(reply)? == count))
    }},
    Kind { id: "detectable_format:title", fields: &[], read: |_| {
        exact(layout::has_title)
    }},
    Kind { id: "detectable_format:constrained_response", fields: &[], read: |_| {
        let answers = ["My answer is yes.", "My answer is no.", "My answer is maybe."];
        exact(move |reply| Ok(answers.iter().any(|answer| reply.contains(answer))))
    }},
    Kind { id: "detectable_format:number_highlighted_sections", fields: &["num_highlights"], read: |given| {
        let least = given.count("num_highlights")?;
        exact(move |reply| Ok(layout::highlights(reply)? >= least))
    }},
    Kind { id: "detectable_format:multiple_sections",
           fields: &["section_spliter", "num_sections"], read: |given| {
        let heading = heading(given)?;
        let least = given.count("num_sections")?;
        exact(move |reply| heading.found_times(reply, least))
    }},
    Kind { id: "detectable_format:json_format", fields: &[], read: |_| {
        exact(|reply| Ok(layout::is_json(reply)))
    }},

    // Combinations.
    Kind { id: "combination:repeat_prompt", fields: &["prompt_to_repeat"], read: |given| {
        let prompt = strip(given.text("prompt_to_repeat")?).to_lowercase();
        exact(move |reply| Ok(strip(reply).to_lowercase().starts_with(&prompt)))
    }},
    Kind { id: "combination:two_responses", fields: &[], read: |_| {
        exact(|reply| Ok(layout::has_two_responses(reply)))
    }},

    // Case.
    Kind { id: "change_case:english_capital", fields: &[], read: |_| {
        approximate(|reply| case::is_upper(reply) && language::is_english(reply))
    }},
    Kind { id: "change_case:english_lowercase", fields: &[], read: |_| {
        approximate(|reply| case::is_lower(reply) && language::is_english(reply))
    }},
    Kind { id: "change_case:capital_word_frequency",
           fields: &["capital_frequency", "capital_relation"], read: |given| {
        let (bound, relation) = (given.count("capital_frequency")?, given.relation("capital_relation")?);
        approximate(move |reply| relation.holds(word::capitals(reply), bound))
    }},

    // Beginning, end, punctuation.
    Kind { id: "startend:end_checker", fields: &["end_phrase"], read: |given| {
        let end = strip(given.text("end_phrase")?).to_lowercase();
        exact(move |reply| Ok(strip(reply).trim_matches('"').to_lowercase().ends_with(&end)))
    }},
    Kind { id: "startend:quotation", fields: &[], read: |_| {
        exact(|reply| Ok(layout::is_quoted(reply)))
    }},
    Kind { id: "punctuation:no_comma", fields: &[], read: |_| {
        exact(|reply| Ok(!reply.contains(',')))
    }},
];

#[expect(clippy::unnecessary_wraps, reason = "the table reads better where every entry ends with a Result")]
fn exact(follows: impl Fn(&str) -> Result<bool, Error> + Send + Sync + 'static) -> Result<Check, Error> {
    Ok(Check { agreement: Agreement::Exact, follows: Box::new(follows) })
}

#[expect(clippy::unnecessary_wraps, reason = "the table reads better where every entry ends with a Result")]
fn approximate(follows: impl Fn(&str) -> bool + Send + Sync + 'static) -> Result<Check, Error> {
    Ok(Check { agreement: Agreement::Approximate, follows: Box::new(move |reply| Ok(follows(reply))) })
}

fn every(patterns: &[Pattern], holds: impl Fn(&Pattern) -> Result<bool, Error>) -> Result<bool, Error> {
    for pattern in patterns {
        if !holds(pattern)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The pattern of `Section 1`.
fn heading(given: &Arguments) -> Result<Pattern, Error> {
    let field = "section_spliter";
    if given.text(field)?.contains('(') {
        let problem = "has a parenthesis, whose group the harness counts too".to_owned();
        return Err(given.wrong(field, problem, "give a word such as Section"));
    }
    given.pattern(field, |splitter| [r"\s?", splitter, r"\s?\d+\s?"].concat())
}

/// One character, in lower case.
fn letter(given: &Arguments) -> Result<char, Error> {
    let text = given.text("letter")?;
    let mut lower = text.chars().flat_map(char::to_lowercase);
    match (lower.next(), lower.next()) {
        (Some(letter), None) => Ok(letter),
        _ => Err(given.wrong("letter", format!("is {text:?}"), "give one letter")),
    }
}

fn known_language(given: &Arguments) -> Result<&'static str, Error> {
    let code = given.text("language")?;
    let known = language::CODES.iter().copied().find(|known| *known == code);
    known.ok_or_else(|| {
        let problem = format!("is {code:?}, not one of {}", language::CODES.join(", "));
        given.wrong("language", problem, "use the code of one of these languages")
    })
}

fn nth_paragraph(given: &Arguments) -> Result<usize, Error> {
    let (nth, count) = (given.count("nth_paragraph")?, given.count("num_paragraphs")?);
    if nth > count {
        let problem = format!("is {nth} of {count} paragraphs");
        return Err(given.wrong("nth_paragraph", problem, "give a number from 1 to num_paragraphs"));
    }
    Ok(nth)
}
