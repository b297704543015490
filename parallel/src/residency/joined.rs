//! The weights of a model that shares those of another model and has more of its own.
//!
//! ```text
//!   weights of the model    embedding | q_proj | q_proj.lora_A | q_proj.lora_B | ...
//!   shared                  0           1                                        ...
//!   own                                          0               1               ...
//! ```
//! Several models may share the same weights, which are frozen. Each of them fetches its part of both stores.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use tch::Tensor;

use super::{Access, ModelPart, Residency, WeightSource, WeightStore, WeightUpdate, Weights};
use crate::Error;
use crate::comm::PendingCollective;

/// The store that holds a weight, and the weight's index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The store of the other model.
    Shared(usize),
    /// The store of this model alone.
    Own(usize),
}

/// Two stores as one.
#[derive(Debug)]
pub struct JoinedStore {
    shared: Arc<dyn WeightStore>,
    own: Arc<dyn WeightStore>,
    /// The origin of each weight of the model.
    origins: Vec<Origin>,
    parts: HashMap<ModelPart, Indices>,
}

/// Weights by their indices in the two stores.
#[derive(Debug, Default)]
struct Indices {
    shared: Vec<usize>,
    own: Vec<usize>,
}

impl JoinedStore {
    /// The weights of a model, given by their origins. `parts` lists the weights of each part of the model.
    pub fn new(
        shared: Arc<dyn WeightStore>,
        own: Arc<dyn WeightStore>,
        origins: Vec<Origin>,
        parts: Vec<(ModelPart, Vec<usize>)>,
    ) -> Self {
        let parts =
            parts.into_iter().map(|(part, weights)| (part, Indices::of(&origins, &weights))).collect();
        Self { shared, own, origins, parts }
    }

    /// Runs `run` with the weights of each store that are among `weights`.
    fn with_indices<T>(&self, weights: Weights<'_>, run: impl FnOnce(&Indices) -> T) -> T {
        match weights {
            Weights::Parameter(index) => run(&Indices::of(&self.origins, &[index])),
            Weights::Parameters(indices) => run(&Indices::of(&self.origins, indices)),
            Weights::Part(part) => match self.parts.get(&part) {
                Some(indices) => run(indices),
                None => run(&Indices::default()),
            },
        }
    }

    /// The indices in the own store of weights that are all there.
    fn own_indices(&self, weights: Weights<'_>) -> Vec<usize> {
        self.with_indices(weights, |Indices { shared, own }| {
            assert!(shared.is_empty(), "shared weights are frozen");
            own.clone()
        })
    }

    fn of(&self, index: usize) -> (&dyn WeightStore, usize) {
        match self.origins[index] {
            Origin::Shared(index) => (&*self.shared, index),
            Origin::Own(index) => (&*self.own, index),
        }
    }
}

impl Indices {
    fn of(origins: &[Origin], weights: &[usize]) -> Self {
        let mut indices = Self::default();
        for &weight in weights {
            match origins[weight] {
                Origin::Shared(index) => indices.shared.push(index),
                Origin::Own(index) => indices.own.push(index),
            }
        }
        indices
    }

    fn shared(&self) -> Weights<'_> {
        Weights::Parameters(&self.shared)
    }

    fn own(&self) -> Weights<'_> {
        Weights::Parameters(&self.own)
    }
}

impl Residency for JoinedStore {
    fn fetch(&self, weights: Weights<'_>, access: Access) -> Result<(), Error> {
        self.with_indices(weights, |indices| {
            self.shared.fetch(indices.shared(), access)?;
            self.own.fetch(indices.own(), access).inspect_err(|_| self.shared.release(indices.shared()))
        })
    }

    fn release(&self, weights: Weights<'_>) {
        self.with_indices(weights, |indices| {
            self.own.release(indices.own());
            self.shared.release(indices.shared());
        });
    }

    fn prefetch(&self, weights: Weights<'_>) -> Result<(), Error> {
        self.with_indices(weights, |indices| {
            self.shared.prefetch(indices.shared())?;
            self.own.prefetch(indices.own()).inspect_err(|_| self.shared.release(indices.shared()))
        })
    }

    fn is_limited(&self) -> bool {
        self.shared.is_limited() || self.own.is_limited()
    }

    fn is_sharded(&self) -> bool {
        self.shared.is_sharded() || self.own.is_sharded()
    }

    fn max_over_ranks(&self, count: usize) -> Result<usize, Error> {
        self.shared.max_over_ranks(count)
    }
}

impl WeightStore for JoinedStore {
    fn tensor(&self, index: usize) -> Tensor {
        let (store, index) = self.of(index);
        store.tensor(index)
    }

    fn load(&self, index: usize, source: WeightSource, keep: bool) -> Result<(), Error> {
        let (store, index) = self.of(index);
        store.load(index, source, keep)
    }

    fn own_elements(&self, index: usize) -> Range<usize> {
        let (store, index) = self.of(index);
        store.own_elements(index)
    }

    fn defers_update(&self, weights: Weights<'_>, bytes: usize) -> bool {
        let indices = self.own_indices(weights);
        let beside = self.shared.largest_part_bytes();
        self.own.defers_update(Weights::Parameters(&indices), bytes + beside)
    }

    fn defer_update(&self, indices: Vec<usize>, update: WeightUpdate) {
        self.own.defer_update(self.own_indices(Weights::Parameters(&indices)), update);
    }

    fn room_for_tensors(&self, beside: usize) -> Option<usize> {
        self.own.room_for_tensors(beside + self.shared.largest_part_bytes())
    }

    fn largest_part_bytes(&self) -> usize {
        self.shared.largest_part_bytes() + self.own.largest_part_bytes()
    }

    fn finish_updates(&self) -> Result<(), Error> {
        self.own.finish_updates()
    }

    fn start_all_gather(&self, weights: Weights<'_>) -> Result<Vec<PendingCollective>, Error> {
        self.own.start_all_gather(Weights::Parameters(&self.own_indices(weights)))
    }
}
