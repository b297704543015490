//! The tables of `docs/commands.md` and `docs/configuration.md`, which come from the command line and from
//! the documentation of the configuration's fields.
//!
//! A page has a table between the lines `<!-- generated: NAME -->` and `<!-- end -->`, and everything else is
//! written by hand. A test fails if a table is not current; with `UPDATE_DOCS=1` it writes the page instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use datasets::synth::SynthOptions;
use models::lora::LoraConfig;
use rewards::RewardEntry;
use rewards::environment::EnvironmentSection;

use crate::args::Cli;
use crate::config::section::BaseSection;
use crate::config::{RunConfig, flatten_toml};
use crate::stage;

/// The file with the structs of `[[reward]]`.
const REWARDS: &str = "rewards/src/entry.rs";

#[test]
fn the_tables_of_commands_are_current() {
    let mut tables = BTreeMap::new();
    add_commands(&Cli::command(), "", &mut tables);
    check_page("docs/commands.md", &tables);
}

#[test]
fn the_tables_of_the_configuration_are_current() {
    check_page("docs/configuration.md", &sections());
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Compares the tables of a page with `tables`, which has them by name. The page must have all of them.
fn check_page(page: &str, tables: &BTreeMap<String, String>) {
    const BEGIN: &str = "<!-- generated: ";
    const END: &str = "<!-- end -->";
    let path = root().join(page);
    let found = fs::read_to_string(&path).unwrap();

    let mut blocks = found.split(BEGIN);
    let mut wanted = blocks.next().unwrap().to_owned();
    for block in blocks {
        let (name, rest) = block.split_once(" -->\n").unwrap();
        let (_, rest) = rest.split_once(END).unwrap_or_else(|| panic!("{page}: `{name}` has no {END}"));
        let table = tables.get(name).unwrap_or_else(|| panic!("{page}: there is no `{name}`"));
        wanted.extend([BEGIN, name, " -->\n", table, END, rest]);
    }
    // Commands may have the same arguments, so what has to be there is the table.
    let missing: Vec<&String> =
        tables.iter().filter(|(_, table)| !wanted.contains(table.as_str())).map(|(name, _)| name).collect();
    assert!(missing.is_empty(), "{page} has no tables of {missing:?}");

    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, wanted).unwrap();
    } else {
        let first = found.lines().zip(wanted.lines()).find(|(found, wanted)| found != wanted);
        let fix = "UPDATE_DOCS=1 cargo test --release -p colossal-chat --bins reference_pages";
        assert!(
            found == wanted,
            "{page} is not current. This writes it: {fix}\nFirst difference: {first:#?}"
        );
    }
}

/// A table of three columns. A `|` in a cell is no border.
fn table(title: &str, rows: impl IntoIterator<Item = [String; 3]>) -> String {
    let mut text = format!("| {title} | default | meaning |\n|---|---|---|\n");
    for row in rows {
        let [name, default, meaning] = row.map(|cell| cell.replace('|', "\\|"));
        text.extend(["| ", &name, " | ", &default, " | ", &meaning, " |\n"]);
    }
    text
}

/// Adds the tables of all commands below `command`, by the words that call them. A command that only has
/// other commands below it has none.
fn add_commands(command: &clap::Command, words: &str, tables: &mut BTreeMap<String, String>) {
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        let words = format!("{words} {}", inner.get_name()).trim_start().to_owned();
        let shown = inner.get_arguments().filter(|argument| !argument.is_hide_set());
        let rows: Vec<[String; 3]> = shown
            .filter(|argument| argument.get_id() != "help" && argument.get_id() != "threads")
            .map(argument_row)
            .collect();
        add_commands(inner, &words, tables);
        if !rows.is_empty() {
            tables.insert(words, table("argument", rows));
        }
    }
}

