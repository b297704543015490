//! Chunks under a budget: their values, and how many are moved. The allocator of a process has one budget, so
//! all of this is one test in a process of its own.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use gemini::placement::{ChunkUse, PlacementPolicy, RecordedOrder, simulate};
use gemini::{Budget, ChunkManager, WeightMemory, ZeroStage};
use parallel::residency::{
    Access, HeldWeights, ModelPart, WeightAllocator, WeightSource, WeightSpec, WeightStore, Weights,
};
use parallel::{Parameter, ProcessGroups, allocator, arena};
use tch::{Device, Kind, Tensor};

const CHUNKS: usize = 8;
/// A parameter of this size has a chunk of its own.
const NUMEL: i64 = 64 << 10;
const CHUNK_BYTES: usize = NUMEL as usize * 4;

fn manager_of(placement: PlacementPolicy, chunks: usize) -> Arc<ChunkManager> {
    // The policy `auto` keeps an eighth for chunks that are read ahead.
    let for_chunks = allocator::held_bytes() + chunks * CHUNK_BYTES + CHUNK_BYTES / 2;
    let device_bytes = if placement == PlacementPolicy::Auto { for_chunks / 7 * 8 } else { for_chunks };
    let disk_path = std::env::temp_dir();
    let budget = Budget { placement, device: Device::Cpu, device_bytes, host_bytes: None, disk_path };
    ChunkManager::limited(budget, ZeroStage::None).unwrap()
}

/// A store of parameters that hold their own index. Trained parameters are written to the disk, those of
/// frozen models are computed again.
fn store(manager: &Arc<ChunkManager>, trainable: bool) -> Arc<dyn WeightStore> {
    let parameter = |index: usize| {
        let nothing = Tensor::empty([0], (Kind::Float, Device::Cpu));
        let parameter = Parameter::replicated(format!("w{index}"), &nothing);
        WeightSpec { parameter, shape: vec![NUMEL], kind: Kind::Float, trainable }
    };
    let parts = (0..CHUNKS).map(|index| (ModelPart::Segment(index), vec![index])).collect();
    let memory = WeightMemory::new(manager, Device::Cpu, &Arc::new(ProcessGroups::single()));
    let store = memory.allocate((0..CHUNKS).map(parameter).collect(), parts).unwrap();
    for index in 0..CHUNKS {
        let fill: WeightSource = Box::new(move |target, _| {
            let _ = target.shallow_clone().fill_(index as f64);
            Ok(())
        });
        store.load(index, fill, !trainable).unwrap();
    }
    store
}

/// Uses the parameters in this order and adds `change` to each. Returns the values before the change.
fn step(store: &dyn WeightStore, order: &[usize], change: f64) -> Vec<f64> {
    let values = order.iter().map(|&index| {
        let access = if change == 0.0 { Access::Read } else { Access::Write };
        let part = Weights::Part(ModelPart::Segment(index));
        let _held = HeldWeights::fetch(Some(store), part, access).unwrap();
        let mut tensor = store.tensor(index);
        let values = (tensor.min().double_value(&[]), tensor.max().double_value(&[]));
        assert_eq!(values.0, values.1, "chunk {index} holds values of several chunks");
        let _ = tensor.g_add_scalar_(change);
        values.0
    });
    values.collect()
}

/// The steps in which the order is not known yet, and those that are counted. Between two steps of a cycle
/// the number of fetches differs by one, so many are counted.
const STEPS: [usize; 2] = [4, 28];

/// The chunks that the best policy fetches in the counted steps.
fn least_fetches(order: &[usize], chunks: usize) -> u64 {
    let moments = order.iter().map(|&chunk| vec![ChunkUse { chunk, writes: false }]).collect();
    let order = RecordedOrder::new(moments, vec![CHUNK_BYTES; CHUNKS], true);
    let fetches = |passes| simulate(&order, passes, |_| chunks * CHUNK_BYTES, 0).unwrap().fetches;
    (fetches(STEPS[0] + STEPS[1]) - fetches(STEPS[0])) as u64
}

