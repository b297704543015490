//! ZeRO: state that is divided over the data-parallel processes, alone and with every other split.

use serde_json::Value;

use crate::gemini::{line, same_bits, with_large_model};
use crate::harness::signal;
use crate::ranks::{equals_one_process, equals_one_process_with, new_model_equals_one_process, worst};
use crate::training::{copied, metrics};

#[test]
fn sft_with_every_stage_equals_sft_on_one_process() {
    let ways = [
        (2, "zero=1"),
        (2, "zero=2"),
        (2, "zero=3"),
        (4, "zero=1 transport=gloo"),
        (4, "zero=2"),
        (4, "zero=3 transport=gloo"),
        (3, "zero=3"),
    ];
    equals_one_process("sft", &["loss", "grad_norm", "tokens"], &ways);
}

#[test]
fn sft_with_every_stage_and_split_equals_sft_on_one_process() {
    let ways = [
        (4, "zero=1 tensor.size=2"),
        (4, "zero=2 tensor.size=2 sequence.mode='megatron'"),
        (4, "zero=3 tensor.size=2 sequence.mode='megatron'"),
        (4, "zero=1 pipeline.size=2"),
        (4, "zero=2 pipeline.size=2 pipeline.schedule='zb-v'"),
        (4, "zero=3 pipeline.size=2 pipeline.schedule='zb-h1'"),
        (2, "zero=3 sequence.mode='ulysses' sequence.size=2"),
        (4, "zero=3 sequence.mode='ring' sequence.size=2"),
        (8, "zero=3 pipeline.size=2 tensor.size=2 sequence.mode='megatron'"),
    ];
    equals_one_process("sft", &["loss", "grad_norm", "tokens"], &ways);
}

#[test]
fn a_reward_model_with_every_stage_equals_that_of_one_process() {
    let ways = [
        (2, "zero=1"),
        (4, "zero=2 tensor.size=2"),
        (4, "zero=3"),
        (4, "zero=3 pipeline.size=2"),
        (4, "zero=3 tensor.size=2 sequence.mode='ulysses' sequence.size=2"),
    ];
    equals_one_process("rm", &["loss", "grad_norm", "accuracy", "tokens"], &ways);
}

#[test]
fn ppo_with_every_stage_equals_ppo_on_one_process() {
    let metrics = ["objective/scores", "objective/kl", "loss/value_avg", "grad_norm", "response_length/mean"];
    let ways = [
        (2, "zero=1"),
        (2, "zero=2"),
        (2, "zero=3"),
        (4, "zero=3 transport=gloo"),
        (4, "zero=3 tensor.size=2"),
        (4, "zero=3 pipeline.size=2"),
        (4, "zero=2 sequence.mode='ring' sequence.size=2"),
    ];
    equals_one_process("ppo", &metrics, &ways);
}

#[test]
fn tied_weights_and_experts_with_every_stage_equal_those_on_one_process() {
    let gpt2 = r#"{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 300, "n_embd": 16, "n_layer": 2,
        "n_head": 2, "n_positions": 128, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}"#;
    let ways = [(2, "zero=1"), (4, "zero=3"), (4, "zero=2 pipeline.size=2"), (4, "zero=3 pipeline.size=2")];
    new_model_equals_one_process(gpt2, &ways);

    let mixtral = r#"{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 300, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 128, "output_router_logits": true,
        "router_aux_loss_coef": 0.02}"#;
    let ways = [
        (2, "zero=1 expert.size=2"),
        (4, "zero=2 expert.size=2"),
        (4, "zero=3 expert.size=2"),
        (2, "zero=3"),
        (4, "zero=3 expert.size=2 tensor.size=2"),
        (4, "zero=3 expert.size=2 pipeline.size=2"),
    ];
    new_model_equals_one_process(mixtral, &ways);
}

/// Three experts on two processes, and enough parameters for a choice of chunk sizes: the processes hold
/// different numbers of parameters, and still cut the dense weights alike.
#[test]
fn processes_with_different_numbers_of_experts_equal_one_process() {
    let mixtral = r#"{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 300, "hidden_size": 256,
        "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_local_experts": 3, "num_experts_per_tok": 2, "max_position_embeddings": 128, "output_router_logits": true,
        "router_aux_loss_coef": 0.02}"#;
    let ways = [
        (2, "expert.size=2"),
        (2, "zero=1 expert.size=2"),
        (4, "zero=2 expert.size=2"),
        (4, "zero=3 expert.size=2"),
    ];
    new_model_equals_one_process(mixtral, &ways);
}

#[test]
fn group_advantages_and_the_ptx_term_with_sharded_weights_equal_one_process() {
    let ptx = ["ppo.ptx_coef=0.1", "data.ptx=life/data/sft.parquet"];
    let metrics = ["objective/scores", "loss/ptx_avg", "grad_norm", "response_length/mean"];
    equals_one_process_with("ppo", &ptx, &metrics, &[(2, "zero=3"), (3, "zero=2")]);
    let grpo = ["ppo.advantage_estimator=grpo", "ppo.rollout_batch_size=3", "ppo.samples_per_prompt=4"];
    let metrics = ["objective/scores", "objective/kl", "grad_norm", "response_length/mean"];
    equals_one_process_with("ppo", &grpo, &metrics, &[(2, "zero=3"), (4, "zero=3")]);
}

