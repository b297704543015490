//! From the answers of a model to the scores of one document.
//!
//! Rules of lm-evaluation-harness 0.4.13 (`process_results` in `api/task.py` and in the tasks' `utils.py`),
//! held against its recordings. Pure: the same answers always give the same scores. How scores of documents
//! become one number is in [`crate::aggregate`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;
use crate::aggregate::Aggregation;
use crate::bbq;
use crate::code_execution::{self, Program};
use crate::document::{Document, Target};
use crate::exact_match::{ExactMatch, Verdict};
use crate::filter::{self, Filtered, Pipeline};
use crate::ifeval;
use crate::math_answer::{self, agieval, hendrycks, minerva};
use crate::request::Response;
use crate::statistics::pass_at_k;
use crate::task::{MetricConfig, OutputType, Task};

pub use crate::metric_value::MetricValue;

/// A metric of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// The name in results.
    pub name: String,
    /// The value.
    pub value: MetricValue,
    /// How documents become one number.
    #[serde(skip)]
    pub aggregation: Aggregation,
    /// Whether more is better.
    #[serde(skip)]
    pub higher_is_better: bool,
}

/// The scores of a document under one filter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// The name of the filter pipeline, `none` without one.
    pub filter: String,
    /// What was compared with the target: the filtered reply, or the most likely choice.
    pub answer: String,
    /// Whether no answer was found in the reply.
    pub unparsed: bool,
    /// Whether the document counts as right, where the first metric is a rate.
    pub correct: Option<bool>,
    /// The metrics.
    pub metrics: Vec<Metric>,
    /// What came of the program of each reply, where the task runs code.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub executions: Vec<code_execution::Verdict>,
}

/// The programs that must run before a document can be scored: one for each filter and reply. None where the
/// task runs no code.
pub fn programs(task: &Task, document: &Document, responses: &[Response]) -> Result<Vec<Program>, Error> {
    let Some(execution) = &task.code_execution else { return Ok(Vec::new()) };
    let filtered = filtered(task, document, responses)?;
    let answers = filtered.iter().flat_map(|(_, answers)| answers).map(|answer| answer.text.as_str());
    execution.programs(&document.row, document.target.text(&document.choices)?, answers)
}

/// Scores a document. `responses` are the answers to its requests; none of them may be
/// [`Response::Failed`]. `executions` is what came of its [`programs`].
pub fn score(
    task: &Task,
    document: &Document,
    responses: &[Response],
    executions: &[code_execution::Verdict],
) -> Result<Vec<Scored>, Error> {
    let scored = match task.output_type {
        OutputType::GenerateUntil => return replies(task, document, responses, executions),
        OutputType::MultipleChoice | OutputType::MultipleContext => choices(task, document, responses)?,
        OutputType::Loglikelihood => target(task, document, responses)?,
        OutputType::LoglikelihoodRolling => rolling(task, document, responses)?,
    };
    Ok(vec![scored])
}

fn loglikelihoods(responses: &[Response]) -> Result<Vec<(f64, bool)>, Error> {
    let loglikelihood = |response: &Response| match response {
        Response::Loglikelihood { logprob, is_greedy, .. } => Ok((*logprob, *is_greedy)),
        _ => Err(Error::WrongResponse { wanted: "a log-likelihood" }),
    };
    responses.iter().map(loglikelihood).collect()
}

fn mean(name: &str, value: f64) -> Metric {
    Metric {
        name: name.to_owned(),
        value: MetricValue::Number(value),
        aggregation: Aggregation::Mean,
        higher_is_better: true,
    }
}

fn rate(name: &str, hit: bool) -> Metric {
    mean(name, f64::from(u8::from(hit)))
}

