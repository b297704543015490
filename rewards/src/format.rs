//! `kind = "format"`: the reply consists of tagged parts, such as `<think>...</think> <answer>...</answer>`
//! (DeepSeek-AI 2025, arXiv 2501.12948, section 2.2.2: the format reward of R1-Zero).
//!
//! Each tag of the list is opened once and closed once, in the order of the list, and what it encloses is not
//! blank. Outside of the parts there is white space only, unless `outside` allows other text. A tag is
//! written exactly `<NAME>` and `</NAME>`.

use crate::entry::FormatConfig;
use crate::error::Wrong;
use crate::score::Reply;

/// Checks the tags of a reply.
#[derive(Debug)]
pub(crate) struct Format {
    /// The marks in their order: open, close, open, close.
    marks: Vec<String>,
    opened: bool,
    outside: bool,
}

impl Format {
    pub(crate) fn new(config: &FormatConfig) -> Result<Self, Wrong> {
        let fix = "give names such as [\"think\", \"answer\"]";
        if config.tags.is_empty() {
            return Err(Wrong::new("tags", "is empty", fix));
        }
        for (index, tag) in config.tags.iter().enumerate() {
            let key = format!("tags[{index}]");
            let is_name = |c: char| c.is_alphanumeric() || "_-|:.".contains(c);
            if tag.is_empty() || !tag.chars().all(is_name) {
                let problem = format!("is {tag:?}, which is no name of a tag");
                return Err(Wrong::new(key, problem, fix));
            }
            if config.tags[..index].contains(tag) {
                return Err(Wrong::new(key, format!("is {tag:?} again"), "name each tag once"));
            }
        }
        let marks = config.tags.iter().flat_map(|tag| [format!("<{tag}>"), format!("</{tag}>")]).collect();
        Ok(Self { marks, opened: config.opened, outside: config.outside })
    }

    pub(crate) fn score(&self, reply: &Reply<'_>) -> f64 {
        f64::from(self.fits(reply.text))
    }

    fn fits(&self, text: &str) -> bool {
        let given = usize::from(self.opened);
        // The mark that the prompt has written must not be written again.
        if self.opened && text.contains(&self.marks[0]) {
            return false;
        }
        let mut rest = text;
        for (index, mark) in self.marks.iter().enumerate().skip(given) {
            let Some((before, after)) = rest.split_once(mark.as_str()) else { return false };
            let is_inside = index % 2 == 1;
            let fits =
                if is_inside { !before.trim().is_empty() } else { self.outside || before.trim().is_empty() };
            // Each mark occurs once: not before its place, and not behind it.
            if !fits || self.marks.iter().any(|mark| before.contains(mark.as_str())) {
                return false;
            }
            rest = after;
        }
        let ends = self.outside || rest.trim().is_empty();
        ends && !self.marks.iter().any(|mark| rest.contains(mark.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile_text::hostile_texts;

    fn fits(config: &FormatConfig, text: &str) -> bool {
        Format::new(config).unwrap().fits(text)
    }

    #[test]
    fn parts_are_complete_and_in_order() {
        let config = FormatConfig::default();
        for text in [
            "<think>a</think><answer>b</answer>",
            " \n<think>\n1 < 2\n</think>\u{3000}\r\n<answer>字</answer>\n",
            "<think>a <b>bold</b></think> <answer>-1,000</answer>",
        ] {
            assert!(fits(&config, text), "{text}");
        }
        for text in [
            "",
            "b",
            "<think>a</think>",
            "<answer>b</answer><think>a</think>",
            "<think>a<answer>b</answer></think>",
            "<think>a</think><answer>b",
            "<think> \n</think><answer>b</answer>",
            "<think>a</think><answer></answer>",
            "<think>a</think> so <answer>b</answer>",
            "Well <think>a</think><answer>b</answer>",
            "<think>a</think><answer>b</answer>.",
            "<think>a</think><think>a</think><answer>b</answer>",
            "<think>a</think><answer>b</answer><answer>c</answer>",
            "<think>a</think></think><answer>b</answer>",
            "<Think>a</Think><answer>b</answer>",
            "<think >a</think><answer>b</answer>",
        ] {
            assert!(!fits(&config, text), "{text}");
        }
    }

    #[test]
    fn other_text_and_an_opened_tag_are_allowed_if_asked() {
        let outside = FormatConfig { outside: true, ..FormatConfig::default() };
        assert!(fits(&outside, "Well <think>a</think> so <answer>b</answer>."));
        assert!(!fits(&outside, "</think> <think>a</think> so <answer>b</answer>"));
        assert!(!fits(&outside, "<think>a</think> so <answer>b</answer> </answer>"));

        let opened = FormatConfig { tags: vec!["think".to_owned()], opened: true, outside: true };
        assert!(fits(&opened, "a</think>\nb"));
        assert!(!fits(&opened, "<think>a</think>\nb"));
        assert!(!fits(&opened, "\n</think>\nb"));
        assert!(!fits(&opened, "a"));
    }

    #[test]
    fn tags_are_checked() {
        for (tags, key) in [
            (vec![], "tags"),
            (vec![""], "tags[0]"),
            (vec!["a", "<b>"], "tags[1]"),
            (vec!["a", "b c"], "tags[1]"),
            (vec!["a", "a"], "tags[1]"),
        ] {
            let tags = tags.into_iter().map(str::to_owned).collect();
            let wrong = Format::new(&FormatConfig { tags, ..FormatConfig::default() }).unwrap_err();
            assert_eq!(wrong.key, key);
        }
    }

    #[test]
    fn odd_texts_fit_only_where_the_tags_are() {
        for text in hostile_texts() {
            for (opened, outside) in [(false, false), (true, true)] {
                let config = FormatConfig { opened, outside, ..FormatConfig::default() };
                assert!(!fits(&config, &text) || text.contains("</answer>"), "{text:?}");
            }
        }
    }
}
