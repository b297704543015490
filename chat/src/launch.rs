//! Several processes of this program: started, watched, and ended together.
//!
//! ```text
//!   colossal-chat sft --nproc 4 ...           the launcher: serves the store, starts ranks 0 to 3, waits
//!     +- rank 0   speaks on the terminal
//!     +- rank 1   writes to OUT/logs/rank-1.log
//!     +- ...
//! ```
//! When a rank ends with an error, the others are stopped within [`GRACE`] and the launcher ends with the rank's code. The launchers of
//! other machines hear of it at the store. A rank whose launcher is gone is ended by the system, so nothing is left behind. Ctrl-C
//! reaches every rank, and all of them end after the same step.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use parallel::c10d::Store;
use parallel::process::{self, send_signal};
use parallel::world::{TIMEOUT, open_store};
use parallel::{Axis, Groups, Mesh, Place, World, launch};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::section::ParallelSection;
use crate::config::{ConfigError, first_change};
use crate::exit::{self, Failure};

/// How long the other ranks may take to end once one has failed.
const GRACE: Duration = Duration::from_secs(4);
/// Between two looks at the ranks.
const PAUSE: Duration = Duration::from_millis(5);
/// Between two looks at what the launchers of other machines say.
const NEWS: Duration = Duration::from_millis(500);
/// The launcher's process, told to its ranks.
pub(crate) const LAUNCHER: &str = "COLOSSAL_LAUNCHER";

/// What part of a job this launcher starts.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Ranks on this host.
    pub(crate) local_size: usize,
    /// Hosts.
    pub(crate) nodes: usize,
    /// This host, from 0.
    pub(crate) node: usize,
    /// Where the job meets; the launcher of host 0 serves there. Port 0 is any free one, for a job on one host.
    pub(crate) address: (String, u16),
    /// The folder of the logs.
    pub(crate) logs: PathBuf,
}

impl Job {
    /// `size` ranks on this host alone.
    pub(crate) fn on_this_host(size: usize, out: &Path) -> Self {
        let address = ("127.0.0.1".to_owned(), 0);
        Self { local_size: size, nodes: 1, node: 0, address, logs: out.join("logs") }
    }
}

/// Whether this process has to start `processes` others, rather than being one of them.
pub(crate) fn starts_others(processes: usize) -> anyhow::Result<bool> {
    if processes <= 1 || std::env::var_os(LAUNCHER).is_some() {
        return Ok(false);
    }
    let place = Place::from_environment()?;
    if place.size > 1 {
        return Err(ConfigError::Launched { processes, rank: place.rank, size: place.size }.into());
    }
    Ok(true)
}

/// What every rank of a job must have been started with.
pub(crate) struct Start<'a> {
    /// The command.
    pub(crate) command: &'a str,
    /// Whether it goes on from a checkpoint.
    pub(crate) resume: bool,
    /// The resolved configuration.
    pub(crate) settings: &'a str,
}

/// Takes this process' place in its job, meets the others, and prepares it. `threads` are those of one operation.
pub(crate) fn join(
    threads: Option<usize>,
    parallel: &ParallelSection,
    start: &Start<'_>,
) -> anyhow::Result<Arc<Groups>> {
    if let Some(launcher) = std::env::var(LAUNCHER).ok().and_then(|text| text.parse().ok()) {
        process::end_with(launcher)?;
    }
    let place = Place::from_environment()?;
    let world = World::join(place, parallel.transport, TIMEOUT)?;
    same_start(&world, start)?;
    let prepared = launch::prepare(threads, world.sharers());
    let problem = prepared.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let problems = world.exchange("problem", &problem)?;
    prepared?;
    // Nobody waits for a rank that cannot come.
    if let Some((rank, problem)) = problems.into_iter().enumerate().find(|(_, problem)| !problem.is_empty()) {
        return Err(ConfigError::Unprepared { rank, problem }.into());
    }
    Ok(Arc::new(world.groups(&mesh(parallel, world.rank(), world.size())?)?))
}

/// Refuses ranks that were started with different words. Every rank finds the same one, before any of them waits for another in a
/// collective that the other does not know of.
fn same_start(world: &World, Start { command, resume, settings }: &Start<'_>) -> anyhow::Result<()> {
    let own = format!("{settings}\n[command]\nname = \"{command}\"\nresume = {resume}\n");
    let all = world.exchange("start", &own)?;
    for (rank, other) in all.iter().enumerate().filter(|(_, other)| **other != all[0]) {
        if let Some((key, [first, own])) = first_change(&all[0], other, &["out", "threads"])? {
            return Err(ConfigError::Ranks { rank, key, own, first }.into());
        }
    }
    Ok(())
}

