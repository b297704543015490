//! `data`: generates, converts and checks rows, makes rows of feedback, and trains a tokenizer on rows.

mod check;
mod import_feedback;

use std::path::Path;

use datasets::synth::calculator::{Calculation, CalculatorData, CalculatorOptions};
use datasets::synth::{Pair, Question, SynthData, SynthOptions};
use datasets::{
    Demonstration, Mapping, Message, Preference, Prompt, ReadOptions, RowLocation, Tokenizer, TrainOptions,
    table,
};
use gemini::checkpoint;

use crate::args::{ConvertArgs, DataCommand, SynthArgs, TokenizerArgs};
use crate::console::print_stderr;
use crate::output::{check_output_file, check_output_folder};

/// Runs one of the subcommands.
pub(crate) fn run(command: &DataCommand) -> anyhow::Result<()> {
    match command {
        DataCommand::Synth(arguments) => synth(arguments),
        DataCommand::Calculator(arguments) => {
            let (seed, rows, heldout) = (arguments.seed, arguments.rows, arguments.heldout);
            let options = CalculatorOptions { seed, rows, heldout, ..CalculatorOptions::default() };
            calculator(&options, &arguments.out)
        }
        DataCommand::Convert(arguments) => convert(arguments),
        DataCommand::Check(arguments) => check::run(arguments),
        DataCommand::Tokenizer(arguments) => tokenizer(arguments),
        DataCommand::ImportFeedback(arguments) => import_feedback::run(arguments),
    }
}

fn synth(arguments: &SynthArgs) -> anyhow::Result<()> {
    check_output_folder(&arguments.out)?;
    let world = SynthData::generate(&arguments.options())?;
    write_world(&world, &arguments.out)
}

/// Writes every split of the synthetic data to the folder `out` atomically, and prints the number of rows per
/// file.
pub(crate) fn write_world(world: &SynthData, out: &Path) -> anyhow::Result<()> {
    checkpoint::write_folder(out, |folder| write_splits(world, folder))?;
    print_rows_of(
        out,
        &[
            ("text.parquet", world.pretraining.len()),
            ("sft.parquet", world.demonstrations.len()),
            ("preference.parquet", world.preferences.len()),
            ("heldout_preference.parquet", world.heldout_preferences.len()),
            ("prompts.parquet", world.prompts.len()),
            ("heldout.parquet", world.heldout.len()),
        ],
    );
    Ok(())
}

/// Prints the number of rows of each file of a folder.
fn print_rows_of(out: &Path, files: &[(&str, usize)]) {
    for (file, rows) in files {
        print_stderr(&format!("{rows:>8} rows  {}", out.join(file).display()));
    }
}

fn write_splits(world: &SynthData, out: &Path) -> anyhow::Result<()> {
    let texts: Vec<Demonstration> = world.pretraining.iter().cloned().map(Demonstration::Text).collect();
    let demonstrations: Vec<Demonstration> =
        world.demonstrations.iter().cloned().map(Demonstration::without_tools).collect();
    let pairs = |pairs: &[Pair]| pairs.iter().map(preference).collect::<Vec<_>>();
    let prompts = |questions: &[Question]| questions.iter().map(prompt).collect::<Vec<_>>();
    table::write_records(&out.join("text.parquet"), &texts)?;
    table::write_records(&out.join("sft.parquet"), &demonstrations)?;
    table::write_records(&out.join("preference.parquet"), &pairs(&world.preferences))?;
    table::write_records(&out.join("heldout_preference.parquet"), &pairs(&world.heldout_preferences))?;
    table::write_records(&out.join("prompts.parquet"), &prompts(&world.prompts))?;
    table::write_records(&out.join("heldout.parquet"), &prompts(&world.heldout))?;
    Ok(())
}

fn preference(pair: &Pair) -> Preference {
    Preference::Messages {
        prompt: pair.prompt.clone(),
        chosen: vec![Message::assistant(&pair.chosen)],
        rejected: vec![Message::assistant(&pair.rejected)],
        tools: None,
        margin: None,
    }
}

fn prompt(question: &Question) -> Prompt {
    Prompt { messages: question.messages.clone(), tools: None, answer: Some(question.answer.clone()) }
}

