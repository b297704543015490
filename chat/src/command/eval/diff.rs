//! `eval diff`: compares two folders of results document by document.

use std::collections::BTreeMap;
use std::path::Path;

use eval::aggregate::Aggregation;
use eval::evaluation::{Sample, Score};
use eval::results::{Comparison, ModelResults, Results, TaskInfo, compare};
use eval::score::{Metric, MetricValue, Scored};
use parallel::regular_file;
use serde_json::Value;

use super::list;
use crate::args::EvalDiffArgs;
use crate::config::ConfigError;
use crate::console::{print, print_stderr};
use crate::evaluation::output;

/// Compares the first model of the one folder with the last model of the other.
pub(super) fn run(arguments: &EvalDiffArgs) -> anyhow::Result<()> {
    let before = read(&arguments.before)?;
    let after = read(&arguments.after)?;
    let (Some(left), Some(right)) = (before.models.first(), after.models.last()) else {
        return wrong(&arguments.before, "it holds no model");
    };

    let mut comparisons = Vec::new();
    let mut common = 0;
    for task in &before.tasks {
        let Some(other) = after.task(&task.task) else { continue };
        common += 1;
        if task.prompt_hash != other.prompt_hash && !arguments.force {
            let problem = format!(
                "{} was asked otherwise ({} and {}): evaluate both alike, or compare what both answered with \
                 --force",
                task.task, task.protocol_id, other.protocol_id
            );
            return wrong(&arguments.after, &problem);
        }
        let left_scores = read_samples(&arguments.before, left, task)?;
        let right_scores = read_samples(&arguments.after, right, other)?;
        let samples = (&left_scores.samples[..], &right_scores.samples[..]);
        comparisons.extend(compare((&left.name, &right.name), &task.task, samples, &left_scores.clusters())?);
    }
    if common == 0 {
        return wrong(&arguments.after, "it has no task in common with the first folder");
    }
    correct(&mut comparisons)?;
    if arguments.json {
        return Ok(print(&serde_json::to_string_pretty(&comparisons)?)?);
    }
    print_stderr(&format!("{} against {}", right.name, left.name));
    Ok(print(list::comparison_table(&comparisons).trim_end())?)
}

/// Holm's correction for all comparisons that are shown.
fn correct(comparisons: &mut [Comparison]) -> anyhow::Result<()> {
    let p_values: Vec<f64> = comparisons.iter().map(|comparison| comparison.p_value).collect();
    for (comparison, corrected) in comparisons.iter_mut().zip(eval::statistics::holm(&p_values)?) {
        comparison.p_value_holm = corrected;
    }
    Ok(())
}

fn wrong<T>(folder: &Path, problem: &str) -> anyhow::Result<T> {
    let argument = folder.display().to_string();
    Err(ConfigError::Argument { argument, problem: problem.to_owned() }.into())
}

fn read(folder: &Path) -> anyhow::Result<Results> {
    let path = folder.join("results.json");
    let text = read_text(&path)?;
    match serde_json::from_str(&text) {
        Ok(results) => Ok(results),
        Err(error) => wrong(&path, &format!("these are no results of this program: {error}")),
    }
}

