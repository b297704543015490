//! An evaluation: tasks and their rows become requests, a model answers them, and the answers become scores.
//!
//! [`Evaluation::prepare`] reads and checks everything before a model is needed. [`Evaluation::run`] asks one
//! model, through the trait [`LanguageModel`]. Scoring is pure, so an evaluation that was broken off and goes
//! on later ends with the same results.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::aggregate::{Aggregated, Aggregation, aggregate};
use crate::code_execution::{CodeRunner, Program, Verdict};
use crate::document::{Document, Documents, PromptOptions, build};
use crate::request::{LanguageModel, Request, Response};
use crate::request_set::{Progress, RequestSet};
use crate::response_cache::ResponseCache;
use crate::rows;
use crate::score::{MetricValue, Scored, programs, score};
use crate::statistics::{Estimate, Weighting, group_mean, macro_mean};
use crate::task::{Group, Selection, Task};

/// A task with its documents.
#[derive(Debug)]
pub struct PreparedTask {
    /// The task.
    pub task: Task,
    /// Its documents.
    pub documents: Documents,
    /// For each document, the indices of its requests among those of the evaluation.
    requests: Vec<Vec<usize>>,
}

/// Everything that is asked, before a model is loaded.
#[derive(Debug)]
pub struct Evaluation {
    /// The tasks.
    pub tasks: Vec<PreparedTask>,
    /// The groups, each with the names of its tasks.
    pub groups: Vec<(Group, Vec<String>)>,
    /// How prompts are made.
    pub options: PromptOptions,
    /// What runs the programs that a model writes. Without it, tasks that need it cannot run.
    pub code_runner: Option<Box<dyn CodeRunner>>,
    /// The requests of all tasks, each once.
    requests: RequestSet,
}

/// One document with its answers and scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The index of the row in its split.
    pub doc_id: usize,
    /// The answers, in the order of the requests.
    pub responses: Vec<Response>,
    /// The scores under each filter. Empty if an answer failed.
    pub scored: Vec<Scored>,
    /// Why there are no scores: a request failed, or its answer could not be scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One number for a task or a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The name of the task or the group.
    pub task: String,
    /// The metric.
    pub metric: String,
    /// The filter pipeline.
    pub filter: String,
    /// The value and its uncertainty.
    #[serde(flatten)]
    pub aggregated: Aggregated,
    /// Whether more is better.
    pub higher_is_better: bool,
    /// The number of documents.
    pub n: usize,
    /// The documents in whose reply no answer was found. They count as wrong.
    pub unparsed: usize,
    /// The documents that the model could not answer, or whose answer could not be scored. They do not count.
    pub failed: usize,
    /// The documents whose prompt was too long for the model and lost its beginning.
    #[serde(default)]
    pub cut: usize,
}

/// What a model answered, before it is scored.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// The name of the model.
    pub name: String,
    /// The hash of the model.
    pub digest: String,
    /// The answers to the requests of the evaluation.
    responses: Vec<Response>,
    /// The time that the requests of this process took.
    pub elapsed: Duration,
}

/// What one model made of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRun {
    /// The name of the model.
    pub name: String,
    /// The hash of the model.
    pub digest: String,
    /// The samples of each task, in the order of the tasks.
    pub samples: Vec<Vec<Sample>>,
    /// The scores of tasks.
    pub scores: Vec<Score>,
    /// The scores of groups.
    pub groups: Vec<Score>,
    /// The time that the requests of this process took.
    pub elapsed: Duration,
}

impl ModelRun {
    /// The number of documents that the model could not answer.
    pub fn failed(&self) -> usize {
        self.samples.iter().flatten().filter(|sample| sample.problem.is_some()).count()
    }
}

impl Evaluation {
    /// Reads the rows of all tasks from the folder `data` and makes the requests.
    pub fn prepare(selection: Selection, data: &Path, options: PromptOptions) -> Result<Self, Error> {
        let mut evaluation = Self {
            tasks: Vec::new(),
            groups: selection.groups,
            options,
            code_runner: None,
            requests: RequestSet::default(),
        };
        for task in selection.tasks {
            let documents = documents(&task, data, &evaluation.options)?;
            if documents.documents.is_empty() {
                return Err(Error::NoDocuments { task: task.task });
            }
            for document in &documents.documents {
                check_scoring(&task, document).map_err(|error| in_row(&task, document, error))?;
            }
            let mut requests = Vec::with_capacity(documents.documents.len());
            for document in &documents.documents {
                let add = |request: &Request| evaluation.requests.add(request.clone());
                requests.push(document.requests.iter().map(add).collect());
            }
            evaluation.tasks.push(PreparedTask { task, documents, requests });
        }
        evaluation.groups.iter().try_for_each(|group| evaluation.check_group(group))?;
        Ok(evaluation)
    }

