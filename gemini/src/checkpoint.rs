//! The trainer's state next to the weights, and folders that are written completely or not at all.
//!
//! `trainer_state/optimizer.safetensors` holds the moments (and, for bf16 weights, the masters) under the
//! names `exp_avg.NAME`, `exp_avg_sq.NAME` and `master.NAME`. `trainer_state/state.json` holds the step and
//! the stage's own state (data order, coefficients). `trainer_state/files.json` holds the size of every file
//! of the checkpoint, and of all but the tensors a hash of the content, so that [`verify`] finds missing,
//! truncated and changed files. No number that is not finite is written. There is no `rng_state`, as
//! Megatron and transformers save it: every generator is seeded from the seed of the run and the iteration,
//! epoch or request. A folder is written under a temporary name, synced, and renamed. It never replaces
//! another folder.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use parallel::safetensors_file::{self, AllowedValues, NamedTensor, TensorFile};
use parallel::{fnv1a, regular_file};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::StateTensor;
use crate::{Engine, Error};

/// The name of the state's folder inside a checkpoint.
pub const STATE_FOLDER: &str = "trainer_state";
/// The file with the step and the state of the stage, inside [`STATE_FOLDER`].
const STATE: &str = "state.json";
/// The file with the moments and the masters, inside [`STATE_FOLDER`].
const OPTIMIZER: &str = "optimizer.safetensors";
/// The file with the sizes and hashes of all files of a checkpoint, inside [`STATE_FOLDER`].
const MANIFEST: &str = "files.json";
/// No JSON file of a checkpoint is longer, in bytes.
const LARGEST_JSON: u64 = 256 << 20;
/// Files that every resume needs. Weight files have varying names and are checked separately.
const REQUIRED_FILES: [&str; 4] =
    ["config.json", "tokenizer.json", "trainer_state/state.json", "trainer_state/optimizer.safetensors"];

/// Fills a folder under a temporary name and renames it to `target`, which must be absent or an empty folder.
///
/// `fill` writes into the folder whose path it receives. If it fails, the temporary folder is removed. On
/// success every file, the name `target` and every newly created parent folder are synced to disk.
pub fn write_folder<E: From<Error>>(
    target: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    if is_occupied(target) {
        return Err(Error::AlreadyExists { path: target.to_owned() }.into());
    }
    let parent = parent(target);
    create_folder(parent)?;
    // The name is new, so no other process uses the folder, and an existing link is not followed.
    let partial = tempfile::Builder::new()
        .prefix(&temporary_prefix(target))
        .suffix(".tmp")
        .permissions(Permissions::from_mode(0o777))
        .tempdir_in(parent)
        .map_err(|source| io(target, source))?;
    fill(partial.path())?;
    sync(partial.path())?;
    // `rename` also fails if a non-empty folder has appeared at `target` in the meantime.
    fs::rename(partial.path(), target).map_err(|source| io(target, source))?;
    let _ = partial.keep();
    sync_folder(parent)?;
    Ok(())
}

/// The prefix of the temporary name of `target`. Letters and digits follow it, and the name ends in `.tmp`.
///
/// The prefix contains the process id, so that a process stopped by a signal can remove the files it was
/// writing.
pub fn temporary_prefix(target: &Path) -> String {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    format!(".{name}.{}-", std::process::id())
}

/// The final name that belongs to the temporary file or folder `entry`, and the id of the process that wrote
/// it. `None` if `entry` is not a temporary name. Earlier versions wrote no process id.
pub fn parse_temporary(entry: &str) -> Option<(&str, Option<u32>)> {
    let rest = entry.strip_prefix('.')?.strip_suffix(".tmp")?;
    let Some((name, tag)) = rest.rsplit_once('.') else { return Some((rest, None)) };
    if tag == "old" {
        return Some((name, None));
    }
    let (process, random) = tag.split_once('-')?;
    let sound = random.chars().all(|character| character.is_ascii_alphanumeric());
    Some((name, Some(process.parse().ok().filter(|_| sound)?)))
}

/// Whether anything other than an empty folder exists at `target`.
pub fn is_occupied(target: &Path) -> bool {
    let Ok(found) = fs::symlink_metadata(target) else { return false };
    let is_empty = || fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none());
    !((found.is_dir() || found.is_symlink()) && is_empty())
}

