//! Reads the weight files of a model folder.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parallel::Placement;
use parallel::safetensors_file::TensorFile;
use serde_json::Value;
use tch::{Kind, Tensor, no_grad};

use super::names::{INDEX, SINGLE};
use crate::Error;

/// The tensors of a model folder.
#[derive(Debug)]
pub struct WeightFolder {
    path: PathBuf,
    files: Vec<Arc<TensorFile>>,
    used: BTreeSet<String>,
    /// The number of rows of the vocabulary in the files, and the requested number.
    resized_vocab: Option<[i64; 2]>,
}

impl WeightFolder {
    /// Opens the files of a folder and checks their headers and lengths.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let mut files = Vec::new();
        for name in file_names(folder)? {
            files.push(Arc::new(TensorFile::open(&folder.join(name))?));
        }
        Ok(Self { path: folder.to_owned(), files, used: BTreeSet::new(), resized_vocab: None })
    }

    /// Opens one file of a folder, and no other.
    pub(crate) fn open_file(folder: &Path, name: &str) -> Result<Self, Error> {
        let files = vec![Arc::new(TensorFile::open(&folder.join(name))?)];
        Ok(Self { path: folder.to_owned(), files, used: BTreeSet::new(), resized_vocab: None })
    }

    /// The files.
    pub(super) fn files(&self) -> impl Iterator<Item = &TensorFile> {
        self.files.iter().map(|file| &**file)
    }

    /// The files, for a reader of their own.
    pub(crate) fn shared_files(&self) -> Vec<Arc<TensorFile>> {
        self.files.clone()
    }

    /// The text under a key of the files' metadata, if one of them has it.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        self.files().find_map(|file| file.metadata(key))
    }

    /// The paths of the weight files of a folder.
    pub fn paths(folder: &Path) -> Result<Vec<PathBuf>, Error> {
        Ok(file_names(folder)?.iter().map(|name| folder.join(name)).collect())
    }

    /// Resizes the vocabulary from `from` to `to` rows for all later reads. New rows are the mean of the
    /// existing rows, as in transformers' `resize_token_embeddings` with `mean_resizing`, but without noise.
    pub(crate) fn resize_vocab(&mut self, from: i64, to: i64) {
        self.resized_vocab = Some([from, to]);
    }

    /// Whether a tensor with this name exists.
    pub fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.shape(name).is_some())
    }

    /// Reads this rank's shard of the tensor under the first of `names` that exists. `shape` is the shape of
    /// the full tensor. The result has the dtype of the file.
    pub fn tensor(
        &mut self,
        names: &[String],
        shape: &[i64],
        placement: &Placement,
    ) -> Result<Tensor, Error> {
        self.reader(names, shape, placement)?.read()
    }

    /// A reader of this rank's shard of the tensor under the first of `names` that exists. `shape` is the
    /// shape of the full tensor.
    pub(crate) fn reader(
        &mut self,
        names: &[String],
        shape: &[i64],
        placement: &Placement,
    ) -> Result<TensorReader, Error> {
        for name in names {
            if let Some(file) = self.files.iter().find(|file| file.shape(name).is_some()) {
                self.used.insert(name.clone());
                refuse_codes(file, name)?;
                let resized = self.resized_vocab.filter(|[from, to]| {
                    shape.len() == 2
                        && shape[0] == *to
                        && file.shape(name).is_some_and(|stored| stored[0] == *from)
                });
                return Ok(TensorReader {
                    file: Arc::clone(file),
                    name: name.clone(),
                    shape: shape.to_vec(),
                    placement: placement.clone(),
                    resized,
                });
            }
        }
        Err(Error::MissingTensor { path: self.path.clone(), name: names[0].clone() })
    }

    /// Checks that the checkpoint contains the tensor and marks it as used without reading it, because
    /// another rank holds it, or because its codes are read in another way.
    pub fn mark_remote(&mut self, names: &[String]) -> Result<(), Error> {
        let mut present =
            names.iter().filter(|name| self.files.iter().any(|file| file.shape(name).is_some()));
        let Some(name) = present.next() else {
            return Err(Error::MissingTensor { path: self.path.clone(), name: names[0].clone() });
        };
        self.used.insert(name.clone());
        Ok(())
    }

    /// Returns an error for a tensor that was never requested, unless `harmless` returns true for its name.
    pub fn check_all_used(&self, harmless: impl Fn(&str) -> bool) -> Result<(), Error> {
        for file in &self.files {
            if let Some(name) = file.names().find(|name| !self.used.contains(*name) && !harmless(name)) {
                return Err(Error::UnexpectedTensor { path: file.path().to_owned(), name: name.to_owned() });
            }
        }
        Ok(())
    }
}

/// Reads one tensor of a model folder, as often as it is asked to.
pub(crate) struct TensorReader {
    file: Arc<TensorFile>,
    name: String,
    /// The shape of the full tensor.
    shape: Vec<i64>,
    placement: Placement,
    /// The number of rows in the file and the requested number, if the vocabulary gets another size.
    resized: Option<[i64; 2]>,
}

impl TensorReader {
    /// The kind of the tensor when it is read: the dtype of the file.
    pub(crate) fn kind(&self) -> Result<Kind, Error> {
        Ok(self.file.kind(&self.name, &self.shape)?)
    }

    /// Reads this rank's shard, in the dtype of the file.
    pub(crate) fn read(&self) -> Result<Tensor, Error> {
        let Self { file, name, shape, placement, resized } = self;
        let Some([from, to]) = *resized else { return Ok(file.read(name, shape, placement)?) };
        let full = file.read(name, &[from, shape[1]], &Placement::Replicate)?;
        Ok(placement.shard(&if to < from { full.narrow(0, 0, to) } else { with_mean_rows(&full, to - from) }))
    }

