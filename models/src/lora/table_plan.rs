//! What an adapter trains of the tables of a model, its token embedding and its head: the rows that
//! `trainable_token_indices` names, as PEFT reads the setting, or low-rank products beside tables that are
//! not tied.
//!
//! A list names rows of the token embedding. If the model ties its head to the embedding, both have one
//! table, and one copy of the rows. Of an untied model, the rows of the head are trained only if they are
//! named.

use std::collections::{BTreeMap, BTreeSet};

use super::config::{LoraConfig, refused};
use super::module_names::ends_with;
use super::plan::{LoraPlan, LoraTarget};
use super::token_rows::TokenIndices;
use crate::Error;
use crate::architecture::{Architecture, Names};

impl LoraPlan {
    /// The tokens whose rows are trained of `module`, the token embedding or a head that is not tied to it.
    pub(crate) fn token_rows(&self, module: &str, names: &Names) -> Option<&[i64]> {
        match self.config().trainable_token_indices.as_ref()? {
            TokenIndices::Embedding(tokens) => (module == names.token_embedding).then_some(tokens.as_slice()),
            TokenIndices::ByModule(modules) => {
                let entry = modules.iter().find(|(name, _)| ends_with(module, name));
                entry.map(|(_, tokens)| tokens.as_slice())
            }
        }
    }

    /// The low-rank adapter of `module`, the token embedding or the head, which `all-linear` does not name.
    pub(crate) fn table_target(&self, module: &str) -> Result<Option<LoraTarget>, Error> {
        self.target(module, None, true)
    }

    /// Returns an error for a low-rank adapter that the embedding or the head cannot have. Without
    /// `has_head`, the model has no vocabulary head.
    pub(crate) fn check_table_targets(
        &self,
        architecture: &Architecture,
        has_head: bool,
    ) -> Result<(), Error> {
        let Names { token_embedding, head, .. } = architecture.names;
        for module in std::iter::once(token_embedding).chain(has_head.then_some(head)) {
            if self.table_target(module)?.is_none() {
                continue;
            }
            let fix = if architecture.tie_word_embeddings && has_head {
                "the model ties its embedding and its head, and an adapter of one would leave the other \
                 behind: leave it out"
            } else if self.config().use_dora {
                "an embedding or a head has no magnitudes: leave it out, or leave out `use_dora`"
            } else if self.token_rows(module, &architecture.names).is_some() {
                "`trainable_token_indices` trains rows of it: name it in one of the two settings"
            } else {
                continue;
            };
            return Err(refused(&self.origin, "target_modules", format!("{module:?}"), fix));
        }
        Ok(())
    }

    /// Returns an error for rows that a model does not have, or does not train alone.
    pub(crate) fn check_token_rows(&self, architecture: &Architecture) -> Result<(), Error> {
        let Some(indices) = &self.config().trainable_token_indices else { return Ok(()) };
        let names = &architecture.names;
        let tables = [names.token_embedding, names.head];
        if let TokenIndices::ByModule(modules) = indices {
            self.check_modules(modules, tables)?;
        }
        for module in tables {
            if let Some(tokens) = self.token_rows(module, names) {
                self.check_tokens(module, tokens, architecture)?;
            }
        }
        let [of_embedding, of_head] = tables.map(|module| self.token_rows(module, names));
        if architecture.tie_word_embeddings && of_head.is_some() && of_head != of_embedding {
            let fix = format!(
                "the model ties its head to `{}`, and both have the same rows: name those of the embedding \
                 alone",
                names.token_embedding
            );
            return Err(self.refused_rows(format!("{:?}", names.head), &fix));
        }
        Ok(())
    }

    fn check_modules(
        &self,
        modules: &BTreeMap<String, Vec<i64>>,
        tables @ [embedding, head]: [&str; 2],
    ) -> Result<(), Error> {
        if modules.is_empty() {
            return Err(self.refused_rows("{}".to_owned(), "name a module, or leave the setting out"));
        }
        let mut named = BTreeSet::new();
        for name in modules.keys() {
            let Some(table) = tables.into_iter().find(|table| ends_with(table, name)) else {
                let fix =
                    format!("rows are trained of the embedding `{embedding}` and of the head `{head}` alone");
                return Err(self.refused_rows(format!("{name:?}"), &fix));
            };
            if !named.insert(table) {
                let fix = format!("another name stands for `{table}` as well: name it once, with all tokens");
                return Err(self.refused_rows(format!("{name:?}"), &fix));
            }
        }
        Ok(())
    }

