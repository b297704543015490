//! Runs decoders of other crates on untrusted files.
//!
//! The Parquet and tokenizer crates panic on some damaged files. `decode` turns such a panic into an error,
//! and [`is_decoding`] lets the program's panic hook stay silent during that time. This module knows no file
//! format.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static DECODING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside `decode`, where a panic becomes an error.
pub fn is_decoding() -> bool {
    DECODING.get()
}

/// Runs a decoder of another crate. If the decoder panics, the error is the message of the panic.
///
/// After an error, the value that the decoder was changing must not be used, because it may be in an
/// inconsistent state.
pub(crate) fn decode<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let outer = DECODING.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    DECODING.set(outer);
    outcome.map_err(|panic| {
        let constant = || panic.downcast_ref::<&str>().copied();
        let message = panic.downcast_ref().map(String::as_str).or_else(constant);
        format!("its decoder gives up: {}", message.unwrap_or("no reason given"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_and_the_mark_goes() {
        let error = decode(|| -> u8 {
            assert!(is_decoding());
            panic!("type {} is not there", 7)
        });
        assert_eq!(error.unwrap_err(), "its decoder gives up: type 7 is not there");
        assert!(!is_decoding());
        assert_eq!(decode(|| 3), Ok(3));
    }
}
