//! A task, its settings and its groups: the contents of a task file.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::code_execution::CodeExecution;
use crate::exact_match::ExactMatch;
use crate::few_shot::Sampler;
use crate::filter::Pipeline;
use crate::longbench::Measure;

/// What is asked of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputType {
    /// The log-likelihood of each choice after the prompt.
    MultipleChoice,
    /// The log-likelihood of one continuation after each of several contexts.
    MultipleContext,
    /// The log-likelihood of the target after the prompt.
    Loglikelihood,
    /// The log-likelihood of a whole text.
    LoglikelihoodRolling,
    /// A reply, generated until a stop text.
    GenerateUntil,
}

/// A task, checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The name.
    pub task: String,
    /// The version of the rules; it changes when scores are no longer comparable.
    #[serde(default)]
    pub version: Option<f64>,
    /// Who else computes the same numbers, such as `lm_eval 0.4.13`.
    #[serde(default)]
    pub protocol: Option<String>,
    /// What is asked of the model.
    pub output_type: OutputType,
    /// Where the rows lie.
    pub dataset: DatasetSource,
    /// The text that opens every prompt; a template over `subset`.
    #[serde(default)]
    pub description: String,
    /// The prompt of a row, without examples.
    #[serde(default)]
    pub doc_to_text: String,
    /// The right answer: text, the index of the right choice, or a list of right indices. For replies it may
    /// be a list of texts: each is right.
    pub doc_to_target: String,
    /// The choices of a row, or for `multiple_context` the contexts.
    #[serde(default)]
    pub doc_to_choice: Option<Choices>,
    /// `multiple_context`: the continuation that all contexts share.
    #[serde(default)]
    pub doc_to_continuation: Option<String>,
    /// What filters read choices and words from; without it, `doc_to_text`.
    #[serde(default)]
    pub doc_to_input: Option<String>,
    /// What clusters the rows, such as a passage that several questions share: standard errors of
    /// comparisons then count clusters, not rows.
    #[serde(default)]
    pub doc_to_cluster: Option<String>,
    /// The text between a prompt and its answer.
    #[serde(default = "space")]
    pub target_delimiter: String,
    /// The examples before the question.
    #[serde(default)]
    pub fewshot: FewShotConfig,
    /// How replies are generated.
    #[serde(default)]
    pub generation_kwargs: GenerationKwargs,
    /// What is taken out of a reply before it is scored; one result for each pipeline.
    #[serde(default)]
    pub filter_list: Vec<Pipeline>,
    /// What is computed.
    pub metric_list: Vec<MetricConfig>,
    /// The program that tests the code of a reply, for `pass_at_k` and `pass_at_1`.
    #[serde(default)]
    pub code_execution: Option<CodeExecution>,
    /// The name of the subset, for a task of a family.
    #[serde(default)]
    pub subset: Option<String>,
}

impl Task {
    /// The names of the results of all metrics.
    pub(crate) fn metric_names(&self) -> Vec<String> {
        self.metric_list.iter().flat_map(MetricConfig::outputs).collect()
    }

    /// The names of the filter pipelines, `none` without one.
    pub(crate) fn filter_names(&self) -> Vec<String> {
        match self.filter_list.as_slice() {
            [] => vec!["none".to_owned()],
            pipelines => pipelines.iter().map(|pipeline| pipeline.name.clone()).collect(),
        }
    }
}

/// Where the rows of a task lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetSource {
    /// The folder within the data folder: it holds one file or folder for each split.
    pub folder: String,
    /// The repository of the rows on the hub.
    #[serde(default)]
    pub hub: Option<String>,
    /// The configuration within that repository.
    #[serde(default)]
    pub config: Option<String>,
    /// The column that holds the name of the configuration, where the rows of all of them lie in one place.
    #[serde(default)]
    pub config_column: Option<String>,
    /// Whether other tasks ask the rows of other configurations of that repository. The registry knows.
    #[serde(skip)]
    pub is_one_of_several: bool,
    /// The split that is evaluated.
    pub split: String,
    /// Keeps the rows for which this template gives something true.
    #[serde(default)]
    pub keep_if: Option<String>,
}

/// The choices of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Choices {
    /// A template for each choice.
    Each(Vec<String>),
    /// One template that gives the list.
    List(String),
}

