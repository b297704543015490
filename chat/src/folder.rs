//! The output folder of a run or a pipeline: checks whether a run may start in it, locks it, and selects the
//! checkpoint from which a resumed run continues.
//!
//! Whose the folder is, is told by its marker ([`crate::own_folder`]). The process that writes into the
//! folder (rank 0 of a job) holds a lock on the file `out/.colossal-chat.lock` until the process exits, even
//! if it crashes.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use gemini::checkpoint;
use parallel::{ProcessGroups, regular_file};
use serde::{Deserialize, Serialize};

use crate::config::{self, ConfigError, Difference, RunConfig, StageSchema};
use crate::console::print_stderr;
use crate::interrupt;
use crate::live::LIVE;
use crate::output::{check_parent, check_writable};
use crate::own_file;
use crate::own_folder::{self, Claim, FolderKind, LARGEST_SETTINGS, LOCK, MARKER};

/// The run folder of a stage, with its file and folder names.
pub(crate) const RUN: Claim<'static> = Claim {
    kind: FolderKind::Run,
    names: &[
        CONFIGURATION,
        "plan.json",
        COMMUNICATION,
        "metrics.jsonl",
        "samples.jsonl",
        "tensorboard",
        LIVE,
        "logs",
        "checkpoints",
        FINAL,
    ],
};

/// The folder name of the trained model.
const FINAL: &str = "final";

/// The file name of what ranks have sent.
pub(crate) const COMMUNICATION: &str = "communication.json";

/// The file name of the saved configuration.
pub(crate) const CONFIGURATION: &str = "run.toml";

/// The locks that this process holds until it exits.
static LOCKS: Mutex<Vec<(PathBuf, File)>> = Mutex::new(Vec::new());

/// A request for a run folder.
pub(crate) struct FolderRequest<'a> {
    /// The stage that runs in the folder.
    pub(crate) stage: &'static StageSchema,
    /// The resolved configuration, with the folder.
    pub(crate) config: &'a RunConfig,
    /// The file from which the configuration was read, if it came from a file.
    pub(crate) run_file: Option<&'a Path>,
    /// Whether to resume an earlier run.
    pub(crate) resume: bool,
    /// Whether the run will write to the folder. A dry run changes nothing.
    pub(crate) writes: bool,
    /// The stages of a pipeline that have started from the model of an earlier run in the folder.
    pub(crate) used_by: Vec<&'static str>,
}

/// The run folder of one stage, checked before any model or data is loaded.
pub(crate) struct RunFolder {
    out: PathBuf,
    state: FolderState,
    checkpoint: Option<PathBuf>,
    keeps_configuration: bool,
    used_by: Vec<&'static str>,
}

/// The state in which rank 0 finds the folder.
#[derive(Clone, Default, Serialize, Deserialize)]
struct FolderState {
    /// Whether the run has written its `final/`.
    has_final: bool,
    /// How the length of the run changes.
    change: LengthChange,
    /// The length of the run so far, in steps (for PPO: iterations).
    planned_steps: Option<u64>,
    /// The name of the checkpoint from which to resume.
    checkpoint: Option<String>,
}

/// How the length of a resumed run changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LengthChange {
    /// Not at all.
    #[default]
    Same,
    /// The run becomes longer.
    Longer,
    /// From a number of steps to a number of epochs, or back: only the number of rows tells.
    Unknown,
}

