//! Tests of whole documents.

use std::fmt::Write as _;

use proptest::prelude::*;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;

use super::*;
use crate::theme::{Symbols, Theme, ThemeName};

const EVERYTHING: &str = include_str!("everything.md");

fn look(columns: usize) -> Look {
    Look { columns, theme: Theme::new(ThemeName::Dark), symbols: Symbols::UNICODE }
}

fn plain(columns: usize) -> Look {
    Look { columns, theme: Theme::new(ThemeName::Plain), symbols: Symbols::ASCII }
}

fn texts(lines: &[Line<'_>]) -> Vec<String> {
    lines.iter().map(|line| line.spans.iter().map(|span| span.content.as_ref()).collect()).collect()
}

/// The lines as text, without their styles.
fn shown(text: &str, columns: usize) -> Vec<String> {
    texts(Document::from(text).lines(plain(columns)))
}

/// The lines with the style of each piece, as in `{green bold|text}`.
fn styled(text: &str, look: &Look) -> String {
    let mut out = String::new();
    for line in Document::from(text).lines(*look) {
        for span in &line.spans {
            let style = describe(span.style);
            match style.as_str() {
                "" => out.push_str(&span.content),
                _ => write!(out, "{{{style}|{}}}", span.content).unwrap(),
            }
        }
        out.push('\n');
    }
    out
}

fn describe(style: Style) -> String {
    let names = [
        (Modifier::BOLD, "bold"),
        (Modifier::DIM, "dim"),
        (Modifier::ITALIC, "italic"),
        (Modifier::UNDERLINED, "under"),
        (Modifier::CROSSED_OUT, "struck"),
    ];
    let color = style.fg.map(|color| format!("{color:?}").to_lowercase());
    let modifiers = names.into_iter().filter(|(modifier, _)| style.add_modifier.contains(*modifier));
    color.into_iter().chain(modifiers.map(|(_, name)| name.to_owned())).collect::<Vec<_>>().join(" ")
}

/// The lines if the whole text were parsed at once, and not block by block.
fn parsed_at_once(text: &str, look: &Look) -> Vec<Line<'static>> {
    render::render(text, look, &mut Highlights::default())
}

#[test]
fn everything_on_a_wide_plain_terminal() {
    insta::assert_snapshot!(shown(EVERYTHING, 80).join("\n"));
}

#[test]
fn everything_on_a_narrow_plain_terminal() {
    insta::assert_snapshot!(shown(EVERYTHING, 40).join("\n"));
}

#[test]
fn everything_in_colour_on_a_wide_terminal() {
    insta::assert_snapshot!(styled(EVERYTHING, &look(80)));
}

#[test]
fn everything_in_colour_on_a_narrow_terminal() {
    insta::assert_snapshot!(styled(EVERYTHING, &look(40)));
}

/// Lines of Markdown that interfere with each other.
const LINES: [&str; 56] = [
    "",
    "",
    "",
    "",
    "",
    " ",
    "text",
    "  more *text*",
    "**strong",
    "    indented",
    "\tindented",
    "# Heading",
    "===",
    "---",
    "- item",
    "  - nested",
    "    - deeper",
    "   continued",
    "-",
    "* item",
    "- - two",
    "1. one",
    "2. two",
    "10) ten",
    "14. fourteen",
    "> quote",
    "> - item",
    "> ```",
    ">",
    "> > deep",
    "```",
    "```rust",
    "~~~",
    "~~~~",
    "  ```",
    "   ```",
    "    ```",
    "`````",
    "let x = \"a\";",
    "| a | b |",
    "|---|--:|",
    "| 1 | 2 |",
    "<div>",
    "</div>",
    "<b>",
    "<pre>",
    "</pre>",
    "<!-- comment",
    "-->",
    "<?php",
    "[a]: http://b",
    "[a] and [b][a]",
    "***",
    "`code",
    "今天 👩‍👩‍👧 e\u{301}",
    "a line that is quite long, so that it must be wrapped",
];

