//! The weights of a model in a [`ChunkStore`]: loaded, fetched for a part of the model, gathered if they are
//! sharded. DeepSpeed: `PartitionedParameterCoordinator`; FSDP: `FlatParamHandle`.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};

use parallel::comm::PendingCollective;
use parallel::residency::{Access, HeldWeights, Residency, WeightSource, WeightStore, WeightUpdate, Weights};
use tch::Tensor;

use super::{ChunkStore, DeferredUpdate, ShardedChunk};
use crate::Error;
use crate::chunk::manager::ChunkId;
use crate::chunk::state::ChunkState;
use crate::error::residency_error;
use crate::replicas::digest;
use crate::zero::{Kept, Sharding};

impl ChunkStore {
    /// The chunks that hold `weights`, in order.
    fn chunks_of(&self, weights: Weights<'_>) -> BTreeSet<usize> {
        let params = match &weights {
            Weights::Parameter(param) => std::slice::from_ref(param),
            Weights::Parameters(params) => params,
            Weights::Part(part) => self.parts.get(part).map_or(&[][..], Vec::as_slice),
        };
        params.iter().map(|&param| self.layout.slot_of(param).0).collect()
    }

    fn pieces_of(&self, chunks: &BTreeSet<usize>) -> Vec<ChunkId> {
        chunks.iter().flat_map(|&chunk| self.pieces[chunk].all()).collect()
    }

    /// The division of a store that keeps only this rank's shards.
    pub(super) fn own_shards(&self) -> Option<&Sharding> {
        self.sharding.as_ref().filter(|sharding| sharding.kept == Kept::OwnShard)
    }

    /// Runs the deferred updates that are due. An update uses weights itself, so the list is not locked.
    fn run_updates(&self, is_due: impl Fn(&BTreeSet<usize>) -> bool) -> Result<(), parallel::Error> {
        loop {
            let mut updates = self.lock_updates();
            let Some(due) = updates.iter().position(|update| is_due(&update.chunks)) else {
                return Ok(());
            };
            let DeferredUpdate { params, run, .. } = updates.remove(due);
            drop(updates);
            let _weights = HeldWeights::fetch(Some(self), Weights::Parameters(&params), Access::Write)?;
            run()?;
        }
    }

