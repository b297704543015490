//! What the weight files of a model folder hold.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use parallel::safetensors_file::TensorFile;

/// Counts the stored values per data type, and the bytes of all tensors, from the headers of the safetensors
/// files.
pub(super) fn measure_weights(folder: &Path) -> anyhow::Result<(BTreeMap<String, u64>, u64)> {
    let (mut counts, mut bytes) = (BTreeMap::new(), 0);
    let failed = |source| models::Error::Io { path: folder.to_owned(), source };
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let file = TensorFile::open(&path)?;
        for name in file.names() {
            let (dtype, shape) = (file.dtype(name).unwrap_or_default(), file.shape(name).unwrap_or_default());
            *counts.entry(dtype.to_owned()).or_insert(0) += shape.iter().product::<i64>() as u64;
            bytes += file.num_bytes(name).unwrap_or_default();
        }
    }
    Ok((counts, bytes))
}
