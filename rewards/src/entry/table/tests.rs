//! Tables of `[[reward]]` there and back, and what a wrong one is told.

use serde_json::json;

use super::*;
use crate::entry::{ExactConfig, LengthConfig, RewardKind, WorldConfig};

fn read(text: &str) -> Result<RewardEntry, String> {
    toml::from_str(text).map_err(|error| error.message().to_owned())
}

/// A table of every kind with all of its keys.
const FULL: [(&str, &str); 17] = [
    ("model", "model = 'runs/rm'"),
    (
        "judge",
        "model = 'http://h/v1#a'\ntemplate = '{{ reply }}'\nscale = [0, 5]\nmax_tokens = 9\ntemperature = 1\n\
         timeout = 2\nattempts = 2\nconcurrency = 3",
    ),
    ("exact", "extract = 'pattern'\npattern = 'a(b)'\nignore_case = true\nany_of = true"),
    ("numeric", "extract = 'pattern'\npattern = '(.*)'\ntolerance = 0.5\nany_of = true"),
    ("math", "any_of = true"),
    ("choice", "choices = 'ABCDE'"),
    ("regex", "pattern = 'x+'\nfull = true"),
    ("json", "extract = 'pattern'\npattern = '(.*)'\nschema = { type = 'object', required = ['a'] }"),
    ("format", "tags = ['a', 'b']\nopened = true\noutside = true"),
    (
        "ifeval",
        "loose = true\nshare = false\ninstructions = [{ id = 'punctuation:no_comma' }, { id = \
         'length_constraints:number_words', num_words = 3, relation = 'at least' }]",
    ),
    ("length", "target = 100\nmax = 200\ntolerance = 50"),
    ("language", "language = 'de'"),
    ("repetition", "ngram = 3\npenalty = 0.5"),
    ("world", ""),
    ("code", "program = '{{ reply }}'\ntimeout = 1.5"),
    (
        "command",
        "command = ['python3', 's.py']\nbatch_size = 8\ntimeout = 1\nmax_restarts = 0\nconcurrency = 2",
    ),
    (
        "http",
        "url = 'http://localhost:1'\nbatch_size = 8\ntimeout = 1\nattempts = 1\nconcurrency = 2\nheaders = { \
         Authorization = 'Bearer x' }",
    ),
];

#[test]
fn every_kind_reads_all_of_its_keys_and_writes_them_again() {
    for (kind, own) in FULL {
        // `kind` stands behind the other keys, as in a sorted tree.
        let shared = "weight = 2\nclip = 3\nnormalize = 'fixed'\nmean = -1\nstd = 0.5\nname = 'n'";
        let text = format!("{own}\n{shared}\nkind = '{kind}'");
        let entry = read(&text).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!((entry.name.as_str(), entry.weight, entry.kind.name()), ("n", 2.0, kind));
        assert_eq!((entry.clip, entry.mean, entry.std), (Some(3.0), Some(-1.0), Some(0.5)));
        assert_eq!(entry.normalize, Normalize::Fixed);

        let written = toml::to_string(&entry).unwrap();
        assert_eq!(read(&written).unwrap(), entry, "{written}");
        // The list of known keys has exactly those that were given.
        let table: toml::Table = text.parse().unwrap();
        let mut given: Vec<&str> = table.keys().map(String::as_str).collect();
        let mut listed = known(kind).to_vec();
        given.sort_unstable();
        listed.sort_unstable();
        assert_eq!(given, listed, "{kind}");
    }
}

#[test]
fn lists_of_tables_are_written_and_read_again() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Run {
        seed: u64,
        reward: Vec<RewardEntry>,
    }
    let tables: Vec<String> =
        FULL.iter().map(|(kind, own)| format!("[[reward]]\nkind = '{kind}'\n{own}\n")).collect();
    let run: Run = toml::from_str(&format!("seed = 3\n{}", tables.concat())).unwrap();
    assert_eq!(run.reward.len(), 17);
    let written = toml::to_string(&run).unwrap();
    assert_eq!(toml::from_str::<Run>(&written).unwrap(), run, "{written}");
}

#[test]
fn a_short_table_has_defaults() {
    let expected = |kind: &str, own| RewardEntry {
        name: kind.to_owned(),
        weight: 1.0,
        clip: None,
        normalize: Normalize::None,
        mean: None,
        std: None,
        kind: own,
    };
    assert_eq!(read("kind = 'world'").unwrap(), expected("world", RewardKind::World(WorldConfig {})));
    assert_eq!(read("kind = 'exact'").unwrap(), expected("exact", RewardKind::Exact(ExactConfig::default())));
    let length = LengthConfig { target: None, max: Some(5), tolerance: None };
    assert_eq!(read("max = 5\nkind = 'length'").unwrap(), expected("length", RewardKind::Length(length)));
    let numeric: RewardEntry = serde_json::from_value(json!({"kind": "numeric"})).unwrap();
    let RewardKind::Numeric(numeric) = numeric.kind else { panic!("another kind") };
    assert_eq!((numeric.extract, numeric.tolerance), (Extract::LastNumber, 1e-6));
}

#[test]
fn a_key_that_the_kind_does_not_have_is_refused_with_those_that_it_has() {
    // A key of another kind is no mistake in spelling, before and behind `kind`.
    for text in ["ngram = 3\nkind = 'regex'", "kind = 'regex'\nngram = 3"] {
        assert_eq!(
            read(text).unwrap_err(),
            "kind = \"regex\" has no key `ngram`; its keys are kind, name, weight, clip, normalize, mean, std, \
             pattern, full"
        );
    }
    assert_eq!(
        read("kind = 'world'\ntolerance = 1").unwrap_err(),
        "kind = \"world\" has no key `tolerance`; its keys are kind, name, weight, clip, normalize, mean, std"
    );
    let error = read("kind = 'world'\npatern = { a = [1] }").unwrap_err();
    assert_eq!(
        error,
        "unknown field `patern`, expected one of `kind`, `name`, `weight`, `clip`, `normalize`, `mean`, `std`"
    );
}

#[test]
fn wrong_values_are_refused_where_they_stand() {
    for (text, part) in [
        ("weight = 1", "has no `kind`; give one of model, judge, exact, "),
        ("kind = 'maths'", "unknown variant `maths`, expected one of `model`, `judge`"),
        ("kind = 'regex'\npattern = 3", "invalid type: integer `3`, expected a string"),
        ("kind = 'world'\nweight = nan", "expected a finite number"),
        ("kind = 'world'\nclip = inf", "expected a finite number"),
        ("kind = 'length'\nmax = -1", "invalid value: integer `-1`, expected usize"),
        ("kind = 'exact'\nextract = 'last'", "unknown variant `last`, expected one of `whole`, `last_line`"),
        (
            "kind = 'world'\nnormalize = 'yes'",
            "unknown variant `yes`, expected one of `none`, `fixed`, `running`",
        ),
        ("kind = 'format'\ntags = 'think'", "invalid type: string \"think\", expected a sequence"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
    assert!(serde_json::from_value::<RewardEntry>(json!("world")).is_err());
}
