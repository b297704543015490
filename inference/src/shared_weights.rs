//! The weights in memory that several models share: a base with its adapters, and the model that guesses
//! tokens for all of them.

use models::causal_lm::{CausalLm, LoadOptions};
use models::scalar_model::ScalarModel;

use crate::Error;
use crate::model_folder::{ModelFolder, Trunk};
use crate::session::Session;

/// The weights that the models to come may share. All of them have one dtype and one device.
#[derive(Debug, Default)]
pub struct SharedWeights {
    trunks: Vec<Trunk>,
    draft: Option<CausalLm>,
}

impl SharedWeights {
    /// Loads the language model of a folder: on weights that are here, or else on new ones, which are
    /// returned to be [kept](Self::keep). `template` is as in [`Session::causal_lm`].
    pub fn causal_lm(
        &self,
        folder: &ModelFolder,
        template: Option<&str>,
        options: &LoadOptions,
    ) -> Result<(Session<CausalLm>, Option<Trunk>), Error> {
        if let Some(trunk) = self.trunk_of(folder)? {
            return Ok((Session::causal_lm_on(trunk, folder, template)?, None));
        }
        let trunk = Trunk::load(folder, options)?;
        Ok((Session::causal_lm_on(&trunk, folder, template)?, Some(trunk)))
    }

    /// Loads the reward model of a folder, on weights that are here if it is an adapter of them.
    pub fn scalar_model(
        &self,
        folder: &ModelFolder,
        template: Option<&str>,
        options: &LoadOptions,
    ) -> Result<Session<ScalarModel>, Error> {
        match self.trunk_of(folder)?.filter(|_| folder.base().is_some()) {
            Some(trunk) => Session::scalar_model_on(trunk, folder, template),
            None => Session::scalar_model(folder, template, options),
        }
    }

    /// Whether weights are here to which the model of `folder` belongs.
    pub fn hold(&self, folder: &ModelFolder) -> Result<bool, models::Error> {
        Ok(self.trunk_of(folder)?.is_some())
    }

    /// Keeps weights for the models to come.
    pub fn keep(&mut self, trunk: Option<Trunk>) {
        self.trunks.extend(trunk);
    }

    /// Gives back the weights to which the model of `folder` does not belong.
    pub fn keep_only_for(&mut self, folder: &ModelFolder) -> Result<(), models::Error> {
        let mut kept = Vec::new();
        for trunk in self.trunks.drain(..) {
            if trunk.holds(folder)? {
                kept.push(trunk);
            }
        }
        self.trunks = kept;
        Ok(())
    }

    /// The model that guesses, if there is one. `load` is called once.
    pub fn draft<E: From<models::Error>>(
        &mut self,
        load: impl FnOnce() -> Result<Option<CausalLm>, E>,
    ) -> Result<Option<CausalLm>, E> {
        if self.draft.is_none() {
            self.draft = load()?;
        }
        Ok(self.draft.as_ref().map(CausalLm::share).transpose()?)
    }

    /// The same model that guesses, for models whose weights are read again.
    pub fn draft_alone(&self) -> Result<Self, models::Error> {
        let draft = self.draft.as_ref().map(CausalLm::share).transpose()?;
        Ok(Self { trunks: Vec::new(), draft })
    }

    fn trunk_of(&self, folder: &ModelFolder) -> Result<Option<&Trunk>, models::Error> {
        for trunk in &self.trunks {
            if trunk.holds(folder)? {
                return Ok(Some(trunk));
            }
        }
        Ok(None)
    }
}
