//! Resolves the keys of a `config.json` to an [`Architecture`], with one function per family.
//!
//! A key that changes the model's results is either read here or reported as an error. Keys that matter only
//! for dropout, text generation or another head are ignored.

mod bloom;
mod defaults;
mod gpt2;
mod llama;
mod neox;
mod opt;
mod qwen;

use serde_json::{Value, json};

use crate::Error;
use crate::architecture::Architecture;
use crate::fields::Fields;

/// Resolves a configuration by its `model_type`.
pub(crate) fn resolve(fields: &Fields<'_>) -> Result<Architecture, Error> {
    refuse_foreign(fields)?;

    let architecture = match fields.text_or("model_type", "")? {
        "llama" => llama::llama(fields),
        "mistral" => llama::mistral(fields),
        "qwen2" => qwen::qwen2(fields),
        "mixtral" => llama::mixtral(fields),
        "qwen3" => qwen::qwen3(fields),
        "qwen2_moe" => qwen::qwen2_moe(fields),
        "qwen3_moe" => qwen::qwen3_moe(fields),
        "gpt2" => gpt2::resolve(fields),
        "opt" => opt::resolve(fields),
        "bloom" => bloom::resolve(fields),
        "gpt_neox" => neox::resolve(fields),
        other => Err(fields.unsupported(
            "model_type",
            &json!(other),
            "the known ones are llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, gpt2, opt, bloom and gpt_neox",
        )),
    }?;

    check_heads(fields, &architecture)?;
    check_experts(fields, &architecture)?;
    check_total(fields, &architecture)?;
    Ok(architecture)
}

/// The maximum number of parameters of a configuration, 100 times the size of the largest existing models.
const MOST_PARAMETERS: f64 = 1e14;

/// Returns an error if the sizes are valid one by one, but together give more parameters than any machine can
/// hold.
fn check_total(fields: &Fields<'_>, architecture: &Architecture) -> Result<(), Error> {
    let parameters = architecture.num_parameters();
    if parameters <= MOST_PARAMETERS {
        return Ok(());
    }
    Err(Error::TooManyParameters {
        path: fields.origin().to_owned(),
        parameters,
        num_layers: architecture.num_layers,
        hidden_size: architecture.hidden_size,
        vocab_size: architecture.vocab_size,
        experts: architecture.experts.as_ref().map_or(0, |experts| experts.num_experts),
    })
}

/// Returns an error for keys that would change the results of any family.
fn refuse_foreign(fields: &Fields<'_>) -> Result<(), Error> {
    let off = [json!(false)];
    let one = [json!(1)];
    let empty = [json!({}), json!([])];

    let rules: [(&str, &[Value], &str); 17] = [
        (
            "auto_map",
            &[],
            "the checkpoint brings its own Python code; use one that transformers supports without custom code",
        ),
        ("pruned_heads", &empty, "prune the weights themselves and remove the key"),
        ("is_encoder_decoder", &off, "only decoders are implemented"),
        ("add_cross_attention", &off, "only decoders without an encoder are implemented"),
        ("tie_encoder_decoder", &off, "only decoders are implemented"),
        ("is_causal", &[json!(true)], "only causal attention is implemented"),
        ("use_bidirectional_attention", &off, "only causal attention is implemented"),
        ("attn_logit_softcapping", &[], "soft capping is not implemented"),
        ("final_logit_softcapping", &[], "soft capping is not implemented"),
        (
            "query_pre_attn_scalar",
            &[],
            "the scale of attention is 1/sqrt(head_dim); use a checkpoint of another family",
        ),
        ("embedding_multiplier", &one, "multipliers are not implemented"),
        ("residual_multiplier", &one, "multipliers are not implemented"),
        ("attention_multiplier", &[], "multipliers are not implemented"),
        ("logits_scaling", &one, "multipliers are not implemented"),
        ("logit_scale", &one, "multipliers are not implemented"),
        ("per_layer_config", &empty, "layers with different settings are not implemented"),
        ("alibi", &off, "linear biases exist in model_type bloom only"),
    ];

    rules.iter().try_for_each(|(key, neutral, fix)| fields.require_neutral(key, neutral, fix))
}

fn check_heads(fields: &Fields<'_>, architecture: &Architecture) -> Result<(), Error> {
    let (heads, kv_heads) = (architecture.num_heads, architecture.num_kv_heads);
    if heads % kv_heads == 0 {
        return Ok(());
    }
    Err(fields.wrong(
        "num_key_value_heads",
        &format!("a divisor of the {heads} attention heads"),
        &json!(kv_heads),
    ))
}

fn check_experts(fields: &Fields<'_>, architecture: &Architecture) -> Result<(), Error> {
    match &architecture.experts {
        Some(experts) if experts.num_experts_per_tok > experts.num_experts => Err(fields.wrong(
            "num_experts_per_tok",
            &format!("at most the {} experts", experts.num_experts),
            &json!(experts.num_experts_per_tok),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 6,
        "num_hidden_layers": 1, "num_attention_heads": 2}"#;

    fn refusal(from: &str, to: &str) -> String {
        Config::from_json(&LLAMA.replacen(from, to, 1), "dir/config.json").unwrap_err().to_string()
    }

    #[test]
    fn what_would_change_the_numbers_is_refused_by_name() {
        for (key, value) in [
            ("auto_map", r#"{"AutoModel": "x.Y"}"#),
            ("pruned_heads", r#"{"0": [1]}"#),
            ("is_encoder_decoder", "true"),
            ("final_logit_softcapping", "30.0"),
            ("hidden_act", r#""relu6""#),
            ("rope_scaling", r#"{"type": "su"}"#),
        ] {
            let error = refusal("{", &format!("{{\"{key}\": {value}, "));
            assert!(error.starts_with("dir/config.json: `") && error.contains(key), "{error}");
        }
        assert!(
            refusal("llama", "mamba").contains("`model_type` = \"mamba\" is not supported: the known ones")
        );
    }

    #[test]
    fn neutral_values_pass() {
        let text = LLAMA.replacen(
            '{',
            r#"{"pruned_heads": {}, "is_encoder_decoder": false, "logit_scale": 1.0, "#,
            1,
        );
        Config::from_json(&text, "test").unwrap();
    }

    #[test]
    fn missing_and_impossible_sizes_are_named() {
        assert!(
            refusal("\"hidden_size\": 4,", "")
                .contains("`hidden_size` must be a whole number above zero, got nothing")
        );
        assert!(
            refusal("\"num_attention_heads\": 2", "\"num_attention_heads\": 3").contains("`hidden_size`")
        );
        assert!(refusal("{", "{\"num_key_value_heads\": 3, ").contains("a divisor of the 2 attention heads"));
        assert!(refusal("\"vocab_size\": 8", "\"vocab_size\": \"x\"").contains("`vocab_size`"));
    }
}
