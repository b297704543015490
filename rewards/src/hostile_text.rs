//! Texts for tests that no verifier may panic on or get stuck at: marks that verifiers look for, marks that
//! do not match, and characters of several bytes, drawn at random by proptest, and long repetitions of one
//! piece.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const PIECES: &[&str] = &[
    "",
    " ",
    "\n",
    "\r\n",
    "\t",
    "\u{0}",
    "\u{1b}[2J",
    "\u{a0}",
    "\u{3000}",
    "\u{200b}",
    "\u{202e}",
    "\u{feff}",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    "</",
    "/>",
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "```",
    "```json\n",
    "\"",
    "'",
    "\\",
    "$",
    "\\boxed{",
    "\\boxed ",
    "\\fbox{",
    "\\frac",
    "\\frac{1}{",
    "\\text{",
    "=",
    "/",
    ",",
    ".",
    ":",
    "-",
    "−",
    "e",
    "0",
    "1",
    "25",
    "1,000",
    "10^",
    "٥",
    "４",
    "½",
    "A",
    "(B)",
    "answer is ",
    "答案",
    "字",
    "é",
    "e\u{301}",
    "👩‍👩‍👧",
    "ﬁ",
    "İ",
    "null",
    "one ",
    "hundred",
    "I hope",
];

/// 3,000 short texts and one long repetition of every piece, the same ones each time.
pub(crate) fn hostile_texts() -> Vec<String> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let pieces = proptest::collection::vec(proptest::sample::select(PIECES), 0..14);
    let mixed = pieces.prop_map(|pieces| pieces.concat());
    let any = "(?s).{0,20}";
    let mut texts = Vec::new();
    for _ in 0..2500 {
        texts.push(mixed.new_tree(&mut runner).unwrap().current());
    }
    for _ in 0..500 {
        texts.push(any.new_tree(&mut runner).unwrap().current());
    }
    texts.extend(PIECES.iter().map(|piece| piece.repeat(20_000)));
    texts
}
