//! Copies of a weight on several processes have the same bits, whatever the mesh: with moments in bfloat16,
//! whose rounding is random, tied embeddings, a vocabulary and experts that do not divide evenly.
//!
//! Every run compares all copies before it writes `final/`, so a run that succeeds has equal ones.
//! `tests/parity.py --moments bfloat16` trains on every mesh.

use crate::harness::Scratch;
use crate::ranks::worst;
use crate::training::{copied, copy};

/// 301 tokens on two processes, and an embedding that is the head as well.
const TIED: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": true, "vocab_size": 301,
    "hidden_size": 16, "intermediate_size": 25, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128}"#;
/// Three experts on two processes.
const EXPERTS: &str = r#"{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 301, "hidden_size": 16,
    "intermediate_size": 25, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_local_experts": 3, "num_experts_per_tok": 2, "max_position_embeddings": 128, "output_router_logits": true,
    "router_aux_loss_coef": 0.02}"#;

/// A new model of this configuration, in the folder `new`.
fn with_model(config: &str) -> Scratch {
    let scratch = copied();
    scratch.write("new.json", config);
    scratch.run("model init new.json --tokenizer life/tokenizer --seed 3 --out new").succeeds();
    scratch
}

/// Moments that are rounded at random.
const ROUNDED: &str = "--set train.moments_dtype=bfloat16";

/// Trains it for `steps` steps. `mesh` are settings below `[parallel]`.
fn train(scratch: &Scratch, (processes, mesh): (usize, &str), steps: u64, more: &str) {
    let mesh: String = mesh
        .split_whitespace()
        .map(|setting| format!(" --set parallel.{setting}"))
        .collect::<Vec<_>>()
        .concat();
    let sets = "--set model.path=new --set train.lr=1e-2 --set train.eps=1e-4 --set train.micro_batch_size=1 \
                --set train.gradient_accumulation_steps=4";
    let line = format!(
        "sft --config life/sft/run.toml {sets} --set train.steps={steps} --nproc {processes}{mesh} {more}"
    );
    scratch.run(&line).succeeds();
}

#[test]
fn tied_weights_and_an_uneven_vocabulary_have_equal_copies_after_fifty_steps() {
    let scratch = with_model(TIED);
    let meshes = [
        (4, "pipeline.size=2 tensor.size=2"),
        (4, "tensor.size=2 sequence.mode='megatron' zero=1"),
        (4, "tensor.size=2 zero=3 transport=gloo"),
    ];
    for (index, mesh) in meshes.into_iter().enumerate() {
        train(&scratch, mesh, 50, &format!("{ROUNDED} --set out=way-{index} --set checkpoint.every=0"));
    }
}

#[test]
fn uneven_experts_leave_the_dense_weights_equal_after_fifty_steps() {
    let scratch = with_model(EXPERTS);
    let meshes = [(4, "expert.size=2 tensor.size=2"), (2, "expert.size=2 zero=2")];
    for (index, mesh) in meshes.into_iter().enumerate() {
        train(&scratch, mesh, 50, &format!("{ROUNDED} --set out=way-{index} --set checkpoint.every=0"));
    }
}

/// Some collectives add the terms of a sum in an order that depends on the place in the buffer: copies on two
/// tensor ranks whose other shards differ in length need the same places. That shows with three terms and
/// enough parameters, whatever the moments.
#[test]
fn copies_beside_shards_of_different_lengths_are_added_alike() {
    let deep = TIED.replace(r#""num_hidden_layers": 2"#, r#""num_hidden_layers": 12"#).replace("301", "321");
    let scratch = with_model(&deep);
    train(
        &scratch,
        (6, "tensor.size=2 transport=gloo"),
        8,
        "--set out=deep --set train.moments_dtype=float32",
    );
}

/// The copies that a checkpoint holds are those of one process. Only if the others have the same bits do all
/// go on as if nothing had happened.
#[test]
fn resumed_equals_uninterrupted_with_moments_in_bfloat16() {
    for (config, mesh, dtype) in [
        (TIED, (2, "pipeline.size=2"), "bfloat16"),
        (TIED, (2, "tensor.size=2"), "bfloat16"),
        (EXPERTS, (2, "expert.size=2"), "float32"),
    ] {
        let scratch = with_model(config);
        let more = format!("{ROUNDED} --set model.dtype={dtype} --set checkpoint.every=4");
        train(&scratch, mesh, 8, &format!("{more} --set out=whole"));
        copy(&scratch.path("whole"), &scratch.path("resumed"));
        for gone in ["final", "checkpoints/step-8"] {
            std::fs::remove_dir_all(scratch.path(&format!("resumed/{gone}"))).unwrap();
        }
        train(&scratch, mesh, 8, &format!("{more} --set out=resumed --resume"));
        for file in ["final/model.safetensors", "checkpoints/step-8/trainer_state/optimizer.safetensors"] {
            let bytes = |out: &str| std::fs::read(scratch.path(&format!("{out}/{file}"))).unwrap();
            assert!(bytes("resumed") == bytes("whole"), "{mesh:?}: {file} differs");
        }
    }
}

/// The numbers of another mesh differ by rounding, and that of a moment may then go the other way; the random
/// numbers are the same, so nothing else differs.
#[test]
fn a_run_with_moments_in_bfloat16_resumes_on_another_mesh() {
    let scratch = with_model(TIED);
    let more = format!("{ROUNDED} --set checkpoint.every=4");
    train(&scratch, (1, ""), 8, &format!("{more} --set out=whole"));
    for (index, mesh) in
        [(2, "pipeline.size=2"), (4, "tensor.size=2 zero=2"), (1, "")].into_iter().enumerate()
    {
        let out = format!("next-{index}");
        copy(&scratch.path("whole"), &scratch.path(&out));
        for gone in ["final", "checkpoints/step-8"] {
            std::fs::remove_dir_all(scratch.path(&format!("{out}/{gone}"))).unwrap();
        }
        train(&scratch, mesh, 8, &format!("{more} --set out={out} --resume"));
        let file = |out: &str| scratch.path(&format!("{out}/final/model.safetensors"));
        let difference = worst(&file(&out), &file("whole"));
        assert!(difference < 2e-3, "{mesh:?}: weights differ by {difference}");
    }
}
