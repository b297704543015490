//! The one path from conversations to token ids, for training, generation and chat alike.
//!
//! A conversation is rendered once and tokenised once; which tokens the assistant speaks is then read off the places of
//! the tokens in the text, never by joining pieces that were tokenised apart. Where an answer begins is told by the
//! template's `{% generation %}` blocks or, without them, by its prompt: the rendering of the turns before it with the
//! generation prompt must be a prefix of the whole, in text and in ids. The answer ends with its end-of-turn token, which
//! is part of it; whatever the template puts behind that token is not. A token belongs to the span that holds its start.
//! Knows no files.

use std::ops::Range;

use crate::conversation::{Message, Role};
use crate::error::{Error, Result};
use crate::record::{Demonstration, Preference, Prompt, Unpaired};
use crate::rows::{NO_LOSS, PreferenceRow, PromptRow, SftRow, UnpairedRow};
use crate::tokenizer::{Pieces, Tokenizer};

/// A conversation as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids, `[T]`.
    pub input_ids: Vec<i64>,
    /// Whether the assistant speaks the token, its end of turn included, `[T]`.
    pub assistant_mask: Vec<bool>,
}

impl Encoded {
    /// The ids with [`NO_LOSS`] where the assistant does not speak, `[T]`.
    pub fn labels(&self) -> Vec<i64> {
        let label = |(&id, &speaks): (&i64, &bool)| if speaks { id } else { NO_LOSS };
        self.input_ids.iter().zip(&self.assistant_mask).map(label).collect()
    }
}

/// Prompt and answer as token ids; the answer ends with its end of turn.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answered {
    input_ids: Vec<i64>,
    prompt_length: usize,
}

impl Tokenizer {
    /// Encodes a conversation, with the exact mask of what the assistant says in all of its turns.
    pub fn encode_conversation(&self, messages: &[Message]) -> Result<Encoded> {
        self.encode_turns(messages, 0)
    }

    /// Encodes the turns before an answer, up to where the assistant begins to speak.
    pub fn encode_prompt(&self, messages: &[Message]) -> Result<Vec<i64>> {
        Ok(self.pieces(&self.render(messages, true)?.text)?.ids)
    }

    /// Encodes running text: with BOS where the tokenizer adds one, and always with EOS.
    pub fn encode_text(&self, text: &str) -> Result<Vec<i64>> {
        let mut ids = self.encode(text, true)?;
        let eos = self
            .eos_id()
            .ok_or_else(|| Error::MissingSpecialToken { name: self.name().to_owned(), token: "eos_token" })?;
        if ids.last() != Some(&eos) {
            ids.push(eos);
        }
        Ok(ids)
    }

    /// Encodes a row of supervised fine-tuning.
    pub fn encode_demonstration(&self, row: &Demonstration) -> Result<SftRow> {
        let encoded = match row {
            Demonstration::Messages(messages) => self.encode_checked(messages, 0)?,
            Demonstration::PromptCompletion { prompt, completion } => {
                self.encode_checked(&[prompt.as_slice(), completion].concat(), prompt.len())?
            }
            Demonstration::Text(text) => {
                let input_ids = self.encode_text(text)?;
                return Ok(SftRow { labels: input_ids.clone(), input_ids });
            }
            Demonstration::Tokens { input_ids, labels } => {
                self.check_ids("input_ids", input_ids)?;
                let labels = labels.as_ref().unwrap_or(input_ids);
                let counted: Vec<i64> = labels.iter().copied().filter(|&id| id != NO_LOSS).collect();
                self.check_ids("labels", &counted)?;
                return Ok(SftRow { input_ids: input_ids.clone(), labels: labels.clone() });
            }
        };
        Ok(SftRow { labels: encoded.labels(), input_ids: encoded.input_ids })
    }

    /// Encodes a pair of answers; both sides begin with exactly the ids of the prompt.
    pub fn encode_preference(&self, row: &Preference) -> Result<PreferenceRow> {
        match row {
            Preference::Messages { prompt, chosen, rejected, margin } => {
                let chosen = self.encode_answer(prompt, chosen)?;
                let rejected = self.encode_answer(prompt, rejected)?;
                Ok(PreferenceRow {
                    prompt_length: chosen.prompt_length,
                    chosen: chosen.input_ids,
                    rejected: rejected.input_ids,
                    margin: *margin,
                })
            }
            Preference::Tokens { chosen, rejected, prompt_length, margin } => {
                self.check_ids("chosen_input_ids", chosen)?;
                self.check_ids("rejected_input_ids", rejected)?;
                Ok(PreferenceRow {
                    chosen: chosen.clone(),
                    rejected: rejected.clone(),
                    prompt_length: *prompt_length,
                    margin: *margin,
                })
            }
        }
    }

    /// Encodes a prompt to be answered.
    pub fn encode_prompt_row(&self, row: &Prompt) -> Result<PromptRow> {
        Ok(PromptRow {
            input_ids: self.encode_prompt(&row.messages)?,
            messages: row.messages.clone(),
            answer: row.answer.clone(),
        })
    }

