//! Models as GGUF files, the format of llama.cpp: `llama`, `qwen2` and `qwen3`.
//!
//! ```text
//! Config  ──settings──> metadata      export::GgufExport writes, import::GgufImport reads
//! weights ──names─────> tensors
//! ```
//! The two formats hold the same numbers. They differ in the names of tensors, in the order of the rows of
//! queries and keys (`llama` alone), and in that scaled frequencies of `llama3` are a tensor. What a file
//! cannot say is refused by name. This module writes no tokenizer, whose metadata come from elsewhere; of it,
//! it reads the ids of BOS, EOS and padding for `config.json`.

pub mod export;
pub mod import;
mod names;
mod rope;
mod settings;

use tch::Tensor;

use crate::config::Config;

/// A model of llama.cpp that computes what a family here computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Llama,
    Qwen2,
    Qwen3,
}

/// The families, with their names in `general.architecture`, which are also those of `model_type`.
const FAMILIES: [(Family, &str); 3] =
    [(Family::Llama, "llama"), (Family::Qwen2, "qwen2"), (Family::Qwen3, "qwen3")];

impl Family {
    fn name(self) -> &'static str {
        FAMILIES.iter().find(|(family, _)| *family == self).expect("every family is listed").1
    }

    /// Whether pairs of rotated rows are neighbours in a file. Here they are half a head apart.
    fn interleaves(self) -> bool {
        self == Self::Llama
    }

    /// The number of heads of a projection whose rows have another order in a file.
    fn interleaved_heads(self, name: &str, config: &Config) -> Option<i64> {
        let module = name.rsplit('.').nth(1).filter(|_| self.interleaves())?;
        match module {
            "q_proj" => Some(config.num_heads()),
            "k_proj" => Some(config.num_kv_heads()),
            _ => None,
        }
    }
}

/// Makes neighbours of the rows that are rotated together: row `h, i, j` of `[heads, 2, half]` becomes row
/// `h, j, i`. llama.cpp: `LlamaModel.permute`.
fn interleave(tensor: &Tensor, heads: i64) -> Tensor {
    transposed(tensor, heads, |half| [2, half])
}

/// The inverse of [`interleave`].
fn separate(tensor: &Tensor, heads: i64) -> Tensor {
    transposed(tensor, heads, |half| [half, 2])
}

fn transposed(tensor: &Tensor, heads: i64, inner: impl Fn(i64) -> [i64; 2]) -> Tensor {
    let shape = tensor.size();
    let [first, second] = inner(shape[0] / heads / 2);
    tensor.reshape([heads, first, second, -1]).transpose(1, 2).reshape(&shape)
}

#[cfg(test)]
mod tests;
