//! Turns the events of one parsed block into wrapped lines.
//!
//! `CommonMark` 0.31 with tables, strikethrough and task lists, parsed by `pulldown-cmark`. Single line feeds
//! are kept, because chat models use them on purpose. HTML is shown as it is written, except `<br>`, which
//! breaks the line. A link reference definition is shown where it stands: the text that refers to it may be
//! in another block, which is parsed apart and then shows `[text][label]`.
//!
//! This module knows nothing of pieces and caches: it gets a whole block and returns all its lines.

use std::iter::Peekable;
use std::ops::Range;
use std::vec::IntoIter;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, RefDefs, Tag, TagEnd};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use super::highlight::Highlights;
use super::look::Look;
use super::margin::{Margin, trim_end};
use super::styled::{Spans, Styled};
use super::table::Table;

/// The most containers that may begin on one line. The parser takes time for each of them on each line, so a
/// block with more is shown as it is written.
const MAX_DEPTH: usize = 100;

/// A fenced or indented code block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeBlock {
    /// The language that its fence names, or nothing.
    pub language: String,
    /// The code, with a line feed at the end of each line.
    pub text: String,
}

/// The lines of the block `source`.
pub(super) fn render(source: &str, look: &Look, highlights: &mut Highlights) -> Vec<Line<'static>> {
    if is_too_deep(source) {
        let mut renderer = Renderer::new(source, look, highlights, Vec::new());
        renderer.push(source.trim_end());
        return renderer.finish();
    }
    let parser = parser(source);
    let definitions = definitions(parser.reference_definitions());
    let mut renderer = Renderer::new(source, look, highlights, definitions);
    for (event, range) in parser.into_offset_iter() {
        renderer.event(event, &range);
    }
    renderer.finish()
}

/// The code blocks within the block `source`.
pub(super) fn code_blocks(source: &str) -> Vec<CodeBlock> {
    let mut blocks = Vec::new();
    if is_too_deep(source) {
        return blocks;
    }
    let mut open = None;
    for event in parser(source) {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                open = Some(CodeBlock { language: language(&kind), text: String::new() });
            }
            Event::Text(text) => open.iter_mut().for_each(|block| block.text.push_str(&text)),
            Event::End(TagEnd::CodeBlock) => blocks.extend(open.take()),
            _ => {}
        }
    }
    blocks
}

/// Whether a line begins more than [`MAX_DEPTH`] quotes and list items.
fn is_too_deep(source: &str) -> bool {
    let depth = |line: &str| {
        let is_marker = |character: char| " \t>-+*.)".contains(character) || character.is_ascii_digit();
        let markers = &line[..line.find(|character| !is_marker(character)).unwrap_or(line.len())];
        let items = markers.split_ascii_whitespace().filter(|word| word.ends_with(['-', '+', '*', '.', ')']));
        items.count() + markers.matches('>').count()
    };
    source.lines().any(|line| depth(line) > MAX_DEPTH)
}

fn parser(source: &str) -> Parser<'_> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    Parser::new_ext(source, options)
}

/// The language in the info string of a fence: its first word, as in `rust,ignore` or `{.python}`.
fn language(kind: &CodeBlockKind<'_>) -> String {
    let CodeBlockKind::Fenced(info) = kind else { return String::new() };
    let ends = |character: char| character.is_whitespace() || matches!(character, ',' | '{' | '}');
    let word = info.split(ends).find(|word| !word.is_empty()).unwrap_or_default();
    text::single_line(word.trim_start_matches('.'))
}

/// The link reference definitions as they are shown, each with its position.
fn definitions(parsed: &RefDefs<'_>) -> Vec<(usize, String)> {
    let mut definitions: Vec<_> = parsed
        .iter()
        .map(|(label, link)| {
            let title = link.title.as_ref().map(|title| format!(" \"{title}\"")).unwrap_or_default();
            (link.span.start, format!("[{label}]: {}{title}", link.dest))
        })
        .collect();
    definitions.sort();
    definitions
}

/// A container whose blocks are separated from each other.
struct Frame {
    /// Number of lines when it began.
    start: usize,
    /// Whether an empty line stands between its blocks.
    loose: bool,
}