/// The examples of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FewShotConfig {
    /// The split that the examples come from; without it, the split that is evaluated.
    pub split: Option<String>,
    /// The number of examples.
    pub num_fewshot: usize,
    /// Whether `--num-fewshot` leaves the number alone.
    pub fixed: bool,
    /// How examples are selected.
    pub sampler: Sampler,
    /// Whether a row that is evaluated is kept out of its own examples. Without it, it is exactly if the
    /// examples come from the rows that are evaluated because neither `split` nor `samples` is given.
    pub exclude_document: Option<bool>,
    /// Examples in the file itself, as rows; they take the place of a split.
    pub samples: Option<Vec<Map<String, Value>>>,
    /// The prompt of an example; without it, `doc_to_text`.
    pub doc_to_text: Option<String>,
    /// The answer of an example; without it, that of `doc_to_target`.
    pub doc_to_target: Option<String>,
    /// The text between the question and the answer of an example; without it, `target_delimiter`.
    pub target_delimiter: Option<String>,
    /// The text after an example.
    pub delimiter: String,
}

impl FewShotConfig {
    /// Whether a row is kept out of its own examples.
    pub(crate) fn excludes_document(&self) -> bool {
        self.exclude_document.unwrap_or(self.split.is_none() && self.samples.is_none())
    }
}

impl Default for FewShotConfig {
    fn default() -> Self {
        Self {
            split: None,
            num_fewshot: 0,
            fixed: false,
            sampler: Sampler::Default,
            exclude_document: None,
            samples: None,
            doc_to_text: None,
            doc_to_target: None,
            target_delimiter: None,
            delimiter: "\n\n".to_owned(),
        }
    }
}

/// How replies are generated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GenerationKwargs {
    /// A reply ends before the first of these texts.
    pub until: Vec<String>,
    /// The longest reply in tokens.
    pub max_gen_toks: usize,
    /// The sampling temperature; 0 means greedy decoding.
    pub temperature: f64,
    /// The replies for each row.
    pub repeats: usize,
}

impl Default for GenerationKwargs {
    fn default() -> Self {
        Self { until: Vec::new(), max_gen_toks: 256, temperature: 0.0, repeats: 1 }
    }
}

/// What is computed from the answers of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "metric", rename_all = "snake_case", deny_unknown_fields)]
pub enum MetricConfig {
    /// Choices: the most likely one is right. Log-likelihood: greedy decoding gives the target.
    Acc {},
    /// The choice with the highest log-likelihood per character is right.
    AccNorm {},
    /// The choice with the highest log-likelihood per UTF-8 byte is right.
    AccBytes {},
    /// The share of the probability of all choices that the right ones have (TruthfulQA mc2).
    Mc2 {},
    /// Two choices: the first is more likely (CrowS-Pairs).
    PctStereotype {},
    /// Two choices: the difference of their log-likelihoods, without sign.
    LikelihoodDiff {},
    /// BBQ's accuracies and bias scores.
    Bbq {},
    /// exp of the mean negative log-likelihood of the targets.
    Perplexity {},
    /// exp of the negative log-likelihood per word.
    WordPerplexity {},
    /// exp of the negative log-likelihood per byte.
    BytePerplexity {},
    /// The negative log-likelihood per byte, in bits.
    BitsPerByte {},
    /// The filtered reply equals the target.
    ExactMatch(ExactMatch),
    /// The reply's answer equals the target by the rules of Hendrycks' MATH.
    HendrycksMath {},
    /// As [`Self::HendrycksMath`], with the content of the last box as the answer (AIME).
    AimeMath {},
    /// The reply's answer equals the target by the rules of Minerva: as a text, or as a formula.
    MinervaMath {},
    /// The reply's answer equals the target by AGIEval's rules, as `acc`.
    AgievalMath {},
    /// The last boxed or stated answer equals the target as a number, fraction, tuple or text.
    MathNormEm {},
    /// IFEval's four accuracies.
    Ifeval {},
    /// A measure of LongBench, under its own name and as `score`, which groups average.
    Longbench {
        /// The measure.
        measure: Measure,
    },
    /// The probability that at least one of `k` replies passes its tests, as `pass@k`.
    PassAtK {
        /// The numbers of replies that are looked at; one result for each.
        k: Vec<u64>,
    },
    /// [`Self::PassAtK`] with k = 1, under the name that MBPP has in the harness.
    #[serde(rename = "pass_at_1")]
    PassAt1 {},
}