    /// Encodes an answer that is good or bad by itself.
    pub fn encode_unpaired(&self, row: &Unpaired) -> Result<UnpairedRow> {
        let answered = self.encode_answer(&row.prompt, &row.completion)?;
        Ok(UnpairedRow {
            input_ids: answered.input_ids,
            prompt_length: answered.prompt_length,
            label: row.label,
        })
    }

    /// Encodes a conversation to be scored: it ends with an assistant turn, and its ids with that turn's end, as in a
    /// preference.
    pub fn encode_scored(&self, messages: &[Message]) -> Result<Vec<i64>> {
        match messages.split_last() {
            Some((answer, prompt)) if answer.role == Role::Assistant => {
                Ok(self.encode_answer(prompt, std::slice::from_ref(answer))?.input_ids)
            }
            _ => Err(Error::NothingToScore),
        }
    }

    fn check_ids(&self, place: &str, ids: &[i64]) -> Result<()> {
        ids.iter().try_for_each(|&id| self.checked(place, id).map(drop))
    }

    /// A prompt with one answer, cut behind the answer's end of turn.
    fn encode_answer(&self, prompt: &[Message], answer: &[Message]) -> Result<Answered> {
        let encoded = self.encode_checked(&[prompt, answer].concat(), prompt.len())?;
        let first = encoded.assistant_mask.iter().position(|&speaks| speaks);
        let last = encoded.assistant_mask.iter().rposition(|&speaks| speaks);
        let (Some(prompt_length), Some(last)) = (first, last) else { return Err(Error::NoAssistantTurn) };
        let mut input_ids = encoded.input_ids;
        input_ids.truncate(last + 1);
        Ok(Answered { input_ids, prompt_length })
    }

    /// As [`Self::encode_turns`], and the ids of the last answer's prompt are exactly the head of the conversation.
    fn encode_checked(&self, messages: &[Message], first: usize) -> Result<Encoded> {
        let encoded = self.encode_turns(messages, first)?;
        let last = messages.iter().rposition(|message| message.role == Role::Assistant);
        let turn = last.ok_or(Error::NoAssistantTurn)?;
        let prompt = self.encode_prompt(&messages[..turn])?;
        let answer = encoded.assistant_mask.get(prompt.len()).copied().unwrap_or(false)
            && (prompt.is_empty() || !encoded.assistant_mask[prompt.len() - 1]);
        if encoded.input_ids.starts_with(&prompt) && answer {
            return Ok(encoded);
        }
        let shared = encoded.input_ids.iter().zip(&prompt).take_while(|(left, right)| left == right).count();
        Err(self.not_a_prefix(turn, format!(
            "the {} ids of its prompt are not the head of the conversation ({shared} agree), or the answer does not begin \
             behind them",
            prompt.len()
        )))
    }

    /// Encodes a conversation; the mask covers the assistant turns from message `first` on.
    fn encode_turns(&self, messages: &[Message], first: usize) -> Result<Encoded> {
        let turns: Vec<usize> =
            (0..messages.len()).filter(|&turn| messages[turn].role == Role::Assistant).collect();
        if turns.last().is_none_or(|&last| last < first) {
            return Err(Error::NoAssistantTurn);
        }
        let rendered = self.render(messages, false)?;
        let pieces = self.pieces(&rendered.text)?;
        let mut assistant_mask = vec![false; pieces.ids.len()];
        for (index, &turn) in turns.iter().enumerate().filter(|(_, turn)| **turn >= first) {
            let answer = Answer { messages, turn, text: &rendered.text, pieces: &pieces };
            let tokens = match &rendered.generated {
                Some(marked) if marked.len() == turns.len() => self.marked_tokens(&answer, &marked[index]),
                Some(marked) => return Err(self.wrong_blocks(marked.len(), turns.len())),
                None => self.prompted_tokens(&answer)?,
            };
            if tokens.is_empty() {
                return Err(self.not_a_prefix(turn, "the answer has no token of its own".to_owned()));
            }
            assistant_mask[tokens].fill(true);
        }
        Ok(Encoded { input_ids: pieces.ids, assistant_mask })
    }

    /// The tokens of an answer inside a `{% generation %}` block, with the end of turn also where it stands behind.
    fn marked_tokens(&self, answer: &Answer<'_>, marked: &Range<usize>) -> Range<usize> {
        let start = answer.first_token_from(marked.start);
        if let Some(end) = answer.content_end(marked.start).and_then(|end| self.turn_end(answer, end)) {
            return start..end;
        }
        let end = answer.first_token_from(marked.end);
        let inside = self.trimmed(answer, start..end);
        // Trimmed back means that the block holds the end of turn; else it may stand right behind the block.
        let ended = inside > start && self.is_special(answer.pieces.ids[inside - 1]);
        let outside = if ended { None } else { self.turn_end(answer, marked.end) };
        start..outside.unwrap_or(inside)
    }

