//! The sections of the stages that learn from rollouts: rewards, environments, the defaults of each stage,
//! and the keys of `[ppo]` that an algorithm does not read.

use rewards::RewardKind;
use rlhf::config::{AdvantageEstimator, AdvantageScale, KlPlace, Shuffle};
use rlhf::kl::KlEstimator;
use rlhf::loss::LossAggMode;

use super::*;

/// The keys of `[ppo]` that an algorithm does not read: what the section says besides, and the key that is
/// told.
#[test]
fn every_key_of_another_algorithm_is_told_once() {
    let pair = "samples_per_prompt = 2\n";
    let rloo = "samples_per_prompt = 2\nadvantage_estimator = 'rloo'\n";
    let grpo = "samples_per_prompt = 2\nadvantage_estimator = 'grpo'\nadvantage_scale = 'none'\n";
    for (besides, line) in [
        ("", "max_refills = 3"),
        ("", "overlong_penalty = 2"),
        ("", "entropy_delta = 0.1"),
        ("kl_coef = 0\n", "reference_model = 'r'"),
        ("kl_coef = 0\n", "kl_clamp = 5"),
        ("kl_coef = 0\n", "kl_estimator = 'k3'"),
        ("kl_coef = 0\n", "kl_place = 'loss'"),
        ("", "kl_gradient = 'straight_through'"),
        ("", "kl_importance = true"),
        ("", "advantage_scale = 'batch'"),
        ("", "advantage_epsilon = 1e-3"),
        (grpo, "advantage_epsilon = 1e-3"),
        (pair, "pass_k = 2"),
        (rloo, "gamma = 0.5"),
        (rloo, "gae_lambda = 0.5"),
        (rloo, "critic_gae_lambda = 0.5"),
        (rloo, "critic_warmup = 1"),
        (rloo, "whiten_advantages = false"),
        (rloo, "whiten_rewards = true"),
        (rloo, "whiten_variance = 'biased'"),
        (rloo, "score_slot = 'after_eos'"),
        ("advantage_estimator = 'reinforce_plus_plus'\nwhiten_advantages = false\n", "whiten_epsilon = 1"),
        ("policy_loss = 'sapo'\n", "clip_range = 0.1"),
        ("policy_loss = 'gpg'\n", "clip_range_high = 0.3"),
        ("policy_loss = 'gpg'\n", "log_ratio_clamp = 5"),
        ("policy_loss = 'cispo'\nclip_range_high = 3\n", "clip_range = 0.1"),
        ("policy_loss = 'gmpo'\n", "clip_ratio_c = 3"),
        ("", "sapo_temperature = 2"),
        ("policy_loss = 'sapo'\nepochs = 1\n", "sapo_temperature_negative = 2"),
        ("", "loss_norm = 5"),
        ("", "correction_high = 5"),
        ("correction = 'token_truncate'\n", "correction_low = 0.1"),
        ("old_logprobs = 'sampler'\n", "correction = 'token_mask'"),
    ] {
        let key = line.split(' ').next().unwrap();
        let text = with(&format!("[ppo]\nreward_model = 'rm'\n{besides}{line}\n"));
        let warnings = load(&text, &[], PPO).unwrap_or_else(|error| panic!("{line}: {error}")).warnings;
        let told = format!("`ppo.{key}` has no effect on ppo: ");
        assert!(matches!(warnings.as_slice(), [one] if one.contains(&told)), "{line}: {warnings:?}");
    }
}

