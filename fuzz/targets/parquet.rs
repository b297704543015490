//! Parquet rows.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| colossal_chat_fuzz::read("rows.parquet", bytes));