    fn check_tokens(&self, module: &str, tokens: &[i64], architecture: &Architecture) -> Result<(), Error> {
        let vocab_size = architecture.vocab_size;
        if self.trains_whole(module, architecture.names.layers)? {
            let fix = "`modules_to_save` trains all rows of this module: name it in one of the two settings";
            return Err(self.refused_rows(format!("{module:?}"), fix));
        }
        if tokens.is_empty() {
            return Err(self.refused_rows("[]".to_owned(), "name a token, or leave the setting out"));
        }
        if let Some(token) = tokens.iter().find(|token| !(0..vocab_size).contains(*token)) {
            let fix = format!("the rows of `{module}` are those of the tokens 0 to {}", vocab_size - 1);
            return Err(self.refused_rows(token.to_string(), &fix));
        }
        let mut seen = BTreeSet::new();
        match tokens.iter().find(|token| !seen.insert(**token)) {
            Some(token) => {
                Err(self.refused_rows(token.to_string(), "the token is named twice: name it once"))
            }
            None => Ok(()),
        }
    }

    fn refused_rows(&self, value: String, fix: &str) -> Error {
        refused(&self.origin, "trainable_token_indices", value, fix)
    }

    /// The token embedding of a model and its head, if that is not tied, as far as none of these is trained:
    /// the whole module, a low-rank adapter of it, the rows of all `tokens`. Returns an error if
    /// `modules_to_save` cannot be followed.
    pub fn modules_without_rows(
        &self,
        architecture: &Architecture,
        tokens: &[i64],
    ) -> Result<Vec<&'static str>, Error> {
        let names = &architecture.names;
        let head = (!architecture.tie_word_embeddings).then_some(names.head);
        let mut lacking = Vec::new();
        for module in std::iter::once(names.token_embedding).chain(head) {
            let trained = self.token_rows(module, names).unwrap_or_default();
            let lacks_one = tokens.iter().any(|token| !trained.contains(token));
            let has_product = matches!(self.table_target(module), Ok(Some(_)));
            if lacks_one && !has_product && !self.trains_whole(module, names.layers)? {
                lacking.push(module);
            }
        }
        Ok(lacking)
    }

    /// Trains the rows of `tokens` too, in all [modules that would be without
    /// them](Self::modules_without_rows).
    pub fn train_rows(&mut self, architecture: &Architecture, tokens: &[i64]) -> Result<(), Error> {
        let lacking = self.modules_without_rows(architecture, tokens)?;
        if lacking.is_empty() {
            return Ok(());
        }
        let short = |module: &str| module.rsplit('.').next().unwrap_or(module).to_owned();
        let indices = &mut self.file.lora.trainable_token_indices;
        let mut modules: BTreeMap<String, Vec<i64>> = match indices.take() {
            None => BTreeMap::new(),
            Some(TokenIndices::Embedding(named)) => {
                [(short(architecture.names.token_embedding), named)].into()
            }
            Some(TokenIndices::ByModule(modules)) => modules,
        };

        for module in lacking {
            let name = modules.keys().find(|name| ends_with(module, name)).cloned();
            let trained = modules.entry(name.unwrap_or_else(|| short(module))).or_default();
            for token in tokens {
                if !trained.contains(token) {
                    trained.push(*token);
                }
            }
        }
        *indices = Some(TokenIndices::ByModule(modules));
        Ok(())
    }
}

