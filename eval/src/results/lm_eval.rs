//! The results of one model in the shape of lm-evaluation-harness 0.4.13, for scripts that read it
//! (`results_*.json`, written by `loggers/evaluation_tracker.py`). Dates, times and the versions of Python
//! packages are left out.

use serde_json::{Map, Value, json};

use super::{ModelResults, Results};
use crate::evaluation::{Evaluation, Score};

impl Results {
    /// The results of a model. Standard errors that are not defined are `"N/A"`.
    pub fn lm_eval(&self, evaluation: &Evaluation, model: &ModelResults) -> Value {
        let mut results = Map::new();
        let mut groups = Map::new();
        for (group, tasks) in &evaluation.groups {
            let scores: Vec<&Score> = model.groups.iter().filter(|score| score.task == group.group).collect();
            let length: usize =
                tasks.iter().filter_map(|task| self.task(task)).map(|task| task.effective).sum();
            let row = row(&group.group, length, &scores);
            if !scores.is_empty() {
                groups.insert(group.group.clone(), row.clone());
            }
            results.insert(group.group.clone(), row);
        }
        for task in &self.tasks {
            let scores: Vec<&Score> = model.scores.iter().filter(|score| score.task == task.task).collect();
            results.insert(task.task.clone(), row(&task.task, task.effective, &scores));
        }

        let per_task = |value: &dyn Fn(&super::TaskInfo) -> Value| -> Map<String, Value> {
            self.tasks.iter().map(|task| (task.task.clone(), value(task))).collect()
        };
        let mut whole = Map::new();
        whole.insert("results".to_owned(), Value::Object(results));
        if !groups.is_empty() {
            whole.insert("groups".to_owned(), Value::Object(groups));
        }
        let subtasks: Map<String, Value> =
            evaluation.groups.iter().map(|(group, tasks)| (group.group.clone(), json!(tasks))).collect();
        whole.insert("group_subtasks".to_owned(), Value::Object(subtasks));
        let configs: Map<String, Value> =
            evaluation.tasks.iter().map(|task| (task.task.task.clone(), json!(task.task))).collect();
        whole.insert("configs".to_owned(), Value::Object(configs));
        let version =
            |task: &super::TaskInfo| task.version.map_or_else(|| json!("Yaml"), |version| json!(version));
        whole.insert("versions".to_owned(), per_task(&version).into());
        whole.insert("n-shot".to_owned(), per_task(&|task| json!(task.num_fewshot)).into());
        whole.insert("higher_is_better".to_owned(), self.higher_is_better(model).into());
        let samples =
            |task: &super::TaskInfo| json!({"original": task.original, "effective": task.effective});
        whole.insert("n-samples".to_owned(), per_task(&samples).into());
        whole.insert("config".to_owned(), json!({"model": self.program, "model_sha": model.digest}));
        whole.insert("model_name".to_owned(), json!(model.name));
        whole.insert("model_source".to_owned(), json!("colossal-chat"));
        Value::Object(whole)
    }

    fn higher_is_better(&self, model: &ModelResults) -> Map<String, Value> {
        let of_task = |name: &str| -> Map<String, Value> {
            let scores = model.scores.iter().filter(|score| score.task == name);
            scores.map(|score| (score.metric.clone(), json!(score.higher_is_better))).collect()
        };
        self.tasks.iter().map(|task| (task.task.clone(), of_task(&task.task).into())).collect()
    }
}

fn row(name: &str, length: usize, scores: &[&Score]) -> Value {
    let mut row = Map::new();
    row.insert("alias".to_owned(), json!(name));
    row.insert("name".to_owned(), json!(name));
    row.insert("sample_len".to_owned(), json!(length));
    for score in scores {
        row.insert(format!("{},{}", score.metric, score.filter), json!(score.aggregated.value));
        let error = score.aggregated.standard_error.map_or_else(|| json!("N/A"), |error| json!(error));
        row.insert(format!("{}_stderr,{}", score.metric, score.filter), error);
    }
    Value::Object(row)
}
