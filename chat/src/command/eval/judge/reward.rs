//! A reward model as a judge: the higher score of two conversations wins, read at the last token as in the
//! command `reward`. Equal answers tie, and so do scores that differ by rounding alone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eval::judge::{AnswerSheet, Answers, Comparison, Question, Rewards, compare_rewards};
use eval::request_set::Progress;
use inference::model_folder::ModelFolder;
use inference::session::Session;
use models::scalar_model::ScalarModel;

use crate::evaluation::model::{ModelHost, model_source, reward_digest};
use crate::folder::CONFIGURATION;
use crate::run_reader::read_small;
use crate::session;

/// The conversations that are scored at once.
const BATCH: usize = 16;
/// The most folders from a model up to its run: `checkpoints/step-N`.
const RUN_DEPTH: usize = 2;

/// The score of the answer to one question, or why there is none.
pub(super) type Score = Result<f64, String>;

/// A reward model with its name.
pub(super) struct RewardJudge {
    name: String,
    digest: String,
    /// By how much two of its scores of one conversation can differ, relative to the typical one.
    noise: f64,
    session: Session<ScalarModel>,
}

impl RewardJudge {
    /// Loads the reward model of a folder.
    pub(super) fn load(name: &str, folder: &ModelFolder, host: &ModelHost) -> anyhow::Result<Self> {
        let session = session::scalar_model(&model_source(folder, host))?;
        let max_length = session.model.config().max_positions() as usize;
        let digest = reward_digest(&session, folder, host.weights, max_length)?;
        Ok(Self { name: name.to_owned(), digest, noise: host.weights.dtype.score_noise(), session })
    }

    /// The scores of the conversations of a model, by question.
    pub(super) fn scores(
        &self,
        questions: &[Question],
        sheet: &AnswerSheet,
        on_progress: &mut dyn FnMut(Progress),
    ) -> anyhow::Result<Vec<Score>> {
        let tokens = |(question, replies): (&Question, &Result<Vec<String>, String>)| {
            let replies = replies.as_ref().map_err(Clone::clone)?;
            self.tokens(question, replies)
        };
        let rows: Vec<Result<Vec<i64>, String>> = questions.iter().zip(&sheet.replies).map(tokens).collect();

        let mut scores = Vec::with_capacity(rows.len());
        for chunk in rows.chunks(BATCH) {
            on_progress(progress(&scores, rows.len()));
            let ids: Vec<&[i64]> = chunk.iter().flatten().map(Vec::as_slice).collect();
            let found = match ids.as_slice() {
                [] => Vec::new(),
                ids => Vec::<f32>::try_from(&rlhf::reward::score(&self.session.model, ids)?)?,
            };
            let mut found = found.into_iter().map(f64::from);
            for row in chunk {
                let score = row.as_ref().map(|_| found.next().expect("every row of ids has a score"));
                scores.push(score.map_err(Clone::clone));
            }
        }
        on_progress(progress(&scores, rows.len()));
        Ok(scores)
    }

    fn tokens(&self, question: &Question, replies: &[String]) -> Result<Vec<i64>, String> {
        let messages = question.messages(replies);
        let tokenizer = self.session.tokenizer().map_err(|error| error.to_string())?;
        let ids = tokenizer.encode_scored(&messages).map_err(|error| error.to_string())?;
        let longest = self.session.model.config().max_positions() as usize;
        if ids.len() > longest {
            return Err(format!(
                "the conversation has {} tokens, and the reward model takes {longest}",
                ids.len()
            ));
        }
        Ok(ids)
    }

