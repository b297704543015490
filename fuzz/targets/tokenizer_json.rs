//! `tokenizer.json`: loaded, and used on a text.

#![no_main]

use std::fs;

use datasets::Tokenizer;

libfuzzer_sys::fuzz_target!(init: colossal_chat_fuzz::watch_panics(), |bytes: &[u8]| {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    fs::write(folder.path().join("tokenizer.json"), bytes).expect("a file in memory");

    let Ok(tokenizer) = Tokenizer::from_folder(folder.path()) else { return };
    if let Ok(ids) = tokenizer.encode("how do i greet? 你好 <s>", true) {
        let _ = tokenizer.decode(&ids, false);
    }
});
