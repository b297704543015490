//! Encodes conversations to token ids. Training, generation and chat all use this module.
//!
//! A conversation is rendered once and tokenized once. The assistant mask is then computed from the offsets
//! of the tokens in the rendered text; the ids never come from pieces that were tokenized separately and
//! concatenated. The start of an assistant turn comes from the template's `{% generation %}` blocks. For a
//! template without these blocks, it comes from the prompt: the earlier turns are rendered with the
//! generation prompt, and this rendering must be a prefix of the full conversation, both as text and as ids.
//! The turn ends with its end-of-turn token, which is included; anything that the template writes after that
//! token is not. A token belongs to the span that contains its first byte. The end of a turn that calls tools
//! is found in `calls.rs`, and what follows the tokens of a reply is encoded in `following.rs`. This module
//! does not read or write files.

mod calls;
mod following;

use std::ops::Range;

use crate::conversation::{Conversation, Message, Role};
use crate::error::{Error, Result};
use crate::record::{Demonstration, Preference, Prompt, Unpaired};
use crate::rows::{IGNORE_INDEX, PreferenceRow, PromptRow, SftRow, UnpairedRow};
use crate::template::ChatTemplate;
use crate::tokenizer::{Pieces, Tokenizer};

/// A conversation as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids, `[T]`.
    pub input_ids: Vec<i64>,
    /// Whether the assistant generates the token, end-of-turn token included, `[T]`.
    pub assistant_mask: Vec<bool>,
    /// The assistant turns: the index of the message and its token range.
    pub turns: Vec<(usize, Range<usize>)>,
    /// Whether the ids cover the full conversation, and not only the beginning of a long one.
    pub whole: bool,
}

/// An encoded row, or only its beginning if the row is far longer than the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPrefix<T> {
    /// The row. If it is not complete, it still has more ids than the limit.
    pub row: T,
    /// Whether the row is complete.
    pub whole: bool,
}

/// The limit that keeps every id.
const ALL: usize = usize::MAX;

/// Number of ids dropped at the end of a cut text, because the text after the cut could change them.
const UNSTABLE_TAIL: usize = 1024;

/// Number of ids kept past the limit, so that a turn that ends near the limit still includes its end-of-turn
/// token.
const LOOKAHEAD: usize = 64;

/// The shortest prefix, in bytes, that a text is cut to.
const MIN_PREFIX_BYTES: usize = 1 << 16;

impl Encoded {
    /// Returns the labels: the ids, with [`IGNORE_INDEX`] at tokens that the assistant does not generate,
    /// `[T]`.
    pub fn labels(&self) -> Vec<i64> {
        let label = |(&id, &is_assistant): (&i64, &bool)| if is_assistant { id } else { IGNORE_INDEX };
        self.input_ids.iter().zip(&self.assistant_mask).map(label).collect()
    }
}

/// Prompt and completion as token ids. A complete one ends with the end-of-turn token.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EncodedAnswer {
    input_ids: Vec<i64>,
    prompt_length: usize,
    whole: bool,
}