/// Blocks of ordinary Markdown, which a blank line separates. None of them defines a link.
const BLOCKS: [&str; 22] = [
    "A paragraph.\nIts second line with `code` and **strong** text.",
    "# Heading",
    "Heading\n=======",
    "## Heading\nand text",
    "- a\n- b",
    "- a\n\n- b\n\n  c",
    "1. a\n   - b\n2. c",
    "1. a\n\n   ```\n   code\n\n   code\n   ```\n\n2. b",
    "- a\n\n      code\n\n      code",
    "text\n- a\n  b\n lazy",
    "```\ncode\n\n\n# code\n```",
    "~~~~ sh\n~~~\n\n- code\n~~~~",
    "text\n```\ncode\n\ncode\n```\ntext",
    "    code\n\n    code",
    "> quote\n> ```\n> code\nlazy",
    "> - a\n>\n> b\nlazy",
    "| a | b |\n|---|---|\n| 1 | 2 |\nc",
    "***",
    "<div>\n*text*\n</div>",
    "<pre>\n\ntext\n\n</pre>\ntext",
    "<!-- a\n\nb --> c",
    "<https://example.com> is\n<b>a link</b>",
];

fn document() -> impl Strategy<Value = String> {
    document_of(LINES.to_vec())
}

/// Without what shows that blocks are parsed apart: a definition reaches other blocks, and a line after a
/// fence in a container is taken for one that goes on with the text of the container.
fn document_without_exceptions() -> impl Strategy<Value = String> {
    document_of(LINES.into_iter().filter(|line| !is_exception(line)).collect())
        .prop_filter("an exception was made up", |text| !is_exception(text))
}

fn is_exception(text: &str) -> bool {
    ["]:", "> ```", "  ```"].iter().any(|exception| text.contains(exception))
}

fn document_of(lines: Vec<&'static str>) -> impl Strategy<Value = String> {
    let line = prop_oneof![
        8 => proptest::sample::select(lines).prop_map(str::to_owned),
        1 => "[-*_`#> a\\[\\]()|!<]{0,12}",
    ];
    proptest::collection::vec(line, 0..30).prop_map(|lines| lines.join("\n"))
}

fn blocks() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(&BLOCKS[..]), 0..8)
        .prop_map(|blocks| blocks.join("\n\n"))
}

proptest! {
    #![proptest_config(crate::testing::cases(1000))]

    #[test]
    fn pieces_equal_the_whole(
        text in document(),
        cuts in proptest::collection::vec(0.0..1.0, 0..12),
        columns in 1_usize..60,
    ) {
        let boundaries: Vec<_> = text.char_indices().map(|(position, _)| position).chain([text.len()]).collect();
        let position = |cut: f64| boundaries[(cut * boundaries.len() as f64) as usize];
        let mut cuts: Vec<_> = cuts.into_iter().map(position).collect();
        cuts.sort_unstable();
        let mut pieces = Document::new();
        let mut start = 0;
        for cut in cuts.into_iter().chain([text.len()]) {
            pieces.push(&text[start..cut]);
            start = cut;
            let mut whole = Document::from(&text[..cut]);
            prop_assert_eq!(pieces.splitter.ends(), whole.splitter.ends());
            let other = if cut % 5 == 0 { plain(columns + 3) } else { look(columns) };
            let height = whole.height(other);
            prop_assert_eq!(pieces.lines(other), whole.lines(other));
            prop_assert_eq!(height, whole.lines(other).len());
        }
        let code = Document::from(text.as_str()).code_blocks();
        prop_assert_eq!(pieces.code_blocks(), code);
    }

    #[test]
    fn ordinary_markdown_split_into_blocks_equals_the_text_parsed_at_once(text in blocks(), columns in 1_usize..60) {
        let look = look(columns);
        let mut document = Document::from(text.as_str());
        prop_assert_eq!(texts(document.lines(look)), texts(&parsed_at_once(&text, &look)), "{}", text);
    }

    #[test]
    fn no_line_is_too_wide(text in document(), columns in 2_usize..60) {
        for line in Document::from(text.as_str()).lines(look(columns)) {
            prop_assert!(styled::spans_cells(&line.spans) <= columns, "{:?}", line);
            prop_assert!(line.width() <= columns, "{:?}", line);
        }
    }
}

proptest! {
    // The seed matters here: `block` decides the rarest cases by rules that are simpler than the grammar.
    #![proptest_config(crate::testing::cases(2000))]

    #[test]
    fn wild_markdown_split_into_blocks_equals_the_text_parsed_at_once(
        text in document_without_exceptions(),
        columns in 1_usize..60,
    ) {
        let look = look(columns);
        let mut document = Document::from(text.as_str());
        prop_assert_eq!(texts(document.lines(look)), texts(&parsed_at_once(&text, &look)), "{}", text);
    }
}

