//! Whether rows of a benchmark stand in the training data: overlap of n-grams (Brown et al. 2020, arXiv
//! 2005.14165, appendix C, which uses 13 words).
//!
//! A text is split into words: runs of letters and digits in lower case; a character of a script without
//! spaces is a word of its own. A text of fewer than n words is compared as a whole, unless it is so short
//! that it stands anywhere. Of a row, only texts count that the model is asked, or that are the right answer.
//! An n-gram that many documents of a task share, such as an instruction, tells nothing about one of them and
//! is left out (Brown et al. leave out those that match more than 10 training documents). A document that has
//! no n-gram left cannot be examined: it is neither marked nor clean, and is counted apart.
//!
//! The difference of the scores has the interval of [`independent_difference`], from the intervals of both
//! scores.
//!
//! The n-grams of the documents are kept as 64-bit hashes, and the training texts are read past them once, so
//! that memory grows with the documents alone. Among a billion training n-grams, one in 10^10 would match a
//! document by chance.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use datasets::{Row, TableReader};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;
use crate::document::{Document, Target};
use crate::evaluation::{Evaluation, ModelRun, PreparedTask, Sample, Score};
use crate::request::{Prompt, Request};
use crate::statistics::independent_difference;

/// The words of an n-gram.
pub const WORDS: usize = 13;
/// The characters of an n-gram in a text without spaces.
pub const CHARACTERS: usize = 20;
/// A text of fewer words stands anywhere and is not compared.
const FEWEST_WORDS: usize = 8;
/// The same in a text without spaces.
const FEWEST_CHARACTERS: usize = 12;
/// An n-gram of more documents of a task belongs to none of them. Documents of one cluster count once.
const MOST_DOCUMENTS: usize = 10;
/// The words of the runs by which a text of a row is found in the prompt.
const RUN: usize = 5;

/// How many documents of a task the training data holds, and what a model scores on these and on the clean
/// ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contamination {
    /// The task.
    pub task: String,
    /// The model.
    pub model: String,
    /// The first metric of the task, with its filter.
    pub metric: String,
    /// The documents that the training data holds: an n-gram of one of their texts stands in it.
    pub contaminated: usize,
    /// The documents that could be examined.
    pub checked: usize,
    /// The documents that could not: their texts are too short, or stand in many documents of the task.
    #[serde(default)]
    pub unexamined: usize,
    /// The score on the documents that could be examined and that the training data does not hold.
    pub clean_score: Option<f64>,
    /// The score on those that it holds.
    pub dirty_score: Option<f64>,
    /// The ends of the 95 % interval of the score on those that it holds minus that on the clean ones, where
    /// both scores have an interval.
    #[serde(default)]
    pub difference_interval: Option<(f64, f64)>,
}

impl Contamination {
    /// The score on the documents that the training data holds minus that on the clean ones.
    pub fn difference(&self) -> Option<f64> {
        Some(self.dirty_score? - self.clean_score?)
    }
}

/// What was found out about a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// The training data holds one of its n-grams.
    Contaminated,
    /// The training data holds none of them.
    Clean,
    /// It has no n-gram that tells anything.
    Unexamined,
}

/// For each document of each task of an evaluation, whether the training data holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlaps(Vec<Vec<Finding>>);

impl Overlaps {
    /// Reads the training data: all texts of all rows of `files`.
    pub fn find(evaluation: &Evaluation, files: &[PathBuf]) -> Result<Self, Error> {
        let mut index = Index::default();
        let tasks = evaluation.tasks.iter();
        let tasks: Vec<Vec<Vec<u64>>> = tasks.map(|task| index.add_task(&task.documents.documents)).collect();
        for file in files {
            index.read_file(file)?;
        }
        let of_task = |task: &Vec<Vec<u64>>| task.iter().map(|grams| index.finding(grams)).collect();
        Ok(Self(tasks.iter().map(of_task).collect()))
    }

