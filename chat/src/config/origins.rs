//! Where the values of a resolved configuration come from, as comments of the file that a run saves.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

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

    /// Adds to each value of a TOML text the origin of its key, as a comment behind its last line.
    pub(super) fn annotate(&self, text: &str) -> Result<String, toml::de::Error> {
        let mut ends = BTreeMap::new();
        self.find_ends(DeTable::parse(text)?.get_ref(), "", &mut ends);

        let mut annotated = TITLE.to_owned();
        let mut start = 0;
        for (end, origin) in ends {
            let line_end = text[end..].find('\n').map_or(text.len(), |length| end + length);
            // A line has one comment, that of the first value which ends there.
            if start < line_end {
                annotated.push_str(&text[start..line_end]);
                annotated.push_str("  # ");
                annotated.push_str(origin);
                start = line_end;
            }
        }
        annotated.push_str(&text[start..]);
        Ok(annotated)
    }

    /// Adds where the values of a table with a known origin end in its text.
    fn find_ends<'a>(&'a self, table: &DeTable<'_>, prefix: &str, ends: &mut BTreeMap<usize, &'a str>) {
        for (key, value) in table {
            let key = format!("{prefix}{}", key.get_ref());
            match value.get_ref() {
                DeValue::Table(inner) => self.find_ends(inner, &format!("{key}."), ends),
                _ => ends.extend(self.0.get(&key).map(|origin| (value.span().end, origin.as_str()))),
            }
        }
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
        let saved = Origins::of(&tree).annotate(text).unwrap();
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
    fn an_origin_follows_a_value_of_several_lines_and_is_in_none() {
        let value = "a\n[train]\nlr = 1\ntemplate = 2\n";
        let tree = tree::set(Tree::new(), &format!("tokenizer.template={value}")).unwrap();
        let tree = tree::set(tree, "train.lr=1").unwrap();
        let text = toml::to_string(&toml::toml! { tokenizer = { template = value } }).unwrap();
        let saved = Origins::of(&tree).annotate(&text).unwrap();
        assert!(saved.ends_with("\"\"\"  # --set\n"), "{saved}");
        assert_eq!(
            toml::from_str::<toml::Table>(&saved).unwrap(),
            toml::from_str::<toml::Table>(&text).unwrap()
        );
    }
}
