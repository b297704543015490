//! Global settings of libtorch: threads, denormals, build configuration, CUDA.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::raw::ShimValue;
use crate::{Error, check, openmp, raw};

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

/// Counts the GPUs that the driver of NVIDIA offers, without libtorch. The error says why the driver cannot
/// be asked.
pub fn count_gpus() -> Result<usize, String> {
    // SAFETY: a literal name; the driver's library has no requirements on its caller.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err("there is no driver of NVIDIA on this machine (libcuda.so.1)".to_owned());
    }

    let find = |name: &CStr| {
        // SAFETY: the library that was just opened, and never closed.
        let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
        if symbol.is_null() {
            Err(format!("libcuda.so.1 has no {}", name.to_string_lossy()))
        } else {
            Ok(symbol)
        }
    };

    let (init, count) = (find(c"cuInit")?, find(c"cuDeviceGetCount")?);
    // SAFETY: the signatures of the CUDA driver API: `CUresult cuInit(unsigned)` and
    // `CUresult cuDeviceGetCount(int *)`.
    let (init, count) = unsafe {
        (
            std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> i32>(init),
            std::mem::transmute::<*mut c_void, extern "C" fn(*mut i32) -> i32>(count),
        )
    };

    let mut gpus = 0;
    for (call, code) in [("cuInit", init(0)), ("cuDeviceGetCount", count(&raw mut gpus))] {
        // 100: CUDA_ERROR_NO_DEVICE.
        if code == 100 {
            return Ok(0);
        }
        if code != 0 {
            return Err(format!("the driver of NVIDIA refuses {call} with error {code}"));
        }
    }
    Ok(usize::try_from(gpus).unwrap_or(0))
}

/// The libtorch library that this process has loaded.
pub fn libtorch_path() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps
        .lines()
        .find_map(|line| line.split_whitespace().nth(5).filter(|path| path.contains("libtorch_cpu")))?;
    Some(PathBuf::from(path))
}

/// Loads libtorch's CUDA library: from the folder `cuda` beside the libtorch that is loaded, or from the
/// loader's path. Call it before the first tensor.
///
/// Attention then runs on libtorch's own kernels and not on cuDNN. cuDNN compiles a plan for each shape that
/// it meets, and every decoding step has a new one: on an H200 that takes 29 ms of a step of 37 ms. Where
/// shapes repeat, a model of 1.2 B parameters trains in 256 ms a step instead of 250.
pub fn load_cuda() -> Result<(), Error> {
    let name = "libtorch_cuda.so";
    let beside = libtorch_path().map(|path| path.with_file_name("cuda").join(name));
    let path = beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from(name));
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path has no zero byte");
    // SAFETY: loading the library runs libtorch's own initializers.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !library.is_null() {
        // SAFETY: a setting without a pointer.
        return check("set_cudnn_attention", unsafe { raw::shim_set_cudnn_attention(false) });
    }
    // SAFETY: the error text of the call that just failed on this thread, copied at once.
    let message = unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned();
    Err(Error::Torch { call: "CUDA".to_owned(), message })
}

/// Whether libtorch's operations run on the threads of this program (`openmp`), and not on those of libgomp.
pub fn has_own_threads() -> bool {
    // SAFETY: a literal name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"GOMP_parallel".as_ptr()) };
    std::ptr::eq(found, openmp::GOMP_parallel as *const c_void)
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
