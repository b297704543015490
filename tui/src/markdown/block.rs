//! Finds where the blocks of a growing Markdown text end, without parsing it.
//!
//! A block ends where the next line certainly begins another one, whatever follows: at the end of a fenced
//! code block, or at a blank line unless a fence, an HTML block or a list may go on after it (`CommonMark`
//! 0.31, chapters 4 and 5). When this is unsure, the block goes on. The decision about a line needs nothing
//! that comes after it: the ends of a text are the same for every way in which the text was cut into pieces.
//!
//! This module knows only what decides about ends. What is inside a block quote or a list item ends with its
//! container, so it is not looked at.

/// The names of the HTML elements that begin a block which ends at a blank line (`CommonMark`, start
/// condition 6).
const HTML_BLOCKS: [&str; 62] = [
    "address",
    "article",
    "aside",
    "base",
    "basefont",
    "blockquote",
    "body",
    "caption",
    "center",
    "col",
    "colgroup",
    "dd",
    "details",
    "dialog",
    "dir",
    "div",
    "dl",
    "dt",
    "fieldset",
    "figcaption",
    "figure",
    "footer",
    "form",
    "frame",
    "frameset",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "head",
    "header",
    "hr",
    "html",
    "iframe",
    "legend",
    "li",
    "link",
    "main",
    "menu",
    "menuitem",
    "nav",
    "noframes",
    "ol",
    "optgroup",
    "option",
    "p",
    "param",
    "search",
    "section",
    "summary",
    "table",
    "tbody",
    "td",
    "tfoot",
    "th",
    "thead",
    "title",
    "tr",
    "track",
    "ul",
];

/// The names of the HTML elements that begin a block which ends at their closing tag (start condition 1).
const HTML_RAW: [(&str, &str); 4] =
    [("pre", "</pre>"), ("script", "</script>"), ("style", "</style>"), ("textarea", "</textarea>")];

/// What is open at the outermost level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Open {
    /// Nothing that goes on after a blank line, except indented code.
    #[default]
    Leaf,
    /// A block quote.
    Quote,
    /// A list. The content of its last item begins at this column.
    List { content: usize },
    /// A fenced code block.
    Fence { mark: char, length: usize },
    /// An HTML block that ends with the line that contains the text.
    Html { end: &'static str },
    /// An HTML block that ends at a blank line.
    HtmlUntilBlank,
}

/// Reads a growing text line by line and collects the ends of its finished blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct Splitter {
    open: Open,
    /// Whether the line before is blank.
    blank: bool,
    /// Whether the line before may be the text of a paragraph.
    paragraph: bool,
    /// Where the line begins that is not complete yet, and up to where it was searched for its end.
    line: usize,
    searched: usize,
    ends: Vec<usize>,
}

impl Splitter {
    /// The ends of the finished blocks, in bytes from the beginning of the text.
    pub(super) fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// Reads what was appended to `text` since the last call.
    pub(super) fn advance(&mut self, text: &str) {
        while let Some(length) = text[self.searched..].find('\n') {
            let end = self.searched + length + 1;
            self.take(&text[self.line..end]);
            self.line = end;
            self.searched = end;
        }
        self.searched = text.len();
        // A line that begins with more white space than this begins no block, and is not read again and
        // again.
        let start = &text.as_bytes()[self.line..text.len().min(self.line + 256)];
        if !start.iter().all(u8::is_ascii_whitespace) {
            self.begin(&text[self.line..], false);
        }
    }

    /// Ends the block before a line if the line certainly begins another one.
    fn begin(&mut self, line: &str, complete: bool) {
        let (indent, rest) = indentation(line);
        let Some(first) = rest.chars().next() else { return };
        let begins = match self.open {
            Open::Leaf | Open::Quote => indent < 4,
            Open::List { content } => {
                let maybe_item = "-+*".contains(first) || first.is_ascii_digit();
                let item = if complete { item(indent, rest).is_some() } else { maybe_item };
                indent < content && !item
            }
            _ => false,
        };
        if self.blank && begins {
            self.end(self.line);
            self.open = Open::Leaf;
        }
    }

    fn end(&mut self, position: usize) {
        if self.ends.last() != Some(&position) {
            self.ends.push(position);
        }
    }

    /// Reads a complete line, which ends with a line feed.
    fn take(&mut self, line: &str) {
        let (indent, rest) = indentation(line);
        let rest = rest.trim_end();
        if rest.is_empty() {
            self.blank = true;
            self.paragraph = false;
            if self.open == Open::HtmlUntilBlank {
                self.open = Open::Leaf;
            }
            return;
        }
        self.begin(line, true);
        self.blank = false;
        match self.open {
            Open::Fence { mark, length }
                if indent < 4 && rest.len() >= length && rest.chars().all(|character| character == mark) =>
            {
                self.open = Open::Leaf;
                self.end(self.line + line.len());
            }
            Open::Html { end } if rest.contains(end) => self.open = Open::Leaf,
            Open::List { content } if indent >= content => self.paragraph = true,
            Open::Leaf | Open::Quote | Open::List { .. } => self.enter(indent, rest),
            _ => {}
        }
    }

