//! Detects turns that a chat template silently leaves out.
//!
//! Some templates have no place for a system message, or for an assistant that speaks first, and render the
//! conversation without it. The model would then see another conversation than the row contains. Therefore
//! every non-empty turn must change the rendered text. A template may still transform a turn: it may trim it,
//! write it as JSON, or leave out the `<think>` part of an earlier reply, as Qwen3's template does. This
//! module knows no token ids.

use crate::conversation::{Message, Role};
use crate::error::{Error, Result};
use crate::template::Rendered;

use super::Tokenizer;

/// A text that does not occur in conversations.
const MARK: &str = "Zq7xW";
/// The largest number of role sequences to remember.
const REMEMBERED: usize = 10_000;

impl Tokenizer {
    /// Returns an error if a turn had no effect on the rendered text.
    pub(super) fn check_turns(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        rendered: &Rendered,
    ) -> Result<()> {
        let missing = unseen(messages, &rendered.text);
        let suspects = if missing.is_empty() && self.keeps_roles(messages, add_generation_prompt) {
            missing
        } else {
            (0..messages.len()).filter(|&turn| !messages[turn].content.trim().is_empty()).collect()
        };

        for turn in suspects {
            // If changing a turn does not change the rendered text, the turn is not in it.
            let mut changed = messages.to_vec();
            changed[turn].content = format!("{MARK}{}{MARK}", messages[turn].content);
            let again = self.render_unchecked(&changed, add_generation_prompt);
            if again.is_ok_and(|again| again.text == rendered.text) {
                return Err(Error::DroppedTurn {
                    name: self.name().to_owned(),
                    turn: turn + 1,
                    role: messages[turn].role.as_str(),
                });
            }
        }
        Ok(())
    }

    /// Whether the template renders every turn of a conversation with these roles in this order, where every
    /// turn has a unique text.
    fn keeps_roles(&self, messages: &[Message], add_generation_prompt: bool) -> bool {
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        let order = (roles, add_generation_prompt);
        let mut known = self.kept_orders.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if known.contains(&order) {
            return true;
        }
        drop(known);
        let said = |turn: usize| format!("{MARK}{turn}{MARK}");
        let mut marked = messages.to_vec();
        for (turn, message) in marked.iter_mut().enumerate() {
            message.content = said(turn);
        }
        let keeps = self
            .render_unchecked(&marked, add_generation_prompt)
            .is_ok_and(|rendered| (0..marked.len()).all(|turn| rendered.text.contains(&said(turn))));
        known = self.kept_orders.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if keeps && known.len() < REMEMBERED {
            known.insert(order);
        }
        keeps
    }
}

/// The turns whose text, without surrounding white space, does not occur in `text`.
fn unseen(messages: &[Message], text: &str) -> Vec<usize> {
    let mut behind = 0;
    let mut stands = |content: &str| {
        // Turns usually appear in order. Only if one does not, the text is searched from its beginning.
        let found = text[behind..].find(content).map(|at| behind + at + content.len());
        if let Some(end) = found {
            behind = end;
        }
        found.is_some() || text.contains(content)
    };
    let turns = messages.iter().enumerate();
    turns.filter(|(_, message)| !stands(message.content.trim())).map(|(turn, _)| turn).collect()
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
