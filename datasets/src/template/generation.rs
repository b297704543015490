//! `{% generation %}` blocks, which mark the assistant's text.
//!
//! The Jinja engine has no custom tags, so the source is rewritten. The opening tag becomes `{% with %}`, a
//! marker, and an empty block that keeps the tag's whitespace control on both sides. The closing tag is
//! rewritten the same way. The markers are variables; their text is chosen for each rendering so that it does
//! not occur in the input. This module knows no messages.

use std::collections::BTreeMap;
use std::ops::Range;

use minijinja::Value;

/// The variable that holds the opening marker.
pub(super) const OPEN_VARIABLE: &str = "generation_open_marker";
/// The variable that holds the closing marker.
pub(super) const CLOSE_VARIABLE: &str = "generation_close_marker";

/// Rewrites the tags. Also returns whether there were any.
pub(super) fn rewrite(source: &str) -> (String, bool) {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut marked = false;

    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{#")).min() {
        let (before, tail) = rest.split_at(at);
        out.push_str(before);
        if tail.starts_with("{#") {
            let end = tail.find("#}").map_or(tail.len(), |end| end + 2);
            out.push_str(&tail[..end]);
            rest = &tail[end..];
            continue;
        }
        if let Some(tag) = parse_tag(tail) {
            marked = true;
            out.push_str(&tag.replacement());
            rest = &tail[tag.length..];
        } else {
            out.push_str("{%");
            rest = &tail[2..];
        }
    }

    out.push_str(rest);
    (out, marked)
}

struct Tag<'a> {
    left: &'a str,
    right: &'a str,
    opens: bool,
    length: usize,
}

impl Tag<'_> {
    fn replacement(&self) -> String {
        let Tag { left, right, opens, .. } = self;
        if *opens {
            format!("{{%{left} with %}}{{{{ {OPEN_VARIABLE} }}}}{{% if true %}}{{% endif {right}%}}")
        } else {
            format!("{{%{left} if true %}}{{% endif %}}{{{{ {CLOSE_VARIABLE} }}}}{{% endwith {right}%}}")
        }
    }
}

/// Parses a tag such as `{%- generation +%}` at the start of `text`.
fn parse_tag(text: &str) -> Option<Tag<'_>> {
    // The search starts after the opening `{%`, because in `{%}` the same `%` cannot also close the tag.
    let end = 2 + text.get(2..)?.find("%}")? + 2;
    let inner = &text[2..end - 2];
    let left = if inner.starts_with(['-', '+']) { &inner[..1] } else { "" };
    let inner = &inner[left.len()..];
    let right = if inner.ends_with(['-', '+']) { &inner[inner.len() - 1..] } else { "" };
    let opens = match inner[..inner.len() - right.len()].trim() {
        "generation" => true,
        "endgeneration" => false,
        _ => return None,
    };
    Some(Tag { left, right, opens, length: end })
}

/// The marker texts of one rendering.
pub(super) struct Markers {
    /// Inserted before the assistant's text.
    pub(super) open: String,
    /// Inserted after the assistant's text.
    pub(super) close: String,
}

impl Markers {
    /// Chooses markers that occur in neither the source nor the variables.
    pub(super) fn absent_from(source: &str, context: &BTreeMap<&str, Value>) -> Self {
        // JSON keeps the characters of markers unchanged, while the text form of a value would escape them.
        let mut input = serde_json::to_string(context).expect("template variables are plain data");
        input.push_str(source);
        let stem = (0..u64::MAX)
            .map(|number| format!("\u{10fffe}{number}"))
            .find(|stem| !input.contains(stem.as_str()))
            .expect("a finite text does not hold every number");
        Self { open: format!("{stem}<\u{10fffe}"), close: format!("{stem}>\u{10fffe}") }
    }

    /// Removes the markers from `text` and returns the byte ranges between them. Nested blocks count as one.
    pub(super) fn strip(&self, text: &str) -> (String, Vec<Range<usize>>) {
        let mut out = String::with_capacity(text.len());
        let mut ranges = Vec::new();
        let (mut depth, mut start) = (0_usize, 0);
        let mut rest = text;

        loop {
            let open = rest.find(&self.open).unwrap_or(rest.len());
            let close = rest.find(&self.close).unwrap_or(rest.len());
            let at = open.min(close);
            out.push_str(&rest[..at]);
            if at == rest.len() {
                return (out, ranges);
            }

            if open < close {
                if depth == 0 {
                    start = out.len();
                }
                depth += 1;
                rest = &rest[at + self.open.len()..];
            } else {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    ranges.push(start..out.len());
                }
                rest = &rest[at + self.close.len()..];
            }
        }
    }
}