    /// What each model scores on both kinds of documents.
    pub fn scores(&self, evaluation: &Evaluation, runs: &[ModelRun]) -> Result<Vec<Contamination>, Error> {
        let mut found = Vec::new();
        for (index, prepared) in evaluation.tasks.iter().enumerate() {
            for run in runs {
                found.push(of_run(prepared, &self.0[index], &run.name, &run.samples[index])?);
            }
        }
        Ok(found)
    }
}

/// What a model scores on both kinds of documents of a task.
fn of_run(
    prepared: &PreparedTask,
    findings: &[Finding],
    model: &str,
    samples: &[Sample],
) -> Result<Contamination, Error> {
    let count = |wanted: Finding| findings.iter().filter(|finding| **finding == wanted).count();
    let score = |wanted: Finding| {
        let part = samples.iter().zip(findings).filter(|(_, finding)| **finding == wanted);
        let part: Vec<Sample> = part.map(|(sample, _)| sample.clone()).collect();
        prepared.scores(&part).map(|scores| scores.into_iter().next())
    };
    let (clean, dirty) = (score(Finding::Clean)?, score(Finding::Contaminated)?);
    let metric =
        clean.as_ref().or(dirty.as_ref()).map_or_else(String::new, |score| match score.filter.as_str() {
            "none" => score.metric.clone(),
            filter => format!("{}, {filter}", score.metric),
        });
    // Without a document of a kind, its score is NaN.
    let value =
        |score: &Option<Score>| Some(score.as_ref()?.aggregated.value).filter(|value| value.is_finite());
    let estimate = |score: &Option<Score>| {
        let found = score.as_ref()?.aggregated;
        Some((found.value, found.interval?))
    };
    let (contaminated, clean_count) = (count(Finding::Contaminated), count(Finding::Clean));
    Ok(Contamination {
        task: prepared.task.task.clone(),
        model: model.to_owned(),
        metric,
        contaminated,
        checked: contaminated + clean_count,
        unexamined: count(Finding::Unexamined),
        difference_interval: estimate(&dirty)
            .zip(estimate(&clean))
            .map(|(dirty, clean)| independent_difference(dirty, clean)),
        clean_score: value(&clean),
        dirty_score: value(&dirty),
    })
}

/// All texts of a row, also those in lists and messages.
fn texts(row: &Row) -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::String(text) => found.push(text.clone()),
            Value::Array(list) => list.iter().for_each(|value| collect(value, found)),
            Value::Object(object) => object.values().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    row.values().for_each(|value| collect(value, &mut found));
    found
}

/// The texts of a row that the model is asked, or that are the right answer, as words.
fn asked_texts(document: &Document) -> Vec<Vec<Word>> {
    let shown = shown_texts(document);
    let runs = |text: &&str| grams(&words(text), RUN).collect::<Vec<u64>>();
    let runs: HashSet<u64> = shown.iter().flat_map(runs).collect();
    // A template may take a text apart or fill its blank, so half of its runs are enough.
    let is_shown = |text: &Vec<Word>| {
        let found = grams(text, RUN).filter(|run| runs.contains(run)).count();
        2 * found >= text.len() + 1 - RUN
    };
    let texts = texts(&document.row);
    texts.iter().map(|text| words(text)).filter(|text| length(text).is_some() && is_shown(text)).collect()
}

/// What the model sees and the right answer, each text once.
fn shown_texts(document: &Document) -> BTreeSet<&str> {
    let mut shown: BTreeSet<&str> = BTreeSet::new();
    for request in &document.requests {
        let (context, text) = match request {
            Request::Loglikelihood { context, continuation } => (Some(context), Some(continuation)),
            Request::LoglikelihoodRolling { text } => (None, Some(text)),
            Request::GenerateUntil { context, .. } => (Some(context), None),
        };
        shown.extend(text.map(String::as_str));
        match context {
            Some(Prompt::Text(text)) => shown.extend([text.as_str()]),
            Some(Prompt::Chat(messages)) => {
                shown.extend(messages.iter().map(|message| message.content.as_str()));
            }
            None => {}
        }
    }
    match &document.target {
        Target::Text(text) => shown.extend([text.as_str()]),
        Target::Texts(texts) => shown.extend(texts.iter().map(String::as_str)),
        // A right choice is asked.
        Target::Index(_) | Target::Indices(_) => {}
    }
    shown
}

