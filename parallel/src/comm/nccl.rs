//! NCCL between GPUs, each rank with one of its own. What is queued is done in order with what torch computes, and nobody waits for it.

use std::time::Duration;

use parallel_sys::c10d::{Reduction, Store};
use parallel_sys::nccl::{self, Nccl, UniqueId};
use tch::Tensor;

use super::{Backend, Work};
use crate::SysError;

/// A group over NCCL.
#[derive(Debug)]
pub struct NcclGroup {
    nccl: Nccl,
}

impl NcclGroup {
    /// Joins the group `name`, which its ranks find at the store, as `place = [rank, size]` with the GPU `device`.
    pub fn join(
        store: &Store,
        name: &str,
        place: [usize; 2],
        device: usize,
        timeout: Duration,
    ) -> Result<Self, SysError> {
        let stream = nccl::open_stream(device)?;
        let [rank, size] = place;
        let key = format!("nccl/{name}");
        if rank == 0 {
            store.set(&key, &nccl::unique_id()?)?;
        }
        let wrong = |bytes: Vec<u8>| SysError::Nccl {
            call: "ncclCommInitRank".to_owned(),
            problem: format!(
                "the id of rank 0 has {} bytes: start every rank from the same build",
                bytes.len()
            ),
        };
        let id: UniqueId = store.get(&key, timeout)?.try_into().map_err(wrong)?;
        // NCCL waits for ever for who does not come; the store does not.
        store.set(&format!("{key}/{rank}"), &[])?;
        (0..size).try_for_each(|other| store.get(&format!("{key}/{other}"), timeout).map(drop))?;
        Ok(Self { nccl: Nccl::join(&id, place, stream)? })
    }
}

impl Backend for NcclGroup {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<Work, SysError> {
        self.nccl.all_reduce(tensor, reduction).map(Work::Nccl)
    }

    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Work, SysError> {
        self.nccl.all_gather(output, input).map(Work::Nccl)
    }

    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Work, SysError> {
        self.nccl.reduce_scatter(output, input).map(Work::Nccl)
    }

    fn all_to_all(&mut self, output: &Tensor, input: &Tensor, counts: [&[i64]; 2]) -> Result<Work, SysError> {
        self.nccl.all_to_all(output, input, counts).map(Work::Nccl)
    }

    fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<Work, SysError> {
        self.nccl.broadcast(tensor, root).map(Work::Nccl)
    }

    fn barrier(&mut self) -> Result<(), SysError> {
        self.nccl.barrier()
    }
}
