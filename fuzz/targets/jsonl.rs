//! JSONL rows.

#![no_main]

libfuzzer_sys::fuzz_target!(init: colossal_chat_fuzz::watch_panics(), |bytes: &[u8]| colossal_chat_fuzz::read("rows.jsonl", bytes));
