//! Writing: parts are put together one tensor at a time, so that the whole is never in one memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};
use tch::{Device, Kind, Tensor};

use super::{DTYPES, Error, Named};

/// Writes the whole of `tensors` to a file. Every rank that holds a part calls it with its own parts; the first rank writes.
pub fn write(path: &Path, tensors: &[Named<'_>]) -> Result<(), Error> {
    let mut sorted = tensors.to_vec();
    // Wide numbers first, so that every tensor lies at a multiple of its numbers' size.
    sorted.sort_by_key(|named| std::cmp::Reverse(named.tensor.kind().elt_size_in_bytes()));
    if !tensors.iter().all(|named| named.placement.writes()) {
        for named in sorted {
            let _whole = named.placement.whole(named.tensor)?;
        }
        return Ok(());
    }
    let mut header = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let mut start = 0;
    for named in &sorted {
        let shape = named.placement.whole_shape(&named.tensor.size());
        let kind = named.tensor.kind();
        let end = start + shape.iter().product::<i64>() as usize * kind.elt_size_in_bytes();
        let entry = json!({"dtype": dtype(path, named, kind)?, "shape": shape, "data_offsets": [start, end]});
        header.insert(named.name.to_owned(), entry);
        start = end;
    }
    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    write_with(path, |file| {
        let io = |source| Error::Io { path: path.to_owned(), source };
        file.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
        file.write_all(header.as_bytes()).map_err(io)?;
        for named in &sorted {
            file.write_all(&bytes(&named.placement.whole(named.tensor)?)).map_err(io)?;
        }
        Ok(())
    })
}

/// Writes a small file under a temporary name, syncs it and renames it.
pub fn write_bytes(path: &Path, content: &[u8]) -> Result<(), Error> {
    write_with(path, |file| {
        file.write_all(content).map_err(|source| Error::Io { path: path.to_owned(), source })
    })
}

fn dtype(path: &Path, named: &Named<'_>, kind: Kind) -> Result<&'static str, Error> {
    let known = DTYPES.iter().find(|(_, known)| *known == kind).map(|(dtype, _)| *dtype);
    let unknown = || {
        let (name, dtype) = (named.name.to_owned(), format!("{kind:?}"));
        Error::Dtype { path: path.to_owned(), name, dtype }
    };
    known.ok_or_else(unknown)
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    let tensor = tensor.to_device(Device::Cpu).contiguous();
    let mut buffer = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
    tensor.copy_data_u8(&mut buffer, tensor.numel());
    buffer
}

fn write_with(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<File>) -> Result<(), Error>,
) -> Result<(), Error> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(format!(".{name}.tmp"));
    let mut file = BufWriter::new(File::create(&temporary).map_err(io)?);
    content(&mut file)?;
    let finish = || -> std::io::Result<()> {
        file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
        std::fs::rename(&temporary, path)?;
        File::open(folder)?.sync_all()
    };
    finish().map_err(io)
}
