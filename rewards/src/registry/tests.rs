//! Each kind of reward by its table: the score of a reply, and the entries that are refused.

use std::sync::Arc;

use eval::code_execution::{CodeRunner, Program, RunnerError, Verdict};

use super::*;

#[derive(serde::Deserialize)]
struct Run {
    reward: Vec<RewardEntry>,
}

/// The entries of tables, which are written one below the other.
fn entries(tables: &[&str]) -> Vec<RewardEntry> {
    let text = tables.iter().fold(String::new(), |text, table| text + "[[reward]]\n" + table + "\n");
    let run: Run = toml::from_str(&text).unwrap();
    run.reward
}

fn refused(tables: &[&str]) -> String {
    check(&entries(tables)).unwrap_err().to_string()
}

fn reply<'a>(text: &'a str, answer: Option<&'a str>) -> Reply<'a> {
    Reply { prompt: &[], text, answer, tokens: 10, stopped: true }
}

#[test]
fn errors_name_the_entry_the_key_and_the_fix() {
    let regex = "kind = 'regex'\npattern = 'a'";
    for (tables, expected) in [
        (vec![regex, "kind = 'regex'\nname = 'b'"], "`reward[1].pattern` is missing; give the pattern"),
        (
            vec![regex, regex],
            "`reward[0]` and `reward[1]` are both named \"regex\"; give one of them another",
        ),
        (vec!["kind = 'world'\nweight = 0"], "every `reward.weight` is 0"),
        (vec!["kind = 'world'\nname = ''"], "`reward[0].name` is \"\"; give up to 64 ASCII letters"),
        (vec!["kind = 'world'\nname = 'a b'"], "`reward[0].name` is \"a b\""),
        (vec!["kind = 'world'\nclip = 0"], "`reward[0].clip` is 0; give a number above 0"),
        (vec!["kind = 'world'\nstd = -1"], "`reward[0].std` is -1"),
        (vec!["kind = 'world'\nmean = 1"], "`reward[0].mean` has no effect"),
        (vec!["kind = 'world'\nnormalize = 'running'\nstd = 1"], "`reward[0].std` has no effect"),
        (vec!["kind = 'world'\nnormalize = 'fixed'\nmean = 1"], "`reward[0].std` is missing"),
        (vec!["kind = 'model'"], "`reward[0].model` is missing"),
        (vec!["kind = 'judge'"], "`reward[0].model` is missing; give the address of a server"),
        (
            vec!["kind = 'judge'\nmodel = 'runs/judge'"],
            "`reward[0].model` is \"runs/judge\", which is no address, and a judge is asked on a server; run \
             `colossal-chat serve --model runs/judge`, and give http://127.0.0.1:8000/v1",
        ),
        (
            vec!["kind = 'judge'\nmodel = 'http:judge'"],
            "`reward[0].model` is \"http:judge\", which is no address",
        ),
        (vec!["kind = 'judge'\nmodel = 'https://'"], "`reward[0].model` is no address: empty host; give the"),
        (vec!["kind = 'judge'\nmodel = 'http://h'\nscale = [5, 1]"], "`reward[0].scale` is [5, 1]"),
        (vec!["kind = 'judge'\nmodel = 'http://h'\ntemplate = '{{ x }}'"], "`reward[0].template` reads `x`"),
        (vec!["kind = 'judge'\nmodel = 'http://h'\nattempts = 0"], "`reward[0].attempts` is 0"),
        (vec!["kind = 'judge'\nmodel = 'http://h'\ntimeout = 0"], "`reward[0].timeout` is 0"),
        (vec!["kind = 'length'\nmax = 1"], "`reward[0].tolerance` is missing; give the number of tokens"),
        (vec!["kind = 'exact'\npattern = 'x'"], "`reward[0].pattern` has no effect"),
        (vec!["kind = 'format'\ntags = ['a', '<']"], "`reward[0].tags[1]` is \"<\""),
        (vec!["kind = 'json'\nschema = { type = 'text' }"], "`reward[0].schema` is no valid schema"),
        (vec!["kind = 'code'"], "`reward[0].program` is missing"),
        (vec!["kind = 'command'"], "`reward[0].command` names no program"),
        (vec!["kind = 'http'"], "`reward[0].url` "),
    ] {
        let error = refused(&tables);
        assert!(error.starts_with(expected), "{tables:?}: {error}");
    }
}

