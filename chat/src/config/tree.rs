//! TOML values with their source locations.
//!
//! A [`Tree`] is the content of a file, with the location of every key. [`merge`] overrides one tree with
//! another; [`set`] applies one `--set a.b=c`. Both are pure functions and keep the locations, so an error
//! that is found after merging still names a line of the file. This module does not depend on the sections.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::location::SourceLocation;

/// The location of a key, and its full dotted name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The file and line, or the `--set` argument.
    pub(crate) location: SourceLocation,
    /// The key as it was written, such as `stage.sft.train.lr`.
    pub(crate) key: String,
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    /// Text, a number, true or false, or a date.
    Leaf(Value),
    List(Vec<Entry>),
    Table(Tree),
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// The value.
    pub(crate) node: Node,
    /// Where the value was written.
    pub(crate) origin: Origin,
}

/// A table: a map from keys to values.
pub(crate) type Tree = BTreeMap<String, Entry>;

/// Parses the text of the file `path`.
pub(crate) fn parse(text: &str, path: &Path) -> Result<Tree, ConfigError> {
    let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        place: SourceLocation::File(
            path.to_owned(),
            line_at(text, error.span().map_or(0, |span| span.start)),
        ),
        message: error.message().to_owned(),
    })?;
    let place = |line| SourceLocation::File(path.to_owned(), line);
    Ok(Reader { text, place: &place }.table(table.get_ref(), ""))
}

/// Parses the text of the preset `name`.
pub(crate) fn parse_preset(text: &str, name: &'static str) -> Result<Tree, ConfigError> {
    let place = |_| SourceLocation::Preset(name);
    let table = DeTable::parse(text)
        .map_err(|error| ConfigError::Syntax { place: place(0), message: error.message().to_owned() })?;
    Ok(Reader { text, place: &place }.table(table.get_ref(), ""))
}

impl ConfigError {
    /// Adds the place where the key of a refused value was written, if the user wrote it.
    pub(super) fn placed(self, tree: &Tree) -> Self {
        match self {
            Self::Value { place: None, key, message } => {
                let place = find(tree, &key).map(|entry| entry.origin.location.clone());
                Self::Value { place, key, message }
            }
            other => other,
        }
    }
}

/// Overrides `under` with `over`. Tables are merged key by key; any other value is replaced.
pub(crate) fn merge(mut under: Tree, over: Tree) -> Tree {
    for (key, entry) in over {
        let merged = match (under.remove(&key), entry) {
            (Some(Entry { node: Node::Table(below), .. }), Entry { node: Node::Table(above), origin }) => {
                Entry { node: Node::Table(merge(below, above)), origin }
            }
            (_, entry) => entry,
        };
        under.insert(key, merged);
    }
    under
}

/// Applies `a.b=c` to `under`. `c` is parsed as a TOML value, or taken as text if it is not one.
pub(crate) fn set(under: Tree, argument: &str) -> Result<Tree, ConfigError> {
    let Some((key, value)) = argument.split_once('=') else {
        return Err(ConfigError::SetSyntax(argument.to_owned()));
    };
    let parts: Vec<&str> = key.trim().split('.').collect();
    if parts.iter().any(|part| part.is_empty()) {
        return Err(ConfigError::SetSyntax(argument.to_owned()));
    }

    let document: Option<toml::Table> = toml::from_str(&format!("value = {value}")).ok();
    // A value with a line break could define keys of its own, so it is taken as text.
    let parsed = document.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));

    let origin = |depth: usize| Origin {
        location: SourceLocation::Set(argument.to_owned()),
        key: parts[..=depth].join("."),
    };
    let last = parts.len() - 1;
    let mut entry = plain(parsed.unwrap_or_else(|| Value::String(value.to_owned())), &origin(last));
    for depth in (0..last).rev() {
        let tree = Tree::from([(parts[depth + 1].to_owned(), entry)]);
        entry = Entry { node: Node::Table(tree), origin: origin(depth) };
    }

    Ok(merge(under, Tree::from([(parts[0].to_owned(), entry)])))
}

/// Returns the entry of a dotted key.
pub(crate) fn find<'a>(tree: &'a Tree, key: &str) -> Option<&'a Entry> {
    match key.split_once('.') {
        None => tree.get(key),
        Some((first, rest)) => match &tree.get(first)?.node {
            Node::Table(inner) => find(inner, rest),
            _ => None,
        },
    }
}

fn plain(value: Value, origin: &Origin) -> Entry {
    let below =
        |key: &str| Origin { location: origin.location.clone(), key: format!("{}.{key}", origin.key) };
    let node = match value {
        Value::Table(table) => Node::Table(
            table.into_iter().map(|(key, value)| (key.clone(), plain(value, &below(&key)))).collect(),
        ),
        Value::Array(values) => Node::List(values.into_iter().map(|value| plain(value, origin)).collect()),
        leaf => Node::Leaf(leaf),
    };
    Entry { node, origin: origin.clone() }
}

struct Reader<'a> {
    text: &'a str,
    /// The place of a line.
    place: &'a dyn Fn(usize) -> SourceLocation,
}