impl RunFolder {
    /// Refuses a folder that the run may not use, and selects the checkpoint from which a resumed run
    /// continues: the newest one that is complete. Every process of the job calls this method; rank 0
    /// decides.
    pub(crate) fn prepare(request: &FolderRequest<'_>, groups: &ProcessGroups) -> anyhow::Result<Self> {
        let out = &request.config.out;
        let found = if groups.is_rank_zero() { inspect(request)? } else { FolderState::default() };
        let state = groups.world().all_gather_object(vec![found])?.swap_remove(0);
        let checkpoints = out.join("checkpoints");
        let checkpoint = state.checkpoint.as_ref().map(|name| checkpoints.join(name));

        // Another machine may not see this folder, or may see different contents.
        let problem = checkpoint.as_ref().and_then(|path| checkpoint::verify(path).err());
        let problems = groups.world().all_gather_object(vec![problem.map(|problem| problem.to_string())])?;
        let mut problems = problems.into_iter().enumerate();
        if let Some((rank, problem)) = problems.find_map(|(rank, problem)| Some((rank, problem?))) {
            let first = state.checkpoint.unwrap_or_default();
            return Err(ConfigError::Checkpoints { path: checkpoints, rank, first, problem }.into());
        }

        // The file that the user passes is not replaced by its resolved form, unless the command line makes
        // the run longer than the file says.
        let keeps_configuration = request.resume
            && is_configuration_of(request.run_file, out)
            && read_settings(out, request.stage)? == request.config.to_toml(request.stage)?;
        Ok(Self {
            out: out.clone(),
            state,
            checkpoint,
            keeps_configuration,
            used_by: request.used_by.clone(),
        })
    }

    /// The folder of a run that is only planned. The folder is not checked.
    pub(crate) fn for_plan(out: &Path) -> Self {
        let (state, keeps_configuration) = (FolderState::default(), false);
        Self { out: out.to_owned(), state, checkpoint: None, keeps_configuration, used_by: Vec::new() }
    }

    /// The checkpoint from which a resumed run continues.
    pub(crate) fn checkpoint(&self) -> Option<&Path> {
        self.checkpoint.as_deref()
    }

    /// Whether the run to be resumed has already written its `final/` and does not become longer.
    pub(crate) fn is_finished(&self) -> bool {
        self.state.has_final && self.state.change == LengthChange::Same
    }

    /// Whether the run to be resumed has already finished, if it has `total_steps`. This is needed where the
    /// length of the run follows from its rows.
    pub(crate) fn is_finished_at(&self, total_steps: u64) -> bool {
        self.state.has_final && self.state.planned_steps == Some(total_steps)
    }

    /// Refuses a resumed run that would become shorter, or longer although later stages of its pipeline have
    /// used its model. `total_steps` is the length of the run, which may follow from its rows.
    pub(crate) fn check_length(&self, total_steps: u64, stage: &StageSchema) -> Result<(), ConfigError> {
        let (out, Some(was)) = (&self.out, self.state.planned_steps) else { return Ok(()) };
        if total_steps < was {
            let unit = stage.units.step;
            return Err(ConfigError::Shorter { path: out.clone(), unit, was, now: total_steps });
        }
        if total_steps > was && self.state.has_final && !self.used_by.is_empty() {
            let path = out.parent().unwrap_or(out).to_owned();
            let later = self.used_by.clone();
            return Err(ConfigError::UsedByLaterStages { stage: stage.name, later, path });
        }
        Ok(())
    }

    /// Creates and locks the folder and saves the configuration in it. Only rank 0 of a job calls this
    /// method, once nothing can refuse the run any more.
    pub(crate) fn open(&self, settings: &str) -> anyhow::Result<()> {
        acquire_lock(&self.out, &RUN)?;
        // Another run may have started and finished here while this one was loading.
        if self.checkpoint.is_none() && holds_run(&self.out)? {
            return Err(ConfigError::OutHasRun(self.out.clone()).into());
        }
        // The longer run writes a model of its own. Until then, `final/` must not say that it is finished.
        let made = self.out.join(FINAL);
        if made.exists() {
            let shorter = checkpoint::set_aside(&made, "before-extension")?;
            let from = self.state.checkpoint.as_deref().unwrap_or_default();
            print_stderr(&format!(
                "the model of the shorter run is now {}; training continues from {from}",
                shorter.display()
            ));
        }
        if self.keeps_configuration {
            return Ok(());
        }
        Ok(own_file::write(&self.out.join(CONFIGURATION), settings.as_bytes())?)
    }
}

/// Whether there is a checkpoint or a finished model in `out`.
pub(crate) fn holds_run(out: &Path) -> anyhow::Result<bool> {
    Ok(out.join(FINAL).exists() || !checkpoint::list(&out.join("checkpoints"))?.is_empty())
}