struct Renderer<'a> {
    source: &'a str,
    look: &'a Look,
    highlights: &'a mut Highlights,
    definitions: Peekable<IntoIter<(usize, String)>>,
    lines: Vec<Line<'static>>,
    margin: Margin,
    frames: Vec<Frame>,
    /// The depth of the margin of an empty line that comes before the next line.
    gap: Option<usize>,
    /// The styles of the open elements, patched onto each other.
    styles: Vec<Style>,
    /// The text that is not wrapped yet.
    inline: Styled,
    /// The markers before the next text for which the margin had no room.
    markers: Styled,
    /// The number of the next item of each open list.
    lists: Vec<Option<u64>>,
    /// The target and the beginning of the text of each open link and image.
    targets: Vec<(String, usize)>,
    /// The open code block, and whether it is complete.
    code: Option<(CodeBlock, bool)>,
    table: Table,
}

impl<'a> Renderer<'a> {
    fn new(
        source: &'a str,
        look: &'a Look,
        highlights: &'a mut Highlights,
        definitions: Vec<(usize, String)>,
    ) -> Self {
        Self {
            source,
            look,
            highlights,
            definitions: definitions.into_iter().peekable(),
            lines: Vec::new(),
            margin: Margin::new(look.columns.max(1)),
            frames: vec![Frame { start: 0, loose: true }],
            gap: None,
            styles: vec![look.theme.text],
            inline: Styled::default(),
            markers: Styled::default(),
            lists: Vec::new(),
            targets: Vec::new(),
            code: None,
            table: Table::default(),
        }
    }

