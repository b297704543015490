//! ZeRO: the memory and the traffic of each stage are those of the formulas in `gemini::zero`.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../../tests/on_mesh/mod.rs"]
mod on_mesh;

use std::sync::Arc;

use gemini::config::Scheduler;
use gemini::{ChunkManager, Engine, Error, TrainConfig, WeightMemory, ZeroStage};
use parallel::residency::{
    Access, HeldWeights, ModelPart, WeightAllocator, WeightSource, WeightSpec, WeightStore, Weights,
};
use parallel::{Axis, Parameter, ProcessGroups, Segmented, Transport};
use tch::{Device, Kind, Tensor};

use on_mesh::on_mesh;

const SEGMENTS: usize = 6;
const WIDTH: i64 = 256;
/// Each matrix fills a chunk, and divides into whole pages on up to four ranks.
const NUMEL: u64 = (SEGMENTS as i64 * WIDTH * WIDTH) as u64;

/// `h_i = tanh(h_{i-1} W_i)`.
struct Network {
    parameters: Vec<Parameter>,
    store: Arc<dyn WeightStore>,
}

impl Network {
    /// A network in `kind`, whose last matrix has `offset` added to it.
    fn new(memory: &WeightMemory, kind: Kind, offset: f64) -> Result<Self, parallel::Error> {
        let placeholder = Tensor::empty([0], (kind, Device::Cpu));
        let spec = |index: usize| WeightSpec {
            parameter: Parameter::replicated(format!("w{index}"), &placeholder),
            shape: vec![WIDTH, WIDTH],
            kind,
            trainable: true,
        };
        let parts = (0..SEGMENTS).map(|index| (ModelPart::Segment(index), vec![index])).collect();
        let store = memory.allocate((0..SEGMENTS).map(spec).collect(), parts)?;
        for index in 0..SEGMENTS {
            let source: WeightSource = Box::new(move |target, _| {
                let ramp = Tensor::arange(WIDTH * WIDTH, (Kind::Float, Device::Cpu)) * (index + 1) as f64;
                let values = ramp.sin().view([WIDTH, WIDTH]) * 0.1;
                let own = if index + 1 == SEGMENTS { values + offset } else { values };
                target.shallow_clone().copy_(&own);
                Ok(())
            });
            store.load(index, source, false)?;
        }
        let parameter = |index: usize| {
            let tensor = store.tensor(index).set_requires_grad(true);
            Parameter::replicated(format!("w{index}"), &tensor)
        };
        Ok(Self { parameters: (0..SEGMENTS).map(parameter).collect(), store })
    }

    /// All weights. Every rank calls this, because sharded weights are gathered.
    fn weights(&self) -> Vec<f32> {
        let read = |index: usize| {
            let weight = Weights::Parameter(index);
            let _held = HeldWeights::fetch(Some(&*self.store), weight, Access::Read).unwrap();
            let flat = self.parameters[index].tensor.detach().to_kind(Kind::Float).flatten(0, -1);
            Vec::<f32>::try_from(flat).unwrap()
        };
        (0..SEGMENTS).flat_map(read).collect()
    }
}

impl Segmented for Network {
    type Context = Tensor;
    fn num_segments(&self) -> usize {
        SEGMENTS
    }
    fn forward_segment(
        &self,
        index: usize,
        hidden: Option<&Tensor>,
        rows: &Tensor,
    ) -> Result<Tensor, parallel::Error> {
        Ok(hidden.unwrap_or(rows).matmul(&self.parameters[index].tensor).tanh())
    }
    fn hidden_spec(&self, rows: &Tensor) -> (Vec<i64>, (Kind, Device)) {
        (rows.size(), (rows.kind(), rows.device()))
    }
    fn segment_parameters(&self, index: usize) -> Vec<usize> {
        vec![index]
    }
    fn head_parameters(&self) -> Vec<usize> {
        vec![]
    }
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }
    fn weight_store(&self) -> Option<&Arc<dyn WeightStore>> {
        Some(&self.store)
    }
}

/// What a rank has at the end of a run.
struct Outcome {
    weights: Vec<f32>,
    /// The bytes that it sent in the last step, for gradients and for weights.
    sent: [u64; 2],
    /// The bytes of sharded chunks between two steps, and the most during the steps.
    resident: [u64; 2],
}

/// Two steps over 6 and over 2 rows, two rows in a micro-batch, so that the ranks have different numbers of
/// micro-batches and some of them none.
fn train(groups: &Arc<ProcessGroups>, stage: ZeroStage, kind: Kind) -> Outcome {
    let manager = ChunkManager::sharded(stage);
    let network = Network::new(&WeightMemory::new(&manager, Device::Cpu, groups), kind, 0.0).unwrap();
    let config =
        TrainConfig { lr: 0.01, eps: 1e-4, scheduler: Scheduler::Constant, ..TrainConfig::default() };
    let mut engine = Engine::new(&network, &config, 9, groups, &manager).unwrap();
    let counters = || {
        let gathering = groups.weight_gathering().unwrap().dense;
        [groups.dense_data_parallel().sent_bytes(), gathering.sent_bytes()]
    };

    let mut sent = [0; 2];
    for count in [6usize, 2] {
        let before = counters();
        let row =
            |row: usize| (Tensor::arange(WIDTH, (Kind::Float, Device::Cpu)) * (row + count) as f64).cos();
        let rows: Vec<Tensor> = (0..count).map(|index| row(index).to_kind(kind)).collect();
        let micro_batches: Vec<Tensor> =
            engine.split_micro_batches(&rows, 2).into_iter().map(|rows| Tensor::stack(rows, 0)).collect();
        let contexts: Vec<&Tensor> = micro_batches.iter().collect();
        let loss = |_, hidden: &Tensor| {
            Ok::<_, Error>(hidden.to_kind(Kind::Float).square().sum(Kind::Float) / count as f64)
        };
        engine.accumulate(&network, &contexts, loss).unwrap();
        engine.step().unwrap();
        let after = counters();
        sent = [after[0] - before[0], after[1] - before[1]];
    }
    let resident = [manager.resident_bytes() as u64, manager.traffic().peak_bytes as u64];
    Outcome { weights: network.weights(), sent, resident }
}