#[test]
fn definitions_are_shown_and_apply_within_their_block() {
    let text = "See [a][1].\n\n[1]: https://b.c 'd'\n[2]: e\n\n- f [x]\n\n  [x]: y\n\n  g";
    let expected =
        ["See [a][1].", "", "[1]: https://b.c \"d\"", "[2]: e", "", "* f x (y)", "", "  [x]: y", "", "  g"];
    assert_eq!(shown(text, 40), expected);
}

#[test]
fn a_list_that_becomes_loose_gets_empty_lines() {
    let mut document = Document::from("- a\n- b\n");
    assert_eq!(texts(document.lines(plain(40))), ["* a", "* b"]);
    document.push("\n- c");
    assert_eq!(texts(document.lines(plain(40))), ["* a", "", "* b", "", "* c"]);
}

#[test]
fn numbered_characters_cannot_control_the_terminal() {
    let text = "&#27;[2J &#x9b;1m &#8238; [a](<b&#27;c> 'd')\n\n[x]: <y&#7;>\n\n```a&#27;b\ncode\n```";
    let lines = shown(text, 80);
    assert_eq!(lines[..3], ["␛[2J �1m � a (b␛c)", "", "[x]: y␇"]);
    assert_eq!(Document::from(text).code_blocks()[0].language, "a␛b");
}

#[test]
fn a_fence_is_highlighted_once_it_is_closed() {
    let open = "```rust\nlet x = 1;\n";
    assert_eq!(styled(open, &look(40)), "  {yellow|let x = 1;}\n");
    let closed = format!("{open}```");
    assert_eq!(styled(&closed, &look(40)), "  {magenta|let} x {magenta|=} {yellow|1};\n");
    for cut in 0..closed.len() {
        let mut document = Document::from(&closed[..cut]);
        document.lines(look(40));
        document.push(&closed[cut..]);
        assert_eq!(document.lines(look(40)), Document::from(closed.as_str()).lines(look(40)), "cut at {cut}");
    }
    // Also in a quote, and with the name of a language that has no grammar of its own.
    let quoted = "> ```TypeScript title=a\n> let x = 1;\n> ```";
    assert!(styled(quoted, &look(40)).contains("{magenta|let}"), "{}", styled(quoted, &look(40)));
    assert_eq!(styled("```nosuch\nlet x = 1;\n```", &look(40)), "  {yellow|let x = 1;}\n");
}

#[test]
fn long_code_is_not_highlighted() {
    let code = |line: &str, count: usize| format!("```rust\n{}```", format!("{line}\n").repeat(count));
    let is_plain = |text: &str| !styled(text, &look(40)).contains("magenta");
    assert!(!is_plain(&code("fn", 3)));
    assert!(is_plain(&code("fn", highlight::MAX_LINES + 1)));
    assert!(is_plain(&code(&format!("fn {}", "x".repeat(highlight::MAX_LINE_BYTES)), 1)));
    assert!(is_plain(&code(&format!("fn {}", "x".repeat(1000)), highlight::MAX_BYTES / 1000)));
}

#[test]
fn code_loses_nothing_where_it_is_cut() {
    let code = "  let  wide = \"今天是星期三 👩‍👩‍👧 e\u{301}\";   // and more";
    for columns in 2..50 {
        let lines = shown(&format!("```\n{code}\n```"), columns);
        let indent = if columns >= 14 { 2 } else { 0 };
        let joined: String = lines.iter().map(|line| &line[indent..]).collect();
        assert_eq!(joined, code, "{columns}");
    }
    assert_eq!(shown("```\n\ta\n```", 40), ["      a"]);
}

#[test]
fn code_blocks_are_those_of_the_source() {
    let text = "```rust,ignore\n\ta\n\n```\n\n    b\n\n- ```\n  c\n  ```\n\n> ~~~ {.py}\n> d";
    let block = |language: &str, text: &str| CodeBlock { language: language.into(), text: text.into() };
    let expected = [block("rust", "\ta\n\n"), block("", "b\n"), block("", "c\n"), block("py", "d")];
    assert_eq!(Document::from(text).code_blocks(), expected);
}

