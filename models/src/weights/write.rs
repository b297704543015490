//! Writing: one file up to five gigabytes, otherwise numbered files and an index, as transformers does it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use parallel::Parameter;
use serde_json::{Map, Value, json};
use tch::{Device, Tensor};

use super::{DTYPES, INDEX, SINGLE};
use crate::Error;

/// The most bytes in one file, unless a single tensor has more.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Writes parameters under their names to a folder, which is made if need be.
pub(crate) fn save(folder: &Path, parameters: &[Parameter]) -> Result<(), Error> {
    save_in_shards(folder, parameters, SHARD_BYTES)
}

fn save_in_shards(folder: &Path, parameters: &[Parameter], limit: u64) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|source| Error::Io { path: folder.to_owned(), source })?;
    let shards = shards(parameters, limit);
    if let [only] = shards.as_slice() {
        write_tensors(folder, SINGLE, only)?;
        return remove_stale(folder, INDEX);
    }
    let mut map = Map::new();
    for (index, shard) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", index + 1, shards.len());
        write_tensors(folder, &name, shard)?;
        map.extend(shard.iter().map(|parameter| (parameter.name.clone(), json!(name))));
    }
    let total: u64 = parameters.iter().map(bytes_of).sum();
    let index = json!({"metadata": {"total_size": total}, "weight_map": map});
    write_file(folder, INDEX, format!("{index:#}\n").as_bytes())?;
    remove_stale(folder, SINGLE)
}

/// Writes a small file under a temporary name, syncs it and renames it.
pub(crate) fn write_file(folder: &Path, name: &str, content: &[u8]) -> Result<(), Error> {
    write_with(folder, name, |file| file.write_all(content))
}

fn shards(parameters: &[Parameter], limit: u64) -> Vec<Vec<&Parameter>> {
    let mut shards: Vec<Vec<&Parameter>> = vec![Vec::new()];
    let mut filled = 0;
    for parameter in parameters {
        let bytes = bytes_of(parameter);
        if filled + bytes > limit && filled > 0 {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        shards.last_mut().expect("the list begins with one shard").push(parameter);
    }
    shards
}

fn bytes_of(parameter: &Parameter) -> u64 {
    (parameter.num_elements() * parameter.tensor.kind().elt_size_in_bytes()) as u64
}

fn write_tensors(folder: &Path, name: &str, parameters: &[&Parameter]) -> Result<(), Error> {
    let path = folder.join(name);
    let mut sorted = parameters.to_vec();
    // Wide numbers first, so that every tensor lies at a multiple of its numbers' size.
    sorted.sort_by_key(|parameter| std::cmp::Reverse(parameter.tensor.kind().elt_size_in_bytes()));
    let mut header = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let mut start = 0;
    for parameter in &sorted {
        let kind = parameter.tensor.kind();
        let dtype =
            DTYPES.iter().find(|(_, known)| *known == kind).map(|(dtype, _)| *dtype).ok_or_else(|| {
                Error::Dtype { path: path.clone(), name: parameter.name.clone(), dtype: format!("{kind:?}") }
            })?;
        let end = start + bytes_of(parameter);
        let entry = json!({"dtype": dtype, "shape": parameter.tensor.size(), "data_offsets": [start, end]});
        header.insert(parameter.name.clone(), entry);
        start = end;
    }
    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    write_with(folder, name, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        sorted.iter().try_for_each(|parameter| file.write_all(&bytes(&parameter.tensor)))
    })
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    let tensor = tensor.detach().to_device(Device::Cpu).contiguous();
    let mut buffer = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
    tensor.copy_data_u8(&mut buffer, tensor.numel());
    buffer
}

fn write_with(
    folder: &Path,
    name: &str,
    content: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<(), Error> {
    let temporary = folder.join(format!(".{name}.tmp"));
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(&temporary)?);
        content(&mut file)?;
        file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
        std::fs::rename(&temporary, folder.join(name))?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|source| Error::Io { path: folder.join(name), source })
}

/// Removes the file of the other layout, which would describe older weights.
fn remove_stale(folder: &Path, name: &str) -> Result<(), Error> {
    let path = folder.join(name);
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::Io { path, source }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::WeightFolder;
    use tch::Kind;

    fn parameter(name: &str, kind: Kind, first: f64) -> Parameter {
        Parameter::replicated(name, &Tensor::from_slice(&[first, 2.0, 3.0]).to_kind(kind))
    }

    #[test]
    fn shards_hold_what_fits_and_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let parameters = [
            parameter("a", Kind::Float, 1.5),
            parameter("b", Kind::BFloat16, 2.5),
            parameter("c", Kind::Float, 3.5),
        ];
        // 12 + 6 bytes fit in 20; the third begins a second file.
        save_in_shards(folder.path(), &parameters, 20).unwrap();
        assert!(folder.path().join("model-00002-of-00002.safetensors").exists());
        let mut weights = WeightFolder::open(folder.path()).unwrap();
        for parameter in &parameters {
            let read = weights.tensor(std::slice::from_ref(&parameter.name), &[3]).unwrap();
            assert_eq!(read, parameter.tensor);
        }
        weights.check_all_used(|_| false).unwrap();
        save_in_shards(folder.path(), &parameters[..1], 20).unwrap();
        assert!(!folder.path().join(INDEX).exists());
        assert!(WeightFolder::open(folder.path()).unwrap().tensor(&["b".to_owned()], &[3]).is_err());
    }

    #[test]
    fn nothing_temporary_is_left() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), &[parameter("a", Kind::Float, 1.0)]).unwrap();
        let names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [SINGLE]);
    }
}