/// Creates `folder` and its missing parent folders. Every new name is synced to disk when this returns.
pub fn create_folder(folder: &Path) -> Result<(), Error> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = parent(folder);
    create_folder(parent)?;
    match fs::create_dir(folder) {
        Err(source) if !folder.is_dir() => Err(io(folder, source)),
        _ => sync_folder(parent),
    }
}

/// The folder that contains `path`: `.` for a bare name, whose parent would be the empty path, which cannot
/// be opened.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Saves the engine's state and the stage's own `extra` under `folder/trainer_state`. Every rank that saves
/// weights ([`parallel::ProcessGroups::saves_weights`]) calls it, and with ZeRO every rank. Rank 0 writes.
pub fn save_state<S: Serialize>(folder: &Path, engine: &Engine, extra: &S) -> Result<(), Error> {
    let folder = folder.join(STATE_FOLDER);
    let state = engine.state()?;
    let writes = engine.groups().is_rank_zero();
    if writes {
        fs::create_dir_all(&folder).map_err(|source| io(&folder, source))?;
    }

    // A rank that does not write takes part in gathering, and sends its tensors.
    let named: Vec<NamedTensor<'_>> = state.iter().map(StateTensor::named).collect();
    let pipeline_expert_group = engine.groups().pipeline_expert_group();
    let role = safetensors_file::write_role(
        named.iter().map(|named| named.placement),
        engine.groups().expert_data_parallel().rank(),
        pipeline_expert_group,
    )?;
    safetensors_file::write(&folder.join(OPTIMIZER), &named, &[], role, pipeline_expert_group)?;
    if !writes {
        return Ok(());
    }

    let state = serde_json::json!({ "step": engine.step_count(), "stage": extra });
    let path = folder.join(STATE);
    let text = serde_json::to_string_pretty(&state).map_err(|source| state_error(&path, &source))?;
    fs::write(&path, text).map_err(|source| io(&path, source))
}

/// Restores what [`save_state`] saved into an engine over the same parameters, and returns the stage's own
/// part. The mesh may differ from the one that saved the state. A moment or master that is not finite is
/// refused, as is a second moment below zero: the next step would make a weight NaN of it.
pub fn load_state<S: DeserializeOwned>(checkpoint: &Path, engine: &mut Engine) -> Result<S, Error> {
    let folder = checkpoint.join(STATE_FOLDER);
    let path = folder.join(OPTIMIZER);
    let saved = TensorFile::open(&path).map_err(|source| state_error(&path, &source))?;

    // Every saved tensor must belong to this run: the counts over the pipeline and expert ranks must agree.
    let states = engine.state()?;
    let owned = states.iter().filter(|state| state.owns_parameter).count();
    let [all] = engine.groups().pipeline_expert_group().all_reduce_sum([owned as f64])?;
    if saved.names().count() as f64 != all {
        let problem = format!("it holds {} tensors and this run has {all}", saved.names().count());
        return Err(Error::State { path, problem });
    }

    for state in states {
        let StateTensor { name, tensor, placement, .. } = &state;
        let shape = placement.global_shape(&tensor.size());
        match saved.shape(name) {
            Some(found) if found == shape => {
                state.set(&saved.read_allowed(name, &shape, placement, allowed_values(&path, name))?)?;
            }
            Some(found) => {
                let problem = format!("{name} has the shape {found:?} and this run wants {shape:?}");
                return Err(Error::State { path, problem });
            }
            None => return Err(Error::State { path, problem: format!("it has no {name}") }),
        }
    }

    let path = folder.join(STATE);
    let text = regular_file::read_to_string(&path, LARGEST_JSON).map_err(|source| io(&path, source))?;
    let SavedState { step, stage } =
        serde_json::from_str(&text).map_err(|source| state_error(&path, &source))?;
    engine.set_step(step);
    serde_json::from_value(stage).map_err(|source| state_error(&path, &source))
}

/// The numbers that the tensor `name` of the file `path` of a checkpoint may hold.
fn allowed_values(path: &Path, name: &str) -> AllowedValues {
    if path.ends_with(OPTIMIZER) && name.starts_with("exp_avg_sq.") {
        AllowedValues::NotNegative
    } else {
        AllowedValues::Finite
    }
}

