//! Requests, each once, and how they are asked: what the cache holds is not asked again, answers go to the
//! cache as they come, and progress is told by the length of the requests.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::Error;
use crate::request::{LanguageModel, Request, Response};
use crate::response_cache::ResponseCache;

/// How far the requests to a model are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// The requests that were asked, with or without an answer.
    pub done: usize,
    /// The requests among them that have no answer.
    pub failed: usize,
    /// All requests.
    pub total: usize,
    /// The share of the work that is done, from 0 to 1, by the length of the requests.
    pub share: f64,
    /// The share of it that earlier answers save.
    pub share_before: f64,
    /// The time since the first request of this process.
    pub elapsed: Duration,
}

impl Progress {
    /// The time until the end at the speed so far. `None` before there is a speed.
    pub fn time_left(&self) -> Option<Duration> {
        let now = self.share - self.share_before;
        (now > 0.0).then(|| self.elapsed.mul_f64((1.0 - self.share).max(0.0) / now))
    }
}

/// Requests without repetition.
#[derive(Debug, Default)]
pub struct RequestSet {
    requests: Vec<Request>,
    keys: Vec<String>,
    known: HashMap<String, usize>,
}

impl RequestSet {
    /// Adds a request, unless it is there. Returns its place.
    pub fn add(&mut self, request: Request) -> usize {
        let key = request.key();
        if let Some(&place) = self.known.get(&key) {
            return place;
        }
        self.known.insert(key.clone(), self.keys.len());
        self.keys.push(key);
        self.requests.push(request);
        self.requests.len() - 1
    }

    /// The number of different requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The answers to all requests, by place: from the cache, or from the model.
    pub fn ask(
        &self,
        model: &mut dyn LanguageModel,
        cache: &mut ResponseCache,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Response>, Error> {
        let digest = model.digest().to_owned();
        let held = self.keys.iter().map(|key| cache.get(&digest, key).cloned());
        let mut responses: Vec<Option<Response>> = held.collect();
        let answered: Vec<bool> = responses.iter().map(Option::is_some).collect();

        let costs: Vec<f64> = self.requests.iter().map(|request| request.cost().max(1) as f64).collect();
        let whole = costs.iter().sum::<f64>().max(1.0);
        let before =
            costs.iter().zip(&answered).filter(|(_, done)| **done).map(|(cost, _)| cost).sum::<f64>();
        let mut progress = Progress {
            done: answered.iter().filter(|&&done| done).count(),
            failed: 0,
            total: self.len(),
            share: before / whole,
            share_before: before / whole,
            elapsed: Duration::ZERO,
        };
        on_progress(progress);

        if progress.done < progress.total {
            let started = Instant::now();
            let mut done = before;
            model.respond(&self.requests, &answered, &mut |batch| {
                let new = batch.iter().filter(|(place, _)| responses[*place].is_none());
                cache.put(&digest, new.map(|(place, response)| (self.keys[*place].as_str(), response)))?;
                for (place, response) in batch {
                    // A batch may hold requests that were answered before: the first answer stays.
                    if responses[place].is_none() {
                        progress.failed += usize::from(matches!(response, Response::Failed { .. }));
                        responses[place] = Some(response);
                        done += costs[place];
                        progress.done += 1;
                    }
                }
                progress.share = done / whole;
                progress.elapsed = started.elapsed();
                on_progress(progress);
                Ok(())
            })?;
            cache.sync()?;
        }
        let missing = || Response::Failed { problem: "the model gave no answer".to_owned() };
        Ok(responses.into_iter().map(|response| response.unwrap_or_else(missing)).collect())
    }

    /// The answers of a model that `cache` holds, also why there is none.
    pub fn answered(&self, model: &str, cache: &ResponseCache) -> Vec<Response> {
        let missing = || Response::Failed { problem: "no process answered".to_owned() };
        self.keys.iter().map(|key| cache.last(model, key).cloned().unwrap_or_else(missing)).collect()
    }
}
