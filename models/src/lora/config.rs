//! Which layers of a model get an adapter, and of what kind: the settings of PEFT's `LoraConfig`, under its
//! names, in a run file and in `adapter_config.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use fancy_regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::init::{self, Init};
use super::module_names;
use super::token_rows::TokenIndices;
use crate::Error;
use crate::config::read_text;

/// The file of the settings in an adapter folder.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";

/// The name that stands for every linear layer but the head.
pub const ALL_LINEAR: &str = "all-linear";

/// A pattern from a file gives up after this many steps.
const BACKTRACK_LIMIT: usize = 100_000;

/// The largest rank.
const LARGEST_RANK: i64 = 1 << 16;

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

/// The adapter of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraTarget {
    /// The rank.
    pub r: i64,
    /// The factor of the adapter's output.
    pub scaling: f64,
}

/// The settings of an adapter, checked and with compiled patterns.
#[derive(Clone, Debug)]
pub struct LoraPlan {
    pub(super) file: AdapterFile,
    /// Where the settings came from, for errors.
    pub(super) origin: String,
    targets: Matcher,
    excluded: Option<Matcher>,
    ranks: Vec<(Regex, i64)>,
    alphas: Vec<(Regex, f64)>,
}

/// Tells whether a module has a name.
#[derive(Clone, Debug)]
enum Matcher {
    AllLinear,
    Whole(Regex),
    Ends(Vec<String>),
}

impl AdapterFile {
    /// Checks and compiles the settings. `origin` names where they came from, in errors.
    pub fn plan(&self, origin: &str) -> Result<LoraPlan, Error> {
        let lora = &self.lora;
        let refuse = |key: &str, expected: &str, got: String| {
            let (path, key, expected) = (origin.to_owned(), key.to_owned(), expected.to_owned());
            Err(Error::Field { path, key, expected, got })
        };
        let is_rank = |r: i64| (1..=LARGEST_RANK).contains(&r);
        if let Some(r) = std::iter::once(&lora.r).chain(lora.rank_pattern.values()).find(|r| !is_rank(**r)) {
            return refuse("r", &format!("a whole number from 1 to {LARGEST_RANK}"), r.to_string());
        }
        let alphas = || std::iter::once(&lora.lora_alpha).chain(lora.alpha_pattern.values());
        if let Some(alpha) = alphas().find(|alpha| !alpha.is_finite() || **alpha <= 0.0) {
            return refuse("lora_alpha", "a finite number above zero", alpha.to_string());
        }

        module_names::check_saved(saved_of(lora), origin)?;
        let ends = |key: &'static str| {
            move |pattern: &String| compile(origin, key, &format!(r"\A(?:.*\.)?(?:{pattern})\z"))
        };
        let excluded = lora.exclude_modules.as_ref();
        Ok(LoraPlan {
            targets: Matcher::new(&lora.target_modules, origin, "target_modules")?,
            excluded: excluded.map(|names| Matcher::new(names, origin, "exclude_modules")).transpose()?,
            ranks: compiled(&lora.rank_pattern, ends("rank_pattern"))?,
            alphas: compiled(&lora.alpha_pattern, ends("alpha_pattern"))?,
            origin: origin.to_owned(),
            file: self.clone(),
        })
    }
}

/// Compiles the keys of a map of patterns.
fn compiled<T: Copy>(
    patterns: &BTreeMap<String, T>,
    compile: impl Fn(&String) -> Result<Regex, Error>,
) -> Result<Vec<(Regex, T)>, Error> {
    patterns.iter().map(|(pattern, value)| Ok((compile(pattern)?, *value))).collect()
}

fn compile(origin: &str, key: &str, pattern: &str) -> Result<Regex, Error> {
    RegexBuilder::new(pattern).backtrack_limit(BACKTRACK_LIMIT).build().map_err(|error| Error::Field {
        path: origin.to_owned(),
        key: key.to_owned(),
        expected: "a pattern".to_owned(),
        got: error.to_string(),
    })
}

impl LoraPlan {
    /// The settings.
    pub fn config(&self) -> &LoraConfig {
        &self.file.lora
    }

    /// The settings, and the model that they are for.
    pub fn file(&self) -> &AdapterFile {
        &self.file
    }

