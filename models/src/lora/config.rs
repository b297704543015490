//! The settings of adapters: those of PEFT's `LoraConfig`, under its names, in a run file and in
//! `adapter_config.json`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::init::{self, Init};
use super::token_rows::TokenIndices;
use crate::Error;
use crate::config::read_text;

/// The file of the settings in an adapter folder.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";

/// The name that stands for every linear layer but the head.
pub const ALL_LINEAR: &str = "all-linear";

/// The settings of the adapters of one model. The names and defaults are PEFT's, but for the layers: without
/// `target_modules`, PEFT has a list by family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoraConfig {
    /// The rank: the number of rows of `A`.
    pub r: i64,
    /// The numerator of the factor of the adapter's output, whose denominator is `r`.
    pub lora_alpha: f64,
    /// The adapted layers: names or ends of names, or one pattern of whole names, or `all-linear`, which is
    /// every linear layer but the head and the routers of experts.
    pub target_modules: Names,
    /// Layers that get no adapter, although `target_modules` names them, in the same forms. If absent, none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclude_modules: Option<Names>,
    /// The numbers of the blocks whose layers are adapted. If absent, all blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers_to_transform: Option<Vec<usize>>,
    /// Whether the denominator is the square root of `r` (rsLoRA).
    pub use_rslora: bool,
    /// Whether each output has a magnitude (DoRA).
    pub use_dora: bool,
    /// The biases that are trained beside the adapters: `none`, `lora_only` (of adapted layers) or `all`.
    pub bias: Bias,
    /// The values that new adapters begin with: `true` (`A` uniform, `B` zero) or `"gaussian"` (`A` normal
    /// with deviation `1/r`, `B` zero).
    pub init_lora_weights: Init,
    /// Other ranks, by a pattern of the end of a layer's name. If absent, `r` everywhere.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rank_pattern: BTreeMap<String, i64>,
    /// Other `lora_alpha`, by a pattern of the end of a layer's name. If absent, `lora_alpha` everywhere.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub alpha_pattern: BTreeMap<String, f64>,
    /// Modules that are trained whole, with all below them, by the ends of their names, and saved with the
    /// adapter. If absent, none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modules_to_save: Option<Vec<String>>,
    /// Tokens whose rows of the token embedding are trained, by id, or a table of such lists by the name of
    /// the embedding or the head. A head that is tied to the embedding has the same rows. If absent, no rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trainable_token_indices: Option<TokenIndices>,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self {
            r: 8,
            lora_alpha: 8.0,
            target_modules: Names::One(ALL_LINEAR.to_owned()),
            exclude_modules: None,
            layers_to_transform: None,
            use_rslora: false,
            use_dora: false,
            bias: Bias::default(),
            init_lora_weights: Init::default(),
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
            modules_to_save: None,
            trainable_token_indices: None,
        }
    }
}

/// Names of modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Names {
    /// A pattern of whole names, or [`ALL_LINEAR`].
    One(String),
    /// Names, or ends of names.
    Several(Vec<String>),
}

/// Which biases are trained beside the adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bias {
    /// No bias.
    #[default]
    None,
    /// The biases of all modules, norms among them.
    All,
    /// The biases of adapted layers.
    LoraOnly,
}

/// The content of an `adapter_config.json`, and which weights it belongs to.
#[derive(Clone, Debug)]
pub struct AdapterFile {
    /// The settings of the adapters.
    pub lora: LoraConfig,
    /// The name of the model that the adapter belongs to: a folder, or a name on the hub.
    pub base: Option<String>,
    /// The revision of that model on the hub.
    pub revision: Option<String>,
    /// The hash of that model's weights ([`WeightFolder::content_hash`]). It is kept beside the weights of
    /// the adapter, because PEFT warns of a key that it does not know.
    ///
    /// [`WeightFolder::content_hash`]: crate::weights::WeightFolder::content_hash
    pub base_hash: Option<String>,
}