/// The n-grams of documents, and which of them the training data holds.
#[derive(Debug, Default)]
struct Index {
    grams: HashMap<u64, bool>,
    /// The numbers of words of these n-grams.
    lengths: BTreeSet<usize>,
}

impl Index {
    /// Adds the documents of a task. Returns the n-grams of each of them.
    fn add_task(&mut self, documents: &[Document]) -> Vec<Vec<u64>> {
        let mut of_documents: Vec<Vec<u64>> = Vec::with_capacity(documents.len());
        for document in documents {
            let mut found = Vec::new();
            for text in asked_texts(document) {
                let Some(length) = length(&text) else { continue };
                self.lengths.insert(length);
                found.extend(grams(&text, length));
            }
            of_documents.push(found);
        }
        let frame = shared(documents, &of_documents);
        for found in &mut of_documents {
            found.retain(|gram| !frame.contains(gram));
            self.grams.extend(found.iter().map(|gram| (*gram, false)));
        }
        of_documents
    }

    fn read_file(&mut self, file: &Path) -> Result<(), Error> {
        for row in TableReader::open(file)?.rows(None)? {
            for text in texts(&row?.1) {
                self.read(&text);
            }
        }
        Ok(())
    }

    /// Marks the n-grams that a training text holds.
    fn read(&mut self, text: &str) {
        let words = words(text);
        for &length in &self.lengths {
            for gram in grams(&words, length) {
                if let Some(held) = self.grams.get_mut(&gram) {
                    *held = true;
                }
            }
        }
    }

    /// Whether the training data holds one of the n-grams of a document.
    fn finding(&self, grams: &[u64]) -> Finding {
        let holds = |gram: &u64| self.grams.get(gram).copied().unwrap_or(false);
        match grams {
            [] => Finding::Unexamined,
            grams if grams.iter().any(holds) => Finding::Contaminated,
            _ => Finding::Clean,
        }
    }
}

/// The n-grams of more than [`MOST_DOCUMENTS`] documents. Documents of one cluster, such as questions about
/// one passage, count as one.
fn shared(documents: &[Document], of_documents: &[Vec<u64>]) -> HashSet<u64> {
    let mut clusters: HashMap<&str, usize> = HashMap::new();
    let mut places: Vec<(u64, usize)> = Vec::new();
    for (place, (document, grams)) in documents.iter().zip(of_documents).enumerate() {
        let place = match &document.cluster {
            Some(cluster) => *clusters.entry(cluster).or_insert(place),
            None => place,
        };
        places.extend(grams.iter().map(|&gram| (gram, place)));
    }
    places.sort_unstable();
    places.dedup();
    let of_gram = places.chunk_by(|left, right| left.0 == right.0);
    of_gram.filter(|places| places.len() > MOST_DOCUMENTS).map(|places| places[0].0).collect()
}

/// A word of a text.
#[derive(Clone, Copy, Debug)]
struct Word {
    hash: u64,
    /// Whether it is one character of a script without spaces.
    is_character: bool,
}

impl Word {
    fn new(text: &str, is_character: bool) -> Self {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Self { hash: hasher.finish(), is_character }
    }
}

/// The length of the n-grams of a text: [`WORDS`] or [`CHARACTERS`], or the whole text if it is shorter.
/// `None` for a text that is too short to be compared.
fn length(words: &[Word]) -> Option<usize> {
    let characters = words.iter().filter(|word| word.is_character).count();
    let is_without_spaces = 2 * characters > words.len();
    let (full, fewest) =
        if is_without_spaces { (CHARACTERS, FEWEST_CHARACTERS) } else { (WORDS, FEWEST_WORDS) };
    (words.len() >= fewest).then(|| full.min(words.len()))
}

/// The hashes of the n-grams of a text.
fn grams(words: &[Word], length: usize) -> impl Iterator<Item = u64> {
    words.windows(length).map(|gram| {
        let mut hasher = DefaultHasher::new();
        for word in gram {
            hasher.write_u64(word.hash);
        }
        hasher.finish()
    })
}