/// What an algorithm does read is never told, and stays in the saved file.
#[test]
fn keys_of_the_own_algorithm_are_silent() {
    let pair = "samples_per_prompt = 2\n";
    for lines in [
        "kl_place = 'loss'\nkl_gradient = 'straight_through'\nkl_importance = true\n".to_owned(),
        format!("{pair}advantage_estimator = 'grpo'\nadvantage_scale = 'batch'\nadvantage_epsilon = 1e-3\n"),
        format!("{pair}advantage_estimator = 'pass_at_k'\npass_k = 2\nadvantage_scale = 'none'\n"),
        format!("{pair}advantage_estimator = 'maxrl'\nadvantage_epsilon = 1e-3\n"),
        "advantage_estimator = 'reinforce_plus_plus'\ngamma = 0.9\nscore_slot = 'after_eos'\nwhiten_epsilon = 1\n"
            .to_owned(),
        format!("{pair}advantage_estimator = 'reinforce_plus_plus_baseline'\nwhiten_advantages = false\n"),
        "policy_loss = 'cispo'\nclip_range = 2\n".to_owned(),
        "policy_loss = 'dppo_tv'\nclip_range = 0.1\nclip_ratio_c = 5\nlog_ratio_clamp = 5\n".to_owned(),
        "policy_loss = 'sapo'\nsapo_temperature = 2\nsapo_temperature_negative = 2\n".to_owned(),
        "staleness = 1\ncorrection = 'token_mask'\ncorrection_low = 0.1\n".to_owned(),
        "loss_agg_mode = 'seq_mean_token_sum_norm'\nloss_norm = 5\n".to_owned(),
        format!("{pair}dynamic_sampling = true\nmax_refills = 3\noverlong_buffer = 5\noverlong_penalty = 2\n"),
        "entropy_target = 0.2\nentropy_delta = 0.1\n".to_owned(),
    ] {
        let text = with(&format!("[ppo]\nreward_model = 'rm'\n{lines}"));
        let loaded = load(&text, &[], PPO).unwrap_or_else(|error| panic!("{lines}: {error}"));
        assert!(loaded.warnings.is_empty(), "{lines}: {:?}", loaded.warnings);
        let saved = loaded.config.to_toml(PPO).unwrap();
        for key in lines.lines().filter_map(|line| line.split(' ').next()) {
            assert!(saved.contains(&format!("\n{key} = ")), "{key}: {saved}");
        }
    }
}

#[test]
fn every_stage_has_defaults_that_read_and_hold() {
    for stage in stage::schemas() {
        let tree = stage.own_defaults().unwrap();
        for (key, reason) in stage.ignored_keys() {
            assert!(tree::find(&tree, key).is_none(), "the defaults of {} have {key}: {reason}", stage.name);
        }
        RunConfig::default_of(stage).check_bounds(stage).unwrap();
    }
    let of = |name: &str| RunConfig::default_of(schema(name)).ppo;
    assert_eq!(of("ppo"), RunConfig::default().ppo);
    let (grpo, rloo, reinforce) = (of("grpo"), of("rloo"), of("reinforce"));
    assert_eq!(grpo.advantage_estimator, AdvantageEstimator::Grpo);
    assert_eq!((grpo.kl_place, grpo.kl_coef, grpo.kl_estimator), (KlPlace::Loss, 0.04, KlEstimator::K3));
    assert_eq!(rloo.advantage_estimator, AdvantageEstimator::Rloo);
    assert_eq!((rloo.kl_place, rloo.kl_coef), (KlPlace::Reward, 0.05));
    assert_eq!(reinforce.advantage_estimator, AdvantageEstimator::ReinforcePlusPlus);
    // One optimizer step for each rollout.
    assert!([grpo, rloo, reinforce].iter().all(|ppo| ppo.steps_per_iteration() == 1));
}

#[test]
fn the_defaults_of_a_stage_are_the_lowest_layer() {
    let text = format!(
        "preset = 'dr-grpo'\n{}",
        with(
            "[ppo]\nreward_model = 'rm'\nkl_coef = 0.1\nclip_range = 0.3\n[stage.grpo.ppo]\nsamples_per_prompt = 4\n\
             mini_batch_size = 32\nclip_range = 0.4\n"
        )
    );
    let grpo = schema("grpo");
    let loaded = load(&text, &["ppo.clip_range_high=0.5"], grpo).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let (config, ppo) = (&loaded.config, &loaded.config.ppo);
    // --set, the table of the stage, the common section twice over the preset, the preset over the stage.
    assert_eq!(ppo.clip_range_high, Some(0.5));
    assert_eq!((ppo.clip_range, ppo.samples_per_prompt), (0.4, 4));
    assert_eq!((ppo.kl_coef, config.train.lr), (0.1, 1e-4));
    assert_eq!(ppo.advantage_scale, AdvantageScale::None);
    assert_eq!(ppo.loss_agg_mode, LossAggMode::SeqMeanTokenSumNorm);
    // The stage over the section, and the section.
    assert_eq!((ppo.rollout_batch_size, ppo.kl_estimator), (16, KlEstimator::K3));
    assert_eq!((ppo.max_new_tokens, ppo.gamma), (64, 1.0));
    let saved = config.to_annotated_toml(grpo).unwrap();
    for line in [
        "clip_range = 0.4  # run.toml:20",
        "advantage_scale = \"none\"  # preset dr-grpo",
        "rollout_batch_size = 16",
        "kl_place = \"loss\"",
    ] {
        assert!(saved.lines().any(|saved| saved == line), "{line}: {saved}");
    }
    assert_eq!(load(&saved, &[], grpo).unwrap().config, *config);

    // Another stage reads the same section with its own defaults.
    let reinforce = load(&text, &[], schema("reinforce")).unwrap().config.ppo;
    assert_eq!((reinforce.rollout_batch_size, reinforce.samples_per_prompt), (64, 1));
    // A default that cannot be read would name itself.
    let broken = tree::parse_included("[train]\nlr = 'x'\n", &SourceLocation::Stage("grpo")).unwrap();
    let error = read::read::<RunConfig>(&broken).unwrap_err().to_string();
    assert!(error.starts_with("default of grpo: `train.lr` is the text \"x\""), "{error}");
}