    /// Notes what a line opens that lies in no open container.
    fn enter(&mut self, indent: usize, rest: &str) {
        let was_paragraph = std::mem::take(&mut self.paragraph);
        let in_text = was_paragraph && self.open == Open::Leaf;
        if indent > 3 {
            self.paragraph = was_paragraph;
        } else if is_rule(rest) || is_heading(rest) {
            self.open = Open::Leaf;
        } else if let Some(open) = fence(rest).or_else(|| html(rest, was_paragraph)) {
            self.open = open;
        } else if let Some(item) = item(indent, rest).filter(|item| item.interrupts || !in_text) {
            self.open = Open::List { content: item.content };
            self.paragraph = item.has_text;
        } else {
            // A line without a marker may continue the last paragraph of a list or a quote.
            if rest.starts_with('>') {
                self.open = Open::Quote;
            } else if !was_paragraph {
                self.open = Open::Leaf;
            }
            let underline = in_text && rest.bytes().all(|byte| byte == b'=');
            let has_text = rest.bytes().any(|byte| !matches!(byte, b'>' | b' ' | b'\t'));
            self.paragraph = has_text && !underline;
        }
    }
}

/// The columns that the white space at the start of a line takes, and what comes after it.
fn indentation(line: &str) -> (usize, &str) {
    let mut columns = 0;
    for (position, character) in line.char_indices() {
        match character {
            ' ' => columns += 1,
            '\t' => columns += 4 - columns % 4,
            '\n' => return (columns, ""),
            _ => return (columns, &line[position..]),
        }
    }
    (columns, "")
}

/// Whether a line is a thematic break, or the underline of a heading.
fn is_rule(rest: &str) -> bool {
    let marks = rest.chars().filter(|character| !matches!(character, ' ' | '\t'));
    let Some(mark) = rest.chars().next().filter(|mark| "-_*".contains(*mark)) else { return false };
    let mut count = 0;
    for character in marks {
        if character != mark {
            return false;
        }
        count += 1;
    }
    count >= 3
}

fn is_heading(rest: &str) -> bool {
    let after = rest.trim_start_matches('#');
    (1..=6).contains(&(rest.len() - after.len())) && (after.is_empty() || after.starts_with([' ', '\t']))
}

fn fence(rest: &str) -> Option<Open> {
    let mark = rest.chars().next().filter(|mark| "`~".contains(*mark))?;
    let info = rest.trim_start_matches(mark);
    let length = rest.len() - info.len();
    (length >= 3 && (mark == '~' || !info.contains('`'))).then_some(Open::Fence { mark, length })
}

/// What is open after a line if the line begins an HTML block.
fn html(rest: &str, in_paragraph: bool) -> Option<Open> {
    let after = rest.strip_prefix('<')?;
    let until = |end| Some(if rest.contains(end) { Open::Leaf } else { Open::Html { end } });
    match after.as_bytes() {
        [b'!', b'-', b'-', ..] => return until("-->"),
        [b'?', ..] => return until("?>"),
        [b'!', next, ..] if next.is_ascii_alphabetic() => return until(">"),
        _ if after.starts_with("![CDATA[") => return until("]]>"),
        _ => {}
    }
    let tag = after.strip_prefix('/').unwrap_or(after);
    let length = tag.find(|character: char| !(character.is_ascii_alphanumeric() || character == '-'));
    let (name, attributes) = tag.split_at(length.unwrap_or(tag.len()));
    let name = name.to_ascii_lowercase();
    let delimited = [" ", "\t", ">", "/>"].iter().any(|next| attributes.starts_with(next));
    if name.is_empty() || !(delimited || attributes.is_empty()) {
        return None;
    }
    let raw = HTML_RAW.iter().find(|(raw, _)| *raw == name && tag == after && !attributes.starts_with('/'));
    if let Some((_, end)) = raw {
        return until(end);
    }
    // A tag of any other name begins a block if nothing follows it on its line.
    let alone = attributes.find('>').is_some_and(|position| position + 1 == attributes.len());
    let block = HTML_BLOCKS.contains(&name.as_str()) || (alone && !in_paragraph);
    block.then_some(Open::HtmlUntilBlank)
}

/// The marker of a list item.
struct Item {
    /// The column at which the content of the item begins.
    content: usize,
    /// Whether something comes after the marker.
    has_text: bool,
    /// Whether the item may begin right after a line of a paragraph.
    interrupts: bool,
}

fn item(indent: usize, rest: &str) -> Option<Item> {
    let rest = rest.trim_end();
    let digits = rest.len() - rest.trim_start_matches(|character: char| character.is_ascii_digit()).len();
    let (marker, after) = match digits {
        0 => rest.strip_prefix(['-', '+', '*']).map(|after| (1, after))?,
        1..=9 => rest[digits..].strip_prefix(['.', ')']).map(|after| (digits + 1, after))?,
        _ => return None,
    };
    if indent > 3 || !(after.is_empty() || after.starts_with([' ', '\t'])) {
        return None;
    }
    let column = indent + marker;
    let mut content = column;
    for character in after.chars().take_while(|character| matches!(character, ' ' | '\t')) {
        content += if character == ' ' { 1 } else { 4 - content % 4 };
    }
    if after.is_empty() || content - column > 4 {
        content = column + 1;
    }
    let first = digits == 0 || rest[..digits].parse() == Ok(1);
    let has_text = !after.is_empty();
    Some(Item { content, has_text, interrupts: first && has_text })
}
