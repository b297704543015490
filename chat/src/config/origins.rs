//! Where the values of a resolved configuration come from, as comments of the file that a run saves.

use std::collections::BTreeMap;

use super::tree::{Node, Tree};

/// The first line of a saved file.
const TITLE: &str = "# The resolved configuration of this run. A value without a comment is a default.\n";

/// The origin of every value that is no default, by dotted key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins(BTreeMap<String, String>);

/// Where a value comes from does not make a configuration another one.
impl PartialEq for Origins {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Origins {
    /// The origins of the values of a tree.
    pub(super) fn of(tree: &Tree) -> Self {
        let mut origins = Self::default();
        origins.add(tree, "");
        origins
    }

    /// Adds the origins of another configuration, whose keys get `prefix`.
    pub(super) fn extend(&mut self, prefix: &str, other: &Self) {
        self.0.extend(other.0.iter().map(|(key, origin)| (format!("{prefix}{key}"), origin.clone())));
    }

    fn add(&mut self, tree: &Tree, prefix: &str) {
        for (key, entry) in tree {
            let key = format!("{prefix}{key}");
            match &entry.node {
                Node::Table(inner) => self.add(inner, &format!("{key}.")),
                // A line break in a name would end the comment.
                _ => drop(self.0.insert(key, entry.origin.location.place().replace(char::is_control, "?"))),
            }
        }
    }

    /// Adds to each value of a TOML text the origin of its key. A value of several lines gets none.
    pub(super) fn annotate(&self, text: &str) -> String {
        let mut annotated = TITLE.to_owned();
        let mut section = String::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = format!("{name}.");
            }
            annotated.push_str(line);
            let is_whole = toml::from_str::<toml::Table>(line).is_ok_and(|table| table.len() == 1);
            let key = line.split_once(" = ").map(|(key, _)| format!("{section}{key}"));
            if let Some(origin) = key.filter(|_| is_whole).and_then(|key| self.0.get(&key)) {
                annotated.push_str("  # ");
                annotated.push_str(origin);
            }
            annotated.push('\n');
        }
        annotated
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tree;
    use super::*;

    #[test]
    fn every_value_that_was_written_tells_where() {
        let file =
            tree::parse("seed = 3\n[train]\nlr = 1e-4\nbetas = [0.9, 0.95]\n", Path::new("run\n.toml"))
                .unwrap();
        let tree = tree::set(file, "model.path=a # b").unwrap();
        let text = "seed = 3\nout = \"x\"\n\n[model]\npath = \"a # b\"\n\n[train]\nlr = 0.0001\neps = 1e-8\nbetas = [0.9, 0.95]\n";
        let saved = Origins::of(&tree).annotate(text);
        assert_eq!(
            saved,
            format!(
                "{TITLE}seed = 3  # run?.toml:1\nout = \"x\"\n\n[model]\npath = \"a # b\"  # --set\n\n[train]\n\
                 lr = 0.0001  # run?.toml:3\neps = 1e-8\nbetas = [0.9, 0.95]  # run?.toml:4\n"
            )
        );
        assert_eq!(
            toml::from_str::<toml::Table>(&saved).unwrap(),
            toml::from_str::<toml::Table>(text).unwrap()
        );
    }

    #[test]
    fn a_value_of_several_lines_stays_as_it_is() {
        let tree = tree::parse("[tokenizer]\ntemplate = \"a\\nlr = 1\"\n", Path::new("run.toml")).unwrap();
        let text = "[tokenizer]\ntemplate = \"\"\"\na\nlr = 1\"\"\"\n";
        let saved = Origins::of(&tree).annotate(text);
        assert_eq!(
            toml::from_str::<toml::Table>(&saved).unwrap(),
            toml::from_str::<toml::Table>(text).unwrap()
        );
    }
}