/// What equals the default of the stage says nothing, whatever the default of the section is.
#[test]
fn a_key_without_effect_is_compared_with_the_default_of_the_stage() {
    let file = |line: &str| with(&format!("[ppo]\nreward_model = 'rm'\n{line}\n"));
    let told = |line: &str| load(&file(line), &[], schema("grpo")).unwrap().warnings;
    // The stage does not whiten; the section does.
    assert!(told("whiten_advantages = false").is_empty());
    let warnings = told("whiten_advantages = true");
    assert!(
        matches!(warnings.as_slice(), [one] if one.contains("`ppo.whiten_advantages` has no effect on grpo")),
        "{warnings:?}"
    );
}

/// A section that is common to several stages: those without advantages have no part in the settings of the
/// others, which could not even be valid for them.
#[test]
fn settings_of_advantages_have_no_part_in_stages_without_them() {
    let text = with(
        "[ppo]\nreward_model = 'rm'\nreference_model = 'r'\nadvantage_estimator = 'remax'\nkl_coef = 0.3\n\
         critic_warmup = 500\nmax_refills = 4\nshuffle = 'prompts'\nscore_clip = 3.0\n[dpo]\nbeta = 0.2\n\
         [distill]\nteacher = 't'\n[[reward]]\nkind = 'math'\n[environment]\nkind = 'calculator'\n",
    );
    let read = |name: &str, text: &str| load(text, &[], schema(name)).unwrap();
    let told = |loaded: &Loaded<RunConfig>, key: &str| loaded.warnings.iter().any(|line| line.contains(key));

    let online = read("online-dpo", &text);
    let config = &online.config;
    assert_eq!(config.ppo, config.ppo.rollout_settings());
    assert_eq!((config.ppo.score_clip, config.ppo.reference_model.as_deref()), (Some(3.0), Some("r")));
    assert_eq!((config.ppo.temperature, config.ppo.shuffle, config.dpo.beta), (0.9, Shuffle::Replies, 0.2));
    assert_eq!((config.reward.len(), &config.environment), (1, &None));
    for key in ["ppo.advantage_estimator", "ppo.kl_coef", "ppo.critic_warmup", "ppo.shuffle", "environment"] {
        assert!(
            told(&online, &format!("`{key}` has no effect on online-dpo")),
            "{key}: {:?}",
            online.warnings
        );
    }
    assert!(!told(&online, "reference_model") && !told(&online, "`dpo"), "{:?}", online.warnings);

    let gkd = read("gkd", &text);
    let config = &gkd.config;
    assert_eq!(config.ppo, config.ppo.rollout_settings().without_rewards());
    assert_eq!((config.ppo.shuffle, config.ppo.score_clip), (Shuffle::Prompts, None));
    assert!(config.reward.is_empty() && config.ppo.reward_model.0.is_empty() && config.environment.is_some());
    for key in ["ppo.reward_model", "ppo.score_clip", "ppo.reference_model", "reward", "dpo"] {
        assert!(told(&gkd, &format!("`{key}` has no effect on gkd")), "{key}: {:?}", gkd.warnings);
    }
    for (name, loaded) in [("online-dpo", &online), ("gkd", &gkd)] {
        let stage = schema(name);
        let saved = loaded.config.to_toml(stage).unwrap();
        assert!(!saved.contains("advantage") && !saved.contains("kl_coef"), "{saved}");
        let again = load(&saved, &[], stage).unwrap();
        assert_eq!((again.config.to_toml(stage).unwrap(), again.warnings.len()), (saved.clone(), 0));
        assert_eq!(RunConfig::upgrade(&saved, stage).unwrap(), saved);
    }
}

