//! What the file means, and every message that a wrong one earns.

use std::path::Path;

use gemini::TrainConfig;
use gemini::config::Scheduler;
use models::quantize::Quantization;

use super::location::SourceLocation;
use super::*;
use crate::stage::definition::InitStage;
use crate::stage::{self, ppo, rm, sft};

mod rollouts;

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

fn schema(name: &str) -> &'static StageSchema {
    &stage::find(name).unwrap().schema
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
fn the_saved_file_has_every_default_that_has_an_effect() {
    insta::assert_snapshot!(load(RUN, &[], SFT).unwrap().config.to_toml(SFT).unwrap());
}

#[test]
fn a_pipeline_resolves_every_stage_and_saves_what_reads_back() {
    let text = "out = 'life'\n[train]\nlr = 1.0\n[stage.rm.train]\nlr = 0.5\n[base]\nhidden_size = 64\n";
    let read = |text: &str| pipeline_from_text(text, Path::new("life.toml"), &[], &stage::schemas()).unwrap();
    let config = read(text);
    for stage in stage::schemas() {
        let expected = if stage.name == "rm" { 0.5 } else { 1.0 };
        assert_eq!(config.stages[stage.name].train.lr.to_bits(), f64::to_bits(expected), "{}", stage.name);
    }
    assert_eq!(config.base.hidden_size, 64);
    assert_eq!(config.pipeline.stages.len(), 8);
    assert_eq!(config.evaluation().data, Path::new("life"));
    assert_eq!(read(&config.to_toml(&stage::schemas()).unwrap()), config);
}

