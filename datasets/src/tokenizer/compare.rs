//! Compares two tokenizers by their tokens, merges and added tokens, which decide whether they give equal
//! ids.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Tokenizer;

impl Tokenizer {
    /// The first difference of `other` from this tokenizer, as a text for people. `None` if both have the
    /// same tokens with the same ids and the same merges. Special tokens are compared, chat templates are
    /// not.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let [own, others] = [self, other].map(Self::by_id);
        let ids: BTreeSet<&u32> = own.keys().chain(others.keys()).collect();
        let name = |token: Option<&String>| token.map_or("nothing".to_owned(), |token| format!("{token:?}"));
        let differs = ids.into_iter().find(|id| own.get(id) != others.get(id));
        if let Some(id) = differs {
            let [here, there] = [&own, &others].map(|tokens| name(tokens.get(id)));
            return Some(format!("its token {id} is {there}, not {here}"));
        }
        let [own, others] = [self, other].map(Self::merges);
        let merge =
            |list: &[Value], index: usize| list.get(index).map_or("nothing".to_owned(), Value::to_string);
        let index = (0..own.len().max(others.len())).find(|&index| own.get(index) != others.get(index))?;
        let [here, there] = [&own, &others].map(|list| merge(list, index));
        Some(format!("its merge {} is {there}, not {here}", index + 1))
    }

    /// All tokens by id, including added tokens.
    fn by_id(&self) -> BTreeMap<u32, String> {
        self.inner.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect()
    }

    /// The merges of a BPE model, in order; empty for other models. Both spellings of a merge (`"a b"` and
    /// `["a", "b"]`) compare equal, because the library writes both in the same form.
    fn merges(&self) -> Vec<Value> {
        let model = serde_json::to_value(self.inner.get_model()).unwrap_or_default();
        model["merges"].as_array().cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Tokenizer, TrainOptions};

    fn trained(text: &str) -> Tokenizer {
        let options = TrainOptions { vocab_size: 270, ..TrainOptions::default() };
        Tokenizer::train(std::iter::repeat_n(text.to_owned(), 20), &options).unwrap()
    }

    #[test]
    fn the_first_token_that_differs_is_named() {
        let (left, right) = (trained("banana bandana"), trained("cherry berry"));
        assert_eq!(left.difference(&trained("banana bandana")), None);
        let said = left.difference(&right).unwrap();
        // Five special tokens and 256 bytes are equal; the first merge creates token 261.
        assert!(said.starts_with("its token 261 is ") && said.contains(", not "), "{said}");
    }

    #[test]
    fn a_token_more_is_a_difference() {
        let small = TrainOptions { vocab_size: 262, ..TrainOptions::default() };
        let small = Tokenizer::train(std::iter::repeat_n("banana".to_owned(), 20), &small).unwrap();
        let large = TrainOptions { vocab_size: 263, ..TrainOptions::default() };
        let large = Tokenizer::train(std::iter::repeat_n("banana".to_owned(), 20), &large).unwrap();
        let said = large.difference(&small).unwrap();
        assert!(said.starts_with("its token 262 is nothing"), "{said}");
    }
}
