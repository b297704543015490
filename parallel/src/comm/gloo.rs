//! The Gloo backend over TCP, used between hosts and wherever shared memory is not used. Gloo's own threads
//! do the work.

use std::time::Duration;

use parallel_sys::c10d::{Gloo, Reduction, Store};
use tch::Tensor;

use super::{Backend, Work};
use crate::SysError;

/// A group of ranks connected by Gloo over TCP.
#[derive(Debug)]
pub struct GlooGroup {
    gloo: Gloo,
    size: usize,
}

impl GlooGroup {
    /// Joins the group `name`, which its ranks find through the store, with `rank_and_size`.
    pub fn join(
        store: &Store,
        name: &str,
        interface: &str,
        rank_and_size: [usize; 2],
        timeout: Duration,
    ) -> Result<Self, SysError> {
        Ok(Self { gloo: Gloo::join(store, name, interface, rank_and_size, timeout)?, size: rank_and_size[1] })
    }
}

impl Backend for GlooGroup {
    fn name(&self) -> &'static str {
        "gloo"
    }

    fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<Work, SysError> {
        self.gloo.all_reduce(tensor, reduction).map(Work::Gloo)
    }

    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Work, SysError> {
        self.gloo.all_gather(output, input).map(Work::Gloo)
    }

    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Work, SysError> {
        // c10d's own reduce-scatter all-reduces the full input and keeps one chunk, which sends twice as many
        // bytes.
        let rows = output.size()[0];
        let counts = vec![rows; self.size];
        let refused = |error: tch::TchError| SysError::Torch {
            call: "reduce_scatter".to_owned(),
            message: error.to_string(),
        };
        let chunks = input.f_empty_like().map_err(refused)?;
        let work = self.gloo.all_to_all(&chunks, input, [&counts, &counts])?;
        Ok(Work::AllToAllThenSum {
            work,
            chunks: chunks.unflatten(0, [self.size as i64, rows]),
            output: output.shallow_clone(),
        })
    }

    fn all_to_all(&mut self, output: &Tensor, input: &Tensor, counts: [&[i64]; 2]) -> Result<Work, SysError> {
        self.gloo.all_to_all(output, input, counts).map(Work::Gloo)
    }

    fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<Work, SysError> {
        self.gloo.broadcast(tensor, root).map(Work::Gloo)
    }

    fn barrier(&mut self) -> Result<(), SysError> {
        self.gloo.barrier()
    }
}
