//! The reward models of a command that scores replies and trains nothing.
//!
//! They read the ids that the policy has read and written, as in training, so they have the tokenizer of the
//! policy. They are in fp32, whatever the policy is, as in training.

use datasets::Tokenizer;
use inference::model_folder::ModelFolder;
use models::config::Config;
use models::scalar_model::ScalarModel;
use tch::{Device, Kind};

use crate::config::{ConfigError, RunConfig};
use crate::model_folder::{self, frozen_options};
use crate::reward_list;

/// The folders of the reward models of a configuration, in the order of their terms.
pub(crate) struct RewardModels(Vec<ModelFolder>);

impl RewardModels {
    /// Finds the folders. Reads no weights.
    pub(crate) fn find(config: &RunConfig) -> anyhow::Result<Self> {
        let folders = reward_list::models(config).into_iter().map(|model| model_folder::find(model.folder));
        Ok(Self(folders.collect::<Result<_, _>>()?))
    }

    /// Refuses models that do not read the ids of a policy with this configuration and tokenizer, and models
    /// that take fewer than `longest` tokens. `fix` says how replies become shorter.
    pub(crate) fn check(
        &self,
        policy: &Config,
        tokenizer: Option<&Tokenizer>,
        longest: usize,
        fix: &str,
    ) -> anyhow::Result<()> {
        for folder in &self.0 {
            let refuse = |problem: String| ConfigError::Argument {
                argument: folder.path().display().to_string(),
                problem,
            };
            let config = folder.config()?;
            let (own, other) = (policy.vocab_size(), config.vocab_size());
            if own != other {
                let problem = format!(
                    "this reward model has a vocabulary of {other} tokens, and the policy {own}: take one of \
                     the same base"
                );
                return Err(refuse(problem).into());
            }
            if let Some(difference) = difference(tokenizer, folder)? {
                let problem = format!(
                    "this reward model has another tokenizer than the policy, whose ids it reads: \
                     {difference}; take one of the same base"
                );
                return Err(refuse(problem).into());
            }
            config.check_reply("the longest prompt with its reply", longest).map_err(|_| {
                refuse(format!(
                    "this reward model does not take the {longest} tokens of the longest prompt with its \
                     reply: {fix}"
                ))
            })?;
        }
        Ok(())
    }

    /// Loads the models.
    pub(crate) fn load(&self, device: Device) -> Result<Vec<ScalarModel>, models::Error> {
        let options = frozen_options(Kind::Float, device);
        self.0.iter().map(|folder| folder.scalar_model(&options)).collect()
    }
}

/// How the tokenizer of a folder differs from that of the policy. A folder without a tokenizer cannot be
/// compared.
fn difference(own: Option<&Tokenizer>, folder: &ModelFolder) -> Result<Option<String>, datasets::Error> {
    let path = folder.tokenizer_path();
    match own.filter(|_| path.join("tokenizer.json").exists()) {
        Some(own) => Ok(own.difference(&Tokenizer::from_folder(path)?)),
        None => Ok(None),
    }
}
