//! Sequences that begin alike get the hidden states and gradients that each of them has alone, and so do the
//! tokens that are the only outputs of a batch.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use models::batch::Batch;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::model_parallel::ModelParallel;
use parallel::Segmented;
use parallel::segment::ForwardPass;
use tch::{Device, Kind, Tensor};

const OPTIONS: LoadOptions = LoadOptions {
    kind: Kind::Float,
    device: Device::Cpu,
    trainable: true,
    model_parallel: ModelParallel::NONE,
    memory: None,
    quantize: None,
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

const NEOX: &str = r#"{"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "vocab_size": 50, "hidden_size": 32,
 "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64, "hidden_act": "gelu",
 "rotary_pct": 0.5, "use_parallel_residual": true, "initializer_range": 0.3}"#;
const OPT: &str = r#"{"model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": 50, "hidden_size": 32, "ffn_dim": 48,
 "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64, "word_embed_proj_dim": 16,
 "do_layer_norm_before": false, "activation_function": "relu", "init_std": 0.3}"#;
const MIXTRAL: &str = r#"{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 50, "hidden_size": 32,
 "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
 "num_experts_per_tok": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "initializer_range": 0.3}"#;
/// Every order of norms and residuals, every kind of mask and of positions, and experts.
const FAMILIES: [&str; 7] = [LLAMA, MISTRAL, BLOOM, GPT2, NEOX, OPT, MIXTRAL];

fn model(config: &str) -> CausalLm {
    CausalLm::random(Config::from_json(config, "test").unwrap(), 3, &OPTIONS).unwrap()
}

fn ids(seed: i64, length: i64) -> Vec<i64> {
    (0..length).map(|at| (seed * 17 + at * at * 7 + at) % 50).collect()
}

/// The final hidden states of a batch, and the gradients of their weighted sum for all parameters. The
/// weights are one for each token, `[M]`.
fn outcome(model: &CausalLm, batch: &Batch, weights: &[f32]) -> (Tensor, Vec<Tensor>) {
    let forward = ForwardPass::run(model, batch, false).unwrap();
    let hidden = forward.hidden().detach().copy();
    let columns = Tensor::arange(hidden.size()[1], (Kind::Float, Device::Cpu)).cos();
    let loss = (forward.hidden() * columns * Tensor::from_slice(weights).unsqueeze(1)).sum(Kind::Float);
    let mut sums: Vec<Tensor> =
        model.parameters().iter().map(|parameter| parameter.tensor.zeros_like()).collect();
    let mut add = |_, index: usize, grad: Tensor| {
        sums[index] = &sums[index] + grad;
        Ok(())
    };
    forward.backward::<parallel::Error>(&loss, &mut add).unwrap();
    (hidden, sums)
}

fn assert_close(what: &str, found: &Tensor, wanted: &Tensor) {
    assert_eq!(found.size(), wanted.size(), "{what}");
    let scale = wanted.abs().max().double_value(&[]).max(1.0);
    let worst = (found - wanted).abs().max().double_value(&[]);
    assert!(worst < 2e-5 * scale, "{what}: {worst} at numbers up to {scale}");
}

fn assert_same_gradients(config: &str, model: &CausalLm, found: &[Tensor], wanted: &[Tensor]) {
    for ((parameter, found), wanted) in model.parameters().iter().zip(found).zip(wanted) {
        assert_close(&format!("{config}: the gradient of {}", parameter.name), found, wanted);
    }
}

#[test]
fn rows_that_continue_another_have_the_numbers_of_whole_rows() {
    // Row 2 has three continuations, one of them apart from the others; row 3 has one token and two
    // continuations of equal length; row 6 has none. A prefix of 8 shares a group with the prefix of 9.
    let rows = [ids(2, 3), ids(3, 5), ids(1, 9), ids(5, 1), ids(6, 4), ids(7, 4), ids(8, 7), ids(4, 1)];
    let rows: Vec<Vec<i64>> = rows.into_iter().chain([ids(9, 8), ids(10, 5)]).collect();
    let prefixes = [Some(2), Some(2), None, None, Some(3), Some(3), None, Some(2), None, Some(8)];
    let views: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
    let weights: Vec<f32> = (0..47).map(|token| (token as f32 * 0.7).sin()).collect();

    for config in FAMILIES {
        let model = model(config);
        let shared = Batch::with_prefixes(&views, &prefixes, Device::Cpu);
        let starts = shared.first_indices();
        let (hidden, gradients) = outcome(&model, &shared, &weights);
        assert_eq!(hidden.size()[0], 47);
        assert_close(
            &format!("{config}: without a graph"),
            &model.forward_no_grad(&shared).unwrap(),
            &hidden,
        );

        // Each sequence on its own; its prefix has no weight there, because the prefix is a row as well.
        let mut sums: Vec<Tensor> = gradients.iter().map(Tensor::zeros_like).collect();
        for (row, prefix) in prefixes.iter().enumerate() {
            let before = prefix.map_or(&[][..], |prefix| views[prefix]);
            let (past, count) = (before.len(), rows[row].len());
            let start = starts[row] as usize;
            let own = [vec![0.0; past], weights[start..start + count].to_vec()].concat();
            let whole = Batch::new(&[&[before, views[row]].concat()], Device::Cpu);
            let (wanted, terms) = outcome(&model, &whole, &own);
            let found = hidden.narrow(0, starts[row], count as i64);
            assert_close(
                &format!("{config}: row {row}"),
                &found,
                &wanted.narrow(0, past as i64, count as i64),
            );
            for (sum, term) in sums.iter_mut().zip(terms) {
                *sum = &*sum + term;
            }
        }
        assert_same_gradients(config, &model, &gradients, &sums);
    }
}

#[test]
fn outputs_have_the_numbers_that_they_have_among_all_tokens() {
    let rows = [ids(1, 9), ids(2, 3), ids(3, 5)];
    let views: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
    // Some tokens of the first row, none of the second, and one of the third row twice.
    let outputs = [4_i64, 5, 8, 16, 16, 13];
    let weights = [1.0_f32, -0.5, 0.25, 2.0, -1.0, 0.75];
    let mut all = [0.0_f32; 17];
    for (&token, weight) in outputs.iter().zip(weights) {
        all[token as usize] += weight;
    }

    for config in FAMILIES {
        let model = model(config);
        let (hidden, wanted) = outcome(&model, &Batch::new(&views, Device::Cpu), &all);
        let batch = Batch::new(&views, Device::Cpu).with_outputs(&outputs);
        let (found, gradients) = outcome(&model, &batch, &weights);
        let hidden = hidden.index_select(0, &Tensor::from_slice(&outputs));
        assert_close(&format!("{config}: hidden states"), &found, &hidden);
        assert_close(&format!("{config}: without a graph"), &model.forward_no_grad(&batch).unwrap(), &hidden);
        assert_same_gradients(config, &model, &gradients, &wanted);
        assert_eq!(
            model.forward_no_grad(&Batch::new(&views, Device::Cpu).with_outputs(&[])).unwrap().size()[0],
            0
        );
    }
}
