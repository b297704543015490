//! TOML values with their source locations.
//!
//! A [`Tree`] is the content of a file, with the location of every key. [`merge`] overrides one tree with
//! another; [`set`] applies one `--set a.b=c`. Both are pure functions and keep the locations, so an error
//! that is found after merging still names a line of the file. This module does not depend on the sections.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

use super::error::ConfigError;
use super::location::SourceLocation;

/// The location of a key, and its full dotted name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The file and line, or the `--set` argument.
    pub(crate) location: SourceLocation,
    /// The key as it was written, such as `stage.sft.train.lr`, or `reward[0].weight` in a list of tables.
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

/// Parses a text that is part of the program: a preset, or the defaults of a stage. All of its keys are at
/// `location`.
pub(crate) fn parse_included(text: &str, location: &SourceLocation) -> Result<Tree, ConfigError> {
    let place = |_| location.clone();
    let table = DeTable::parse(text)
        .map_err(|error| ConfigError::Syntax { place: place(0), message: error.message().to_owned() })?;
    Ok(Reader { text, place: &place }.table(table.get_ref(), ""))
}

impl ConfigError {
    /// Adds the place where the key of a refused value was written, if the user wrote it. A key that is
    /// missing in a table of a list is at the place of this table.
    pub(super) fn placed(self, tree: &Tree) -> Self {
        match self {
            Self::Value { place: None, key, message } => {
                let in_list = || key.split_once("].").and_then(|(list, _)| find(tree, &format!("{list}]")));
                let entry = find(tree, &key).or_else(in_list);
                let place = entry.map(|entry| entry.origin.location.clone());
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

/// Returns the entry of a dotted key, in which `reward[0]` is the first element of the list `reward`.
pub(crate) fn find<'a>(tree: &'a Tree, key: &str) -> Option<&'a Entry> {
    match key.split_once('.') {
        None => part(tree, key),
        Some((first, rest)) => match &part(tree, first)?.node {
            Node::Table(inner) => find(inner, rest),
            _ => None,
        },
    }
}

/// The entry of a key without dots.
fn part<'a>(tree: &'a Tree, key: &str) -> Option<&'a Entry> {
    let Some((list, index)) = key.strip_suffix(']').and_then(|key| key.split_once('[')) else {
        return tree.get(key);
    };
    match &tree.get(list)?.node {
        Node::List(entries) => entries.get(index.parse::<usize>().ok()?),
        _ => None,
    }
}

/// The origin of a table in a list. Other elements have that of the list.
fn element(list: &Origin, index: usize, location: SourceLocation) -> Origin {
    Origin { location, key: format!("{}[{index}]", list.key) }
}

fn plain(value: Value, origin: &Origin) -> Entry {
    let below =
        |key: &str| Origin { location: origin.location.clone(), key: format!("{}.{key}", origin.key) };
    let node = match value {
        Value::Table(table) => Node::Table(
            table.into_iter().map(|(key, value)| (key.clone(), plain(value, &below(&key)))).collect(),
        ),
        Value::Array(values) => {
            let entry = |(index, value): (usize, Value)| match value {
                table @ Value::Table(_) => plain(table, &element(origin, index, origin.location.clone())),
                value => plain(value, origin),
            };
            Node::List(values.into_iter().enumerate().map(entry).collect())
        }
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
                let entry = |(index, value): (usize, &Spanned<DeValue<'_>>)| {
                    let origin = match value.get_ref() {
                        DeValue::Table(_) => {
                            let line = line_at(self.text, value.span().start);
                            element(&origin, index, (self.place)(line))
                        }
                        _ => origin.clone(),
                    };
                    self.entry(value.get_ref(), origin)
                };
                Node::List(values.iter().enumerate().map(entry).collect())
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
    fn the_tables_of_a_list_have_lines_and_numbers_of_their_own() {
        let tree =
            tree("[[reward]]\nkind = 'a'\n\n[[reward]]\nkind = 'b'\nlist = [\n{ x = 1 },\n{ x = 2 }]\n");
        assert_eq!(
            leaf(&tree, "reward[1].kind"),
            (&Value::String("b".into()), "run.toml:5 reward[1].kind".into())
        );
        let second = find(&tree, "reward[1]").unwrap();
        assert_eq!(second.origin.location, SourceLocation::File("run.toml".into(), 4));
        assert_eq!(
            leaf(&tree, "reward[1].list[1].x"),
            (&Value::Integer(2), "run.toml:8 reward[1].list[1].x".into())
        );
        for key in ["reward[2]", "reward[-1].kind", "reward[0", "reward]", "reward.kind", "reward[0].kind[0]"]
        {
            assert!(find(&tree, key).is_none(), "{key}");
        }
        let tree = set(tree, "reward=[{ kind = 'c' }]").unwrap();
        let place = "--set reward=[{ kind = 'c' }] reward[0].kind";
        assert_eq!(leaf(&tree, "reward[0].kind"), (&Value::String("c".into()), place.into()));
    }

    #[test]
    fn a_refused_value_in_a_list_is_at_its_key_or_at_its_table() {
        let tree = tree("[[reward]]\nkind = 'a'\n[[reward]]\nkind = 'b'\nclip = 0\n");
        let told = |key: &str| {
            let error = ConfigError::Value { place: None, key: key.to_owned(), message: "no".to_owned() };
            error.placed(&tree).to_string()
        };
        assert_eq!(told("reward[1].clip"), "run.toml:5: `reward[1].clip`: no");
        assert_eq!(told("reward[1].pattern"), "run.toml:3: `reward[1].pattern`: no");
        assert_eq!(told("reward[1].tags[2]"), "run.toml:3: `reward[1].tags[2]`: no");
        assert_eq!(told("reward[2].clip"), "`reward[2].clip`: no");
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
