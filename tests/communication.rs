//! What the planner says that ranks send, beside what ranks send in real runs.
//!
//! A run counts all that its ranks send (`communication.json`), and the difference of a run of three steps and
//! one of two is a step. All rows are equal, so that the mean row of a prediction is every row.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::Scratch;

const CONFIG: &str = r#"{
  "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64,
  "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
  "tie_word_embeddings": true
}"#;

/// Collectives and bytes by what they are for.
type Sent = BTreeMap<&'static str, [f64; 2]>;

fn scratch() -> Scratch {
    let scratch = crate::training::copied();
    scratch.write("config.json", CONFIG);
    scratch.run("model init config.json --tokenizer life/sft/final --seed 3 --out model").succeeds();
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let turns = [turn("user", "how do i greet?"), turn("assistant", "good day to you all")];
    let row = format!("{}\n", json!({"messages": turns}));
    scratch.write("rows.jsonl", &row.repeat(32));
    scratch.write(
        "run.toml",
        "[model]\npath = \"model\"\n[data]\ntrain = \"rows.jsonl\"\nmax_length = 128\n[train]\nlr = 1e-3\n\
         micro_batch_size = 2\ngradient_accumulation_steps = 8\n",
    );
    scratch
}

/// What a rank sends in a step of a run with these settings, by purpose.
fn recorded(scratch: &Scratch, nproc: usize, sets: &str) -> Vec<Sent> {
    let parts = [2, 3].map(|steps| {
        let out = format!("out-{}-{steps}", sets.len());
        let run =
            format!("sft --config run.toml --nproc {nproc} --set out={out} --set train.steps={steps} {sets}");
        scratch.run(run.trim()).succeeds();
        let text = std::fs::read_to_string(scratch.path(&format!("{out}/communication.json"))).unwrap();
        std::fs::remove_dir_all(scratch.path(&out)).unwrap();
        serde_json::from_str::<Vec<BTreeMap<String, BTreeMap<String, Value>>>>(&text).unwrap()
    });
    let mut ranks = Vec::new();
    for (shorter, longer) in parts[0].iter().zip(&parts[1]) {
        let mut sent = Sent::new();
        for (sign, groups) in [(-1.0, shorter), (1.0, longer)] {
            for (group, collectives) in groups {
                // Single numbers of a step are no tensors.
                for (_, counted) in collectives.iter().filter(|(collective, _)| *collective != "numbers") {
                    let of_purpose = sent.entry(purpose_of(group)).or_default();
                    for (sum, key) in of_purpose.iter_mut().zip(["calls", "bytes"]) {
                        *sum += sign * counted[key].as_f64().unwrap();
                    }
                }
            }
        }
        sent.retain(|_, counted| *counted != [0.0; 2]);
        ranks.push(sent);
    }
    ranks
}

/// What a group of ranks exchanges tensors for in a training step.
fn purpose_of(group: &str) -> &'static str {
    match group {
        "tensor" => "tensor",
        "sequence" => "sequence",
        "expert" => "experts",
        "pipeline" => "pipeline",
        _ if group.ends_with("(weights)") => "weights",
        _ => "gradients",
    }
}

/// The same as the planner says, for each rank of the pipeline.
fn planned(scratch: &Scratch, nproc: usize, sets: &str) -> Vec<Sent> {
    let plan = format!("plan sft --config run.toml --nproc {nproc} --json --set out=planned {sets}");
    let plan = scratch.run(plan.trim()).json();
    let of_rank = |exchanges: &Value| {
        let mut sent = Sent::new();
        for exchange in exchanges.as_array().unwrap() {
            // A group of tensor ranks adds up gradients of what each of them has whole, too.
            let purpose = match (exchange["purpose"].as_str().unwrap(), sets.contains("megatron")) {
                ("gradients", true) if exchange["ranks"] == nproc => "tensor",
                (purpose, _) => {
                    let known = ["tensor", "sequence", "experts", "pipeline", "gradients", "weights"];
                    known.into_iter().find(|known| *known == purpose).unwrap()
                }
            };
            let of_purpose = sent.entry(purpose).or_default();
            for (sum, key) in of_purpose.iter_mut().zip(["calls", "bytes"]) {
                *sum += exchange[key].as_f64().unwrap();
            }
        }
        sent
    };
    plan["communication"].as_array().unwrap().iter().map(of_rank).collect()
}

#[test]
fn ranks_send_what_the_planner_says() {
    let scratch = scratch();
    for (nproc, sets) in [
        (2, "tensor.size=2"),
        (4, "tensor.size=4"),
        (2, "tensor.size=2 sequence.mode=megatron"),
        (2, "sequence.size=2 sequence.mode=ulysses"),
        (4, "sequence.size=4 sequence.mode=ring"),
        (2, "pipeline.size=2"),
        (2, "pipeline.size=2 pipeline.schedule=interleaved"),
        (2, "pipeline.size=2 pipeline.schedule=zb-v"),
        (4, "data=2 tensor.size=2"),
        (4, "pipeline.size=2 tensor.size=2"),
        (8, "pipeline.size=2 data=2 tensor.size=2"),
        (8, "data=2 sequence.size=2 sequence.mode=ulysses tensor.size=2"),
    ] {
        let sets: Vec<String> = sets.split(' ').map(|set| format!("--set parallel.{set}")).collect();
        let sets = sets.join(" ");
        let (recorded, planned) = (recorded(&scratch, nproc, &sets), planned(&scratch, nproc, &sets));
        for (rank, sent) in recorded.iter().enumerate() {
            // Ranks of a pipeline stage are consecutive.
            let planned = &planned[rank * planned.len() / nproc];
            assert_eq!(
                sent.keys().collect::<Vec<_>>(),
                planned.keys().collect::<Vec<_>>(),
                "{sets}: {sent:?}, {planned:?}"
            );
            for (purpose, [calls, bytes]) in sent {
                let [planned_calls, planned_bytes] = planned[purpose];
                assert_eq!(*bytes, planned_bytes, "{sets}, rank {rank}, {purpose}: {sent:?}, {planned:?}");
                // Gradients are reduced bucket by bucket.
                let is_bucketed = *purpose == "gradients";
                assert!(is_bucketed || *calls == planned_calls, "{sets}: {sent:?}, {planned:?}");
            }
        }
    }
}

#[test]
fn zero_sends_what_the_planner_says_and_the_padding_of_chunks() {
    let scratch = scratch();
    for zero in [1, 2, 3] {
        let sets = format!("--set parallel.zero={zero}");
        let (recorded, planned) = (recorded(&scratch, 2, &sets), planned(&scratch, 2, &sets));
        for purpose in ["gradients", "weights"] {
            let [found, wanted] = [&recorded[0], &planned[0]].map(|sent| sent[purpose][1]);
            // A tied embedding is gathered for the head as well.
            let most = if zero == 3 && purpose == "weights" { 1.3 } else { 1.1 };
            assert!(found >= wanted && found < most * wanted, "{zero}, {purpose}: {found}, {wanted}");
        }
    }
}
