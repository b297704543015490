//! The allocator of tensors, in a process of its own, since it stays installed until the process ends.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parallel_sys::arena::page_bytes;
use parallel_sys::{allocator, memory};
use tch::{Device, Kind, Tensor};

const MIB: usize = 1 << 20;
const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// What was made with libtorch's own allocator.
struct Before {
    network: Vec<Vec<u32>>,
    tensor: Option<Tensor>,
}

static BEFORE: Mutex<Option<Before>> = Mutex::new(None);

/// Installs the allocator, empties its cache, and keeps the other tests waiting, since they share the counts.
fn alone() -> MutexGuard<'static, Option<Before>> {
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    before.get_or_insert_with(|| {
        let before = Before { network: network(), tensor: Some(Tensor::ones([1 << 20], FLOAT)) };
        assert_eq!((allocator::held_bytes(), allocator::peak_held_bytes()), (0, 0));
        before
    });
    allocator::install().unwrap();
    allocator::set_budget(None);
    allocator::trim(0);
    assert_eq!(allocator::cached_bytes(), 0);
    before
}

/// A tensor that takes a number of MiB.
fn mib(count: usize) -> Tensor {
    try_mib(count).unwrap()
}

fn try_mib(count: usize) -> Result<Tensor, tch::TchError> {
    Tensor::f_empty([(count * MIB / 4) as i64], FLOAT)
}

/// Sets a budget that grants everything and keeps a list of what it was asked for.
fn log_of_requests() -> Arc<Mutex<Vec<usize>>> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    allocator::set_budget(Some(Box::new(move |bytes| {
        log.lock().unwrap().push(bytes);
        Ok(())
    })));
    asked
}

/// The bits of the loss and of the gradients of a network of matrix products.
fn network() -> Vec<Vec<u32>> {
    tch::manual_seed(7);
    let mut hidden = Tensor::randn([256, 512], FLOAT);
    let weights: Vec<Tensor> = [[512, 1024], [1024, 512], [512, 8]]
        .map(|shape| (Tensor::randn(shape, FLOAT) / 32.0).set_requires_grad(true))
        .into();
    for weight in &weights {
        hidden = hidden.matmul(weight).relu();
    }
    let loss = hidden.square().mean(Kind::Float);
    loss.backward();
    let bits = |tensor: &Tensor| {
        let values = Vec::<f32>::try_from(tensor.detach().flatten(0, -1)).unwrap();
        values.into_iter().map(f32::to_bits).collect()
    };
    weights.iter().map(Tensor::grad).chain([loss]).map(|tensor| bits(&tensor)).collect()
}

#[test]
fn counts_follow_the_tensors() {
    let _alone = alone();
    let live = allocator::live_bytes();
    allocator::reset_peak();

    let tensor = mib(4);
    assert_eq!(allocator::live_bytes(), live + 4 * MIB);
    let view = tensor.view([1024, -1]);
    assert_eq!(allocator::live_bytes(), live + 4 * MIB);
    drop(tensor);
    assert_eq!(allocator::live_bytes(), live + 4 * MIB, "the view still holds it");
    // 1 MiB and 4 bytes count as whole pages.
    let odd = Tensor::empty([(MIB / 4) as i64 + 1], FLOAT);
    assert_eq!(allocator::live_bytes(), live + 5 * MIB + page_bytes());
    assert_eq!(allocator::held_bytes(), allocator::live_bytes());

    drop(view);
    assert_eq!(allocator::live_bytes(), live + MIB + page_bytes());
    assert_eq!(allocator::cached_bytes(), 4 * MIB);
    assert_eq!(allocator::held_bytes(), live + 5 * MIB + page_bytes());
    drop(odd);
    assert_eq!(allocator::live_bytes(), live);
    assert_eq!(allocator::peak_live_bytes(), live + 5 * MIB + page_bytes());
    allocator::trim(0);
    assert_eq!((allocator::live_bytes(), allocator::held_bytes()), (live, live));
    assert_eq!(allocator::peak_held_bytes(), live + 5 * MIB + page_bytes());
    allocator::reset_peak();
    assert_eq!((allocator::peak_live_bytes(), allocator::peak_held_bytes()), (live, live));
}