/// The content of `state.json`.
#[derive(Deserialize)]
struct SavedState {
    /// Number of completed optimizer steps.
    step: u64,
    /// The state of the stage.
    stage: Value,
}

/// What the manifest says of a file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ListedFile {
    /// Its size and the hash of its content. The hash of tensors is not kept: to compare it would take as
    /// long as to load them.
    Hashed { bytes: u64, fnv1a: Option<String> },
    /// Its size, in checkpoints of earlier versions.
    Sized(u64),
}

impl ListedFile {
    fn of(path: &Path) -> Result<Self, Error> {
        let bytes = fs::metadata(path).map_err(|source| io(path, source))?.len();
        let is_tensors = path.extension().is_some_and(|extension| extension == "safetensors");
        Ok(Self::Hashed { bytes, fnv1a: if is_tensors { None } else { Some(content_hash(path)?) } })
    }

    /// Checks the size and the content of the file.
    fn check(&self, path: &Path) -> Result<(), Error> {
        let (bytes, hash) = match self {
            Self::Hashed { bytes, fnv1a } => (*bytes, fnv1a.as_deref()),
            Self::Sized(bytes) => (*bytes, None),
        };
        check_size(path, Some(bytes))?;
        match hash {
            Some(hash) if content_hash(path)? != hash => {
                Err(damaged(path, &"its content has changed since the checkpoint was saved: restore it"))
            }
            _ => Ok(()),
        }
    }
}

fn content_hash(path: &Path) -> Result<String, Error> {
    let content = regular_file::read(path, LARGEST_JSON).map_err(|source| io(path, source))?;
    Ok(format!("{:016x}", fnv1a(content)))
}

/// Writes the manifest: the size of every file of the checkpoint `folder`, which must otherwise be complete,
/// and the hash of every file but the tensors.
pub fn write_manifest(folder: &Path) -> Result<(), Error> {
    let mut files = BTreeMap::new();
    for name in list_files(folder, Path::new(""))? {
        let listed = ListedFile::of(&folder.join(&name))?;
        files.insert(name, listed);
    }
    let path = folder.join(STATE_FOLDER).join(MANIFEST);
    let text = serde_json::to_string_pretty(&files).map_err(|source| state_error(&path, &source))?;
    fs::write(&path, text).map_err(|source| io(&path, source))
}

/// The files below `folder`, as paths relative to it.
fn list_files(folder: &Path, below: &Path) -> Result<Vec<String>, Error> {
    let here = folder.join(below);
    let mut found = Vec::new();
    for entry in fs::read_dir(&here).map_err(|source| io(&here, source))? {
        let name = below.join(entry.map_err(|source| io(&here, source))?.file_name());
        if folder.join(&name).is_dir() {
            found.extend(list_files(folder, &name)?);
        } else {
            found.push(name.display().to_string());
        }
    }
    Ok(found)
}

/// Checks that the checkpoint `folder` is complete, without reading its tensors.
///
/// Every file listed in `files.json` must have the listed size, and if it holds no tensors, the same content.
/// Every JSON file must parse. The header of every safetensors file must parse, and its tensors must lie
/// inside the file. The tensor bytes are not compared: they were synced before the checkpoint got its name.
pub fn verify(folder: &Path) -> Result<(), Error> {
    verified_files(folder).map(drop)
}

/// [Verifies](verify) the checkpoint `folder`, and returns its files.
fn verified_files(folder: &Path) -> Result<Vec<String>, Error> {
    let names = needed_files(folder)?;
    for name in &names {
        let path = folder.join(name);
        check_size(&path, None)?;
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("safetensors") => drop(TensorFile::open(&path)?),
            Some("json") => drop(read_json(&path)?),
            _ => {}
        }
    }
    Ok(names)
}

/// [Verifies](verify) the checkpoint `folder`, and reads all of its tensors: every number must be finite, and
/// no second moment below zero.
pub fn verify_values(folder: &Path) -> Result<(), Error> {
    let is_tensors = |name: &String| name.ends_with(".safetensors");
    for name in verified_files(folder)?.into_iter().filter(is_tensors) {
        let path = folder.join(name);
        TensorFile::open(&path)?.check_values(|tensor| allowed_values(&path, tensor))?;
    }
    Ok(())
}

