//! Replicas that share the rows of a step: the same update as one process, and the bytes that it takes.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../../tests/on_mesh/mod.rs"]
mod on_mesh;

use std::path::Path;
use std::sync::Arc;

use gemini::config::{MomentsDtype, Scheduler};
use gemini::{ChunkManager, Engine, Error, TrainConfig, checkpoint};
use parallel::{Axis, Parameter, ProcessGroups, Segmented, Transport};
use tch::{Device, Kind, Tensor};

use on_mesh::on_mesh;

/// Two segments, `tanh(x W)` and `h V`; the head uses `W` once more, so that it is delivered twice.
struct Network {
    parameters: Vec<Parameter>,
}

impl Network {
    fn new() -> Self {
        let ramp = |rows: i64, columns: i64| {
            let values = Tensor::arange(rows * columns, (Kind::Float, Device::Cpu)).sin();
            values.reshape([rows, columns]).set_requires_grad(true)
        };
        Self {
            parameters: vec![
                Parameter::replicated("w", &ramp(8, 8)),
                Parameter::replicated("v", &ramp(8, 8)),
            ],
        }
    }

    fn loss(&self, hidden: &Tensor, count: usize) -> Tensor {
        hidden.matmul(&self.parameters[0].tensor).square().sum(Kind::Float) / count as f64
    }
}

impl Segmented for Network {
    type Context = Tensor;
    fn num_segments(&self) -> usize {
        2
    }
    fn forward_segment(
        &self,
        index: usize,
        hidden: Option<&Tensor>,
        rows: &Tensor,
    ) -> Result<Tensor, parallel::Error> {
        let weight = &self.parameters[index].tensor;
        Ok(hidden.map_or_else(|| rows.matmul(weight).tanh(), |hidden| hidden.matmul(weight)))
    }
    fn hidden_spec(&self, rows: &Tensor) -> (Vec<i64>, (Kind, Device)) {
        (rows.size(), (rows.kind(), rows.device()))
    }
    fn segment_parameters(&self, index: usize) -> Vec<usize> {
        vec![index]
    }
    fn head_parameters(&self) -> Vec<usize> {
        vec![0]
    }
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }
}

/// Steps over 5, 1 and 4 rows; the weights at the end, and the bytes that the steps sent.
fn train(groups: &Arc<ProcessGroups>) -> (Vec<f32>, u64) {
    let network = Network::new();
    let config = TrainConfig { lr: 0.01, scheduler: Scheduler::Constant, ..TrainConfig::default() };
    let mut engine = Engine::new(&network, &config, 9, groups, &ChunkManager::unlimited()).unwrap();
    let before = groups.axis_group(Axis::Data).sent_bytes();
    for (step, count) in [5usize, 1, 4].into_iter().enumerate() {
        let rows: Vec<Tensor> = (0..count)
            .map(|row| (Tensor::arange(8, (Kind::Float, Device::Cpu)) * (row + 3 * step + 1) as f64).cos())
            .collect();
        for micro in engine.split_micro_batches(&rows, 2) {
            let batch = Tensor::stack(micro, 0);
            let loss = |hidden: &Tensor| Ok::<_, Error>(network.loss(hidden, count));
            engine.accumulate(&network, &[&batch], |_, hidden| loss(hidden)).unwrap();
        }
        engine.step().unwrap();
    }
    let flat: Vec<Tensor> =
        network.parameters.iter().map(|parameter| parameter.tensor.detach().flatten(0, -1)).collect();
    (Vec::try_from(Tensor::cat(&flat, 0)).unwrap(), groups.axis_group(Axis::Data).sent_bytes() - before)
}

/// The same on `size` ranks.
fn train_on(size: usize, transport: Transport) -> Vec<(Vec<f32>, u64)> {
    on_mesh(&[(Axis::Data, size)], transport, train)
}

#[test]
fn replicas_make_the_step_of_one_process_and_send_as_much_as_the_formula_says() {
    let (alone, sent) = train(&Arc::new(ProcessGroups::single()));
    assert_eq!(sent, 0);
    for transport in [Transport::Shared, Transport::Gloo] {
        // Four ranks and a step of one row: three of them have nothing to add.
        for size in [2, 3, 4] {
            for (weights, sent) in train_on(size, transport) {
                let worst =
                    alone.iter().zip(&weights).map(|(one, many)| (one - many).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-6 && weights.iter().all(|x| x.is_finite()), "{size} ranks: {worst}");
                // Three steps, 2 n (P - 1) / P of n = 128 fp32 gradients in one bucket.
                assert_eq!(sent, 3 * (2 * 128 * 4 * (size as u64 - 1) / size as u64));
            }
        }
    }
}