/// Choices scored by log-likelihood. On a tie the first choice counts, as in numpy's `argmax`.
fn choices(task: &Task, document: &Document, responses: &[Response]) -> Result<Scored, Error> {
    let logprobs: Vec<f64> = loglikelihoods(responses)?.into_iter().map(|(logprob, _)| logprob).collect();
    let target = &document.target;
    let longest_first = |lengths: &mut dyn Iterator<Item = usize>| {
        let normalized: Vec<f64> =
            logprobs.iter().zip(lengths).map(|(logprob, length)| logprob / length as f64).collect();
        argmax(&normalized)
    };

    let best = argmax(&logprobs);
    let mut metrics = Vec::with_capacity(task.metric_list.len());
    for metric in &task.metric_list {
        metrics.push(match metric {
            MetricConfig::Acc {} => rate("acc", target.is_right(best)),
            MetricConfig::Bbq {} => {
                metrics.extend(bias_metrics(document, best)?);
                continue;
            }
            MetricConfig::AccNorm {} => {
                let mut lengths = document.choices.iter().map(|choice| choice.chars().count());
                rate("acc_norm", target.is_right(longest_first(&mut lengths)))
            }
            MetricConfig::AccBytes {} => {
                let mut lengths = document.choices.iter().map(String::len);
                rate("acc_bytes", target.is_right(longest_first(&mut lengths)))
            }
            MetricConfig::Mc2 {} => mean("acc", probability_of_right(&logprobs, target)),
            MetricConfig::PctStereotype {} => {
                let hit = logprobs.len() == 2 && logprobs[0] > logprobs[1];
                Metric { higher_is_better: false, ..rate("pct_stereotype", hit) }
            }
            MetricConfig::LikelihoodDiff {} => {
                let difference = (logprobs[0] - logprobs.get(1).copied().unwrap_or(logprobs[0])).abs();
                Metric { higher_is_better: false, ..mean("likelihood_diff", difference) }
            }
            other => return Err(Error::WrongMetric { task: task.task.clone(), metric: other.name() }),
        });
    }
    let answer = document.choices.get(best).cloned().unwrap_or_default();
    Ok(scored("none", Filtered { text: answer, unparsed: false }, metrics))
}

/// BBQ's accuracies and bias scores, over all categories and for the one of the row.
fn bias_metrics(document: &Document, best: usize) -> Result<Vec<Metric>, Error> {
    let correct = document.target.is_right(best);
    let (bias, category) = bbq::bias(&document.row, &document.choices, best, correct)?;
    let metric = |name: String, aggregation, higher_is_better| Metric {
        name,
        value: MetricValue::Bias(bias),
        aggregation,
        higher_is_better,
    };
    let mut metrics = vec![rate("acc", correct)];
    for (kind, disambiguated) in [("amb", false), ("disamb", true)] {
        metrics.push(metric(format!("accuracy_{kind}"), Aggregation::BiasAccuracy { disambiguated }, true));
    }
    for (kind, disambiguated) in [("amb", false), ("disamb", true)] {
        let aggregation = Aggregation::BiasScore { disambiguated };
        metrics.push(metric(format!("{kind}_bias_score"), aggregation, false));
        metrics.push(metric(format!("{kind}_bias_score_{category}"), aggregation, false));
    }
    Ok(metrics)
}

/// The share of the right choices in the probability of all. Very low log-likelihoods can give 0/0, as in
/// lm-evaluation-harness.
fn probability_of_right(logprobs: &[f64], target: &Target) -> f64 {
    let total: f64 = logprobs.iter().map(|logprob| logprob.exp()).sum();
    let right = logprobs.iter().enumerate().filter(|(index, _)| target.is_right(*index));
    right.map(|(_, logprob)| logprob.exp() / total).sum()
}

/// The index of the first of the largest values; of NaN, the first NaN, as in numpy.
fn argmax(values: &[f64]) -> usize {
    if let Some(nan) = values.iter().position(|value| value.is_nan()) {
        return nan;
    }
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best
}

/// One continuation scored by log-likelihood.
fn target(task: &Task, document: &Document, responses: &[Response]) -> Result<Scored, Error> {
    let [(logprob, is_greedy)] = loglikelihoods(responses)?[..] else {
        return Err(Error::WrongResponse { wanted: "one log-likelihood" });
    };
    let mut metrics = Vec::new();
    for metric in &task.metric_list {
        metrics.push(match metric {
            MetricConfig::Acc {} => rate("acc", is_greedy),
            MetricConfig::Perplexity {} => Metric {
                aggregation: Aggregation::Perplexity,
                higher_is_better: false,
                ..mean("perplexity", logprob)
            },
            other => return Err(Error::WrongMetric { task: task.task.clone(), metric: other.name() }),
        });
    }
    let answer = if is_greedy { document.target.text(&document.choices)?.to_owned() } else { String::new() };
    Ok(scored("none", Filtered { text: answer, unparsed: false }, metrics))
}

/// A whole text scored by log-likelihood. Words and bytes are those of the row's own text, `doc_to_text`
/// (`weighted_perplexity` and `bits_per_byte` in `api/metrics.py`).
fn rolling(task: &Task, document: &Document, responses: &[Response]) -> Result<Scored, Error> {
    let [(logprob, _)] = loglikelihoods(responses)?[..] else {
        return Err(Error::WrongResponse { wanted: "one log-likelihood" });
    };
    let words = words(&document.input) as f64;
    let bytes = document.input.len() as f64;
    let mut metrics = Vec::new();
    for metric in &task.metric_list {
        let (aggregation, weight) = match metric {
            MetricConfig::WordPerplexity {} => (Aggregation::WeightedPerplexity, words),
            MetricConfig::BytePerplexity {} => (Aggregation::WeightedPerplexity, bytes),
            MetricConfig::BitsPerByte {} => (Aggregation::BitsPerByte, bytes),
            other => return Err(Error::WrongMetric { task: task.task.clone(), metric: other.name() }),
        };
        metrics.push(Metric {
            name: metric.name().to_owned(),
            value: MetricValue::Weighted { total: logprob, weight },
            aggregation,
            higher_is_better: false,
        });
    }
    Ok(scored("none", Filtered { text: String::new(), unparsed: false }, metrics))
}