impl Reader<'_> {
    fn table(&self, table: &DeTable<'_>, prefix: &str) -> Tree {
        let mut tree = Tree::new();
        for (key, value) in table {
            let name = key.get_ref().to_string();
            let full = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            let line = line_at(self.text, key.span().start);
            let origin = Origin { location: (self.place)(line), key: full };
            tree.insert(name, self.entry(value.get_ref(), origin));
        }
        tree
    }

    fn entry(&self, value: &DeValue<'_>, origin: Origin) -> Entry {
        let node = match value {
            DeValue::Table(table) => Node::Table(self.table(table, &origin.key)),
            DeValue::Array(values) => {
                Node::List(values.iter().map(|value| self.entry(value.get_ref(), origin.clone())).collect())
            }
            DeValue::String(text) => Node::Leaf(Value::String(text.to_string())),
            DeValue::Boolean(flag) => Node::Leaf(Value::Boolean(*flag)),
            DeValue::Datetime(date) => Node::Leaf(Value::Datetime(*date)),
            DeValue::Integer(number) => Node::Leaf(
                i64::from_str_radix(number.as_str(), number.radix())
                    .map_or_else(|_| Value::String(number.to_string()), Value::Integer),
            ),
            DeValue::Float(number) => Node::Leaf(
                number.as_str().parse().map_or_else(|_| Value::String(number.to_string()), Value::Float),
            ),
        };
        Entry { node, origin }
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    text[..offset.min(text.len())].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> Tree {
        parse(text, Path::new("run.toml")).unwrap()
    }

    fn leaf<'a>(tree: &'a Tree, key: &str) -> (&'a Value, String) {
        let entry = find(tree, key).unwrap();
        let Node::Leaf(value) = &entry.node else { panic!("{key} is not a leaf") };
        (value, format!("{} {}", entry.origin.location, entry.origin.key))
    }

    #[test]
    fn every_value_knows_its_line() {
        let tree = tree("seed = 1\n\n[train]\nlr = 0.5\n[stage.sft.train]\nlr = 0x10\n");
        assert_eq!(leaf(&tree, "seed"), (&Value::Integer(1), "run.toml:1 seed".into()));
        assert_eq!(leaf(&tree, "train.lr"), (&Value::Float(0.5), "run.toml:4 train.lr".into()));
        let expected = (&Value::Integer(16), "run.toml:6 stage.sft.train.lr".into());
        assert_eq!(leaf(&tree, "stage.sft.train.lr"), expected);
    }

    #[test]
    fn merging_goes_key_by_key_and_replaces_lists_whole() {
        let under = tree("[train]\nlr = 1.0\nbetas = [0.9, 0.999]\n[data]\ntrain = 'a'\n");
        let over = tree("[train]\nbetas = [0.5]\n");
        let merged = merge(under.clone(), over);
        assert_eq!(find(&merged, "train.lr"), find(&under, "train.lr"));
        assert_eq!(find(&merged, "data"), find(&under, "data"));
        let Node::List(betas) = &find(&merged, "train.betas").unwrap().node else { panic!("not a list") };
        assert_eq!(betas.len(), 1);
        assert_eq!(betas[0].origin.location, SourceLocation::File("run.toml".into(), 2));
    }

    #[test]
    fn merging_with_nothing_changes_nothing() {
        let under = tree("[train]\nlr = 1.0\n");
        assert_eq!(merge(under.clone(), Tree::new()), under);
        assert_eq!(merge(Tree::new(), under.clone()), under);
    }

    #[test]
    fn set_reads_toml_and_falls_to_text() {
        for (argument, key, wanted) in [
            ("train.lr=1e-3", "train.lr", Value::Float(1e-3)),
            ("seed=7", "seed", Value::Integer(7)),
            ("data.packing=true", "data.packing", Value::Boolean(true)),
            ("model.path=/a/b=c", "model.path", Value::String("/a/b=c".into())),
            ("model.path=\"7\"", "model.path", Value::String("7".into())),
            ("model.path=1\nseed = 2", "model.path", Value::String("1\nseed = 2".into())),
        ] {
            let tree = set(tree("[train]\nlr = 1.0\n"), argument).unwrap();
            assert_eq!(leaf(&tree, key), (&wanted, format!("--set {argument} {key}")));
        }
    }

    #[test]
    fn set_keeps_its_neighbours() {
        let under = tree("[train]\nlr = 1.0\neps = 0.1\n");
        let over = set(under, "train.lr=2.0").unwrap();
        assert_eq!(leaf(&over, "train.eps"), (&Value::Float(0.1), "run.toml:3 train.eps".into()));
    }

    #[test]
    fn set_wants_a_key_and_a_value() {
        for argument in ["train.lr", "=3", "train..lr=3"] {
            assert!(matches!(set(Tree::new(), argument), Err(ConfigError::SetSyntax(_))), "{argument}");
        }
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        let error = parse("seed = 1\nout = \n", Path::new("run.toml")).unwrap_err().to_string();
        assert!(error.starts_with("run.toml:2: "), "{error}");
    }
}
