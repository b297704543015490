//! The `quantization_config` of a `config.json`, as transformers 5.23 writes it for models of
//! bitsandbytes.

use serde_json::{Value, json};

use super::kind::Quantization;
use crate::Error;
use crate::fields::Fields;

/// The key in `config.json`.
pub(crate) const KEY: &str = "quantization_config";

const METHODS: &str = "of quantised models, those of bitsandbytes are read: take the model that it was made from, or save \
                       it dequantized (in bf16 or fp32) with transformers first";

/// How the files of a model hold the weights of its linear layers; `None` for numbers.
pub(crate) fn quantization(fields: &Fields<'_>) -> Result<Option<Quantization>, Error> {
    let Some(settings) = fields.object(KEY)? else { return Ok(None) };
    let [four, eight] = ["load_in_4bit", "load_in_8bit"];
    let (is_four, is_eight) = (settings.flag_or(four, false)?, settings.flag_or(eight, false)?);
    // Early files of bitsandbytes name no method.
    let method = settings.get("quant_method");
    if !method.map_or(is_four || is_eight, |method| method == "bitsandbytes") {
        return Err(settings.unsupported("quant_method", method.unwrap_or(&Value::Null), METHODS));
    }
    match (is_four, is_eight) {
        (true, false) => check_nf4(&settings).map(|()| Some(Quantization::Nf4)),
        (false, true) => Ok(Some(Quantization::Int8)),
        _ => {
            let expected = "true, or `load_in_8bit`, and not both";
            Err(settings.wrong(four, expected, settings.get(four).unwrap_or(&Value::Null)))
        }
    }
}

/// Returns an error for four bits that are not NF4 in bytes. The defaults are those of transformers.
fn check_nf4(settings: &Fields<'_>) -> Result<(), Error> {
    for (key, default, wanted) in
        [("bnb_4bit_quant_type", "fp4", "nf4"), ("bnb_4bit_quant_storage", "uint8", "uint8")]
    {
        let found = settings.text_or(key, default)?;
        if found != wanted {
            let fix =
                format!("quantise the original model again with {key}={wanted:?}, or with `model quantize`");
            return Err(settings.unsupported(key, &json!(found), &fix));
        }
    }
    Ok(())
}

/// The value of [`KEY`] for a model whose matrices were numbers of `dtype`, a name of torch.
pub(crate) fn to_json(quantization: Quantization, dtype: &str) -> Value {
    let is_nf4 = quantization == Quantization::Nf4;
    json!({
        "_load_in_4bit": is_nf4,
        "_load_in_8bit": !is_nf4,
        "bnb_4bit_compute_dtype": dtype,
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": if is_nf4 { "nf4" } else { "fp4" },
        "bnb_4bit_use_double_quant": is_nf4,
        "llm_int8_enable_fp32_cpu_offload": false,
        "llm_int8_has_fp16_weight": false,
        "llm_int8_skip_modules": null,
        "llm_int8_threshold": 6.0,
        "load_in_4bit": is_nf4,
        "load_in_8bit": !is_nf4,
        "quant_method": "bitsandbytes",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn with(settings: &str) -> Result<Option<Quantization>, Error> {
        let text = format!(
            r#"{{"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 6,
            "num_hidden_layers": 1, "num_attention_heads": 2, "quantization_config": {settings}}}"#
        );
        Ok(Config::from_json(&text, "dir/config.json")?.quantization())
    }

    #[test]
    fn what_bitsandbytes_saves_is_known() {
        for quantization in [Quantization::Nf4, Quantization::Int8] {
            let settings = to_json(quantization, "bfloat16").to_string();
            assert_eq!(with(&settings).unwrap(), Some(quantization));
        }
        assert_eq!(with("null").unwrap(), None);
        assert_eq!(with(r#"{"load_in_8bit": true}"#).unwrap(), Some(Quantization::Int8), "an early file");
    }

    #[test]
    fn other_codes_are_refused_by_name() {
        for (settings, key, word) in [
            (r#"{"bits": 4}"#, "quant_method", "bitsandbytes"),
            (r#"{"quant_method": "gptq", "bits": 4}"#, "quant_method", "gptq"),
            (r#"{"load_in_4bit": true}"#, "bnb_4bit_quant_type", "fp4"),
            (r#"{"load_in_4bit": true, "bnb_4bit_quant_type": "fp4"}"#, "bnb_4bit_quant_type", "nf4"),
            (
                r#"{"load_in_4bit": true, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": "bfloat16"}"#,
                "bnb_4bit_quant_storage",
                "uint8",
            ),
            (r#"{"load_in_4bit": true, "load_in_8bit": true}"#, "load_in_4bit", "not both"),
            (r#"{"quant_method": "bitsandbytes"}"#, "load_in_4bit", "load_in_8bit"),
            (r#"{"load_in_4bit": "yes"}"#, "load_in_4bit", "true or false"),
        ] {
            let error = with(settings).unwrap_err().to_string();
            let named = format!("dir/config.json: `quantization_config.{key}`");
            assert!(error.starts_with(&named) && error.contains(word), "{error}");
        }
    }
}