#[test]
fn online_dpo_takes_prompts_with_all_of_their_replies() {
    let file = |lines: &str| with(&format!("[ppo]\nreward_model = 'rm'\n{lines}\n"));
    let refused = |lines: &str| message(&file(lines), &[], schema("online-dpo"));
    assert!(refused("samples_per_prompt = 1").contains("a pair is of two replies"));
    let parted = refused("samples_per_prompt = 4\nmini_batch_size = 2");
    assert!(parted.contains("mini_batch_size = 2: must be a multiple of samples_per_prompt = 4"), "{parted}");
    let set = message(&file(""), &["ppo.kl_coef=0.1"], schema("online-dpo"));
    assert!(set.contains("`ppo.kl_coef` has no effect on online-dpo: this stage has no KL penalty"), "{set}");
    assert!(
        message(RUN, &[], schema("online-dpo")).contains("online-dpo needs something that scores replies")
    );
}

#[test]
fn rewards_and_environments_are_saved_and_read_back() {
    for name in ["ppo", "grpo", "rloo", "reinforce"] {
        let text = with(&format!(
            "[[stage.{name}.reward]]\nkind = 'math'\n[[stage.{name}.reward]]\nkind = 'length'\nname = 'short'\n\
             weight = -0.5\nmax = 9\ntolerance = 3\n[stage.{name}.environment]\nkind = 'calculator'\n\
             [stage.ppo.ppo]\ncritic_model = 'c'\n"
        ));
        let stage = schema(name);
        let config = load(&text, &[], stage).unwrap().config;
        let names: Vec<&str> = config.reward.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!((names, config.reward[1].weight), (vec!["math", "short"], -0.5));
        assert_eq!(config.environment.as_ref().unwrap().max_turns, 4);
        let saved = config.to_annotated_toml(stage).unwrap();
        assert!(saved.contains("weight = -0.5  # run.toml:17\n"), "{saved}");
        let again = load(&saved, &[], stage).unwrap();
        assert_eq!(again.config, config);
        assert!(again.warnings.is_empty(), "{:?}", again.warnings);
        // Other stages save nothing of them.
        assert!(!load(&text, &[], SFT).unwrap().config.to_toml(SFT).unwrap().contains("reward"));
    }
}

