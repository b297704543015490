//! A second device on host memory, with which tests prove that tensors are placed on the device of a model.
//!
//! The device appears to libtorch as `mps`. `accelerator.cpp` explains how it works and what it counts.

use std::ffi::CString;

/// The shared library, for `LD_PRELOAD`.
pub const LIBRARY: &str = concat!(env!("OUT_DIR"), "/libaccelerator.so");

/// Loads the device into this process.
///
/// # Panics
/// If the library cannot be loaded.
pub fn load() {
    let path = CString::new(LIBRARY).expect("a path has no zero byte");
    // SAFETY: the library registers kernels when it is loaded, and has no other requirement. It is never
    // closed.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!library.is_null(), "{LIBRARY} cannot be loaded");
}