/// The name, the default and the meaning of an argument.
fn argument_row(argument: &clap::Arg) -> [String; 3] {
    let value = argument.get_value_names().unwrap_or_default().join(" ");
    let value = if argument.get_action().takes_values() { value } else { String::new() };
    let flag = argument.get_long().map(|long| format!("--{long}"));
    let name: Vec<&str> =
        [flag.as_deref().unwrap_or_default(), &value].into_iter().filter(|word| !word.is_empty()).collect();

    // The help says a default that is not a value in brackets at its end.
    let help = argument.get_help().unwrap_or_default().to_string();
    let (help, said) = match help.rsplit_once(" [default: ") {
        Some((help, said)) => (help.to_owned(), said.trim_end_matches(']').to_owned()),
        None => (help, String::new()),
    };
    let values: Vec<String> =
        argument.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    let default = match argument.is_required_set() {
        true => "required".to_owned(),
        false if values.is_empty() => said,
        false => values.join(", "),
    };

    let meanings: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|_| argument.get_action().takes_values())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}`: {}", value.get_name(), help.to_string().trim_end_matches('.')),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    let meaning = if meanings.is_empty() { help } else { format!("{help}: {}", meanings.join("; ")) };
    [format!("`{}`", name.join(" ")), default, meaning]
}

/// The tables of all sections, by their names in brackets, the one of the keys that are in no section, and
/// the one of the defaults of stages.
fn sections() -> BTreeMap<String, String> {
    let structs = documented_structs();
    let environment: EnvironmentSection = toml::from_str("kind = 'calculator'").unwrap();
    let defaults: BTreeMap<String, String> = [
        defaults("", &RunConfig::default()),
        defaults("base.", &BaseSection::default()),
        defaults("environment.", &environment),
        defaults("model.lora.", &LoraConfig::default()),
        defaults("synth.", &SynthOptions::default()),
    ]
    .concat()
    .into_iter()
    .collect();

    let own = [
        ("base", "BaseSection"),
        ("environment", "EnvironmentSection"),
        ("model.lora", "LoraConfig"),
        ("synth", "SynthOptions"),
    ];
    let is_apart =
        |field: &&Field| field.key == "reward" || own.iter().any(|(section, _)| *section == field.key);
    let top = structs["RunConfig"].iter().filter(|field| !is_apart(field));
    let (sections, keys): (Vec<_>, Vec<_>) = top.partition(|field| structs.contains_key(&field.kind));
    let all = sections.iter().map(|field| (field.key.as_str(), field.kind.as_str())).chain(own);

    let mut tables = BTreeMap::new();
    tables
        .insert("keys of no section".to_owned(), table("key", keys.iter().map(|key| key.row("", &defaults))));
    for (section, kind) in all {
        let mut rows = Vec::new();
        add_keys(&structs, kind, &format!("{section}."), &defaults, &mut rows);
        let short = |[key, default, meaning]: [String; 3]| {
            [key.replacen(&format!("`{section}."), "`", 1), default, meaning]
        };
        tables.insert(format!("[{section}]"), table("key", rows.into_iter().map(short)));
    }
    tables.insert("[[reward]]".to_owned(), table("key", reward_rows(&structs)));
    tables.insert("kinds of [[reward]]".to_owned(), table("key", kind_rows(&structs)));
    tables.insert("defaults of stages".to_owned(), stage_defaults());
    tables
}

/// The defaults of a section by their keys, which begin with `prefix`.
fn defaults(prefix: &str, section: &impl serde::Serialize) -> Vec<(String, String)> {
    let values = flatten_toml(&toml::to_string(section).unwrap()).unwrap().into_iter();
    values.map(|(key, value)| (format!("{prefix}{key}"), value)).collect()
}

/// The rows of the keys that every kind of reward has.
fn reward_rows(structs: &BTreeMap<String, Vec<Field>>) -> Vec<[String; 3]> {
    let entry: RewardEntry = toml::from_str("kind = 'world'").unwrap();
    let mut defaults: BTreeMap<String, String> = defaults("", &entry).into_iter().collect();
    // The name is the kind if it is absent.
    defaults.remove("name");
    let kind = |field: &&Field| field.key == "kind";
    let (kind, others): (Vec<_>, Vec<_>) = structs["RewardEntry"].iter().partition(kind);
    let required = |field: &Field| [format!("`{}`", field.key), "required".to_owned(), field.meaning.clone()];
    let others = others.into_iter().map(|field| field.cells("", &defaults));
    kind.into_iter().map(required).chain(others).collect()
}

/// The rows of the kinds of rewards: one for each kind, with the documentation of its struct, and those of
/// its keys.
fn kind_rows(structs: &BTreeMap<String, Vec<Field>>) -> Vec<[String; 3]> {
    let mut rows = Vec::new();
    for (kind, name, meaning) in reward_kinds() {
        let entry: RewardEntry = toml::from_str(&format!("kind = '{kind}'")).unwrap();
        let defaults: BTreeMap<String, String> = defaults("", &entry).into_iter().collect();
        rows.push([format!("**`kind = \"{kind}\"`**"), String::new(), meaning]);
        rows.extend(structs[&name].iter().map(|field| field.cells("", &defaults)));
    }
    rows
}

