//! How names in the settings of an adapter match modules, as in PEFT 0.21.2.
//!
//! ```text
//!   target_modules    a layer has an adapter if its name is one of them, or ends with one after a dot
//!   modules_to_save   a module is trained with all below it if its name ends with one, dot or not;
//!                     a layer has no adapter if one of them is whole parts of its name, side by side
//! ```
//! So `norm` trains `input_layernorm` too, and PEFT would train `mlp` for `lp` with the adapters of its
//! layers inside. What PEFT refuses, or trains in another way than the names say, is refused here by name.

use crate::Error;

/// Whether `module` is one of `names`, or ends with one after a dot.
pub(super) fn ends_with_one(module: &str, names: &[String]) -> bool {
    names.iter().any(|name| ends_with(module, name))
}

/// Whether `module` is `name`, or ends with it after a dot.
pub(super) fn ends_with(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Returns an error for one of `modules_to_save` that can be the end of no module's name. `origin` names the
/// settings in errors.
pub(super) fn check_saved(names: &[String], origin: &str) -> Result<(), Error> {
    let is_part = |one: char| one.is_ascii_alphanumeric() || "_.".contains(one);
    match names.iter().find(|name| name.is_empty() || !name.chars().all(is_part)) {
        None => Ok(()),
        Some(name) => Err(refused(origin, name, "name modules by the ends of their names, not by a pattern")),
    }
}

/// Whether `module`, a full name, is trained whole because of `names`, in a model whose blocks are called
/// `layers`.
pub(super) fn trains_whole(
    module: &str,
    names: &[String],
    layers: &str,
    origin: &str,
) -> Result<bool, Error> {
    let mut saved = around(module).filter_map(|outer| Some((outer, end_of(outer, names)?)));
    let Some((outer, name)) = saved.next() else { return Ok(false) };
    if around(layers).any(|holder| holder == outer) {
        let fix =
            format!("`{outer}` has all blocks: name modules inside of blocks, or train the whole model");
        return Err(refused(origin, name, &fix));
    }
    if let Some((inner, name)) = saved.next() {
        let fix = format!("`{inner}` lies in `{outer}`, which is trained whole already: name one of the two");
        return Err(refused(origin, name, &fix));
    }
    Ok(true)
}

/// Whether the layer `module` has no adapter because of `names` in `modules_to_save`.
pub(super) fn excludes(module: &str, names: &[String]) -> bool {
    around(module).any(|outer| ends_with_one(outer, names))
}

/// Returns an error if the layer `module`, which has an adapter, would be trained whole because of `names`.
pub(super) fn check_adapted(module: &str, names: &[String], origin: &str) -> Result<(), Error> {
    match around(module).find_map(|outer| Some((outer, end_of(outer, names)?))) {
        None => Ok(()),
        Some((outer, name)) => {
            let part = outer.rsplit('.').next().unwrap_or(outer);
            let fix = format!(
                "`{outer}` ends with it and would have adapters, which only whole parts of its name keep away: write \
                 {part:?}, or the end of another module"
            );
            Err(refused(origin, name, &fix))
        }
    }
}

/// The modules that `module` lies in, the outermost first, and then itself.
fn around(module: &str) -> impl Iterator<Item = &str> {
    let ends = module.match_indices('.').map(|(end, _)| end).chain([module.len()]);
    ends.map(move |end| &module[..end])
}

/// The one of `names` that the name of a module ends with.
fn end_of<'a>(module: &str, names: &'a [String]) -> Option<&'a str> {
    names.iter().map(String::as_str).find(|name| module.ends_with(name))
}

