//! Letters of words: how many, first, last, spelled out, backwards.
//!
//! Words consist of syllables of one of eight consonants and one of four vowels (`bana`, `kilo`, `tomeli`).
//! There are therefore many words, and their letters can be learned syllable by syllable. The words are the
//! same in both languages.

use super::conversion::number_words;
use super::dice::SynthRng;
use super::task::{Language, Task, swap_neighbours};

const CONSONANTS: &[u8] = b"bdklmnst";
const VOWELS: &[u8] = b"aeio";

/// The question about a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    Count,
    First,
    Last,
    Spelled,
    Backwards,
}

/// A word and the question about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Letters {
    spelling: Spelling,
    /// The letters in order; neighbours always differ.
    word: Vec<u8>,
    /// The letter to count; the first letter of the word for other questions.
    letter: u8,
}

impl Letters {
    pub(super) fn draw(spelling: Spelling, dice: &mut SynthRng) -> Self {
        let most = if spelling == Spelling::Backwards { 2 } else { 3 };
        let syllables = dice.between(2, most);
        let word: Vec<u8> =
            (0..syllables).flat_map(|_| [*dice.pick(CONSONANTS), *dice.pick(VOWELS)]).collect();
        let letter = match spelling {
            Spelling::Count if dice.chance(0.3) => *dice.pick(VOWELS),
            Spelling::Count => *dice.pick(&word),
            _ => word[0],
        };
        Self { spelling, word, letter }
    }

    fn count(&self) -> u32 {
        self.word.iter().map(|&letter| u32::from(letter == self.letter)).sum()
    }

    fn backwards(&self) -> Vec<u8> {
        self.word.iter().rev().copied().collect()
    }

    fn first(&self) -> u8 {
        self.word[0]
    }

    fn last(&self) -> u8 {
        self.word[self.word.len() - 1]
    }
}

fn write(letters: &[u8], separator: &str) -> String {
    let letters: Vec<String> = letters.iter().map(|&letter| char::from(letter).to_string()).collect();
    letters.join(separator)
}

impl Task for Letters {
    fn family(&self) -> &'static str {
        "letter"
    }

    fn name(&self) -> &'static str {
        match self.spelling {
            Spelling::Count => "count",
            Spelling::First => "first",
            Spelling::Last => "last",
            Spelling::Spelled => "spelled",
            Spelling::Backwards => "backwards",
        }
    }

    fn key(&self) -> String {
        let word = write(&self.word, "");
        match self.spelling {
            Spelling::Count => format!("count:{} in {word}", char::from(self.letter)),
            _ => format!("{}:{word}", self.name()),
        }
    }

    fn slots(&self, _: Language) -> Vec<String> {
        vec![write(&self.word, ""), char::from(self.letter).to_string()]
    }

    fn answer(&self, _: Language) -> String {
        match self.spelling {
            Spelling::Count => self.count().to_string(),
            Spelling::First => write(&[self.first()], ""),
            Spelling::Last => write(&[self.last()], ""),
            Spelling::Spelled => write(&self.word, " "),
            Spelling::Backwards => write(&self.backwards(), ""),
        }
    }

    fn near_miss(&self, _: Language, dice: &mut SynthRng) -> String {
        match self.spelling {
            Spelling::Count => {
                let count = self.count();
                dice.pick(&[count + 1, count.checked_sub(1).unwrap_or(2)]).to_string()
            }
            Spelling::First => write(&[*dice.pick(&[self.last(), self.word[1]])], ""),
            Spelling::Last => write(&[*dice.pick(&[self.first(), self.word[self.word.len() - 2]])], ""),
            Spelling::Spelled => {
                let mut word = self.word.clone();
                swap_neighbours(&mut word, dice);
                write(&word, " ")
            }
            Spelling::Backwards => {
                let mut word = self.backwards();
                swap_neighbours(&mut word, dice);
                write(&word, "")
            }
        }
    }

    fn other_form(&self, language: Language) -> Option<String> {
        match self.spelling {
            Spelling::Count => number_words(self.count(), language),
            Spelling::Spelled => Some(write(&self.word, "-")),
            Spelling::Backwards => Some(write(&self.backwards(), "-")),
            Spelling::First | Spelling::Last => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_keys() {
        let problem =
            |spelling| Letters { spelling, word: b"tomato".to_vec(), letter: b'o' }.answer(Language::English);
        assert_eq!(problem(Spelling::Count), "2");
        assert_eq!(problem(Spelling::First), "t");
        assert_eq!(problem(Spelling::Last), "o");
        assert_eq!(problem(Spelling::Spelled), "t o m a t o");
        assert_eq!(problem(Spelling::Backwards), "otamot");
        let count = Letters { spelling: Spelling::Count, word: b"bana".to_vec(), letter: b'a' };
        assert_eq!(count.key(), "count:a in bana");
    }
}