impl LoraConfig {
    /// Leaves out the rows of a module that a model does not have.
    pub(crate) fn leave_out_rows(&mut self, module: &str) {
        if let Some(TokenIndices::ByModule(modules)) = &mut self.trainable_token_indices {
            modules.retain(|name, _| !ends_with(module, name));
            if modules.is_empty() {
                self.trainable_token_indices = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::lora::AdapterFile;

    fn architecture(tie_word_embeddings: bool) -> Architecture {
        let config = serde_json::json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 10, "hidden_size": 8,
            "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "max_position_embeddings": 8, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": tie_word_embeddings,
        });
        Config::from_json(&config.to_string(), "test").unwrap().architecture().clone()
    }

    fn plan(text: &str) -> LoraPlan {
        let text = format!(r#"{{"peft_type": "LORA", "trainable_token_indices": {text}}}"#);
        AdapterFile::from_json(&text, "a.json").and_then(|file| file.plan("a.json")).unwrap()
    }

    fn rows(plan: &LoraPlan) -> [Option<&[i64]>; 2] {
        let names = architecture(true).names;
        ["model.embed_tokens", "lm_head"].map(|module| plan.token_rows(module, &names))
    }

    #[test]
    fn a_list_is_of_the_embedding_and_a_map_of_modules() {
        assert_eq!(rows(&plan("[3, 1]")), [Some(&[3, 1][..]), None]);
        let text = r#"{"embed_tokens": [4], "lm_head": [4, 0]}"#;
        assert_eq!(rows(&plan(text)), [Some(&[4][..]), Some(&[4, 0][..])]);
        plan(text).check_token_rows(&architecture(false)).unwrap();
        plan(r#"{"model.embed_tokens": [4], "lm_head": [4]}"#).check_token_rows(&architecture(true)).unwrap();
    }

    #[test]
    fn what_a_model_does_not_have_is_refused_by_name() {
        for (text, is_tied, words) in [
            (
                "[3, 10]",
                true,
                "a.json: `trainable_token_indices` = 10 is not supported: the rows of `model.embed_tokens`",
            ),
            (
                "[-1]",
                false,
                "= -1 is not supported: the rows of `model.embed_tokens` are those of the tokens 0 to 9",
            ),
            ("[3, 1, 3]", false, "= 3 is not supported: the token is named twice"),
            (r#"{"lm_head": []}"#, false, "= [] is not supported: name a token"),
            (r#"{"tokens": [1]}"#, false, "= \"tokens\" is not supported: rows are trained of the embedding"),
            (r#"{"q_proj": [1]}"#, false, "of the head `lm_head` alone"),
            (
                r#"{"embed_tokens": [1], "model.embed_tokens": [2]}"#,
                false,
                "another name stands for `model.embed_tokens`",
            ),
            (r#"{"lm_head": [1]}"#, true, "= \"lm_head\" is not supported: the model ties its head"),
            (r#"{"lm_head": [1], "embed_tokens": [2]}"#, true, "name those of the embedding alone"),
            (
                r#"[1], "modules_to_save": ["embed_tokens"]"#,
                false,
                "`modules_to_save` trains all rows of this module",
            ),
        ] {
            let error = plan(text).check_token_rows(&architecture(is_tied)).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn new_tokens_get_rows_where_they_have_none() {
        let [tied, untied] = [true, false].map(architecture);
        let mut plan = plan("null");
        plan.train_rows(&tied, &[]).unwrap();
        assert_eq!(plan.config().trainable_token_indices, None);
        plan.train_rows(&tied, &[8, 9]).unwrap();
        assert_eq!(rows(&plan), [Some(&[8, 9][..]), None]);
        assert_eq!(plan.modules_without_rows(&untied, &[9]).unwrap(), ["lm_head"]);
        plan.train_rows(&untied, &[9]).unwrap();
        assert_eq!(rows(&plan), [Some(&[8, 9][..]), Some(&[9][..])]);

        let mut plan = self::plan("[9, 2]");
        plan.train_rows(&untied, &[8, 9]).unwrap();
        assert_eq!(rows(&plan), [Some(&[9, 2, 8][..]), Some(&[8, 9][..])]);
        let mut plan = self::plan(r#"{"model.embed_tokens": [1]}, "modules_to_save": ["lm_head"]"#);
        plan.train_rows(&untied, &[8]).unwrap();
        assert_eq!(rows(&plan), [Some(&[1, 8][..]), None]);
        assert!(plan.modules_without_rows(&untied, &[8]).unwrap().is_empty());
        let mut plan = self::plan(r#"null, "target_modules": ["lm_head", "q_proj"]"#);
        plan.train_rows(&untied, &[8]).unwrap();
        assert_eq!(rows(&plan), [Some(&[8][..]), None]);
    }

    #[test]
    fn a_model_without_a_head_has_no_rows_of_it() {
        let mut lora = plan(r#"{"embed_tokens": [1], "lm_head": [2]}"#).config().clone();
        lora.leave_out_rows("lm_head");
        let left = TokenIndices::ByModule([("embed_tokens".to_owned(), vec![1])].into());
        assert_eq!(lora.trainable_token_indices, Some(left));
        lora.leave_out_rows("model.embed_tokens");
        assert_eq!(lora.trainable_token_indices, None);
    }
}