#[test]
fn memory_of_one_size_serves_another() {
    let _alone = alone();
    let held = allocator::held_bytes();
    drop((mib(4), mib(4)));
    // Both together are one range, which serves one tensor of 8 MiB as well as many that are smaller.
    drop(mib(8));
    drop((mib(1), mib(5), mib(2)));
    assert_eq!(allocator::held_bytes(), held + 8 * MIB);
    // One that is larger needs only the rest.
    let asked = log_of_requests();
    let larger = mib(11);
    allocator::set_budget(None);
    assert_eq!(*asked.lock().unwrap(), [3 * MIB]);
    assert_eq!(allocator::held_bytes(), held + 11 * MIB);
    assert_eq!(larger.fill(2.0).sum(Kind::Float).double_value(&[]), (11 * MIB / 4 * 2) as f64);
}

#[test]
fn a_step_with_other_lengths_needs_no_new_memory() {
    let _alone = alone();
    // The outputs of a block for rows of some length: each is alive beside the two before.
    let step = |length: usize| {
        let mut alive: Vec<Tensor> = Vec::new();
        for width in [64, 172, 172, 64, 256, 64, 172, 64] {
            alive.insert(0, Tensor::empty([(length * width * 4) as i64], FLOAT));
            alive.truncate(3);
        }
    };
    step(700);
    let held = allocator::held_bytes();
    let asked = log_of_requests();
    [300, 655, 512, 700, 419].into_iter().for_each(step);
    allocator::set_budget(None);
    assert_eq!((asked.lock().unwrap().len(), allocator::held_bytes()), (0, held));
}

#[test]
fn small_tensors_are_counted_and_not_cached() {
    let _alone = alone();
    let live = allocator::live_bytes();
    let empty = Tensor::empty([0], FLOAT);
    assert!(empty.data_ptr().is_null());
    assert_eq!(allocator::live_bytes(), live);
    let tensors: Vec<Tensor> = (0..500).map(|_| Tensor::empty([1000], FLOAT)).collect();
    assert!(tensors.iter().all(|tensor| tensor.data_ptr().addr().is_multiple_of(64)));
    let counted = allocator::live_bytes() - live;
    // 4000 bytes each, and at most what the alignment takes beside.
    assert!((500 * 4000..500 * 4100).contains(&counted), "{counted}");
    drop(tensors);
    assert_eq!((allocator::live_bytes(), allocator::cached_bytes()), (live, 0));
}

#[test]
fn freed_memory_serves_what_fits_best() {
    let _alone = alone();
    let (three, _between, two) = (mib(3), mib(1), mib(2));
    let (of_three, of_two) = (three.data_ptr(), two.data_ptr());
    assert!(of_three.addr().is_multiple_of(4096));
    drop(three);
    drop(two);
    assert_eq!(allocator::cached_bytes(), 5 * MIB);
    let other = mib(2);
    assert_eq!(other.data_ptr(), of_two);
    let smaller = mib(1);
    assert_eq!(smaller.data_ptr(), of_three);
    assert_eq!(allocator::cached_bytes(), 2 * MIB);
}

#[test]
fn trim_gives_back_what_was_freed_first() {
    let _alone = alone();
    let (first, _between, second) = (mib(2).fill_(1.0), mib(1), mib(2).fill_(1.0));
    let address = second.data_ptr();
    drop(first);
    drop(second);
    assert_eq!(allocator::trim(4 * MIB), 0);
    // Only as much as necessary.
    assert_eq!(allocator::trim(3 * MIB), MIB);
    assert_eq!(allocator::trim(2 * MIB), MIB);
    assert_eq!(allocator::cached_bytes(), 2 * MIB);
    assert_eq!(mib(2).data_ptr(), address);
    // What is trimmed is gone: its addresses read as zeros.
    assert_eq!(mib(2).sum(Kind::Float).double_value(&[]), (MIB / 2) as f64);
    assert_eq!(allocator::trim(0), 2 * MIB);
    assert_eq!(mib(2).sum(Kind::Float).double_value(&[]), 0.0);
}