/// The mesh of `size` processes, seen from `rank`.
pub(crate) fn mesh(parallel: &ParallelSection, rank: usize, size: usize) -> anyhow::Result<Mesh> {
    let ParallelSection { pipeline, expert, sequence, tensor, .. } = parallel;
    let others = pipeline.size * expert.size * sequence.size * tensor.size;
    let [depth, rows, columns] = tensor.shape();
    let wide = [
        (Axis::Pipeline, pipeline.size),
        (Axis::Data, parallel.data.unwrap_or((size / others).max(1))),
        (Axis::Expert, expert.size),
        (Axis::Sequence, sequence.size),
        (Axis::Depth, depth),
        (Axis::Row, rows),
        (Axis::Tensor, columns),
    ];
    Ok(Mesh::new(&wide, rank, size)?)
}

/// This program's own arguments.
pub(crate) fn own_arguments() -> Vec<OsString> {
    std::env::args_os().skip(1).collect()
}

/// One rank.
struct Rank {
    number: usize,
    child: Child,
    log: Option<PathBuf>,
    ended: Option<ExitStatus>,
}

/// Runs this program with `arguments` as every rank of `job`, and waits for all of them.
pub(crate) fn run(job: &Job, arguments: &[OsString]) -> anyhow::Result<()> {
    let (host, port) = &job.address;
    let store = Arc::new(open_store(host, *port, job.node == 0, TIMEOUT)?);
    let others = Others::listen(job, &store);
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for Ctrl-C")?;
    let mut ranks = start_all(job, store.port(), arguments)
        .inspect_err(|error| others.tell(&format!("{error:#}"), true))?;
    loop {
        if let Some(first) = ranks.first_failure() {
            others.tell(&ranks.0[first].told(), ranks.0[first].fell_by_itself());
            ranks.stop();
            return Err(ranks.0[ranks.culprit(first)].failure().into());
        }
        if ranks.have_ended() {
            others.leave(&mut signals);
            return Ok(());
        }
        if let Some(told) = others.news() {
            ranks.stop();
            if ranks.0.iter().any(|rank| !rank.has_succeeded() && !rank.was_stopped()) {
                return Err(Failure::Elsewhere { told }.into());
            }
        }
        for signal in signals.pending() {
            ranks.0.iter().for_each(|rank| send_signal(rank.child.id(), signal));
        }
        thread::sleep(PAUSE);
    }
}

/// The launchers of the other machines of a job, which talk at its store. A store on another machine may not answer for long, so whoever
/// asks it is a thread of its own, and the launcher waits for none of them for long.
struct Others<'a> {
    job: &'a Job,
    store: &'a Arc<Store>,
    news: Receiver<String>,
}

impl<'a> Others<'a> {
    /// Who was first to say why the job ends, and what it said.
    const FIRST: &'static str = "launcher/first";
    const FAILED: &'static str = "launcher/failed";
    /// How many are done.
    const DONE: &'static str = "launcher/done";

    /// Begins to listen for bad news.
    fn listen(job: &'a Job, store: &'a Arc<Store>) -> Self {
        let (heard, news) = mpsc::channel();
        let asked = Arc::clone(store);
        if job.nodes > 1 {
            thread::spawn(move || {
                let told = loop {
                    thread::sleep(NEWS);
                    match asked.has(Self::FAILED) {
                        Ok(false) => {}
                        Ok(true) => break asked.get(Self::FAILED, NEWS).unwrap_or_default(),
                        Err(error) => {
                            break format!("the launcher of machine 0 is gone ({error})").into_bytes();
                        }
                    }
                };
                // Nobody listens any more when this machine's ranks have ended.
                let _ = heard.send(String::from_utf8_lossy(&told).into_owned());
            });
        }
        Self { job, store, news }
    }

    /// What one of them has told.
    fn news(&self) -> Option<String> {
        self.news.try_recv().ok()
    }

    /// Tells them why this machine's ranks end, unless another was first; a cause that may lie elsewhere waits for that one. They have a
    /// moment to hear it, since the store may end with this process; where it does not answer, nobody is left to tell.
    fn tell(&self, why: &str, is_cause: bool) {
        if self.job.nodes == 1 {
            return;
        }
        let (store, told) = (Arc::clone(self.store), format!("machine {}: {why}", self.job.node));
        thread::spawn(move || {
            if !is_cause {
                thread::sleep(NEWS);
            }
            if store.add(Self::FIRST, 1).is_ok_and(|place| place == 1) {
                let _ = store.set(Self::FAILED, told.as_bytes());
            }
        });
        thread::sleep(3 * NEWS);
    }

