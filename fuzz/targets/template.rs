//! Chat templates: compiled, and rendered over a conversation.

#![no_main]

use datasets::{ChatTemplate, Message, RenderOptions};

libfuzzer_sys::fuzz_target!(init: colossal_chat_fuzz::watch_panics(), |source: &str| {
    let Ok(template) = ChatTemplate::new("fuzz", source) else { return };
    let messages = [Message::user("how do i greet?"), Message::assistant("good day")];
    for add_generation_prompt in [false, true] {
        let options = RenderOptions { add_generation_prompt, ..RenderOptions::default() };
        let _ = template.render(&messages, &options);
    }
});
