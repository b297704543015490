//! The settings of an adapter, checked: which layer of a model has an adapter of which rank, and what else is
//! trained beside the adapters.

use std::collections::{BTreeMap, BTreeSet};

use fancy_regex::{Regex, RegexBuilder};

use super::config::{ALL_LINEAR, AdapterFile, Bias, LoraConfig, Names, refused};
use super::module_names;
use crate::Error;

/// A pattern from a file gives up after this many steps.
const BACKTRACK_LIMIT: usize = 100_000;

/// The largest rank.
const LARGEST_RANK: i64 = 1 << 16;

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

#[cfg(test)]
mod tests;