    /// Reads some elements of this rank's shard into their places in `target`, in its dtype.
    pub(crate) fn read_into(&self, target: &Tensor, elements: Range<usize>) -> Result<(), Error> {
        let Self { file, name, shape, placement, resized } = self;
        if resized.is_none() {
            return Ok(file.read_into(name, shape, placement, elements, target)?);
        }
        copy_elements(target, &self.read()?, elements);
        Ok(())
    }
}

/// Returns an error for a tensor of codes where numbers are wanted.
fn refuse_codes(file: &TensorFile, name: &str) -> Result<(), Error> {
    let Some(dtype @ ("U8" | "I8")) = file.dtype(name) else { return Ok(()) };
    Err(Error::Unsupported {
        path: file.path().display().to_string(),
        key: name.to_owned(),
        value: dtype.to_owned(),
        fix: "codes are read for linear layers alone, and where `quantization_config` in config.json says so: take the \
              model that this one was made from"
            .to_owned(),
    })
}

/// Copies some elements of `values` to their places in `target`, a contiguous tensor of the same shape.
pub(crate) fn copy_elements(target: &Tensor, values: &Tensor, elements: Range<usize>) {
    let target = target.detach();
    no_grad(|| {
        if elements.len() == target.numel() {
            return target.shallow_clone().copy_(values);
        }
        let narrow = |flat: &Tensor| flat.narrow(0, elements.start as i64, elements.len() as i64);
        narrow(&target.view([-1])).copy_(&narrow(&values.reshape([-1])));
    });
}

/// Appends `count` rows to `tensor` `[N, H]`, each the mean of the existing rows.
fn with_mean_rows(tensor: &Tensor, count: i64) -> Tensor {
    let mean = tensor.mean_dim([0i64].as_slice(), true, Kind::Float).to_kind(tensor.kind());
    Tensor::cat(&[tensor.shallow_clone(), mean.expand([count, tensor.size()[1]], false)], 0)
}

fn file_names(folder: &Path) -> Result<Vec<String>, Error> {
    if folder.join(SINGLE).exists() {
        return Ok(vec![SINGLE.to_owned()]);
    }
    let path = folder.join(INDEX);
    if !path.exists() && folder.join("pytorch_model.bin").exists() {
        return Err(Error::Unsupported {
            path: folder.display().to_string(),
            key: "weights".to_owned(),
            value: "pytorch_model.bin".to_owned(),
            fix: "save the model as safetensors with transformers first".to_owned(),
        });
    }
    if !path.exists() {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::Io { path: folder.join(SINGLE), source });
    }

    let text = crate::config::read_text(&path)?;
    let index: Value = serde_json::from_str(&text)
        .map_err(|source| Error::Json { path: path.display().to_string(), source })?;
    let names: Option<BTreeSet<String>> = index["weight_map"]
        .as_object()
        .and_then(|map| map.values().map(|name| name.as_str().map(str::to_owned)).collect());

    let refused = |got: String| Error::Field {
        path: path.display().to_string(),
        key: "weight_map".to_owned(),
        expected: "an object from tensor names to .safetensors files in the same folder".to_owned(),
        got,
    };
    let names = names.ok_or_else(|| refused("something else".to_owned()))?;
    match names.iter().find(|name| !is_weight_file(name)) {
        Some(name) => Err(refused(format!("the file {name:?}"))),
        None => Ok(names.into_iter().collect()),
    }
}

/// Whether a name in the index is a valid weight file: it must be a file in the same folder, not a path.
///
/// The crate `datasets` has its own copy of this rule for downloads, because it does not depend on this
/// crate.
fn is_weight_file(name: &str) -> bool {
    let harmless = |character: char| !matches!(character, '/' | '\\') && !character.is_control();
    name.ends_with(".safetensors") && !name.starts_with('.') && name.chars().all(harmless)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_names_files_of_its_own_folder_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "../a.safetensors",
            "/a.safetensors",
            "b/a.safetensors",
            "a\\b.safetensors",
            "a\u{7}.safetensors",
            "x",
            "",
        ] {
            let index = serde_json::json!({"weight_map": {"t": name}}).to_string();
            std::fs::write(folder.path().join(INDEX), index).unwrap();
            let error = WeightFolder::open(folder.path()).unwrap_err().to_string();
            assert!(
                error.contains("weight_map") && error.contains("in the same folder"),
                "{name:?}: {error}"
            );
            assert!(!error.chars().any(char::is_control), "{error}");
        }
    }

    #[test]
    fn codes_are_not_taken_for_weights() {
        let folder = tempfile::tempdir().unwrap();
        for dtype in ["I8", "U8"] {
            let header =
                format!(r#"{{"a.weight": {{"dtype": "{dtype}", "shape": [2, 2], "data_offsets": [0, 4]}}}}"#);
            let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[1, 2, 3, 4]].concat();
            std::fs::write(folder.path().join(SINGLE), bytes).unwrap();
            let mut weights = WeightFolder::open(folder.path()).unwrap();
            let found = weights.tensor(&["a.weight".to_owned()], &[2, 2], &Placement::Replicate);
            let error = found.unwrap_err().to_string();
            assert!(error.contains("model.safetensors: `a.weight`") && error.contains(dtype), "{error}");
        }
    }

    #[test]
    fn new_rows_are_the_mean_of_the_others() {
        let grown = with_mean_rows(&Tensor::from_slice2(&[[1f32, 4.0], [3.0, 0.0]]), 2);
        assert_eq!(grown, Tensor::from_slice2(&[[1f32, 4.0], [3.0, 0.0], [2.0, 2.0], [2.0, 2.0]]));
    }
}
