//! Sequences that begin alike get the hidden states that each of them has alone.

use models::batch::Batch;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::decoder::shared_prefix::SharedPrefix;
use models::model_parallel::ModelParallel;
use parallel::Segmented;
use tch::{Device, Kind};

const OPTIONS: LoadOptions = LoadOptions {
    kind: Kind::Float,
    device: Device::Cpu,
    trainable: false,
    model_parallel: ModelParallel::NONE,
    memory: None,
};

const LLAMA: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 50, "hidden_size": 32,
 "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "initializer_range": 0.3}"#;
const MISTRAL: &str = r#"{"model_type": "mistral", "architectures": ["MistralForCausalLM"], "vocab_size": 50, "hidden_size": 32,
 "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "sliding_window": 4,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "initializer_range": 0.3}"#;
const BLOOM: &str = r#"{"model_type": "bloom", "architectures": ["BloomForCausalLM"], "vocab_size": 50, "hidden_size": 32,
 "n_layer": 2, "n_head": 4, "layer_norm_epsilon": 1e-5, "initializer_range": 0.3}"#;
const GPT2: &str = r#"{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50, "n_embd": 32, "n_layer": 2,
 "n_head": 4, "n_positions": 64, "initializer_range": 0.3}"#;

fn ids(seed: i64, length: i64) -> Vec<i64> {
    (0..length).map(|at| (seed * 17 + at * at * 7 + at) % 50).collect()
}

#[test]
fn branches_have_the_numbers_of_whole_rows() {
    for config in [LLAMA, MISTRAL, BLOOM, GPT2] {
        let model = CausalLm::random(Config::from_json(config, "test").unwrap(), 3, &OPTIONS).unwrap();
        let trees = [
            SharedPrefix { prefix: ids(1, 9), branches: vec![ids(2, 3), ids(3, 5), ids(4, 1)] },
            SharedPrefix { prefix: ids(5, 1), branches: vec![ids(6, 4), ids(7, 4)] },
            SharedPrefix { prefix: ids(8, 7), branches: Vec::new() },
        ];
        let found = model.decoder().forward_shared_prefixes(&trees).unwrap();
        assert_eq!(found.hidden.size()[0], 9 + 1 + 7 + 9 + 8);

        let mut checked = 0;
        for (index, tree) in trees.iter().enumerate() {
            let whole = |branch: &[i64]| {
                let row = [tree.prefix.as_slice(), branch].concat();
                model.forward_no_grad(&Batch::new(&[&row], Device::Cpu)).unwrap()
            };
            let prefix = found.hidden.narrow(0, found.prefixes[index], tree.prefix.len() as i64);
            let worst = (prefix - whole(&[])).abs().max().double_value(&[]);
            assert!(worst < 2e-5, "{config}: prefix {index} differs by {worst}");
            for (branch, &start) in tree.branches.iter().zip(&found.branches[index]) {
                let length = branch.len() as i64;
                let row = whole(branch);
                let wanted = row.narrow(0, tree.prefix.len() as i64, length);
                let worst = (found.hidden.narrow(0, start, length) - wanted).abs().max().double_value(&[]);
                assert!(worst < 2e-5, "{config}: a branch of {index} differs by {worst}");
                checked += 1;
            }
        }
        assert_eq!(checked, 5);
    }
}
