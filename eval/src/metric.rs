//! Metrics for single replies. This file does not know how replies are obtained.

/// Exact match: whether `reply`, stripped of white space at both ends, equals `answer`. `answer` is not
/// stripped.
pub fn exact_match(reply: &str, answer: &str) -> bool {
    reply.trim() == answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_match_strips_the_reply_and_nothing_else() {
        assert!(exact_match(" 42\n", "42"));
        assert!(exact_match("\u{3000}星期三 ", "星期三"));
        assert!(exact_match("  ", ""));
        assert!(!exact_match("42.", "42"));
        assert!(!exact_match("4 2", "42"));
        assert!(!exact_match("Monday", "monday"));
        assert!(!exact_match("42", "42 "));
    }
}
