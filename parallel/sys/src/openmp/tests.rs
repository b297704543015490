//! Tests of the functions as a compiler calls them, and of who provides them.

use std::collections::BTreeSet;
use std::ffi::{CString, c_long, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::*;

/// Calls the `F` at `data`.
///
/// # Safety
///
/// `data` is the address of a live `F`.
unsafe extern "C" fn call<F: Fn() + Sync>(data: *mut c_void) {
    // SAFETY: as above.
    unsafe { (*data.cast_const().cast::<F>())() };
}

/// Runs `body` in a region of `threads` members.
fn parallel<F: Fn() + Sync>(threads: u32, body: F) {
    GOMP_parallel(call::<F>, (&raw const body).cast_mut().cast(), threads, 0);
}

/// Runs `body` in a region of `threads` members, with the workers of `pool`.
fn run_in<F: Fn() + Sync>(pool: &mut Pool, threads: u32, body: F) {
    pool.run(call::<F>, (&raw const body).cast_mut().cast(), threads, threads);
}

/// The iterations that this member gets of a dynamic loop.
fn chunks(start: c_long, end: c_long, step: c_long, chunk: c_long) -> Vec<(c_long, c_long)> {
    let (mut first, mut last) = (0, 0);
    let mut taken = Vec::new();
    let mut has_chunk = GOMP_loop_dynamic_start(start, end, step, chunk, &raw mut first, &raw mut last);
    while has_chunk {
        taken.push((first, last));
        has_chunk = GOMP_loop_dynamic_next(&raw mut first, &raw mut last);
    }
    GOMP_loop_end_nowait();
    taken
}

#[test]
fn every_member_runs_once_and_knows_its_number() {
    for round in 0..2_000 {
        let size = 1 + round % 5;
        let seen: Vec<AtomicU32> = (0..size).map(|_| AtomicU32::new(0)).collect();
        parallel(size, || {
            assert_eq!(omp_get_num_threads(), size as c_int);
            assert_eq!(omp_in_parallel(), c_int::from(size > 1));
            seen[omp_get_thread_num() as usize].fetch_add(1, Ordering::Relaxed);
        });
        assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1), "round {round}");
        assert_eq!((omp_get_thread_num(), omp_get_num_threads(), omp_in_parallel()), (0, 1, 0));
    }
}

#[test]
fn no_member_passes_a_barrier_before_all_have_arrived() {
    let arrived = AtomicU32::new(0);
    parallel(4, || {
        for round in 1..=500 {
            arrived.fetch_add(1, Ordering::SeqCst);
            GOMP_barrier();
            assert_eq!(arrived.load(Ordering::SeqCst), 4 * round);
            GOMP_barrier();
        }
    });
}

#[test]
fn loops_give_each_iteration_once_in_both_directions() {
    // The counts of chunks are those of the formula ceil(iterations / chunk).
    let cases = [(0, 10, 1, 3, 4), (10, 0, -1, 4, 3), (0, 10, 4, 1, 3), (5, 5, 1, 1, 0), (-7, 8, 5, 2, 2)];
    for size in [1, 3] {
        let taken = Mutex::new(vec![Vec::new(); cases.len()]);
        parallel(size, || {
            // Without barriers: members are in different loops at the same time.
            for (index, &(start, end, step, chunk, _)) in cases.iter().enumerate() {
                let mine = chunks(start, end, step, chunk);
                taken.lock().unwrap()[index].extend(mine);
            }
        });
        for (found, &(start, end, step, _, count)) in taken.into_inner().unwrap().iter().zip(&cases) {
            assert_eq!(found.len(), count);
            let is_left = |value: c_long| if step > 0 { value < end } else { value > end };
            let steps = |from: c_long| std::iter::successors(Some(from), move |value| Some(value + step));
            let wanted: BTreeSet<c_long> = steps(start).take_while(|&value| is_left(value)).collect();
            let found: Vec<c_long> = found
                .iter()
                .flat_map(|&(first, last)| {
                    steps(first).take_while(move |&value| if step > 0 { value < last } else { value > last })
                })
                .collect();
            assert_eq!(found.len(), wanted.len());
            assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), wanted);
        }
    }
}

#[test]
fn ordered_blocks_run_in_the_order_of_the_iterations() {
    let order = Mutex::new(Vec::new());
    parallel(3, || {
        let (mut first, mut last) = (0, 0);
        let mut has_chunk = GOMP_loop_ordered_dynamic_start(0, 60, 1, 4, &raw mut first, &raw mut last);
        while has_chunk {
            for iteration in first..last {
                // Some chunks have no ordered block.
                if first % 8 == 0 {
                    GOMP_ordered_start();
                    order.lock().unwrap().push(iteration);
                    GOMP_ordered_end();
                }
            }
            has_chunk = GOMP_loop_ordered_dynamic_next(&raw mut first, &raw mut last);
        }
        GOMP_loop_end();
    });
    let wanted: Vec<c_long> = (0..60).filter(|iteration| iteration / 4 % 2 == 0).collect();
    assert_eq!(order.into_inner().unwrap(), wanted);
}