impl Tokenizer {
    /// Encodes a conversation, with the exact mask of all assistant turns.
    pub fn encode_conversation<'a>(&self, conversation: impl Into<Conversation<'a>>) -> Result<Encoded> {
        self.encode_turns(conversation.into(), 0, ALL)
    }

    /// Encodes the turns before a completion, with the generation prompt.
    pub fn encode_prompt<'a>(&self, conversation: impl Into<Conversation<'a>>) -> Result<Vec<i64>> {
        Ok(self.pieces(&self.render(conversation, true)?.text)?.ids)
    }

    /// Encodes plain text. BOS is added if the tokenizer adds one; EOS is always added. If the text is far
    /// longer than `limit` ids, encodes only its beginning.
    fn text_prefix(&self, text: &str, limit: usize) -> Result<TokenPrefix<Vec<i64>>> {
        let (mut ids, whole) = prefix_of(text, limit, |text| self.encode(text, true), Vec::len)?;
        if !whole {
            ids.truncate(ids.len() - UNSTABLE_TAIL);
            return Ok(TokenPrefix { row: ids, whole });
        }
        let eos = self
            .eos_id()
            .ok_or_else(|| Error::MissingSpecialToken { name: self.name().to_owned(), token: "eos_token" })?;
        if ids.last() != Some(&eos) {
            ids.push(eos);
        }
        Ok(TokenPrefix { row: ids, whole })
    }

    /// Encodes a text with the byte range of each id, or only its beginning if the text is far longer than
    /// `limit` ids.
    fn pieces_prefix(&self, text: &str, limit: usize) -> Result<(Pieces, bool)> {
        let (mut pieces, whole) =
            prefix_of(text, limit, |text| self.pieces(text), |pieces| pieces.ids.len())?;
        if !whole {
            let stable_len = pieces.ids.len() - UNSTABLE_TAIL;
            pieces.ids.truncate(stable_len);
            pieces.ranges.truncate(stable_len);
        }
        Ok((pieces, whole))
    }

    /// Encodes a supervised fine-tuning row.
    pub fn encode_demonstration(&self, row: &Demonstration) -> Result<SftRow> {
        Ok(self.demonstration_prefix(row, ALL)?.row)
    }

    /// Like [`Self::encode_demonstration`], but encodes only the head of a row that is far longer than
    /// `limit` ids.
    pub fn demonstration_prefix(&self, row: &Demonstration, limit: usize) -> Result<TokenPrefix<SftRow>> {
        let encoded = match row {
            Demonstration::Messages { messages, tools } => {
                self.encode_with_loss_mask(Conversation::with_tools(messages, tools.as_ref()), 0, limit)?
            }
            Demonstration::PromptCompletion { prompt, completion, tools } => {
                let messages = [prompt.as_slice(), completion].concat();
                let conversation = Conversation::with_tools(&messages, tools.as_ref());
                self.encode_with_loss_mask(conversation, prompt.len(), limit)?
            }
            Demonstration::Text(text) => {
                let TokenPrefix { row: input_ids, whole } = self.text_prefix(text, limit)?;
                return Ok(TokenPrefix { row: SftRow { labels: input_ids.clone(), input_ids }, whole });
            }
            Demonstration::Tokens { input_ids, labels } => {
                self.check_ids("input_ids", input_ids)?;
                let labels = labels.as_ref().unwrap_or(input_ids);
                let counted: Vec<i64> = labels.iter().copied().filter(|&id| id != IGNORE_INDEX).collect();
                self.check_ids("labels", &counted)?;
                let row = SftRow { input_ids: input_ids.clone(), labels: labels.clone() };
                return Ok(TokenPrefix { row, whole: true });
            }
        };
        let row = SftRow { labels: encoded.labels(), input_ids: encoded.input_ids };
        Ok(TokenPrefix { row, whole: encoded.whole })
    }

    /// Encodes a conversation and clears the mask of assistant turns that are marked with `ignore_loss`.
    fn encode_with_loss_mask(
        &self,
        conversation: Conversation<'_>,
        first: usize,
        limit: usize,
    ) -> Result<Encoded> {
        let mut encoded = self.encode_checked(conversation, first, limit)?;
        for (turn, tokens) in &encoded.turns {
            if conversation.messages[*turn].ignore_loss {
                encoded.assistant_mask[tokens.clone()].fill(false);
            }
        }
        Ok(encoded)
    }

    /// Encodes a preference pair. Both sides begin with exactly the ids of the prompt.
    pub fn encode_preference(&self, row: &Preference) -> Result<PreferenceRow> {
        Ok(self.preference_prefix(row, ALL)?.row)
    }

    /// Like [`Self::encode_preference`], but encodes only the heads of sides that are far longer than `limit`
    /// ids.
    pub fn preference_prefix(&self, row: &Preference, limit: usize) -> Result<TokenPrefix<PreferenceRow>> {
        match row {
            Preference::Messages { prompt, chosen, rejected, tools, margin } => {
                let prompt = Conversation::with_tools(prompt, tools.as_ref());
                let chosen = self.encode_answer(prompt, chosen, limit)?;
                let rejected = self.encode_answer(prompt, rejected, limit)?;

                // A side whose head ends inside the prompt counts all of its ids as prompt.
                let row = PreferenceRow {
                    prompt_length: chosen.prompt_length.min(rejected.prompt_length),
                    chosen: chosen.input_ids,
                    rejected: rejected.input_ids,
                    margin: *margin,
                };
                Ok(TokenPrefix { row, whole: chosen.whole && rejected.whole })
            }

            Preference::Tokens { chosen, rejected, prompt_length, margin } => {
                self.check_ids("chosen_input_ids", chosen)?;
                self.check_ids("rejected_input_ids", rejected)?;

                let row = PreferenceRow {
                    chosen: chosen.clone(),
                    rejected: rejected.clone(),
                    prompt_length: *prompt_length,
                    margin: *margin,
                };
                Ok(TokenPrefix { row, whole: true })
            }
        }
    }

    /// Encodes a prompt for generation.
    pub fn encode_prompt_row(&self, row: &Prompt) -> Result<PromptRow> {
        Ok(self.prompt_prefix(row, ALL)?.row)
    }

    /// Like [`Self::encode_prompt_row`], but encodes only the head of a prompt that is far longer than
    /// `limit` ids.
    pub fn prompt_prefix(&self, row: &Prompt, limit: usize) -> Result<TokenPrefix<PromptRow>> {
        let conversation = Conversation::with_tools(&row.messages, row.tools.as_ref());
        let (pieces, whole) = self.pieces_prefix(&self.render(conversation, true)?.text, limit)?;
        let (messages, tools, answer) = (row.messages.clone(), row.tools.clone(), row.answer.clone());
        Ok(TokenPrefix { row: PromptRow { input_ids: pieces.ids, messages, tools, answer }, whole })
    }

    /// Encodes an unpaired completion with its good or bad label.
    pub fn encode_unpaired(&self, row: &Unpaired) -> Result<UnpairedRow> {
        Ok(self.unpaired_prefix(row, ALL)?.row)
    }

    /// Like [`Self::encode_unpaired`], but encodes only the head of a row that is far longer than `limit`
    /// ids.
    pub fn unpaired_prefix(&self, row: &Unpaired, limit: usize) -> Result<TokenPrefix<UnpairedRow>> {
        let prompt = Conversation::with_tools(&row.prompt, row.tools.as_ref());
        let EncodedAnswer { input_ids, prompt_length, whole } =
            self.encode_answer(prompt, &row.completion, limit)?;
        Ok(TokenPrefix { row: UnpairedRow { input_ids, prompt_length, label: row.label }, whole })
    }

    /// Encodes a conversation for scoring. It must end with an assistant turn, and the ids end with the end
    /// of that turn, as in a preference row.
    pub fn encode_scored<'a>(&self, conversation: impl Into<Conversation<'a>>) -> Result<Vec<i64>> {
        let conversation = conversation.into();
        match conversation.messages.split_last() {
            Some((answer, prompt)) if answer.role == Role::Assistant => {
                let prompt = conversation.with_messages(prompt);
                Ok(self.encode_answer(prompt, std::slice::from_ref(answer), ALL)?.input_ids)
            }
            _ => Err(Error::NothingToScore),
        }
    }

    /// Checks that every id is in the vocabulary.
    fn check_ids(&self, place: &str, ids: &[i64]) -> Result<()> {
        ids.iter().try_for_each(|&id| self.checked(place, id).map(drop))
    }

    /// Encodes a prompt with one completion and drops the ids after the end-of-turn token.
    fn encode_answer(
        &self,
        prompt: Conversation<'_>,
        answer: &[Message],
        limit: usize,
    ) -> Result<EncodedAnswer> {
        let messages = [prompt.messages, answer].concat();
        let encoded = self.encode_checked(prompt.with_messages(&messages), prompt.messages.len(), limit)?;
        if !encoded.whole {
            let Encoded { input_ids, assistant_mask, .. } = encoded;
            // If the completion starts after the head, the full head is prompt.
            let prompt_length = assistant_mask.iter().position(|&speaks| speaks).unwrap_or(input_ids.len());
            return Ok(EncodedAnswer { input_ids, prompt_length, whole: false });
        }
        let first = encoded.assistant_mask.iter().position(|&speaks| speaks);
        let last = encoded.assistant_mask.iter().rposition(|&speaks| speaks);
        let (Some(prompt_length), Some(last)) = (first, last) else { return Err(Error::NoAssistantTurn) };
        let mut input_ids = encoded.input_ids;
        input_ids.truncate(last + 1);
        Ok(EncodedAnswer { input_ids, prompt_length, whole: true })
    }

    /// Like [`Self::encode_turns`], and checks that the ids of the last prompt are exactly the first ids of
    /// the conversation.
    fn encode_checked(&self, conversation: Conversation<'_>, first: usize, limit: usize) -> Result<Encoded> {
        let encoded = self.encode_turns(conversation, first, limit)?;
        // Without generation blocks, `encode_turns` has already compared each prompt with the conversation.
        let has_blocks = self.chat_template().is_some_and(ChatTemplate::has_blocks);
        if !encoded.whole || !has_blocks {
            return Ok(encoded);
        }

        let messages = conversation.messages;
        let last = messages.iter().rposition(|message| message.role == Role::Assistant);
        let turn = last.ok_or(Error::NoAssistantTurn)?;
        let prompt = self.encode_prompt(conversation.with_messages(&messages[..turn]))?;
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

    /// Encodes a conversation. The mask covers the assistant turns at message index `first` and later.
    fn encode_turns(&self, conversation: Conversation<'_>, first: usize, limit: usize) -> Result<Encoded> {
        let messages = conversation.messages;
        let turns: Vec<usize> =
            (0..messages.len()).filter(|&turn| messages[turn].role == Role::Assistant).collect();
        if turns.last().is_none_or(|&last| last < first) {
            return Err(Error::NoAssistantTurn);
        }

        let rendered = self.render(conversation, false)?;
        let (pieces, whole) = self.pieces_prefix(&rendered.text, limit)?;
        let covered = if whole { ALL } else { pieces.ranges.last().map_or(0, |range| range.start) };

        let mut assistant_mask = vec![false; pieces.ids.len()];
        let mut spoken = Vec::new();
        for (index, &turn) in turns.iter().enumerate().filter(|(_, turn)| **turn >= first) {
            let answer = Answer { conversation, turn, text: &rendered.text, pieces: &pieces };
            let tokens = match &rendered.generated {
                Some(marked) if marked.len() != turns.len() => {
                    return Err(self.wrong_blocks(marked.len(), turns.len()));
                }
                Some(marked) if marked[index].start >= covered => None,
                Some(marked) => Some(self.marked_tokens(&answer, &marked[index])),
                None => self.prompted_tokens(&answer, covered)?,
            };
            // This turn and all later ones start after the head.
            let Some(tokens) = tokens else { break };
            if tokens.is_empty() {
                return Err(self.not_a_prefix(turn, "the answer has no token of its own".to_owned()));
            }
            assistant_mask[tokens.clone()].fill(true);
            spoken.push((turn, tokens));
        }
        Ok(Encoded { input_ids: pieces.ids, assistant_mask, turns: spoken, whole })
    }

    /// Returns the tokens of an assistant turn inside a `{% generation %}` block. The end-of-turn token is
    /// included even if it stands after the block.
    fn marked_tokens(&self, answer: &Answer<'_>, marked: &Range<usize>) -> Range<usize> {
        let start = answer.first_token_from(marked.start);
        if let Some(end) = answer.content_end(marked.start).and_then(|end| self.turn_end(answer, end)) {
            return start..end;
        }
        let end = answer.first_token_from(marked.end);
        let inside = self.trimmed(answer, start..end);
        // A special token at the end means that the block contains the end-of-turn token. Otherwise the token
        // may stand right after the block. Calls of tools may end with a special token of their own.
        let ends = |id| if answer.message().calls_tools() { self.is_stop(id) } else { self.is_special(id) };
        let ended = inside > start && ends(answer.pieces.ids[inside - 1]);
        let outside = if ended { None } else { self.turn_end(answer, marked.end) };
        start..outside.unwrap_or(inside)
    }

    /// Returns the tokens of an assistant turn after its prompt, or `None` if the turn starts after the first
    /// `covered` bytes.
    fn prompted_tokens(&self, answer: &Answer<'_>, covered: usize) -> Result<Option<Range<usize>>> {
        let Answer { turn, text, pieces, .. } = *answer;
        let prompt = self.render(answer.before(turn), true)?.text;
        if prompt.len() >= covered {
            return Ok(None);
        }
        if !text.starts_with(&prompt) {
            return Err(self.not_a_prefix(turn, first_difference(&prompt, text)));
        }

        // Equal text is not enough: a token may cross the boundary between prompt and completion.
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

        if answer.message().calls_tools() {
            return self.calling_tokens(answer, &prompt, start).map(Some);
        }

        // Fast path: the content follows the prompt directly and a special token ends the turn.
        if let Some(end) = answer.content_end(prompt.len()).and_then(|end| self.turn_end(answer, end)) {
            return Ok(Some(start..end));
        }

        let limit = self.turn_limit(answer, prompt.len())?;
        let within = start..answer.first_token_from(limit);
        let content = answer.message().content.trim();
        let found = text[prompt.len()..limit].find(content).map(|at| prompt.len() + at);
        let Some(found) = found else { return Ok(Some(start..self.trimmed(answer, within))) };

        // The template may write text between the generation prompt and the content. A special token in that
        // text belongs to the turn header, so the generation prompt is incomplete.
        let header = start..answer.first_token_from(found).max(start);
        if pieces.ids[header].iter().any(|&id| self.is_special(id)) {
            let reason = format!(
                "the generation prompt does not open the turn: {:?} stands before the answer",
                &text[prompt.len()..found]
            );
            return Err(self.not_a_prefix(turn, reason));
        }
        Ok(Some(start..self.turn_end(answer, found + content.len()).unwrap_or(within.end)))
    }

    /// Returns the byte offset at which the text of a turn ends, found by rendering the conversation up to
    /// and including the turn.
    fn turn_limit(&self, answer: &Answer<'_>, start: usize) -> Result<usize> {
        let Answer { turn, text, .. } = *answer;
        if turn + 1 == answer.conversation.messages.len() {
            return Ok(text.len());
        }
        let until = self.render(answer.before(turn + 1), false)?.text;
        let limit = common_prefix(&until, text);
        if limit <= start
            || (limit < until.len() && !text[start..limit].contains(answer.message().content.trim()))
        {
            return Err(self.not_a_prefix(turn, first_difference(&until, text)));
        }
        Ok(limit)
    }

    /// Returns the index after the special token that ends a turn, if only white space stands between byte
    /// `from` and that token.
    fn turn_end(&self, answer: &Answer<'_>, from: usize) -> Option<usize> {
        let Pieces { ids, ranges } = answer.pieces;
        let begin = answer.first_token_from(from);
        let special = (begin..ids.len()).find(|&token| self.is_special(ids[token]))?;
        let between = answer.text.get(from..ranges[special].start)?;
        between.trim().is_empty().then_some(special + 1)
    }

    /// Returns the end of a span, without the white space after its last special token if nothing else
    /// follows that token.
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

/// Encodes the head of a text that has far more than `limit` ids, or the full text otherwise. The flag says
/// whether the full text was encoded.
///
/// A token depends on the text near it. The text is therefore cut well past the limit, and the caller must
/// drop the last `UNSTABLE_TAIL` ids before the cut. The ids before those are the same as in the full text.
fn prefix_of<T>(
    text: &str,
    limit: usize,
    encode: impl Fn(&str) -> Result<T>,
    num_ids: impl Fn(&T) -> usize,
) -> Result<(T, bool)> {
    let wanted = limit.saturating_add(LOOKAHEAD + UNSTABLE_TAIL);
    let mut bytes = wanted.saturating_mul(8).max(MIN_PREFIX_BYTES);
    while bytes < text.len() / 2 {
        let head = encode(&text[..(0..=bytes).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)])?;
        if num_ids(&head) >= wanted {
            return Ok((head, false));
        }
        bytes *= 4;
    }
    Ok((encode(text)?, true))
}