#[test]
fn entries_that_can_work_are_accepted() {
    let tables = [
        "kind = 'world'\nnormalize = 'fixed'\nmean = 0\nstd = 2\nclip = 5",
        "kind = 'length'\nmax = 5\ntolerance = 5\nweight = -1",
        "kind = 'regex'\npattern = 'a'\nweight = 0\nnormalize = 'running'",
        "kind = 'model'\nmodel = 'runs/rm'",
        "kind = 'judge'\nmodel = 'http://127.0.0.1:8000/v1#m'",
        "kind = 'judge'\nname = 'other'\nmodel = 'HTTPS://example.org'",
        "kind = 'code'\nprogram = '{{ reply }}'",
    ];
    check(&entries(&tables)).unwrap();
    check(&[]).unwrap();
}

#[test]
fn every_kind_says_whether_it_needs_answers() {
    for (table, expected) in [
        ("kind = 'exact'", true),
        ("kind = 'numeric'", true),
        ("kind = 'math'", true),
        ("kind = 'choice'", true),
        ("kind = 'world'", true),
        ("kind = 'ifeval'", true),
        ("kind = 'ifeval'\ninstructions = [{ id = 'punctuation:no_comma' }]", false),
        ("kind = 'code'\nprogram = '{{ reply }} {{ answer }}'", true),
        ("kind = 'code'\nprogram = '{{ reply }}'", false),
        // The template of the program works with and without an answer.
        ("kind = 'judge'\nmodel = 'http://h'", false),
        ("kind = 'judge'\nmodel = 'http://h'\ntemplate = '{{ reply }} {{ answer }}'", true),
        ("kind = 'model'\nmodel = 'm'", false),
        ("kind = 'regex'\npattern = 'a'", false),
        ("kind = 'json'", false),
        ("kind = 'format'", false),
        ("kind = 'length'\nmax = 1", false),
        ("kind = 'language'\nlanguage = 'en'", false),
        ("kind = 'repetition'", false),
        ("kind = 'command'\ncommand = ['x']", false),
        ("kind = 'http'\nurl = 'http://localhost:1'", false),
    ] {
        assert_eq!(answer_check(&entries(&[table])[0]).unwrap().is_some(), expected, "{table}");
    }
}