#[test]
fn a_list_of_rewards_is_replaced_as_a_whole() {
    let text = with("[[reward]]\nkind = 'math'\n[[stage.grpo.reward]]\nkind = 'world'\n");
    let kinds = |sets: &[&str], stage: &str| {
        let config = load(&text, sets, schema(stage)).unwrap().config;
        config.reward.iter().map(|entry| entry.kind.name()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!((kinds(&[], "grpo"), kinds(&[], "rloo")), ("world".to_owned(), "math".to_owned()));
    let sets = ["reward=[{ kind = 'json' }, { kind = 'choice' }]"];
    assert_eq!(kinds(&sets, "grpo"), "json choice");
}

#[test]
fn rewards_that_cannot_work_are_refused_with_their_line() {
    for (tables, expected) in [
        (
            "[[reward]]\nkind = 'math'\n[[reward]]\nkind = 'regex'\n",
            "run.toml:14: `reward[1].pattern`: is missing; ",
        ),
        ("[[reward]]\nkind = 'math'\nclip = 0\n", "run.toml:14: `reward[0].clip`: is 0; "),
        ("[[reward]]\nkind = 'model'\n", "run.toml:12: `reward[0].model`: is missing; "),
        (
            "[[reward]]\nkind = 'math'\n[[reward]]\nkind = 'world'\nname = 'math'\n",
            "run.toml:16: `reward[1].name`: `reward[0]` and `reward[1]` are both named \"math\"",
        ),
        ("[[reward]]\nkind = 'math'\nweight = 0\n", "run.toml:12: `reward`: every `reward.weight` is 0"),
        (
            "[ppo]\nreward_model = ['a', 'b']\n[[reward]]\nkind = 'math'\nname = 'reward_2'\n",
            "run.toml:16: `reward[0].name`: \"reward_2\" is what metrics call a model of [ppo] reward_model: give",
        ),
        (
            "[[reward]]\nkind = 'math'\n[environment]\nkind = 'search'\nurl = 'http://a'\n",
            "run.toml:16: `environment.url`: has no effect with kind = \"search\"; ",
        ),
        ("[[reward]]\nkind = 'math'\n[environment]\nkind = 'command'\n", "`environment.command`: "),
    ] {
        let error = message(&with(tables), &[], schema("grpo"));
        assert!(error.starts_with(expected), "{tables}: {error}");
    }
    // With one reward model there is no second name, and a held-out verifier may be all that is listed.
    let one = "[ppo]\nreward_model = 'a'\n[[reward]]\nkind = 'math'\nname = 'reward_2'\nweight = 0\n";
    assert!(load(&with(one), &[], schema("grpo")).unwrap().warnings.is_empty());
}

#[test]
fn a_stage_with_rollouts_needs_something_that_scores() {
    let needed = "[[reward]] is not set, and grpo needs something that scores replies";
    assert!(message(RUN, &[], schema("grpo")).starts_with(needed));
    for (text, is_enough) in [
        ("[[reward]]\nkind = 'math'\n", true),
        ("[ppo]\nreward_model = 'rm'\n", true),
        // A program may give rewards to turns, and the tools inside give none.
        ("[environment]\nkind = 'search'\n", false),
        ("[environment]\nkind = 'command'\ncommand = ['true']\n", true),
        ("[environment]\nkind = 'http'\nurl = 'http://h'\n[[reward]]\nkind = 'math'\nweight = 0\n", true),
        ("[ppo]\nreward_model = []\n", false),
    ] {
        assert_eq!(load(&with(text), &[], schema("grpo")).is_ok(), is_enough, "{text}");
    }
    // The critic of `gae` starts as a reward model, and otherwise as a folder of its own.
    let math = "[[reward]]\nkind = 'math'\n";
    for (text, is_enough) in [
        ("[[reward]]\nkind = 'model'\nmodel = 'rm'\n".to_owned(), true),
        (format!("{math}[ppo]\ncritic_model = 'c'\n"), true),
        (format!("{math}[ppo]\nadvantage_estimator = 'reinforce_plus_plus'\n"), true),
        (math.to_owned(), false),
        ("[environment]\nkind = 'search'\n".to_owned(), false),
    ] {
        assert_eq!(load(&with(&text), &[], PPO).is_ok(), is_enough, "{text}");
    }
}

#[test]
fn the_old_section_of_reward_models_is_refused_wherever_it_stands() {
    for (text, sets, place) in [
        ("[reward]\ncenter_rewards_coefficient = 1\n", vec![], "run.toml:12: `reward` is a table"),
        ("[stage.rm.reward]\n", vec![], "run.toml:12: `stage.rm.reward` is a table"),
        (
            "",
            vec!["reward.center_rewards_coefficient=1"],
            "--set reward.center_rewards_coefficient=1: `reward` is",
        ),
        (
            "[[reward]]\nkind = 'math'\n",
            vec!["reward.math.weight=2"],
            "--set reward.math.weight=2: `reward` is",
        ),
    ] {
        let error = message(&with(text), &sets, RM);
        assert!(error.starts_with(place) && error.contains("in [rm] now"), "{text}: {error}");
    }
    let error = pipeline_from_text("out = 'x'\n[reward]\n", Path::new("life.toml"), &[], &stage::schemas());
    assert!(error.unwrap_err().to_string().starts_with("life.toml:2: `reward` is a table"));
}

#[test]
fn a_saved_file_of_an_earlier_version_gets_the_defaults_of_its_stage() {
    let old = "seed = 3\nout = 'x'\n[model]\npath = 'base'\n[data]\ntrain = ['a']\n";
    let saved =
        RunConfig::upgrade(&format!("{old}[reward]\ncenter_rewards_coefficient = 0.01\n"), RM).unwrap();
    assert!(
        saved.contains("[rm]\ncenter_rewards_coefficient = 0.01\n") && !saved.contains("[reward]"),
        "{saved}"
    );
    let saved =
        RunConfig::upgrade(&format!("{old}[ppo]\nreward_model = ['rm']\nkl_coef = 0.2\n"), schema("grpo"))
            .unwrap();
    for line in [
        "kl_coef = 0.2",
        "kl_place = \"loss\"",
        "samples_per_prompt = 8",
        "max_new_tokens = 64",
        "lr = 0.000001",
    ] {
        assert!(saved.lines().any(|saved| saved == line), "{line}: {saved}");
    }
}

/// The rewards and the environment of a run.
const WAS: &str = "\
[[reward]]
kind = 'http'
name = 'judge.v1'
url = 'http://a'
weight = 1.0
[[reward]]
kind = 'json'
name = 'json'
schema = { properties = { timeout = { type = 'string' } } }
[[reward]]
kind = 'command'
command = ['a']
timeout = 5.0
[environment]
kind = 'command'
command = ['a']
max_turns = 4
";

#[test]
fn rewards_are_compared_by_name_and_key() {
    let keys = |now: &str| -> Vec<String> {
        let found = differences(WAS, now, &RESUME_MUTABLE_KEYS).unwrap();
        found.into_iter().map(|difference| difference.key).collect()
    };
    let changed = |was: &str, now: &str| keys(&WAS.replace(was, now));
    // How programs and servers are reached.
    assert!(keys(WAS).is_empty());
    assert!(
        changed("'http://a'", "'http://b'\nheaders = { A = 'b' }\nattempts = 9\nconcurrency = 2").is_empty()
    );
    assert!(changed("['a']", "['b', 'c']").is_empty());
    assert!(changed("timeout = 5.0", "timeout = 6.0\nbatch_size = 3\nmax_restarts = 1").is_empty());
    assert!(changed("max_turns = 4", "max_turns = 4\ntimeout = 3.0\nbatch_size = 2").is_empty());
    // What they score.
    assert_eq!(changed("weight = 1.0", "weight = 2.0"), ["reward.\"judge.v1\".weight"]);
    assert_eq!(changed("'string'", "'number'"), ["reward.json.schema.properties.timeout.type"]);
    assert_eq!(changed("max_turns = 4", "max_turns = 5"), ["environment.max_turns"]);
    assert_eq!(changed("name = 'json'", "name = 'form'")[0], "reward");
    let (first, rest) = WAS.split_at(WAS.find("[[reward]]\nkind = 'json'").unwrap());
    let (second, environment) = rest.split_at(rest.find("[environment]").unwrap());
    assert_eq!(keys(&format!("{second}{first}{environment}")), ["reward"]);

    let flat = flatten_toml(WAS).unwrap();
    assert_eq!(flat["reward"], r#"["judge.v1", "json", "command"]"#);
    assert_eq!(flat["reward.command.timeout"], "5.0");
    assert!(!flat.contains_key("reward.json.name"));
    // Tables without names, and with the same ones, are one value.
    for list in ["[{ a = 1 }, { a = 2 }]", "[{ kind = 'a' }, { kind = 'a' }]", "[{ kind = 'a' }, 3]"] {
        let flat = flatten_toml(&format!("x = {list}")).unwrap();
        assert_eq!(flat.keys().collect::<Vec<_>>(), ["x"], "{list}");
    }
}

#[test]
fn a_common_section_need_not_fit_to_stages_that_do_not_run() {
    let read = |stages: &str| {
        let text = format!(
            "out = 'life'\n[ppo]\nsamples_per_prompt = 1\nreward_model = 'r'\n[pipeline]\nstages = ['{stages}']\n"
        );
        pipeline_from_text(&text, Path::new("life.toml"), &[], &stage::schemas())
    };
    assert!(read("ppo").is_ok());
    let error = read("grpo").unwrap_err().to_string();
    assert!(error.contains("[ppo] mini_batch_size = 128: must divide"), "{error}");
}

#[test]
fn the_home_folder_is_written_out_in_the_models_of_rewards() {
    let home = std::env::var("HOME").unwrap();
    let text = with("[[reward]]\nkind = 'math'\n[[reward]]\nkind = 'model'\nmodel = '~/m'\n");
    let config = load(&text, &[], schema("grpo")).unwrap().config;
    let RewardKind::Model(model) = &config.reward[1].kind else { panic!("another kind") };
    assert_eq!(model.model, format!("{home}/m"));
    let error = message(&text.replace("~/m", "~x/m"), &[], schema("grpo"));
    assert!(error.starts_with("run.toml:16: `reward[1].model`: "), "{error}");
}
