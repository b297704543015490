//! The errors of this crate.
//!
//! A message names the place (file and row), the field, what was found, what is wanted, and ends with the
//! fix. Rows are counted from 1, over the whole file; a row of JSONL has the number of its line. Knows
//! nothing of how errors are printed.

use std::fmt;
use std::path::{Path, PathBuf};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A row of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLocation {
    /// The file.
    pub path: PathBuf,
    /// The row, from 1; of JSONL the line. 0 where there is no file of rows.
    pub row: usize,
}

impl RowLocation {
    /// What a row of this file is called: a line, where it has the number of a line.
    pub fn unit(path: &Path) -> &'static str {
        if has_extension(path, &[".jsonl", ".ndjson"]) { "line" } else { "row" }
    }

    /// Whether the cells of the file are texts, whatever they hold.
    pub(crate) fn is_csv(&self) -> bool {
        has_extension(&self.path, &[".csv"])
    }
}

/// Whether the file name ends so, a last `.gz` aside.
fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    extensions.iter().any(|extension| name.ends_with(extension))
}

impl fmt::Display for RowLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.row {
            0 => write!(formatter, "{path}"),
            row => write!(formatter, "{path} {} {row}", Self::unit(&self.path)),
        }
    }
}

/// Where JSON is broken: in the file, not in the line that the parser was given.
fn broken(at: &RowLocation, source: &serde_json::Error) -> String {
    let by_lines = RowLocation::unit(&at.path) == "line" && at.row > 0;
    let line = if by_lines { at.row } else { source.line() };
    let reason = source.to_string();
    let reason = reason.split(" at line ").next().unwrap_or_default();
    format!("{} line {line} column {}: broken JSON: {reason}", at.path.display(), source.column())
}

/// What a role of this name stands for in most files.
fn canonical_role(role: &str) -> String {
    let meant = match role.to_ascii_lowercase().as_str() {
        "human" | "customer" | "person" | "question" | "input" | "user" => "user",
        "bot" | "model" | "ai" | "agent" | "chatbot" | "answer" | "output" | "assistant" => "assistant",
        "developer" | "instruction" | "instructions" | "context" | "system" => "system",
        "function" | "ipython" | "tool_result" | "tool" => "tool",
        _ => return format!("say who it is with --map {role}=user, or =assistant, =system, =tool"),
    };
    format!("if it is the {meant}, convert the file with --map {role}={meant}")
}