/// What `--resume` says where there is no checkpoint yet: a scheduler restarts a job with the same command,
/// also one that died before its first checkpoint.
pub(crate) fn nothing_to_resume(out: &Path) -> String {
    format!("{}: there is nothing to resume yet, so the run starts from the beginning", out.display())
}

/// Refuses to continue a finished run that has kept no checkpoint.
pub(crate) fn check_extendable(out: &Path) -> anyhow::Result<()> {
    if checkpoint::list(&out.join("checkpoints"))?.is_empty() {
        return Err(ConfigError::NothingToExtend(out.to_owned()).into());
    }
    Ok(())
}

/// Decides whether the run may use its folder, and from which checkpoint a resumed run continues.
fn inspect(request: &FolderRequest<'_>) -> anyhow::Result<FolderState> {
    let FolderRequest { stage, config, run_file, resume, writes, .. } = *request;
    let out = &config.out;
    check_place(out)?;
    if writes {
        reacquire_lock(out)?;
    }
    let is_new = !holds_run(out)?;
    if !resume || is_new {
        if !is_new {
            return Err(ConfigError::OutHasRun(out.to_owned()).into());
        }
        RUN.check(out)?;
        if resume {
            print_stderr(&nothing_to_resume(out));
        }
        if writes && fs::metadata(out.join("metrics.jsonl")).is_ok_and(|rows| rows.len() > 0) {
            print_stderr(&format!(
                "warning: {}: an earlier run ended here before its first checkpoint: its metrics are replaced",
                out.display()
            ));
        }
        // A run that died before its first checkpoint has saved the very file that it is given again.
        let is_kept = || resume && read_settings(out, stage).ok() == config.to_toml(stage).ok();
        if is_configuration_of(run_file, out) && !is_kept() {
            return Err(ConfigError::RunFileInOut(out.join(CONFIGURATION)).into());
        }
        return Ok(FolderState::default());
    }

    let checkpoints = checkpoint::list(&out.join("checkpoints"))?;
    let has_final = out.join(FINAL).exists();
    own_folder::require_ours(out)?;
    RUN.check(out)?;
    let change = check_run_settings(out, config, stage)?;
    let state = FolderState { has_final, change, planned_steps: planned_steps(out), checkpoint: None };
    if has_final && change == LengthChange::Same {
        return Ok(state);
    }
    check_extendable(out)?;
    // Damaged checkpoints get renamed, so no other process may be writing to the folder.
    if writes {
        acquire_lock(out, &RUN)?;
    }
    let newest = newest_valid(out, checkpoints, writes)?;
    let checkpoint = newest.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(FolderState { checkpoint, ..state })
}

/// The newest checkpoint that is complete and holds only numbers that a run can go on from. Newer
/// checkpoints, which are damaged, are reported. If `writes` is set, they are renamed, so that they neither
/// count as kept checkpoints nor occupy the name of a future one.
fn newest_valid(out: &Path, checkpoints: Vec<(u64, PathBuf)>, writes: bool) -> anyhow::Result<PathBuf> {
    let mut damaged: Vec<(PathBuf, gemini::Error)> = Vec::new();
    for (_, path) in checkpoints.into_iter().rev() {
        let Err(problem) = checkpoint::verify_values(&path) else {
            for (damaged, problem) in damaged {
                print_stderr(&format!(
                    "warning: a checkpoint is damaged: {problem}; continuing from {}",
                    path.display()
                ));
                if writes {
                    let aside = checkpoint::set_aside(&damaged, "damaged")?;
                    print_stderr(&format!("warning: {} is now {}", damaged.display(), aside.display()));
                }
            }
            return Ok(path);
        };
        damaged.push((path, problem));
    }
    let problems = damaged.iter().map(|(_, problem)| problem.to_string()).collect();
    Err(ConfigError::NoWholeCheckpoint { path: out.join("checkpoints"), problems }.into())
}

/// Refuses a folder that is in use or was made by someone else, and marks it as made by this program. The
/// launcher of several ranks calls this, because it writes `logs/` into the folder before rank 0 checks it.
pub(crate) fn lock_for_launcher(out: &Path, claim: &Claim<'_>) -> anyhow::Result<()> {
    check_place(out)?;
    claim.check(out)?;
    create(out)?;
    claim.mark(out)?;
    // The lock is released at once, so that rank 0 can take it.
    lock(out).map(drop)
}

