//! Scores that a server of the user answers with: `kind = "http"`.
//!
//! The replies go to the server in batches (see `batch.rs`), at most `concurrency` of them at a
//! time. A request that fails costs the replies of its batch (see `client.rs`).

use crate::batch::{ScoreRequest, scores, share};
use crate::client::Client;
use crate::entry::HttpConfig;
use crate::error::Wrong;
use crate::score::{Reply, ScoreError, Scorer};

/// The longest answer to a batch, in bytes.
const LONGEST_ANSWER: usize = 1 << 20;

/// A server that scores replies.
#[derive(Debug)]
pub(crate) struct HttpScorer {
    /// One for each request at a time.
    clients: Vec<Client>,
    batch_size: usize,
}

impl HttpScorer {
    /// Makes no connection.
    pub(crate) fn new(config: &HttpConfig) -> Result<Self, Wrong> {
        let clients = vec![Client::new(config, LONGEST_ANSWER)?; config.concurrency];
        Ok(Self { clients, batch_size: config.batch_size })
    }

    /// Asks about no replies, to find out at the start of a run whether the server answers.
    pub(crate) fn probe(&self) -> Result<(), Wrong> {
        let answer = self.clients[0].ask(&ScoreRequest::new(&[])).map_err(|error| error.wrong())?;
        if answer.get("scores").is_some() {
            return Ok(());
        }
        let fix = "answer {\"id\": 1, \"replies\": []} with {\"scores\": []}";
        Err(Wrong::new("url", "gives an answer without `scores`", fix))
    }
}

impl Scorer for HttpScorer {
    fn score(&mut self, replies: &[Reply<'_>]) -> Vec<Result<f64, ScoreError>> {
        let batches: Vec<&[Reply<'_>]> = replies.chunks(self.batch_size).collect();
        let scored =
            share(&mut self.clients, &batches, |client, batch| match client.ask(&ScoreRequest::new(batch)) {
                Ok(answer) => scores(&answer, batch.len()),
                Err(error) => vec![Err(error.of_score()); batch.len()],
            });
        scored.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::thread;
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::test_server::{Received, send, server};

    /// Answers with the number of tokens of each reply.
    fn answer(request: &Received, connection: &mut TcpStream) {
        let scores: Vec<&Value> =
            request.body["replies"].as_array().unwrap().iter().map(|reply| &reply["tokens"]).collect();
        send(connection, "200 OK", "", &serde_json::json!({ "scores": scores }).to_string());
    }

    /// The first score that a request is about; none if there is no reply.
    fn first(request: &Received) -> Option<u64> {
        request.body["replies"][0]["tokens"].as_u64()
    }

    /// Scores replies with 1, 2, ... tokens.
    fn score(config: &HttpConfig, replies: usize) -> Vec<Result<f64, ScoreError>> {
        let reply = |tokens| Reply { prompt: &[], text: "a", answer: None, tokens, stopped: true };
        let mut scorer = HttpScorer::new(config).unwrap();
        scorer.score(&(1..=replies).map(reply).collect::<Vec<_>>())
    }

    #[test]
    fn batches_are_scored_in_order_and_sent_once() {
        let (mut config, requests) = server(|_, request, connection| {
            // The first batches are the slowest.
            thread::sleep(Duration::from_millis(100_u64.saturating_sub(10 * first(request).unwrap())));
            answer(request, connection);
        });
        config.concurrency = 4;
        let scores: Vec<f64> = score(&config, 11).into_iter().map(Result::unwrap).collect();
        assert_eq!(scores, (1..=11).map(f64::from).collect::<Vec<_>>());
        let mut sent: Vec<u64> = requests.lock().unwrap().iter().filter_map(first).collect();
        sent.sort_unstable();
        assert_eq!(sent, [1, 3, 5, 7, 9, 11]);
    }

    #[test]
    fn a_failure_costs_its_batch() {
        let (config, requests) = server(|_, request, connection| match first(request) {
            Some(3) => send(connection, "500 Internal Server Error", "", "no memory"),
            Some(5) => send(connection, "200 OK", "", r#"{"scores": [5]}"#),
            Some(7) => send(connection, "200 OK", "", r#"{"scores": [null, "8"]}"#),
            _ => answer(request, connection),
        });
        let scores = score(&config, 10);
        let reason = format!("{} answers with status 500: \"no memory\"", config.url);
        let refused = Err(ScoreError::Refused { reason });
        assert_eq!(scores[..4], [Ok(1.0), Ok(2.0), refused.clone(), refused]);
        let names: Vec<&str> = scores[4..8].iter().map(|score| score.as_ref().unwrap_err().name()).collect();
        assert_eq!(names, ["not_a_score", "not_a_score", "declined", "not_a_score"]);
        assert_eq!(scores[8..], [Ok(9.0), Ok(10.0)]);
        assert_eq!(requests.lock().unwrap().len(), 5);
    }

    #[test]
    fn what_a_server_does_wrong_is_said_as_at_the_start() {
        for (status, body, said) in [
            (
                "200 OK",
                "<html>hi</html>",
                "the answer begins with \"<html>hi</html>\" and cannot be used (it is no JSON object: ",
            ),
            (
                "200 OK",
                r#"{"id": 9, "scores": [1, 2]}"#,
                "cannot be used (its `id` is not 1): answer with one",
            ),
            ("200 OK", r#"{"scores": [1]}"#, "1 score for 2 replies"),
            ("200 OK", r#"{"error": "no key"}"#, "reports \"no key\""),
            ("404 Not Found", "no such path", "answers with status 404: \"no such path\""),
        ] {
            let (config, _) = server(move |_, _, connection| send(connection, status, "", body));
            for score in score(&config, 2) {
                let reason = score.unwrap_err().to_string();
                assert!(reason.contains(said), "{body}: {reason}");
            }
        }
    }

    #[test]
    fn a_batch_that_was_not_taken_is_scored_later_and_one_that_was_slow_is_not() {
        let (mut config, requests) = server(|number, request, connection| match (number, first(request)) {
            (0, _) => send(connection, "429 Too Many Requests", "Retry-After: 0\r\n", ""),
            (_, Some(3)) => thread::sleep(Duration::from_secs(30)),
            _ => answer(request, connection),
        });
        config.timeout = 2.0;
        let slow = Err(ScoreError::TimedOut { seconds: 2.0 });
        assert_eq!(score(&config, 5), [Ok(1.0), Ok(2.0), slow.clone(), slow, Ok(5.0)]);
        let sent: Vec<u64> = requests.lock().unwrap().iter().filter_map(first).collect();
        assert_eq!(sent, [1, 1, 3, 5]);
    }

    #[test]
    fn a_server_that_does_not_work_is_found_at_the_start() {
        let probe = |status: &'static str, body: &'static str| {
            let (config, requests) = server(move |_, _, connection| send(connection, status, "", body));
            let outcome = HttpScorer::new(&config).unwrap().probe();
            assert_eq!(requests.lock().unwrap()[0].body["replies"], serde_json::json!([]));
            outcome.map_err(|wrong| wrong.problem)
        };
        assert_eq!(probe("200 OK", r#"{"scores": []}"#), Ok(()));
        assert!(probe("200 OK", "{}").unwrap_err().contains("`scores`"));
        assert!(probe("404 Not Found", "no such path").unwrap_err().contains("404"));
    }
}