#[test]
fn resident_memory_follows() {
    let _alone = alone();
    let full = 256 * MIB as u64;
    let near = |bytes: u64| bytes.abs_diff(full) < full / 20;
    let start = memory::anonymous_rss_bytes();
    memory::reset_peak_rss().unwrap();
    let tensor = mib(256).fill_(1.0);
    let held = memory::anonymous_rss_bytes();
    assert!(near(held - start), "{start} {held}");
    drop(tensor);
    assert!(near(memory::anonymous_rss_bytes() - start));
    assert_eq!(allocator::trim(0), 256 * MIB);
    let trimmed = memory::anonymous_rss_bytes();
    assert!(near(held - trimmed), "{held} {trimmed}");
    assert!(near(memory::peak_rss_bytes() - memory::rss_bytes()));
    memory::reset_peak_rss().unwrap();
    assert!(memory::peak_rss_bytes() - memory::rss_bytes() < full / 20);
}

#[test]
fn a_refusal_is_an_error_of_the_operation() {
    let _alone = alone();
    let text = "the models may hold 3 GiB: raise `memory_budget`";
    let weight = Tensor::randn([1024, 512], FLOAT).set_requires_grad(true);
    let loss = weight.relu().exp().mean(Kind::Float);
    allocator::trim(0);
    let live = allocator::live_bytes();
    let refuse = |bytes: usize| if bytes > MIB { Err(text.to_owned()) } else { Ok(()) };
    allocator::set_budget(Some(Box::new(refuse)));

    let message = |error: tch::TchError| match error {
        tch::TchError::Torch(message) => message,
        other => panic!("{other}"),
    };
    assert_eq!(message(try_mib(2).unwrap_err()), text);
    assert_eq!(message(weight.f_exp().unwrap_err()), text);
    assert_eq!(message(weight.f_matmul(&weight.tr()).unwrap_err()), text);
    assert_eq!(message(loss.f_backward().unwrap_err()), text);
    assert_eq!(allocator::live_bytes(), live);

    // The process goes on, and what is cached needs no permission.
    drop(mib(1));
    allocator::set_budget(Some(Box::new(|_| Err("full".to_owned()))));
    assert_eq!(mib(1).fill_(2.0).double_value(&[5]), 2.0);
    allocator::set_budget(None);
    let loss = weight.relu().exp().mean(Kind::Float);
    loss.backward();
    assert_eq!(weight.grad().size(), [1024, 512]);
}

#[test]
fn a_panic_of_the_budget_is_an_error_of_the_operation() {
    let _alone = alone();
    allocator::set_budget(Some(Box::new(|bytes| -> Result<(), String> { panic!("asked for {bytes}") })));
    let error = try_mib(1).unwrap_err().to_string();
    assert!(error.contains("the memory budget panicked: asked for 1048576"), "{error}");
    // The flag of the thread is back, so the budget is asked again.
    assert!(try_mib(1).is_err());
    allocator::set_budget(None);
    assert!(try_mib(1).is_ok());
}

#[test]
fn the_budget_is_asked_for_new_pages() {
    let _alone = alone();
    let asked = log_of_requests();
    drop(Tensor::empty([1000], FLOAT));
    drop(Tensor::empty([(MIB / 4) as i64 + 1], FLOAT));
    drop(Tensor::empty([(MIB / 4) as i64 + 2], FLOAT));
    drop(mib(2));
    allocator::set_budget(None);
    assert_eq!(*asked.lock().unwrap(), [MIB + page_bytes(), MIB - page_bytes()]);
    assert_eq!(Arc::strong_count(&asked), 1);
}

