//! Reading the files of a folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use parallel::Placement;
use parallel::tensor_file::TensorFile;
use serde_json::Value;
use tch::Tensor;

use super::{INDEX, SINGLE};
use crate::Error;

/// The tensors of a model folder.
#[derive(Debug)]
pub struct WeightFolder {
    path: PathBuf,
    files: Vec<TensorFile>,
    used: BTreeSet<String>,
}

impl WeightFolder {
    /// Opens the files of a folder and checks their headers and lengths.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let mut files = Vec::new();
        for name in file_names(folder)? {
            files.push(TensorFile::open(&folder.join(name))?);
        }
        Ok(Self { path: folder.to_owned(), files, used: BTreeSet::new() })
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.shape(name).is_some())
    }

    /// This rank's part of the tensor under the first of `names` that is there, whose whole has the shape `shape`; in the kind of
    /// the file.
    pub fn tensor(
        &mut self,
        names: &[String],
        shape: &[i64],
        placement: &Placement,
    ) -> Result<Tensor, Error> {
        for name in names {
            if let Some(file) = self.files.iter().find(|file| file.shape(name).is_some()) {
                self.used.insert(name.clone());
                return Ok(file.read(name, shape, placement)?);
            }
        }
        Err(Error::MissingTensor { path: self.path.clone(), name: names[0].clone() })
    }

    /// What [`tensor`](Self::tensor) would read is there, and another rank's.
    pub fn is_elsewhere(&mut self, names: &[String]) -> Result<(), Error> {
        let mut there = names.iter().filter(|name| self.files.iter().any(|file| file.shape(name).is_some()));
        let Some(name) = there.next() else {
            return Err(Error::MissingTensor { path: self.path.clone(), name: names[0].clone() });
        };
        self.used.insert(name.clone());
        Ok(())
    }

    /// Refuses tensors that were never asked for, unless `harmless` says that they do not matter.
    pub fn check_all_used(&self, harmless: impl Fn(&str) -> bool) -> Result<(), Error> {
        for file in &self.files {
            if let Some(name) = file.names().find(|name| !self.used.contains(*name) && !harmless(name)) {
                return Err(Error::UnexpectedTensor { path: file.path().to_owned(), name: name.to_owned() });
            }
        }
        Ok(())
    }
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
    let sound = |names: &BTreeSet<String>| names.iter().all(|name| !name.contains('/') && !name.is_empty());
    match names.filter(sound) {
        Some(names) => Ok(names.into_iter().collect()),
        None => Err(Error::Field {
            path: path.display().to_string(),
            key: "weight_map".to_owned(),
            expected: "an object from tensor names to file names in the same folder".to_owned(),
            got: "something else".to_owned(),
        }),
    }
}
