//! The OpenMP runtime under libtorch: a pool of threads that share a processor with other work.
//!
//! `libtorch_cpu.so`, with the MKL and oneDNN inside it, calls 26 functions of GNU OpenMP. A program that
//! exports functions of the same names takes their place, because the loader looks into the program before it
//! looks into libgomp. `build.rs` tells the linker to export them. The interface is GCC's "The libgomp ABI".
//!
//! libgomp divides a region among its threads and lets each of them spin for some milliseconds at the end of
//! the region until the last one arrives. If another process holds one of the cores, the threads spin while
//! the one that they wait for has no core. This runtime differs in two points:
//!
//! 1. A thread that waits spins for [`futex::SPIN`] and then sleeps, so its core is free for a thread that has
//!    work.
//! 2. The thread that opened the region does the shares that no other thread has begun when it has finished
//!    its own.
//!
//! | file | content |
//! |---|---|
//! | [`pool`] | threads, the start and end of a region |
//! | [`team`] | what the members of a region share: barrier, loops, sections, ordered blocks |
//! | [`thread`] | what a thread knows: its place, and the size of its next regions |
//! | [`futex`] | waiting on a word of memory |
//!
//! A share of the work belongs to a number and not to a thread, so results are the same bits as with libgomp.
//! As with libgomp, a region within a parallel region has one member. Of the environment variables only
//! `OMP_NUM_THREADS` has an effect.

#![allow(non_snake_case, reason = "the names of GCC's runtime")]

mod futex;
mod pool;
mod team;
#[cfg(test)]
mod tests;
mod thread;

use std::cell::RefCell;
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::ops::Range;
use std::sync::OnceLock;

use futex::Lock;
use pool::{Pool, Region};
use team::{Loop, Member, Team};
use thread::{MEMBER, THREADS, processors, run_as, with_member};

thread_local! {
    /// The threads that help this thread.
    static POOL: RefCell<Pool> = const { RefCell::new(Pool::new()) };
}

/// Writes the iterations that a member received to the places that the caller gave.
fn give(iterations: Option<(c_long, c_long)>, start: *mut c_long, end: *mut c_long) -> bool {
    let Some((first, last)) = iterations else { return false };
    // SAFETY: the compiler passes the addresses of two local variables.
    unsafe { (*start, *end) = (first, last) };
    true
}

/// Runs `region` once for each member of a team. `threads` is their number, or 0 for the default.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn GOMP_parallel(region: Region, data: *mut c_void, threads: c_uint, _flags: c_uint) {
    let default = THREADS.get();
    let size = if threads == 0 { default } else { threads };
    let is_nested = MEMBER.get().is_parallel;
    // At the end of the program the pool of this thread may be gone.
    let shared = size > 1
        && !is_nested
        && POOL.try_with(|pool| pool.borrow_mut().run(region, data, size, default)).is_ok();
    if !shared {
        let team = Team::new();
        // SAFETY: the compiler made `region` for `data`.
        run_as(Member::new(&team, 0, is_nested), || unsafe { region(data) });
    }
}

/// Divides `0..count` among the threads that libtorch uses, at least `least` to each, and calls `body` with
/// each share. The shares of `count` depend on the number of threads.
pub(crate) fn share(count: usize, least: usize, body: &(impl Fn(Range<usize>) + Sync)) {
    struct Call<'a, B> {
        count: usize,
        body: &'a B,
    }
    unsafe extern "C" fn region<B: Fn(Range<usize>) + Sync>(data: *mut c_void) {
        // SAFETY: `share` passes its own `call`, which lives until all members are done.
        let call = unsafe { &*data.cast::<Call<'_, B>>() };
        let size = call.count.div_ceil(omp_get_num_threads() as usize);
        let start = omp_get_thread_num() as usize * size;
        let share = start.min(call.count)..(start + size).min(call.count);
        if !share.is_empty() {
            (call.body)(share);
        }
    }
    fn region_of<B: Fn(Range<usize>) + Sync>(_: &B) -> Region {
        region::<B>
    }

    let members = (count / least.max(1)).min(tch::get_num_threads() as usize);
    if members <= 1 {
        return body(0..count);
    }
    let mut call = Call { count, body };
    GOMP_parallel(region_of(body), (&raw mut call).cast(), members as c_uint, 0);
}

/// Waits until all members of the region have come here.
#[unsafe(no_mangle)]
extern "C" fn GOMP_barrier() {
    with_member(|_, team| team.barrier());
}

/// Begins a block that one member runs. Returns whether this one does.
#[unsafe(no_mangle)]
extern "C" fn GOMP_single_start() -> bool {
    with_member(|member, team| {
        let is_first = team.start_loop(member, Loop::sections(1)).is_some();
        team.end_loop(member);
        is_first
    })
}

/// Begins a loop whose members take `chunk` iterations at a time.
#[unsafe(no_mangle)]
extern "C" fn GOMP_loop_dynamic_start(
    start: c_long,
    end: c_long,
    step: c_long,
    chunk: c_long,
    chunk_start: *mut c_long,
    chunk_end: *mut c_long,
) -> bool {
    let iterations = with_member(|member, team| team.start_loop(member, Loop::new(start, end, step, chunk)));
    give(iterations, chunk_start, chunk_end)
}

/// Takes the next iterations of the loop; false if there are none.
#[unsafe(no_mangle)]
extern "C" fn GOMP_loop_dynamic_next(chunk_start: *mut c_long, chunk_end: *mut c_long) -> bool {
    give(with_member(|member, team| team.next_chunk(member)), chunk_start, chunk_end)
}

