//! Where the values of a resolved configuration come from, as comments of the file that a run saves.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::location::SourceLocation;
use super::tree::{Entry, Node, Origin, Tree};

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

    /// Sets the origin of one value.
    pub(super) fn set(&mut self, key: String, origin: &str) {
        self.0.insert(key, origin.to_owned());
    }

    fn add(&mut self, tree: &Tree, prefix: &str) {
        for (key, entry) in tree {
            self.add_entry(entry, format!("{prefix}{key}"));
        }
    }

    fn add_entry(&mut self, Entry { node, origin }: &Entry, key: String) {
        match node {
            Node::Table(inner) => self.add(inner, &format!("{key}.")),
            Node::List(entries) if entries.iter().any(|entry| matches!(entry.node, Node::Table(_))) => {
                for (index, entry) in entries.iter().enumerate() {
                    self.add_entry(entry, format!("{key}[{index}]"));
                }
            }
            _ => self.add_origin(origin, key),
        }
    }

    fn add_origin(&mut self, Origin { location, .. }: &Origin, key: String) {
        if !matches!(location, SourceLocation::Stage(_)) {
            // A line break in a name would end the comment.
            self.0.insert(key, location.place().replace(char::is_control, "?"));
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
            self.find_end(value, &format!("{prefix}{}", key.get_ref()), ends);
        }
    }

    fn find_end<'a>(&'a self, value: &Spanned<DeValue<'_>>, key: &str, ends: &mut BTreeMap<usize, &'a str>) {
        match value.get_ref() {
            DeValue::Table(inner) => self.find_ends(inner, &format!("{key}."), ends),
            DeValue::Array(values) if values.iter().any(|value| value.get_ref().is_table()) => {
                for (index, value) in values.iter().enumerate() {
                    self.find_end(value, &format!("{key}[{index}]"), ends);
                }
            }
            _ => ends.extend(self.0.get(key).map(|origin| (value.span().end, origin.as_str()))),
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
    fn the_values_of_a_list_of_tables_tell_where_and_defaults_of_a_stage_do_not() {
        let text = "[[reward]]\nkind = \"math\"\n\n[[reward]]\nkind = \"regex\"\ntags = [\"a\"]\nweight = 2.0\n\n[train]\nlr = 0.5\n";
        let stage = tree::parse_included("[train]\nlr = 0.5\n", &SourceLocation::Stage("grpo")).unwrap();
        let tree = tree::merge(stage, tree::parse(text, Path::new("run.toml")).unwrap());
        let mut without = tree.clone();
        without.remove("train");
        let expected = text
            .replace("\"math\"", "\"math\"  # run.toml:2")
            .replace("\"regex\"", "\"regex\"  # run.toml:5")
            .replace("[\"a\"]", "[\"a\"]  # run.toml:6")
            .replace("2.0", "2.0  # run.toml:7");
        let saved = Origins::of(&without).annotate(text).unwrap();
        assert_eq!(saved, format!("{TITLE}{expected}"));
        let saved = Origins::of(&tree).annotate(text).unwrap();
        assert!(saved.ends_with("lr = 0.5  # run.toml:10\n"), "{saved}");
        let stage = tree::parse_included("[train]\nlr = 0.5\n", &SourceLocation::Stage("grpo")).unwrap();
        assert!(Origins::of(&stage).annotate(text).unwrap().ends_with("lr = 0.5\n"));
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
