//! What a recording holds; `golden/lm_eval/README.md` describes the fields.

use eval::document::PromptOptions;
use serde::Deserialize;
use serde_json::Value;

/// The system instruction of some recordings (`record_chat.py`).
const SYSTEM: &str = "You are a careful assistant.";

/// The sha256 of a text, and its length in characters.
pub(crate) type Digest = (String, usize);

#[derive(Deserialize)]
pub(crate) struct Recording {
    /// The name of the recording.
    #[serde(rename = "recording")]
    pub(crate) name: String,
    pub(crate) task: String,
    pub(crate) shots: usize,
    /// A number, or the text `Yaml` for a task without one.
    pub(crate) version: Value,
    pub(crate) output_type: String,
    pub(crate) repeats: usize,
    pub(crate) filters: Vec<String>,
    #[serde(default)]
    pub(crate) until: Vec<String>,
    #[serde(default)]
    pub(crate) gen_kwargs: GenKwargs,
    pub(crate) documents: Vec<RecordedDocument>,
}

#[derive(Default, Deserialize)]
pub(crate) struct GenKwargs {
    pub(crate) max_gen_toks: Option<usize>,
    pub(crate) temperature: Option<f64>,
}

#[derive(Deserialize)]
pub(crate) struct RecordedDocument {
    pub(crate) doc: usize,
    pub(crate) fewshot_rows: Vec<usize>,
    pub(crate) target: RecordedTarget,
    /// The number of requests. A list of one digest below holds for all of them.
    pub(crate) requests: usize,
    pub(crate) context: Option<Vec<Digest>>,
    pub(crate) continuation: Option<Vec<Digest>>,
    pub(crate) text: Option<Vec<Digest>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum RecordedTarget {
    Number(usize),
    Numbers(Vec<usize>),
    Hash { sha256: String },
}

impl Recording {
    /// The recordings of a file.
    pub(crate) fn read(file: &str) -> Vec<Self> {
        #[derive(Deserialize)]
        struct File {
            tasks: Vec<Recording>,
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/lm_eval/requests");
        let text = std::fs::read_to_string(format!("{folder}/{file}.json")).unwrap();
        serde_json::from_str::<File>(&text).unwrap().tasks
    }

    /// How its prompts were made. The name of a recording ends with what is out of the ordinary.
    pub(crate) fn options(&self, is_chat: bool) -> PromptOptions {
        let ending = self.name.strip_prefix(&format!("{}-{}shot", self.task, self.shots)).unwrap();
        let has = |word: &str| ending.split('-').any(|part| part == word);
        PromptOptions {
            num_fewshot: Some(self.shots),
            apply_chat_template: is_chat && !has("plain"),
            fewshot_as_multiturn: !has("singleturn"),
            system_instruction: has("system").then(|| SYSTEM.to_owned()),
            limit: Some(self.documents.len()),
            ..PromptOptions::default()
        }
    }
}