/// Four processes and three held-out rows: one process evaluates nothing, but takes part in gathering.
#[test]
fn held_out_rows_with_sharded_weights_give_the_metrics_of_one_process() {
    let scratch = copied();
    for (stage, data) in [("sft", "sft"), ("rm", "preference")] {
        let run = |out: &str, sets: &str| {
            let rows = format!("--set data.eval=life/data/{data}.parquet --set eval.every=2");
            let micro = "--set train.micro_batch_size=25 --set train.eps=1e-4";
            let line =
                format!("{stage} --config life/{stage}/run.toml --set out={out} {rows} {micro} {sets}");
            scratch.run(line.trim_end()).succeeds();
            let rows = metrics(&scratch, out);
            let evaluated = rows.iter().filter(|row| row.get("eval/accuracy").is_some());
            evaluated.map(|row| row["eval/accuracy"].as_f64().unwrap()).collect::<Vec<f64>>()
        };
        let alone = run(&format!("{stage}-alone"), "");
        assert_eq!(alone.len(), 3);
        assert_eq!(run(&format!("{stage}-many"), "--nproc 4 --set parallel.zero=3"), alone);
    }
}

#[test]
fn a_run_continues_with_another_stage_and_another_number_of_processes() {
    let scratch = with_large_model();
    let line =
        |out: &str, sets: &str| line("sft", out, &format!("--set train.steps=8 --set train.eps=1e-4 {sets}"));
    scratch.run(&line("whole", "")).succeeds();
    let mut child =
        scratch.command(&line("cut", "--nproc 2 --set parallel.zero=3").split(' ').collect::<Vec<_>>());
    let mut child = child.spawn().unwrap();
    scratch.wait_for_rows("cut/metrics.jsonl", 3);
    signal("KILL", child.id());
    child.wait().unwrap();
    // From one stage to the next, the run goes back to an earlier checkpoint.
    for (stage, back_to) in
        [("--nproc 4 --set parallel.zero=1", 4), ("--nproc 2 --set parallel.zero=2", 6), ("--nproc 1", 8)]
    {
        scratch.run(&line("cut", &format!("--resume {stage}"))).succeeds();
        for later in (back_to + 2..=8).step_by(2) {
            std::fs::remove_dir_all(scratch.path(&format!("cut/checkpoints/step-{later}"))).unwrap();
        }
        if back_to < 8 {
            std::fs::remove_dir_all(scratch.path("cut/final")).unwrap();
        }
    }
    let weights = |out: &str| scratch.path(&format!("{out}/final/model.safetensors"));
    let difference = worst(&weights("whole"), &weights("cut"));
    assert!(difference < 1e-5, "weights differ by {difference}");
}

#[test]
fn a_plan_gives_the_bytes_of_each_process() {
    let scratch = copied();
    let plan = |sets: &str| -> Value {
        let line = format!("plan sft --config life/sft/run.toml --json {sets}");
        let outcome = scratch.run(line.trim_end());
        outcome.succeeds();
        serde_json::from_str(&outcome.stdout).unwrap()
    };
    let bytes = |plan: &Value| {
        ["weights", "gradients", "optimizer"].map(|key| plan["memory"][0][key].as_u64().unwrap())
    };
    let alone = plan("");
    let parameters = alone["parameters"]["model"].as_u64().unwrap();
    assert_eq!(bytes(&alone), [4 * parameters, 4 * parameters, 8 * parameters]);
    for (stage, divided) in [(1, 1), (2, 2), (3, 3)] {
        let many = plan(&format!("--nproc 4 --set parallel.zero={stage}"));
        for (place, (all, own)) in bytes(&alone).into_iter().zip(bytes(&many)).enumerate() {
            // From the back: the optimizer first. Each of the parameters is rounded up to whole elements.
            let expected = if place + divided >= 3 { all / 4 } else { all };
            assert!((expected..=expected + 8 * 100).contains(&own), "stage {stage}: {own}, {expected}");
        }
        assert_eq!(many["model_bytes"].as_u64().unwrap(), bytes(&many).iter().sum::<u64>());
    }
}

#[test]
fn a_stage_that_does_not_exist_is_refused() {
    let line = "sft --config life/sft/run.toml --set out=out --set parallel.zero=4";
    copied().run(line).fails(2, &["parallel.zero", "4 is not 0, 1, 2 or 3"]);
}

/// A dozen chunks, so that weights are gathered and given back many times in a step.
#[test]
fn many_chunks_with_every_stage_equal_one_process_and_do_not_depend_on_the_budget() {
    let scratch = with_large_model();
    let weights = |out: &str| scratch.path(&format!("{out}/final/model.safetensors"));
    let run = |stage: &str, out: &str, sets: &str| {
        scratch.run(&line(stage, out, &format!("--set train.eps=1e-4 {sets}"))).succeeds();
    };
    for stage in ["sft", "rm", "ppo"] {
        let alone = format!("{stage}-whole");
        run(stage, &alone, "");
        let ways: &[&str] = match stage {
            "sft" => &[
                "--nproc 2 --set parallel.zero=1",
                "--nproc 2 --set parallel.zero=2",
                "--nproc 2 --set parallel.zero=3",
                "--nproc 4 --set parallel.zero=3 --set parallel.tensor.size=2 --set parallel.sequence.mode='megatron'",
                "--nproc 4 --set parallel.zero=3 --set parallel.pipeline.size=2",
            ],
            "rm" => &["--nproc 2 --set parallel.zero=3"],
            _ => &["--nproc 2 --set parallel.zero=2", "--nproc 2 --set parallel.zero=3"],
        };
        for (number, way) in ways.iter().enumerate() {
            let out = format!("{stage}-{number}");
            run(stage, &out, way);
            let difference = worst(&weights(&alone), &weights(&out));
            assert!(difference < 1e-5, "{stage} {way}: weights differ by {difference}");
            let limited = format!("{out}-limited");
            run(stage, &limited, &format!("{way} --set gemini.device_memory='14MiB'"));
            same_bits(&scratch, &limited, &out);
        }
    }
}
