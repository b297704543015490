//! Guesses the next tokens of a reply from what it repeats (Saxena 2023, "Prompt lookup decoding").

/// The longest end of a text that is looked for. vLLM: `prompt_lookup_max`.
const LONGEST: usize = 4;

/// The tokens, `most` at most, that followed the end of `tokens` when it came before. A longer end counts
/// more, and then a later place. Nothing is guessed if the last token is new.
pub(crate) fn guess(tokens: &[i64], most: usize) -> Vec<i64> {
    for length in (1..=LONGEST.min(tokens.len().saturating_sub(1))).rev() {
        let end = &tokens[tokens.len() - length..];
        let earlier = &tokens[..tokens.len() - 1];
        if let Some(place) = earlier.windows(length).rposition(|window| window == end) {
            let next = place + length;
            return tokens[next..].iter().take(most).copied().collect();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_by_hand() {
        assert_eq!(guess(&[1, 2, 3, 9, 1, 2, 3], 2), [9, 1]);
        // The longer end, although the shorter one came later.
        assert_eq!(guess(&[1, 2, 5, 7, 2, 6, 1, 2], 1), [5]);
        // The later of two places, and no more than there is.
        assert_eq!(guess(&[4, 8, 4, 9, 4], 9), [9, 4]);
        assert_eq!(guess(&[7, 7, 7], 2), [7]);
        assert!(guess(&[1, 2, 3], 4).is_empty() && guess(&[1], 4).is_empty() && guess(&[], 4).is_empty());
        assert!(guess(&[1, 1], 0).is_empty());
    }
}
