//! The errors of this crate.
//!
//! An error message names the location (file and row), the field, the value found and the value expected, and
//! ends with the fix. Rows are counted from 1 over the full file; a JSONL row has the number of its line.
//! This module does not print errors.

mod hint;
mod location;

pub use location::RowLocation;

use std::path::PathBuf;

use self::hint::role_hint;

/// What kind of failure an error is. The crates that know torch have `parallel::ErrorClass`, and the crates
/// above both turn this class into one of those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The work failed: the network, or a mistake of the program.
    Failed,
    /// The command line or the configuration is wrong.
    Usage,
    /// A data file, a template or a tokenizer cannot be read or used.
    Data,
    /// The class of an error of the operating system.
    Io(std::io::ErrorKind),
    /// The class of the error's source, whose type the crate of the error does not know.
    OfSource,
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error on the way from a file to a token batch. The variants are grouped by what fails.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of a variant says what its fields are")]
pub enum Error {
    // --- Files: they cannot be found, opened, decompressed or written.
    /// A file could not be read.
    #[error("{path}: cannot read: {source}; check the path and its permissions")]
    Read { path: PathBuf, source: std::io::Error },

    /// A file could not be written.
    #[error("{path}: cannot write: {source}; check the free space and the permissions of the folder")]
    Write {
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

    /// The file format cannot be determined from its name.
    #[error("{path}: cannot tell the format from its name; rename it to end in one of {wanted}")]
    UnsupportedExtension {
        path: PathBuf,
        /// The extensions that are read or written.
        wanted: &'static str,
    },

    /// A folder, pipe or device was given where a file is read twice.
    #[error("{path}: this is no file; give one file of rows")]
    NotAFile { path: PathBuf },

    /// A data file uses an unsupported compression.
    #[error("{path}: this compression is not read; unpack the file first with `{program}`")]
    Compressed {
        path: PathBuf,
        /// The program that unpacks it.
        program: &'static str,
    },

    /// The contents of a file do not match its name.
    #[error("{path}: this file is {found}, which its name does not say; {fix}")]
    WrongFormat {
        path: PathBuf,
        /// What was found.
        found: String,
        /// What to do.
        fix: String,
    },

    /// A row, a header or the columns of a file exceed a limit.
    #[error("{at}: {what}; make it smaller, or check the program that wrote the file")]
    TooLong {
        /// The row.
        at: RowLocation,
        /// What is too long, with the limit.
        what: String,
    },

    /// A gzip file unpacks to far more than rows do.
    #[error("{path}: {source}, which rows do not; if it is right, unpack it first with `gzip -d {path}`")]
    Unpacks {
        path: PathBuf,
        /// The limit.
        source: std::io::Error,
    },

    /// A gzip file is cut off or damaged.
    #[error("{path}: the gzip data is damaged or cut off ({source}); fetch the file again")]
    DamagedGzip {
        path: PathBuf,
        /// The error of the decoder.
        source: std::io::Error,
    },

    /// A Parquet file uses a compression that is not built in.
    #[error(
        "{path}: this Parquet file is compressed with {name}, which this program does not read; write it again with zstd or snappy, for example `pandas.read_parquet(OLD).to_parquet(NEW, compression=\"zstd\")`"
    )]
    ParquetCompression {
        path: PathBuf,
        /// The compression.
        name: String,
    },

    /// A Parquet file is damaged or uses a feature that is not built in.
    #[error(
        "{path}: this is not a Parquet file that can be read or written: {reason}; download or write it again",
        reason = parquet_reason(.error)
    )]
    Parquet {
        path: PathBuf,
        /// The error of the Parquet reader or writer. The message says all of it, so it is not a source: a
        /// chain of causes would say it twice, with the words that `parquet_reason` leaves out.
        error: parquet::errors::ParquetError,
    },

    /// Arrow could not convert a column.
    #[error(
        "{path}: a column cannot be read or written: {source}; give it one type (text, numbers, true and false, lists or structs), or leave it out"
    )]
    Arrow {
        path: PathBuf,
        /// The error of Arrow.
        source: arrow_schema::ArrowError,
    },

    /// A CSV file cannot be read.
    #[error(
        "{path}: broken CSV: {source}; give every row as many cells as the header has names (the header is line 1)"
    )]
    Csv {
        path: PathBuf,
        /// The error of the CSV reader.
        source: arrow_schema::ArrowError,
    },

    /// A row is not valid JSON.
    #[error(
        "{} line {line} column {column}: broken JSON: {reason}; write one object per line in .jsonl, and one array of objects in .json", at.path.display()
    )]
    BadJson {
        /// The row.
        at: RowLocation,
        /// The line in the file, from 1.
        line: usize,
        /// The column in the line, from 1.
        column: usize,
        /// What the parser expected.
        reason: String,
    },

    /// A row is valid JSON but not an object.
    #[error("{at}: the row is {found}, not an object with named fields; write one object per row")]
    NotAnObject {
        /// The row.
        at: RowLocation,
        /// What was found.
        found: &'static str,
    },

    /// A file has no rows.
    #[error("{path}: the file has no rows; leave it out of the list, or fill it")]
    NoRows {
        /// The file or list of files.
        path: PathBuf,
    },

    /// Every row was skipped.
    #[error(
        "{path}: none of its {rows} rows can be used: {reasons}; name the layout with --layout if it was guessed wrong"
    )]
    NothingUsable {
        path: PathBuf,
        /// Rows read.
        rows: usize,
        /// The reasons for skipping.
        reasons: String,
    },

    // --- Layouts: the columns of a file are not those of its rows.
    /// Two columns have the same name.
    #[error("{path}: the column {column} is there twice; rename or remove one of the two")]
    DuplicateColumn {
        path: PathBuf,
        /// The name.
        column: String,
    },

    /// No accepted layout fits the columns.
    #[error(
        "{path}: no layout of {kind} rows fits the columns {found}; wanted are {wanted}; rename columns, or convert the file with `data convert --map WANTED=FOUND`"
    )]
    MissingColumn {
        path: PathBuf,
        /// The record type.
        kind: &'static str,
        /// The columns found.
        found: String,
        /// The accepted sets of columns.
        wanted: String,
    },

    /// More than one layout fits the columns.
    #[error(
        "{path}: the columns {found} fit more than one layout: {choices}; name the layout with --layout, or leave out the columns of the others with --drop, or drop = [...] in [data]"
    )]
    AmbiguousLayout {
        path: PathBuf,
        /// The columns found.
        found: String,
        /// The layouts that fit.
        choices: String,
    },

    /// Rows of different layouts were to be written to one file.
    #[error(
        "{path}: row {row} has the layout {found}, and the rows before it have {first}; write one layout per file"
    )]
    MixedLayouts {
        path: PathBuf,
        row: usize,
        /// The layout of the first row.
        first: &'static str,
        /// The layout of this row.
        found: &'static str,
    },

    /// A layout name is unknown.
    #[error("unknown layout {given:?}; choose one of {known}")]
    UnknownLayout {
        /// The name given.
        given: String,
        /// The known names.
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

    /// A field that would change what is trained on is not read by the layout.
    #[error(
        "{at}: the field {field} is {found}, and {kind} rows of the layout {layout} do not use it, so what it says would be lost; if that is right, leave it out by name: --drop {name}, or drop = [\"{name}\"] in [data]"
    )]
    UnreadField {
        /// The row.
        at: RowLocation,
        /// The field, with its column if it is a turn field.
        field: String,
        /// The value, in a few words.
        found: String,
        layout: &'static str,
        /// The record type.
        kind: &'static str,
        /// The field name without its column.
        name: String,
    },

    // --- Rows: a field is not what its layout says.
    /// An error with the row in which it occurred.
    #[error("{at}: {source}")]
    InRow {
        /// The row.
        at: RowLocation,
        source: Box<Self>,
    },

    /// A field is missing or null.
    #[error("{at}: the field {field} is missing or null; it must be {expected}")]
    MissingField {
        /// The row.
        at: RowLocation,
        /// The field, with its index inside lists.
        field: String,
        /// The expected value.
        expected: &'static str,
    },

    /// A field has the wrong type.
    #[error("{at}: the field {field} is {found}; it must be {expected}")]
    WrongType {
        /// The row.
        at: RowLocation,
        /// The field, with its index inside lists.
        field: String,
        /// What was found.
        found: String,
        /// The expected value.
        expected: &'static str,
    },

    /// A role name is unknown.
    #[error(
        "{at}: the field {field} is {found:?}, which is none of the roles system, user, assistant and tool; {}", role_hint(&found.escape_debug().to_string())
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
        field: String,
    },

    /// A conversation has no assistant turn to train on.
    #[error("the conversation has no assistant turn to learn from; add the answer, or remove the row")]
    NoAssistantTurn,

    /// A conversation for scoring does not end with an assistant turn.
    #[error(
        "the conversation does not end with an assistant turn, so there is nothing to score; add the answer, or remove the row"
    )]
    NothingToScore,

    /// A completion is empty.
    #[error("{at}: the field {field} is empty, so there is nothing to learn from; remove the row")]
    EmptyCompletion {
        /// The row.
        at: RowLocation,
        field: String,
    },

    /// An assistant turn is empty.
    #[error(
        "{at}: turn {turn} of {field} is an assistant turn without text, so there is nothing to learn from; remove the row, or give the turn \"weight\": 0"
    )]
    EmptyTurn {
        /// The row.
        at: RowLocation,
        field: String,
        turn: usize,
    },

    /// A completion is not exactly one assistant turn.
    #[error(
        "{at}: the field {field} has the turns {found}; it must be one assistant turn, with the turns before it in prompt"
    )]
    NotOneAnswer {
        /// The row.
        at: RowLocation,
        field: String,
        /// The roles found.
        found: String,
    },

    /// Two lists that must have the same length differ in length.
    #[error(
        "{at}: the field {field} has {got} entries and {other} has {expected}; give one label for each id, not shifted, and -100 where there is no loss"
    )]
    LengthMismatch {
        /// The row.
        at: RowLocation,
        field: String,
        /// The field that defines the expected length.
        other: &'static str,
        /// The expected length.
        expected: usize,
        /// The length found.
        got: usize,
    },

    /// A token id is outside the vocabulary of the tokenizer.
    #[error(
        "{place}: token id {id} is outside the vocabulary of {vocab_size} ids; the rows were tokenized with another tokenizer: tokenize again"
    )]
    IdOutsideVocabulary {
        /// The field or the call that has the id.
        place: String,
        id: i64,
        /// Vocabulary size: the highest id + 1.
        vocab_size: usize,
    },

    /// The two sides of a tokenized pair do not share their prompt.
    #[error(
        "{at}: prompt_length is {prompt_length}, but the pair shares its first {shared} ids and its sides have {chosen} and {rejected}; count the shared prompt ids, and leave at least one completion id per side"
    )]
    BadPromptLength {
        /// The row.
        at: RowLocation,
        /// The length given.
        prompt_length: i64,
        /// Number of common ids at the start of both sides.
        shared: usize,
        /// Number of ids of the chosen side.
        chosen: usize,
        /// Number of ids of the rejected side.
        rejected: usize,
    },

    /// A row cannot be parsed in its layout.
    #[error("{at}: {reason}; correct the row, or remove it")]
    BadForeignRow {
        /// The row.
        at: RowLocation,
        reason: String,
    },

    // --- Chat templates.
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

    /// A chat template fails to render a conversation.
    #[error(
        "chat template of {name} fails: {reason}; change the conversation to what the template accepts or set another template"
    )]
    TemplateRender {
        /// The model folder, or the name of a built-in template.
        name: String,
        /// The template's own message, with the line.
        reason: String,
    },

    /// A template over the columns of a row fails.
    #[error(
        "the template {name} fails: {reason}{}; check the template and the columns of the rows",
        missing_columns(missing)
    )]
    RowTemplate {
        /// The key of the template.
        name: String,
        /// The template's own message, with the line.
        reason: String,
        /// The columns that the template reads and the row lacks.
        missing: Vec<String>,
    },

    /// The tokenizer has no chat template.
    #[error(
        "{name}: the tokenizer has no chat template; add chat_template.jinja to the folder or set a built-in one ({known})"
    )]
    NoChatTemplate {
        /// The model folder.
        name: String,
        /// The built-in names.
        known: &'static str,
    },

    /// A chat template name is unknown.
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
        /// The point at which the texts or the ids differ.
        reason: String,
    },

    /// The generation blocks of a template do not match the assistant turns of the conversation.
    #[error(
        "chat template of {name}: {marked} generation blocks for {turns} assistant turns; put exactly one block around each assistant answer"
    )]
    GenerationBlocks {
        /// The model folder, or the name of a built-in template.
        name: String,
        /// Number of blocks in the rendered text.
        marked: usize,
        /// Number of assistant turns.
        turns: usize,
    },

    /// A chat template leaves out a turn.
    #[error(
        "chat template of {name}: it leaves out turn {turn} ({role}): the text is the same whatever the turn says; move its content into another turn, remove it, or set another template"
    )]
    DroppedTurn {
        /// The model folder, or the name of a built-in template.
        name: String,
        turn: usize,
        /// The role of the turn.
        role: &'static str,
    },

    /// A chat template leaves out the calls of an assistant turn.
    #[error(
        "chat template of {name}: it leaves out the tool calls of turn {turn}: the text is the same whatever is called; set a template that renders tool_calls, or leave them out by name: --drop tool_calls, or drop = [\"tool_calls\"] in [data]"
    )]
    DroppedCalls {
        /// The model folder, or the name of a built-in template.
        name: String,
        turn: usize,
    },

    /// A chat template leaves out the tools.
    #[error(
        "chat template of {name}: it leaves out the tools of the row: the text is the same whatever they are; set a template that describes tools, or leave them out by name: --drop tools, or drop = [\"tools\"] in [data]"
    )]
    DroppedTools {
        /// The model folder, or the name of a built-in template.
        name: String,
    },

    /// The turns after a reply cannot be encoded beside the tokens of the reply.
    #[error(
        "chat template of {name}: what follows a reply cannot be encoded alone: {reason}; set a template that only adds text when turns follow"
    )]
    NoFollowing {
        /// The model folder, or the name of a built-in template.
        name: String,
        reason: String,
    },

    // --- Tokenizers.
    /// The folder has no tokenizer.
    #[error(
        "{folder}: has no tokenizer.json; copy it from the model, or save it with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`"
    )]
    TokenizerMissing { folder: PathBuf },

    /// A tokenizer file is not valid.
    #[error("{path}: not a usable tokenizer file: {reason}; copy the file from the model again")]
    TokenizerInvalid { path: PathBuf, reason: String },

    /// A GGUF file has no usable tokenizer.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),

    /// A tokenizer has a part that a GGUF file cannot say.
    #[error("{name}: {found} in {part} cannot be written as GGUF: {fix}")]
    NoGgufTokenizer {
        /// The tokenizer.
        name: String,
        /// The file or the part of `tokenizer.json`.
        part: &'static str,
        found: String,
        /// What to do.
        fix: &'static str,
    },

    /// A file of a model folder is not a JSON object.
    #[error("{path}: not a JSON object: {reason}; copy the file from the model again")]
    ModelFile {
        path: PathBuf,
        /// The error of the parser, with line and column.
        reason: String,
    },

    /// The tokenizer crate failed on a text.
    #[error("the tokenizer of {name} failed: {reason}; check that tokenizer.json is complete")]
    Tokenize {
        /// The model folder.
        name: String,
        /// The error of the tokenizer.
        reason: String,
    },

    /// A required special token has no id.
    #[error("{name}: the tokenizer has no {token}; set it in tokenizer_config.json")]
    MissingSpecialToken {
        /// The model folder.
        name: String,
        /// `bos_token`, `eos_token` and so on.
        token: &'static str,
    },

    /// The tokenizer lacks a token of the `ChatML` template.
    #[error(
        "{name}: the tokenizer has no {token}, so the template chatml means nothing to this model; `sft` adds the token: fine-tune with tokenizer.template = \"chatml\" first, or use the template plain"
    )]
    MissingTurnToken {
        /// The model folder.
        name: String,
        token: &'static str,
    },

    /// A vocabulary size is too small for the 256 bytes and the special tokens.
    #[error("vocab_size is {got}; at least {least} are wanted: 256 bytes and the special tokens")]
    VocabularyTooSmall {
        /// The requested size.
        got: usize,
        /// The smallest size.
        least: usize,
    },

    // --- Token rows: packing and sampling.
    /// A row is longer than a bin.
    #[error("row {row} has {length} tokens, but only {max_length} fit; cut the row, or leave it out")]
    RowTooLong {
        row: usize,
        /// Number of tokens of the row.
        length: usize,
        /// Number of tokens per bin.
        max_length: usize,
    },

    /// A row is longer than the model's maximum length.
    #[error(
        "{at}: has {length} tokens, and this model takes at most {longest}; shorten the row, or remove it"
    )]
    LongForModel {
        /// The row.
        at: RowLocation,
        /// Number of tokens of the row.
        length: usize,
        /// The maximum number of tokens that the model accepts here.
        longest: i64,
    },

    /// The sampler has no rows.
    #[error("the data set has no rows to sample; check the counts of dropped rows and raise max_length")]
    NothingToSample,

    /// A saved sampler position does not fit the data set.
    #[error(
        "the saved position {position} belongs to a data set of {rows} rows, and this one has {len}; resume with the data that \
         the run began with"
    )]
    SamplerState {
        /// Number of rows of the data set when the position was saved.
        rows: usize,
        /// Number of rows of the epoch that had been returned.
        position: usize,
        /// Number of rows of the current data set.
        len: usize,
    },

    // --- Models: names, folders and the hub.
    /// A model name is neither a folder nor a hub name.
    #[error(
        "{model}: there is no such folder, and a model of the hub has the form owner/name[@revision]{hint}"
    )]
    UnknownModel {
        /// The name given.
        model: String,
        /// What to write instead; begins with `; ` if it is not empty.
        hint: String,
    },

    /// A path exists and is not a folder.
    #[error("{path}: is a file; give the folder that holds config.json, tokenizer.json and the weights")]
    NotAFolder { path: PathBuf },

    /// A name chosen by the hub or a repository is unsafe as part of a path.
    #[error(
        "{model}: refused: the {what} of the repository is {found:?}; report the repository, and do not use it"
    )]
    HostileName {
        model: String,
        /// The thing that has the name.
        what: &'static str,
        /// The name.
        found: String,
    },

    /// A weight index cannot be used.
    #[error(
        "{path}: not a usable index of weights: {reason}; copy the model again, from a source that you trust"
    )]
    WeightIndex { path: PathBuf, reason: String },

    /// The hub answered with an error.
    #[error(
        "{model}: cannot get {file} from {endpoint}: {reason}; check the name, the network and HF_TOKEN (private and gated models), or set HF_HUB_OFFLINE=1 to use the cache only (there is no folder {model} here)"
    )]
    Hub {
        model: String,
        /// The file or listing.
        file: String,
        /// The address of the hub.
        endpoint: String,
        /// The reason for the failure.
        reason: String,
    },

    /// The files that the hub announces do not fit on the disk.
    #[error(
        "{model}: {file} would take {} MB more, and the disk of {folder} has {} MB free for them; make room, or set HF_HUB_CACHE to a folder on another disk",
        missing.div_ceil(1_000_000), free / 1_000_000
    )]
    HubSpace {
        model: String,
        /// The file, or what the files are.
        file: String,
        /// The bytes that are still to come.
        missing: u64,
        /// The bytes that may be written.
        free: u64,
        /// The cache folder.
        folder: PathBuf,
    },

    /// A file is not in the cache and the hub must not be contacted.
    #[error(
        "{model}: {file} is not in the cache {cache} and HF_HUB_OFFLINE is set; download the model once with HF_HUB_OFFLINE unset (there is no folder {model} here)"
    )]
    Offline {
        model: String,
        /// The missing file.
        file: String,
        /// The cache folder.
        cache: PathBuf,
    },

    /// A text that names no dataset of the hub.
    #[error("{dataset:?} names no dataset of the hub: the form is owner/name or owner/name@revision")]
    DatasetName {
        /// The text.
        dataset: String,
    },

    /// The repository lacks a file that every model needs.
    #[error(
        "{model}: the repository has no {file}; only models with config.json, tokenizer.json and safetensors weights can be used"
    )]
    HubFileMissing { model: String, file: &'static str },

    // --- The synthetic world.
    /// A fraction setting of the synthetic world is not between 0 and 1.
    #[error("{name} is {value}; set it to a number from 0 to 1")]
    SynthShare {
        /// The option.
        name: &'static str,
        value: f64,
    },

    /// The synthetic world has no more problems on one side of the split.
    #[error(
        "the synthetic world has no more {side} questions: {wanted} wanted, {got} found; ask for fewer or change heldout_share"
    )]
    SynthExhausted {
        /// `training` or `held-out`.
        side: &'static str,
        /// Number of questions requested.
        wanted: usize,
        /// Number of questions found.
        got: usize,
    },
}