/// The length of Python's `re.split(r"\s+", text)`: empty pieces at the ends count.
fn words(text: &str) -> usize {
    let mut pieces = 1;
    let mut in_space = false;
    for c in text.chars() {
        let space = crate::python_text::is_space(c);
        pieces += usize::from(space && !in_space);
        in_space = space;
    }
    pieces
}

/// The replies as each filter leaves them, with the name of the filter. There is at least one reply.
fn filtered(
    task: &Task,
    document: &Document,
    responses: &[Response],
) -> Result<Vec<(String, Vec<Filtered>)>, Error> {
    let reply = |response: &Response| match response {
        Response::Reply { text, .. } => Ok(text.clone()),
        _ => Err(Error::WrongResponse { wanted: "a reply" }),
    };
    let replies: Vec<String> = responses.iter().map(reply).collect::<Result<_, _>>()?;
    let without = [Pipeline::none()];
    let pipelines = if task.filter_list.is_empty() { &without[..] } else { &task.filter_list };

    let mut results = Vec::with_capacity(pipelines.len());
    for pipeline in pipelines {
        let read = filter::Document { input: &document.input, choices: &document.choices };
        let stages = pipeline.apply(&replies, read)?;
        let answers: Vec<Filtered> = match stages.last() {
            Some(stage) => stage.replies.clone(),
            None => replies.iter().map(|text| Filtered { text: text.clone(), unparsed: false }).collect(),
        };
        if answers.is_empty() {
            return Err(Error::WrongResponse { wanted: "a reply" });
        }
        results.push((pipeline.name.clone(), answers));
    }
    Ok(results)
}

/// Generated replies, under each filter.
fn replies(
    task: &Task,
    document: &Document,
    responses: &[Response],
    executions: &[code_execution::Verdict],
) -> Result<Vec<Scored>, Error> {
    let mut executions = executions.iter().cloned();
    let mut results = Vec::new();
    for (filter, answers) in filtered(task, document, responses)? {
        let executed: Vec<_> = match task.code_execution {
            Some(_) => executions.by_ref().take(answers.len()).collect(),
            None => Vec::new(),
        };
        let first = answers[0].clone();
        let mut metrics = Vec::new();
        let mut unparsed = first.unparsed;
        for metric in &task.metric_list {
            if metric.runs_code() {
                metrics.extend(passes(metric, &executed)?);
                continue;
            }
            // Several replies to one row count as one item: their scores are averaged.
            let each = answers.iter().map(|answer| reply_metric(task, document, metric, answer));
            let (found, parsed) = average(each.collect::<Result<Vec<_>, _>>()?);
            unparsed |= !parsed;
            metrics.extend(found);
        }
        let scored = scored(&filter, Filtered { text: first.text, unparsed }, metrics);
        results.push(Scored { executions: executed, ..scored });
    }
    Ok(results)
}

/// pass@k of the replies to a document.
fn passes(metric: &MetricConfig, executions: &[code_execution::Verdict]) -> Result<Vec<Metric>, Error> {
    let passed = executions.iter().filter(|verdict| **verdict == code_execution::Verdict::Passed).count();
    let of_k = |&k: &u64| {
        let name = match metric {
            MetricConfig::PassAt1 {} => metric.name().to_owned(),
            _ => format!("pass@{k}"),
        };
        Ok(mean(&name, pass_at_k(executions.len() as u64, passed as u64, k)?))
    };
    metric.pass_at().iter().map(of_k).collect()
}

/// The scores of one reply by one metric, and whether an answer was found in it. Of several right answers,
/// the one that gives the highest score counts.
fn reply_metric(
    task: &Task,
    document: &Document,
    metric: &MetricConfig,
    answer: &Filtered,
) -> Result<(Vec<Metric>, bool), Error> {
    let first = |(metrics, _): &(Vec<Metric>, bool)| match metrics.first().map(|metric| &metric.value) {
        Some(MetricValue::Number(number)) => *number,
        _ => f64::NEG_INFINITY,
    };
    let mut best: Option<(Vec<Metric>, bool)> = None;
    for gold in document.target.texts(&document.choices)? {
        let found = reply_against(task, document, metric, answer, gold)?;
        if best.as_ref().is_none_or(|best| first(&found) > first(best)) {
            best = Some(found);
        }
    }
    best.ok_or(Error::BadColumn { key: "doc_to_target", problem: "gives no answer".to_owned() })
}

