//! Copies from the host to the device of a model.

use tch::{Device, Tensor, kind::Element};

/// Copies `values` to a tensor `[len]` on `device`. A GPU copies from pinned memory, and the host does not wait
/// for the copy.
///
/// Code outside this function makes no tensor from host values, so that every tensor is placed on purpose; a
/// test of the sources checks this.
pub fn upload<T: Element>(values: &[T], device: Device) -> Tensor {
    let host = Tensor::from_slice(values);
    match device {
        Device::Cpu => host,
        Device::Cuda(_) => host.pin_memory(device).to_device_(device, host.kind(), true, false),
        _ => host.to_device(device),
    }
}
