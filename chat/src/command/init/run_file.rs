//! Writes the text of a run file, with a comment at each key that says what it does.
//!
//! The values are a start that runs, not the best there is. `docs/configuration.md` lists every key.

use planner::Hardware;
use toml::Value;

use super::answers::{Answers, ModelAnswer};
use crate::args::RunLength;
use crate::config::section::Dtype;
use crate::shell::quote;
use crate::stage::definition::{InitKey, InitSizes, InitStage, RowKind};

/// The longest row in tokens, if the model can read as many.
const MAX_LENGTH: i64 = 1024;
/// The longest reply in PPO, in tokens, if the model can read four times as many.
const MAX_NEW_TOKENS: i64 = 128;

/// The text of the run file. Without the measured speeds of this machine, weights are in fp32.
pub(super) fn text(answers: &Answers, hardware: Option<&Hardware>) -> String {
    let mut file = RunFile::default();
    file.header(answers);
    let stages = answers.goal.stages();
    if answers.goal.is_all() {
        file.stages(&stages);
    }
    file.shared(answers, hardware);
    for (index, &stage) in stages.iter().enumerate() {
        let prefix = if answers.goal.is_all() { format!("stage.{}.", stage.name()) } else { String::new() };
        // In a pipeline, only the first stage starts from this model.
        if answers.goal.is_all() && index == 0 {
            file.section(&format!("{prefix}model"));
            file.model_path(&answers.model);
            // The stages behind it train its adapter on.
            file.adapters(answers, &prefix);
        }
        file.stage(answers, stage, &prefix);
    }
    file.0
}

/// A file that is being written.
#[derive(Default)]
struct RunFile(String);

impl RunFile {
    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn section(&mut self, name: &str) {
        self.line(&format!("\n[{name}]"));
    }

    /// A key with a comment. `value` is TOML.
    fn key(&mut self, comment: &str, key: &str, value: &str) {
        for line in comment.lines() {
            self.line(&format!("# {line}"));
        }
        self.line(&format!("{key} = {value}"));
    }

    fn header(&mut self, answers: &Answers) {
        let start = format!("colossal-chat {} --config {}", answers.goal.command(), quote(&answers.out));
        self.line(
            "# A run file of colossal-chat. Paths count from the folder in which the command is given.",
        );
        self.line("#");
        self.line(&format!("#   {start} --dry-run   says what the run will do"));
        self.line(&format!("#   {start}             trains"));
        self.line(&format!("#   {start} --resume    goes on after an interruption"));
        self.line("#");
        self.line("# Any key can be changed for one run with --set, as in --set train.lr=1e-4.\n");
        self.key("Decides initial values, the order of rows and every draw.", "seed", "1");
        let folder = string(&answers.folder.to_string_lossy());
        self.key("The run folder. Another run needs another one.", "out", &folder);
    }

    fn stages(&mut self, stages: &[InitStage]) {
        self.section("pipeline");
        let comment =
            "What is done, in this order. Each part starts from what the part before it has written.";
        let names: Vec<String> = stages.iter().map(|stage| stage.name().to_owned()).collect();
        self.key(comment, "stages", &list(&names));
    }

    /// The sections that every stage of the file reads.
    fn shared(&mut self, answers: &Answers, hardware: Option<&Hardware>) {
        self.section("model");
        if !answers.goal.is_all() {
            self.model_path(&answers.model);
        }
        self.dtype(hardware.zip(answers.model.hidden_size));
        let comment = "\"auto\" takes a GPU if there is one; \"cpu\", \"cuda\" and \"cuda:1\" insist.";
        self.key(comment, "device", &string("auto"));
        if !answers.goal.is_all() {
            self.adapters(answers, "");
        }

        if answers.model.needs_template {
            self.section("tokenizer");
            let comment = "How a conversation becomes text. The model has no template of its own, \"plain\" is built in.";
            self.key(comment, "template", &string("plain"));
        }

        self.section("checkpoint");
        let every = if answers.length == RunLength::Quick { "10" } else { "100" };
        let comment = "Steps (of PPO: iterations) between checkpoints, from which --resume goes on.";
        self.key(comment, "every", every);

        self.section("log");
        let comment = "Steps (of PPO: iterations) between rows of metrics.jsonl.";
        self.key(comment, "every", "1");
    }

    /// The dtype in which this processor multiplies matrices of the model's width faster.
    fn dtype(&mut self, hardware_and_width: Option<(&Hardware, i64)>) {
        let comment =
            "The numbers that weights are held in. \"bfloat16\" takes less memory and is faster on a GPU.";
        let Some((hardware, width)) = hardware_and_width else {
            let hint = "`colossal-chat doctor --bench` measures whether it is faster on this processor, too.";
            return self.key(&format!("{comment}\n{hint}"), "dtype", &string(Dtype::Float32.name()));
        };
        let [float32, bfloat16] = [Dtype::Float32, Dtype::Bfloat16]
            .map(|dtype| hardware.device.matmul_flops(width as f64, dtype.planned()));
        let factor = bfloat16 / float32;
        let faster = if factor > 1.0 { Dtype::Bfloat16 } else { Dtype::Float32 };
        let measured =
            format!("On this processor it is {factor:.2} times as fast as \"float32\" (doctor --bench).");
        self.key(&format!("{comment}\n{measured}"), "dtype", &string(faster.name()));
    }

    fn model_path(&mut self, model: &ModelAnswer) {
        let comment = "The model to start from: a folder, or a hub name owner/name[@revision].";
        self.key(comment, "path", &string(&model.name));
    }