/// The scores of one reply against one right answer, and whether an answer was found in it.
fn reply_against(
    task: &Task,
    document: &Document,
    metric: &MetricConfig,
    answer: &Filtered,
    gold: &str,
) -> Result<(Vec<Metric>, bool), Error> {
    let reply = answer.text.as_str();
    let one = |name: &str, hit: bool, parsed: bool| Ok((vec![rate(name, hit)], parsed || hit));
    match metric {
        MetricConfig::ExactMatch(options) => one("exact_match", equal(options, reply, gold)?, true),
        MetricConfig::HendrycksMath {} => {
            one("exact_match", hendrycks::equal(hendrycks::answer(reply), gold), true)
        }
        MetricConfig::AimeMath {} => {
            one("exact_match", hendrycks::equal(hendrycks::aime_answer(reply), gold), true)
        }
        MetricConfig::MinervaMath {} => {
            let found = minerva::answer(reply);
            let normal = minerva::normalized(found.as_deref().unwrap_or(minerva::INVALID_ANSWER));
            one("exact_match", minerva::equal(&normal, gold), found.is_some())
        }
        MetricConfig::AgievalMath {} => {
            one("acc", agieval::equal(reply, gold), agieval::answer(reply).is_some())
        }
        MetricConfig::MathNormEm {} => {
            let verdict = math_answer::math_norm_em(reply, gold);
            one("math_norm_em", verdict == Verdict::Right, verdict != Verdict::Unparsed)
        }
        MetricConfig::Ifeval {} => Ok((instructions(document, reply)?, true)),
        MetricConfig::Longbench { measure } => {
            let (score, parsed) = measure.score(reply, gold, &document.choices)?;
            Ok((vec![mean("score", score), mean(measure.name(), score)], parsed))
        }
        other => Err(Error::WrongMetric { task: task.task.clone(), metric: other.name() }),
    }
}

fn equal(options: &ExactMatch, reply: &str, gold: &str) -> Result<bool, Error> {
    Ok(options.compare(reply, gold)?.equal)
}

/// Whether a verdict counts as followed.
type Follows = fn(&ifeval::Verdict) -> bool;

/// IFEval's four accuracies: prompts count once, or instructions count once.
fn instructions(document: &Document, reply: &str) -> Result<Vec<Metric>, Error> {
    let column = |name: &str| document.row.get(name).unwrap_or(&Value::Null);
    let place = format!("row {}", document.doc_id);
    let prompt = ifeval::Prompt::parse(&place, column("instruction_id_list"), column("kwargs"))?;
    let verdicts = prompt.verdicts(reply)?;

    let levels: [(&str, Follows); 2] =
        [("strict", |verdict| verdict.strict), ("loose", |verdict| verdict.loose)];
    let mut metrics = Vec::new();
    for (level, follows) in levels {
        metrics.push(rate(&format!("prompt_level_{level}_acc"), verdicts.iter().all(follows)));
        let each = verdicts.iter().map(|verdict| f64::from(u8::from(follows(verdict)))).collect();
        metrics.push(Metric {
            name: format!("inst_level_{level}_acc"),
            value: MetricValue::Several(each),
            aggregation: Aggregation::MeanOfAll,
            higher_is_better: true,
        });
    }
    Ok(metrics)
}

/// The average of the scores of several replies, and whether each of them had an answer.
fn average(mut each: Vec<(Vec<Metric>, bool)>) -> (Vec<Metric>, bool) {
    let parsed = each.iter().all(|(_, parsed)| *parsed);
    let count = each.len() as f64;
    if each.len() == 1 {
        return (each.pop().map(|(metrics, _)| metrics).unwrap_or_default(), parsed);
    }
    let mut metrics = each.first().map(|(metrics, _)| metrics.clone()).unwrap_or_default();
    for (index, metric) in metrics.iter_mut().enumerate() {
        let numbers = each.iter().filter_map(|(metrics, _)| match &metrics[index].value {
            MetricValue::Number(number) => Some(*number),
            _ => None,
        });
        if let MetricValue::Number(number) = &mut metric.value {
            *number = numbers.sum::<f64>() / count;
        }
    }
    (metrics, parsed)
}

fn scored(filter: &str, answer: Filtered, metrics: Vec<Metric>) -> Scored {
    let correct = metrics.first().and_then(|metric| match metric.value {
        MetricValue::Number(number) if metric.aggregation == Aggregation::Mean => {
            (number == 0.0 || number == 1.0).then_some(number == 1.0)
        }
        _ => None,
    });
    Scored {
        filter: filter.to_owned(),
        answer: answer.text,
        unparsed: answer.unparsed,
        correct,
        metrics,
        executions: Vec::new(),
    }
}
