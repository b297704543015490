//! The trainer's state beside the weights, and folders that are whole or absent.
//!
//! `trainer_state/optimizer.safetensors` holds the moments (and, for bf16 weights, the masters) under
//! `exp_avg.NAME`, `exp_avg_sq.NAME`, `master.NAME`; `trainer_state/state.json` the step and whatever the stage adds (data
//! order, random generators, coefficients). A folder is written under a temporary name, synced, and renamed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use parallel::tensor_file::{self, Named, TensorFile};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::no_grad;

use crate::engine::State;
use crate::{Engine, Error};

/// The name of the state's folder inside a checkpoint.
pub const STATE_FOLDER: &str = "trainer_state";

/// Fills a folder under a temporary name and renames it to `target`, which is replaced.
///
/// `fill` writes into the folder that it is given. When it fails, the temporary folder goes and `target` stays as it was.
pub fn write_folder<E: From<Error>>(
    target: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    // The parent of a bare name is the empty path, which cannot be opened.
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let partial = parent.join(format!(".{name}.tmp"));
    let fresh = || {
        remove(&partial)?;
        fs::create_dir_all(&partial).map_err(|source| io(&partial, source))
    };
    fresh()?;
    let finish = || {
        sync(&partial)?;
        let old = parent.join(format!(".{name}.old.tmp"));
        remove(&old)?;
        if target.exists() {
            fs::rename(target, &old).map_err(|source| io(target, source))?;
        }
        fs::rename(&partial, target).map_err(|source| io(target, source))?;
        remove(&old)?;
        File::open(parent).and_then(|folder| folder.sync_all()).map_err(|source| io(parent, source))
    };
    fill(&partial).and_then(|()| Ok(finish()?)).inspect_err(|_| {
        let _ = fs::remove_dir_all(&partial);
    })
}

/// Saves the engine's state and the stage's own `extra` under `folder/trainer_state`. Every rank that holds a part of the model calls
/// it, and the first of them writes.
pub fn save_state<S: Serialize>(folder: &Path, engine: &Engine, extra: &S) -> Result<(), Error> {
    let folder = folder.join(STATE_FOLDER);
    let state = engine.state();
    let writes = engine.groups().is_first();
    if writes {
        fs::create_dir_all(&folder).map_err(|source| io(&folder, source))?;
    }
    let named: Vec<Named<'_>> = state.iter().map(State::named).collect();
    let holders = engine.groups().holders();
    let speaks = tensor_file::speaks(named.iter().map(|named| named.placement), holders)?;
    tensor_file::write(&folder.join("optimizer.safetensors"), &named, speaks, holders)?;
    if !writes {
        return Ok(());
    }
    let state = serde_json::json!({ "step": engine.step_count(), "stage": extra });
    let path = folder.join("state.json");
    let text = serde_json::to_string_pretty(&state).map_err(|source| bad(&path, &source))?;
    fs::write(&path, text).map_err(|source| io(&path, source))
}

/// Restores what [`save_state`] saved, on any mesh, into an engine over the same parameters, and returns the stage's own part.
pub fn load_state<S: DeserializeOwned>(folder: &Path, engine: &mut Engine) -> Result<S, Error> {
    let folder = folder.join(STATE_FOLDER);
    let path = folder.join("optimizer.safetensors");
    let saved = TensorFile::open(&path).map_err(|source| bad(&path, &source))?;
    let wanted = engine.state();
    let own = wanted.iter().filter(|state| state.counts).count();
    let [all] = engine.groups().holders().sum([own as f64])?;
    if saved.names().count() as f64 != all {
        let problem = format!("it holds {} tensors and this run has {all}", saved.names().count());
        return Err(Error::State { path, problem });
    }
    for State { name, tensor, placement, .. } in wanted {
        let shape = placement.whole_shape(&tensor.size());
        match saved.shape(&name) {
            Some(found) if found == shape => {
                let part = saved.read(&name, &shape, placement)?;
                no_grad(|| tensor.shallow_clone().copy_(&part));
            }
            Some(found) => {
                let problem = format!("{name} has the shape {found:?} and this run wants {shape:?}");
                return Err(Error::State { path, problem });
            }
            None => return Err(Error::State { path, problem: format!("it has no {name}") }),
        }
    }
    let path = folder.join("state.json");
    let text = fs::read_to_string(&path).map_err(|source| io(&path, source))?;
    let mut state: serde_json::Value = serde_json::from_str(&text).map_err(|source| bad(&path, &source))?;
    let step = state["step"].as_u64().ok_or_else(|| bad(&path, &"`step` is not a number"))?;
    engine.set_step(step);
    serde_json::from_value(state["stage"].take()).map_err(|source| bad(&path, &source))
}