#[test]
fn sections_of_other_stages_are_silent_in_a_file_for_all_and_warned_of_in_a_file_for_one() {
    let ppo = "[ppo]\niterations = 5\n";
    assert_eq!(
        load(&with(ppo), &[], SFT).unwrap().warnings,
        [
            "run.toml:12: `ppo` has no effect on sft: [ppo] is read by ppo, grpo, rloo, reinforce, online-dpo and gkd"
        ]
    );
    let life = with(&format!("{ppo}[pipeline]\n"));
    assert_eq!(load(&life, &[], SFT).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn what_is_no_table_of_a_stage_is_refused() {
    for text in ["[stage]\nsft = 5\n", "stage = 5\n", "[stage.sft]\ntrain = 5\n"] {
        let error = load(&format!("out = 'x'\n{text}"), &[], RM).unwrap_err().to_string();
        assert!(error.contains("stage") && error.contains("a table"), "{text}: {error}");
    }
    let error = load("out = 'x'\n[stage.sft]\nseed = 5\n", &[], RM).unwrap_err().to_string();
    assert!(error.contains("stage.sft.seed"), "{error}");
}

#[test]
fn messages() {
    let cases: [(&str, String); 26] = [
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
        ("unknown key of a reward", message(&with("[[reward]]\nkind = 'regex'\npatern = 'a'\n"), &[], PPO)),
        ("unknown kind of reward", message(&with("[[reward]]\nkind = 'maths'\n"), &[], PPO)),
        ("reward without a kind", message(&with("[[reward]]\nweight = 2\n"), &[], PPO)),
        ("text for a weight", message(&with("[[reward]]\nkind = 'math'\nweight = 'much'\n"), &[], PPO)),
        (
            "old section of reward models",
            message(&with("[reward]\ncenter_rewards_coefficient = 1\n"), &[], RM),
        ),
        ("nothing for the critic", message(&with("[[reward]]\nkind = 'math'\n"), &[], PPO)),
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

/// A key beside others under which it has no effect: what the file says besides, and the key that is told.
#[test]
fn every_key_without_effect_is_told_once_with_its_line() {
    let ppo = "[ppo]\nreward_model = 'rm'\n";
    let cases: Vec<(&'static StageSchema, String, &str)> = vec![
        (SFT, "[parallel.pipeline]\nschedule = 'gpipe'\n".into(), "parallel.pipeline.schedule"),
        (SFT, "[parallel.pipeline]\nchunks = 3\n".into(), "parallel.pipeline.chunks"),
        (SFT, "[parallel.pipeline]\nsize = 2\nschedule = 'zb-v'\nchunks = 3\n".into(), "parallel.pipeline.chunks"),
        (SFT, "[parallel.sequence]\nmode = 'ring'\n".into(), "parallel.sequence.mode"),
        (SFT, "[gemini]\ndevice_memory = '1GiB'\nplacement = 'cuda'\ndisk_path = '/d'\n".into(), "gemini.disk_path"),
        (SFT, "[gemini]\ndevice_memory = '1GiB'\nplacement = 'cpu'\ndisk_path = '/d'\n".into(), "gemini.disk_path"),
        (SFT, "[tokenizer]\nvocab_size = 300\n".into(), "tokenizer.vocab_size"),
        (SFT, "[eval]\ntasks = 'arc_easy'\n".into(), "eval.tasks"),
        (SFT, "[eval]\nlimit = 3\n".into(), "eval.limit"),
        (SFT, "[eval]\nallow_code_execution = true\n".into(), "eval.allow_code_execution"),
        (SFT, "[eval]\nevery = 2\ntasks = 'a'\nnum_fewshot = 0\napply_chat_template = true\nfewshot_in_one_turn = true\n".into(), "eval.fewshot_in_one_turn"),
        (RM, "[eval]\nlimit = 3\n".into(), "eval.limit"),
        (RM, "[rm]\n[eval]\ntasks = 'a'\n".into(), "eval.tasks"),
        (PPO, format!("{ppo}[eval]\nevery = 3\n"), "eval.every"),
        (PPO, format!("{ppo}kl_horizon = 5\n"), "ppo.kl_horizon"),
        (PPO, format!("{ppo}kl_coef = 0\nkl_target = 0.1\n"), "ppo.kl_target"),
        (PPO, format!("{ppo}epochs = 1\nclip_range = 0.1\n"), "ppo.clip_range"),
        (PPO, format!("{ppo}epochs = 1\nclip_range_value = 0.1\n"), "ppo.clip_range_value"),
        (PPO, format!("{ppo}vf_coef = 0\nclip_range_value = 0.1\n"), "ppo.clip_range_value"),
        (PPO, format!("{ppo}critic_lr = 0\nvf_coef = 0.1\n"), "ppo.vf_coef"),
        (PPO, format!("{ppo}advantage_estimator = 'grpo'\nsamples_per_prompt = 2\ngamma = 0.5\n"), "ppo.gamma"),
        (PPO, format!("{ppo}[rm]\ncenter_rewards_coefficient = 1\n"), "rm"),
        (SFT, "[ppo]\nepochs = 3\n".into(), "ppo"),
        (SFT, "[rm]\n".into(), "rm"),
        (RM, "[[reward]]\nkind = 'math'\n".into(), "reward"),
        (SFT, "[environment]\nkind = 'calculator'\n".into(), "environment"),
        (SFT, "[stage.sft.tokenizer]\nvocab_size = 9\n".into(), "stage.sft.tokenizer.vocab_size"),
    ];
    for (stage, extra, key) in cases {
        let warnings =
            load(&with(&extra), &[], stage).unwrap_or_else(|error| panic!("{key}: {error}")).warnings;
        let [warning] = warnings.as_slice() else { panic!("{key}: {warnings:?}") };
        let told = format!("`{key}` has no effect on {}: ", stage.name);
        assert!(warning.starts_with("run.toml:") && warning.contains(&told), "{key}: {warning}");
    }
    // In the sections that the file has already.
    for (line, key) in
        [("eval = 'held_out'", "data.eval"), ("[train]\nlr = 0\nscheduler = 'linear'\n", "train.scheduler")]
    {
        let text = match line.strip_prefix("[train]\n") {
            Some(train) => RUN.replace("lr = 1e-4\n", train),
            None => RUN.replace("[train]", &format!("{line}\n[train]")),
        };
        let warnings = load(&text, &[], SFT).unwrap().warnings;
        assert!(matches!(warnings.as_slice(), [one] if one.contains(&format!("`{key}`"))), "{warnings:?}");
    }
}

/// A key at its default changes nothing, so it is no mistake. Resolved files of earlier versions hold many
/// such keys.
#[test]
fn a_key_without_effect_at_its_default_is_silent() {
    let text = "[parallel.pipeline]\nchunks = 2\n[eval]\napply_chat_template = false\ndata = 'eval-data'\n\
                [tokenizer]\nvocab_size = 512\n[gemini]\nplacement = 'auto'\n";
    assert!(load(&with(text), &[], SFT).unwrap().warnings.is_empty());
    let ppo = "[ppo]\nreward_model = 'rm'\nkl_horizon = 10000\ncritic_lr = 0\nvf_coef = 0.5\n";
    assert!(load(&with(ppo), &[], PPO).unwrap().warnings.is_empty());
    // But --set is always meant.
    let error = message(RUN, &["eval.apply_chat_template=false"], SFT);
    assert!(
        error.contains("`eval.apply_chat_template` has no effect on sft: [eval] tasks names no task"),
        "{error}"
    );
}

#[test]
fn epochs_beside_steps_are_refused_unless_something_nearer_overrides_them() {
    let both = with("steps = 5\nepochs = 1\n");
    let error = message(&both, &[], SFT);
    assert!(
        error.starts_with("run.toml:13: `train.epochs` has no effect on sft: [train] steps is"),
        "{error}"
    );
    // A quick look at a run of epochs.
    let epochs = with("epochs = 3\n");
    let loaded = load(&epochs, &["train.steps=2"], SFT).unwrap();
    assert_eq!(loaded.config.train.steps, Some(2));
    assert!(loaded.warnings[0].contains("`train.epochs` has no effect"), "{:?}", loaded.warnings);
    // A stage that differs from the others, and the other way round.
    let stage = with("epochs = 3\n[stage.sft.train]\nsteps = 5\n");
    assert!(load(&stage, &[], SFT).unwrap().warnings.is_empty());
    let error = message(&with("steps = 5\n[stage.sft.train]\nepochs = 3\n"), &[], SFT);
    assert!(error.contains("run.toml:14: `stage.sft.train.epochs` has no effect"), "{error}");
    // What is saved says only what holds.
    let saved = loaded.config.to_toml(SFT).unwrap();
    assert!(saved.contains("steps = 2\n") && !saved.contains("epochs"), "{saved}");
}

#[test]
fn a_warm_up_longer_than_the_run_is_refused_if_the_file_says_both() {
    let long = with("warmup_steps = 6\nsteps = 5\n");
    let error = message(&long, &[], SFT);
    assert!(error.starts_with("run.toml:12: `train.warmup_steps`: 6 steps of warm-up are more"), "{error}");
    let loaded = load(&with("warmup_steps = 6\nsteps = 50\n"), &["train.steps=5"], SFT).unwrap();
    assert!(
        matches!(loaded.warnings.as_slice(), [one] if one.contains("6 steps of warm-up")),
        "{:?}",
        loaded.warnings
    );
    assert!(load(&with("warmup_steps = 6\nsteps = 6\n"), &[], SFT).unwrap().warnings.is_empty());
    // 3 iterations without the warm-up of the critic, of 2 x 2 steps: 12.
    let ppo = |warmup: u64| {
        with(&format!(
            "warmup_steps = {warmup}\n[ppo]\nreward_model = 'rm'\niterations = 5\ncritic_warmup = 2\nepochs = 2\n\
             rollout_batch_size = 8\nmini_batch_size = 4\n"
        ))
    };
    assert!(load(&ppo(12), &[], PPO).unwrap().warnings.is_empty());
    let error = message(&ppo(13), &[], PPO);
    assert!(error.contains("13 steps of warm-up are more than the run has (12)"), "{error}");
}

#[test]
fn log_probabilities_of_a_sampler_in_bfloat16_are_refused() {
    let ppo = |dtype: &str| {
        let text = with("[ppo]\nreward_model = 'rm'\nold_logprobs = 'sampler'\n");
        load(&text, &[&format!("model.dtype='{dtype}'")], PPO)
    };
    assert!(ppo("float32").is_ok());
    let error = ppo("bfloat16").unwrap_err().to_string();
    assert!(error.contains("`ppo.old_logprobs`: sampler: in bfloat16 the sampler"), "{error}");
}

#[test]
fn a_preset_is_below_the_file_and_above_the_defaults() {
    let text = format!("preset = 'trl'\n{}", with("eps = 0.5\n[stage.dpo.dpo]\nbeta = 0.3\n"));
    let dpo = stage::find("dpo").unwrap();
    let config = load(&text, &["dpo.label_smoothing=0.2", "dpo.loss=cdpo"], &dpo.schema).unwrap().config;
    // [train] of the file, [stage.dpo] of the file, --set, and the preset's table of the stage and common
    // section.
    assert_eq!((config.train.lr, config.train.eps), (1e-4, 0.5));
    assert_eq!((config.dpo.beta, config.dpo.label_smoothing), (0.3, 0.2));
    assert_eq!((config.train.epochs, config.train.scheduler), (3, Scheduler::Linear));
    let saved = config.to_annotated_toml(&dpo.schema).unwrap();
    for line in [
        "lr = 0.0001  # run.toml:12",
        "beta = 0.3  # run.toml:15",
        "label_smoothing = 0.2  # --set",
        "epochs = 3  # preset trl",
        "micro_batch_size = 8",
    ] {
        assert!(saved.lines().any(|saved| saved == line), "{line}: {saved}");
    }
    assert_eq!(load(&saved, &[], &dpo.schema).unwrap().config, config);

    // --set names a preset, too.
    let config = load(RUN, &["preset=verl"], SFT).unwrap().config;
    assert_eq!((config.train.weight_decay, config.train.scheduler), (0.01, Scheduler::Constant));
}

#[test]
fn every_preset_is_a_run_file_of_every_stage() {
    for (name, text) in preset::PRESETS {
        let tree = tree::parse_included(text, &SourceLocation::Preset(name)).unwrap();
        read_file_sections(&tree, &stage::schemas()).unwrap();
        for stage in stage::schemas() {
            let file =
                with("steps = 500\n[ppo]\nreward_model = 'rm'\n[distill]\nteacher = 't'\n[pipeline]\n");
            let loaded = load(&file, &[&format!("preset={name}")], stage).unwrap();
            let told: Vec<&String> =
                loaded.warnings.iter().filter(|warning| !warning.contains("has no values for")).collect();
            assert!(told.is_empty(), "{name}, {}: {told:?}", stage.name);
            // Every key of the preset for this stage is one that the stage reads.
            let own = tree::find(&tree, &format!("stage.{}", stage.name));
            let Some(Entry { node: Node::Table(own), .. }) = own else { continue };
            for (section, _) in own.iter().filter(|(section, _)| *section != "train") {
                assert!(
                    stage.sections.contains(&section.as_str()),
                    "{name}: [stage.{}.{section}]",
                    stage.name
                );
            }
        }
    }
}

#[test]
fn a_preset_without_values_for_the_stage_is_told() {
    let all_but_grpo = "base sft distill rm dpo kto orpo simpo cpo ppo rloo reinforce online-dpo gkd";
    for (preset, expected) in [
        ("trl", "reinforce"),
        ("colossalchat", "distill cpo grpo rloo reinforce online-dpo gkd"),
        ("openrlhf", "distill kto orpo simpo cpo online-dpo gkd"),
        ("verl", "distill rm dpo kto orpo simpo cpo online-dpo gkd"),
        ("deepspeed-chat", "distill dpo kto orpo simpo cpo grpo rloo reinforce online-dpo gkd"),
        ("lora", ""),
        ("qlora", ""),
        ("lora-without-regret", ""),
        ("dapo", all_but_grpo),
        ("dr-grpo", all_but_grpo),
    ] {
        let file = with("[ppo]\nreward_model = 'rm'\n[distill]\nteacher = 't'\n[pipeline]\n");
        let is_told = |stage: &&'static StageSchema| {
            let warnings = load(&file, &[&format!("preset={preset}")], stage).unwrap().warnings;
            warnings
                .iter()
                .any(|warning| warning.contains(&format!("the preset `{preset}` has no values for")))
        };
        let told: Vec<&str> = stage::schemas().into_iter().filter(is_told).map(|stage| stage.name).collect();
        assert_eq!(told.join(" "), expected, "{preset}");
    }
    assert_eq!(
        load(&format!("preset = 'openrlhf'\n{RUN}"), &[], schema("kto")).unwrap().warnings,
        [
            "run.toml:1: the preset `openrlhf` has no values for kto beside [train]; it has values for dpo, grpo, ppo, \
          reinforce, rloo, rm, sft"
        ]
    );
    // In a pipeline one stage is enough.
    let text = "preset = ['openrlhf', 'dapo']\nout = 'life'\n";
    let read = |text: &str| pipeline_from_text(text, Path::new("life.toml"), &[], &stage::schemas()).unwrap();
    assert_eq!(
        read(text).warnings,
        ["life.toml:1: the preset `dapo` has no values for this pipeline; it has values for grpo"]
    );
    let grpo =
        format!("{text}[pipeline]\nstages = ['sft', 'rm', 'grpo']\n[stage.grpo.ppo]\nreward_model = 'r'\n");
    assert!(read(&grpo).warnings.is_empty(), "{:?}", read(&grpo).warnings);
}

#[test]
fn of_several_presets_each_is_above_those_before_it() {
    let text = format!("preset = ['trl', 'qlora']\n{}", with("[model.lora]\nlora_alpha = 8\n"));
    let config = load(&text, &[], SFT).unwrap().config;
    let lora = config.model.lora.as_ref().unwrap();
    assert_eq!((lora.r, lora.lora_alpha), (64, 8.0));
    assert_eq!(config.model.quantize, Some(Quantization::Nf4));
    // The common section of the file, the table of the stage in `qlora`, and in `trl`.
    assert_eq!((config.train.lr, config.train.max_grad_norm), (1e-4, 0.3));
    assert_eq!((config.train.scheduler, config.train.epochs), (Scheduler::Constant, 3));
    let saved = config.to_annotated_toml(SFT).unwrap();
    assert!(
        saved.contains("r = 64  # preset qlora\n") && saved.contains("epochs = 3  # preset trl\n"),
        "{saved}"
    );
    let config = load(RUN, &["preset=['qlora', 'trl']"], SFT).unwrap().config;
    assert_eq!((config.train.max_grad_norm, config.model.lora.unwrap().r), (1.0, 64));
    let error = message(RUN, &["preset=['trl', 'qlorra']"], SFT);
    assert!(error.contains("qlorra") && error.contains("qlora"), "{error}");
}

/// Ten times the rate of a model that is trained whole.
#[test]
fn adapters_without_regret_learn_ten_times_as_fast() {
    for InitStage { stage, init } in stage::with_init() {
        let file =
            "[model]\npath = 'm'\n[data]\ntrain = 'd'\n[ppo]\nreward_model = 'r'\n[distill]\nteacher = 't'\n";
        let sets = ["out=x", "preset=lora-without-regret"];
        let config = load(file, &sets, &stage.schema).unwrap().config;
        let whole: f64 = init.lr[0].parse().unwrap();
        assert!((config.train.lr / whole - 10.0).abs() < 1e-9, "{}: {}", stage.schema.name, config.train.lr);
    }
}

#[test]
fn what_a_preset_says_is_silent_where_it_has_no_effect() {
    let file = with("[ppo]\nreward_model = 'rm'\nadvantage_estimator = 'grpo'\nsamples_per_prompt = 4\n");
    let loaded = load(&file, &["preset=deepspeed-chat"], PPO).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert_eq!(loaded.config.ppo.score_clip, Some(5.0));
    // The same key in the file is told.
    let loaded = load(&format!("{file}gae_lambda = 0.9\n"), &["preset=deepspeed-chat"], PPO).unwrap();
    assert!(
        matches!(loaded.warnings.as_slice(), [one] if one.contains("gae_lambda")),
        "{:?}",
        loaded.warnings
    );
    let error = message(RUN, &["preset=trI"], SFT);
    assert!(error.contains("`preset`") && error.contains("trl") && error.contains("openrlhf"), "{error}");
    let error = message(&format!("preset = 5\n{RUN}"), &[], SFT);
    assert!(error.contains("run.toml:1: `preset`: must be the name of a preset"), "{error}");
}

#[test]
fn a_pipeline_reads_a_preset_for_every_stage() {
    let text = "preset = 'openrlhf'\nout = 'life'\n[stage.rm.train]\nlr = 0.5\n";
    let config = pipeline_from_text(text, Path::new("life.toml"), &[], &stage::schemas()).unwrap();
    let lr = |stage: &str| config.stages[stage].train.lr;
    assert_eq!((lr("sft"), lr("rm"), lr("ppo")), (5e-6, 0.5, 1e-6));
    let saved = config.to_annotated_toml(&stage::schemas()).unwrap();
    assert!(
        saved.contains("lr = 0.5  # life.toml:4") && saved.contains("lr = 0.000005  # preset openrlhf"),
        "{saved}"
    );
    let again = pipeline_from_text(&saved, Path::new("life.toml"), &[], &stage::schemas()).unwrap();
    let text = |config: &PipelineConfig| config.to_toml(&stage::schemas()).unwrap();
    assert_eq!(text(&again), text(&config));
}

/// A common key may be meant for one stage of several. A pipeline tells what none of them uses.
#[test]
fn a_pipeline_tells_of_common_keys_that_no_stage_uses() {
    let read = |text: &str, sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
        pipeline_from_text(text, Path::new("life.toml"), &sets, &stage::schemas())
    };
    let warnings = |text: &str, sets: &[&str]| read(text, sets).unwrap().warnings;
    let life = "out = 'life'\n";
    let base = |text: &str| warnings(&format!("{life}{text}"), &[]);
    // The part `tokenizer` uses the size, and the base stage has its own length.
    assert!(
        base("[tokenizer]\nvocab_size = 300\n[train]\nepochs = 2\n[stage.base.train]\nsteps = 5\n")
            .is_empty()
    );
    let told = base("[eval]\nlimit = 3\n[pipeline]\nstages = ['data', 'sft']\n");
    assert_eq!(
        told,
        ["life.toml:3: `eval.limit` has no effect on this pipeline: [eval] tasks names no task"]
    );
    assert!(base("[eval]\nlimit = 3\n").is_empty());
    let parts = base("[pipeline]\nstages = ['sft']\n[synth]\ntrain = 7\n[base]\nhidden_size = 8\n");
    assert!(parts.len() == 2 && parts[0].contains("`synth`") && parts[1].contains("`base`"), "{parts:?}");
    let told = base("[stage.rm.eval]\nlimit = 3\n");
    assert!(
        matches!(told.as_slice(), [one] if one.contains("`stage.rm.eval.limit` has no effect on rm")),
        "{told:?}"
    );
    // Of --set, too: one stage that uses the key is enough.
    let text = format!("{life}[train]\nlr = 1e-3\n[stage.base.train]\nsteps = 5\n");
    assert!(read(&text, &["train.epochs=2"]).is_ok());
    let error = read(life, &["ppo.kl_horizon=3"]).unwrap_err().to_string();
    assert!(error.contains("`ppo.kl_horizon` has no effect on this pipeline"), "{error}");
    let error = read(&format!("{life}[train]\nsteps = 5\nepochs = 2\n"), &[]).unwrap_err().to_string();
    assert!(error.starts_with("life.toml:4: `train.epochs` has no effect on this pipeline"), "{error}");
}

/// The file that a run has saved is that of the run, whatever version has resolved it.
#[test]
fn the_own_file_of_a_run_is_read_without_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    let out = format!("out = '{}'\n", folder.path().display());
    let text = with("steps = 5\nepochs = 1\nwarmup_steps = 3\n[eval]\nlimit = 3\n")
        .replace("out = 'runs/sft'\n", &out);
    std::fs::write(&path, &text).unwrap();
    let read = |path: &Path| from_text(&text, path, &[], SFT, &stage::schemas());
    assert!(read(&path).unwrap().warnings.is_empty());
    assert!(read(&folder.path().join("mine.toml")).is_err());
}

#[test]
fn the_home_folder_is_written_out_in_every_path() {
    let home = std::env::var("HOME").unwrap();
    let text = "out = '~'\n[model]\npath = '~/m'\n[data]\ntrain = ['~/a', 'b~']\ncache = '~/c'\n[tokenizer]\ntemplate = '~/t'\n\
                [stage.sft.eval]\ninclude_path = '~/tasks'\n";
    let config = load(text, &["data.eval=~/e", "eval.every=1"], SFT).unwrap().config;
    assert_eq!((config.out, config.model.path.unwrap()), (PathBuf::from(&home), format!("{home}/m")));
    assert_eq!(config.data.train.0, [format!("{home}/a"), "b~".to_owned()]);
    assert_eq!(config.data.eval.0, [format!("{home}/e")]);
    assert_eq!(config.data.cache.unwrap(), format!("{home}/c"));
    assert_eq!(config.tokenizer.template.unwrap(), "~/t");
    assert_eq!(config.eval.include_path.0, [format!("{home}/tasks")]);
    let error = message(RUN, &["out=~nobody/run"], SFT);
    assert!(error.starts_with("--set out=~nobody/run: `out`: \"~nobody/run\": only ~/ is read"), "{error}");
}
