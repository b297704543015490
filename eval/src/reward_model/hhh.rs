//! HHH alignment: pairs of replies that are more or less helpful, honest and harmless (Askell et al. 2021,
//! arXiv 2112.00861).
//!
//! The rows are those of prometheus-eval (`eval/benchmark/data/hhh_alignment_eval.json`): each reply stands
//! in the instructions for a judge. A reward model reads the conversation alone, so the instruction and the
//! reply are taken out from between the headings. An instruction of several turns marks them with `Human:`
//! and `Assistant:` at the beginning of a paragraph.

use datasets::record::Row;
use datasets::{Error, Message, RowLocation};

use super::entry::{Entry, Facts, text, wrong};

const INSTRUCTION: &str = "###The instruction to evaluate:\n";
const RESPONSE: &str = "\n\n###Response to evaluate:\n";
const RUBRICS: &str = "\n\n###Score Rubrics:\n";

/// Reads a row.
pub(super) fn entry(row: &Row, at: &RowLocation) -> Result<Entry, Error> {
    const HEADINGS: &str = "a text with the headings ###The instruction to evaluate:, ###Response to evaluate: and \
        ###Score Rubrics:, each once";
    let part = |field: &str| {
        let whole = text(row, field, at)?;
        let parts = parts(&whole).map(|(instruction, reply)| (instruction.to_owned(), reply.to_owned()));
        parts.ok_or_else(|| wrong(at, field, "a text without them".to_owned(), HEADINGS))
    };
    let (instruction, chosen) = part("chosen_instruction")?;
    let (other, rejected) = part("rejected_instruction")?;
    if instruction != other {
        let found = "about another instruction than chosen_instruction".to_owned();
        return Err(wrong(at, "rejected_instruction", found, "about the same instruction"));
    }
    Ok(Entry {
        at: at.clone(),
        group: text(row, "source", at)?,
        prompt: turns(&instruction),
        replies: vec![chosen, rejected],
        facts: Facts::Pair,
    })
}

/// The instruction and the reply.
fn parts(whole: &str) -> Option<(&str, &str)> {
    let once = |text: &str| whole.matches(text).count() == 1;
    if ![INSTRUCTION, RESPONSE, RUBRICS].into_iter().all(once) {
        return None;
    }
    let (_, rest) = whole.split_once(INSTRUCTION)?;
    let (instruction, rest) = rest.split_once(RESPONSE)?;
    let (reply, _) = rest.split_once(RUBRICS)?;
    Some((instruction, reply))
}

/// The turns of an instruction; the first is of the user.
fn turns(instruction: &str) -> Vec<Message> {
    let mut turns: Vec<Message> = Vec::new();
    for (index, paragraph) in instruction.split("\n\n").enumerate() {
        let marked = |mark: &str| paragraph.strip_prefix(mark).map(str::trim);
        if let Some(said) = marked("Human:") {
            turns.push(Message::user(said));
        } else if let Some(said) = marked("Assistant:") {
            turns.push(Message::assistant(said));
        } else if index == 0 {
            turns.push(Message::user(paragraph.trim_end()));
        } else if let Some(turn) = turns.last_mut() {
            turn.content.push_str("\n\n");
            turn.content.push_str(paragraph);
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use datasets::Role;

    use super::*;

    fn asked(instruction: &str, reply: &str) -> String {
        format!("###Task Description:\nx\n\n{INSTRUCTION}{instruction}{RESPONSE}{reply}{RUBRICS}[y]\n")
    }

    fn row(chosen: &str, rejected: &str) -> Result<Entry, String> {
        let row = serde_json::json!({"source": "honest", "chosen_instruction": chosen, "rejected_instruction": rejected});
        let at = RowLocation { path: "hhh.json".into(), row: 3 };
        entry(row.as_object().unwrap(), &at).map_err(|error| error.to_string())
    }

    #[test]
    fn the_conversation_is_taken_out_of_the_instructions_for_a_judge() {
        let dialogue = "Is it?\n\nAssistant:  Yes.\n\nIt is.\n\nHuman: Sure?";
        let found = row(&asked(dialogue, "I think so."), &asked(dialogue, "")).unwrap();
        let turns: Vec<(Role, &str)> =
            found.prompt.iter().map(|turn| (turn.role, turn.content.as_str())).collect();
        assert_eq!(
            turns,
            [(Role::User, "Is it?"), (Role::Assistant, "Yes.\n\nIt is."), (Role::User, "Sure?")]
        );
        assert_eq!(
            (found.group.as_str(), found.replies),
            ("honest", vec!["I think so.".to_owned(), String::new()])
        );
    }

    #[test]
    fn a_row_without_the_headings_is_named() {
        let error = row(&asked("q", "a"), "q").unwrap_err();
        assert!(
            error.contains("hhh.json row 3: the field rejected_instruction is a text without them"),
            "{error}"
        );
        assert!(row(&asked("q", "a"), &asked("p", "b")).unwrap_err().contains("another instruction"));
        assert!(row(&asked("q", RUBRICS), &asked("q", "b")).is_err());
    }
}
