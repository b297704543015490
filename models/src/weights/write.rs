//! Writes weights: one file up to five gigabytes, otherwise numbered files and an index, as in transformers.

use std::collections::BTreeSet;
use std::path::Path;

use parallel::Parameter;
use parallel::comm::ProcessGroup;
use parallel::residency::Residency;
use parallel::safetensors_file::{self, NamedTensor, TensorSpec, WriteRole};
use serde_json::{Map, Value, json};
use tch::Tensor;

use super::names::{INDEX, SINGLE};
use crate::Error;
use crate::config::Config;

/// The maximum size of one file in bytes, unless a single tensor is larger.
const SHARD_BYTES: usize = 5_000_000_000;

/// Writes `config.json` and the full parameters to a folder, which is created if necessary. Every rank of
/// `pipeline_expert_group`, which together holds all parameters, must call it; its first rank writes, in
/// replica 0 of the model.
pub(crate) fn save(
    folder: &Path,
    config: &Config,
    parameters: &[Parameter],
    residency: Option<&dyn Residency>,
    replica: usize,
    pipeline_expert_group: &ProcessGroup,
) -> Result<(), Error> {
    if save_in_shards(folder, parameters, residency, SHARD_BYTES, replica, pipeline_expert_group)? {
        safetensors_file::write_bytes(&folder.join("config.json"), config.to_json().as_bytes())?;
    }
    Ok(())
}

/// Writes the weights in files of at most `limit` bytes. Returns whether this rank is the one that writes.
fn save_in_shards(
    folder: &Path,
    parameters: &[Parameter],
    residency: Option<&dyn Residency>,
    limit: usize,
    replica: usize,
    pipeline_expert_group: &ProcessGroup,
) -> Result<bool, Error> {
    let sizes = parameters.iter().map(|parameter| (parameter.name.clone(), parameter.num_bytes()));
    let mut sizes = pipeline_expert_group.all_gather_object(sizes.collect())?;
    let mut seen = BTreeSet::new();
    sizes.retain(|(name, _)| seen.insert(name.clone()));
    let shards = shards(&sizes, limit);

    let placements = parameters.iter().map(|parameter| &parameter.placement);
    let role = safetensors_file::write_role(placements, replica, pipeline_expert_group)?;
    let writes = role == WriteRole::Writes && pipeline_expert_group.rank() == 0;
    if writes {
        std::fs::create_dir_all(folder).map_err(|source| Error::Io { path: folder.to_owned(), source })?;
    }

    let mut map = Map::new();
    for (index, shard) in shards.iter().enumerate() {
        let file = file_name(index, shards.len());
        let local_parameters = parameters.iter().enumerate();
        let local_parameters =
            local_parameters.filter(|(_, parameter)| shard.contains(&parameter.name.as_str()));
        let named = local_parameters.map(|(index, parameter)| {
            NamedTensor::of(parameter, residency.map(|residency| (residency, index)))
        });
        safetensors_file::write(
            &folder.join(&file),
            &named.collect::<Vec<_>>(),
            &[],
            role,
            pipeline_expert_group,
        )?;
        map.extend(shard.iter().map(|name| ((*name).to_owned(), json!(file))));
    }

    if !writes {
        return Ok(false);
    }
    if shards.len() == 1 {
        remove_stale(folder, INDEX)?;
        return Ok(true);
    }
    write_index(folder, &sizes, &map)?;
    remove_stale(folder, SINGLE)?;
    Ok(true)
}

/// Writes `config.json` and tensors that come one after the other: `tensor` gives the values of an entry of
/// `specs`, which are dropped before the next one is asked for. This process alone writes.
pub(crate) fn save_each(
    folder: &Path,
    config: &Config,
    specs: &[TensorSpec],
    mut tensor: impl FnMut(&TensorSpec) -> Result<Tensor, Error>,
) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|source| Error::Io { path: folder.to_owned(), source })?;
    let sizes: Vec<(String, usize)> =
        specs.iter().map(|spec| (spec.name.clone(), spec.num_bytes())).collect();
    let shards = shards(&sizes, SHARD_BYTES);
    let mut map = Map::new();
    for (index, shard) in shards.iter().enumerate() {
        let file = file_name(index, shards.len());
        let own: Vec<TensorSpec> =
            specs.iter().filter(|spec| shard.contains(&spec.name.as_str())).cloned().collect();
        safetensors_file::write_each(&folder.join(&file), &own, &mut tensor)?;
        map.extend(shard.iter().map(|name| ((*name).to_owned(), json!(file))));
    }
    if shards.len() > 1 {
        write_index(folder, &sizes, &map)?;
    }
    Ok(safetensors_file::write_bytes(&folder.join("config.json"), config.to_json().as_bytes())?)
}

/// The name of a weight file among `count`.
fn file_name(index: usize, count: usize) -> String {
    match count {
        1 => SINGLE.to_owned(),
        count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
    }
}

/// Writes the index of several weight files.
fn write_index(folder: &Path, sizes: &[(String, usize)], map: &Map<String, Value>) -> Result<(), Error> {
    let total: usize = sizes.iter().map(|(_, bytes)| bytes).sum();
    let index = json!({"metadata": {"total_size": total}, "weight_map": map});
    Ok(safetensors_file::write_bytes(&folder.join(INDEX), format!("{index:#}\n").as_bytes())?)
}

