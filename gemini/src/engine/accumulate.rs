//! Adds up the losses and the gradients of the micro-batches of a step, as they become known.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use parallel::GradientSource;
use parallel::pipeline::StepHandler;
use parallel::residency::ModelPart;
use tch::{Kind, Tensor};

use super::params::{ParamState, Stores, add_grad, add_missing_grads};
use crate::Error;
use crate::reducer::Reducer;

/// The sums of a step. `L` computes the loss of a micro-batch and fails with `E`.
pub(super) struct Accumulation<'a, L, E> {
    loss: L,
    /// The losses, scalars of shape `[1]`. They are read at the end, in one copy, so that a GPU does not wait
    /// after every micro-batch.
    losses: Vec<Tensor>,
    states: &'a mut [ParamState],
    /// For each parameter of the model, its index in `states`; `None` for a frozen parameter.
    state_index: &'a [Option<usize>],
    stores: &'a Stores,
    reducer: Option<&'a mut Reducer>,
    /// The parameters of the head. A tied weight gets gradients from the head and from a segment.
    head: Vec<usize>,
    /// The gradients that a segment has computed for tied weights. They are summed over the micro-batches
    /// before they are added to those of the head, so that the result does not depend on whether the
    /// micro-batches run one after another or segment by segment.
    tied: BTreeMap<usize, TiedGrads>,
    error: PhantomData<E>,
}

/// The gradients that a segment has computed for a tied weight.
#[derive(Default)]
struct TiedGrads {
    /// Their fp32 sum.
    sum: Option<Tensor>,
    count: usize,
}

impl<'a, L, E> Accumulation<'a, L, E> {
    pub(super) fn new(
        (states, state_index): (&'a mut [ParamState], &'a [Option<usize>]),
        stores: &'a Stores,
        reducer: Option<&'a mut Reducer>,
        head: Vec<usize>,
        loss: L,
    ) -> Self {
        let (losses, tied) = (Vec::new(), BTreeMap::new());
        Self { loss, losses, states, state_index, stores, reducer, head, tied, error: PhantomData }
    }

    /// Adds the gradients of tied weights. Returns the losses.
    pub(super) fn finish(mut self) -> Result<Vec<Tensor>, Error> {
        for (param, TiedGrads { sum, count }) in std::mem::take(&mut self.tied) {
            self.add(param, &sum.expect("an entry has a gradient"), count)?;
        }
        Ok(self.losses)
    }

    /// Adds the sum of `count` gradients.
    fn add(&mut self, param: usize, grad: &Tensor, count: usize) -> Result<(), Error> {
        add_grad(&mut self.states[param], param, self.stores, grad)?;
        match &mut self.reducer {
            Some(reducer) => (0..count).try_for_each(|_| reducer.on_gradient_ready(param)),
            None => Ok(()),
        }
    }
}

impl<L, E> StepHandler for Accumulation<'_, L, E>
where
    L: FnMut(usize, &Tensor) -> Result<Tensor, E>,
    E: From<Error> + From<parallel::Error>,
{
    type Error = E;

    fn loss(&mut self, micro_batch: usize, hidden: &Tensor) -> Result<Tensor, E> {
        let loss = (self.loss)(micro_batch, hidden)?;
        self.losses.push(loss.detach().view([1]));
        Ok(loss)
    }

    fn on_gradient(&mut self, source: GradientSource, index: usize, grad: Tensor) -> Result<(), E> {
        let Some(param) = self.state_index[index] else { return Ok(()) };
        if source == GradientSource::Segment && self.head.contains(&index) {
            self.tied.entry(param).or_default().add(&grad);
            return Ok(());
        }
        Ok(self.add(param, &grad, 1)?)
    }

    fn on_part_done(&mut self, part: ModelPart) -> Result<(), E> {
        let Some(reducer) = &mut self.reducer else { return Ok(()) };
        for chunk in reducer.due_after(part) {
            add_missing_grads(self.states, self.stores, chunk)?;
            reducer.reduce(chunk)?;
        }
        Ok(())
    }
}

impl TiedGrads {
    fn add(&mut self, grad: &Tensor) {
        self.count += 1;
        match &mut self.sum {
            Some(sum) => drop(sum.g_add_(grad)),
            empty => *empty = Some(grad.to_kind(Kind::Float).contiguous()),
        }
    }
}