#[test]
fn an_answer_to_which_no_reply_can_have_a_score_is_known_without_a_reply() {
    let instructions = r#"[{"id": "punctuation:no_comma"}]"#;
    let slow = format!("{}!", "a".repeat(200));
    let long = "7".repeat(LONGEST_TEXT + 1);
    for (table, read, unread, name) in [
        ("kind = 'exact'", "[7", " ", "no_answer"),
        ("kind = 'exact'", "[7", &long, "too_long"),
        ("kind = 'exact'\nany_of = true", r#"["7"]"#, "7", "unreadable_answer"),
        ("kind = 'exact'\nextract = 'pattern'\npattern = '(?=(a|aa)+$)b'", "7", &slow, "slow_pattern"),
        ("kind = 'numeric'", "#### 7", "unknown", "unreadable_answer"),
        ("kind = 'numeric'\nany_of = true", "[7]", r#"[7, "x"]"#, "unreadable_answer"),
        ("kind = 'math'", "[7", "", "no_answer"),
        ("kind = 'math'\nany_of = true", r#"["x", 7]"#, "x", "unreadable_answer"),
        ("kind = 'choice'", "B. Rome", "Rome", "unreadable_answer"),
        ("kind = 'ifeval'", instructions, "no comma", "unreadable_answer"),
        ("kind = 'world'", "[7", " ", "no_answer"),
        ("kind = 'code'\nprogram = '{{ reply }} {{ answer }}'", "[7", " ", "no_answer"),
    ] {
        let entry = &entries(&[table])[0];
        let check = answer_check(entry).unwrap().unwrap();
        assert_eq!((check(Some(read)), check(None)), (Ok(()), Err(ScoreError::NoAnswer)), "{table}");
        let error = check(Some(unread)).unwrap_err();
        assert_eq!(error.name(), name, "{table}");
        let mut made = scorer(entry, Some(Arc::new(Passes)), &ProgramLog::Stderr).unwrap().unwrap();
        let scores = made.score(&[reply("x", Some(read)), reply("x", Some(unread))]);
        assert!(scores[0].is_ok() && scores[1] == Err(error), "{table}: {scores:?}");
    }
    let judge = &entries(&["kind = 'judge'\nmodel = 'http://h'\ntemplate = '{{ reply }} {{ answer }}'"])[0];
    let check = answer_check(judge).unwrap().unwrap();
    assert_eq!((check(Some("")), check(None)), (Ok(()), Err(ScoreError::NoAnswer)));
    assert!(answer_check(&entries(&["kind = 'regex'\npattern = '7'"])[0]).unwrap().is_none());
    let error = answer_check(&entries(&["kind = 'choice'\nchoices = 'A'"])[0]).err().unwrap().to_string();
    assert!(error.starts_with("`reward \"choice\".choices` is \"A\""), "{error}");
}

/// Passes every program.
#[derive(Debug)]
struct Passes;

impl CodeRunner for Passes {
    fn interpreter(&self) -> String {
        "none".to_owned()
    }

    fn run(&self, programs: &[Program]) -> Result<Vec<Verdict>, RunnerError> {
        Ok(vec![Verdict::Passed; programs.len()])
    }
}

#[test]
fn every_kind_scores_replies_or_is_left_to_the_caller() {
    for (table, text, expected) in [
        ("kind = 'exact'", "7", 1.0),
        ("kind = 'numeric'", "7.0", 1.0),
        ("kind = 'math'", r"\boxed{\frac{14}{2}}", 1.0),
        ("kind = 'choice'\nchoices = '789'", "7", 1.0),
        ("kind = 'regex'\npattern = '^7$'", "7", 1.0),
        ("kind = 'json'\nschema = { type = 'number' }", "7", 1.0),
        ("kind = 'format'", "<think>a</think><answer>7</answer>", 1.0),
        ("kind = 'ifeval'\ninstructions = [{ id = 'punctuation:no_comma' }]", "7", 1.0),
        ("kind = 'length'\nmax = 6\ntolerance = 8", "7", -0.5),
        ("kind = 'language'\nlanguage = 'en'", "It is seven and that is all", 1.0),
        ("kind = 'repetition'\nngram = 1", "7 7", -0.5),
        ("kind = 'world'", "7", 1.0),
        ("kind = 'code'\nprogram = '{{ reply }}'", "7", 1.0),
    ] {
        let entry = &entries(&[table])[0];
        let mut made = scorer(entry, Some(Arc::new(Passes)), &ProgramLog::Stderr).unwrap().unwrap();
        assert_eq!(made.score(&[reply(text, Some("7"))]), [Ok(expected)], "{table}");
        let without = made.score(&[reply("x", None), reply("y", None)]);
        assert_eq!(without.len(), 2);
        let is_missing = |score: &Result<f64, ScoreError>| *score == Err(ScoreError::NoAnswer);
        assert_eq!(without.iter().all(is_missing), answer_check(entry).unwrap().is_some(), "{table}");
    }
    for table in ["kind = 'model'\nmodel = 'm'", "kind = 'judge'\nmodel = 'http://h'"] {
        assert!(scorer(&entries(&[table])[0], None, &ProgramLog::Stderr).unwrap().is_none());
    }
}

#[test]
fn a_scorer_needs_valid_settings_and_a_sandbox() {
    let error = |table: &str| {
        let made = scorer(&entries(&[table])[0], None, &ProgramLog::Stderr);
        made.err().unwrap().to_string()
    };
    assert!(error("kind = 'regex'\npattern = '('").starts_with("`reward \"regex\".pattern` is \"(\""));
    let code = error("kind = 'code'\nname = 'tests'\nprogram = '{{ reply }}'");
    assert!(code.starts_with("the reward \"tests\" runs programs that the model writes; allow it"), "{code}");
}