    /// The tokens of an answer behind its prompt.
    fn prompted_tokens(&self, answer: &Answer<'_>) -> Result<Range<usize>> {
        let Answer { messages, turn, text, pieces } = *answer;
        let prompt = self.render(&messages[..turn], true)?.text;
        if !text.starts_with(&prompt) {
            return Err(self.not_a_prefix(turn, parting(&prompt, text)));
        }
        let ids = self.pieces(&prompt)?.ids;
        let start = answer.first_token_from(prompt.len());
        if start != ids.len() || pieces.ids[..start] != ids {
            let reason = format!(
                "the ids of its prompt are not the head of the conversation's ids: a token crosses from \
                                  {:?} into the answer",
                tail(&prompt)
            );
            return Err(self.not_a_prefix(turn, reason));
        }
        if let Some(end) = answer.content_end(prompt.len()).and_then(|end| self.turn_end(answer, end)) {
            return Ok(start..end);
        }
        let limit = self.turn_limit(answer, prompt.len())?;
        let within = start..answer.first_token_from(limit);
        let content = messages[turn].content.trim();
        let found = text[prompt.len()..limit].find(content).map(|at| prompt.len() + at);
        let Some(found) = found else { return Ok(start..self.trimmed(answer, within)) };
        let header = start..answer.first_token_from(found).max(start);
        if pieces.ids[header].iter().any(|&id| self.is_special(id)) {
            let reason = format!(
                "the generation prompt does not open the turn: {:?} stands before the answer",
                &text[prompt.len()..found]
            );
            return Err(self.not_a_prefix(turn, reason));
        }
        Ok(start..self.turn_end(answer, found + content.len()).unwrap_or(within.end))
    }

    /// The byte at which the text of a turn ends, found by rendering the conversation up to it.
    fn turn_limit(&self, answer: &Answer<'_>, start: usize) -> Result<usize> {
        let Answer { messages, turn, text, .. } = *answer;
        if turn + 1 == messages.len() {
            return Ok(text.len());
        }
        let until = self.render(&messages[..=turn], false)?.text;
        let limit = common_prefix(&until, text);
        if limit <= start
            || (limit < until.len() && !text[start..limit].contains(messages[turn].content.trim()))
        {
            return Err(self.not_a_prefix(turn, parting(&until, text)));
        }
        Ok(limit)
    }

    /// Behind the special token that ends a turn, if only white space stands between it and byte `from`.
    fn turn_end(&self, answer: &Answer<'_>, from: usize) -> Option<usize> {
        let Pieces { ids, ranges } = answer.pieces;
        let begin = answer.first_token_from(from);
        let special = (begin..ids.len()).find(|&token| self.is_special(ids[token]))?;
        let between = answer.text.get(from..ranges[special].start)?;
        between.trim().is_empty().then_some(special + 1)
    }

    /// The end of a span without the white space that follows its last special token, if it ends so.
    fn trimmed(&self, answer: &Answer<'_>, span: Range<usize>) -> usize {
        let Pieces { ids, ranges } = answer.pieces;
        let Some(last) = span.clone().rev().find(|&token| self.is_special(ids[token])) else {
            return span.end;
        };
        let end = ranges.get(span.end).map_or(answer.text.len(), |range| range.start);
        let rest = answer.text.get(ranges[last].end..end).unwrap_or_default();
        if rest.trim().is_empty() { last + 1 } else { span.end }
    }

    fn not_a_prefix(&self, turn: usize, reason: String) -> Error {
        Error::NotAPrefix { name: self.name().to_owned(), turn, reason }
    }

    fn wrong_blocks(&self, marked: usize, turns: usize) -> Error {
        Error::GenerationBlocks { name: self.name().to_owned(), marked, turns }
    }
}

/// An assistant turn in a rendered and tokenised conversation.
#[derive(Clone, Copy)]
struct Answer<'a> {
    messages: &'a [Message],
    turn: usize,
    text: &'a str,
    pieces: &'a Pieces,
}

impl Answer<'_> {
    /// The first token that starts at or behind a byte.
    fn first_token_from(&self, byte: usize) -> usize {
        self.pieces.ranges.partition_point(|range| range.start < byte)
    }

    /// Where the content of the turn ends, if it stands at byte `start`, white space aside.
    fn content_end(&self, start: usize) -> Option<usize> {
        let content = self.messages[self.turn].content.trim();
        let behind = self.text[start..].trim_start();
        let begin = self.text.len() - behind.len();
        (!content.is_empty() && behind.starts_with(content)).then_some(begin + content.len())
    }
}

/// Bytes that two texts begin with, whole characters only.
fn common_prefix(left: &str, right: &str) -> usize {
    let pairs = left.char_indices().zip(right.chars());
    let parted = pairs.into_iter().find(|((_, left), right)| left != right).map(|((at, _), _)| at);
    parted.unwrap_or(left.len().min(right.len()))
}

/// Says where a rendering leaves the whole conversation.
fn parting(part: &str, whole: &str) -> String {
    let at = common_prefix(part, whole);
    let head = |text: &str| text[at..].chars().take(24).collect::<String>();
    format!("rendered alone it goes on with {:?} where the conversation has {:?}", head(part), head(whole))
}

/// The last few characters.
fn tail(text: &str) -> &str {
    let start = text.char_indices().rev().take(24).last().map_or(0, |(at, _)| at);
    &text[start..]
}

#[cfg(test)]
mod tests;