    /// The adapters that are trained, if any are.
    fn adapters(&mut self, answers: &Answers, prefix: &str) {
        if !answers.has_adapters {
            return;
        }
        self.section(&format!("{prefix}model.lora"));
        let comment =
            "The rank of the adapters that are trained in place of the model. A higher one learns more.";
        self.key(comment, "r", "16");
        self.key("Adapters are multiplied by lora_alpha / r.", "lora_alpha", "32");
        let comment = "The adapted layers: names or ends of names, or every linear layer but the head.";
        self.key(comment, "target_modules", &string("all-linear"));
    }

    /// The sections of one stage.
    fn stage(&mut self, answers: &Answers, stage: InitStage, prefix: &str) {
        let sizes = sizes(answers);
        self.data(answers, stage, prefix, sizes);
        self.train(answers.length, stage, prefix, &sizes);

        let keys = (stage.init.keys)(&sizes);
        let Some(own) = stage.stage.schema.sections.first() else { return };
        if keys.is_empty() && answers.other_model.is_none() {
            return;
        }
        self.section(&format!("{prefix}{own}"));
        let other = stage.init.other_model.as_ref().zip(answers.other_model.as_ref());
        // The key of the other model may be in another section.
        let apart = other.and_then(|(other, model)| Some((other, other.key.split_once('.')?, model)));
        if let Some((other, model)) = other.filter(|_| apart.is_none()) {
            self.key(other.comment, other.key, &string(&model.name));
        }
        for InitKey { comment, key, value } in keys {
            self.key(comment, key, &value);
        }
        if let Some((other, (section, key), model)) = apart {
            self.section(&format!("{prefix}{section}"));
            self.key(other.comment, key, &string(&model.name));
        }
    }

    fn data(&mut self, answers: &Answers, stage: InitStage, prefix: &str, sizes: InitSizes) {
        self.section(&format!("{prefix}data"));
        let rows = stage.init.rows;
        let comment = match rows {
            RowKind::Prompts if !stage.stage.schema.reads("reward") => "Prompts. The model answers them.",
            _ => rows.comment(),
        };
        self.key(comment, "train", &list(answers.rows.of(rows)));

        let longest = positions(answers).min(MAX_LENGTH);
        // The reply follows the prompt, so a prompt leaves room for the longest one.
        let (what, length) = if stage.stage.schema.has_rollouts {
            ("prompt", longest - sizes.max_new_tokens)
        } else {
            ("row", longest)
        };
        let comment = format!("The longest {what} in tokens. Longer ones are left out and counted.");
        self.key(&comment, "max_length", &length.to_string());

        if stage.stage.schema.reads("data.eval") {
            self.line("# The part of the rows that is held out, to measure with; needs `every` in [eval].");
            self.line("# eval_fraction = 0.05");
        }
    }

    fn train(&mut self, length: RunLength, stage: InitStage, prefix: &str, sizes: &InitSizes) {
        self.section(&format!("{prefix}train"));
        let [lr, small] = stage.init.lr;
        let comment = if sizes.has_adapters {
            "The highest learning rate: ten times that of a model that is trained whole.".to_owned()
        } else {
            format!("The highest learning rate. A small model takes more, up to {small}.")
        };
        self.key(&comment, "lr", &sizes.rate(lr));

        // A stage with rollouts counts iterations, and has the sizes of its batches in its own section.
        if stage.stage.schema.has_rollouts {
            let comment = "Replies in one forward pass. Lower it when memory runs out.";
            self.key(comment, "micro_batch_size", "4");
        } else {
            self.optimizer_steps(length);
        }
    }

    /// How many optimizer steps there are, of how many rows each, and how the learning rate changes over
    /// them.
    fn optimizer_steps(&mut self, length: RunLength) {
        // A quick run has too few steps to accumulate gradients or to warm up for long.
        let (batches, warmup) = match length {
            RunLength::Quick => ("1", "2"),
            RunLength::Normal => ("8", "20"),
        };
        match length {
            RunLength::Quick => {
                let comment = "Optimizer steps. For a real run replace the line with `epochs = 1`.";
                self.key(comment, "steps", "20");
            }
            RunLength::Normal => self.key("Passes over the rows.", "epochs", "1"),
        }
        self.key("Rows in one forward pass. Lower it when memory runs out.", "micro_batch_size", "4");
        let comment = "Forward passes in one optimizer step: a step learns from the product of the two.";
        self.key(comment, "gradient_accumulation_steps", batches);

        let comment = "\"cosine\" and \"linear\" lower the rate to 0, \"constant\" keeps it.";
        self.key(comment, "scheduler", &string("cosine"));
        self.key("Steps in which the rate rises from 0.", "warmup_steps", warmup);
    }
}

/// The longest sequence that the model reads, in tokens.
fn positions(answers: &Answers) -> i64 {
    answers.model.max_positions.unwrap_or(MAX_LENGTH)
}

/// Replies leave most of the positions for prompts.
fn sizes(answers: &Answers) -> InitSizes {
    let max_new_tokens = MAX_NEW_TOKENS.min(positions(answers) / 4).max(1);
    let (is_quick, has_adapters) = (answers.length == RunLength::Quick, answers.has_adapters);
    InitSizes { is_quick, max_new_tokens, has_adapters }
}

fn string(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

fn list(files: &[String]) -> String {
    Value::Array(files.iter().cloned().map(Value::String).collect()).to_string()
}
