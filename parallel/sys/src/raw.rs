//! `cpp/shim.h` in Rust, in its order. Use the safe modules instead.
#![expect(missing_docs, reason = "documented in cpp/shim.h")]

use std::ffi::{c_char, c_int, c_void};

use torch_sys::C_tensor;

pub const NONE: i32 = 0;
pub const TENSOR: i32 = 1;
pub const INT: i32 = 2;
pub const DOUBLE: i32 = 3;
pub const BOOL: i32 = 4;
pub const STRING: i32 = 5;
pub const TENSOR_LIST: i32 = 6;
pub const INT_LIST: i32 = 7;
pub const DOUBLE_LIST: i32 = 8;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ShimValue {
    pub tag: i32,
    pub integer: i64,
    pub real: f64,
    pub data: *const c_void,
    pub length: usize,
}

pub type ShimSink = extern "C" fn(context: *mut c_void, value: *const ShimValue);
pub type ShimBackward = extern "C" fn(
    state: *mut c_void,
    output_grads: *const *const C_tensor,
    output_count: usize,
    input_grads: *mut *mut C_tensor,
    input_count: usize,
) -> c_int;
pub type ShimDrop = extern "C" fn(state: *mut c_void);

unsafe extern "C" {
    pub fn shim_last_error() -> *const c_char;
    pub fn shim_call(
        name: *const c_char,
        overload: *const c_char,
        arguments: *const ShimValue,
        count: usize,
        sink: ShimSink,
        context: *mut c_void,
    ) -> c_int;
    pub fn shim_grad(
        outputs: *const *const C_tensor,
        seeds: *const *const C_tensor,
        output_count: usize,
        inputs: *const *const C_tensor,
        input_count: usize,
        retain_graph: bool,
        create_graph: bool,
        allow_unused: bool,
        results: *mut *mut C_tensor,
    ) -> c_int;
    pub fn shim_attach(
        outputs: *const *const C_tensor,
        output_count: usize,
        inputs: *const *const C_tensor,
        input_count: usize,
        state: *mut c_void,
        backward: ShimBackward,
        drop: ShimDrop,
        results: *mut *mut C_tensor,
    ) -> c_int;
    pub fn shim_grad_enabled() -> bool;
    pub fn shim_fail(message: *const c_char);
    pub fn shim_show_config(sink: ShimSink, context: *mut c_void) -> c_int;
    pub fn shim_set_flush_denormal(flush: bool, supported: *mut bool) -> c_int;
    pub fn shim_set_deterministic(deterministic: bool) -> c_int;
}
