//! The samples of a task as rows: what was asked, what was answered, how it was scored.

use serde_json::{Value, json};

use crate::evaluation::{PreparedTask, Sample};
use crate::request::{Prompt, Request, Response};

/// One row for each document and filter, with the fields of lm-evaluation-harness where it has them.
pub fn sample_rows<'a>(
    prepared: &'a PreparedTask,
    samples: &'a [Sample],
) -> impl Iterator<Item = Value> + 'a {
    let documents = prepared.documents.documents.iter().zip(samples);
    documents.flat_map(move |(document, sample)| {
        let (prompts, texts): (Vec<Value>, Vec<Value>) = document.requests.iter().map(asked).unzip();
        let prompts = shared(prompts);
        let row = move |scored: Option<&crate::score::Scored>| {
            let mut row = json!({
                "task": prepared.task.task,
                "doc_id": sample.doc_id,
                "prompt": prompts,
                "choices": texts,
                "target": document.target,
                "responses": sample.responses.iter().map(answered).collect::<Vec<_>>(),
            });
            if let Some(cluster) = &document.cluster {
                row["cluster"] = json!(cluster);
            }
            if let Some(scored) = scored {
                row["filter"] = json!(scored.filter);
                row["answer"] = json!(scored.answer);
                row["unparsed"] = json!(scored.unparsed);
                row["correct"] = json!(scored.correct);
                if !scored.executions.is_empty() {
                    row["executions"] = json!(scored.executions);
                }
                for metric in &scored.metrics {
                    row[&metric.name] = json!(metric.value);
                }
            }
            if let Some(problem) = &sample.problem {
                row["problem"] = json!(problem);
            }
            row
        };
        let rows: Vec<Value> = match sample.scored.as_slice() {
            [] => vec![row(None)],
            scored => scored.iter().map(|scored| row(Some(scored))).collect(),
        };
        rows
    })
}

/// The prompt of a request, and the text whose log-likelihood is asked for.
fn asked(request: &Request) -> (Value, Value) {
    let text = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => json!(text),
        Prompt::Chat(messages) => json!(messages),
    };
    match request {
        Request::Loglikelihood { context, continuation } => (text(context), json!(continuation)),
        Request::LoglikelihoodRolling { text } => (json!(text), Value::Null),
        Request::GenerateUntil { context, .. } => (text(context), Value::Null),
    }
}

/// One prompt if all are equal, otherwise the list.
fn shared(prompts: Vec<Value>) -> Value {
    match prompts.first() {
        Some(first) if prompts.iter().all(|prompt| prompt == first) => first.clone(),
        _ => Value::Array(prompts),
    }
}

fn answered(response: &Response) -> Value {
    match response {
        Response::Loglikelihood { logprob, is_greedy } => json!([logprob, is_greedy]),
        Response::Reply { text, .. } => json!(text),
        Response::Failed { .. } => Value::Null,
    }
}
