//! The stage `distill`: a model learns the distributions of a larger one ([`rlhf::distill`]).

use inference::model_folder::ModelFolder;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::decoder::HeadKind;
use rlhf::distill::Distill;
use tui::dashboard::{Charts, THROUGHPUT};

use super::context::{self, StageContext, start_folder, tokenizer, trainable_options};
use super::definition::{
    CommandHelp, InitKey, InitSizes, InitSpec, OtherModel, PipelineFolder, RowKind, Stage,
};
use super::model_memory::PlannedModel;
use super::preflight::Preflight;
use super::sft;
use super::tasks::Tasks;
use crate::config::stage::PTX;
use crate::config::{ConfigError, RunConfig, StageSchema, Units};
use crate::model_folder;

/// The stage `distill`.
pub(super) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "distill",
        units: Units::ROWS,
        has_rollouts: false,
        sections: &["distill"],
        ignored_keys: &[PTX],
        defaults: None,
    },
    command: Some(CommandHelp {
        about: "Teach a small model the distributions of a larger one (distillation)",
        title: "Knowledge distillation",
        examples: "\
Examples:
  colossal-chat distill --config run.toml --set distill.teacher=runs/large/final
  colossal-chat distill --config run.toml --set distill.divergence=reverse_kl",
    }),
    init: Some(InitSpec {
        rows: RowKind::Demonstrations,
        after: None,
        is_in_all: false,
        other_model: Some(OtherModel {
            flag: "--teacher",
            question: "The teacher: a larger model with the same tokenizer",
            key: "teacher",
            comment: "The model to learn from, a folder or a hub name. It has the same tokenizer.",
            is_reward_model: false,
        }),
        lr: ["2e-5", "1e-3"],
        keys: init_keys,
    }),
    curves: &["loss"],
    charts: CHARTS,
    set_pipeline_paths,
    preflight,
    run,
};

const CHARTS: Charts = &[
    ("loss", &["loss", "eval/loss"]),
    ("divergence", &["divergence", "eval/divergence"]),
    ("agreement with the teacher", &["eval/agreement"]),
    ("gradient norm", &["grad_norm"]),
    ("learning rate", &["lr"]),
    ("throughput, tokens/s", &[THROUGHPUT]),
];

fn init_keys(_: &InitSizes) -> Vec<InitKey> {
    let comment =
        "\"forward_kl\" covers all that the teacher says, \"reverse_kl\" only what is surely its own.";
    vec![InitKey::new(comment, "divergence", "\"forward_kl\"")]
}

fn set_pipeline_paths(config: &mut RunConfig, pipeline: &PipelineFolder<'_>) {
    pipeline.set_path(&mut config.model.path, "base/final");
    pipeline.set_files(&mut config.data.train, "data/sft.parquet");
}

fn preflight(preflight: &mut Preflight<'_>, config: &RunConfig) -> anyhow::Result<String> {
    let mut model = preflight.model("model.path", config.model_path(&STAGE.schema)?)?;
    let teacher = preflight.model("distill.teacher", teacher_name(config, &STAGE.schema)?)?;
    model.tokenizer = model.tokenizer_of(&config.tokenizer, false)?;
    let tokenizer = model.load_tokenizer()?;
    model.refuse_reward_model("model.path")?;
    teacher.refuse_reward_model("distill.teacher")?;
    teacher.check_tokenizer("teacher", tokenizer.as_ref())?;
    check_teacher(config, &model.config, &teacher.config)?;
    context::check_mesh(config, &[&model.config, &teacher.config], preflight.mesh)?;
    let line = sft::preflight_rows(&STAGE.schema, preflight, config, &model.config, tokenizer.as_ref())?;
    preflight.add_model(config, model);
    Ok(line)
}

fn run(config: &RunConfig, ctx: &mut StageContext<'_>) -> anyhow::Result<()> {
    let folder = start_folder(config, ctx)?;
    let tokenizer = tokenizer(config, &folder)?;
    let student = folder.config()?;
    let (teacher_folder, teacher) = find_teacher(config)?;
    context::check_tokenizer_of(&tokenizer, "teacher", &teacher_folder, ctx.groups)?;
    check_teacher(config, &student, &teacher)?;
    let inputs = sft::inputs(ctx.stage, config, &student, &tokenizer)?;
    teacher.check_length("the longest row", inputs.longest())?;
    let tasks = Tasks::prepare(config, ctx.groups)?;

    let adapter = context::new_adapter(config, &folder, ctx)?;
    let lora = context::trained_adapter(adapter.as_ref(), &folder)?;
    let (head, kind) = (HeadKind::Vocabulary, config.model.dtype.kind());
    let trained = PlannedModel::trained("model", &student, head, kind).with_adapter(lora.as_ref());
    let frozen = PlannedModel {
        role: "teacher",
        config: &teacher,
        is_trained: false,
        lora: None,
        is_quantized: false,
        ..trained
    };
    let replies = tasks.as_ref().and_then(|tasks| tasks.replies(&tokenizer));
    let plan = sft::planned(config, ctx, &[trained, frozen], &inputs, replies)?;
    if context::ends_with_plan(&plan, ctx) {
        return Ok(());
    }
    let options = trainable_options(config, ctx)?;
    let model = context::load_trained(&folder, adapter.as_ref(), config.seed, &options)?;
    let frozen = LoadOptions { trainable: false, quantize: None, ..options };
    // Rows of the teacher's vocabulary that no token has are left out.
    let teacher = CausalLm::load_resized(teacher_folder.path(), student.vocab_size(), &frozen)?;
    let objective = Distill::new(sft::objective(config, &model, &inputs)?, &teacher, &config.distill)?;
    sft::train(config, &objective, plan, &tokenizer, tasks.as_ref(), ctx)
}

/// The name of the teacher of `stage`.
pub(super) fn teacher_name<'c>(config: &'c RunConfig, stage: &StageSchema) -> Result<&'c str, ConfigError> {
    let (key, what) = ("distill.teacher", "a model to learn from");
    config.distill.teacher.as_deref().ok_or(ConfigError::Needed { key, stage: stage.name, what })
}

/// Returns the folder of the teacher and its configuration.
fn find_teacher(config: &RunConfig) -> anyhow::Result<(ModelFolder, Config)> {
    let folder = model_folder::find(teacher_name(config, &STAGE.schema)?)?;
    let teacher = folder.config()?;
    Ok((folder, teacher))
}

/// Refuses a teacher that cannot give the student's tokens their probabilities.
pub(super) fn check_teacher(
    config: &RunConfig,
    student: &Config,
    teacher: &Config,
) -> Result<(), ConfigError> {
    let refused =
        |message: String| Err(ConfigError::Value { place: None, key: "distill.teacher".to_owned(), message });
    let [own, other] = [student, teacher].map(Config::vocab_size);
    if other < own {
        return refused(format!(
            "its vocabulary has {other} tokens, and the student's {own}: take a teacher of the same tokenizer"
        ));
    }
    config.distill.check_vocabulary(own)?;
    if config.parallel.expert.size > 1 && teacher.architecture().experts.is_some() {
        return refused(
            "a teacher with experts runs on [parallel.expert] size = 1 only: the ranks that share experts train on \
             different rows"
                .to_owned(),
        );
    }
    Ok(())
}
