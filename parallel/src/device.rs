//! Copies from the host to the device of a model.

use parallel_sys::dispatch::{self, Value};
use tch::{Device, Tensor, kind::Element};

/// Copies `values` to a tensor `[len]` on `device`. A GPU copies from pinned memory, and the host does not
/// wait for the copy.
///
/// Code outside this function makes no tensor from host values, so that every tensor is placed on purpose; a
/// test of the sources checks this.
pub fn upload<T: Element>(values: &[T], device: Device) -> Tensor {
    let host = Tensor::from_slice(values);
    match device {
        Device::Cpu => host,
        Device::Cuda(_) => pinned(&host).to_device_(device, host.kind(), true, false),
        _ => host.to_device(device),
    }
}

/// Copies a tensor to pinned memory. `Tensor::pin_memory` passes a device, and libtorch warns at every call
/// that this argument is deprecated.
fn pinned(host: &Tensor) -> Tensor {
    let mut copies = dispatch::call_tensors("aten::pin_memory", "", &[Value::Tensor(host), Value::None])
        .expect("a machine with a GPU has pinned memory");
    copies.pop().expect("the copy")
}