#[test]
fn the_budget_may_free_a_tensor() {
    let _alone = alone();
    let start = allocator::held_bytes();
    let limit = start + 10 * MIB;
    let spare = Arc::new(Mutex::new(vec![mib(4), mib(4)]));
    let evicted = Arc::clone(&spare);
    allocator::set_budget(Some(Box::new(move |bytes| {
        while allocator::held_bytes() + bytes > limit {
            drop(evicted.lock().unwrap().pop().ok_or("nothing left to free")?);
            allocator::trim(0);
        }
        Ok(())
    })));
    allocator::reset_peak();
    let tensor = mib(6);
    assert_eq!(spare.lock().unwrap().len(), 1);
    assert_eq!(allocator::held_bytes(), limit);
    let error = try_mib(8).unwrap_err();
    assert_eq!(error.to_string(), "Internal torch error: nothing left to free");
    assert_eq!(allocator::peak_held_bytes(), limit);

    // Without a trim, the freed memory itself serves the request.
    spare.lock().unwrap().push(mib(2));
    let evicted = Arc::clone(&spare);
    let address = spare.lock().unwrap()[0].data_ptr().addr();
    allocator::set_budget(Some(Box::new(move |_| {
        evicted.lock().unwrap().clear();
        Ok(())
    })));
    assert_eq!(mib(2).data_ptr().addr(), address);
    allocator::set_budget(None);
    drop(tensor);
}

#[test]
fn the_budget_may_allocate() {
    let _alone = alone();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    allocator::set_budget(Some(Box::new(move |bytes| {
        counted.fetch_add(1, Relaxed);
        let work = Tensor::ones([bytes as i64], FLOAT).cumsum(0, Kind::Float);
        let sum = work.double_value(&[-1]);
        if sum == bytes as f64 { Ok(()) } else { Err(format!("summed {sum}")) }
    })));
    drop(mib(1));
    assert_eq!(calls.load(Relaxed), 1);
    // The budget may also replace itself.
    allocator::trim(0);
    allocator::set_budget(Some(Box::new(|_| {
        allocator::set_budget(None);
        Ok(())
    })));
    drop(mib(1));
    drop(mib(2));
}

#[test]
fn threads_allocate_at_once() {
    let _alone = alone();
    let live = allocator::live_bytes();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    allocator::set_budget(Some(Box::new(move |bytes| {
        counted.fetch_add(1, Relaxed);
        if counted.load(Relaxed).is_multiple_of(50) {
            allocator::trim(0);
        }
        drop(Tensor::zeros([bytes as i64 / 4], FLOAT));
        Ok(())
    })));
    std::thread::scope(|scope| {
        for thread in 1..=8u64 {
            scope.spawn(move || hammer(thread));
        }
    });
    allocator::set_budget(None);
    assert!(calls.load(Relaxed) > 0);
    assert_eq!(allocator::live_bytes(), live);
    assert_eq!(allocator::held_bytes(), live + allocator::cached_bytes());
    allocator::trim(0);
    assert_eq!((allocator::held_bytes(), allocator::cached_bytes()), (live, 0));
}

/// Allocates, fills, checks and frees tensors from 4 bytes to 1.2 MB.
fn hammer(thread: u64) {
    let mut state = thread;
    let mut tensors: Vec<(Tensor, f64)> = Vec::new();
    for step in 0..400u64 {
        // The generator of Knuth's MMIX; its high bits are the good ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        let length = if random.is_multiple_of(2) { random % 300_000 } else { random % 10_000 } + 1;
        let value = (thread * 1000 + step) as f64;
        tensors.push((Tensor::full([length as i64], value, FLOAT), value));
        if tensors.len() > 6 {
            let (tensor, value) = tensors.swap_remove(random as usize % 6);
            assert_eq!(tensor.eq(value).all().int64_value(&[]), 1, "another tensor wrote there");
        }
        if random.is_multiple_of(37) {
            allocator::trim(MIB);
        }
    }
}

#[test]
fn a_network_computes_the_same_bits() {
    let alone = alone();
    let before = alone.as_ref().unwrap();
    assert_eq!(before.network.len(), 4);
    // The second time in memory that holds old values.
    for _ in 0..2 {
        assert!(network() == before.network);
    }
    assert!(allocator::cached_bytes() > 0);
}

#[test]
fn a_tensor_from_before_is_freed_as_it_was_allocated() {
    let mut alone = alone();
    let (live, cached) = (allocator::live_bytes(), allocator::cached_bytes());
    let tensor = alone.as_mut().unwrap().tensor.take().unwrap();
    assert_eq!(tensor.sum(Kind::Float).double_value(&[]), f64::from(1 << 20));
    drop(tensor);
    assert_eq!((allocator::live_bytes(), allocator::cached_bytes()), (live, cached));
}