    /// Refuses a group whose metrics or filters none of its tasks has.
    fn check_group(&self, (group, names): &(Group, Vec<String>)) -> Result<(), Error> {
        let tasks =
            || self.tasks.iter().map(|prepared| &prepared.task).filter(|task| names.contains(&task.task));
        let refuse = |key, name: &String, known: Vec<String>| {
            Err(Error::UnknownInGroup {
                group: group.group.clone(),
                key,
                name: name.clone(),
                known: listed(known),
            })
        };
        let metrics: Vec<String> = tasks().flat_map(Task::metric_names).collect();
        let filters: Vec<String> = tasks().flat_map(Task::filter_names).collect();
        if let Some(name) = group.metrics.iter().find(|name| !metrics.contains(name)) {
            return refuse("metrics", name, metrics);
        }
        if let Some(name) = group.filters.iter().find(|name| !filters.contains(name)) {
            return refuse("filters", name, filters);
        }
        Ok(())
    }

    /// The number of different requests.
    pub fn num_requests(&self) -> usize {
        self.requests.len()
    }

    /// Whether a task runs code.
    pub fn runs_code(&self) -> bool {
        self.code_tasks().next().is_some()
    }

    /// Fails if a task runs code and there is no [`Self::code_runner`].
    pub fn check_code_runner(&self) -> Result<(), Error> {
        match self.code_tasks().next().filter(|_| self.code_runner.is_none()) {
            Some(task) => Err(Error::CodeNotAllowed { task: task.task.clone() }),
            None => Ok(()),
        }
    }