#[test]
fn chunks_keep_their_values_and_are_moved_as_rarely_as_possible() {
    assert_eq!(CHUNK_BYTES % arena::page_bytes(), 0);
    let cycle: Vec<usize> = (0..CHUNKS).collect();
    let there_and_back: Vec<usize> = (0..CHUNKS).chain((0..CHUNKS).rev()).collect();

    for trainable in [true, false] {
        for order in [&cycle, &there_and_back] {
            for chunks in [2, 3, 5, 7] {
                let manager = manager_of(PlacementPolicy::Auto, chunks);
                let store = store(&manager, trainable);
                let mut before = 0;
                for number in 0..STEPS[0] + STEPS[1] {
                    let expected: Vec<f64> = order.iter().map(|&index| index as f64).collect();
                    manager.begin_step(&ProcessGroups::single()).unwrap();
                    assert_eq!(step(&*store, order, 0.0), expected);
                    manager.end_step();
                    if number + 1 == STEPS[0] {
                        before = manager.traffic().fetches;
                    }
                }
                // The simulation starts with empty memory and this run did not, which makes a difference of
                // less than what fits into memory.
                let (fetches, least) = (manager.traffic().fetches - before, least_fetches(order, chunks));
                let difference = fetches.abs_diff(least);
                assert!(difference < chunks as u64, "{order:?} in {chunks} chunks: {fetches}, not {least}");
                assert!(manager.traffic().peak_bytes <= manager.budget().unwrap().device_bytes);
            }
        }
    }

    // What was changed comes back from the disk.
    for placement in [PlacementPolicy::Auto, PlacementPolicy::Disk] {
        let manager = manager_of(placement, 3);
        let store = store(&manager, true);
        for number in 0..4 {
            let expected: Vec<f64> =
                cycle.iter().map(|&index| index as f64 + 0.5 * f64::from(number)).collect();
            assert_eq!(step(&*store, &cycle, 0.5), expected, "{placement:?}");
            manager.end_step();
        }
        assert!(manager.traffic().written_bytes > 0);
    }

    deferred_updates_run_before_their_weights_are_used();
    a_copy_that_each_step_makes_stays_while_it_is_used();

    // Nothing leaves that must stay: the fourth of three chunks is refused.
    let manager = manager_of(PlacementPolicy::Cuda, 3);
    let loaded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store(&manager, false)));
    assert!(loaded.is_err() && manager.traffic().fetches == 0 && manager.traffic().written_bytes == 0);
}

/// A deferred update runs when its weight is fetched next, or at the end. As long as no order of use is
/// known, none is deferred.
fn deferred_updates_run_before_their_weights_are_used() {
    let manager = manager_of(PlacementPolicy::Auto, 5);
    let store = store(&manager, true);
    let defers = |index: usize, chunks: usize| {
        store.defers_update(Weights::Parameters(&[index]), chunks * CHUNK_BYTES)
    };
    manager.begin_step(&ProcessGroups::single()).unwrap();
    assert!(!defers(2, 1));
    step(&*store, &[0, 1, 2, 3, 4, 5, 6, 7], 0.0);
    manager.end_step();
    assert!(defers(2, 4) && !defers(2, 7));
    for index in [2, 4] {
        let mut weight = store.tensor(index);
        let update = move || {
            let _ = weight.g_add_scalar_(100.0);
            Ok(())
        };
        store.defer_update(vec![index], Box::new(update));
    }
    assert_eq!(step(&*store, &[1, 3, 2, 1], 0.0), [1.0, 3.0, 102.0, 1.0]);
    store.finish_updates().unwrap();
    assert_eq!(step(&*store, &[5, 4, 2], 0.0), [5.0, 104.0, 102.0]);
}

/// The policy of PPO generates with a copy of its weights, made in each step. As soon as the order of use is
/// known, the copy stays in memory for all tokens, and what is used only once leaves for it.
fn a_copy_that_each_step_makes_stays_while_it_is_used() {
    let manager = manager_of(PlacementPolicy::Auto, CHUNKS + 4);
    let policy = store(&manager, true);
    let all: Vec<usize> = (0..CHUNKS).collect();
    for number in 0..6 {
        manager.begin_step(&ProcessGroups::single()).unwrap();
        step(&*policy, &all, 0.0);
        let copy = store(&manager, false);
        let before = manager.traffic().fetches;
        for _ in 0..10 {
            step(&*copy, &all, 0.0);
        }
        let fetches = manager.traffic().fetches - before;
        // Only the first chunks of the policy are read ahead for the next step.
        assert!(number < 2 || fetches <= 4, "step {number}: {fetches} chunks were read for 10 tokens");
        drop(copy);
        manager.end_step();
    }
}