fn read_text(path: &Path) -> Result<String, ConfigError> {
    regular_file::read_to_string(path, output::LARGEST_RESULTS)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

/// The scores of each document, as `samples/` holds them.
struct TaskSamples {
    samples: Vec<Sample>,
    /// The cluster of each document that has one.
    cluster_of: BTreeMap<usize, String>,
}

impl TaskSamples {
    fn clusters(&self) -> BTreeMap<usize, &str> {
        self.cluster_of.iter().map(|(doc_id, cluster)| (*doc_id, cluster.as_str())).collect()
    }
}

fn read_samples(folder: &Path, model: &ModelResults, task: &TaskInfo) -> anyhow::Result<TaskSamples> {
    let file = format!("samples/{}/{}.jsonl", output::file_name(&model.name), task.task);
    let path = folder.join(file);
    let text = read_text(&path)?;
    let scores: Vec<&Score> = model.scores.iter().filter(|score| score.task == task.task).collect();

    let mut found: BTreeMap<usize, Sample> = BTreeMap::new();
    let mut cluster_of = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let row: Value = match serde_json::from_str(line) {
            Ok(row) => row,
            Err(error) => return wrong(&path, &format!("line {} is damaged: {error}", number + 1)),
        };
        let Some(doc_id) = row["doc_id"].as_u64().map(|doc_id| doc_id as usize) else {
            return wrong(&path, &format!("line {} has no doc_id", number + 1));
        };
        if let Some(cluster) = row["cluster"].as_str() {
            cluster_of.insert(doc_id, cluster.to_owned());
        }
        let sample = found.entry(doc_id).or_insert_with(|| Sample {
            doc_id,
            responses: Vec::new(),
            scored: Vec::new(),
            problem: None,
        });
        match scored(&row, &scores) {
            Ok(scored) => sample.scored.extend(scored),
            Err(problem) => return wrong(&path, &format!("line {} {problem}", number + 1)),
        }
    }
    Ok(TaskSamples { samples: found.into_values().collect(), cluster_of })
}

/// The numbers of a row under its filter. `None` for a row without scores.
fn scored(row: &Value, scores: &[&Score]) -> Result<Option<Scored>, String> {
    let Some(filter) = row["filter"].as_str() else { return Ok(None) };
    let mut metrics = Vec::new();
    for score in scores.iter().filter(|score| score.filter == filter) {
        let value = match &row[&score.metric] {
            Value::Number(number) => number.as_f64().unwrap_or(f64::NAN),
            // NaN is null, a metric of other rows is missing, and sums and lists are not compared by
            // document.
            Value::Null | Value::Object(_) | Value::Array(_) => continue,
            other => return Err(format!("has {other} as {}; evaluate the task again", score.metric)),
        };
        metrics.push(Metric {
            name: score.metric.clone(),
            value: MetricValue::Number(value),
            aggregation: Aggregation::Mean,
            higher_is_better: score.higher_is_better,
        });
    }
    Ok(Some(Scored {
        filter: filter.to_owned(),
        answer: String::new(),
        unparsed: row["unparsed"].as_bool().unwrap_or(false),
        correct: row["correct"].as_bool(),
        metrics,
        executions: Vec::new(),
    }))
}

#[cfg(test)]
mod tests {
    use eval::aggregate::Aggregated;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_metric_that_is_null_in_a_row_does_not_move_the_others() {
        let score = |metric: &str| Score {
            task: "bbq".to_owned(),
            metric: metric.to_owned(),
            filter: "none".to_owned(),
            aggregated: Aggregated { value: 0.5, standard_error: None, interval: None },
            higher_is_better: true,
            n: 2,
            unparsed: 0,
            failed: 0,
            cut: 0,
        };
        let scores = ["mc2", "acc", "bias_Age"].map(score);
        let scores: Vec<&Score> = scores.iter().collect();
        let row =
            |mc2: Value| json!({"filter": "none", "mc2": mc2, "acc": 1.0, "bias_Age": {"correct": 1.0}});
        let numbers = |row: &Value| -> Vec<(String, MetricValue)> {
            let metrics = scored(row, &scores).unwrap().unwrap().metrics;
            metrics.into_iter().map(|metric| (metric.name, metric.value)).collect()
        };
        let acc = ("acc".to_owned(), MetricValue::Number(1.0));
        assert_eq!(numbers(&row(json!(null))), vec![acc.clone()]);
        assert_eq!(numbers(&row(json!(0.25))), [("mc2".to_owned(), MetricValue::Number(0.25)), acc]);
        assert!(scored(&row(json!("high")), &scores).unwrap_err().contains("mc2"));
        assert_eq!(scored(&json!({"doc_id": 1}), &scores).unwrap(), None);
    }
}
