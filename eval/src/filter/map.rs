//! Patterns with values (`MapRegexFilter` in `tasks/bbh/zeroshot/utils.py` of lm-evaluation-harness 0.4.13).

use serde::{Deserialize, Serialize};

use super::selected::select;
use crate::Error;
use crate::python_regex::PythonRegex;

/// A pattern and its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatternValue {
    /// The pattern.
    pub pattern: PythonRegex,
    /// What stands for a match.
    pub value: String,
}

/// A list of patterns with values. In a file it is a list of tables `pattern`, `value`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<PatternValue>", into = "Vec<PatternValue>")]
pub struct PatternMap {
    entries: Vec<PatternValue>,
    any: PythonRegex,
}

impl PatternMap {
    /// The value of the first pattern that matches the selected match of all patterns together.
    pub(super) fn find(&self, text: &str, group_select: isize) -> Result<Option<String>, Error> {
        let Some(found) = select(&self.any, text, group_select)?.filter(|found| !found.is_empty()) else {
            return Ok(None);
        };
        for entry in &self.entries {
            // Here as well the place is that of `group_select`.
            if select(&entry.pattern, &found, group_select)?.is_some_and(|part| !part.is_empty()) {
                return Ok(Some(entry.value.clone()));
            }
        }
        Ok(None)
    }
}

impl TryFrom<Vec<PatternValue>> for PatternMap {
    type Error = Error;

    fn try_from(entries: Vec<PatternValue>) -> Result<Self, Error> {
        let patterns: Vec<&str> = entries.iter().map(|entry| entry.pattern.as_str()).collect();
        let any = PythonRegex::new(&patterns.join("|"))?;
        Ok(Self { entries, any })
    }
}

impl From<PatternMap> for Vec<PatternValue> {
    fn from(map: PatternMap) -> Self {
        map.entries
    }
}
