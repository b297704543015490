//! The numbers and the key that a GGUF file begins with.

/// The first bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// The version that is written.
pub(crate) const VERSION: u32 = 3;

/// The alignment of a file that does not say which it has.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;

/// The key of the alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
