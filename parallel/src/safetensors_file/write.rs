//! Writes safetensors files. Shards are gathered one tensor at a time, so no process ever holds all full
//! tensors.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tch::{Device, Kind, Tensor};

use super::element::{DTYPES, index_of};
use super::{AllowedValues, Error};
use crate::comm::ProcessGroup;
use crate::residency::{HeldWeights, Residency};
use crate::{Parameter, Placement};

/// The message tag of tensors sent to the rank that writes the file.
const TAG: usize = usize::MAX;

/// Takes a full tensor on the rank that writes.
type Consume<'a> = dyn FnMut(&Tensor) -> Result<(), Error> + 'a;

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct NamedTensor<'a> {
    /// The name of the tensor in the file.
    pub name: &'a str,
    /// This rank's shard.
    pub tensor: &'a Tensor,
    /// How the full tensor is distributed over the ranks.
    pub placement: &'a Placement,
    /// Whether the tensor belongs to an expert, and is therefore shared by other ranks than the rest.
    pub is_expert: bool,
    /// What keeps this rank's shard in memory while it is written, and the index of the tensor there. `None`
    /// for a tensor that always is in memory.
    pub residency: Option<(&'a dyn Residency, usize)>,
}

impl<'a> NamedTensor<'a> {
    /// A parameter. `residency` is what keeps its values in memory, and its index there.
    pub fn of(parameter: &'a Parameter, residency: Option<(&'a dyn Residency, usize)>) -> Self {
        let Parameter { name, tensor, placement, is_expert, .. } = parameter;
        Self { name, tensor, placement, is_expert: *is_expert, residency }
    }
}

/// The description of a tensor that all ranks of the pipeline-expert group share.
#[derive(Serialize, Deserialize)]
struct Entry {
    name: String,
    dtype: String,
    shape: Vec<i64>,
    /// The rank that holds the tensor, and its index on that rank.
    owner: usize,
    index: usize,
}

impl Entry {
    fn kind(&self) -> Kind {
        let known = DTYPES.iter().find(|(dtype, _)| *dtype == self.dtype);
        known.expect("all ranks run the same build, so the dtype is known").1
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<i64>() as usize * self.kind().elt_size_in_bytes()
    }
}

/// What the ranks of a pipeline-expert group do when tensors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteRole {
    /// They gather full tensors, and the first rank writes the file.
    Writes,
    /// They hold the other shards of tensors that another group writes.
    GivesShards,
    /// They belong to another replica of the model, and share only what is divided over the replicas.
    OtherReplica,
}

/// The role of `pipeline_expert_group` in replica number `replica` of a model. `placements` are the
/// placements of all tensors of the group's first rank, not only of those in one file.
pub fn write_role<'p>(
    mut placements: impl Iterator<Item = &'p Placement>,
    replica: usize,
    pipeline_expert_group: &ProcessGroup,
) -> Result<WriteRole, Error> {
    let role = match replica {
        0 if placements.all(Placement::is_writer) => WriteRole::Writes,
        0 => WriteRole::GivesShards,
        _ => WriteRole::OtherReplica,
    };
    Ok(pipeline_expert_group.all_gather_object(vec![role])?[0])
}