/// An assistant turn in a rendered and tokenized conversation.
#[derive(Clone, Copy)]
struct Answer<'a> {
    conversation: Conversation<'a>,
    turn: usize,
    text: &'a str,
    pieces: &'a Pieces,
}

impl<'a> Answer<'a> {
    /// Returns the turn itself.
    fn message(&self) -> &'a Message {
        &self.conversation.messages[self.turn]
    }

    /// Returns the conversation before a turn.
    fn before(&self, turn: usize) -> Conversation<'a> {
        self.conversation.with_messages(&self.conversation.messages[..turn])
    }

    /// Returns the first token that starts at or after a byte offset.
    fn first_token_from(&self, byte: usize) -> usize {
        self.pieces.ranges.partition_point(|range| range.start < byte)
    }

    /// Returns the byte offset at which the content of the turn ends, if the content starts at byte `start`
    /// (leading white space skipped) and is all that the turn has.
    fn content_end(&self, start: usize) -> Option<usize> {
        if self.message().calls_tools() {
            return None;
        }
        let content = self.message().content.trim();
        let behind = self.text[start..].trim_start();
        let begin = self.text.len() - behind.len();
        (!content.is_empty() && behind.starts_with(content)).then_some(begin + content.len())
    }
}

/// Returns the length in bytes of the common prefix of two texts, at a character boundary.
fn common_prefix(left: &str, right: &str) -> usize {
    let pairs = left.char_indices().zip(right.chars());
    let parted = pairs.into_iter().find(|((_, left), right)| left != right).map(|((at, _), _)| at);
    parted.unwrap_or(left.len().min(right.len()))
}

/// Describes the first difference between the rendering of a part and the full conversation.
fn first_difference(part: &str, whole: &str) -> String {
    let at = common_prefix(part, whole);
    let head = |text: &str| text[at..].chars().take(24).collect::<String>();
    format!("rendered alone it continues with {:?}, and the conversation with {:?}", head(part), head(whole))
}

/// Returns the last 24 characters.
fn tail(text: &str) -> &str {
    let start = text.char_indices().rev().take(24).last().map_or(0, |(at, _)| at);
    &text[start..]
}

#[cfg(test)]
mod tests;