/// Distributes the tensors over files of at most `limit` bytes, and returns the tensor names of each file.
fn shards(sizes: &[(String, usize)], limit: usize) -> Vec<Vec<&str>> {
    let mut shards: Vec<Vec<&str>> = vec![Vec::new()];
    let mut shard_bytes = 0;
    for (name, bytes) in sizes {
        if shard_bytes + bytes > limit && shard_bytes > 0 {
            shards.push(Vec::new());
            shard_bytes = 0;
        }
        shard_bytes += bytes;
        shards.last_mut().expect("the list begins with one shard").push(name);
    }
    shards
}

/// Removes the file of the other layout, which would contain or describe older weights.
fn remove_stale(folder: &Path, name: &str) -> Result<(), Error> {
    let path = folder.join(name);
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::Io { path, source }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parallel::c10d::Secret;
    use parallel::rendezvous::open_store;
    use parallel::world::RENDEZVOUS_TIMEOUT;
    use parallel::{Axis, Mesh, Placement, RankInfo, ShardSpec, Transport, World};
    use tch::{Kind, Tensor};

    use super::*;
    use crate::weights::WeightFolder;

    fn parameter(name: &str, kind: Kind, first: f64) -> Parameter {
        Parameter::replicated(name, &Tensor::from_slice(&[first, 2.0, 3.0]).to_kind(kind))
    }

    fn alone() -> ProcessGroup {
        ProcessGroup::single("stages", 0)
    }

    #[test]
    fn shards_hold_what_fits_and_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let parameters = [
            parameter("a", Kind::Float, 1.5),
            parameter("b", Kind::BFloat16, 2.5),
            parameter("c", Kind::Float, 3.5),
        ];
        // 12 + 6 bytes fit in 20; the third tensor starts a second file.
        save_in_shards(folder.path(), &parameters, None, 20, 0, &alone()).unwrap();
        assert!(folder.path().join("model-00002-of-00002.safetensors").exists());
        let mut weights = WeightFolder::open(folder.path()).unwrap();
        for parameter in &parameters {
            let read =
                weights.tensor(std::slice::from_ref(&parameter.name), &[3], &Placement::Replicate).unwrap();
            assert_eq!(read, parameter.tensor);
        }
        weights.check_all_used(|_| false).unwrap();
        save_in_shards(folder.path(), &parameters[..1], None, 20, 0, &alone()).unwrap();
        assert!(!folder.path().join(INDEX).exists());
        assert!(
            WeightFolder::open(folder.path())
                .unwrap()
                .tensor(&["b".to_owned()], &[3], &Placement::Replicate)
                .is_err()
        );
    }

    #[test]
    fn a_file_without_tensors_of_the_first_stage_is_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let meeting = RankInfo { secret: Some(Secret::random().unwrap()), ..RankInfo::single() };
        let server = open_store(&meeting, RENDEZVOUS_TIMEOUT).unwrap();
        let meeting = RankInfo { port: server.port(), uses_agent_store: true, ..meeting };
        // Two pipeline stages, and in each stage two tensor-parallel ranks that hold half of the columns
        // each.
        let rank = |rank: usize| {
            let rank_info = RankInfo { rank, size: 4, ..meeting.clone() };
            let world = World::join(rank_info, Transport::Auto, RENDEZVOUS_TIMEOUT).unwrap();
            let mesh = Mesh::new(&[(Axis::Pipeline, 2), (Axis::Tensor, 2)], rank, 4).unwrap();
            let groups = world.groups(&mesh).unwrap();
            let placement = Placement::Shard {
                spec: ShardSpec::even(0, 4, 2),
                group: Arc::clone(groups.tensor_parallel()),
            };
            let (name, first) = [("a", 1.0f32), ("b", 10.0)][mesh.coordinate(Axis::Pipeline)];
            let shard = placement.shard(&Tensor::from_slice(&[first, 2.0, 3.0, 4.0]));
            let parameter = Parameter { placement, ..Parameter::replicated(name, &shard) };
            let wrote =
                save_in_shards(folder.path(), &[parameter], None, 20, 0, groups.pipeline_expert_group())
                    .unwrap();
            groups.world().barrier().unwrap();
            wrote
        };
        let wrote = std::thread::scope(|scope| {
            let rank = &rank;
            let ranks: Vec<_> = (0..4).map(|index| scope.spawn(move || rank(index))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(wrote, [true, false, false, false]);
        let mut weights = WeightFolder::open(folder.path()).unwrap();
        for (name, first) in [("a", 1.0f32), ("b", 10.0)] {
            let read = weights.tensor(&[name.to_owned()], &[4], &Placement::Replicate).unwrap();
            assert_eq!(read, Tensor::from_slice(&[first, 2.0, 3.0, 4.0]));
        }
    }

    #[test]
    fn nothing_temporary_is_left() {
        let folder = tempfile::tempdir().unwrap();
        save_in_shards(folder.path(), &[parameter("a", Kind::Float, 1.0)], None, 20, 0, &alone()).unwrap();
        let names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [SINGLE]);
    }
}
