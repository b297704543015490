//! The layers of a model by their names, which the settings of adapters match.

use models::config::Config;
use models::decoder::load::weight_specs;
use models::decoder::{DecoderSpec, HeadKind, LoadOptions};
use serde::Serialize;
use tch::{Device, Kind};

/// Layers with the same name and the same shape.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Layers {
    /// The name inside of a block, or the whole name of a layer outside. A number in it is `*`.
    name: String,
    /// The shape of the weight, as it is stored.
    weight: Vec<i64>,
    count: usize,
    in_blocks: bool,
}

/// The layers that have a weight, first those of blocks, in the order in which a model uses them.
pub(super) fn of(config: &Config) -> anyhow::Result<Vec<Layers>> {
    let head = if config.is_sequence_classification() { HeadKind::Scalar } else { HeadKind::Vocabulary };
    let options = LoadOptions::frozen(Kind::Float, Device::Cpu);
    let specs = weight_specs(DecoderSpec::whole(config.clone(), head), &options)?;
    let blocks = format!("{}.", config.architecture().names.layers);

    let mut layers: Vec<Layers> = Vec::new();
    for spec in specs {
        let Some(module) = spec.parameter.name.strip_suffix(".weight") else { continue };
        let inside = module.strip_prefix(&blocks).and_then(|rest| rest.split_once('.'));
        let name = without_numbers(inside.map_or(module, |(_, name)| name));
        match layers.iter_mut().find(|layers| layers.name == name && layers.weight == spec.shape) {
            Some(layers) => layers.count += 1,
            None => layers.push(Layers { name, weight: spec.shape, count: 1, in_blocks: inside.is_some() }),
        }
    }
    layers.sort_by_key(|layers| !layers.in_blocks);
    Ok(layers)
}

/// A name with `*` for each of its parts that is a number.
fn without_numbers(name: &str) -> String {
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}

/// The layers as text, one name per line.
pub(super) fn table(layers: &[Layers]) -> String {
    let width = layers.iter().map(|layers| layers.name.len()).max().unwrap_or(0);
    let line = |layers: &Layers| {
        let weight = format!("{:?}", layers.weight);
        format!("  {:<width$}  {weight:<16}{}", layers.name, layers.count)
    };
    let section = |title: &str, in_blocks: bool| {
        let lines = layers.iter().filter(|layers| layers.in_blocks == in_blocks).map(line);
        std::iter::once(title.to_owned()).chain(lines).collect::<Vec<_>>().join("\n")
    };
    let inside = section("layers in blocks, with the shape of the weight and their number", true);
    format!("{inside}\n{}", section("layers outside of blocks", false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers_of(config: &str) -> Vec<Layers> {
        of(&Config::from_json(config, "config.json").unwrap()).unwrap()
    }

    fn entry(name: &str, weight: &[i64], count: usize, in_blocks: bool) -> Layers {
        Layers { name: name.to_owned(), weight: weight.to_vec(), count, in_blocks }
    }

    /// Three blocks, of which the second has no experts, and a head of its own.
    #[test]
    fn layers_of_one_name_are_one_line() {
        let layers = layers_of(
            r#"{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 50, "hidden_size": 16,
                "intermediate_size": 24, "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2,
                "mlp_only_layers": [1], "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
                "head_dim": 8, "tie_word_embeddings": false}"#,
        );
        let expected = [
            entry("input_layernorm", &[16], 3, true),
            entry("self_attn.q_proj", &[32, 16], 3, true),
            entry("self_attn.k_proj", &[16, 16], 3, true),
            entry("self_attn.o_proj", &[16, 32], 3, true),
            entry("mlp.gate", &[4, 16], 2, true),
            entry("mlp.experts.*.gate_proj", &[8, 16], 8, true),
            entry("mlp.experts.*.down_proj", &[16, 8], 8, true),
            entry("mlp.gate_proj", &[24, 16], 1, true),
            entry("mlp.down_proj", &[16, 24], 1, true),
            entry("model.embed_tokens", &[50, 16], 1, false),
            entry("model.norm", &[16], 1, false),
            entry("lm_head", &[50, 16], 1, false),
        ];
        for one in &expected {
            assert!(layers.contains(one), "{one:?} in {layers:#?}");
        }
        let outside: Vec<&Layers> = layers.iter().skip_while(|layers| layers.in_blocks).collect();
        assert_eq!(outside, expected[9..].iter().collect::<Vec<_>>());
    }

    /// GPT-2 stores its weights as `[in, out]`, and ties its head to the embedding.
    #[test]
    fn the_table_says_what_each_layer_is_called() {
        let layers = layers_of(
            r#"{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50, "n_embd": 8, "n_layer": 2,
                "n_head": 2, "n_positions": 32}"#,
        );
        let expected = "\
layers in blocks, with the shape of the weight and their number
  ln_1         [8]             2
  attn.c_attn  [8, 24]         2
  attn.c_proj  [8, 8]          2
  ln_2         [8]             2
  mlp.c_fc     [8, 32]         2
  mlp.c_proj   [32, 8]         2
layers outside of blocks
  transformer.wte  [50, 8]  1
  transformer.wpe  [32, 8]  1
  transformer.ln_f  [8]  1";
        let table = table(&layers);
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed(&table), squeezed(expected), "{table}");
    }
}
