//! A hash of the weights in a folder, by which an adapter knows the model that it belongs to.
//!
//! ```text
//!   SHA-256 over the tensors in alphabetical order, each as
//!     ["NAME","DTYPE",[SHAPE]]     JSON
//!     its bytes                    up to 12,288; of a larger tensor the first, middle and last 4096
//! ```
//! Training changes numbers all over a matrix, so a few blocks of each tensor tell two states of a model
//! apart, and a folder of 10 GB is hashed in the time of some hundred small reads. The hash is of what the
//! files hold: how the tensors are divided among files does not change it, and neither does how they are
//! read. Numbers that change between the blocks alone, such as a few rows of an embedding, are not seen.

use std::collections::BTreeMap;

use parallel::safetensors_file::TensorFile;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::WeightFolder;
use crate::Error;

/// The bytes of a block.
const BLOCK: u64 = 4096;

/// The bytes of the largest tensor that is hashed whole.
const WHOLE: u64 = 3 * BLOCK;

impl WeightFolder {
    /// The hash of the weights: 64 hexadecimal digits.
    pub fn content_hash(&self) -> Result<String, Error> {
        let mut holders = BTreeMap::new();
        for file in self.files() {
            for name in file.names() {
                holders.entry(name).or_insert(file);
            }
        }
        let mut hash = Sha256::new();
        for (name, file) in holders {
            add_tensor(&mut hash, file, name)?;
        }
        Ok(format!("{:x}", hash.finalize()))
    }
}

/// Adds a tensor that `file` has.
fn add_tensor(hash: &mut Sha256, file: &TensorFile, name: &str) -> Result<(), Error> {
    hash.update(json!([name, file.dtype(name), file.shape(name)]).to_string());
    let size = file.num_bytes(name).unwrap_or(0);
    let blocks = if size <= WHOLE {
        vec![(0, size)]
    } else {
        [0, (size - BLOCK) / 2, size - BLOCK].map(|start| (start, BLOCK)).to_vec()
    };
    let mut buffer = Vec::new();
    for (start, length) in blocks {
        buffer.resize(length as usize, 0);
        file.read_bytes(name, start, &mut buffer)?;
        hash.update(&buffer);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    use super::super::names::{INDEX, SINGLE};
    use super::*;

    /// Two tensors of bytes: `a` is hashed whole, and of `b` blocks are.
    fn tensors() -> [(&'static str, Vec<u8>); 2] {
        let bytes = |count: usize| (0..count).map(|index| (index * 7 % 251) as u8).collect();
        [("a", bytes(16)), ("b", bytes(40_000))]
    }

    fn write(path: &Path, tensors: &[(&str, Vec<u8>)], metadata: &Value) {
        let mut header = serde_json::Map::from_iter([("__metadata__".to_owned(), metadata.clone())]);
        let mut data = Vec::new();
        for (name, bytes) in tensors {
            let offsets = [data.len(), data.len() + bytes.len()];
            let entry = json!({"dtype": "U8", "shape": [bytes.len()], "data_offsets": offsets});
            header.insert((*name).to_owned(), entry);
            data.extend_from_slice(bytes);
        }
        let header = Value::Object(header).to_string();
        let length = (header.len() as u64).to_le_bytes();
        std::fs::write(path, [&length[..], header.as_bytes(), &data].concat()).unwrap();
    }

    fn hash_of(tensors: &[(&str, Vec<u8>)]) -> String {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join(SINGLE), tensors, &json!({}));
        WeightFolder::open(folder.path()).unwrap().content_hash().unwrap()
    }

    /// The number is hashlib's of Python 3.11 over the bytes that the header of this file names.
    #[test]
    fn the_hash_is_that_of_the_names_and_the_blocks() {
        assert_eq!(hash_of(&tensors()), "9f449335d2be2f2c212ac6d04e26ae3aaa3996429034f1b449348d7119e0f4b8");
    }

    #[test]
    fn how_tensors_are_divided_among_files_does_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = tensors();
        write(&folder.path().join("1.safetensors"), &[b], &json!({"format": "pt"}));
        write(&folder.path().join("2.safetensors"), &[a], &json!({}));
        let index = json!({"weight_map": {"a": "2.safetensors", "b": "1.safetensors"}});
        std::fs::write(folder.path().join(INDEX), index.to_string()).unwrap();
        assert_eq!(WeightFolder::open(folder.path()).unwrap().content_hash().unwrap(), hash_of(&tensors()));
    }

    #[test]
    fn a_number_of_a_block_and_a_name_change_the_hash() {
        let original = hash_of(&tensors());
        let changed = |tensor: usize, byte: usize| {
            let mut tensors = tensors();
            tensors[tensor].1[byte] ^= 1;
            hash_of(&tensors)
        };
        for (tensor, byte) in [(0, 0), (0, 15), (1, 0), (1, 20_000), (1, 39_999)] {
            assert_ne!(changed(tensor, byte), original, "{tensor} {byte}");
        }
        assert_eq!(changed(1, 10_000), original, "between two blocks");
        let [a, (_, b)] = tensors();
        assert_ne!(hash_of(&[a, ("c", b)]), original);
    }
}
