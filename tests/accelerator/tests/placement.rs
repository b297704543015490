//! The accelerator computes what the CPU computes, and refuses what a GPU would refuse.

use tch::{Device, Kind, Tensor};

fn random(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu))
}

#[test]
fn tensors_of_two_devices_do_not_mix() {
    accelerator::load();
    let host = random(&[3, 4]);
    let device = host.to_device(Device::Mps);
    let index = Tensor::from_slice(&[0_i64, 2]);
    for (operation, outcome) in [
        ("add", device.f_add(&host)),
        ("mm", device.f_mm(&host.tr())),
        ("index_select", device.f_index_select(0, &index)),
        ("cat", Tensor::f_cat(&[&device, &host], 0)),
        ("index", device.f_index(&[Some(&index)])),
    ] {
        let error = outcome.expect_err(operation).to_string();
        let words =
            ["is on cpu, and others are on the accelerator", "Expected all tensors to be on the same device"];
        assert!(words.iter().any(|words| error.contains(words)), "{operation}: {error}");
    }
    // A number is no tensor of the host, even if libtorch wraps it in one.
    assert_eq!((&device * 2.0).to_device(Device::Cpu), &host * 2.0);
}

#[test]
fn a_network_has_the_results_and_gradients_of_the_cpu() {
    accelerator::load();
    let (input, weight) = (random(&[6, 16]), random(&[16, 48]) * 0.2);
    let run = |device: Device| {
        let weight = weight.to_device(device).copy().set_requires_grad(true);
        let qkv = input.to_device(device).mm(&weight).view([1, 6, 3, 2, 8]).permute([2, 0, 3, 1, 4]);
        let [q, k, v] = [0, 1, 2].map(|part| qkv.select(0, part));
        let out = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, true, 0.3, false);
        let loss = out.gelu("none").logsumexp([-1_i64], false).sum(Kind::Float);
        loss.backward();
        [loss.detach(), weight.grad()].map(|tensor| tensor.to_device(Device::Cpu))
    };
    for (cpu, device) in run(Device::Cpu).iter().zip(&run(Device::Mps)) {
        let difference = (cpu - device).abs().max().double_value(&[]);
        assert!(difference < 1e-6, "{difference}");
    }
}
