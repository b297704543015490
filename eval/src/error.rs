//! The error type of this crate. Variants hold the offending values, and messages end with a suggested fix.

use std::path::PathBuf;

use datasets::ErrorClass;

/// Everything that can go wrong in evaluation.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of a variant says what its fields are")]
pub enum Error {
    /// Rows or a template could not be read.
    #[error(transparent)]
    Datasets(#[from] datasets::Error),
    /// A model could not answer at all.
    #[error("{name} cannot answer")]
    Model {
        /// The name of the model.
        name: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file or folder could not be read.
    #[error("cannot read {}; check that it exists and is readable", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A path that must be a regular file and is not.
    #[error("{} is not a regular file; remove it, or choose another folder", path.display())]
    NotAFile { path: PathBuf },
    /// A task file that cannot be used.
    #[error("{}: {problem}; {fix}", path.display())]
    TaskFile {
        path: PathBuf,
        problem: String,
        /// What to write instead.
        fix: &'static str,
    },
    /// A name that no task or group has.
    #[error("there is no task {name:?}{}", suggestion(near))]
    UnknownTask {
        name: String,
        /// Names like it.
        near: Vec<String>,
    },
    /// A group that contains itself.
    #[error("the group {group:?} contains itself, or groups are nested too deep; correct its tasks")]
    GroupCycle { group: String },
    /// The rows of a split are in no folder where they may lie.
    #[error("there are no rows of the split {split:?} in {}{}", places(folders), source_of(hub))]
    NoRowsFound {
        split: String,
        /// Where they were looked for.
        folders: Vec<PathBuf>,
        /// The repository on the hub, or nothing.
        hub: String,
    },
    /// Rows of several configurations in one place, without the column that tells them apart.
    #[error(
        "{}: a row has no text in the column {column:?}, which names its configuration: give the rows of {config:?} a folder of \
         their own",
        path.display()
    )]
    NoConfigColumn {
        path: PathBuf,
        column: String,
        /// The configuration that is asked.
        config: String,
    },
    /// Rows of other configurations alone.
    #[error("no row of the repository has {config:?} in the column {column:?}: put the rows of {config:?} into {}", folder.display())]
    NoRowsOfConfig {
        /// Where the rows of the configuration may lie.
        folder: PathBuf,
        column: String,
        /// The configuration that is asked.
        config: String,
    },
    /// A split in two formats.
    #[error("{} holds the split {split:?} in two formats; remove one of them", folder.display())]
    TwoFormats { split: String, folder: PathBuf },
    /// A split whose files are not all there, or are there twice.
    #[error("{}: the split {split:?} {problem}; {fix}", folder.display())]
    SplitFiles {
        split: String,
        folder: PathBuf,
        /// What is wrong with its files.
        problem: String,
        /// What to do about it.
        fix: &'static str,
    },
    /// A split with too many rows.
    #[error("{} brings the split to more than {most} rows; evaluate on fewer", path.display())]
    TooManyRows {
        path: PathBuf,
        /// The limit.
        most: usize,
    },
    /// A task without rows.
    #[error("the task {task} has no rows to evaluate; check its split and keep_if")]
    NoDocuments { task: String },
    /// A group that averages what its tasks do not have.
    #[error("the group {group} has {key} = {name:?}, which none of its tasks gives; they give {known}")]
    UnknownInGroup {
        group: String,
        /// The key of the task file.
        key: &'static str,
        /// The unknown name.
        name: String,
        /// What there is.
        known: String,
    },
    /// A row that cannot be asked about or scored.
    #[error("task {task}, row {row} (counted from 0)")]
    InRow {
        task: String,
        row: usize,
        #[source]
        source: Box<Self>,
    },
    /// A template whose value cannot be used.
    #[error("{key} {problem}; check the task file and the columns of the row")]
    BadColumn {
        /// The key of the task file.
        key: &'static str,
        problem: String,
    },
    /// Sentences that are too long for ROUGE-L.
    #[error(
        "a sentence of the reply has {in_reply} words and one of the answer {in_answer}, too many for ROUGE-L; \
         end sentences with a full stop, or lower max_gen_toks"
    )]
    TooLongForRouge {
        /// The words of the longest sentence of the reply.
        in_reply: usize,
        /// The words of the longest sentence of the answer.
        in_answer: usize,
    },
    /// A model that answered something else than it was asked.
    #[error("the model did not answer with {wanted}; this is a mistake of the program that runs it")]
    WrongResponse {
        /// What was asked.
        wanted: &'static str,
    },
    /// A metric that the answers of a task do not give.
    #[error(
        "the task {task} asks for {metric}, which its output_type does not give; docs/tasks.md lists them"
    )]
    WrongMetric { task: String, metric: &'static str },
    /// A task whose replies are programs, without leave to run them.
    #[error(
        "the task {task} runs code that the model writes; allow it with --allow-code-execution, or allow_code_execution in \
         [eval] (it runs in a sandbox without network), or leave the task out"
    )]
    CodeNotAllowed { task: String },
    /// Programs could not be run.
    #[error(
        "programs of the task {task} could not be run; the answers are kept, and the same command scores them"
    )]
    CodeRunner {
        task: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A statistic was requested for too few items.
    #[error("{what} needs at least {needed} items, got {got}; evaluate on more prompts")]
    TooFew {
        /// The statistic.
        what: &'static str,
        /// The smallest number of items for which it is defined.
        needed: usize,
        /// The number of items that were given.
        got: usize,
    },
    /// An item has no samples, so its average is undefined.
    #[error("item {item} has no samples; draw at least one reply per prompt")]
    EmptyItem {
        /// Index of the item.
        item: usize,
    },
    /// Two systems were compared on different numbers of items.
    #[error(
        "a paired comparison needs the same items on both sides, got {left} and {right}; score both on one prompt list"
    )]
    Unpaired {
        /// Items of the first system.
        left: usize,
        /// Items of the second system.
        right: usize,
    },
    /// More correct answers than answers.
    #[error("{successes} of {n} is not a rate; count each item once")]
    NotARate {
        /// Successes counted.
        successes: u64,
        /// Trials counted.
        n: u64,
    },
    /// A probability outside the open interval from 0 to 1.
    #[error("{what} is {got}, which is not strictly between 0 and 1; 0.95 and 0.8 are the usual choices")]
    NotAProbability {
        /// The setting.
        what: &'static str,
        /// Its value.
        got: f64,
    },
    /// A number that should be finite is not.
    #[error("{field} is {got}; find the item or step that produced it before reporting")]
    NotFinite {
        /// The field that holds the number.
        field: String,
        /// The number.
        got: f64,
    },
    /// An interval that does not contain its own mean.
    #[error(
        "{field}: mean {mean} lies outside its interval {low} to {high}; recompute the interval from the same items"
    )]
    Interval {
        /// The field that holds the score.
        field: String,
        mean: f64,
        /// Lower end.
        low: f64,
        /// Upper end.
        high: f64,
    },
    /// Two lists that belong together have different lengths.
    #[error("{what} needs two values per item, got {left} and {right}; give both for every item")]
    Lengths {
        /// The statistic.
        what: &'static str,
        /// Values of the first list.
        left: usize,
        /// Values of the second list.
        right: usize,
    },
    /// A number outside the range that it can have.
    #[error("{field} is {got}, which is not from {low} to {high}; {fix}")]
    OutOfRange {
        /// The number's name.
        field: String,
        /// Its value.
        got: f64,
        /// The smallest possible value.
        low: f64,
        /// The largest possible value.
        high: f64,
        /// What to give instead.
        fix: &'static str,
    },
    /// A statistic of values that do not vary.
    #[error(
        "{what} is undefined: one side is {got} on every item; evaluate on more prompts, or on harder ones"
    )]
    NoSpread {
        /// The statistic.
        what: &'static str,
        /// The value of every item.
        got: f64,
    },
    /// A t test of differences that do not vary.
    #[error("a t test is undefined: the difference is {difference} on every item; evaluate on more prompts")]
    EqualDifferences {
        /// The difference of every item.
        difference: f64,
    },
    /// A clustered mean of fewer than two clusters.
    #[error("a clustered mean needs at least 2 clusters, got {got}; without clusters, use the plain mean")]
    TooFewClusters {
        /// The number of clusters.
        got: usize,
    },
    /// pass@k of fewer than k samples, or of k = 0.
    #[error(
        "pass@{k} needs k from 1 to the number of samples, {samples}; draw more samples or choose a smaller k"
    )]
    TooFewSamples {
        /// The k of pass@k: how many of the samples are looked at.
        k: u64,
        /// The number of samples drawn.
        samples: u64,
    },
    /// The effect of the length cannot be told from that of the system.
    #[error(
        "the length-controlled win rate is not determined: the difference in length alone separates wins from \
         losses, or is the same on every item; judge more prompts, or report the raw win rate"
    )]
    LengthsDecide,
    /// Comparisons that make some strengths infinite.
    #[error(
        "ratings are not finite: none of {} took a point from any of {}; compare these groups more often, or \
         rate them apart",
        names(others),
        names(unbeaten)
    )]
    Undetermined {
        /// The models that no model of the other group won or tied against.
        unbeaten: Vec<String>,
        /// The other models.
        others: Vec<String>,
    },
    /// The anchor of the ratings was not compared.
    #[error("the anchor {model:?} is in no comparison; choose one of {}", names(known))]
    UnknownAnchor {
        /// The anchor.
        model: String,
        /// The models that were compared.
        known: Vec<String>,
    },
    /// A model was compared with itself.
    #[error("model {model:?} is compared with itself; remove these comparisons")]
    SelfComparison { model: String },
    /// An iteration did not reach its maximum.
    #[error(
        "{what} did not converge in {steps} steps: some outcomes are too rare; judge more of the rarest kind"
    )]
    NotConverged {
        /// The fit.
        what: &'static str,
        steps: usize,
    },
    /// A pattern that is no regular expression.
    #[error("the pattern {pattern:?} cannot be compiled; write it as Python's `re` takes it")]
    Pattern {
        pattern: String,
        #[source]
        source: Box<fancy_regex::Error>,
    },
    /// A pattern with a construct that this program does not know.
    #[error("the pattern {pattern:?} has {construct}, which is not supported; write it without")]
    UnsupportedPattern { pattern: String, construct: &'static str },
    /// A search that backtracked too often.
    #[error(
        "the pattern {pattern:?} took more than {steps} steps on a reply of {bytes} bytes; avoid repetitions \
         within repetitions"
    )]
    SlowPattern {
        pattern: String,
        /// The limit.
        steps: usize,
        /// Length of the reply.
        bytes: usize,
    },
    /// Too few documents to draw examples from.
    #[error(
        "a draw of {needed} documents needs a pool of as many, got {pool}; ask for fewer few-shot examples"
    )]
    SmallPool {
        /// Documents to draw.
        needed: usize,
        /// Documents in the pool.
        pool: usize,
    },
    /// A filter that selects among replies got too few of them.
    #[error("the filter {filter} needs {needed} replies per document, got {got}; generate as many")]
    FewReplies {
        /// The filter's name.
        filter: &'static str,
        /// The replies that it selects from.
        needed: usize,
        /// The replies of the document.
        got: usize,
    },
    /// More choices than letters.
    #[error("the filter multi_choice_regex knows the choices A to Z, got {choices}; check choices_pattern")]
    TooManyChoices { choices: usize },
    /// A document without the words to sort.
    #[error("the filter word_sort needs an input that lists its words after \"List:\", got {input:?}")]
    NoWordList {
        /// The beginning of the document's input.
        input: String,
    },
    /// A row of instructions that cannot be checked.
    #[error("{place} {problem}; {fix}")]
    Instruction {
        /// The row, the instruction and the field.
        place: String,
        problem: String,
        /// What to give instead.
        fix: &'static str,
    },
    /// A keyword of a row that cannot be searched for.
    #[error("{place} cannot be searched for; correct the row")]
    InstructionPattern {
        /// The row, the instruction and the field.
        place: String,
        #[source]
        source: Box<Self>,
    },
    /// A file of the report could not be written.
    #[error("cannot write {path}; check that the folder exists, is writable and has room")]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The report could not be turned into JSON.
    #[error("cannot encode report.json; settings must be plain JSON values")]
    Json(#[from] serde_json::Error),
}

