//! The heap of Rust code: where the system has no memory left, the program ends with a message and an exit
//! code.
//!
//! Rust would abort there, with a core dump, a backtrace and no exit code that a caller can tell from a bug.
//! A request that fails cannot become an error: the code that makes it expects memory. The memory of tensors
//! is that of [`crate::allocator`], whose refusals are errors.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The heap of the C library, to be the `#[global_allocator]` of a program.
#[derive(Debug)]
pub struct Heap {
    exit_code: u8,
}

static BEFORE_EXIT: OnceLock<fn()> = OnceLock::new();
static IS_ENDING: AtomicBool = AtomicBool::new(false);

impl Heap {
    /// A heap that ends the program with this exit code where the system has no memory left.
    pub const fn new(exit_code: u8) -> Self {
        Self { exit_code }
    }

    fn granted(&self, address: *mut u8, bytes: usize) -> *mut u8 {
        if address.is_null() {
            self.end(bytes);
        }
        address
    }

    #[cold]
    fn end(&self, bytes: usize) -> ! {
        // What runs before the exit may ask for memory as well.
        if !IS_ENDING.swap(true, Ordering::Relaxed)
            && let Some(before_exit) = BEFORE_EXIT.get()
        {
            before_exit();
        }
        let mut buffer = [0; 200];
        let text = message(&mut buffer, bytes);
        // SAFETY: the bytes of `text`, and the end of this process without any destructor.
        unsafe {
            libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
            libc::_exit(self.exit_code.into())
        }
    }
}

/// Runs `action` before the program ends for want of memory, such as to give the terminal back. The first
/// action is kept.
pub fn before_exit(action: fn()) {
    let _ = BEFORE_EXIT.set(action);
}

/// The message, made without a heap.
fn message(buffer: &mut [u8], bytes: usize) -> &[u8] {
    let mut rest = &mut *buffer;
    let _ = writeln!(
        rest,
        "error: out of memory: the system has no {bytes} bytes more; free memory, raise the limit (`ulimit -v`), \
         or use smaller inputs"
    );
    let left = rest.len();
    &buffer[..buffer.len() - left]
}

// SAFETY: every call goes to the system's allocator as it is, and a null address is not returned.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds what the same function asks for.
        self.granted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.granted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as above.
        self.granted(unsafe { System.realloc(address, layout, bytes) }, bytes)
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(address, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_fits_its_buffer() {
        let mut buffer = [0; 200];
        let text = std::str::from_utf8(message(&mut buffer, usize::MAX)).unwrap();
        assert!(
            text.starts_with("error: out of memory: the system has no 18446744073709551615 bytes"),
            "{text}"
        );
        assert!(text.ends_with("smaller inputs\n"), "{text}");
    }
}