fn refused(origin: &str, name: &str, fix: &str) -> Error {
    Error::Unsupported {
        path: origin.to_owned(),
        key: "modules_to_save".to_owned(),
        value: format!("{name:?}"),
        fix: fix.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: &str = "model.layers";

    /// The modules with parameters of a LLaMA of eleven blocks, of which two are here.
    const MODULES: [&str; 12] = [
        "model.embed_tokens",
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.o_proj",
        "model.layers.0.mlp.gate_proj",
        "model.layers.0.mlp.down_proj",
        "model.layers.0.input_layernorm",
        "model.layers.0.post_attention_layernorm",
        "model.layers.10.self_attn.q_proj",
        "model.layers.10.mlp.gate_proj",
        "model.layers.10.input_layernorm",
        "model.norm",
        "lm_head",
    ];

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn trained(names: &[&str]) -> Vec<&'static str> {
        let names = owned(names);
        MODULES.into_iter().filter(|module| trains_whole(module, &names, LAYERS, "test").unwrap()).collect()
    }

    /// The expected modules are those whose tensors PEFT 0.21.2 wrote for the same names.
    #[test]
    fn a_module_is_trained_with_all_below_it_by_the_end_of_its_name() {
        let mlps =
            ["model.layers.0.mlp.gate_proj", "model.layers.0.mlp.down_proj", "model.layers.10.mlp.gate_proj"];
        assert_eq!(trained(&["mlp"]), mlps);
        assert_eq!(trained(&["model.layers.0.mlp"]), mlps[..2]);
        assert_eq!(trained(&["layers.0"]), MODULES[1..7]);
        // The end of a number is no number.
        assert_eq!(trained(&["0"]), MODULES[1..10]);
        assert_eq!(trained(&["embed_tokens", "lm_head"]), ["model.embed_tokens", "lm_head"]);
        // `norm` is the end of the blocks' norms too.
        let norms = [MODULES[5], MODULES[6], MODULES[9], "model.norm"];
        assert_eq!(trained(&["norm"]), norms);
        assert_eq!(trained(&["orm"]), norms);
        assert_eq!(trained(&["model.norm"]), ["model.norm"]);
        // What PEFT adds for classifiers, and its own prefix.
        assert!(trained(&["score", "classifier", "base_model.model.lm_head"]).is_empty());
    }

    #[test]
    fn whole_parts_of_a_name_keep_adapters_away() {
        let module = "model.layers.0.mlp.gate_proj";
        for name in ["mlp", "layers.0", "0.mlp", "gate_proj", "model.layers.0.mlp.gate_proj", "model"] {
            assert!(excludes(module, &owned(&[name])), "{name}");
        }
        for name in ["lp", "layers.1", "up_proj", "mlp.gate", "norm"] {
            assert!(!excludes(module, &owned(&[name])), "{name}");
        }
    }

    #[test]
    fn what_peft_trains_in_another_way_is_refused_by_name() {
        let module = "model.layers.0.mlp.gate_proj";
        let error =
            |names: &[&str]| trains_whole(module, &owned(names), LAYERS, "run.toml").unwrap_err().to_string();
        for (name, holder) in [("model", "model"), ("el", "model"), ("layers", LAYERS), ("s", LAYERS)] {
            let words = format!(
                "run.toml: `modules_to_save` = \"{name}\" is not supported: `{holder}` has all blocks: name modules"
            );
            assert!(error(&[name]).starts_with(&words), "{}", error(&[name]));
        }
        let nested = error(&["gate_proj", "layers.0"]);
        assert!(
            nested.contains("= \"gate_proj\" is not supported: `model.layers.0.mlp.gate_proj` lies in"),
            "{nested}"
        );

        let adapted = |name: &str| check_adapted(module, &owned(&[name]), "run.toml");
        let inside = adapted("lp").unwrap_err().to_string();
        assert!(
            inside.contains(
                "= \"lp\" is not supported: `model.layers.0.mlp` ends with it and would have adapters"
            ) && inside.contains("write \"mlp\""),
            "{inside}"
        );
        assert!(adapted("proj").unwrap_err().to_string().contains("write \"gate_proj\""));
        assert!(adapted("norm").is_ok());

        for name in ["", ".*mlp", "(q|v)_proj", "model norm"] {
            let error = check_saved(&owned(&["lm_head", name]), "run.toml").unwrap_err().to_string();
            assert!(
                error.contains(&format!("= {name:?} is not supported: name modules by the ends")),
                "{error}"
            );
        }
        assert!(check_saved(&owned(&["model.layers.0.mlp", "lm_head"]), "run.toml").is_ok());
    }
}