impl Error {
    /// The class of this error. What is not named is a mistake of the program, or of a model that answers.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Datasets(error) => error.class(),
            // A template that fails on a row may be right and the row wrong.
            Self::InRow { source, .. } if matches!(**source, Self::Datasets(_)) => ErrorClass::Data,
            Self::InRow { source, .. } => source.class(),
            Self::Write { source, .. } | Self::Read { source, .. } => ErrorClass::Io(source.kind()),
            Self::Model { .. } => ErrorClass::OfSource,
            Self::TaskFile { .. }
            | Self::UnknownTask { .. }
            | Self::GroupCycle { .. }
            | Self::UnknownInGroup { .. }
            | Self::WrongMetric { .. }
            | Self::CodeNotAllowed { .. }
            | Self::NotAFile { .. }
            | Self::UnknownAnchor { .. }
            | Self::Pattern { .. }
            | Self::UnsupportedPattern { .. }
            | Self::SmallPool { .. } => ErrorClass::Usage,
            Self::TooFew { .. }
            | Self::NoSpread { .. }
            | Self::EqualDifferences { .. }
            | Self::TooFewClusters { .. }
            | Self::TooFewSamples { .. }
            | Self::LengthsDecide
            | Self::Undetermined { .. }
            | Self::SelfComparison { .. }
            | Self::NoWordList { .. }
            | Self::NoRowsFound { .. }
            | Self::NoConfigColumn { .. }
            | Self::NoRowsOfConfig { .. }
            | Self::TwoFormats { .. }
            | Self::SplitFiles { .. }
            | Self::TooManyRows { .. }
            | Self::NoDocuments { .. }
            | Self::BadColumn { .. }
            | Self::Instruction { .. }
            | Self::InstructionPattern { .. } => ErrorClass::Data,
            _ => ErrorClass::Failed,
        }
    }
}

fn suggestion(near: &[String]) -> String {
    if near.is_empty() {
        return "; `colossal-chat eval --list` names all".to_owned();
    }
    format!("; did you mean {}?", near.join(", "))
}

fn places(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn source_of(hub: &str) -> String {
    if hub.is_empty() {
        return "; give the folder that holds them with --data".to_owned();
    }
    format!(
        "; download https://huggingface.co/datasets/{hub} to one of them, or give their folder with --data"
    )
}

/// The names of models in quotes, at most eight of them.
fn names(models: &[String]) -> String {
    const MOST: usize = 8;
    let quoted: Vec<String> = models.iter().take(MOST).map(|model| format!("{model:?}")).collect();
    let rest = models.len().saturating_sub(MOST);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("{}{more}", quoted.join(", "))
}