    /// Sets the hash of the weights that the adapter is trained on.
    pub(crate) fn set_base_hash(&mut self, hash: String) {
        self.file.base_hash = Some(hash);
    }

    /// What is saved of an adapter on the linear layers `adapted`: the settings with the names of layers in
    /// place of a word for all, because PEFT would take other layers for it.
    pub(crate) fn saved_file(&self, adapted: &[String], layers: &str) -> AdapterFile {
        let mut file = self.file.clone();
        if matches!(self.targets, Matcher::AllLinear) {
            let in_block = |module: &String| {
                let rest = module.strip_prefix(layers)?.strip_prefix('.')?;
                Some(rest.split_once('.')?.1.to_owned())
            };
            let names: BTreeSet<String> =
                adapted.iter().map(|module| in_block(module).unwrap_or_else(|| module.clone())).collect();
            file.lora.target_modules = Names::Several(names.into_iter().collect());
        }
        file
    }

    /// Returns an error if no layer has an adapter.
    pub(crate) fn check_matched(&self, adapted: &[String]) -> Result<(), Error> {
        if !adapted.is_empty() {
            return Ok(());
        }
        let value = serde_json::to_string(&self.config().target_modules).expect("names are plain data");
        let fix = "no linear layer of this model has such a name: `model info` lists the names of its layers";
        Err(refused(&self.origin, "target_modules", value, fix))
    }

    /// Whether the bias of a module is trained, which has an adapter or has none.
    pub(crate) fn trains_bias(&self, is_adapted: bool) -> bool {
        match self.config().bias {
            Bias::None => false,
            Bias::All => true,
            Bias::LoraOnly => is_adapted,
        }
    }

    /// Returns an error if biases are to be trained and the model has none of them.
    pub(crate) fn check_biases(&self, has_one: bool) -> Result<(), Error> {
        let (bias, whose) = match self.config().bias {
            Bias::All => ("all", "no module of this model"),
            Bias::LoraOnly => ("lora_only", "no adapted layer"),
            Bias::None => return Ok(()),
        };
        let fix = format!("{whose} has a bias: leave the setting out");
        if has_one { Ok(()) } else { Err(refused(&self.origin, "bias", format!("{bias:?}"), &fix)) }
    }

    /// The error of a module that cannot be trained whole, because it is the embedding and the head in one.
    pub(crate) fn refused_copy(&self, module: &str) -> Error {
        let fix = "the model ties its embedding and its head, and an adapter of one would leave the other behind: \
                   leave it out, or train the whole model";
        refused(&self.origin, "modules_to_save", format!("{module:?}"), fix)
    }

    /// The adapter of the linear layer `module`, a full name, which lies in block `layer` if in any. The head
    /// and the routers of experts are only targets by their names.
    pub fn target(
        &self,
        module: &str,
        layer: Option<usize>,
        by_name_only: bool,
    ) -> Result<Option<LoraTarget>, Error> {
        let blocks = self.config().layers_to_transform.as_ref();
        let is_in_block = blocks.is_none_or(|blocks| layer.is_some_and(|layer| blocks.contains(&layer)));
        let is_target = match &self.targets {
            Matcher::AllLinear => !by_name_only,
            matcher => self.matches(matcher, module)?,
        };
        let is_excluded = match &self.excluded {
            _ if module_names::excludes(module, saved_of(self.config())) => true,
            Some(matcher) => self.matches(matcher, module)?,
            None => false,
        };
        if !is_in_block || !is_target || is_excluded {
            return Ok(None);
        }
        module_names::check_adapted(module, saved_of(self.config()), &self.origin)?;

        let r = self.by_pattern("rank_pattern", &self.ranks, module)?.unwrap_or(self.config().r);
        let alpha =
            self.by_pattern("alpha_pattern", &self.alphas, module)?.unwrap_or(self.config().lora_alpha);
        let denominator = if self.config().use_rslora { (r as f64).sqrt() } else { r as f64 };
        Ok(Some(LoraTarget { r, scaling: alpha / denominator }))
    }

