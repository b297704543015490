//! The secret that only the ranks of a job know, and the tags that it makes.
//!
//! ```text
//!   tag = HMAC-SHA256(secret, length of key | key | value)        (RFC 2104, RFC 6234)
//! ```
//! Every value at the store has a tag. The key is part of the tagged data, so a value cannot be moved to
//! another key. A value from an earlier job with the same secret would still be accepted, so every job needs
//! a new secret.

use std::ffi::{c_char, c_void};
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::raw::{ShimSigner, TAG};

/// The secret of a job.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

/// Hides the secret from debug output.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The minimum number of characters of a secret that a user sets.
    pub const MIN_LENGTH: usize = 16;

    /// Makes a secret from 32 random bytes of the system, as hexadecimal digits.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(to_hex(&bytes).into_bytes().into()))
    }

    /// The secret that a user has set; `None` if it is shorter than [`MIN_LENGTH`](Self::MIN_LENGTH).
    pub fn new(text: &str) -> Option<Self> {
        (text.len() >= Self::MIN_LENGTH).then(|| Self(text.as_bytes().into()))
    }

    /// The text of the secret, for the environment of a rank.
    pub fn expose(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    /// The tag of a key and a value.
    pub(super) fn tag(&self, key: &[u8], value: &[u8]) -> [u8; TAG] {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.chain_update((key.len() as u64).to_le_bytes())
            .chain_update(key)
            .chain_update(value)
            .finalize()
            .into_bytes()
            .into()
    }

    /// Converts the secret for the shim, which calls `drop` when it is done with it.
    pub(super) fn into_signer(self) -> ShimSigner {
        ShimSigner { state: Box::into_raw(Box::new(self)).cast(), tag, drop: drop_secret }
    }
}

/// Formats bytes as hexadecimal, two digits per byte.
pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

extern "C" fn tag(
    state: *const c_void,
    key: *const c_char,
    key_length: usize,
    bytes: *const u8,
    length: usize,
    tag: *mut u8,
) {
    // SAFETY: the shim passes the state of `into_signer`, `key_length` and `length` live bytes, and room for
    // a tag. The pointer of an empty value may be null.
    unsafe {
        let key = std::slice::from_raw_parts(key.cast::<u8>(), key_length);
        let value = if length == 0 { &[] } else { std::slice::from_raw_parts(bytes, length) };
        tag.cast::<[u8; TAG]>().write((*state.cast::<Secret>()).tag(key, value));
    }
}

extern "C" fn drop_secret(state: *mut c_void) {
    // SAFETY: the box of `into_signer`, which the shim returns once.
    drop(unsafe { Box::from_raw(state.cast::<Secret>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_those_of_another_implementation() {
        // Python: hmac.new(b"a secret of a job", struct.pack("<Q", 3) + b"key" + b"value",
        // "sha256").hexdigest()
        let tag = Secret::new("a secret of a job").unwrap().tag(b"key", b"value");
        assert_eq!(to_hex(&tag), "3fc39841519cd80c52ffebc11bb78b8587ee722fa33454b9fdc4d9ee1255decc");
    }

    #[test]
    fn what_was_written_under_one_key_has_another_tag_under_another() {
        let secret = Secret::random().unwrap();
        assert_ne!(secret.tag(b"ab", b"c"), secret.tag(b"a", b"bc"));
        assert_ne!(secret.tag(b"a", b"x"), Secret::random().unwrap().tag(b"a", b"x"));
    }

    #[test]
    fn a_secret_is_long_and_is_never_printed() {
        assert!(Secret::new("fifteen letters").is_none());
        assert_eq!(format!("{:?}", Secret::new("sixteen letters!").unwrap()), "Secret");
    }
}