    fn lock_updates(&self) -> MutexGuard<'_, Vec<DeferredUpdate>> {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_sharded(&self) -> MutexGuard<'_, Vec<ShardedChunk>> {
        self.sharded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to gather chunk `chunk`, unless somebody holds it already.
    fn start_gathering(
        &self,
        chunk: usize,
        sharded: &mut ShardedChunk,
        sharding: &Sharding,
    ) -> Result<(), Error> {
        if sharded.state != ChunkState::Free {
            return Ok(());
        }
        self.fetch_chunk(chunk, Access::Read)?;
        let group = sharding.group(self.layout.chunks()[chunk].group);
        match group.start_all_gather_in_place(&self.chunk(chunk)) {
            Ok(gathering) => sharded.gathering = Some(gathering),
            Err(error) => {
                self.release_chunk(chunk);
                return Err(error.into());
            }
        }
        sharded.is_whole = true;
        sharded.state.enter(ChunkState::Hold);
        Ok(())
    }

    /// Fetches chunks of sharded weights.
    fn fetch_sharded(
        &self,
        chunks: &BTreeSet<usize>,
        access: Access,
        sharding: &Sharding,
    ) -> Result<(), Error> {
        let mut all = self.lock_sharded();
        if access != Access::Read {
            for &chunk in chunks {
                self.fetch_shard(chunk, access)?;
                all[chunk].state.enter(ChunkState::Compute);
                all[chunk].holders += 1;
            }
            return Ok(());
        }

        for &chunk in chunks {
            self.start_gathering(chunk, &mut all[chunk], sharding)?;
            all[chunk].holders += 1;
        }
        for &chunk in chunks {
            if let Some(gathering) = all[chunk].gathering.take() {
                gathering.wait()?;
            }
            if all[chunk].state == ChunkState::Hold {
                all[chunk].state.enter(ChunkState::Compute);
            }
        }
        Ok(())
    }

    /// Gives the memory of gathered chunks back that nobody holds any more.
    fn release_sharded(&self, chunks: &BTreeSet<usize>) {
        let mut all = self.lock_sharded();
        for &chunk in chunks {
            let sharded = &mut all[chunk];
            let left = sharded.holders.checked_sub(1);
            sharded.holders = left.expect("a chunk is released as often as it was fetched");
            if sharded.holders > 0 || sharded.state == ChunkState::Free {
                continue;
            }
            // After an error nobody waits for what was gathered ahead. The next collective reports it again.
            let _ = sharded.gathering.take().map(PendingCollective::wait);
            if std::mem::take(&mut sharded.is_whole) {
                self.release_chunk(chunk);
                let _ = self.free_other_shards(chunk);
            } else {
                self.release_shard(chunk);
            }
            sharded.state.enter(ChunkState::Free);
        }
    }

    /// Loads a weight. A chunk stays pinned from its first weight to its last, because until then its values
    /// exist nowhere else.
    fn load_param(&self, param: usize, source: WeightSource, keep: bool) -> Result<(), Error> {
        let chunk = self.layout.slot_of(param).0;
        if self.lock().loading[chunk].is_empty() {
            self.fetch_chunk(chunk, Access::Read)?;
        }
        let target = self.target(param);
        source(&target, 0..target.numel())?;

        let sources = {
            let mut tensors = self.lock();
            let loading = &mut tensors.loading[chunk];
            loading.push((param, keep.then_some(source)));
            if loading.len() < self.layout.chunks()[chunk].params.len() {
                return Ok(());
            }
            std::mem::take(loading)
        };
        let Some(pieces) = self.pieces.get(chunk) else { return Ok(()) };
        if let Some(sharding) = self.own_shards() {
            self.check_replicas(chunk, sharding)?;
        }
        if self.manager.is_limited() {
            let targets: Option<Vec<(Tensor, Range<usize>, WeightSource)>> = sources
                .into_iter()
                .map(|(param, source)| Some((self.target(param), self.kept_elements_of(param), source?)))
                .collect();
            if let Some(targets) = targets {
                let fill = move || {
                    targets.iter().try_for_each(|(target, kept, source)| source(target, kept.clone()))
                };
                self.manager.set_source(pieces.own, Box::new(fill));
            } else {
                self.manager.set_changed(pieces.own, self.scratch_place(chunk)?);
            }
        }
        self.release_chunk(chunk);
        self.free_other_shards(chunk)
    }

    /// The elements of parameter `param` that this rank keeps between two uses.
    fn kept_elements_of(&self, param: usize) -> Range<usize> {
        match self.own_shards() {
            Some(_) => self.own_elements_of(param),
            None => 0..self.param(param).numel(),
        }
    }

    /// Checks that all ranks have loaded the same values into a chunk, of which each keeps a shard.
    fn check_replicas(&self, chunk: usize, sharding: &Sharding) -> Result<(), Error> {
        let group = sharding.group(self.layout.chunks()[chunk].group);
        let digests = group.all_gather_object(vec![digest(&self.chunk(chunk))])?;
        match digests.iter().position(|&digest| digest != digests[group.rank()]) {
            None => Ok(()),
            Some(other) => {
                Err(Error::ReplicasDiffer { rank: group.ranks()[group.rank()], other: group.ranks()[other] })
            }
        }
    }
}

impl Residency for ChunkStore {
    fn fetch(&self, weights: Weights<'_>, access: Access) -> Result<(), parallel::Error> {
        if self.pieces.is_empty() {
            return Ok(());
        }
        let chunks = self.chunks_of(weights);
        self.run_updates(|updated| !updated.is_disjoint(&chunks))?;
        let fetched = match self.own_shards() {
            Some(sharding) => self.fetch_sharded(&chunks, access, sharding),
            None => self.manager.fetch(&self.pieces_of(&chunks), access == Access::Write),
        };
        fetched.map_err(residency_error)
    }

