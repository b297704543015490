//! What the file means, and every message that a wrong one earns.

use std::path::Path;

use super::*;
use crate::stage::{self, ppo, rm, sft};

const SFT: &StageSchema = &sft::STAGE.schema;
const RM: &StageSchema = &rm::STAGE.schema;
const PPO: &StageSchema = &ppo::STAGE.schema;

const RUN: &str = "\
seed = 3
out = 'runs/sft'

[model]
path = 'base'

[data]
train = 'sft.parquet'

[train]
lr = 1e-4
";

fn with(extra: &str) -> String {
    format!("{RUN}{extra}")
}

fn load(text: &str, sets: &[&str], stage: &'static StageSchema) -> Result<Loaded<RunConfig>, ConfigError> {
    let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
    from_text(text, Path::new("run.toml"), &sets, stage, &stage::schemas())
}

fn message(text: &str, sets: &[&str], stage: &'static StageSchema) -> String {
    load(text, sets, stage).unwrap_err().to_string()
}

#[test]
fn the_precedence_is_set_then_stage_then_common_then_default() {
    let text = with("eps = 0.5\n[stage.sft.train]\nlr = 2e-4\nwarmup_steps = 7\n");
    let config = load(&text, &["train.warmup_steps=9"], SFT).unwrap().config;
    assert_eq!((config.train.lr, config.train.eps, config.train.warmup_steps), (2e-4, 0.5, 9));
    assert_eq!(config.train.epochs, TrainConfig::default().epochs);
    let other = load(&text, &[], RM).unwrap().config;
    assert_eq!((other.train.lr, other.train.warmup_steps), (1e-4, 0));
}

#[test]
fn a_set_of_a_stage_table_is_read_before_the_stage_is_chosen() {
    let sets = ["stage.sft.train.lr=5e-5"];
    assert_eq!(load(RUN, &sets, SFT).unwrap().config.train.lr, 5e-5);
    assert_eq!(load(RUN, &sets, RM).unwrap().config.train.lr, 1e-4);
}

#[test]
fn one_file_or_many() {
    let many = RUN.replace("'sft.parquet'", "['a', 'b']");
    assert_eq!(load(&many, &[], SFT).unwrap().config.data.train.0, ["a", "b"]);
    assert_eq!(load(RUN, &[], SFT).unwrap().config.data.train.0, ["sft.parquet"]);
}

#[test]
fn the_saved_file_reads_back_the_same() {
    for stage in [SFT, RM, PPO] {
        let text = with("[stage.ppo.ppo]\nreward_model = 'rm'\nscore_clip = 3.0\n");
        let config = load(&text, &[], stage).unwrap().config;
        let saved = config.to_toml(stage).unwrap();
        let again = load(&saved, &[], stage).unwrap();
        assert_eq!(again.config, config);
        assert!(again.warnings.is_empty(), "{:?}", again.warnings);
    }
}

#[test]
fn the_saved_file_has_every_default_of_its_stage() {
    insta::assert_snapshot!(load(RUN, &[], SFT).unwrap().config.to_toml(SFT).unwrap());
}

#[test]
fn a_pipeline_resolves_every_stage_and_saves_what_reads_back() {
    let text = "out = 'life'\n[train]\nlr = 1.0\n[stage.rm.train]\nlr = 0.5\n[base]\nhidden_size = 64\n";
    let read = |text: &str| pipeline_from_text(text, Path::new("life.toml"), &[], &stage::schemas()).unwrap();
    let config = read(text);
    let rates: Vec<f64> = stage::ALL.iter().map(|stage| config.stages[stage.schema.name].train.lr).collect();
    assert_eq!(rates, [1.0, 1.0, 0.5, 1.0]);
    assert_eq!(config.base.hidden_size, 64);
    assert_eq!(config.pipeline.stages.len(), 7);
    assert_eq!(read(&config.to_toml(&stage::schemas()).unwrap()), config);
}

#[test]
fn sections_of_other_stages_are_silent_in_a_file_for_all_and_warned_of_in_a_file_for_one() {
    let ppo = "[ppo]\niterations = 5\n";
    assert_eq!(
        load(&with(ppo), &[], SFT).unwrap().warnings,
        ["run.toml:12: `ppo` has no effect on sft: [ppo] is read by ppo"]
    );
    let life = with(&format!("{ppo}[pipeline]\n"));
    assert_eq!(load(&life, &[], SFT).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn messages() {
    let cases: [(&str, String); 20] = [
        ("unknown key", message(&with("learning_rate = 1.0\n"), &[], SFT)),
        ("unknown key, mistyped", message(&with("wieght_decay = 1.0\n"), &[], SFT)),
        ("unknown section", message(&with("[trian]\nlr = 1.0\n"), &[], SFT)),
        ("unknown key of a stage", message(&with("[stage.sft.train]\nlrr = 1.0\n"), &[], RM)),
        ("unknown stage", message(&with("[stage.stf.train]\nlr = 1.0\n"), &[], SFT)),
        ("text for a number", message(&RUN.replace("1e-4", "'fast'"), &[], SFT)),
        ("fraction for a count", message(RUN, &["train.epochs=1.5"], SFT)),
        ("negative count", message(RUN, &["train.epochs=-1"], SFT)),
        ("number for text", message(RUN, &["model.path=7"], SFT)),
        ("number for a table", message(RUN, &["train=7"], SFT)),
        ("table for a number", message(RUN, &["train.lr.x=7"], SFT)),
        ("list of the wrong length", message(RUN, &["train.betas=[0.9]"], SFT)),
        ("unknown name", message(RUN, &["train.scheduler=cosin"], SFT)),
        ("number for a name", message(RUN, &["train.scheduler=3"], SFT)),
        ("out of bounds", message(RUN, &["train.lr=-1"], SFT)),
        ("nothing to start from", message("out = 'x'\n", &[], SFT)),
        ("no run folder", message("", &[], SFT)),
        ("no reward model", message(RUN, &[], PPO)),
        ("set without effect", message(RUN, &["ppo.iterations=5"], SFT)),
        ("stage table without effect", message(&with("[stage.rm.ppo]\niterations = 5\n"), &[], SFT)),
    ];
    let text =
        cases.iter().map(|(case, message)| format!("{case}\n  {message}\n")).collect::<Vec<_>>().concat();
    insta::assert_snapshot!(text);
}

#[test]
fn every_example_file_reads() {
    let read =
        |name: &str, text: &str| pipeline_from_text(text, Path::new(name), &[], &stage::schemas()).unwrap();
    let demo = read("demo.toml", include_str!("../demo.toml"));
    assert_eq!(demo.pipeline.stages.len(), 8);
    let public = read("public_data.toml", include_str!("../../../examples/public_data.toml"));
    assert_eq!(public.stages["rm"].data.train.0.len(), 2);
}

#[test]
fn a_set_goes_before_the_tables_of_the_stages() {
    let sets = ["ppo.iterations=7".to_owned(), "stage.rm.train.lr=0.5".to_owned()];
    let (text, path) = (include_str!("../demo.toml"), Path::new("demo.toml"));
    let demo = pipeline_from_text(text, path, &sets, &stage::schemas()).unwrap();
    assert_eq!(demo.stages["ppo"].ppo.iterations, 7);
    assert_eq!(demo.stages["rm"].train.lr, 0.5);
    assert_eq!(demo.stages["sft"].train.lr, 2e-3);
}
