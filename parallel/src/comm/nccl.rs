//! The NCCL backend between GPUs; each rank has its own GPU. Collectives are queued on a stream, ordered with
//! torch's own operations, and the host does not block.

use std::time::Duration;

use parallel_sys::c10d::{Reduction, Store};
use parallel_sys::nccl::{self, Nccl, UniqueId};
use tch::Tensor;

use super::{Backend, Work};
use crate::SysError;

/// A group of ranks connected by NCCL.
#[derive(Debug)]
pub struct NcclGroup {
    nccl: Nccl,
}

impl NcclGroup {
    /// Joins the group `name`, which its ranks find through the store, with `rank_and_size` and the
    /// GPU `device`.
    pub fn join(
        store: &Store,
        name: &str,
        rank_and_size: [usize; 2],
        device: usize,
        timeout: Duration,
    ) -> Result<Self, SysError> {
        let stream = nccl::open_stream(device)?;
        let [rank, size] = rank_and_size;
        let key = format!("nccl/{name}");
        if rank == 0 {
            store.set(&key, &nccl::unique_id()?)?;
        }

        let invalid_id = |bytes: Vec<u8>| SysError::Nccl {
            call: "ncclCommInitRank".to_owned(),
            problem: format!(
                "the id of rank 0 has {} bytes: start every rank from the same build",
                bytes.len()
            ),
        };
        let id: UniqueId = store.get(&key, timeout)?.try_into().map_err(invalid_id)?;

        // NCCL waits forever for a missing rank, so the ranks first wait for one another at the store, which
        // has a timeout.
        store.set(&format!("{key}/{rank}"), &[])?;
        (0..size).try_for_each(|other| store.get(&format!("{key}/{other}"), timeout).map(drop))?;
        Ok(Self { nccl: Nccl::join(&id, rank_and_size, stream)? })
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

    fn all_gather_in_place(&mut self, tensor: &Tensor, [rank, size]: [usize; 2]) -> Result<Work, SysError> {
        self.nccl.all_gather(tensor, &super::part(tensor, rank, size)).map(Work::Nccl)
    }

    fn reduce_scatter_in_place(
        &mut self,
        tensor: &Tensor,
        [rank, size]: [usize; 2],
    ) -> Result<Work, SysError> {
        self.nccl.reduce_scatter(&super::part(tensor, rank, size), tensor).map(Work::Nccl)
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