    fn release(&self, weights: Weights<'_>) {
        if self.own_shards().is_some() {
            self.release_sharded(&self.chunks_of(weights));
        } else if !self.pieces.is_empty() {
            self.manager.release(&self.pieces_of(&self.chunks_of(weights)));
        }
    }

    fn prefetch(&self, weights: Weights<'_>) -> Result<(), parallel::Error> {
        let Some(sharding) = self.own_shards() else { return Ok(()) };
        let chunks = self.chunks_of(weights);
        self.run_updates(|updated| !updated.is_disjoint(&chunks))?;
        let mut all = self.lock_sharded();
        for chunk in chunks {
            // Under a budget there may be room for one part of the model only, on this rank or on another.
            if !self.manager.is_limited() {
                self.start_gathering(chunk, &mut all[chunk], sharding).map_err(residency_error)?;
            }
            all[chunk].holders += 1;
        }
        Ok(())
    }

    fn is_limited(&self) -> bool {
        self.manager.is_limited() && !self.pieces.is_empty()
    }

    fn is_sharded(&self) -> bool {
        self.own_shards().is_some()
    }

    fn max_over_ranks(&self, count: usize) -> Result<usize, parallel::Error> {
        let Some(sharding) = self.own_shards() else { return Ok(count) };
        let [most] = sharding.everyone().all_reduce_max([count as f64])?;
        Ok(most as usize)
    }
}

impl WeightStore for ChunkStore {
    fn tensor(&self, index: usize) -> Tensor {
        self.param(index)
    }

    fn load(&self, index: usize, source: WeightSource, keep: bool) -> Result<(), parallel::Error> {
        self.load_param(index, source, keep).map_err(residency_error)
    }

    fn own_elements(&self, index: usize) -> Range<usize> {
        self.own_elements_of(index)
    }

    fn defers_update(&self, weights: Weights<'_>, bytes: usize) -> bool {
        // Ranks that exchange updated weights do so in the same order, at the end of the step.
        let exchanges = self.sharding.as_ref().is_some_and(|sharding| sharding.kept == Kept::Whole);
        if !self.is_limited() || exchanges {
            return false;
        }
        // A part of sharded weights is held while the next part of the model is updated.
        let held = if self.own_shards().is_some() { self.largest_part_bytes() } else { 0 };
        let needed = bytes + held;
        let fits = |chunk: usize| self.manager.has_room_at_next_use(self.pieces[chunk].own, needed);
        self.chunks_of(weights).into_iter().all(fits)
    }

    fn defer_update(&self, params: Vec<usize>, update: WeightUpdate) {
        let chunks = self.chunks_of(Weights::Parameters(&params));
        self.lock_updates().push(DeferredUpdate { params, chunks, run: update });
    }

    fn room_for_tensors(&self, beside: usize) -> Option<usize> {
        self.manager.room_beside(self.largest_part_bytes() + beside)
    }

    fn largest_part_bytes(&self) -> usize {
        let chunk_bytes = |chunk: usize| {
            let chunk = self.chunk(chunk);
            chunk.numel() * chunk.kind().elt_size_in_bytes()
        };
        let parts = self.parts.keys().map(|&part| self.chunks_of(Weights::Part(part)));
        parts.map(|chunks| chunks.into_iter().map(chunk_bytes).sum()).max().unwrap_or(0)
    }

    fn finish_updates(&self) -> Result<(), parallel::Error> {
        self.run_updates(|_| true)
    }

    fn start_all_gather(&self, weights: Weights<'_>) -> Result<Vec<PendingCollective>, parallel::Error> {
        let Some(sharding) = self.sharding.as_ref().filter(|sharding| sharding.kept == Kept::Whole) else {
            return Ok(Vec::new());
        };
        let gather = |chunk: usize| {
            let group = sharding.group(self.layout.chunks()[chunk].group);
            group.start_all_gather_in_place(&self.chunk(chunk))
        };
        self.chunks_of(weights).into_iter().map(gather).collect()
    }
}
