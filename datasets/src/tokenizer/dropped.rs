//! Detects turns, calls of tools and descriptions of tools that a chat template silently leaves out.
//!
//! Some templates have no place for a system message, or for an assistant that speaks first, and render the
//! conversation without it; most templates of models without tools ignore tools and calls. The model would
//! then see another conversation than the row contains. Therefore every non-empty turn, every turn that calls
//! tools, and the tools must change the rendered text. A template may still transform a turn: it may trim it,
//! write it as JSON, or leave out the `<think>` part of an earlier reply, as Qwen3's template does. This
//! module knows no token ids.

use std::sync::{MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::conversation::{Conversation, Message, function_name};
use crate::error::{Error, Result};
use crate::template::Rendered;

use super::Tokenizer;
use super::turn_order::{TurnOrder, TurnShape};

/// A text that does not occur in conversations.
const MARK: &str = "Zq7xW";
/// The largest number of orders to remember.
const REMEMBERED: usize = 10_000;

impl Tokenizer {
    /// Returns an error if a turn, the calls of a turn or the tools had no effect on the rendered text.
    pub(super) fn check_turns(
        &self,
        conversation: Conversation<'_>,
        add_generation_prompt: bool,
        rendered: &Rendered,
    ) -> Result<()> {
        if shows_turns(conversation.messages, &rendered.text)
            && self.keeps_order(conversation, add_generation_prompt)
        {
            return Ok(());
        }

        // If changing a part does not change the rendered text, the part is not in it.
        let is_lost = |changed: Conversation<'_>| {
            let again = self.render_unchecked(changed, add_generation_prompt);
            again.is_ok_and(|again| again.text == rendered.text)
        };
        let name = || self.name().to_owned();
        for (turn, message) in conversation.messages.iter().enumerate() {
            let with = |changed: Message| {
                let mut messages = conversation.messages.to_vec();
                messages[turn] = changed;
                is_lost(conversation.with_messages(&messages))
            };
            let content = format!("{MARK}{}{MARK}", message.content);
            if !message.content.trim().is_empty() && with(Message { content, ..message.clone() }) {
                return Err(Error::DroppedTurn { name: name(), turn: turn + 1, role: message.role.as_str() });
            }
            let calls = message.tool_calls.iter().map(|call| renamed(call, MARK)).collect();
            if message.calls_tools() && with(Message { tool_calls: calls, ..message.clone() }) {
                return Err(Error::DroppedCalls { name: name(), turn: turn + 1 });
            }
        }
        let tools = conversation.tools.map(|tools| marked_tools(tools).0);
        if tools.is_some() && is_lost(Conversation { tools: tools.as_ref(), ..conversation }) {
            return Err(Error::DroppedTools { name: name() });
        }
        Ok(())
    }

    /// The error for a conversation that fails to render. A template that does not know calls may fail on the
    /// content of a turn that has nothing else.
    pub(super) fn without_calls(&self, conversation: Conversation<'_>, error: Error) -> Error {
        let calling = conversation.messages.iter().position(Message::calls_tools);
        let knows_calls =
            self.chat_template().is_none_or(|template| template.source().contains("tool_calls"));
        match (calling, &error) {
            (Some(turn), Error::TemplateRender { .. }) if !knows_calls => {
                Error::DroppedCalls { name: self.name().to_owned(), turn: turn + 1 }
            }
            _ => error,
        }
    }

    /// Whether the template renders every part of a conversation with this order of turns, where every part
    /// has a unique text.
    fn keeps_order(&self, conversation: Conversation<'_>, add_generation_prompt: bool) -> bool {
        let order = TurnOrder::of(conversation, add_generation_prompt);
        if self.known_orders().contains(&order) {
            return true;
        }
        let (tools, mut marks) = conversation.tools.map(marked_tools).unzip();
        let marks = marks.get_or_insert_default();
        if conversation.tools.is_some() && marks.is_empty() {
            return false;
        }
        let messages: Vec<Message> = conversation
            .messages
            .iter()
            .enumerate()
            .map(|(turn, message)| marked(turn, message, marks))
            .collect();
        let marked = Conversation { messages: &messages, tools: tools.as_ref() };
        let keeps = self
            .render_unchecked(marked, add_generation_prompt)
            .is_ok_and(|rendered| marks.iter().all(|mark| rendered.text.contains(mark)));
        let mut known = self.known_orders();
        if keeps && known.len() < REMEMBERED {
            known.insert(order);
        }
        keeps
    }

    fn known_orders(&self) -> MutexGuard<'_, std::collections::HashSet<TurnOrder>> {
        self.kept_orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn with a text of its own in place of its content and of the names of its calls. Adds these texts to
/// `marks`.
fn marked(turn: usize, message: &Message, marks: &mut Vec<String>) -> Message {
    let mut marked = message.clone();
    let mut mark = |part: &str| {
        marks.push(format!("{MARK}{turn}{part}{MARK}"));
        marks[marks.len() - 1].clone()
    };
    // A turn that only calls tools has no content: templates render it in another way than one with content.
    if !matches!(TurnShape::of(message), TurnShape::Calls { .. }) {
        marked.content = mark("");
    }
    for (index, call) in marked.tool_calls.iter_mut().enumerate() {
        *call = renamed(call, &mark(&format!("c{index}")));
    }
    marked
}

/// Tools with a text of its own in place of each name, and these texts.
fn marked_tools(tools: &Value) -> (Value, Vec<String>) {
    let mut marks = Vec::new();
    let mark = |(index, tool): (usize, &Value)| {
        let mark = format!("{MARK}t{index}{MARK}");
        let renamed = renamed(tool, &mark);
        marks.extend((renamed != *tool).then_some(mark));
        renamed
    };
    let list = tools.as_array().map_or(&[] as &[Value], Vec::as_slice);
    let marked: Vec<Value> = list.iter().enumerate().map(mark).collect();
    // Tools without a name are compared with no tools.
    (if marks.is_empty() { json!(null) } else { Value::Array(marked) }, marks)
}

/// A call or a tool with another name, if it has one.
fn renamed(call: &Value, name: &str) -> Value {
    let mut call = call.clone();
    if function_name(&call).is_some() {
        let is_inside = call.get("function").is_some_and(Value::is_object);
        let function = if is_inside { &mut call["function"] } else { &mut call };
        function["name"] = json!(name);
    }
    call
}

/// Whether the content of every turn, without surrounding white space, and the names of its calls occur in
/// `text`.
fn shows_turns(messages: &[Message], text: &str) -> bool {
    let mut behind = 0;
    let mut stands = |content: &str| {
        // Turns usually appear in order. Only if one does not, the text is searched from its beginning.
        let found = text[behind..].find(content).map(|at| behind + at + content.len());
        if let Some(end) = found {
            behind = end;
        }
        found.is_some() || text.contains(content)
    };
    messages.iter().all(|message| {
        stands(message.content.trim()) && message.tool_calls.iter().filter_map(function_name).all(&mut stands)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::tokenizer::tests::small;

    fn talk(roles: &str) -> Vec<Message> {
        let said = |(turn, role): (usize, char)| {
            let content = format!("the words of turn {turn}");
            match role {
                's' => Message::system(content),
                'u' => Message::user(content),
                'a' => Message::assistant(content),
                _ => Message::tool(content),
            }
        };
        roles.chars().enumerate().map(said).collect()
    }

    #[test]
    fn a_turn_that_the_template_leaves_out_is_named() {
        let mut tokenizer = small();
        let no_system = "{% for m in messages %}{% if m.role != 'system' %}{{ m.role + m.content + '<|im_end|>' }}{% endif %}{% endfor %}\
                         {% if add_generation_prompt %}{{ 'assistant' }}{% endif %}";
        tokenizer.set_chat_template(no_system).unwrap();
        let error = tokenizer.encode_conversation(&talk("sua")).unwrap_err();
        assert!(matches!(error, Error::DroppedTurn { turn: 1, role: "system", .. }), "{error}");
        assert!(matches!(tokenizer.encode_prompt(&talk("su")), Err(Error::DroppedTurn { turn: 1, .. })));
        tokenizer.encode_conversation(&talk("ua")).unwrap();
        // The system message is short and also occurs in another turn.
        let short = [Message::system("a"), Message::user("what is a?")];
        assert!(matches!(tokenizer.encode_prompt(&short), Err(Error::DroppedTurn { turn: 1, .. })));
        // An empty turn may be left out.
        tokenizer.encode_prompt(&[Message::system(" "), Message::user("hi")]).unwrap();
        let pairs = "{% for m in messages %}{% if loop.index0 % 2 == (0 if m.role == 'user' else 1) %}{{ m.content }}{% endif %}{% endfor %}";
        tokenizer.set_chat_template(pairs).unwrap();
        assert!(matches!(tokenizer.encode_prompt(&talk("au")), Err(Error::DroppedTurn { turn: 1, .. })));
        assert!(matches!(tokenizer.encode_prompt(&talk("uu")), Err(Error::DroppedTurn { turn: 2, .. })));
    }

    #[test]
    fn what_a_template_does_to_a_turn_is_no_loss() {
        let mut tokenizer = small();
        for change in [
            "m.content|trim",
            "m.content|upper",
            "m.content|tojson",
            "m.content.split('</think>')[-1]",
            "m.content|replace(' ', '_')",
        ] {
            tokenizer
                .set_chat_template(format!("{{% for m in messages %}}{{{{ {change} }}}}{{% endfor %}}"))
                .unwrap();
            let talk = [
                Message::system(" be \"brief\"\n"),
                Message::user("hi\tthere"),
                Message::assistant("<think>hm</think>yes, \"you\""),
                Message::user("and?"),
            ];
            tokenizer.encode_prompt(&talk).unwrap_or_else(|error| panic!("{change}: {error}"));
        }
    }

    #[test]
    fn public_templates_render_every_turn_or_refuse() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/tok/chat_templates"));
        if !folder.is_dir() {
            eprintln!("skipped: {} is not there", folder.display());
            return;
        }
        let mut outcomes = [0; 3];
        for entry in std::fs::read_dir(folder).unwrap() {
            let mut source = String::new();
            let file = std::fs::File::open(entry.unwrap().path()).unwrap();
            if std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(file), &mut source).is_err() {
                continue;
            }
            let mut tokenizer = small();
            tokenizer.set_chat_template(source).unwrap();
            for roles in ["u", "su", "suau", "uau", "au", "uu", "sau", "uua", "ua", "suaua", "ss"] {
                let talk = talk(roles);
                match tokenizer.render(&talk, true) {
                    Ok(rendered) => {
                        let all = talk.iter().all(|message| rendered.text.contains(&message.content));
                        assert!(all, "{roles}: {}", rendered.text);
                        outcomes[0] += 1;
                    }
                    Err(Error::DroppedTurn { .. }) => outcomes[1] += 1,
                    Err(_) => outcomes[2] += 1,
                }
            }
        }
        eprintln!("{outcomes:?} rendered, dropped a turn, refused by the template");
        assert!(outcomes[0] > 0);
    }
}