    /// The factor of the output of the adapter of `module`, in a model whose blocks are called `layers`.
    pub(crate) fn scaling_of(&self, module: &str, layers: &str) -> Result<f64, Error> {
        let target = self.target(module, block_of(module, layers), false)?;
        Ok(target.expect("the layer has an adapter").scaling)
    }

    /// Whether the module `module`, a full name, is trained whole, in a model whose blocks are called
    /// `layers`.
    pub fn trains_whole(&self, module: &str, layers: &str) -> Result<bool, Error> {
        module_names::trains_whole(module, saved_of(self.config()), layers, &self.origin)
    }

    /// Returns an error for DoRA, whose output is no sum of the layer's own and the adapter's. `fix` says
    /// what to do instead.
    pub(crate) fn refuse_dora(&self, fix: &str) -> Result<(), Error> {
        if self.config().use_dora {
            return Err(refused(&self.origin, "use_dora", true.to_string(), fix));
        }
        Ok(())
    }

    /// Returns an error for weights of the model itself that are trained beside the adapters.
    pub(crate) fn refuse_trained_weights(&self, fix: &str) -> Result<(), Error> {
        let LoraConfig { bias, modules_to_save, trainable_token_indices, .. } = self.config();
        if let Some(tokens) = trainable_token_indices {
            let value = serde_json::to_string(tokens).expect("token ids are plain data");
            return Err(refused(&self.origin, "trainable_token_indices", value, fix));
        }
        if *bias != Bias::None {
            let value = serde_json::to_string(bias).expect("a name is plain data");
            return Err(refused(&self.origin, "bias", value, fix));
        }
        match modules_to_save {
            Some(names) if !names.is_empty() => {
                Err(refused(&self.origin, "modules_to_save", format!("{names:?}"), fix))
            }
            _ => Ok(()),
        }
    }

    /// The error of a setting that does not fit the layer `module`.
    pub(crate) fn misfit(&self, module: &str, expected: String, got: String) -> Error {
        Error::Field { path: self.origin.clone(), key: module.to_owned(), expected, got }
    }

    /// The value of the pattern that matches a module; `None` if none does.
    fn by_pattern<T: Copy>(
        &self,
        key: &str,
        patterns: &[(Regex, T)],
        module: &str,
    ) -> Result<Option<T>, Error> {
        let mut found = None;
        for (pattern, value) in patterns {
            if !self.is_match(pattern, module)? {
                continue;
            }
            if found.replace(*value).is_some() {
                return Err(Error::Field {
                    path: self.origin.clone(),
                    key: key.to_owned(),
                    expected: format!("one pattern at most for `{module}`"),
                    got: "two".to_owned(),
                });
            }
        }
        Ok(found)
    }

    fn matches(&self, matcher: &Matcher, module: &str) -> Result<bool, Error> {
        match matcher {
            Matcher::AllLinear => Ok(true),
            Matcher::Whole(pattern) => self.is_match(pattern, module),
            Matcher::Ends(names) => Ok(module_names::ends_with_one(module, names)),
        }
    }

    fn is_match(&self, pattern: &Regex, module: &str) -> Result<bool, Error> {
        pattern.is_match(module).map_err(|error| Error::Field {
            path: self.origin.clone(),
            key: "target_modules".to_owned(),
            expected: format!("a pattern that is done soon with `{module}`"),
            got: error.to_string(),
        })
    }
}

impl Matcher {
    fn new(names: &Names, origin: &str, key: &str) -> Result<Self, Error> {
        Ok(match names {
            Names::One(name) if name == ALL_LINEAR => Self::AllLinear,
            Names::One(pattern) => Self::Whole(compile(origin, key, &format!(r"\A(?:{pattern})\z"))?),
            Names::Several(names) => Self::Ends(names.clone()),
        })
    }
}

/// The number of the block that `module` lies in, where blocks are called `layers`.
pub(crate) fn block_of(module: &str, layers: &str) -> Option<usize> {
    let rest = module.strip_prefix(layers)?.strip_prefix('.')?;
    rest.split('.').next()?.parse().ok()
}

/// The names of the modules that are trained whole.
fn saved_of(lora: &LoraConfig) -> &[String] {
    lora.modules_to_save.as_deref().unwrap_or_default()
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

#[cfg(test)]
mod tests;