/// An engine after a step, with the folder of its state.
fn after_a_step(network: &Network, groups: &Arc<ProcessGroups>, folder: &Path) -> Engine {
    let config = TrainConfig { moments_dtype: MomentsDtype::Bfloat16, ..TrainConfig::default() };
    let mut engine = Engine::new(network, &config, 9, groups, &ChunkManager::unlimited()).unwrap();
    let rows =
        [Tensor::arange(8, (Kind::Float, Device::Cpu)).cos(), Tensor::ones([8], (Kind::Float, Device::Cpu))];
    for micro in engine.split_micro_batches(&rows, 1) {
        let batch = Tensor::stack(micro, 0);
        let loss = |hidden: &Tensor| Ok::<_, Error>(network.loss(hidden, 2));
        engine.accumulate(network, &[&batch], |_, hidden| loss(hidden)).unwrap();
    }
    engine.step().unwrap();
    std::fs::create_dir_all(folder).unwrap();
    checkpoint::save_state(folder, &engine, &()).unwrap();
    groups.world().barrier().unwrap();
    engine
}

#[test]
fn copies_that_drift_apart_are_named_on_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let told = on_mesh(&[(Axis::Data, 3)], Transport::Shared, |groups| {
        let mut network = Network::new();
        network
            .parameters
            .push(Parameter::replicated("frozen", &Tensor::ones([5], (Kind::Float, Device::Cpu))));
        let mut engine = after_a_step(&network, groups, folder.path());
        let mut told = vec![engine.check_replicas(&network).map_err(|error| error.to_string())];

        // The smallest change of one weight, trained or frozen, and back.
        for parameter in [1, 2] {
            let changed = network.parameters[parameter].tensor.detach().flatten(0, -1).get(3);
            let before = changed.copy();
            if groups.world().rank() == 2 {
                let next = changed.view_dtype(Kind::Int).g_add_scalar(1).view_dtype(Kind::Float);
                changed.shallow_clone().copy_(&next);
            }
            told.push(engine.check_replicas(&network).map_err(|error| error.to_string()));
            changed.shallow_clone().copy_(&before);
        }

        // A moment of one rank.
        let state = folder.path().join("trainer_state");
        let own = tempfile::tempdir().unwrap();
        let own_state = own.path().join("trainer_state");
        std::fs::create_dir(&own_state).unwrap();
        std::fs::copy(state.join("state.json"), own_state.join("state.json")).unwrap();
        let mut bytes = std::fs::read(state.join("optimizer.safetensors")).unwrap();
        let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[data] ^= u8::from(groups.world().rank() == 1);
        std::fs::write(own_state.join("optimizer.safetensors"), bytes).unwrap();
        checkpoint::load_state::<()>(own.path(), &mut engine).unwrap();
        told.push(engine.check_replicas(&network).map_err(|error| error.to_string()));
        told
    });
    for told in told {
        assert_eq!(told[0], Ok(()));
        for (told, start) in told[1..].iter().zip([
            "v is not the same on ranks 0 and 2",
            "frozen is not the same on ranks 0 and 2",
            "exp_avg.w is not the same on ranks 0 and 1",
        ]) {
            let error = told.as_ref().unwrap_err();
            assert!(error.starts_with(start), "{error}");
        }
    }
}

#[test]
fn replicas_that_start_from_different_weights_are_refused() {
    let told = on_mesh(&[(Axis::Data, 3)], Transport::Shared, |groups| {
        let network = Network::new();
        if groups.world().rank() == 1 {
            let _ = tch::no_grad(|| network.parameters[0].tensor.shallow_clone().fill_(0.5));
        }
        let engine = Engine::new(&network, &TrainConfig::default(), 9, groups, &ChunkManager::unlimited());
        engine.map(drop).unwrap_err().to_string()
    });
    for told in told {
        assert!(told.starts_with("ranks 0 and 1 start from different weights"), "{told}");
    }
}