/// What can go wrong between a file and a token batch.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A share of the synthetic world is not a share.
    #[error("{name} is {value}; set it to a number from 0 to 1")]
    SynthShare {
        /// The option.
        name: &'static str,
        /// Its value.
        value: f64,
    },

    /// The synthetic world has no more problems of one side.
    #[error(
        "the synthetic world has no more {side} questions: {wanted} wanted, {got} found; ask for fewer or change heldout_share"
    )]
    SynthExhausted {
        /// `training` or `held-out`.
        side: &'static str,
        /// Questions asked for.
        wanted: usize,
        /// Questions found.
        got: usize,
    },

    /// A file could not be read.
    #[error("{path}: cannot read: {source}; check the path and its permissions")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },

    /// A file could not be written.
    #[error("{path}: cannot write: {source}; check the free space and the permissions of the folder")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause, for example no space left.
        source: std::io::Error,
    },

    /// No file matches.
    #[error(
        "{pattern}: no data file found; give a file, a folder that holds {wanted}, or a pattern with * or ?"
    )]
    NoFiles {
        /// The path or pattern as given.
        pattern: String,
        /// The extensions that are read.
        wanted: &'static str,
    },

    /// The file name does not tell the format.
    #[error("{path}: cannot tell the format from its name; rename it to end in one of {wanted}")]
    UnsupportedExtension {
        /// The file.
        path: PathBuf,
        /// The extensions that are read or written.
        wanted: &'static str,
    },

    /// A folder, a pipe or a device where a file is read twice.
    #[error("{path}: this is no file; give one file of rows")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },

    /// A file of rows in a compression that is not read.
    #[error("{path}: this compression is not read; unpack the file first with `{program}`")]
    Compressed {
        /// The file.
        path: PathBuf,
        /// The program that unpacks it.
        program: &'static str,
    },

    /// The bytes of a file are not what its name says.
    #[error("{path}: this file is {found}, which its name does not say; {fix}")]
    WrongFormat {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: String,
        /// What to do.
        fix: String,
    },

    /// A line, or a file that is read whole, is longer than any row.
    #[error("{path}: {source}; split it, or look at what made it")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// What is too long.
        source: std::io::Error,
    },

    /// A gzip file is cut off or damaged.
    #[error("{path}: the gzip data is damaged or cut off ({source}); fetch the file again")]
    DamagedGzip {
        /// The file.
        path: PathBuf,
        /// What the decoder says.
        source: std::io::Error,
    },

    /// A Parquet file with a compression that is not built in.
    #[error(
        "{path}: this Parquet file is compressed with {name}, which this program does not read; write it again with zstd or snappy, for example `pandas.read_parquet(OLD).to_parquet(NEW, compression=\"zstd\")`"
    )]
    ParquetCompression {
        /// The file.
        path: PathBuf,
        /// The compression.
        name: String,
    },

    /// CSV cannot be read.
    #[error(
        "{path}: broken CSV: {source}; give every row as many cells as the header has names (the header is line 1)"
    )]
    Csv {
        /// The file.
        path: PathBuf,
        /// What the reader says.
        source: arrow_schema::ArrowError,
    },

    /// Two columns have one name.
    #[error("{path}: the column {column} is there twice; rename or remove one of the two")]
    DuplicateColumn {
        /// The file.
        path: PathBuf,
        /// The name.
        column: String,
    },

    /// Every row was left out.
    #[error(
        "{path}: none of its {rows} rows can be used: {reasons}; name the layout with --layout if it was guessed wrong"
    )]
    NothingUsable {
        /// The file.
        path: PathBuf,
        /// Rows read.
        rows: usize,
        /// Why they were left out.
        reasons: String,
    },

    /// A field that says something about what is to be learned, and that nothing reads.
    #[error(
        "{at}: the field {field} is {found}, and {kind} rows of the layout {layout} do not use it, so what it says would be lost; if that is right, leave it out by name: --drop {name}, or drop = [\"{name}\"] in [data]"
    )]
    UnreadField {
        /// The row.
        at: RowLocation,
        /// The field, with its column if it is one of a turn.
        field: String,
        /// What it says.
        found: String,
        /// The layout.
        layout: &'static str,
        /// What is read.
        kind: &'static str,
        /// Its own name.
        name: String,
    },

    /// A file has no rows.
    #[error("{path}: the file has no rows; leave it out of the list, or fill it")]
    NoRows {
        /// The file or list of files.
        path: PathBuf,
    },

    /// A row is not JSON.
    #[error("{}; write one object per line in .jsonl, and one array of objects in .json", broken(at, source))]
    BadJson {
        /// The row.
        at: RowLocation,
        /// What the parser says.
        source: serde_json::Error,
    },

    /// A row is JSON but not an object.
    #[error("{at}: the row is {found}, not an object with named fields; write one object per row")]
    NotAnObject {
        /// The row.
        at: RowLocation,
        /// What it is.
        found: &'static str,
    },

    /// A Parquet file is damaged or uses a feature that is not built in.
    #[error(
        "{path}: this is not a Parquet file that can be read or written: {source}; fetch it again, or write it anew"
    )]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What the Parquet reader says.
        source: parquet::errors::ParquetError,
    },

    /// Arrow could not convert.
    #[error(
        "{path}: a column cannot be read or written: {source}; give it one type (text, numbers, true and false, lists or structs), or leave it out"
    )]
    Arrow {
        /// The file.
        path: PathBuf,
        /// What Arrow says.
        source: arrow_schema::ArrowError,
    },

    /// No accepted layout fits the columns.
    #[error(
        "{path}: no layout of {kind} rows fits the columns {found}; wanted are {wanted}; rename columns, or convert the file with `data convert --map WANTED=FOUND`"
    )]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// What is loaded.
        kind: &'static str,
        /// The columns there are.
        found: String,
        /// The accepted sets of columns.
        wanted: String,
    },

    /// More than one layout fits the columns.
    #[error(
        "{path}: the columns {found} fit more than one layout: {choices}; name the layout with --layout, or leave out the columns of the others with --drop, or drop = [...] in [data]"
    )]
    AmbiguousLayout {
        /// The file.
        path: PathBuf,
        /// The columns there are.
        found: String,
        /// The layouts that fit.
        choices: String,
    },

    /// Rows of different layouts for one file.
    #[error(
        "{path}: row {row} has the layout {found}, and the rows before it have {first}; write one layout per file"
    )]
    MixedLayouts {
        /// The file.
        path: PathBuf,
        /// The row, from 1.
        row: usize,
        /// Layout of the first row.
        first: &'static str,
        /// Layout of this row.
        found: &'static str,
    },

    /// A layout name is not known.
    #[error("unknown layout {given:?}; choose one of {known}")]
    UnknownLayout {
        /// The name given.
        given: String,
        /// The names there are.
        known: String,
    },

    /// A `--map` entry cannot be understood.
    #[error(
        "--map {given:?} is not understood; write WANTED=FOUND for a column ({columns}) or for role or content of a turn, and NAME=user, NAME=assistant, NAME=system or NAME=tool for a role"
    )]
    BadMapping {
        /// The entry.
        given: String,
        /// Names of columns and fields that can be mapped.
        columns: String,
    },

    /// A field is not there or is null.
    #[error("{at}: the field {field} is missing or null; it must be {expected}")]
    MissingField {
        /// The row.
        at: RowLocation,
        /// The field, with its index inside lists.
        field: String,
        /// What is wanted.
        expected: &'static str,
    },

    /// A field has the wrong type.
    #[error("{at}: the field {field} is {found}; it must be {expected}")]
    WrongType {
        /// The row.
        at: RowLocation,
        /// The field, with its index inside lists.
        field: String,
        /// What it is.
        found: String,
        /// What is wanted.
        expected: &'static str,
    },

    /// A role has a name that is not known.
    #[error(
        "{at}: the field {field} is {found:?}, which is none of the roles system, user, assistant and tool; {}", canonical_role(&found.escape_debug().to_string())
    )]
    UnknownRole {
        /// The row.
        at: RowLocation,
        /// The field, with its index inside lists.
        field: String,
        /// The name found.
        found: String,
    },

    /// A list of messages is empty.
    #[error("{at}: the field {field} has no turns; remove the row, or give it at least one turn")]
    EmptyConversation {
        /// The row.
        at: RowLocation,
        /// The field.
        field: String,
    },

    /// A conversation has nothing to learn from.
    #[error("the conversation has no assistant turn to learn from; add the answer, or remove the row")]
    NoAssistantTurn,
    /// A conversation to be scored that does not end with an answer.
    #[error(
        "the conversation does not end with an assistant turn, so there is nothing to score; add the answer, or remove the row"
    )]
    NothingToScore,

    /// A completion is empty.
    #[error("{at}: the field {field} is empty, so there is nothing to learn from; remove the row")]
    EmptyCompletion {
        /// The row.
        at: RowLocation,
        /// The field.
        field: String,
    },

    /// An assistant turn says nothing.
    #[error(
        "{at}: turn {turn} of {field} is an assistant turn without text, so there is nothing to learn from; remove the row, or give the turn \"weight\": 0"
    )]
    EmptyTurn {
        /// The row.
        at: RowLocation,
        /// The field.
        field: String,
        /// The turn, from 1.
        turn: usize,
    },

    /// A completion is not exactly one assistant turn.
    #[error(
        "{at}: the field {field} has the turns {found}; it must be one assistant turn, with the turns before it in prompt"
    )]
    NotOneAnswer {
        /// The row.
        at: RowLocation,
        /// The field.
        field: String,
        /// The roles found.
        found: String,
    },

    /// Two lists that belong together differ in length.
    #[error(
        "{at}: the field {field} has {got} entries and {other} has {expected}; give one label for each id, not shifted, and -100 where there is no loss"
    )]
    LengthMismatch {
        /// The row.
        at: RowLocation,
        /// The field.
        field: String,
        /// The field that sets the length.
        other: &'static str,
        /// Its length.
        expected: usize,
        /// The length found.
        got: usize,
    },

    /// A token id that the tokenizer does not have.
    #[error(
        "{place}: token id {id} is outside the vocabulary of {vocab_size} ids; the rows were tokenised with another tokenizer: tokenise again"
    )]
    IdOutsideVocabulary {
        /// Field or call.
        place: String,
        /// The id.
        id: i64,
        /// Highest id + 1.
        vocab_size: usize,
    },

    /// The two sides of a tokenised pair do not share their prompt.
    #[error(
        "{at}: prompt_length is {prompt_length}, but the pair shares its first {shared} ids and its sides have {chosen} and {rejected}; count the shared prompt ids, and leave at least one completion id per side"
    )]
    BadPromptLength {
        /// The row.
        at: RowLocation,
        /// The length given.
        prompt_length: i64,
        /// Ids that both sides begin with.
        shared: usize,
        /// Ids of the chosen side.
        chosen: usize,
        /// Ids of the rejected side.
        rejected: usize,
    },

    /// A foreign row has a shape that the converter does not know.
    #[error("{at}: {reason}; correct the row, or remove it")]
    BadForeignRow {
        /// The row.
        at: RowLocation,
        /// What is wrong with it.
        reason: String,
    },

    /// An error inside a row.
    #[error("{at}: {source}")]
    InRow {
        /// The row.
        at: RowLocation,
        /// The error.
        source: Box<Self>,
    },

    /// A chat template does not compile.
    #[error(
        "chat template of {name} does not compile: {reason}; correct the Jinja source or set another template"
    )]
    TemplateSyntax {
        /// The model folder, or the name of a built-in template.
        name: String,
        /// The engine's message with the line.
        reason: String,
    },

    /// A chat template refuses a conversation.
    #[error(
        "chat template of {name} fails: {reason}; change the conversation to what the template accepts or set another template"
    )]
    TemplateRender {
        /// The model folder, or the name of a built-in template.
        name: String,
        /// The template's own message, with the line.
        reason: String,
    },

    /// There is no chat template.
    #[error(
        "{name}: the tokenizer has no chat template; add chat_template.jinja to the folder or set a built-in one ({known})"
    )]
    NoChatTemplate {
        /// The model folder.
        name: String,
        /// The built-in names.
        known: &'static str,
    },

    /// A built-in template name is not known.
    #[error("unknown chat template {given:?}; choose one of {known} or give Jinja source")]
    UnknownTemplate {
        /// The name given.
        given: String,
        /// The built-in names.
        known: &'static str,
    },

    /// The prompt of a turn is not a prefix of the conversation.
    #[error(
        "chat template of {name}: turn {}: {reason}; the loss mask cannot be exact: mark the answer with {{% generation %}} in the template, give the row as prompt and completion, or set another template",
        turn + 1
    )]
    NotAPrefix {
        /// The model folder, or the name of a built-in template.
        name: String,
        /// Index of the assistant turn, from 0.
        turn: usize,
        /// Where the texts or the ids part.
        reason: String,
    },

    /// A template's generation markers do not match the conversation.
    #[error(
        "chat template of {name}: {marked} generation blocks for {turns} assistant turns; put exactly one block around each assistant answer"
    )]
    GenerationBlocks {
        /// The model folder, or the name of a built-in template.
        name: String,
        /// Blocks in the rendered text.
        marked: usize,
        /// Assistant turns.
        turns: usize,
    },

    /// The folder has no tokenizer.
    #[error(
        "{folder}: has no tokenizer.json; copy it from the model, or save it with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`"
    )]
    TokenizerMissing {
        /// The folder.
        folder: PathBuf,
    },

    /// A tokenizer file is not valid.
    #[error("{path}: not a usable tokenizer file: {reason}; copy the file from the model again")]
    TokenizerInvalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },

    /// A file of a model folder that should hold a JSON object.
    #[error("{path}: not a JSON object: {reason}; copy the file from the model again")]
    ModelFile {
        /// The file.
        path: PathBuf,
        /// What the parser says, with line and column.
        reason: String,
    },

    /// The tokenizer crate failed on a text.
    #[error("the tokenizer of {name} failed: {reason}; check that tokenizer.json is complete")]
    Tokenize {
        /// The model folder.
        name: String,
        /// What the tokenizer says.
        reason: String,
    },

    /// A token that is needed has no id.
    #[error("{name}: the tokenizer has no {token}; set it in tokenizer_config.json")]
    MissingSpecialToken {
        /// The model folder.
        name: String,
        /// `bos_token`, `eos_token` and so on.
        token: &'static str,
    },

    /// The tokens of `ChatML` turns are not there.
    #[error(
        "{name}: the tokenizer has no {token}, so the template chatml means nothing to this model; `sft` adds the token: fine-tune with tokenizer.template = \"chatml\" first, or use the template plain"
    )]
    MissingTurnToken {
        /// The model folder.
        name: String,
        /// The token.
        token: &'static str,
    },

    /// A chat template leaves out a turn.
    #[error(
        "chat template of {name}: it leaves out turn {turn} ({role}): the text is the same whatever the turn says; move its content into another turn, remove it, or set another template"
    )]
    DroppedTurn {
        /// The model folder, or the name of a built-in template.
        name: String,
        /// The turn, from 1.
        turn: usize,
        /// Who speaks.
        role: &'static str,
    },

    /// A vocabulary is too small for its fixed part.
    #[error("vocab_size is {got}; at least {least} are wanted: 256 bytes and the special tokens")]
    VocabularyTooSmall {
        /// The size asked for.
        got: usize,
        /// The smallest size.
        least: usize,
    },

    /// A row is longer than a bin.
    #[error("row {row} has {length} tokens, but only {max_length} fit; cut the row, or leave it out")]
    RowTooLong {
        /// The row, from 1.
        row: usize,
        /// Its tokens.
        length: usize,
        /// Tokens of a bin.
        max_length: usize,
    },

    /// A row is longer than a model takes.
    #[error(
        "{at}: has {length} tokens, and this model takes at most {longest}; shorten the row, or remove it"
    )]
    LongForModel {
        /// The row.
        at: RowLocation,
        /// Its tokens.
        length: usize,
        /// The most tokens that the model takes here.
        longest: i64,
    },

    /// The sampler has no rows.
    #[error("the data set has no rows to sample; check the counts of dropped rows and raise max_length")]
    NothingToSample,

    /// A saved sampler position does not fit the data.
    #[error(
        "the saved position {position} belongs to a data set of {rows} rows, and this one has {len}; resume with the data that \
         the run began with"
    )]
    SamplerState {
        /// Rows of the data set that it was saved over.
        rows: usize,
        /// Rows of the epoch already taken.
        position: usize,
        /// Rows of the data set.
        len: usize,
    },

    /// Neither a folder nor a hub name.
    #[error(
        "{model}: there is no such folder, and a model of the hub has the form owner/name[@revision]{hint}"
    )]
    UnknownModel {
        /// The name given.
        model: String,
        /// What to write instead; begins with `; ` if it is not empty.
        hint: String,
    },

    /// A path that is there and is no folder.
    #[error("{path}: is a file; give the folder that holds config.json, tokenizer.json and the weights")]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },

    /// A name that the hub or a repository chose and that must not become part of a path.
    #[error(
        "{model}: refused: the {what} of the repository is {found:?}; report the repository, and do not use it"
    )]
    HostileName {
        /// The model.
        model: String,
        /// What has the name.
        what: &'static str,
        /// The name.
        found: String,
    },

    /// An index of weights that cannot be used.
    #[error(
        "{path}: not a usable index of weights: {reason}; copy the model again, from a source that you trust"
    )]
    WeightIndex {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },

    /// The hub answered with an error.
    #[error(
        "{model}: cannot get {file} from {endpoint}: {reason}; check the name, the network and HF_TOKEN (private and gated models), or set HF_HUB_OFFLINE=1 to use the cache only (there is no folder {model} here)"
    )]
    Hub {
        /// The model.
        model: String,
        /// The file or listing.
        file: String,
        /// The address of the hub.
        endpoint: String,
        /// What came back.
        reason: String,
    },

    /// A file is not in the cache and the hub may not be asked.
    #[error(
        "{model}: {file} is not in the cache {cache} and HF_HUB_OFFLINE is set; download the model once with HF_HUB_OFFLINE unset (there is no folder {model} here)"
    )]
    Offline {
        /// The model.
        model: String,
        /// The missing file.
        file: String,
        /// The cache folder.
        cache: PathBuf,
    },

    /// The repository lacks a file that every model needs.
    #[error(
        "{model}: the repository has no {file}; only models with config.json, tokenizer.json and safetensors weights can be used"
    )]
    HubFileMissing {
        /// The model.
        model: String,
        /// The file.
        file: &'static str,
    },
}

impl Error {
    /// Names the row in which this error arose.
    #[must_use]
    pub fn in_row(self, at: &RowLocation) -> Self {
        Self::InRow { at: at.clone(), source: Box::new(self) }
    }
}
