//! Global settings of libtorch: threads, denormals, build configuration, CUDA.

use std::ffi::{CStr, c_void};

use crate::raw::ShimValue;
use crate::{Error, check, raw};

/// Returns libtorch's description of its build settings, which has several lines.
pub fn show_config() -> Result<String, Error> {
    let mut text = String::new();
    // SAFETY: `copy` is only called during the call, with `text` as its context.
    let code = unsafe { raw::shim_show_config(copy, (&raw mut text).cast()) };
    check("show_config", code)?;
    Ok(text)
}

extern "C" fn copy(context: *mut c_void, value: *const ShimValue) {
    // SAFETY: `show_config` passes a live `String`, and the shim bytes that live during the call.
    unsafe {
        let value = &*value;
        let bytes = std::slice::from_raw_parts(value.data.cast::<u8>(), value.length);
        (*context.cast::<String>()).push_str(&String::from_utf8_lossy(bytes));
    }
}

/// Loads libtorch's CUDA library from the loader's path. Call it before the first tensor.
pub fn load_cuda() -> Result<(), Error> {
    // SAFETY: a literal name; loading it runs libtorch's own initialisers.
    let library = unsafe { libc::dlopen(c"libtorch_cuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !library.is_null() {
        return Ok(());
    }
    // SAFETY: the error text of the call that just failed on this thread, copied at once.
    let message = unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned();
    Err(Error::Torch { call: "CUDA".to_owned(), message })
}

/// Sets whether this thread flushes denormal numbers to zero. Returns whether the processor supports it.
pub fn set_flush_denormal(flush: bool) -> Result<bool, Error> {
    let mut supported = false;
    // SAFETY: `supported` lives during the call.
    let code = unsafe { raw::shim_set_flush_denormal(flush, &raw mut supported) };
    check("set_flush_denormal", code)?;
    Ok(supported)
}

/// Sets the number of threads per operation, and one thread between operations. Call it before the first
/// operation.
pub fn set_threads(threads: usize) {
    tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
    tch::set_num_interop_threads(1);
}

#[cfg(test)]
mod tests {
    #[test]
    fn libtorch_describes_itself() {
        let text = super::show_config().unwrap();
        assert!(text.contains("PyTorch built with"), "{text}");
    }
}