    /// Says that this machine's ranks are done. The store is served until all are, one has failed, or a person is tired of waiting.
    fn leave(&self, signals: &mut Signals) {
        if self.job.nodes == 1 {
            return;
        }
        let (store, all) = (Arc::clone(self.store), self.job.nodes as i64);
        let (said, is_said) = mpsc::channel();
        thread::spawn(move || said.send(store.add(Self::DONE, 1).is_ok()));
        let _ = is_said.recv_timeout(GRACE);
        let until = Instant::now() + TIMEOUT;
        let all_done = || self.store.add(Self::DONE, 0).is_ok_and(|done| done >= all);
        while self.job.node == 0 && !all_done() && Instant::now() < until {
            if self.news().is_some() {
                // The others hear of it as well.
                return thread::sleep(2 * NEWS);
            }
            if signals.pending().next().is_some() {
                return;
            }
            thread::sleep(PAUSE);
        }
    }
}

fn start_all(job: &Job, port: u16, arguments: &[OsString]) -> anyhow::Result<Ranks> {
    fs::create_dir_all(&job.logs).with_context(|| job.logs.display().to_string())?;
    let mut ranks = Ranks(Vec::with_capacity(job.local_size));
    for local_rank in 0..job.local_size {
        ranks.0.push(start(job, local_rank, port, arguments)?);
    }
    Ok(ranks)
}

fn start(job: &Job, local_rank: usize, port: u16, arguments: &[OsString]) -> anyhow::Result<Rank> {
    let rank = job.node * job.local_size + local_rank;
    let mut command = Command::new(std::env::current_exe().context("this program's own file")?);
    // A group of its own: Ctrl-C on the terminal reaches the launcher, which hands it on once.
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    for (name, value) in [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", (job.nodes * job.local_size).to_string()),
        ("MASTER_ADDR", job.address.0.clone()),
        ("MASTER_PORT", port.to_string()),
        ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
        (LAUNCHER, std::process::id().to_string()),
    ] {
        command.env(name, value);
    }
    let log = (rank > 0).then(|| job.logs.join(format!("rank-{rank}.log")));
    if let Some(path) = &log {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        command.stdout(Stdio::null()).stderr(file);
    }
    let child = command.spawn().with_context(|| format!("rank {rank} does not start"))?;
    Ok(Rank { number: rank, child, log, ended: None })
}

/// The ranks of this host; those that still run when this is dropped are ended.
struct Ranks(Vec<Rank>);

impl Ranks {
    /// One that has failed.
    fn first_failure(&mut self) -> Option<usize> {
        self.0.iter_mut().position(|rank| rank.look().is_some_and(|status| !status.success()))
    }

    /// Whether none runs any more.
    fn have_ended(&self) -> bool {
        self.0.iter().all(|rank| rank.ended.is_some())
    }

    /// Which of those that failed was not merely left alone by another: the others end with code 1.
    fn culprit(&self, first: usize) -> usize {
        self.0.iter().position(Rank::fell_by_itself).unwrap_or(first)
    }

    /// Waits for the others, which hear of a failure by themselves, and ends those that do not.
    fn stop(&mut self) {
        let until = Instant::now() + GRACE;
        while self.0.iter_mut().any(|rank| rank.look().is_none()) && Instant::now() < until {
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.0 {
            if rank.ended.is_none() {
                let _ = rank.child.kill();
                let _ = rank.child.wait();
            }
        }
    }
}

impl Rank {
    /// How it ended, if it has.
    fn look(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Whether it has failed, and not because it was left alone or stopped.
    fn fell_by_itself(&self) -> bool {
        self.ended.is_some_and(|status| {
            !status.success() && !self.was_stopped() && status.code() != Some(i32::from(exit::FAILED))
        })
    }

    fn has_succeeded(&self) -> bool {
        self.ended.is_some_and(|status| status.success())
    }

    /// Whether a person ended it.
    fn was_stopped(&self) -> bool {
        self.ended.and_then(|status| status.code()) == Some(i32::from(exit::INTERRUPTED))
    }

    fn failure(&self) -> Failure {
        let code = self.ended.and_then(|status| u8::try_from(status.code()?).ok());
        if let (0, Some(code)) = (self.number, code) {
            return Failure::Told { code };
        }
        let code = code.unwrap_or(exit::FAILED);
        Failure::Rank { rank: self.number, how: self.how(), said: self.last_words(), code }
    }

    /// What other machines hear of its end.
    fn told(&self) -> String {
        format!("rank {} {}{}", self.number, self.how(), self.last_words())
    }

    fn how(&self) -> String {
        let status = self.ended;
        match (status.and_then(|status| status.code()), status.and_then(|status| status.signal())) {
            (Some(code), _) => format!("ended with code {code}"),
            (_, Some(signal)) => format!("was ended by signal {signal}"),
            _ => "was ended".to_owned(),
        }
    }

    /// The last error line of its log. What rank 0 says stands on the terminal already.
    fn last_words(&self) -> String {
        let Some(path) = &self.log else { return String::new() };
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
        line.map_or_else(|| format!(" (its log: {})", path.display()), |line| format!(": {line}"))
    }
}