/// The files of a checkpoint, of which those that `files.json` lists are compared with it.
fn needed_files(folder: &Path) -> Result<Vec<String>, Error> {
    let Some(files) = read_manifest(folder)? else {
        return Ok([&REQUIRED_FILES.map(str::to_owned)[..], &weight_files(folder)?].concat());
    };
    files.iter().try_for_each(|(name, listed)| listed.check(&folder.join(name)))?;
    Ok(files.into_keys().collect())
}

/// What `files.json` lists. `None` if the checkpoint comes from an earlier version, or the file itself is
/// missing. A path that leaves the folder is damage.
fn read_manifest(folder: &Path) -> Result<Option<BTreeMap<String, ListedFile>>, Error> {
    let path = folder.join(STATE_FOLDER).join(MANIFEST);
    let text = match regular_file::read_to_string(&path, LARGEST_JSON) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|source| damaged(&path, &source))?,
    };
    let files: BTreeMap<String, ListedFile> =
        serde_json::from_str(&text).map_err(|source| damaged(&path, &source))?;
    let leaves = |name: &&String| {
        let mut parts = Path::new(name.as_str()).components();
        name.is_empty() || !parts.all(|part| matches!(part, Component::Normal(_)))
    };
    match files.keys().find(leaves) {
        Some(name) => Err(damaged(&path, &format!("it lists {name:?}, which is no file of the checkpoint"))),
        None => Ok(Some(files)),
    }
}

/// The weight files that a checkpoint must have: those listed in its index, or else the single file.
fn weight_files(folder: &Path) -> Result<Vec<String>, Error> {
    let index = folder.join("model.safetensors.index.json");
    if !index.exists() {
        return Ok(vec!["model.safetensors".to_owned()]);
    }
    let parsed = read_json(&index)?;
    let map = parsed["weight_map"].as_object().ok_or_else(|| damaged(&index, &"it has no weight_map"))?;
    Ok(map.values().filter_map(|name| name.as_str().map(str::to_owned)).collect())
}

fn check_size(path: &Path, expected: Option<u64>) -> Result<(), Error> {
    regular_file::check(path).map_err(|source| damaged(path, &source))?;
    let got = fs::symlink_metadata(path).map_err(|source| io(path, source))?.len();
    match expected {
        Some(expected) if expected != got => Err(damaged(path, &format!("it has {got} of {expected} bytes"))),
        _ => Ok(()),
    }
}

fn read_json(path: &Path) -> Result<Value, Error> {
    let text = regular_file::read(path, LARGEST_JSON).map_err(|source| io(path, source))?;
    serde_json::from_slice(&text).map_err(|source| damaged(path, &source))
}

/// Renames a folder to `NAME.reason`, so that it no longer counts and a person can inspect it. If that name
/// is taken, a number is appended. Returns the new path.
pub fn set_aside(folder: &Path, reason: &str) -> Result<PathBuf, Error> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut names = std::iter::once(format!("{name}.{reason}"))
        .chain((2..).map(|number: u64| format!("{name}.{reason}-{number}")))
        .map(|name| folder.with_file_name(name));
    let aside = names.find(|path| fs::symlink_metadata(path).is_err()).expect("the numbers do not end");
    fs::rename(folder, &aside).map_err(|source| io(folder, source))?;
    sync_folder(parent(folder))?;
    Ok(aside)
}

/// Removes the temporary files and folders that killed processes left in `folder`. `is_ours` recognizes the
/// final names.
///
/// Call this only while no other process writes there.
pub fn remove_temporaries(folder: &Path, is_ours: impl Fn(&str) -> bool) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let entry = entry.map_err(|source| io(folder, source))?;
        let name = entry.file_name();
        let of = name.to_str().and_then(parse_temporary);
        if of.is_some_and(|(name, _)| is_ours(name)) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// The N of a checkpoint name `step-N`.
pub fn parse_step(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    // Not `step-007`, nor `step-+7`.
    (name == format!("step-{step}")).then_some(step)
}