/// Refuses an `out` that exists and is not a folder, that has such an ancestor, or that cannot be written.
pub(crate) fn check_place(out: &Path) -> Result<(), ConfigError> {
    let problem = match fs::metadata(out) {
        Ok(found) if !found.is_dir() => Err("it is not a folder".to_owned()),
        _ => check_parent(out).and_then(|()| check_writable(out)),
    };
    problem.map_err(|problem| ConfigError::BadOut { path: out.to_owned(), problem })
}

/// Whether the run file is the very file to which the run saves its configuration in `out`.
pub(crate) fn is_configuration_of(run_file: Option<&Path>, out: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().ok();
    run_file.and_then(canonical).is_some_and(|file| canonical(&out.join(CONFIGURATION)) == Some(file))
}

/// Refuses a configuration that would produce other numbers than `saved`, the one saved at `path`. Keys and
/// sections in `except` may differ.
pub(crate) fn check_settings(
    path: &Path,
    saved: &str,
    configuration: &str,
    except: &[&str],
) -> anyhow::Result<()> {
    let except = [&config::RESUME_MUTABLE_KEYS, except].concat();
    match config::differences(saved, configuration, &except)?.into_iter().next() {
        None => Ok(()),
        Some(Difference { key, was, now }) => {
            Err(ConfigError::Changed { path: path.to_owned(), key, was, now }.into())
        }
    }
}

/// Compares the configuration of a resumed run in `out` with the saved one. Refuses a run with other numbers
/// and a run that would become shorter. Returns how its length changes.
pub(crate) fn check_run_settings(
    out: &Path,
    config: &RunConfig,
    stage: &StageSchema,
) -> anyhow::Result<LengthChange> {
    let mut except = config::LENGTH_KEYS.to_vec();
    // Version 0.1 before `[model] device` saved no `[model]` for the stage `base`.
    if !toml::from_str::<toml::Table>(&read_configuration(out)?)?.contains_key("model") {
        except.push("model.dtype");
    }
    let saved = read_settings(out, stage)?;
    check_settings(&out.join(CONFIGURATION), &saved, &config.to_toml(stage)?, &except)?;

    let saved: RunConfig = toml::from_str(&saved)?;
    let was = planned_steps(out).or(saved.fixed_length(stage));
    let (unit, was, now) = match (config.fixed_length(stage), saved.fixed_length(stage)) {
        (Some(now), _) => (stage.units.step, was, now),
        (None, None) => ("epoch", Some(saved.train.epochs), config.train.epochs),
        (None, Some(_)) => return Ok(LengthChange::Unknown),
    };
    match was {
        None => Ok(LengthChange::Unknown),
        Some(was) if now < was => Err(ConfigError::Shorter { path: out.to_owned(), unit, was, now }.into()),
        Some(was) if now > was => Ok(LengthChange::Longer),
        Some(_) => Ok(LengthChange::Same),
    }
}

/// Reads the configuration saved in `out`, as this version would have saved it.
fn read_settings(out: &Path, stage: &StageSchema) -> anyhow::Result<String> {
    let saved = read_configuration(out)?;
    // A file that this version cannot read is compared as it is.
    Ok(RunConfig::upgrade(&saved, stage).unwrap_or(saved))
}

/// Reads the text of the configuration saved in `out`.
pub(crate) fn read_configuration(out: &Path) -> Result<String, ConfigError> {
    let path = out.join(CONFIGURATION);
    regular_file::read_to_string(&path, LARGEST_SETTINGS).map_err(|source| ConfigError::Read { path, source })
}

/// The number of steps (for PPO: iterations) of the run in `out`, from its plan.
fn planned_steps(out: &Path) -> Option<u64> {
    let plan = regular_file::read_to_string(&out.join("plan.json"), LARGEST_SETTINGS).ok()?;
    serde_json::from_str::<serde_json::Value>(&plan).ok()?["steps"].as_u64()
}

