//! The protocol id of a score: task, version, kind of scoring, examples, and a hash of the prompts, the right
//! answers and the rules of scoring. Two scores are comparable exactly if their ids are equal.

use super::definition::{OutputType, Task};

impl Task {
    /// The id, such as `mmlu_anatomy/v1/multiple_choice@5shot#3f2a91c0`. `protocol_hash` is that of
    /// its documents.
    pub fn protocol_id(&self, shots: usize, protocol_hash: &str) -> String {
        let version = self.version.map_or("0".to_owned(), |version| version.to_string());
        let kind = match self.output_type {
            OutputType::MultipleChoice => "choice",
            OutputType::MultipleContext => "context",
            OutputType::Loglikelihood => "loglikelihood",
            OutputType::LoglikelihoodRolling => "rolling",
            OutputType::GenerateUntil => "generate",
        };
        let short = &protocol_hash[..protocol_hash.len().min(8)];
        format!("{}/v{version}/{kind}@{shots}shot#{short}", self.task)
    }

    /// The number of examples in a prompt if the user asks for `asked`.
    pub fn shots(&self, asked: Option<usize>) -> usize {
        if self.fewshot.fixed { self.fewshot.num_fewshot } else { asked.unwrap_or(self.fewshot.num_fewshot) }
    }
}
