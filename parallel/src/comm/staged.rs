//! Collectives of a device that has no communication library of its own: its tensors go through host memory.
//!
//! A tensor is copied to the host, the backend for CPU tensors moves its bytes, and the result is copied back
//! when the caller waits for the work.

use parallel_sys::c10d::Reduction;
use tch::{Device, Tensor};

use super::{Backend, Work};
use crate::SysError;

/// A backend for the tensors of a device, over a backend for CPU tensors.
#[derive(Debug)]
pub struct HostStaged {
    host: Box<dyn Backend>,
    /// The rank of this process in the group.
    rank: usize,
}

impl HostStaged {
    /// Stages tensors for `host`, in which this process has the rank `rank`.
    pub fn new(host: Box<dyn Backend>, rank: usize) -> Self {
        Self { host, rank }
    }
}

fn to_host(tensor: &Tensor) -> Tensor {
    tensor.to_device(Device::Cpu)
}

fn empty_on_host(tensor: &Tensor) -> Tensor {
    Tensor::empty(tensor.size(), (tensor.kind(), Device::Cpu))
}

/// The work on the host copies `inputs` of tensors. If `output` is given, its first tensor, in host memory,
/// is copied to the second one at the end.
fn staged(work: Work, inputs: Vec<Tensor>, output: Option<(Tensor, &Tensor)>) -> Work {
    let output = output.map(|(host, tensor)| (host, tensor.shallow_clone()));
    Work::Staged { work: Box::new(work), inputs, output }
}

impl Backend for HostStaged {
    fn name(&self) -> &'static str {
        self.host.name()
    }

    fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<Work, SysError> {
        let host = to_host(tensor);
        let work = self.host.all_reduce(&host, reduction)?;
        Ok(staged(work, Vec::new(), Some((host, tensor))))
    }

    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Work, SysError> {
        let (host, input) = (empty_on_host(output), to_host(input));
        let work = self.host.all_gather(&host, &input)?;
        Ok(staged(work, vec![input], Some((host, output))))
    }

    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Work, SysError> {
        let (host, input) = (empty_on_host(output), to_host(input));
        let work = self.host.reduce_scatter(&host, &input)?;
        Ok(staged(work, vec![input], Some((host, output))))
    }

    fn all_to_all(&mut self, output: &Tensor, input: &Tensor, counts: [&[i64]; 2]) -> Result<Work, SysError> {
        let (host, input) = (empty_on_host(output), to_host(input));
        let work = self.host.all_to_all(&host, &input, counts)?;
        Ok(staged(work, vec![input], Some((host, output))))
    }

    fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<Work, SysError> {
        if self.rank == root {
            let host = to_host(tensor);
            return Ok(staged(self.host.broadcast(&host, root)?, vec![host], None));
        }
        let host = empty_on_host(tensor);
        let work = self.host.broadcast(&host, root)?;
        Ok(staged(work, Vec::new(), Some((host, tensor))))
    }

    fn send_or_recv(&mut self, tensor: &Tensor) -> Result<Work, SysError> {
        if self.rank == 0 {
            let host = to_host(tensor);
            return Ok(staged(self.host.send_or_recv(&host)?, vec![host], None));
        }
        let host = empty_on_host(tensor);
        let work = self.host.send_or_recv(&host)?;
        Ok(staged(work, Vec::new(), Some((host, tensor))))
    }

    fn barrier(&mut self) -> Result<(), SysError> {
        self.host.barrier()
    }
}