#[test]
fn every_stage_has_the_result_of_one_process_and_the_traffic_and_memory_of_the_formulas() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let alone = train(&Arc::new(ProcessGroups::single()), ZeroStage::None, kind);
        assert_eq!((alone.sent, alone.resident), ([0, 0], [0, 0]));
        let width = kind.elt_size_in_bytes() as u64;
        // Moments, and masters of bf16 weights.
        let state = NUMEL * if kind == Kind::Float { 8 } else { 12 };
        let chunk = NUMEL / SEGMENTS as u64;
        for (size, transport) in [(2, Transport::Shared), (4, Transport::Shared), (2, Transport::Gloo)] {
            let ranks = size as u64;
            for stage in ZeroStage::ALL {
                let name = format!("{kind:?}, stage {}, {size} ranks, {transport:?}", u8::from(stage));
                let part = |bytes: u64| bytes * (ranks - 1) / ranks;
                let sent = match stage {
                    // The norm is a sum over the ranks from stage 1 on: 2 x 8 bytes for dense weights, and as
                    // many for experts, of which there are none, in two all-reduces.
                    ZeroStage::None => [part(2 * 4 * NUMEL), 0],
                    ZeroStage::Weights => [part(4 * NUMEL) + 2 * part(2 * 16), 2 * part(width * NUMEL)],
                    _ => [part(4 * NUMEL) + 2 * part(2 * 16), part(width * NUMEL)],
                };
                let kept = match stage {
                    ZeroStage::None => 0,
                    ZeroStage::OptimizerState => state / ranks,
                    ZeroStage::Gradients => (state + 4 * NUMEL) / ranks,
                    ZeroStage::Weights => (state + (4 + width) * NUMEL) / ranks,
                };
                // In a step at most three chunks of gradients are whole: one that is added to, and two that
                // are reduced. Of the weights it is the segment that runs and the one that is next.
                let whole = match stage {
                    ZeroStage::None | ZeroStage::OptimizerState => 0,
                    ZeroStage::Gradients => 3 * part(4 * chunk),
                    ZeroStage::Weights => 3 * part(4 * chunk) + 2 * part(width * chunk),
                };
                for outcome in on_mesh(&[(Axis::Data, size)], transport, |groups| train(groups, stage, kind))
                {
                    let differences = alone.weights.iter().zip(&outcome.weights).map(|(a, b)| (a - b).abs());
                    let worst = differences.fold(0.0, f32::max);
                    let close = if kind == Kind::Float { 1e-6 } else { 1e-3 };
                    assert!(worst < close && outcome.weights.len() as u64 == NUMEL, "{name}: {worst}");
                    assert_eq!(outcome.sent, sent, "{name}");
                    assert_eq!(outcome.resident[0], kept, "{name}");
                    assert!(
                        outcome.resident[1] <= kept + whole,
                        "{name}: {:?} {kept} {whole}",
                        outcome.resident
                    );
                }
            }
        }
    }
}

#[test]
fn ranks_that_load_different_weights_are_refused_before_each_keeps_its_own_shard() {
    let told = on_mesh(&[(Axis::Data, 3)], Transport::Shared, |groups| {
        let manager = ChunkManager::sharded(ZeroStage::Weights);
        let offset = if groups.world().rank() == 1 { 0.5 } else { 0.0 };
        let memory = WeightMemory::new(&manager, Device::Cpu, groups);
        Network::new(&memory, Kind::Float, offset).map(drop).unwrap_err().to_string()
    });
    assert!(told[0].starts_with("ranks 0 and 1 start from different weights"), "{}", told[0]);
    assert!(told[1].starts_with("ranks 1 and 0 start from different weights"), "{}", told[1]);
}

#[test]
fn weights_without_a_store_are_refused_by_name() {
    let told = on_mesh(&[(Axis::Data, 2)], Transport::Shared, |groups| {
        let manager = ChunkManager::sharded(ZeroStage::OptimizerState);
        let unsharded = ChunkManager::unlimited();
        let memory = WeightMemory::new(&unsharded, Device::Cpu, groups);
        let network = Network::new(&memory, Kind::Float, 0.0).unwrap();
        let engine = Engine::new(&network, &TrainConfig::default(), 9, groups, &manager);
        engine.map(drop).unwrap_err().to_string()
    });
    assert!(told[0].starts_with("w0 is not sharded over the data-parallel ranks"), "{}", told[0]);
}
