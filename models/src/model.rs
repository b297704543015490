//! A decoder with a head on top: what language models and models with one scalar per token have in common.

use std::marker::PhantomData;
use std::sync::Arc;

use parallel::residency::WeightStore;
use parallel::{Parameter, PipelineStages, Segmented};
use tch::{Device, Kind, Tensor};

use crate::batch::Batch;
use crate::config::Config;
use crate::decoder::Decoder;

/// A decoder with the head `H`: [`CausalLm`](crate::causal_lm::CausalLm) or
/// [`ScalarModel`](crate::scalar_model::ScalarModel). The weight of the head lies in the decoder.
#[derive(Debug)]
pub struct Model<H> {
    pub(crate) decoder: Decoder,
    head: PhantomData<H>,
}

impl<H> Model<H> {
    pub(crate) fn new(decoder: Decoder) -> Self {
        Self { decoder, head: PhantomData }
    }

    /// The trunk.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The device of the parameters.
    pub fn device(&self) -> Device {
        self.decoder.device()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        self.decoder.config()
    }
}

impl<H> Segmented for Model<H> {
    type Context = Batch;

    fn num_segments(&self) -> usize {
        self.decoder.num_segments()
    }

    fn forward_segment(
        &self,
        index: usize,
        hidden: Option<&Tensor>,
        context: &Batch,
    ) -> Result<Tensor, parallel::Error> {
        self.decoder.forward_segment(index, hidden, context)
    }

    fn pipeline(&self) -> Option<&PipelineStages> {
        self.decoder.pipeline()
    }

    fn weight_store(&self) -> Option<&Arc<dyn WeightStore>> {
        self.decoder.weight_store()
    }

    fn hidden_spec(&self, context: &Batch) -> (Vec<i64>, (Kind, Device)) {
        self.decoder.hidden_spec(context)
    }

    fn forward_all_no_grad(&self, contexts: &[&Batch]) -> Result<Vec<Tensor>, parallel::Error> {
        self.decoder.forward_all_no_grad(contexts)
    }

    fn segment_parameters(&self, index: usize) -> Vec<usize> {
        self.decoder.segment_parameters(index)
    }

    fn head_parameters(&self) -> Vec<usize> {
        self.decoder.head_parameters()
    }

    fn parameters(&self) -> &[Parameter] {
        self.decoder.parameters()
    }
}