/// The checkpoints `step-N` under `folder`, by rising N.
pub fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| io(folder, source))?.path();
        let step = path.file_name().and_then(|name| name.to_str()?.strip_prefix("step-")?.parse().ok());
        if let Some(step) = step {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Removes all but the newest `keep` checkpoints.
pub fn prune(folder: &Path, keep: usize) -> Result<(), Error> {
    let checkpoints = list(folder)?;
    let surplus = checkpoints.len().saturating_sub(keep);
    checkpoints[..surplus].iter().try_for_each(|(_, path)| remove(path))
}

fn remove(folder: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(folder) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(io(folder, source)),
        _ => Ok(()),
    }
}

/// Asks the system to put every file below `folder` on the disk.
fn sync(folder: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(|source| io(folder, source))? {
        let path = entry.map_err(|source| io(folder, source))?.path();
        if path.is_dir() {
            sync(&path)?;
        } else {
            File::open(&path).and_then(|file| file.sync_all()).map_err(|source| io(&path, source))?;
        }
    }
    File::open(folder).and_then(|file| file.sync_all()).map_err(|source| io(folder, source))
}

fn io(path: &Path, source: std::io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}

fn bad(path: &Path, problem: &impl ToString) -> Error {
    Error::State { path: path.to_owned(), problem: problem.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainConfig;
    use parallel::{Groups, Parameter};
    use std::sync::Arc;
    use tch::Tensor;

    fn parameters(size: i64) -> Vec<Parameter> {
        let options = (tch::Kind::Float, tch::Device::Cpu);
        vec![Parameter::replicated("w", &Tensor::ones([size], options).set_requires_grad(true))]
    }

    #[test]
    fn a_folder_is_whole_or_absent() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("step-1");
        let half = |path: &Path| {
            fs::write(path.join("a"), "x").unwrap();
            Err(bad(path, &"the power went"))
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
        write_folder(&target, good("two")).unwrap();
        assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn state_goes_to_disk_and_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine =
            Engine::new(&parameters(3), &TrainConfig::default(), 5, &Arc::new(Groups::single())).unwrap();
        engine.set_step(4);
        let _ = engine.state()[0].tensor.shallow_clone().fill_(2.5);
        save_state(folder.path(), &engine, &"extra").unwrap();
        let mut other =
            Engine::new(&parameters(3), &TrainConfig::default(), 5, &Arc::new(Groups::single())).unwrap();
        let extra: String = load_state(folder.path(), &mut other).unwrap();
        assert_eq!((extra.as_str(), other.step_count()), ("extra", 4));
        assert!((other.state()[0].tensor.double_value(&[1]) - 2.5).abs() < 1e-12);
    }

    #[test]
    fn a_state_of_another_shape_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let engine =
            Engine::new(&parameters(3), &TrainConfig::default(), 5, &Arc::new(Groups::single())).unwrap();
        save_state(folder.path(), &engine, &()).unwrap();
        let mut other =
            Engine::new(&parameters(4), &TrainConfig::default(), 5, &Arc::new(Groups::single())).unwrap();
        let error = load_state::<()>(folder.path(), &mut other).unwrap_err().to_string();
        assert!(error.contains("exp_avg.w has the shape [3] and this run wants [4]"), "{error}");
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