/// Writes the full `tensors` to a file. Every rank that holds a shard calls this function with its own
/// shards. Of the ranks whose role is [`WriteRole::Writes`], the first one writes and the others send their
/// tensors to it. The ranks of `pipeline_expert_group` hold different tensors; if several of them hold a
/// tensor of the same name, the first copy is written. `metadata` are texts about the file, by key. A number
/// that is not finite ends the writing, and the file does not appear.
pub fn write(
    path: &Path,
    tensors: &[NamedTensor<'_>],
    metadata: &[(&str, &str)],
    role: WriteRole,
    pipeline_expert_group: &ProcessGroup,
) -> Result<(), Error> {
    let entries = entries(path, tensors, pipeline_expert_group)?;
    let writes = role == WriteRole::Writes && pipeline_expert_group.rank() == 0;
    let index_of: HashMap<&str, usize> =
        tensors.iter().enumerate().map(|(index, named)| (named.name, index)).collect();

    // Gathers a full tensor and passes it to `consume` on the rank that writes. Every rank calls it for all
    // entries in the same order, because gathering is collective. A tensor stays in memory until the next one
    // is, so that a chunk of sharded weights is gathered once for all of them. Experts have a sequence of
    // their own: the ranks that share the other tensors have different experts between two of them.
    let mut held = [HeldWeights::none(), HeldWeights::none()];
    let mut gather_full = |entry: &Entry, consume: &mut Consume<'_>| -> Result<(), Error> {
        // The ranks that share a sharded tensor gather it together, whichever of them passes it on.
        let is_owner = entry.owner == pipeline_expert_group.rank();
        let own_copy = index_of.get(entry.name.as_str()).map(|&index| &tensors[index]);
        let reads = is_owner && role != WriteRole::OtherReplica;
        if let Some(named) = own_copy
            && let Some((residency, index)) = named.residency
            && (reads || residency.is_sharded())
        {
            held[usize::from(named.is_expert)].fetch_next(Some(residency), index)?;
        }
        if role == WriteRole::OtherReplica {
            return Ok(());
        }
        if !is_owner {
            let options = (entry.kind(), Device::Cpu);
            let receive = || pipeline_expert_group.recv(&entry.shape, options, entry.owner, TAG);
            return if writes { consume(&receive()?) } else { Ok(()) };
        }
        let named = &tensors[entry.index];
        let full = named.placement.full_tensor(named.tensor)?;
        if role == WriteRole::Writes && entry.owner != 0 {
            pipeline_expert_group.send(&full.to_device(Device::Cpu).contiguous(), 0, TAG)?.wait()?;
        }
        if writes { consume(&full) } else { Ok(()) }
    };

    if !writes {
        return entries.iter().try_for_each(|entry| gather_full(entry, &mut |_| Ok(())));
    }

    let header = header(&entries, metadata);
    write_with(path, |file| {
        let io = |source| Error::Io { path: path.to_owned(), source };
        file.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
        file.write_all(header.as_bytes()).map_err(io)?;
        for entry in &entries {
            gather_full(entry, &mut |full| write_values(path, file, &entry.name, full))?;
        }
        Ok(())
    })
}

/// What a tensor of a file is.
#[derive(Clone, Debug)]
pub struct TensorSpec {
    /// The name of the tensor in the file.
    pub name: String,
    /// The dtype.
    pub kind: Kind,
    /// The shape.
    pub shape: Vec<i64>,
}

impl TensorSpec {
    /// The bytes of the tensor.
    pub fn num_bytes(&self) -> usize {
        self.shape.iter().product::<i64>() as usize * self.kind.elt_size_in_bytes()
    }
}

/// Writes a file whose tensors come one after the other: `tensor` gives the values of an entry of `specs`,
/// which are dropped before the next one is asked for. This process alone writes the file.
pub fn write_each<E: From<Error>>(
    path: &Path,
    specs: &[TensorSpec],
    mut tensor: impl FnMut(&TensorSpec) -> Result<Tensor, E>,
) -> Result<(), E> {
    let mut specs: Vec<&TensorSpec> = specs.iter().collect();
    specs.sort_by_key(|spec| std::cmp::Reverse(spec.kind.elt_size_in_bytes()));
    let entry = |spec: &&TensorSpec| {
        let (name, shape) = (spec.name.clone(), spec.shape.clone());
        let dtype = dtype(path, &name, spec.kind)?.to_owned();
        Ok::<_, Error>(Entry { name, dtype, shape, owner: 0, index: 0 })
    };
    let header = header(&specs.iter().map(entry).collect::<Result<Vec<_>, Error>>()?, &[]);
    write_with(path, |file| {
        let io = |source| Error::Io { path: path.to_owned(), source };
        file.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
        file.write_all(header.as_bytes()).map_err(io)?;
        for spec in specs {
            let values = tensor(spec)?;
            assert_eq!((values.kind(), &values.size()), (spec.kind, &spec.shape), "`{}`", spec.name);
            write_values(path, file, &spec.name, &values)?;
        }
        Ok(())
    })
}

