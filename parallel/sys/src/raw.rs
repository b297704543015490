//! Rust declarations of `cpp/shim.h`, in the same order. Use the safe modules instead.
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
pub const BOOL_LIST: i32 = 9;

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
pub type ShimTake = extern "C" fn(bytes: usize) -> *mut c_void;
pub type ShimAsk = extern "C" fn(bytes: usize) -> c_int;
pub type ShimTell = extern "C" fn(bytes: usize);

pub const TAG: usize = 32;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ShimSigner {
    pub state: *mut c_void,
    pub tag: extern "C" fn(
        state: *const c_void,
        key: *const c_char,
        key_length: usize,
        bytes: *const u8,
        length: usize,
        tag: *mut u8,
    ),
    pub drop: ShimDrop,
}

/// The store of a rendezvous.
#[repr(C)]
pub struct ShimStore {
    _opaque: [u8; 0],
}

/// A process group over Gloo.
#[repr(C)]
pub struct ShimGroup {
    _opaque: [u8; 0],
}

/// A started collective.
#[repr(C)]
pub struct ShimWork {
    _opaque: [u8; 0],
}

/// A CUDA stream.
#[repr(C)]
pub struct ShimStream {
    _opaque: [u8; 0],
}

/// A recorded point in a CUDA stream.
#[repr(C)]
pub struct ShimEvent {
    _opaque: [u8; 0],
}

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
    pub fn shim_operations_begin() -> c_int;
    pub fn shim_operations_end(sink: ShimSink, context: *mut c_void) -> c_int;
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
    pub fn shim_store_open(
        host: *const c_char,
        port: u16,
        listener: c_int,
        timeout_ms: i64,
        seal: ShimSigner,
        store: *mut *mut ShimStore,
    ) -> c_int;
    pub fn shim_store_port(store: *const ShimStore) -> u16;
    pub fn shim_store_set(
        store: *mut ShimStore,
        key: *const c_char,
        bytes: *const u8,
        length: usize,
    ) -> c_int;
    pub fn shim_store_get(
        store: *mut ShimStore,
        key: *const c_char,
        timeout_ms: i64,
        sink: ShimSink,
        context: *mut c_void,
    ) -> c_int;
    pub fn shim_store_has(store: *mut ShimStore, key: *const c_char, there: *mut bool) -> c_int;
    pub fn shim_store_close(store: *mut ShimStore);
    pub fn shim_gloo_open(
        store: *mut ShimStore,
        name: *const c_char,
        interface: *const c_char,
        rank: c_int,
        size: c_int,
        timeout_ms: i64,
        group: *mut *mut ShimGroup,
    ) -> c_int;
    pub fn shim_gloo_close(group: *mut ShimGroup);
    pub fn shim_all_reduce(
        group: *mut ShimGroup,
        tensor: *const C_tensor,
        op: i32,
        work: *mut *mut ShimWork,
    ) -> c_int;
    pub fn shim_all_gather(
        group: *mut ShimGroup,
        output: *const C_tensor,
        input: *const C_tensor,
        work: *mut *mut ShimWork,
    ) -> c_int;
    pub fn shim_all_to_all(
        group: *mut ShimGroup,
        output: *const C_tensor,
        input: *const C_tensor,
        output_counts: *const i64,
        input_counts: *const i64,
        count: usize,
        work: *mut *mut ShimWork,
    ) -> c_int;
    pub fn shim_broadcast(
        group: *mut ShimGroup,
        tensor: *const C_tensor,
        root: c_int,
        work: *mut *mut ShimWork,
    ) -> c_int;
    pub fn shim_barrier(group: *mut ShimGroup, work: *mut *mut ShimWork) -> c_int;
    pub fn shim_work_wait(work: *mut ShimWork) -> c_int;
    pub fn shim_work_is_done(work: *mut ShimWork, done: *mut bool) -> c_int;
    pub fn shim_work_free(work: *mut ShimWork);
    pub fn shim_stream_open(device: c_int, stream: *mut *mut ShimStream) -> c_int;
    pub fn shim_stream_wait_current(stream: *mut ShimStream, handle: *mut *mut c_void) -> c_int;
    pub fn shim_stream_record_event(stream: *mut ShimStream, event: *mut *mut ShimEvent) -> c_int;
    pub fn shim_stream_close(stream: *mut ShimStream);
    pub fn shim_event_block(event: *mut ShimEvent) -> c_int;
    pub fn shim_event_query(event: *mut ShimEvent, done: *mut bool) -> c_int;
    pub fn shim_event_free(event: *mut ShimEvent);
    pub fn shim_show_config(sink: ShimSink, context: *mut c_void) -> c_int;
    pub fn shim_set_flush_denormal(flush: bool, supported: *mut bool) -> c_int;
    pub fn shim_set_cudnn_attention(use_cudnn: bool) -> c_int;
    pub fn shim_from_blob(
        data: *mut c_void,
        shape: *const i64,
        strides: *const i64,
        dims: usize,
        kind: i32,
        device: i32,
        state: *mut c_void,
        drop: ShimDrop,
        result: *mut *mut C_tensor,
    ) -> c_int;
    pub fn shim_set_cpu_allocator(take: ShimTake, give_back: ShimDrop) -> c_int;
    pub fn shim_watch_device_allocator(device: i32, ask: ShimAsk, tell: ShimTell) -> c_int;
    pub fn shim_device_reserved_bytes(device: i32, bytes: *mut usize) -> c_int;
    pub fn shim_device_empty_cache(device: i32) -> c_int;
}