/// The checkpoints `step-N` in `folder`, sorted by N.
pub fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| io(folder, source))?.path();
        let step = path.file_name().and_then(|name| parse_step(name.to_str()?));
        let is_folder = || fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if let Some(step) = step.filter(|_| is_folder()) {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Removes all but the newest `keep` checkpoints: the files that their manifests list. What somebody else has
/// put into the folder of a checkpoint stays, in a folder `step-N.removed`.
pub fn prune(folder: &Path, keep: usize) -> Result<(), Error> {
    let checkpoints = list(folder)?;
    let surplus = checkpoints.len().saturating_sub(keep);
    checkpoints[..surplus].iter().try_for_each(|(_, path)| remove_checkpoint(path))
}

fn remove_checkpoint(folder: &Path) -> Result<(), Error> {
    let listed = match read_manifest(folder) {
        Ok(Some(sizes)) => sizes.into_keys().collect(),
        Ok(None) => files_of_earlier_version(folder),
        // Nobody can tell what in it is ours.
        Err(_) => return set_aside(folder, "damaged").map(drop),
    };
    // The manifest goes last, so that a removal that is cut off can be continued.
    let manifest = format!("{STATE_FOLDER}/{MANIFEST}");
    for name in listed.iter().chain([&manifest]).filter(|name| is_plain_file(folder, name)) {
        let path = folder.join(name);
        fs::remove_file(&path).map_err(|source| io(&path, source))?;
        // A folder that is not empty stays.
        let above = Path::new(name).ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
        above.for_each(|above| drop(fs::remove_dir(folder.join(above))));
    }
    if fs::remove_dir(folder).is_err() {
        set_aside(folder, "removed")?;
    }
    Ok(())
}

/// Whether `name` is a regular file in `folder`, on a path without links.
fn is_plain_file(folder: &Path, name: &str) -> bool {
    let is = |below: &Path, wanted: fn(&Metadata) -> bool| {
        fs::symlink_metadata(folder.join(below)).is_ok_and(|found| wanted(&found))
    };
    let name = Path::new(name);
    is(name, Metadata::is_file) && name.ancestors().skip(1).all(|above| is(above, Metadata::is_dir))
}

/// The files of a checkpoint without a manifest.
fn files_of_earlier_version(folder: &Path) -> Vec<String> {
    const MORE: [&str; 5] = [
        "model.safetensors.index.json",
        "generation_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    ];
    let weights = weight_files(folder).unwrap_or_default();
    let own = REQUIRED_FILES.into_iter().chain(MORE).map(str::to_owned).chain(weights);
    let own: Vec<String> = own.collect();
    let in_critic = own.iter().map(|name| format!("critic/{name}"));
    let all = own.iter().cloned().chain(in_critic);
    let is_inside =
        |name: &String| Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    all.filter(is_inside).collect()
}

/// Removes a file, a link or a folder with its contents.
fn remove(path: &Path) -> Result<(), Error> {
    let found = fs::symlink_metadata(path).map_err(|source| io(path, source))?;
    let removed = if found.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(|source| io(path, source))
}

/// Syncs every file and folder below `folder` to disk.
fn sync(folder: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(|source| io(folder, source))? {
        let path = entry.map_err(|source| io(folder, source))?.path();
        if path.is_dir() {
            sync(&path)?;
        } else {
            File::open(&path).and_then(|file| file.sync_all()).map_err(|source| io(&path, source))?;
        }
    }
    sync_folder(folder)
}

/// Syncs the directory entries of `folder` to disk.
pub fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(|source| io(folder, source))
}

fn damaged(path: &Path, problem: &impl ToString) -> Error {
    Error::Damaged { path: path.to_owned(), problem: problem.to_string() }
}

fn io(path: &Path, source: std::io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}

fn state_error(path: &Path, problem: &impl ToString) -> Error {
    Error::State { path: path.to_owned(), problem: problem.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChunkManager, TrainConfig};
    use parallel::{Parameter, ProcessGroups};
    use std::sync::Arc;
    use tch::Tensor;

    /// An engine over one parameter of `size` ones.
    fn new_engine(size: i64) -> Engine {
        let ones = Tensor::ones([size], (tch::Kind::Float, tch::Device::Cpu)).set_requires_grad(true);
        let groups = Arc::new(ProcessGroups::single());
        let parameters = [Parameter::replicated("w", &ones)];
        Engine::of_parameters(
            &parameters,
            None,
            &TrainConfig::default(),
            5,
            &groups,
            &ChunkManager::unlimited(),
        )
        .unwrap()
    }

    #[test]
    fn a_folder_is_whole_or_absent() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("step-1");
        let half = |path: &Path| {
            fs::write(path.join("a"), "x").unwrap();
            Err(state_error(path, &"the power went"))
        };
        assert!(write_folder(&target, half).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let good = |text: &'static str| {
            move |path: &Path| {
                fs::write(path.join("a"), text).unwrap();
                Ok::<_, Error>(())
            }
        };
        write_folder(&target, good("one")).unwrap();
        let error = write_folder(&target, good("two")).unwrap_err().to_string();
        assert!(error.contains("step-1: there is something at this place already"), "{error}");
        assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::create_dir(folder.path().join("empty")).unwrap();
        write_folder(&folder.path().join("empty"), good("three")).unwrap();
    }

    #[test]
    fn folders_above_a_new_one_are_made_and_a_temporary_name_of_others_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mine = folder.path().join("mine");
        fs::create_dir(&mine).unwrap();
        fs::write(mine.join("precious"), "x").unwrap();
        // A link at the temporary name of earlier versions, which emptied the folder behind it.
        std::os::unix::fs::symlink(&mine, folder.path().join(".step-1.tmp")).unwrap();
        fs::create_dir(folder.path().join(".step-2.tmp")).unwrap();
        fs::write(folder.path().join(".step-2.tmp/precious"), "x").unwrap();
        let fill = |path: &Path| {
            fs::write(path.join("a"), "x").unwrap();
            Ok::<_, Error>(())
        };
        for step in ["step-1", "step-2", "new/newer/step-3"] {
            write_folder(&folder.path().join(step), fill).unwrap();
            assert!(folder.path().join(step).join("a").exists());
        }
        assert!(mine.join("precious").exists() && folder.path().join(".step-2.tmp/precious").exists());
    }

    #[test]
    fn temporary_names_are_told_from_others() {
        let of = |name| parse_temporary(name);
        let own = format!("{}Ab3.tmp", temporary_prefix(Path::new("out/run.toml")));
        assert_eq!(of(&own), Some(("run.toml", Some(std::process::id()))));
        assert_eq!(of(".step-6.tmp"), Some(("step-6", None)));
        assert_eq!(of(".step-6.old.tmp"), Some(("step-6", None)));
        assert_eq!([of("step-6.tmp"), of(".step-6"), of(".notes.7.tmp"), of(".a.1-/.tmp")], [None; 4]);
    }

    #[test]
    fn only_temporary_folders_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        for name in
            [".step-6.tmp", ".step-6.77-abc.tmp", ".step-5.old.tmp", ".notes.tmp", "step-6", ".step-x.tmp"]
        {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        remove_temporaries(folder.path(), |name| parse_step(name).is_some()).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".notes.tmp", ".step-x.tmp", "step-6"]);
    }

    /// Writes a checkpoint like a training stage does.
    fn checkpoint(folder: &Path) -> PathBuf {
        let path = folder.join("step-4");
        let mut engine = new_engine(3);
        engine.set_step(4);
        let fill = |folder: &Path| {
            save_state(folder, &engine, &"extra")?;
            let whole = folder.join(STATE_FOLDER).join("optimizer.safetensors");
            fs::copy(whole, folder.join("model.safetensors")).unwrap();
            fs::write(folder.join("config.json"), "{}").unwrap();
            fs::write(folder.join("tokenizer.json"), "{}").unwrap();
            write_manifest(folder)
        };
        write_folder(&path, fill).unwrap();
        path
    }

    #[test]
    fn every_kind_of_damage_is_named() {
        let files = [
            "config.json",
            "tokenizer.json",
            "model.safetensors",
            "trainer_state/state.json",
            "trainer_state/optimizer.safetensors",
        ];
        for has_manifest in [true, false] {
            for name in files {
                for damage in ["missing", "short", "garbage"] {
                    let folder = tempfile::tempdir().unwrap();
                    let path = checkpoint(folder.path());
                    if !has_manifest {
                        fs::remove_file(path.join("trainer_state/files.json")).unwrap();
                    }
                    verify(&path).unwrap();
                    let file = path.join(name);
                    let bytes = fs::read(&file).unwrap();
                    match damage {
                        "missing" => fs::remove_file(&file).unwrap(),
                        "short" => fs::write(&file, &bytes[..bytes.len() - 1]).unwrap(),
                        // The file keeps its size. Without a manifest, damage is found only by parsing.
                        _ => fs::write(&file, vec![b'#'; bytes.len()]).unwrap(),
                    }
                    let error = verify(&path).unwrap_err().to_string();
                    assert!(error.contains(name), "{name} {damage}, manifest {has_manifest}: {error}");
                }
            }
        }
    }

    #[test]
    fn a_changed_file_and_an_impossible_number_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = checkpoint(folder.path());
        verify_values(&path).unwrap();
        // Of the same length, and still JSON.
        fs::write(path.join("config.json"), "[]").unwrap();
        let error = verify(&path).unwrap_err().to_string();
        assert!(error.contains("config.json: its content has changed"), "{error}");
        fs::write(path.join("config.json"), "{}").unwrap();

        let file = path.join("trainer_state/optimizer.safetensors");
        let bytes = fs::read(&file).unwrap();
        let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let start = |name: &str| {
            let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
            data + header[name]["data_offsets"][0].as_u64().unwrap() as usize
        };
        for (name, value, words) in [
            ("exp_avg.w", f32::NAN, Some("`exp_avg.w` is NaN at [1] and must be finite")),
            ("exp_avg_sq.w", f32::INFINITY, Some("`exp_avg_sq.w` is inf at [1]")),
            ("exp_avg_sq.w", -1.0, Some("`exp_avg_sq.w` is -1 at [1] and must be finite and not below zero")),
            ("exp_avg.w", -1.0, None),
        ] {
            let mut changed = bytes.clone();
            let second = start(name) + 4;
            changed[second..second + 4].copy_from_slice(&value.to_le_bytes());
            fs::write(&file, changed).unwrap();
            verify(&path).unwrap();
            let found = [verify_values(&path), load_state::<String>(&path, &mut new_engine(3)).map(drop)];
            for found in found {
                match words {
                    None => found.unwrap(),
                    Some(words) => {
                        let error = found.unwrap_err().to_string();
                        let expected = format!("optimizer.safetensors: {words}");
                        assert!(error.contains(&expected), "{error}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_list_of_an_earlier_version_has_sizes_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = checkpoint(folder.path());
        let list = path.join("trainer_state/files.json");
        fs::write(&list, r#"{"config.json": 2, "tokenizer.json": 2}"#).unwrap();
        verify(&path).unwrap();
        fs::write(&list, r#"{"config.json": 3}"#).unwrap();
        let error = verify(&path).unwrap_err().to_string();
        assert!(error.contains("it has 2 of 3 bytes"), "{error}");
    }

    #[test]
    fn a_number_that_is_not_finite_is_not_saved() {
        let folder = tempfile::tempdir().unwrap();
        let engine = new_engine(3);
        let nan = Tensor::from_slice(&[0.0f32, 0.0, f32::NAN]);
        engine.state().unwrap()[1].set(&nan).unwrap();
        let target = folder.path().join("step-1");
        let error = write_folder(&target, |path| save_state(path, &engine, &())).unwrap_err().to_string();
        assert!(error.starts_with("`exp_avg_sq.w` is NaN at [2], so nothing is saved"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_damaged_checkpoint_is_set_aside_under_a_new_name() {
        let folder = tempfile::tempdir().unwrap();
        for wanted in ["step-4.damaged", "step-4.damaged-2"] {
            fs::create_dir(folder.path().join("step-4")).unwrap();
            let aside = set_aside(&folder.path().join("step-4"), "damaged").unwrap();
            assert_eq!(aside, folder.path().join(wanted));
        }
        assert!(list(folder.path()).unwrap().is_empty());
    }

    #[test]
    fn state_goes_to_disk_and_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = new_engine(3);
        engine.set_step(4);
        engine.state().unwrap()[0]
            .set(&Tensor::full([3], 2.5, (tch::Kind::Float, tch::Device::Cpu)))
            .unwrap();
        save_state(folder.path(), &engine, &"extra").unwrap();
        let mut other = new_engine(3);
        let extra: String = load_state(folder.path(), &mut other).unwrap();
        assert_eq!((extra.as_str(), other.step_count()), ("extra", 4));
        assert!((other.state().unwrap()[0].tensor.double_value(&[1]) - 2.5).abs() < 1e-12);
    }

    #[test]
    fn a_state_of_another_shape_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let engine = new_engine(3);
        save_state(folder.path(), &engine, &()).unwrap();
        let mut other = new_engine(4);
        let error = load_state::<()>(folder.path(), &mut other).unwrap_err().to_string();
        assert!(error.contains("exp_avg.w has the shape [3] and this run wants [4]"), "{error}");
    }

    #[test]
    fn a_checkpoint_is_removed_by_its_manifest_and_files_of_others_stay() {
        for has_manifest in [true, false] {
            for mine in [None, Some("notes"), Some("trainer_state/notes"), Some("critic/notes")] {
                let folder = tempfile::tempdir().unwrap();
                let path = checkpoint(folder.path());
                if !has_manifest {
                    fs::remove_file(path.join("trainer_state/files.json")).unwrap();
                }
                if let Some(mine) = mine {
                    fs::create_dir_all(path.join(mine).parent().unwrap()).unwrap();
                    fs::write(path.join(mine), "mine").unwrap();
                }
                prune(folder.path(), 0).unwrap();
                assert!(list(folder.path()).unwrap().is_empty());
                let left = list_files(folder.path(), Path::new("")).unwrap();
                let wanted: Vec<String> =
                    mine.into_iter().map(|mine| format!("step-4.removed/{mine}")).collect();
                assert_eq!(left, wanted, "manifest {has_manifest}");
            }
        }
    }

    #[test]
    fn a_manifest_lists_files_of_its_checkpoint_alone() {
        for listed in ["../mine", "/mine", "trainer_state/../../mine", ""] {
            let folder = tempfile::tempdir().unwrap();
            let path = checkpoint(folder.path());
            fs::write(folder.path().join("mine"), "mine").unwrap();
            let text = format!("{{{listed:?}: 4}}");
            fs::write(path.join("trainer_state/files.json"), text).unwrap();
            assert!(verify(&path).unwrap_err().to_string().contains("no file of the checkpoint"));
            prune(folder.path(), 0).unwrap();
            let aside = folder.path().join("step-4.damaged/config.json");
            assert!(folder.path().join("mine").exists() && aside.exists());
        }
    }

    #[test]
    fn a_link_or_a_pipe_in_a_checkpoint_is_damage_and_no_checkpoint_is_a_link() {
        for name in
            ["config.json", "model.safetensors", "trainer_state/state.json", "trainer_state/files.json"]
        {
            let folder = tempfile::tempdir().unwrap();
            let path = checkpoint(folder.path());
            let (file, mine) = (path.join(name), folder.path().join("mine"));
            fs::rename(&file, &mine).unwrap();
            let make_pipe =
                || assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
            let make_link = || std::os::unix::fs::symlink(&mine, &file).unwrap();
            for (make, words) in [(&make_pipe as &dyn Fn(), "a pipe"), (&make_link, "a link")] {
                make();
                let error = verify(&path).unwrap_err().to_string();
                assert!(error.contains(name) && error.contains(words), "{error}");
                fs::remove_file(&file).unwrap();
            }
            std::os::unix::fs::symlink("step-4", folder.path().join("step-5")).unwrap();
            assert_eq!(list(folder.path()).unwrap(), [(4, path)]);
        }
    }

    #[test]
    fn only_the_newest_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        for step in [100, 20, 3] {
            fs::create_dir(folder.path().join(format!("step-{step}"))).unwrap();
        }
        prune(folder.path(), 2).unwrap();
        let left: Vec<u64> = list(folder.path()).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(left, [20, 100]);
    }
}