/// The kinds of rewards: the name in a run file, the struct, and what its documentation says behind the name.
fn reward_kinds() -> Vec<(String, String, String)> {
    let parsed = syn::parse_file(&fs::read_to_string(root().join(REWARDS)).unwrap()).unwrap();
    let of_struct = |item: &syn::Item| {
        let syn::Item::Struct(item) = item else { return None };
        let meaning = documentation(&item.attrs);
        let (kind, meaning) = meaning.strip_prefix("`kind = \"")?.split_once("\"`: ")?;
        let mut letters = meaning.chars();
        let first = letters.next()?.to_uppercase();
        Some((kind.to_owned(), item.ident.to_string(), format!("{first}{}", letters.as_str())))
    };
    parsed.items.iter().filter_map(of_struct).collect()
}

/// The keys whose defaults some stages change, with a column for each of these stages.
fn stage_defaults() -> String {
    let schemas = stage::schemas();
    let own: Vec<(&str, BTreeMap<String, String>)> = schemas
        .iter()
        .filter_map(|schema| Some((schema.name, flatten_toml(schema.defaults?).unwrap())))
        .collect();
    let keys: BTreeSet<&String> = own.iter().flat_map(|(_, defaults)| defaults.keys()).collect();
    let row = |first: &str, cells: Vec<String>| format!("| {first} | {} |\n", cells.join(" | "));
    let names = own.iter().map(|(name, _)| format!("`{name}`")).collect();
    let mut text = row("key", names) + &row("---", vec!["---".to_owned(); own.len()]).replace(' ', "");
    for key in keys {
        let cell = |(_, defaults): &(&str, BTreeMap<String, String>)| {
            defaults.get(key).map_or_else(String::new, |value| shown(value))
        };
        text.push_str(&row(&format!("`{key}`"), own.iter().map(cell).collect()));
    }
    text
}

/// A default as it is shown. Small numbers have an exponent.
fn shown(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(number) if number != 0.0 && number.abs() < 1e-3 => format!("`{number:e}`"),
        _ => format!("`{value}`"),
    }
}

/// Adds the rows of the struct `kind`, whose keys begin with `prefix`, and those of the structs in it.
fn add_keys(
    structs: &BTreeMap<String, Vec<Field>>,
    kind: &str,
    prefix: &str,
    defaults: &BTreeMap<String, String>,
    rows: &mut Vec<[String; 3]>,
) {
    for field in &structs[kind] {
        if structs.contains_key(&field.kind) {
            add_keys(structs, &field.kind, &format!("{prefix}{}.", field.key), defaults, rows);
        } else {
            rows.push(field.row(prefix, defaults));
        }
    }
}