    /// Compares two models by the scores of their answers to `questions`: the system and the baseline.
    pub(super) fn compare(
        &self,
        questions: &[Question],
        [(system, ours), (baseline, theirs)]: &[(&Answers, Vec<Score>); 2],
        is_training_reward: bool,
    ) -> Result<Comparison, eval::Error> {
        let numbers = |scores: &[Score]| -> Vec<f64> {
            scores.iter().map(|score| score.as_ref().copied().unwrap_or(f64::NAN)).collect()
        };
        let mut comparison = compare_rewards(
            questions,
            &Rewards {
                judge: &self.name,
                digest: &self.digest,
                system,
                system_scores: &numbers(ours),
                baseline,
                baseline_scores: &numbers(theirs),
                is_training_reward,
                noise: self.noise,
            },
        )?;
        for item in &mut comparison.items {
            let problem = ours[item.row].as_ref().err().or(theirs[item.row].as_ref().err());
            if let (Some(problem), Some(order)) = (problem, item.orders.first_mut()) {
                order.failed = Some(problem.clone());
            }
        }
        Ok(comparison)
    }
}

fn progress(scores: &[Score], total: usize) -> Progress {
    let (done, failed) = (scores.len(), scores.iter().filter(|score| score.is_err()).count());
    let share = done as f64 / total.max(1) as f64;
    Progress { done, failed, total, share, share_before: 0.0, elapsed: Duration::ZERO }
}

/// Whether PPO trained the model of a folder on this reward model, as the saved configuration of its run
/// says. `argument` is what the command line calls the reward model.
pub(super) fn is_training_reward(model: &Path, reward: &Path, argument: &str) -> bool {
    let (Ok(model), Ok(reward)) = (model.canonicalize(), reward.canonicalize()) else { return false };
    let mut above = model.ancestors().skip(1).take(RUN_DEPTH);
    let Some(run) = above.find(|folder| folder.join(CONFIGURATION).is_file()) else { return false };
    let text = read_small(&run.join(CONFIGURATION)).unwrap_or_default();
    let Ok(saved) = text.parse::<toml::Table>() else { return false };
    let rewards: Vec<&str> = match saved.get("ppo").and_then(|ppo| ppo.get("reward_model")) {
        Some(toml::Value::String(name)) => vec![name],
        Some(toml::Value::Array(names)) => names.iter().filter_map(toml::Value::as_str).collect(),
        _ => Vec::new(),
    };
    rewards.into_iter().any(|name| name == argument || places(name, run).any(|place| place == reward))
}

/// The folders that a name in the configuration of a run can mean: it is relative to where the run was
/// started, which is here or above the run, and the folder of a run stands for its `final`.
fn places<'a>(name: &'a str, run: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
    let bases = std::iter::once(PathBuf::new()).chain(run.ancestors().map(Path::to_owned));
    let both = move |base: PathBuf| [base.join(name), base.join(name).join("final")];
    bases.flat_map(both).filter_map(|place| place.canonicalize().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_reward_of_a_run_is_found_from_each_of_its_models() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        for folder in
            ["life/ppo/final", "life/ppo/checkpoints/step-2", "life/rm/final", "other/final", "sft/final"]
        {
            fs::create_dir_all(path(folder)).unwrap();
        }
        let is_trained_on =
            |model: &str, reward: &str| is_training_reward(&path(model), &path(reward), reward);
        let save = |run: &str, value: &str| {
            fs::write(path(run).join("run.toml"), format!("[ppo]\nreward_model = {value}\n")).unwrap();
        };
        for value in ["'life/rm/final'", "['other/final', 'life/rm']", "'life/rm'"] {
            save("life/ppo", value);
            assert!(is_trained_on("life/ppo/final", "life/rm/final"), "{value}");
            assert!(is_trained_on("life/ppo/checkpoints/step-2", "life/rm/final"), "{value}");
            assert!(!is_trained_on("sft/final", "life/rm/final"));
        }
        assert!(!is_trained_on("life/ppo/final", "other/final"));
        save("life/ppo", "'owner/name'");
        assert!(is_training_reward(&path("life/ppo/final"), &path("other/final"), "owner/name"));
        fs::write(path("life/ppo/run.toml"), "[ppo").unwrap();
        assert!(!is_trained_on("life/ppo/final", "life/rm/final"));
    }
}