impl Error {
    /// The error for a row that was parsed by itself. For JSONL the line is the line in the file, because the
    /// parser sees one line at a time.
    #[must_use]
    pub fn broken_json(at: RowLocation, source: &serde_json::Error) -> Self {
        let by_lines = RowLocation::unit(&at.path) == "line" && at.row > 0;
        let line = if by_lines { at.row } else { source.line() };
        Self::BadJson { at, line, column: source.column(), reason: Self::reason_of_json(source) }
    }

    /// What the parser expected, without the place.
    pub(crate) fn reason_of_json(source: &serde_json::Error) -> String {
        let reason = source.to_string();
        reason.split(" at line ").next().unwrap_or_default().to_owned()
    }

    /// Adds the row in which this error occurred.
    #[must_use]
    pub fn in_row(self, at: &RowLocation) -> Self {
        Self::InRow { at: at.clone(), source: Box::new(self) }
    }

    /// The class of this error. Most errors are about a file of rows or of a model.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::InRow { source, .. } => source.class(),
            Self::Write { source, .. } => ErrorClass::Io(source.kind()),
            Self::Hub { reason, .. } if is_refusal(reason) => ErrorClass::Usage,
            Self::Hub { .. } | Self::HubSpace { .. } => ErrorClass::Failed,
            Self::UnknownLayout { .. }
            | Self::BadMapping { .. }
            | Self::UnknownTemplate { .. }
            | Self::VocabularyTooSmall { .. }
            | Self::SynthShare { .. }
            | Self::SynthExhausted { .. }
            | Self::Offline { .. }
            | Self::UnknownModel { .. }
            | Self::NotAFolder { .. }
            | Self::MissingTurnToken { .. } => ErrorClass::Usage,
            _ => ErrorClass::Data,
        }
    }
}

/// Whether the hub refused: the model does not exist, or this user has no access. Anything else is the
/// network.
fn is_refusal(reason: &str) -> bool {
    ["401", "403", "404"].iter().any(|code| reason.contains(code))
}

/// Says which columns a row lacks.
fn missing_columns(missing: &[String]) -> String {
    match missing {
        [] => String::new(),
        [column] => format!("; the row has no column {column}"),
        columns => format!("; the row has no columns {}", columns.join(", ")),
    }
}

/// What a Parquet error says, without the words "Parquet error: " that its general kind puts before it.
fn parquet_reason(error: &parquet::errors::ParquetError) -> String {
    match error {
        parquet::errors::ParquetError::General(reason) => reason.clone(),
        other => other.to_string(),
    }
}