/// Begins a loop in which blocks between [`GOMP_ordered_start`] and [`GOMP_ordered_end`] run in the order of
/// the iterations.
#[unsafe(no_mangle)]
extern "C" fn GOMP_loop_ordered_dynamic_start(
    start: c_long,
    end: c_long,
    step: c_long,
    chunk: c_long,
    chunk_start: *mut c_long,
    chunk_end: *mut c_long,
) -> bool {
    GOMP_loop_dynamic_start(start, end, step, chunk, chunk_start, chunk_end)
}

/// Like [`GOMP_loop_dynamic_next`], in a loop with ordered blocks.
#[unsafe(no_mangle)]
extern "C" fn GOMP_loop_ordered_dynamic_next(chunk_start: *mut c_long, chunk_end: *mut c_long) -> bool {
    let iterations = with_member(|member, team| {
        team.end_turn(member);
        team.next_chunk(member)
    });
    give(iterations, chunk_start, chunk_end)
}

/// Waits until all earlier iterations of the loop have run their ordered blocks.
#[unsafe(no_mangle)]
extern "C" fn GOMP_ordered_start() {
    with_member(|member, team| team.await_turn(member));
}

/// Ends an ordered block. The turn ends with the member's chunk, which may have more such blocks.
#[unsafe(no_mangle)]
extern "C" fn GOMP_ordered_end() {}

/// Ends the member's part of a loop and waits for the other members.
#[unsafe(no_mangle)]
extern "C" fn GOMP_loop_end() {
    with_member(|member, team| {
        team.end_loop(member);
        team.barrier();
    });
}

/// Ends the member's part of a loop.
#[unsafe(no_mangle)]
extern "C" fn GOMP_loop_end_nowait() {
    with_member(|member, team| team.end_loop(member));
}

/// Begins `count` sections and takes one. Returns its number from 1 on, or 0 if none is left.
#[unsafe(no_mangle)]
extern "C" fn GOMP_sections_start(count: c_uint) -> c_uint {
    section(with_member(|member, team| team.start_loop(member, Loop::sections(count.into()))))
}

/// Takes the next section; 0 if none is left.
#[unsafe(no_mangle)]
extern "C" fn GOMP_sections_next() -> c_uint {
    section(with_member(|member, team| team.next_chunk(member)))
}

fn section(iterations: Option<(c_long, c_long)>) -> c_uint {
    iterations.map_or(0, |(number, _)| c_uint::try_from(number).expect("the count of sections was a c_uint"))
}

/// Ends the member's part of the sections.
#[unsafe(no_mangle)]
extern "C" fn GOMP_sections_end_nowait() {
    with_member(|member, team| team.end_loop(member));
}

/// The lock of critical blocks without a name, and the one of atomic updates.
static CRITICAL: Lock = Lock::new();
static ATOMIC: Lock = Lock::new();

/// Begins a block that one thread of the process runs at a time.
#[unsafe(no_mangle)]
extern "C" fn GOMP_critical_start() {
    CRITICAL.lock();
}

/// Ends the block.
#[unsafe(no_mangle)]
extern "C" fn GOMP_critical_end() {
    CRITICAL.unlock();
}

/// Begins a critical block with a name, for which the compiler keeps a pointer that is null at first.
///
/// # Safety
///
/// `place` is valid for the rest of the program and used for nothing else.
#[unsafe(no_mangle)]
unsafe extern "C" fn GOMP_critical_name_start(place: *mut *mut c_void) {
    // SAFETY: a null pointer has the bytes of an open lock, and is no smaller and no less aligned.
    unsafe { (*place.cast::<Lock>()).lock() };
}

/// Ends the block.
///
/// # Safety
///
/// `place` was given to [`GOMP_critical_name_start`].
#[unsafe(no_mangle)]
unsafe extern "C" fn GOMP_critical_name_end(place: *mut *mut c_void) {
    // SAFETY: as above.
    unsafe { (*place.cast::<Lock>()).unlock() };
}

/// Begins an update of memory that no instruction of the processor makes at once.
#[unsafe(no_mangle)]
extern "C" fn GOMP_atomic_start() {
    ATOMIC.lock();
}

/// Ends the update.
#[unsafe(no_mangle)]
extern "C" fn GOMP_atomic_end() {
    ATOMIC.unlock();
}

/// The number of this member in its region.
#[unsafe(no_mangle)]
extern "C" fn omp_get_thread_num() -> c_int {
    MEMBER.get().id as c_int
}

/// The number of members of the region.
#[unsafe(no_mangle)]
extern "C" fn omp_get_num_threads() -> c_int {
    with_member(|_, team| team.size as c_int)
}

/// The number of members that a region would have.
#[unsafe(no_mangle)]
extern "C" fn omp_get_max_threads() -> c_int {
    THREADS.get() as c_int
}

/// Sets the number of members of this thread's next regions.
#[unsafe(no_mangle)]
extern "C" fn omp_set_num_threads(threads: c_int) {
    THREADS.set(u32::try_from(threads).unwrap_or(1).max(1));
}

/// The number of processors that this process may use.
#[unsafe(no_mangle)]
extern "C" fn omp_get_num_procs() -> c_int {
    static PROCESSORS: OnceLock<u32> = OnceLock::new();
    *PROCESSORS.get_or_init(processors) as c_int
}

/// Whether this thread is in a region with more than one member.
#[unsafe(no_mangle)]
extern "C" fn omp_in_parallel() -> c_int {
    MEMBER.get().is_parallel.into()
}
