//! Ends the text of a reply at a stop string, and holds text back that may be the beginning of one.

/// The text of a reply, piece by piece.
#[derive(Debug)]
pub struct StopText {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
}

impl StopText {
    /// A reply that ends before any of `stops`, of which none is empty.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Takes the next piece. Returns the text that can be shown, and whether the reply has ended.
    /// The text ends before the stop string that begins first.
    pub fn push(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        if let Some(end) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.held.truncate(end);
            return (std::mem::take(&mut self.held), true);
        }
        let begins_stop = |from: &usize| {
            let rest = &self.held[*from..];
            self.stops.iter().any(|stop| stop.starts_with(rest))
        };
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let earliest = self.held.len().saturating_sub(longest.saturating_sub(1));
        let places = (earliest..self.held.len()).filter(|&place| self.held.is_char_boundary(place));
        let from = places.into_iter().find(begins_stop).unwrap_or(self.held.len());
        let held = self.held.split_off(from);
        (std::mem::replace(&mut self.held, held), false)
    }

    /// The text that was held back, once the reply has ended without a stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces that are shown, the rest, and whether a stop string was found.
    fn shown(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut text = StopText::new(stops.iter().map(|&stop| stop.to_owned()).collect());
        let mut shown = Vec::new();
        for piece in pieces {
            let (piece, has_ended) = text.push(piece);
            shown.push(piece);
            if has_ended {
                return (shown, true);
            }
        }
        shown.push(text.finish());
        (shown, false)
    }

    #[test]
    fn a_stop_string_ends_the_text_wherever_it_is_cut() {
        let whole = "one two END three";
        for cut in 1..whole.len() {
            let (pieces, has_ended) = shown(&["END", "xyz"], &[&whole[..cut], &whole[cut..]]);
            assert_eq!((pieces.concat().as_str(), has_ended), ("one two ", true), "{cut}");
        }
        let letters: Vec<String> = whole.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(shown(&["END"], &letters).0.concat(), "one two ");
    }

    #[test]
    fn text_is_held_back_no_longer_than_needed() {
        let (pieces, has_ended) = shown(&["</s>"], &["a<", "/b", "<", "<", "/s"]);
        assert_eq!(pieces, ["a", "</b", "", "<", "", "</s"]);
        assert!(!has_ended);
        assert_eq!(shown(&[], &["a", "b"]).0, ["a", "b", ""]);
    }

    #[test]
    fn the_earliest_stop_string_counts_and_characters_stay_whole() {
        assert_eq!(shown(&["c", "bc"], &["abcd"]), (vec!["a".to_owned()], true));
        assert_eq!(shown(&["ép"], &["caf", "é", "s"]).0.concat(), "cafés");
    }
}
