//! What a folder of results of `eval` holds already. A further command adds its models and tasks to it: a
//! folder is one table, in which every model has every task. Answers that are there are not asked for again.

use std::path::{Path, PathBuf};

use inference::remote::is_endpoint;
use serde_json::Value;

use super::model::Candidate;
use super::output::held_settings;
use crate::config::ConfigError;
use crate::config::section::EvalSection;

/// The models, tasks and files of the settings in a folder of results.
pub(crate) struct Held {
    folder: PathBuf,
    /// The name and the place of each model.
    models: Vec<(String, String)>,
    tasks: Vec<String>,
    include_path: Vec<String>,
    train_data: Vec<String>,
}

impl Held {
    /// Reads the settings, if the folder holds results.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Option<Self>> {
        let Some(settings) = held_settings(folder)? else { return Ok(None) };
        let list = |key: &str| -> Vec<String> {
            let values = settings[key].as_array().into_iter().flatten();
            values.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Ok(Some(Self {
            folder: folder.to_owned(),
            models: list("models").into_iter().zip(list("places")).collect(),
            tasks: list("tasks"),
            include_path: list("include_path"),
            train_data: list("train_data"),
        }))
    }

    /// Puts the tasks of the folder before those of the command, with the files that they need.
    pub(crate) fn add_to(&self, section: &mut EvalSection, train_data: &mut Vec<String>) {
        add(&self.tasks, &mut section.tasks.0);
        add(&self.include_path, &mut section.include_path.0);
        add(&self.train_data, train_data);
    }

    /// Puts the models of the folder before those that the command names. A model that is in both keeps the
    /// name that it has in the folder.
    pub(crate) fn with_models(&self, mut named: Vec<Candidate>) -> anyhow::Result<Vec<Candidate>> {
        let mut all = Vec::with_capacity(self.models.len() + named.len());
        for (name, place) in &self.models {
            let mut candidate = match named.iter().position(|candidate| candidate.place() == *place) {
                Some(index) => named.remove(index),
                None => self.model(name, place)?,
            };
            candidate.name.clone_from(name);
            all.push(candidate);
        }
        for mut candidate in named {
            let is_taken = |all: &[Candidate], name: &str| all.iter().any(|other| other.name == name);
            if is_taken(&all, &candidate.name) {
                candidate.name.clone_from(&candidate.argument);
            }
            if is_taken(&all, &candidate.name) {
                return self.refuse(&format!("it holds another model that is called {}", candidate.name));
            }
            all.push(candidate);
        }
        Ok(all)
    }

    /// A model of the folder that the command does not name. A file in a folder decides no address that is
    /// connected to, with the user's key.
    fn model(&self, name: &str, place: &str) -> anyhow::Result<Candidate> {
        if is_endpoint(place) {
            return self.refuse(&format!("it holds results of {place}: add it to --model"));
        }
        if !Path::new(place).is_dir() {
            return self.refuse(&format!("it holds results of {name}, whose folder {place} is gone"));
        }
        Candidate::of_folder(name.to_owned(), place.into())
    }

    fn refuse<T>(&self, problem: &str) -> anyhow::Result<T> {
        let problem = format!("{problem}, or replace the results with --force");
        Err(ConfigError::BadOut { path: self.folder.clone(), problem }.into())
    }

    /// What the folder brings to a command that names other models or tasks.
    pub(crate) fn note(&self) -> String {
        let models: Vec<&str> = self.models.iter().map(|(name, _)| name.as_str()).collect();
        format!(
            "{} holds results of {} on {}: they stay, and every model is asked every task",
            self.folder.display(),
            models.join(", "),
            self.tasks.join(", ")
        )
    }

    /// Whether the command names all that the folder holds.
    pub(crate) fn is_within(&self, candidates: &[Candidate], section: &EvalSection) -> bool {
        let is_named = |place: &String| candidates.iter().any(|candidate| candidate.place() == *place);
        self.models.iter().all(|(_, place)| is_named(place))
            && self.tasks.iter().all(|task| section.tasks.0.contains(task))
    }
}

/// Puts `held` before what `list` has besides.
fn add<T: PartialEq + Clone>(held: &[T], list: &mut Vec<T>) {
    list.retain(|value| !held.contains(value));
    list.splice(..0, held.iter().cloned());
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::own_folder::{Claim, FolderKind};

    fn held(folder: &Path, places: &[&str]) -> Held {
        let names: Vec<String> = (0..places.len()).map(|index| format!("m{index}")).collect();
        let settings = json!({"models": names, "places": places, "tasks": ["a", "b"]});
        Claim { kind: FolderKind::Eval, names: &[] }.mark(folder).unwrap();
        fs::write(folder.join("settings.json"), settings.to_string()).unwrap();
        Held::read(folder).unwrap().unwrap()
    }

    #[test]
    fn models_and_tasks_of_the_folder_come_first() {
        let folder = tempfile::tempdir().unwrap();
        let models = ["x/m0", "y/m0", "m1"].map(|name| folder.path().join(name));
        for model in &models {
            fs::create_dir_all(model).unwrap();
        }
        let places = models.each_ref().map(|model| model.canonicalize().unwrap().display().to_string());
        let held = held(folder.path(), &[&places[0], &places[2]]);

        let candidate =
            |name: &str, index: usize| Candidate::of_folder(name.to_owned(), models[index].clone()).unwrap();
        // A new model with a name that is taken, and one that is there under another name.
        let all = held.with_models(vec![candidate("m0", 1), candidate("other", 2)]).unwrap();
        let names: Vec<&str> = all.iter().map(|candidate| candidate.name.as_str()).collect();
        assert_eq!(names, ["m0", "m1", &models[1].display().to_string()]);

        let mut section = EvalSection::default();
        section.tasks.0 = vec!["c".to_owned(), "a".to_owned()];
        assert!(!held.is_within(&all, &section));
        held.add_to(&mut section, &mut Vec::new());
        assert_eq!(section.tasks.0, ["a", "b", "c"]);
        assert!(held.is_within(&all, &section));
    }

    #[test]
    fn a_folder_of_results_connects_to_no_address_and_names_what_is_gone() {
        for (place, words) in [("http://127.0.0.1:9/v1#m", "add it to --model"), ("/nowhere/m", "is gone")] {
            let folder = tempfile::tempdir().unwrap();
            let error = held(folder.path(), &[place]).with_models(Vec::new()).err().unwrap().to_string();
            assert!(error.contains(place) && error.contains(words) && error.contains("--force"), "{error}");
        }
    }
}
