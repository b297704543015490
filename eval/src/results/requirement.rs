//! What a run must reach: `--require gsm8k>=0.4`, for checks in continuous integration.

use std::fmt;
use std::str::FromStr;

use super::ModelResults;

/// A bound on a score.
#[derive(Clone, Debug, PartialEq)]
pub struct Requirement {
    /// The task or group.
    pub task: String,
    /// The metric; without it, the first one of the task.
    pub metric: Option<String>,
    /// The filter; without it, any that has the metric.
    pub filter: Option<String>,
    /// Whether the score must be at least the bound. Otherwise it must be at most the bound.
    pub at_least: bool,
    /// The bound.
    pub bound: f64,
}

impl FromStr for Requirement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write TASK>=NUMBER, TASK:METRIC<=NUMBER or TASK:METRIC,FILTER>=NUMBER";
        let (at_least, parts) = match (text.split_once(">="), text.split_once("<=")) {
            (Some(parts), None) => (true, parts),
            (None, Some(parts)) => (false, parts),
            _ => return Err(FORM.to_owned()),
        };
        let bound: f64 = parts.1.trim().parse().map_err(|_| FORM.to_owned())?;
        if !bound.is_finite() {
            return Err(FORM.to_owned());
        }
        let (task, rest) = match parts.0.trim().split_once(':') {
            Some((task, rest)) => (task, Some(rest)),
            None => (parts.0.trim(), None),
        };
        let (metric, filter) = match rest.map(|rest| rest.split_once(',')) {
            Some(Some((metric, filter))) => (Some(metric.to_owned()), Some(filter.to_owned())),
            Some(None) => (rest.map(str::to_owned), None),
            None => (None, None),
        };
        if task.is_empty() {
            return Err(FORM.to_owned());
        }
        Ok(Self { task: task.to_owned(), metric, filter, at_least, bound })
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metric = self.metric.as_ref().map_or(String::new(), |metric| format!(":{metric}"));
        let filter = self.filter.as_ref().map_or(String::new(), |filter| format!(",{filter}"));
        let sign = if self.at_least { ">=" } else { "<=" };
        write!(out, "{}{metric}{filter}{sign}{}", self.task, self.bound)
    }
}

impl Requirement {
    /// Checks the bound. Returns what is wrong: a score that misses it, or that there is no such score.
    pub fn check(&self, model: &ModelResults) -> Result<(), String> {
        let matches = |score: &&crate::evaluation::Score| {
            score.task == self.task
                && self.metric.as_ref().is_none_or(|metric| *metric == score.metric)
                && self.filter.as_ref().is_none_or(|filter| *filter == score.filter)
        };
        let Some(score) = model.all().find(matches) else {
            return Err(format!("{self}: {} has no such score", model.name));
        };
        let value = score.aggregated.value;
        let reached = if self.at_least { value >= self.bound } else { value <= self.bound };
        if reached {
            return Ok(());
        }
        Err(format!("{self}: {} has {value:.4} ({},{})", model.name, score.metric, score.filter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_names_task_metric_filter_and_bound() {
        let parse = |text: &str| text.parse::<Requirement>();
        let plain = parse("gsm8k>=0.4").unwrap();
        assert_eq!(
            (plain.task.as_str(), plain.metric, plain.at_least, plain.bound),
            ("gsm8k", None, true, 0.4)
        );
        let whole = parse("gsm8k:exact_match,strict-match<=1").unwrap();
        assert_eq!(whole.to_string(), "gsm8k:exact_match,strict-match<=1");
        assert_eq!(whole.filter.as_deref(), Some("strict-match"));
        for wrong in ["gsm8k", "gsm8k>0.4", ">=1", "a>=x", "a>=inf", "a>=1<=2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
