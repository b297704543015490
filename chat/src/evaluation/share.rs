//! Which of several processes answers which request.

use std::hash::{DefaultHasher, Hash, Hasher};

use eval::request::{LanguageModel, OnResponses, Prompt, Request};

/// One of several processes that answer the requests of an evaluation together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// The number of this process.
    pub(crate) rank: usize,
    /// How many there are.
    pub(crate) size: usize,
}

impl Share {
    /// The requests of this process, and their places among all. Requests with the same context stay
    /// together, because they share its computation; without a context there is nothing to share.
    pub(crate) fn of(self, requests: &[Request]) -> (Vec<Request>, Vec<usize>) {
        let own = requests.iter().enumerate().filter(|(_, request)| self.holds(request));
        own.map(|(place, request)| (request.clone(), place)).unzip()
    }

    fn holds(self, request: &Request) -> bool {
        let mut hasher = DefaultHasher::new();
        match request {
            Request::Loglikelihood { context, continuation } if context.is_empty() => {
                continuation.hash(&mut hasher);
            }
            Request::Loglikelihood { context, .. } | Request::GenerateUntil { context, .. } => {
                match context {
                    Prompt::Text(text) => text.hash(&mut hasher),
                    Prompt::Chat(messages) => {
                        for message in messages {
                            message.content.hash(&mut hasher);
                        }
                    }
                }
            }
            Request::LoglikelihoodRolling { text } => text.hash(&mut hasher),
        }
        hasher.finish() % self.size as u64 == self.rank as u64
    }
}

/// A model that answers its share of the requests, and leaves the others to the other processes.
pub(crate) struct SharedModel<'a> {
    /// The model.
    pub(crate) model: &'a mut dyn LanguageModel,
    pub(crate) share: Share,
}

impl LanguageModel for SharedModel<'_> {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn digest(&self) -> &str {
        self.model.digest()
    }

    fn respond(
        &mut self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), eval::Error> {
        let (own, places) = self.share.of(requests);
        let answered: Vec<bool> = places.iter().map(|&place| answered[place]).collect();
        self.model.respond(&own, &answered, &mut |batch| {
            on_responses(batch.into_iter().map(|(index, response)| (places[index], response)).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_one_process_and_contexts_stay_together() {
        let request = |n: usize, continuation: &str| Request::Loglikelihood {
            context: Prompt::Text(format!("question {n}")),
            continuation: continuation.to_owned(),
        };
        let requests: Vec<Request> = (0..300).flat_map(|n| [request(n, " a"), request(n, " b")]).collect();
        let mut seen = vec![0; requests.len()];
        for rank in 0..3 {
            let (own, places) = Share { rank, size: 3 }.of(&requests);
            assert!((120..280).contains(&own.len()), "{}", own.len());
            for (request, place) in own.iter().zip(places) {
                assert_eq!(*request, requests[place]);
                seen[place] += 1;
            }
            assert!(own.chunks(2).all(|pair| pair[0].key() != pair[1].key()));
        }
        assert_eq!(seen, vec![1; requests.len()]);
    }

    #[test]
    fn requests_without_a_context_are_divided() {
        let request = |n: usize| Request::Loglikelihood {
            context: Prompt::Text(String::new()),
            continuation: format!("sentence {n}"),
        };
        let requests: Vec<Request> = (0..300).map(request).collect();
        let own = Share { rank: 1, size: 3 }.of(&requests).0.len();
        assert!((60..140).contains(&own), "{own}");
    }
}
