//! `config.json`: parsed, checked and written again.

#![no_main]

use models::config::Config;

libfuzzer_sys::fuzz_target!(init: colossal_chat_fuzz::watch_panics(), |text: &str| {
    let Ok(config) = Config::from_json(text, "config.json") else { return };
    let again = Config::from_json(&config.to_json(), "config.json").expect("what was accepted is accepted again");
    assert_eq!(config.to_json(), again.to_json());
    let _ = config.check_length("a row", 1 << 20);
    let _ = config.eos_token_ids();
});