/// The words of a text in lower case, without punctuation.
fn words(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut word = String::new();
    let end = |word: &mut String, words: &mut Vec<Word>| {
        if !word.is_empty() {
            words.push(Word::new(word, false));
            word.clear();
        }
    };
    for c in text.chars().flat_map(char::to_lowercase) {
        let is_character = is_without_spaces(c);
        if c.is_alphanumeric() && !is_character {
            word.push(c);
            continue;
        }
        end(&mut word, &mut words);
        // Tone marks and punctuation of these scripts are left out, like other punctuation.
        if is_character && c.is_alphanumeric() {
            words.push(Word::new(c.encode_utf8(&mut [0; 4]), true));
        }
    }
    end(&mut word, &mut words);
    words
}

/// Whether a character is of a script that is written without spaces between words: Chinese and Japanese, and
/// Thai, Lao, Khmer and Burmese. Korean is among them, because its spaces vary.
fn is_without_spaces(c: char) -> bool {
    matches!(c,
        // Thai and Lao; Burmese with its extensions; Khmer.
        '\u{0e00}'..='\u{0eff}'
        | '\u{1000}'..='\u{109f}' | '\u{a9e0}'..='\u{a9ff}' | '\u{aa60}'..='\u{aa7f}'
        | '\u{1780}'..='\u{17ff}'
        // Kana; Chinese characters; Korean syllables.
        | '\u{3040}'..='\u{30ff}'
        | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3134f}'
        | '\u{ac00}'..='\u{d7af}')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A document of a row whose prompt is its columns `question` and `passage`.
    fn document(row: &Value, cluster: Option<&str>) -> Document {
        let column = |name: &str| row[name].as_str().unwrap_or_default();
        let context = format!("Answer.\n{} {}\nA:", column("passage"), column("question"));
        let choices: Vec<String> = serde_json::from_value(row["choices"].clone()).unwrap_or_default();
        let request = |choice: &String| Request::Loglikelihood {
            context: Prompt::Text(context.clone()),
            continuation: format!(" {choice}"),
        };
        Document {
            doc_id: 0,
            row: row.as_object().unwrap().clone(),
            target: Target::Text(column("answer").to_owned()),
            requests: choices.iter().chain([&String::new()]).map(request).collect(),
            choices,
            input: String::new(),
            cluster: cluster.map(str::to_owned),
            fewshot_rows: Vec::new(),
        }
    }

    /// What is found out about rows with this training data.
    fn findings(rows: &[Value], training: &[&str]) -> Vec<Finding> {
        let documents: Vec<Document> =
            rows.iter().map(|row| document(row, row["cluster"].as_str())).collect();
        let mut index = Index::default();
        let grams = index.add_task(&documents);
        for text in training {
            index.read(text);
        }
        grams.iter().map(|grams| index.finding(grams)).collect()
    }

    /// Which rows `training` holds.
    fn held(rows: &[Value], training: &[&str]) -> Vec<bool> {
        findings(rows, training).into_iter().map(|finding| finding == Finding::Contaminated).collect()
    }

    #[test]
    fn what_has_no_n_gram_of_its_own_is_neither_marked_nor_clean() {
        let question = "what is the name of the capital of france";
        // Seven words; the same text in eleven rows.
        let mut rows =
            vec![json!({"question": question}), json!({"question": "name the capital of france or spain"})];
        rows.extend(
            (0..11).map(|_| json!({"question": "which of these cities is the capital of the country"})),
        );
        let found = findings(&rows, &["nothing of this"]);
        assert_eq!(found[0], Finding::Clean);
        assert_eq!(found[1..], [Finding::Unexamined; 12]);
        assert_eq!(findings(&rows, &[question])[0], Finding::Contaminated);
    }

    #[test]
    fn an_n_gram_in_the_training_text_is_found_in_any_spelling() {
        let long = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen.";
        let rows = [
            json!({"question": long}),
            json!({"question": "what is the name of the capital of france"}),
            json!({"question": "一二三四五六七八九十一二三四五六七八九十甲"}),
        ];
        let training = [
            "zero, ONE two three; four five six seven eight nine ten eleven twelve thirteen - end",
            "Q: What is the name of the capital of France? A: Paris",
            "他说：一二三四五六七八九十，一二三四五六七八九十。",
        ];
        assert_eq!(held(&rows, &training), [true; 3]);
        for (row, text) in [
            // 12 of the 13 words; another country; 19 of the 20 characters.
            "two three four five six seven eight nine ten eleven twelve thirteen",
            "what is the name of the capital of spain",
            "二三四五六七八九十一二三四五六七八九十",
        ]
        .into_iter()
        .enumerate()
        {
            assert!(!held(&rows, &[text])[row], "{text}");
        }
    }

    #[test]
    fn only_what_is_asked_or_right_counts() {
        let instruction = "You are a helpful assistant that answers questions about the geography of Europe";
        let source =
            "From the third edition of the great encyclopedia of rivers, seas and mountains of Europe";
        let answer = "It is the Danube, which flows through ten countries before it reaches the Black Sea";
        let row = json!({
            "question": "Which river of Europe flows through more countries than any other river does?",
            "answer": answer, "source": source, "instruction": instruction,
            "choices": ["the United States of America", "the river that flows through the most capitals of all"],
        });
        let of = |text: &str| held(std::slice::from_ref(&row), &[text])[0];
        assert!(!of(instruction) && !of(source));
        assert!(of(row["question"].as_str().unwrap()) && of(answer));
        // Five words stand anywhere, eight are a choice of their own.
        assert!(!of("born in the United States of America") && of(row["choices"][1].as_str().unwrap()));
        // A blank that the template fills leaves the rest of a text.
        let (before, after) =
            ("the trophy did not fit into the brown", "because it was far too large for it");
        let blank = json!({
            "question": format!("{before} suitcase {after} and so we left it at home again"),
            "sentence": format!("{before} _ {after} and so we left it at home again"),
        });
        let text = format!("{before} {after}");
        assert!(held(&[blank], &[&text])[0]);
    }

    #[test]
    fn what_many_documents_share_counts_for_none_of_them() {
        let frame = "read the passage below with care and then choose the one best answer to it";
        let numbers = "one two three four five six seven eight nine ten eleven twelve";
        let row = |n: usize, cluster: Option<&str>| json!({"passage": frame, "question": format!("{numbers} number {n}"), "cluster": cluster});
        let ten: Vec<Value> = (0..10).map(|n| row(n, None)).collect();
        assert_eq!(held(&ten, &[frame]), [true; 10]);
        let eleven: Vec<Value> = (0..11).map(|n| row(n, None)).collect();
        assert_eq!(held(&eleven, &[frame]), [false; 11]);
        let found = held(&eleven, &[&format!("{numbers} number 3")]);
        assert_eq!(found.iter().filter(|found| **found).count(), 1);
        // Eleven questions about one passage are one.
        let passage: Vec<Value> = (0..11).map(|n| row(n, Some("passage 1"))).collect();
        assert_eq!(held(&passage, &[frame]), [true; 11]);
    }

    #[test]
    fn scripts_without_spaces_are_compared_by_characters() {
        // "The capital of ... is called what, and how many people live there", without a space.
        for text in [
            "เมืองหลวงของประเทศฝรั่งเศสชื่อว่าอะไร",
            "ເມືອງຫຼວງຂອງປະເທດຝຣັ່ງຊື່ວ່າຫຍັງ",
            "រដ្ឋធានីនៃប្រទេសបារាំងមានឈ្មោះអ្វី",
            "ပြင်သစ်နိုင်ငံ၏မြို့တော်ကဘာလဲ",
            "フランスの首都はどこですか教えてください",
        ] {
            let row = json!({"question": text});
            let around = format!("{}{text}{}", &text[..3], &text[..3]);
            assert_eq!(held(&[row], &[&around]), [true], "{text}");
            assert!(words(text).iter().all(|word| word.is_character), "{text}");
        }
        // Eleven characters say too little.
        assert_eq!(
            held(&[json!({"question": "一二三四五六七八九十甲"})], &["一二三四五六七八九十甲"]),
            [false]
        );
    }
}