#[test]
fn deep_nesting_leaves_room_for_text_and_keeps_the_markers() {
    let lines = shown(&format!("{}text", "> ".repeat(100)), 20);
    assert_eq!(lines, ["| | | | text"]);
    // The parser would take quadratic time for many more.
    assert_eq!(shown(&format!("{}text", ">".repeat(101)), 200), [">".repeat(101) + "text"]);
    let lines = shown(&format!("{}text", "1. ".repeat(12)), 20);
    assert_eq!(lines.concat().matches("1.").count(), 12);
    assert!(lines.iter().all(|line| line.len() <= 20), "{lines:?}");
}

#[test]
fn finished_blocks_are_not_parsed_again() {
    let pieces = |text: &str| {
        let mut document = Document::new();
        let mut pushes = 0;
        for piece in text.split_inclusive(' ') {
            document.push(piece);
            document.lines(look(80));
            pushes += 1;
        }
        (document.shown.parsed, pushes)
    };
    let paragraph =
        "Some *words* of a reply that has many paragraphs, each of about a hundred bytes in length.\n\n";
    let code = "```nosuch\nlet a = b; // and a comment, to have a line of about a hundred bytes in length ...\n```\n";
    for block in [paragraph, code] {
        let (short, _) = pieces(&block.repeat(60));
        let (long, pushes) = pieces(&block.repeat(600));
        // Each push parses the growing block, which has at most `block.len()` bytes, and a finished one once.
        assert!(long <= (pushes + 600) * (block.len() + 2), "{long} bytes for {pushes} pushes");
        assert!(long <= short * 11, "{long} bytes for ten times {short}");
    }
}

#[test]
fn code_gets_its_colours_when_it_is_looked_at() {
    let text = "```rust\nfn main() {}\n```\n\ntext";
    let mut document = Document::from(text);
    let height = document.height(look(80));
    let plain = document.shown.lines.clone();
    assert_eq!(document.lines(look(80)), Document::from(text).lines(look(80)));
    assert_eq!((height, texts(&plain)), (document.shown.lines.len(), texts(&document.shown.lines)));
    assert_ne!(plain, document.shown.lines);
}

#[test]
fn an_unchanged_document_is_not_parsed_again_and_a_new_look_is() {
    let mut document = Document::from("a\n\nb");
    let heights = [document.height(look(80)), document.height(look(80)), document.lines(look(80)).len()];
    assert_eq!((heights, document.shown.parsed), ([3; 3], 4));
    document.push("");
    document.lines(look(80));
    assert_eq!(document.shown.parsed, 4);
    document.lines(plain(80));
    assert_eq!(document.shown.parsed, 8);
}

#[test]
fn hostile_texts_take_no_more_than_linear_time() {
    let start = std::time::Instant::now();
    let many = |piece: &str| piece.repeat(100_000 / piece.len());
    let table = format!("|{}\n|{}\n{}", "a|".repeat(3000), "-|".repeat(3000), "|\n".repeat(3000));
    let texts = [
        ">".repeat(10_000) + "text" + &"\nlazy".repeat(10_000),
        "- ".repeat(10_000) + "text" + &"\nlazy".repeat(10_000),
        "1. ".repeat(10_000) + "text",
        (0..300).map(|depth| " ".repeat(2 * depth) + "- item\n").collect(),
        many("word "),
        "x".repeat(1_000_000),
        " ".repeat(1_000_000),
        table,
        format!("```rust\n{}\n```", many("\"((({{{[[[")),
        format!("```js\n{}\n```", many("/((((a+)+)+)+\n")),
    ];
    let brackets = [
        "[", "![", "*", "**a ", "_a", "~~a", "`a``", "<a ", "<!--", "[a](", "&", "\\", "|", "*_", "[]()",
        "<b>\n",
    ];
    for text in texts.into_iter().chain(brackets.map(many)) {
        for columns in if text.len() < 200_000 { vec![1, 80] } else { vec![80] } {
            let mut document = Document::from(text.as_str());
            assert!(document.lines(look(columns)).iter().all(|line| line.width() <= columns));
            assert!(document.code_blocks().len() <= 1);
        }
    }
    // It takes a few seconds; were one of them quadratic, it would take hours.
    assert!(start.elapsed().as_secs() < 300, "{:?}", start.elapsed());
}