/// Generates arithmetic with a calculator, and writes it to the folder `out` atomically.
fn calculator(options: &CalculatorOptions, out: &Path) -> anyhow::Result<()> {
    check_output_folder(out)?;
    let data = CalculatorData::generate(options)?;
    checkpoint::write_folder(out, |folder| write_calculator(&data, folder))?;
    print_rows_of(
        out,
        &[
            ("sft.parquet", data.demonstrations.len()),
            ("prompts.parquet", data.prompts.len()),
            ("heldout.parquet", data.heldout.len()),
        ],
    );
    Ok(())
}

fn write_calculator(data: &CalculatorData, out: &Path) -> anyhow::Result<()> {
    let demonstrations: Vec<Demonstration> =
        data.demonstrations.iter().cloned().map(Demonstration::without_tools).collect();
    let prompt = |calculation: &Calculation| Prompt {
        messages: vec![Message::user(&calculation.question)],
        tools: None,
        answer: Some(calculation.answer.clone()),
    };
    let prompts = |calculations: &[Calculation]| calculations.iter().map(prompt).collect::<Vec<_>>();
    table::write_records(&out.join("sft.parquet"), &demonstrations)?;
    table::write_records(&out.join("prompts.parquet"), &prompts(&data.prompts))?;
    table::write_records(&out.join("heldout.parquet"), &prompts(&data.heldout))?;
    Ok(())
}

fn convert(arguments: &ConvertArgs) -> anyhow::Result<()> {
    let layout = arguments.layout.as_deref().map(str::parse).transpose()?;
    let mapping = Mapping::parse(&arguments.maps)?;
    let reading = ReadOptions { layout, mapping, drop: arguments.drop.clone(), layout_guessed: false };
    check_output_file(&arguments.output, arguments.force, &[&arguments.input])?;
    let report = datasets::convert(&arguments.input, &arguments.output, &reading, arguments.force)?;
    let (input, output) = (arguments.input.display(), arguments.output.display());
    print_stderr(&format!("{:>8} rows  {input} ({})", report.read, report.from));
    print_stderr(&format!("{:>8} rows  {output} ({})", report.written, report.to));
    for line in report.notes.lines(RowLocation::unit(&arguments.input), true) {
        print_stderr(&format!("{input}: {line}"));
    }
    Ok(())
}

fn tokenizer(arguments: &TokenizerArgs) -> anyhow::Result<()> {
    check_output_folder(&arguments.out)?;
    let files: Vec<String> = arguments.files.iter().map(|file| file.display().to_string()).collect();
    let mut texts = Vec::new();
    for path in table::expand(&files)? {
        texts.extend(self::texts(&path)?);
    }
    let options = TrainOptions { vocab_size: arguments.vocab_size, ..TrainOptions::default() };
    let tokenizer = Tokenizer::train(texts.into_iter(), &options)?;
    checkpoint::write_folder(&arguments.out, |folder| tokenizer.save(folder).map_err(rlhf::Error::from))?;
    print_stderr(&format!("{} tokens  {}", tokenizer.vocab_size(), arguments.out.display()));
    Ok(())
}

/// The texts of all rows of a file.
pub(crate) fn texts(path: &Path) -> anyhow::Result<Vec<String>> {
    Ok(table::read_records::<Demonstration>(path, None)?.into_iter().flat_map(texts_of_row).collect())
}

/// The texts of a row. A row of token ids has no text on which a tokenizer could be trained.
fn texts_of_row(row: Demonstration) -> Vec<String> {
    let texts = |messages: Vec<Message>| {
        let texts = messages.into_iter().flat_map(|message| {
            let calls = message.tool_calls.into_iter().map(|call| call.to_string());
            std::iter::once(message.content).chain(calls)
        });
        texts.filter(|text| !text.is_empty()).collect::<Vec<_>>()
    };
    match row {
        Demonstration::Text(text) => vec![text],
        Demonstration::Messages { messages, .. } => texts(messages),
        Demonstration::PromptCompletion { prompt, completion, .. } => texts([prompt, completion].concat()),
        Demonstration::Tokens { .. } => Vec::new(),
    }
}

impl SynthArgs {
    /// The options of the generator that these arguments specify.
    fn options(&self) -> SynthOptions {
        SynthOptions {
            seed: self.seed,
            pretraining: self.pretraining,
            train: self.train,
            preferences: self.preferences,
            heldout_preferences: self.heldout_preferences,
            prompts: self.prompts,
            heldout: self.heldout,
            spoilt_share: self.spoilt_share,
            ..SynthOptions::default()
        }
    }
}