/// Creates and marks `out` if needed and locks it until this process exits. Refuses a folder that the command
/// may not use. Removes the partially written files that a killed run left there.
pub(crate) fn acquire_lock(out: &Path, claim: &Claim<'_>) -> anyhow::Result<()> {
    let mut held = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    if out.canonicalize().is_ok_and(|out| held.iter().any(|(path, _)| *path == out)) {
        return Ok(());
    }
    claim.check(out)?;
    create(out)?;
    claim.mark(out)?;
    let file = lock(out)?;
    held.push((out.canonicalize().unwrap_or_else(|_| out.to_owned()), file));
    let checkpoints = out.join("checkpoints");
    checkpoint::remove_temporaries(&checkpoints, |name| checkpoint::parse_step(name).is_some())?;
    checkpoint::remove_temporaries(out, is_written)?;
    interrupt::register_temp_folder(&checkpoints);
    interrupt::register_temp_folder(out);
    Ok(())
}

/// Refuses a folder that another process uses. Creates nothing.
pub(crate) fn refuse_locked(out: &Path) -> anyhow::Result<()> {
    if own_folder::kind(out)?.is_some() { lock(out).map(drop) } else { Ok(()) }
}

/// Locks the run folder `out` if this program made it.
pub(crate) fn reacquire_lock(out: &Path) -> anyhow::Result<()> {
    if own_folder::kind(out)?.is_some() { acquire_lock(out, &RUN) } else { Ok(()) }
}

/// Since when a process holds the lock of `out`, in seconds since 1970. None if no process does. The lock is
/// shared for an instant, so that nothing changes.
pub(crate) fn locked_since(out: &Path) -> Option<f64> {
    let file = regular_file::open(&out.join(LOCK), File::options().read(true)).ok()?;
    if !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        return None;
    }
    // The process that takes the lock writes its name into the file.
    let written = file.metadata().and_then(|found| found.modified()).ok();
    let since = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Some(since.map_or(0.0, |since| since.as_secs_f64()))
}

/// Locks a file. Someone who only asks whether it is locked holds it for an instant, which must not refuse a
/// run.
fn try_lock(file: &File) -> Result<(), TryLockError> {
    for _ in 0..5 {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(5)),
            other => return other,
        }
    }
    file.try_lock()
}

/// Whether a run or a pipeline writes `name` under a temporary name first.
fn is_written(name: &str) -> bool {
    const WRITTEN: [&str; 11] = [
        MARKER,
        CONFIGURATION,
        COMMUNICATION,
        "plan.json",
        "metrics.jsonl",
        "samples.jsonl",
        FINAL,
        "seconds.json",
        "report.json",
        "report.md",
        "report.html",
    ];
    WRITTEN.contains(&name) || ["data", "tokenizer"].contains(&name)
}

/// Creates `out` if needed.
fn create(out: &Path) -> anyhow::Result<()> {
    checkpoint::create_folder(out).map_err(|error| match error {
        gemini::Error::Io { source, .. } => {
            ConfigError::BadOut { path: out.to_owned(), problem: source.to_string() }.into()
        }
        other => anyhow::Error::from(other),
    })
}

/// Locks the lock file of the folder `out`, which is created if needed, and returns it. On a file system
/// without locks, this only prints a warning.
fn lock(out: &Path) -> anyhow::Result<File> {
    let options = File::options().read(true).write(true).create(true).truncate(false).clone();
    let mut file = regular_file::open(&out.join(LOCK), &options).map_err(|source| {
        let problem = format!("{LOCK}: {source}");
        ConfigError::BadOut { path: out.to_owned(), problem }
    })?;
    match try_lock(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.is_empty() { "another process" } else { holder.trim() }.to_owned();
            return Err(ConfigError::Locked { path: out.to_owned(), holder }.into());
        }
        Err(TryLockError::Error(reason)) => print_stderr(&format!(
            "warning: {}: this file system has no locks ({reason}): nothing keeps a second run out of this folder",
            out.display()
        )),
    }

    // The content only serves the error message of other processes, so a failed write does no harm.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let holder = format!("process {} on {}\n", std::process::id(), host.trim());
    let _ = file.set_len(0).and_then(|()| file.write_all(holder.as_bytes()));
    Ok(file)
}