#[test]
fn one_member_runs_a_single_block_and_each_section() {
    let (singles, sections) = (AtomicU32::new(0), Mutex::new(Vec::new()));
    parallel(3, || {
        for _ in 0..100 {
            singles.fetch_add(u32::from(GOMP_single_start()), Ordering::Relaxed);
        }
        let mut number = GOMP_sections_start(5);
        while number != 0 {
            sections.lock().unwrap().push(number);
            number = GOMP_sections_next();
        }
        GOMP_sections_end_nowait();
    });
    assert_eq!(singles.into_inner(), 100);
    let mut sections = sections.into_inner().unwrap();
    sections.sort_unstable();
    assert_eq!(sections, [1, 2, 3, 4, 5]);
}

#[test]
fn critical_blocks_exclude_each_other() {
    /// A counter whose increments are lost if two threads make them at once.
    struct Counter(AtomicUsize);
    impl Counter {
        fn increment(&self) {
            let value = self.0.load(Ordering::Relaxed);
            std::hint::black_box(value);
            self.0.store(value + 1, Ordering::Relaxed);
        }
    }
    let counters = [const { Counter(AtomicUsize::new(0)) }; 3];
    let mut place = std::ptr::null_mut::<c_void>();
    let name = (&raw mut place) as usize;
    parallel(4, || {
        for _ in 0..5_000 {
            GOMP_critical_start();
            counters[0].increment();
            GOMP_critical_end();
            GOMP_atomic_start();
            counters[1].increment();
            GOMP_atomic_end();
            // SAFETY: the pointer lives longer than the region.
            unsafe { GOMP_critical_name_start(name as *mut *mut c_void) };
            counters[2].increment();
            // SAFETY: as above.
            unsafe { GOMP_critical_name_end(name as *mut *mut c_void) };
        }
    });
    assert!(counters.iter().all(|counter| counter.0.load(Ordering::Relaxed) == 20_000));
}

#[test]
fn a_region_in_a_parallel_region_has_one_member() {
    let inner = AtomicU32::new(0);
    parallel(2, || {
        let outer = omp_get_thread_num();
        parallel(4, || {
            assert_eq!((omp_get_thread_num(), omp_get_num_threads(), omp_in_parallel()), (0, 1, 1));
            inner.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!((omp_get_thread_num(), omp_get_num_threads()), (outer, 2));
    });
    assert_eq!(inner.into_inner(), 2);
}

#[test]
fn the_size_of_a_region_is_set_for_each_thread() {
    let check = |threads: u32| {
        omp_set_num_threads(threads as c_int);
        parallel(0, || {
            assert_eq!(omp_get_num_threads(), threads as c_int);
            assert_eq!(omp_get_max_threads(), threads as c_int, "helpers know it too");
        });
    };
    std::thread::scope(|scope| {
        for threads in 1..4 {
            scope.spawn(move || (0..200).for_each(|_| check(threads)));
        }
    });
}

#[test]
fn the_owner_does_the_shares_of_workers_that_do_not_begin() {
    let ran = Mutex::new(Vec::new());
    run_in(&mut Pool::without_threads(2), 3, || {
        ran.lock().unwrap().push((omp_get_thread_num(), std::thread::current().id()));
    });
    let owner = std::thread::current().id();
    assert_eq!(ran.into_inner().unwrap(), [(0, owner), (1, owner), (2, owner)]);
}

/// Every function of OpenMP that the loaded libtorch imports is one of this program. One that is missing
/// would come from libgomp, which knows nothing of these threads.
#[test]
fn every_function_that_libtorch_imports_is_of_this_program() {
    let path = crate::runtime::libtorch_path().unwrap_or_else(|| {
        let _ = tch::Tensor::zeros([1], (tch::Kind::Float, tch::Device::Cpu));
        crate::runtime::libtorch_path().expect("libtorch is loaded")
    });
    let imports = imported_functions(&std::fs::read(path).unwrap());
    assert!(imports.len() >= 20, "{imports:?}");
    let own = file_of("GOMP_parallel");
    assert_eq!(own, std::env::current_exe().unwrap().to_string_lossy());
    for name in imports {
        assert_eq!(file_of(&name), own, "{name}");
    }
}

/// The names of the functions of OpenMP that a library takes from others.
fn imported_functions(library: &[u8]) -> Vec<String> {
    use object::{Object, ObjectSymbol};
    let file = object::File::parse(library).unwrap();
    file.dynamic_symbols()
        .filter(ObjectSymbol::is_undefined)
        .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
        .filter(|name| name.starts_with("GOMP_") || name.starts_with("omp_"))
        .collect()
}

/// The file of the function that the loader finds under a name.
fn file_of(name: &str) -> String {
    let name = CString::new(name).unwrap();
    // SAFETY: `name` ends with a zero byte, and `info` is filled before it is read.
    unsafe {
        let mut info = std::mem::zeroed::<libc::Dl_info>();
        let function = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        assert!(libc::dladdr(function, &raw mut info) != 0, "{name:?}");
        let file = std::ffi::CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned();
        std::fs::canonicalize(file).unwrap().to_string_lossy().into_owned()
    }
}