    fn finish(mut self) -> Vec<Line<'static>> {
        self.define(usize::MAX);
        self.flush();
        self.lines
    }

    fn event(&mut self, event: Event<'_>, range: &Range<usize>) {
        match event {
            Event::Start(tag) => self.start(tag, range),
            Event::End(tag) => self.end(tag, range),
            Event::Text(text) => match &mut self.code {
                Some((block, _)) => block.text.push_str(&text),
                None => self.push(&text),
            },
            Event::Code(code) => self.inline_code(&code),
            Event::InlineHtml(html) if is_line_break(&html) => self.push("\n"),
            Event::Html(html) | Event::InlineHtml(html) => self.push(&html),
            Event::SoftBreak | Event::HardBreak => self.push("\n"),
            Event::TaskListMarker(done) => self.push(if done { "[x] " } else { "[ ] " }),
            Event::Rule => {
                self.block(range);
                let rule = self.look.symbols.rule.repeat(self.margin.room());
                self.emit_all(vec![vec![Span::styled(rule, self.look.theme.dim)]]);
            }
            // These come only with options that are not set; their text is shown.
            Event::FootnoteReference(text) | Event::InlineMath(text) | Event::DisplayMath(text) => {
                self.push(&text);
            }
        }
    }

    fn start(&mut self, tag: Tag<'_>, range: &Range<usize>) {
        let theme = &self.look.theme;
        match tag {
            Tag::Heading { level, .. } => {
                self.block(range);
                self.enter_style(heading_style(level, theme.heading));
            }
            Tag::BlockQuote(_) => {
                self.block(range);
                self.enter_style(theme.quote);
                let bar = Span::styled(format!("{} ", self.look.symbols.bar), theme.dim);
                self.margin.open(bar.clone(), bar);
                self.frames.push(Frame { start: self.lines.len(), loose: true });
            }
            Tag::CodeBlock(kind) => {
                self.block(range);
                let complete = !kind.is_fenced() || is_closed(&self.source[range.clone()]);
                self.code = Some((CodeBlock { language: language(&kind), text: String::new() }, complete));
            }
            Tag::List(first) => {
                self.block(range);
                self.lists.push(first);
                self.frames.push(Frame { start: self.lines.len(), loose: false });
            }
            Tag::Item => self.start_item(),
            Tag::Table(alignments) => {
                self.block(range);
                self.table = Table { alignments, rows: Vec::new() };
            }
            Tag::TableHead => {
                self.enter_style(Style::new().add_modifier(Modifier::BOLD));
                self.table.rows.push(Vec::new());
            }
            Tag::TableRow => self.table.rows.push(Vec::new()),
            Tag::Emphasis => self.enter_style(Style::new().add_modifier(Modifier::ITALIC)),
            Tag::Strong => self.enter_style(Style::new().add_modifier(Modifier::BOLD)),
            Tag::Strikethrough => self.enter_style(Style::new().add_modifier(Modifier::CROSSED_OUT)),
            Tag::Link { dest_url, .. } => {
                self.enter_style(theme.link);
                self.targets.push((dest_url.into_string(), self.inline.text().len()));
            }
            Tag::Image { dest_url, .. } => {
                self.targets.push((dest_url.into_string(), self.inline.text().len()));
            }
            Tag::Paragraph => {
                self.frames.last_mut().expect("the document is a frame").loose = true;
                self.block(range);
            }
            Tag::HtmlBlock => self.block(range),
            // A cell has no start of its own, and the others come only with options that are not set.
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd, range: &Range<usize>) {
        match tag {
            TagEnd::Heading(_) => {
                self.leave_style();
                self.flush();
            }
            TagEnd::BlockQuote(_) => {
                self.define(range.end);
                self.flush();
                self.leave_style();
                self.frames.pop();
                self.close_margin();
            }
            TagEnd::CodeBlock => self.end_code(),
            TagEnd::List(_) => {
                self.lists.pop();
                self.frames.pop();
            }
            TagEnd::Item => self.end_item(range),
            TagEnd::Table => {
                let table = std::mem::take(&mut self.table);
                self.emit_all(table.lines(self.margin.room(), self.look));
            }
            TagEnd::TableHead | TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.leave_style();
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.inline);
                self.table.rows.last_mut().expect("a cell is in a row").push(cell);
            }
            TagEnd::Link => {
                self.leave_style();
                self.end_target(true);
            }
            TagEnd::Image => self.end_target(false),
            _ => self.flush(),
        }
    }

    fn start_item(&mut self) {
        self.separate();
        let marker = match self.lists.last_mut() {
            Some(Some(number)) => {
                let marker = format!("{number}. ");
                *number = number.saturating_add(1);
                marker
            }
            _ => format!("{} ", self.look.symbols.bullet),
        };
        let indent = Span::raw(" ".repeat(text::width(&marker)));
        if !self.margin.open(Span::styled(marker.clone(), self.look.theme.dim), indent) {
            self.markers.push(&marker, self.look.theme.dim);
        }
        self.frames.push(Frame { start: self.lines.len(), loose: false });
    }

    fn end_item(&mut self, range: &Range<usize>) {
        self.define(range.end);
        self.flush();
        if self.margin.pending() {
            self.emit(Spans::new());
        }
        self.flush_markers();
        self.close_margin();
        // A list is loose if its items hold paragraphs.
        let loose = self.frames.pop().is_some_and(|item| item.loose);
        self.frames.last_mut().expect("an item is in a list").loose |= loose;
    }

    fn end_code(&mut self) {
        let (block, complete) = self.code.take().expect("the end of a code block comes after its start");
        let code = &block.text;
        let kinds = self.highlights.next(&block.language, code).filter(|_| complete);
        let mut styled = Styled::default();
        match kinds {
            Some(kinds) => {
                let mut start = 0;
                for (end, kind) in kinds {
                    styled.push(&code[start..*end], kind.style(&self.look.theme));
                    start = *end;
                }
                styled.push(&code[start..], self.look.theme.text);
            }
            None => styled.push(code, self.look.theme.code),
        }
        styled.trim_line_feed();
        if code.is_empty() {
            return;
        }
        self.flush_markers();
        let indent = Span::raw("  ");
        self.margin.open(indent.clone(), indent);
        self.emit_all(styled.cut(self.margin.room()));
        self.close_margin();
    }

    /// Shows the target of a link unless it equals the text of the link, and of an image only if it has no
    /// text.
    fn end_target(&mut self, is_link: bool) {
        let (target, start) = self.targets.pop().expect("the end of a link comes after its start");
        let shown = &self.inline.text()[start..];
        let equal = shown == target || target.strip_prefix("mailto:") == Some(shown);
        let target = text::single_line(&target);
        if shown.is_empty() {
            self.inline.push(&target, self.look.theme.dim);
        } else if is_link && !equal && !target.is_empty() {
            self.inline.push(&format!(" ({target})"), self.look.theme.dim);
        }
    }

    /// Shows code within a text, in backticks if the theme has no style for it.
    fn inline_code(&mut self, code: &str) {
        let theme = &self.look.theme;
        let style = self.style().patch(theme.code);
        if theme.code == theme.text {
            self.inline.push(&format!("`{code}`"), style);
        } else {
            self.inline.push(code, style);
        }
    }

    fn push(&mut self, text: &str) {
        let style = self.style();
        self.inline.push(text, style);
    }

    fn style(&self) -> Style {
        *self.styles.last().expect("the style of the text is never left")
    }

    fn enter_style(&mut self, style: Style) {
        self.styles.push(self.style().patch(style));
    }

    fn leave_style(&mut self) {
        self.styles.pop();
    }

    /// Prepares for a block that begins at `range`.
    fn block(&mut self, range: &Range<usize>) {
        self.define(range.start);
        self.flush();
        self.separate();
    }

    /// Shows the link reference definitions before `position`.
    fn define(&mut self, position: usize) {
        let mut shown = Styled::default();
        while let Some((_, definition)) = self.definitions.next_if(|(start, _)| *start < position) {
            if !shown.is_empty() {
                shown.push("\n", self.look.theme.dim);
            }
            shown.push(&text::single_line(&definition), self.look.theme.dim);
        }
        if !shown.is_empty() {
            self.flush();
            self.separate();
            self.inline = shown;
            self.flush();
        }
    }

    /// Puts an empty line before the next line if there is one before it that belongs to another block.
    fn separate(&mut self) {
        let frame = self.frames.last().expect("the document is a frame");
        if frame.loose && self.lines.len() > frame.start {
            self.gap = Some(self.margin.depth());
        }
    }

    /// Wraps the text so far.
    fn flush(&mut self) {
        self.inline.trim_line_feed();
        if self.inline.is_empty() {
            return;
        }
        let mut text = std::mem::take(&mut self.markers);
        text.append(&std::mem::take(&mut self.inline));
        for line in text.wrap(self.margin.room()) {
            self.emit(line);
        }
    }

    /// Shows the markers that have no text after them.
    fn flush_markers(&mut self) {
        self.flush();
        self.inline = std::mem::take(&mut self.markers);
        self.flush();
    }

    fn close_margin(&mut self) {
        self.margin.close();
        // An empty line that nothing followed in its container is dropped.
        self.gap = self.gap.filter(|depth| *depth <= self.margin.depth());
    }

    /// Shows the lines of something that is not text.
    fn emit_all(&mut self, lines: Vec<Spans>) {
        self.flush_markers();
        for line in lines {
            self.emit(line);
        }
    }

    fn emit(&mut self, spans: Spans) {
        if let Some(depth) = self.gap.take() {
            self.lines.push(self.margin.blank(depth).into());
        }
        let mut line = self.margin.next();
        let is_empty = spans.is_empty();
        line.extend(spans);
        if is_empty {
            trim_end(&mut line);
        }
        self.lines.push(line.into());
    }
}

fn heading_style(level: HeadingLevel, heading: Style) -> Style {
    match level {
        HeadingLevel::H1 => heading.add_modifier(Modifier::UNDERLINED),
        HeadingLevel::H2 => heading,
        _ => heading.add_modifier(Modifier::ITALIC),
    }
}

fn is_line_break(html: &str) -> bool {
    let name = html.trim_start_matches('<').trim_end_matches(['/', '>', ' ']);
    name.eq_ignore_ascii_case("br")
}

/// Whether a fenced code block ends with its closing fence. Lines may begin with the marks of quotes.
fn is_closed(block: &str) -> bool {
    let mark = if block.starts_with('~') { '~' } else { '`' };
    let length = block.len() - block.trim_start_matches(mark).len();
    let Some((_, last)) = block.trim_end().rsplit_once('\n') else { return false };
    let last = last.trim_start_matches(['>', ' ', '\t']);
    last.len() >= length && last.chars().all(|character| character == mark)
}