impl MetricConfig {
    /// The name of the metric in a file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Acc {} => "acc",
            Self::AccNorm {} => "acc_norm",
            Self::AccBytes {} => "acc_bytes",
            Self::Mc2 {} => "mc2",
            Self::PctStereotype {} => "pct_stereotype",
            Self::LikelihoodDiff {} => "likelihood_diff",
            Self::Bbq {} => "bbq",
            Self::Perplexity {} => "perplexity",
            Self::WordPerplexity {} => "word_perplexity",
            Self::BytePerplexity {} => "byte_perplexity",
            Self::BitsPerByte {} => "bits_per_byte",
            Self::ExactMatch(_) => "exact_match",
            Self::HendrycksMath {} => "hendrycks_math",
            Self::AimeMath {} => "aime_math",
            Self::MinervaMath {} => "minerva_math",
            Self::AgievalMath {} => "agieval_math",
            Self::MathNormEm {} => "math_norm_em",
            Self::Ifeval {} => "ifeval",
            Self::Longbench { .. } => "longbench",
            Self::PassAtK { .. } => "pass_at_k",
            Self::PassAt1 {} => "pass_at_1",
        }
    }

    /// The names of its results. BBQ has more, which depend on the rows.
    fn outputs(&self) -> Vec<String> {
        let several = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        match self {
            Self::Mc2 {} | Self::AgievalMath {} => several(&["acc"]),
            Self::Bbq {} => {
                several(&["acc", "accuracy_amb", "accuracy_disamb", "amb_bias_score", "disamb_bias_score"])
            }
            Self::HendrycksMath {} | Self::AimeMath {} | Self::MinervaMath {} => several(&["exact_match"]),
            Self::Ifeval {} => several(&[
                "prompt_level_strict_acc",
                "inst_level_strict_acc",
                "prompt_level_loose_acc",
                "inst_level_loose_acc",
            ]),
            Self::Longbench { measure } => several(&["score", measure.name()]),
            Self::PassAtK { k } => k.iter().map(|k| format!("pass@{k}")).collect(),
            other => several(&[other.name()]),
        }
    }

    /// Whether the metric is computed from what `output_type` asks.
    pub(super) fn fits(&self, output_type: OutputType) -> bool {
        use OutputType::{
            GenerateUntil, Loglikelihood, LoglikelihoodRolling, MultipleChoice, MultipleContext,
        };
        match self {
            Self::Acc {} => matches!(output_type, MultipleChoice | MultipleContext | Loglikelihood),
            Self::AccNorm {} | Self::AccBytes {} | Self::Mc2 {} | Self::Bbq {} => {
                output_type == MultipleChoice
            }
            Self::PctStereotype {} | Self::LikelihoodDiff {} => output_type == MultipleChoice,
            Self::Perplexity {} => output_type == Loglikelihood,
            Self::WordPerplexity {} | Self::BytePerplexity {} | Self::BitsPerByte {} => {
                output_type == LoglikelihoodRolling
            }
            Self::ExactMatch(_)
            | Self::HendrycksMath {}
            | Self::AimeMath {}
            | Self::MinervaMath {}
            | Self::AgievalMath {}
            | Self::MathNormEm {}
            | Self::Ifeval {}
            | Self::Longbench { .. }
            | Self::PassAtK { .. }
            | Self::PassAt1 {} => output_type == GenerateUntil,
        }
    }

    /// The numbers of replies that pass@k looks at. Empty for a metric that needs no execution of code.
    pub(crate) fn pass_at(&self) -> &[u64] {
        match self {
            Self::PassAtK { k } => k,
            Self::PassAt1 {} => &[1],
            _ => &[],
        }
    }

    /// Whether the metric is computed from programs that were run.
    pub(crate) fn runs_code(&self) -> bool {
        matches!(self, Self::PassAtK { .. } | Self::PassAt1 {})
    }
}

/// Several tasks with one number for each metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The name.
    pub group: String,
    /// Names of tasks and groups; `*` stands for any text.
    pub tasks: Vec<String>,
    /// The metrics that are averaged. Without any, the group is only a name for its tasks.
    #[serde(default)]
    pub metrics: Vec<String>,
    /// Whether a task counts by its number of rows. Otherwise each task counts the same.
    #[serde(default = "yes")]
    pub weight_by_size: bool,
    /// The filters whose results are averaged; without any, all.
    #[serde(default)]
    pub filters: Vec<String>,
    /// The version of the rules.
    #[serde(default)]
    pub version: Option<f64>,
}

fn space() -> String {
    " ".to_owned()
}

fn yes() -> bool {
    true
}