/// A field of a section.
struct Field {
    /// The key in a run file.
    key: String,
    /// The name of its type.
    kind: String,
    /// Its documentation, in one line.
    meaning: String,
}

impl Field {
    fn row(&self, prefix: &str, defaults: &BTreeMap<String, String>) -> [String; 3] {
        let key = format!("{prefix}{}", self.key);
        let default = defaults.get(&key).filter(|value| *value != "\"\"" && *value != "[]");
        // A list that is absent is empty, whether a file has it or not.
        let has_list = ["Vec", "BTreeMap"].contains(&self.kind.as_str())
            || defaults.get(&key).is_some_and(|value| value == "[]");
        let is_said = ["Required", "If absent", "if absent"].iter().any(|word| self.meaning.contains(word));
        assert!(
            default.is_some() || has_list || is_said,
            "the documentation of `{key}` does not say what holds if it is absent"
        );
        self.cells(prefix, defaults)
    }

    /// The row of a key whose documentation need not say what holds if it is absent, because there is nothing
    /// to say: of rewards, whose keys depend on their kinds. A default of several lines is not shown.
    fn cells(&self, prefix: &str, defaults: &BTreeMap<String, String>) -> [String; 3] {
        let key = format!("{prefix}{}", self.key);
        if let Some(meaning) = self.meaning.strip_prefix("Required. ") {
            return [format!("`{key}`"), "required".to_owned(), meaning.to_owned()];
        }
        let is_shown = |value: &&String| *value != "\"\"" && *value != "[]" && !value.contains('\n');
        let default = defaults.get(&key).filter(is_shown).map(|value| shown(value));
        [format!("`{key}`"), default.unwrap_or_default(), self.meaning.clone()]
    }
}

/// The fields of every struct that is read from a run file.
fn documented_structs() -> BTreeMap<String, Vec<Field>> {
    let folders = ["chat/src/config", "gemini/src/config", "rlhf/src", "rlhf/src/loss", "rlhf/src/offline"];
    let mut files = vec![
        root().join("gemini/src/config.rs"),
        root().join("datasets/src/synth.rs"),
        root().join("models/src/lora/config.rs"),
        root().join("rewards/src/environment/section.rs"),
        root().join(REWARDS),
    ];
    for folder in folders {
        let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "rs")));
    }

    let mut structs = BTreeMap::new();
    for file in files {
        let parsed = syn::parse_file(&fs::read_to_string(&file).unwrap()).unwrap();
        for item in parsed.items {
            let syn::Item::Struct(item) = item else { continue };
            // A reward is read by hand, because its keys depend on its kind.
            let is_read = item.ident == "RewardEntry"
                || item.attrs.iter().any(|attribute| attribute.path().is_ident("serde"));
            if is_read && matches!(item.fields, syn::Fields::Named(_)) {
                structs.insert(item.ident.to_string(), item.fields.iter().filter_map(field_of).collect());
            }
        }
    }
    structs
}

/// The documentation of an item, in one line.
fn documentation(attributes: &[syn::Attribute]) -> String {
    let line = |attribute: &syn::Attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if attribute.path().is_ident("doc") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => {
                Some(text.value().trim().to_owned())
            }
            _ => None,
        },
        _ => None,
    };
    attributes.iter().filter_map(line).collect::<Vec<_>>().join(" ")
}

/// A field of a struct, or `None` if it is not read from a file.
fn field_of(field: &syn::Field) -> Option<Field> {
    let is_skipped = |attribute: &syn::Attribute| matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string() == "skip");
    if field.attrs.iter().any(is_skipped) {
        return None;
    }
    let kind = match &field.ty {
        syn::Type::Path(path) => path.path.segments.last()?.ident.to_string(),
        _ => String::new(),
    };
    let meaning = documentation(&field.attrs);
    Some(Field { key: field.ident.as_ref()?.to_string(), kind, meaning })
}