/// The header of a file with these tensors, one after the other, padded to a multiple of eight bytes.
fn header(entries: &[Entry], metadata: &[(&str, &str)]) -> String {
    let mut texts = Map::from_iter([("format".to_owned(), "pt".into())]);
    texts.extend(metadata.iter().map(|&(key, text)| (key.to_owned(), text.into())));
    let mut header = Map::from_iter([("__metadata__".to_owned(), Value::Object(texts))]);
    let mut start = 0;
    for entry in entries {
        let end = start + entry.bytes();
        let header_entry = json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [start, end]});
        header.insert(entry.name.clone(), header_entry);
        start = end;
    }

    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    header
}

/// The tensors of all ranks of the pipeline-expert group, in the order of the file.
fn entries(
    path: &Path,
    tensors: &[NamedTensor<'_>],
    pipeline_expert_group: &ProcessGroup,
) -> Result<Vec<Entry>, Error> {
    let mut local_entries = Vec::with_capacity(tensors.len());
    for (index, named) in tensors.iter().enumerate() {
        let shape = named.placement.global_shape(&named.tensor.size());
        let dtype = dtype(path, named.name, named.tensor.kind())?.to_owned();
        local_entries.push(Entry {
            name: named.name.to_owned(),
            dtype,
            shape,
            owner: pipeline_expert_group.rank(),
            index,
        });
    }
    let mut entries = pipeline_expert_group.all_gather_object(local_entries)?;
    let mut seen = BTreeSet::new();
    entries.retain(|entry| seen.insert(entry.name.clone()));
    // The widest dtypes come first, so that every tensor starts at a multiple of its element size.
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.kind().elt_size_in_bytes()));
    Ok(entries)
}

/// Writes a small file under a temporary name, syncs it and renames it.
pub fn write_bytes(path: &Path, content: &[u8]) -> Result<(), Error> {
    write_with(path, |file| {
        file.write_all(content).map_err(|source| Error::Io { path: path.to_owned(), source })
    })
}

fn dtype(path: &Path, name: &str, kind: Kind) -> Result<&'static str, Error> {
    let known = DTYPES.iter().find(|(_, known)| *known == kind).map(|(dtype, _)| *dtype);
    let unknown = || {
        let (name, dtype) = (name.to_owned(), format!("{kind:?}"));
        Error::Dtype { path: path.to_owned(), name, dtype }
    };
    known.ok_or_else(unknown)
}

/// Writes the values of a tensor, piece by piece, because a second copy of a large tensor may not fit. Fails
/// if one of them is not finite.
fn write_values(path: &Path, file: &mut BufWriter<File>, name: &str, tensor: &Tensor) -> Result<(), Error> {
    const PIECE_ELEMENTS: i64 = 1 << 20;
    let shape = tensor.size();
    let tensor = tensor.detach().to_device(Device::Cpu).contiguous().view([-1]);
    let (numel, kind) = (tensor.numel() as i64, tensor.kind());
    let mut buffer = Vec::new();
    for start in (0..numel).step_by(PIECE_ELEMENTS as usize) {
        let piece = tensor.narrow(0, start, PIECE_ELEMENTS.min(numel - start));
        buffer.resize(piece.numel() * kind.elt_size_in_bytes(), 0);
        piece.copy_data_u8(&mut buffer, piece.numel());
        if let Some((found, value)) = AllowedValues::Finite.first_refused(&buffer, kind) {
            let index = index_of(start as u64 + found as u64, &shape);
            return Err(Error::NotFinite { name: name.to_owned(), index, value });
        }
        file.write_all(&buffer).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    }
    Ok(())
}

fn write_with<E: From<Error>>(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
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
    Ok(finish().map_err(io)?)
}
