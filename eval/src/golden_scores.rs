//! The recorded scores of lm-evaluation-harness, for tests: made-up replies with what its filters and metrics
//! made of them (`tests/golden/lm_eval/score_golden.py`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// One document and the replies to it.
#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) task: String,
    pub(crate) doc: Value,
    pub(crate) target: Value,
    #[serde(default)]
    pub(crate) requests: Vec<Value>,
    #[serde(default)]
    pub(crate) replies: Vec<Scored>,
}

/// The reply; by filter the filtered reply, `None` if it is the reply; by filter the metrics.
#[derive(Deserialize)]
pub(crate) struct Scored(
    pub(crate) String,
    pub(crate) BTreeMap<String, Option<String>>,
    pub(crate) BTreeMap<String, BTreeMap<String, Value>>,
);

/// The cases of all files whose task begins with `task`.
pub(crate) fn cases(task: &str) -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/lm_eval/scores");
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let all: Vec<Value> = serde_json::from_str(&text).unwrap();
        let wanted = all.into_iter().filter(|case| case["task"].as_str().unwrap().starts_with(task));
        cases.extend(wanted.map(|case| serde_json::from_value::<Case>(case).unwrap()));
    }
    assert!(!cases.is_empty(), "no recorded case of {task}");
    cases
}

impl Case {
    /// A column of the document.
    pub(crate) fn column(&self, name: &str) -> &str {
        self.doc[name].as_str().unwrap_or_else(|| panic!("{} has no {name}", self.task))
    }
}

impl Scored {
    /// A metric under a filter.
    pub(crate) fn metric(&self, filter: &str, metric: &str) -> f64 {
        self.2[filter][metric].as_f64().unwrap()
    }
}