impl AdapterFile {
    /// Reads `folder/adapter_config.json`. A setting that changes results and is not known is refused by
    /// name.
    pub fn from_folder(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(ADAPTER_CONFIG);
        Self::from_json(&read_text(&path)?, &path.display().to_string())
    }

    /// Parses the text of an `adapter_config.json`. `origin` names the file in errors.
    pub fn from_json(text: &str, origin: &str) -> Result<Self, Error> {
        let json = |source| Error::Json { path: origin.to_owned(), source };
        let mut map: Map<String, Value> = serde_json::from_str(text).map_err(json)?;
        let kind = map.remove("peft_type");
        if kind.as_ref().and_then(Value::as_str) != Some("LORA") {
            let value = kind.map_or_else(|| "nothing".to_owned(), |kind| kind.to_string());
            return Err(refused(origin, "peft_type", value, "adapters of the kind LORA are supported"));
        }
        let mut text_of = |key: &str| map.remove(key).and_then(|value| value.as_str().map(str::to_owned));
        let (base, revision) = (text_of("base_model_name_or_path"), text_of("revision"));

        for key in WITHOUT_EFFECT {
            map.remove(key);
        }
        // An absent setting has its default, and PEFT writes null for it.
        map.retain(|_, value| !is_unset(value));
        // EVA begins with other matrices on the same model.
        map.retain(|key, value| key != "init_lora_weights" || *value != "eva");
        let begins = map.get("init_lora_weights").and_then(Value::as_str);
        if let Some((name, fix)) = begins.and_then(|name| Some((name, init::fix_for_peft(name)?))) {
            return Err(refused(origin, "init_lora_weights", format!("{name:?}"), fix));
        }
        if let Some((key, value)) = map.iter().find(|(key, _)| !KNOWN.contains(&key.as_str())) {
            let fix = "train the adapter without it, or merge the adapter into its model with PEFT first";
            return Err(refused(origin, key, value.to_string(), fix));
        }
        let lora: LoraConfig = serde_json::from_value(Value::Object(map)).map_err(json)?;
        Ok(Self { lora, base, revision, base_hash: None })
    }

    /// The text of an `adapter_config.json` for PEFT. `is_classifier` says that the model has a scalar head.
    pub fn to_json(&self, is_classifier: bool, is_conv1d: bool) -> String {
        let mut map = Map::new();
        let mut set = |key: &str, value: Value| drop(map.insert(key.to_owned(), value));
        set("peft_type", "LORA".into());
        set("task_type", if is_classifier { "SEQ_CLS" } else { "CAUSAL_LM" }.into());
        set("base_model_name_or_path", self.base.clone().into());
        set("revision", self.revision.clone().into());
        set("inference_mode", true.into());
        set("lora_dropout", 0.0.into());
        set("fan_in_fan_out", is_conv1d.into());
        let lora = serde_json::to_value(&self.lora).expect("the settings are plain data");
        map.extend(lora.as_object().cloned().unwrap_or_default());
        format!("{:#}\n", Value::Object(map))
    }
}

/// Settings that do not change what a loaded adapter computes. Dropout is always off, and the layout of a
/// layer's weight is known from the model.
const WITHOUT_EFFECT: [&str; 10] = [
    "auto_mapping",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "task_type",
    "layers_pattern",
];

/// The settings of [`LoraConfig`].
const KNOWN: [&str; 13] = [
    "r",
    "lora_alpha",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "use_rslora",
    "use_dora",
    "bias",
    "init_lora_weights",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "trainable_token_indices",
];

/// Whether a value is the one that PEFT writes for a setting that is not used.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Number(_) => false,
    }
}

pub(super) fn refused(origin: &str, key: &str, value: String, fix: &str) -> Error {
    Error::Unsupported { path: origin.to_owned(), key: key.to_owned(), value, fix: fix.to_owned() }
}
