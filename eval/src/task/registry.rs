//! The tasks that can be named: those in the program, and those of folders that the user gives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::definition::{Group, Task};
use super::embedded::TASK_FILES;
use super::file::{TaskFile, parse, wrong_file};
use crate::Error;

/// The most levels of groups within groups.
const DEEPEST: usize = 16;

/// All tasks and groups by name.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    tasks: BTreeMap<String, Task>,
    groups: BTreeMap<String, Group>,
    /// The names in the order of their files.
    order: Vec<String>,
}

/// The tasks that a list of names means.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// The tasks, each once, in the order of the names.
    pub tasks: Vec<Task>,
    /// The groups whose tasks are all selected, outer ones after inner ones, each with the names of its
    /// tasks.
    pub groups: Vec<(Group, Vec<String>)>,
}

impl Registry {
    /// The tasks of the program.
    pub fn embedded() -> Result<Self, Error> {
        let mut registry = Self::default();
        for (name, text) in TASK_FILES {
            let path = Path::new("built-in").join(name);
            registry.add(parse(text, &path)?, &path)?;
        }
        Ok(registry)
    }

    /// Adds the `.toml` files of a folder, or one file. A name that exists already is an error.
    pub fn add_path(&mut self, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        if !path.is_dir() {
            return self.add(TaskFile::read(path)?, path);
        }
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file.extension().is_some_and(|extension| extension == "toml") {
                files.push(file);
            }
        }
        if files.is_empty() {
            let problem = "it holds no .toml file".to_owned();
            return Err(wrong_file(path, problem, "give a folder of task files"));
        }
        files.sort();
        files.iter().try_for_each(|file| self.add(TaskFile::read(file)?, file))
    }

    fn add(&mut self, file: TaskFile, path: &Path) -> Result<(), Error> {
        let names =
            file.tasks.iter().map(|task| &task.task).chain(file.groups.iter().map(|group| &group.group));
        let names: Vec<String> = names.cloned().collect();
        for name in names {
            if self.order.contains(&name) {
                let problem = format!("the name {name} is taken");
                return Err(wrong_file(path, problem, "choose another name"));
            }
            self.order.push(name);
        }
        self.tasks.extend(file.tasks.into_iter().map(|task| (task.task.clone(), task)));
        self.groups.extend(file.groups.into_iter().map(|group| (group.group.clone(), group)));
        self.note_configurations();
        Ok(())
    }

    /// Notes which tasks ask one of several configurations of their repository.
    fn note_configurations(&mut self) {
        let mut configurations: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for source in self.tasks.values().map(|task| &task.dataset) {
            if let (Some(hub), Some(config)) = (&source.hub, &source.config) {
                configurations.entry(hub.clone()).or_default().insert(config.clone());
            }
        }
        for source in self.tasks.values_mut().map(|task| &mut task.dataset) {
            let of_hub = source.hub.as_ref().and_then(|hub| configurations.get(hub));
            source.is_one_of_several = source.config.is_some() && of_hub.is_some_and(|known| known.len() > 1);
        }
    }

    /// The names of all tasks and groups, in the order of their files.
    pub fn names(&self) -> &[String] {
        &self.order
    }

    /// A task by its name.
    pub fn task(&self, name: &str) -> Option<&Task> {
        self.tasks.get(name)
    }

    /// A group by its name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.get(name)
    }

    /// The tasks that `names` mean: tasks, groups, and patterns with `*`.
    pub fn select<S: AsRef<str>>(&self, names: &[S]) -> Result<Selection, Error> {
        let mut selection = Selection::default();
        for name in names {
            let name = name.as_ref();
            let found = self.matching(name);
            if found.is_empty() {
                return Err(Error::UnknownTask { name: name.to_owned(), near: self.near(name) });
            }
            for name in found {
                self.collect(&name, DEEPEST, &mut selection)?;
            }
        }
        Ok(selection)
    }

    fn matching(&self, name: &str) -> Vec<String> {
        if !name.contains('*') {
            return self.order.iter().filter(|known| *known == name).cloned().collect();
        }
        // A pattern means tasks; the groups of a family would count them twice.
        let tasks = self.order.iter().filter(|known| self.tasks.contains_key(*known));
        tasks.filter(|known| matches(name, known)).cloned().collect()
    }

    /// Adds a task, or the tasks of a group and then the group. Returns the names of the tasks.
    fn collect(&self, name: &str, depth: usize, selection: &mut Selection) -> Result<Vec<String>, Error> {
        if let Some(task) = self.tasks.get(name) {
            if !selection.tasks.iter().any(|held| held.task == name) {
                selection.tasks.push(task.clone());
            }
            return Ok(vec![name.to_owned()]);
        }

        let group = self
            .groups
            .get(name)
            .ok_or_else(|| Error::UnknownTask { name: name.to_owned(), near: self.near(name) })?;
        if depth == 0 {
            return Err(Error::GroupCycle { group: name.to_owned() });
        }
        let mut leaves = Vec::new();
        for member in &group.tasks {
            let found = self.matching(member);
            if found.is_empty() {
                return Err(Error::UnknownTask { name: member.clone(), near: self.near(member) });
            }
            for member in found {
                for leaf in self.collect(&member, depth - 1, selection)? {
                    if !leaves.contains(&leaf) {
                        leaves.push(leaf);
                    }
                }
            }
        }
        if !selection.groups.iter().any(|(held, _)| held.group == name) {
            selection.groups.push((group.clone(), leaves.clone()));
        }
        Ok(leaves)
    }

    /// The names most like `name`, for an error message.
    fn near(&self, name: &str) -> Vec<String> {
        const SHOWN: usize = 3;
        let mut scored: Vec<(f64, &String)> =
            self.order.iter().map(|known| (strsim::jaro_winkler(name, known), known)).collect();
        scored.sort_by(|left, right| right.0.total_cmp(&left.0));
        scored
            .into_iter()
            .take(SHOWN)
            .filter(|(score, _)| *score > 0.6)
            .map(|(_, known)| known.clone())
            .collect()
    }
}

/// Whether a name matches a pattern in which `*` stands for any text.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}