    fn code_tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().map(|prepared| &prepared.task).filter(|task| task.code_execution.is_some())
    }

    /// Asks a model everything that `cache` does not hold, and scores the answers.
    pub fn run(
        &self,
        model: &mut dyn LanguageModel,
        cache: &mut ResponseCache,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<ModelRun, Error> {
        self.check_code_runner()?;
        self.score(self.ask(model, cache, on_progress)?)
    }

    /// Asks a model everything that `cache` does not hold.
    pub fn ask(
        &self,
        model: &mut dyn LanguageModel,
        cache: &mut ResponseCache,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Answers, Error> {
        let (name, digest) = (model.name().to_owned(), model.digest().to_owned());
        let started = Instant::now();
        let responses = self.requests.ask(model, cache, on_progress)?;
        Ok(Answers { name, digest, responses, elapsed: started.elapsed() })
    }

    /// Replaces answers by those that `cache` holds of the same model: those of all processes.
    pub fn collect(&self, answers: Answers, cache: &ResponseCache) -> Answers {
        Answers { responses: self.requests.answered(&answers.digest, cache), ..answers }
    }

    /// Scores the answers of a model.
    pub fn score(&self, answers: Answers) -> Result<ModelRun, Error> {
        let Answers { name, digest, responses, elapsed } = answers;
        let mut samples = Vec::with_capacity(self.tasks.len());
        let mut scores = Vec::new();
        for prepared in &self.tasks {
            let of_task = prepared.samples(&responses, self.code_runner.as_deref())?;
            scores.extend(prepared.scores(&of_task)?);
            samples.push(of_task);
        }
        let groups = self.group_scores(&scores);
        Ok(ModelRun { name, digest, samples, scores, groups, elapsed })
    }

    /// The scores of the groups, from those of their tasks.
    fn group_scores(&self, scores: &[Score]) -> Vec<Score> {
        let mut found = Vec::new();
        for (group, tasks) in &self.groups {
            for metric in &group.metrics {
                let mut filters: Vec<&str> = Vec::new();
                let in_group = |score: &&Score| tasks.contains(&score.task) && score.metric == *metric;
                for score in scores.iter().filter(in_group) {
                    let wanted = group.filters.is_empty() || group.filters.contains(&score.filter);
                    if wanted && !filters.contains(&score.filter.as_str()) {
                        filters.push(&score.filter);
                    }
                }
                for filter in filters {
                    let parts: Vec<&Score> =
                        scores.iter().filter(in_group).filter(|score| score.filter == filter).collect();
                    found.push(group_score(group, metric, filter, &parts));
                }
            }
        }
        found
    }
}

/// The number of a group from those of its tasks.
fn group_score(group: &Group, metric: &str, filter: &str, parts: &[&Score]) -> Score {
    let estimate = |score: &&Score| Estimate {
        mean: score.aggregated.value,
        standard_error: score.aggregated.standard_error.unwrap_or(f64::NAN),
        low: score.aggregated.value,
        high: score.aggregated.value,
        n: score.n,
    };
    let estimates: Vec<Estimate> = parts.iter().map(estimate).collect();
    let n: usize = estimates.iter().map(|estimate| estimate.n).sum();
    let known = estimates.iter().all(|estimate| estimate.standard_error.is_finite());
    let pooled =
        if group.weight_by_size { group_mean(&estimates, Weighting::BySize) } else { macro_mean(&estimates) };
    let weight = |estimate: &Estimate| if group.weight_by_size { estimate.n as f64 } else { 1.0 };
    let total: f64 = estimates.iter().map(weight).sum();
    let value = estimates.iter().map(|estimate| weight(estimate) * estimate.mean).sum::<f64>() / total;
    let pooled = pooled.ok().filter(|_| known);
    Score {
        task: group.group.clone(),
        metric: metric.to_owned(),
        filter: filter.to_owned(),
        aggregated: Aggregated {
            value,
            standard_error: pooled.map(|pooled| pooled.standard_error),
            // Tasks on which all documents score the same have no standard error to pool, and no interval.
            interval: pooled.and_then(|pooled| pooled.interval()),
        },
        higher_is_better: parts.first().is_none_or(|score| score.higher_is_better),
        n,
        unparsed: parts.iter().map(|score| score.unparsed).sum(),
        failed: parts.iter().map(|score| score.failed).sum(),
        cut: parts.iter().map(|score| score.cut).sum(),
    }
}

/// Reads the rows of a task and makes its documents.
fn documents(task: &Task, data: &Path, options: &PromptOptions) -> Result<Documents, Error> {
    let rows = rows::read(data, &task.dataset, &task.dataset.split)?;
    let needs_pool = task.shots(options.num_fewshot) > 0;
    let pool = match (&task.fewshot.samples, &task.fewshot.split) {
        (Some(samples), _) => Some(samples.clone()),
        (None, Some(split)) if needs_pool && *split != task.dataset.split => {
            Some(rows::read(data, &task.dataset, split)?)
        }
        _ => None,
    };
    build(task, rows, pool, options)
}

impl PreparedTask {
    /// The protocol id of the task's scores.
    pub fn protocol_id(&self) -> String {
        self.task.protocol_id(self.documents.shots, &self.documents.protocol_hash)
    }

    fn samples(
        &self,
        responses: &[Response],
        code_runner: Option<&dyn CodeRunner>,
    ) -> Result<Vec<Sample>, Error> {
        let of_document = |requests: &Vec<usize>| -> Vec<Response> {
            requests.iter().map(|&index| responses[index].clone()).collect()
        };
        let responses: Vec<Vec<Response>> = self.requests.iter().map(of_document).collect();
        let executions = self.execute(&responses, code_runner)?;

        let mut samples = Vec::with_capacity(responses.len());
        for ((document, responses), executions) in
            self.documents.documents.iter().zip(responses).zip(executions)
        {
            // One answer that cannot be scored, such as one that takes a pattern too long, costs its own
            // document and no other.
            let scored = match failure(&responses) {
                Some(problem) => Err(problem.to_owned()),
                None => {
                    score(&self.task, document, &responses, &executions).map_err(|error| error.to_string())
                }
            };
            let (scored, problem) = match scored {
                Ok(scored) => (scored, None),
                Err(problem) => (Vec::new(), Some(problem)),
            };
            samples.push(Sample { doc_id: document.doc_id, responses, scored, problem });
        }
        Ok(samples)
    }

    /// Runs the programs of all documents, equal ones once. Returns the verdicts of each document.
    fn execute(
        &self,
        responses: &[Vec<Response>],
        code_runner: Option<&dyn CodeRunner>,
    ) -> Result<Vec<Vec<Verdict>>, Error> {
        let mut different: Vec<Program> = Vec::new();
        let mut known: HashMap<Program, usize> = HashMap::new();
        let mut of_documents: Vec<Vec<usize>> = Vec::with_capacity(responses.len());
        for (document, responses) in self.documents.documents.iter().zip(responses) {
            let programs = match failure(responses) {
                Some(_) => Vec::new(),
                None => programs(&self.task, document, responses)
                    .map_err(|error| in_row(&self.task, document, error))?,
            };
            let of_document = programs.into_iter().map(|program| {
                *known.entry(program).or_insert_with_key(|program| {
                    different.push(program.clone());
                    different.len() - 1
                })
            });
            of_documents.push(of_document.collect());
        }
        if different.is_empty() {
            return Ok(vec![Vec::new(); responses.len()]);
        }

        let task = || self.task.task.clone();
        let code_runner = code_runner.ok_or_else(|| Error::CodeNotAllowed { task: task() })?;
        let verdicts =
            code_runner.run(&different).map_err(|source| Error::CodeRunner { task: task(), source })?;
        let of_document = |programs: Vec<usize>| programs.iter().map(|&at| verdicts[at].clone()).collect();
        Ok(of_documents.into_iter().map(of_document).collect())
    }

    /// The scores of the task on these samples, which may be a part of its documents: one for each filter and
    /// metric. Without a document that could be scored, they have no value.
    pub(crate) fn scores(&self, samples: &[Sample]) -> Result<Vec<Score>, Error> {
        let failed = samples.iter().filter(|sample| sample.problem.is_some()).count();
        let is_cut = |sample: &&Sample| sample.responses.iter().any(|response| response.cut() > 0);
        let cut = samples.iter().filter(is_cut).count();
        let cluster = |document: &'_ Document| Some((document.doc_id, document.cluster.clone()?));
        let clusters: HashMap<usize, String> = self.documents.documents.iter().filter_map(cluster).collect();
        let mut order: Vec<(String, String)> = Vec::new();
        let mut values: BTreeMap<(String, String), Values<'_>> = BTreeMap::new();
        let scored =
            samples.iter().flat_map(|sample| sample.scored.iter().map(|scored| (sample.doc_id, scored)));
        for (doc_id, scored) in scored {
            for metric in &scored.metrics {
                let key = (scored.filter.clone(), metric.name.clone());
                let held = values.entry(key.clone()).or_insert_with(|| {
                    order.push(key);
                    Values {
                        aggregation: metric.aggregation,
                        higher_is_better: metric.higher_is_better,
                        unparsed: 0,
                        of_documents: Vec::new(),
                        clusters: Some(Vec::new()),
                    }
                });
                held.unparsed += usize::from(scored.unparsed);
                // Clusters count if every document has one.
                held.clusters = held.clusters.take().zip(clusters.get(&doc_id)).map(|(mut held, cluster)| {
                    held.push(cluster.as_str());
                    held
                });
                held.of_documents.push(&metric.value);
            }
        }

        let mut scores = Vec::with_capacity(order.len());
        for key in order {
            let Some(held) = values.remove(&key) else { continue };
            scores.push(Score {
                task: self.task.task.clone(),
                metric: key.1,
                filter: key.0,
                aggregated: aggregate(held.aggregation, &held.of_documents, held.clusters.as_deref())?,
                higher_is_better: held.higher_is_better,
                n: held.of_documents.len(),
                unparsed: held.unparsed,
                failed,
                cut,
            });
        }
        if scores.is_empty() && failed > 0 {
            scores.extend(self.scores_without_value(failed, cut));
        }
        Ok(scores)
    }

    /// The scores of a task without a document that could be scored, so that it does not vanish from tables
    /// and groups.
    fn scores_without_value(&self, failed: usize, cut: usize) -> Vec<Score> {
        let filters = self.task.filter_names();
        let score = |(filter, metric): (&String, String)| Score {
            task: self.task.task.clone(),
            metric,
            filter: filter.clone(),
            aggregated: Aggregated { value: f64::NAN, standard_error: None, interval: None },
            higher_is_better: true,
            n: 0,
            unparsed: 0,
            failed,
            cut,
        };
        let of_filter = |filter| self.task.metric_names().into_iter().map(move |metric| (filter, metric));
        filters.iter().flat_map(of_filter).map(score).collect()
    }
}

fn in_row(task: &Task, document: &Document, error: Error) -> Error {
    Error::InRow { task: task.task.clone(), row: document.doc_id, source: Box::new(error) }
}

/// Names, each once, for an error.
fn listed(mut names: Vec<String>) -> String {
    names.sort();
    names.dedup();
    names.join(", ")
}

/// Scores a document with empty answers: what the row lacks for its metrics is found before a model is asked.
fn check_scoring(task: &Task, document: &Document) -> Result<(), Error> {
    let empty = |request: &Request| match request {
        Request::GenerateUntil { .. } => {
            Response::Reply { text: String::new(), tokens: 0, ended: true, cut: 0 }
        }
        _ => Response::Loglikelihood { logprob: -1.0, is_greedy: false, cut: 0 },
    };
    let responses: Vec<Response> = document.requests.iter().map(empty).collect();
    let programs = programs(task, document, &responses)?;
    let failed = vec![Verdict::Failed { reason: String::new() }; programs.len()];
    score(task, document, &responses, &failed).map(drop)
}

/// Why a document has no answer.
fn failure(responses: &[Response]) -> Option<&str> {
    responses.iter().find_map(|response| match response {
        Response::Failed { problem } => Some(problem.as_str()),
        _ => None,
    })
}

/// The values of one metric under one filter.
struct Values<'a> {
    aggregation: Aggregation,
    higher_is_better: bool,
    unparsed: usize,
    of_documents: Vec<&'a MetricValue>,
    clusters: Option<Vec<&'a str>>,
}
