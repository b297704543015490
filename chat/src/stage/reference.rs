//! The log-probabilities of completions under a reference model, which does not change during a run. They are
//! computed once, before the first step, and kept in the cache of tokenized rows.
//!
//! The initial policy is its own reference until the first step, so no second model is in memory. A resumed
//! run, and one with `[reference] model`, loads the reference, and frees it before the optimizer takes
//! memory.

use std::sync::Arc;

use datasets::Tokenizer;
use datasets::dataset::cache::{Cache, Fingerprint};
use inference::model_folder::ModelFolder;
use models::causal_lm::{CausalLm, LoadOptions};
use models::lora::LoraPlan;
use rlhf::Error;
use rlhf::offline::{self, OfflineLoss};
use rlhf::run::StageRun;

use super::context::{self, StageContext};
use super::rows;
use crate::config::RunConfig;
use crate::console::print_stderr;
use crate::model_folder;

/// Where the reference of a run comes from.
pub(super) struct Reference {
    folder: ModelFolder,
    /// The adapters that the policy begins with, which change nothing at first.
    adapter: Option<Arc<LoraPlan>>,
    /// Whether the policy of this run begins with these weights.
    is_policy: bool,
    cache: Option<Cache>,
}

impl Reference {
    /// Finds the reference of a stage, if its loss has one. `own` is the tokenizer of the policy.
    pub(super) fn find<L: OfflineLoss>(
        config: &RunConfig,
        ctx: &StageContext<'_>,
        loss: &L,
        own: &Tokenizer,
    ) -> anyhow::Result<Option<Self>> {
        if !loss.has_reference() {
            return Ok(None);
        }
        let name = match &config.reference.model {
            Some(name) => name,
            None => config.model_path(ctx.stage)?,
        };
        let folder = model_folder::find(name)?;
        if config.reference.model.is_some() {
            context::check_tokenizer_of(own, "reference", &folder, ctx.groups)?;
        }
        let is_policy = config.reference.model.is_none() && ctx.folder.checkpoint().is_none();
        let adapter = match &config.reference.model {
            Some(_) => None,
            None => context::first_adapter(config, &folder)?,
        };
        Ok(Some(Self { folder, adapter, is_policy, cache: rows::cache(&config.data) }))
    }

    /// The log-probabilities of two sets of rows, from the cache or from the reference. All ranks call this.
    pub(super) fn logprobs<L: OfflineLoss>(
        &self,
        (loss, policy, options): (&L, &CausalLm, &LoadOptions),
        sets: [&[L::Row]; 2],
        config: &RunConfig,
        run: &StageRun<'_>,
    ) -> Result<[Vec<f64>; 2], Error> {
        let groups = &run.groups;
        let counts = sets.map(|rows| offline::reference_sequences(loss, rows).len());
        let fingerprint = match &self.cache {
            Some(_) if groups.is_rank_zero() => Some(self.fingerprint(loss, sets, config)?),
            _ => None,
        };
        let kept = self.cache.as_ref().zip(fingerprint.as_ref());
        let found = kept.and_then(|(cache, fingerprint)| cache.read_numbers(fingerprint));
        let found = found.filter(|numbers| numbers.len() == counts.iter().sum::<usize>());
        let mut numbers: Vec<f64> =
            groups.world().all_gather_object(found.into_iter().flatten().collect())?;

        if numbers.len() != counts.iter().sum::<usize>() {
            // Weights that are not trained would run through other kernels, and a resumed run would round
            // differently from one whose policy was the reference.
            let load = || context::load_trained(&self.folder, self.adapter.as_ref(), config.seed, options);
            let other = if self.is_policy { None } else { Some(load()?) };
            let model = other.as_ref().unwrap_or(policy);
            let size = config.train.micro_batch_size;
            numbers.clear();
            for rows in sets {
                numbers.extend(offline::reference_logprobs(loss, rows, model, size, groups)?);
            }
            if let Some((cache, fingerprint)) = kept
                && let Err(error) = cache.write_numbers(fingerprint, &numbers)
            {
                print_stderr(&format!(
                    "the reference's log-probabilities are not kept for the next start: {error}"
                ));
            }
        }
        let of_eval = numbers.split_off(counts[0]);
        Ok([numbers, of_eval])
    }

    /// A hash of the weights, of the dtype that they are read in, and of the sequences.
    fn fingerprint<L: OfflineLoss>(
        &self,
        loss: &L,
        sets: [&[L::Row]; 2],
        config: &RunConfig,
    ) -> Result<String, Error> {
        let mut fingerprint = Fingerprint::default();
        fingerprint.add(b"log-probabilities under a reference");
        fingerprint.add(config.model.dtype.name().as_bytes());
        if let Some(quantization) = config.model.quantize {
            fingerprint.add(quantization.name().as_bytes());
        }
        let config_folder = self.folder.base().unwrap_or(self.folder.path());
        fingerprint.add_file(&config_folder.join("config.json"))?;
        for path in self.folder.weight_paths()? {
            fingerprint.add_file(&path)?;
        }
        for sequence in sets.into_iter().flat_map(|rows| offline::reference_sequences(loss, rows)) {
            let ids: Vec<u8> = sequence.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            fingerprint.add(&ids);
            fingerprint.add(format!("{} {:?}", sequence.prompt_length, sequence.tail).as_bytes());
        }
        Ok(fingerprint.finish())
    }
}
