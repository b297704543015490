//! Starts several processes of this program, watches them, and stops them together.
//!
//! ```text
//!   colossal-chat sft --nproc 4 ...           the launcher: serves the store, starts ranks 0 to 3, waits
//!     +- rank 0   writes to the terminal
//!     +- rank 1   appends to OUT/logs/rank-1.log
//!     +- ...
//! ```
//! When a rank exits with an error, the launcher stops the other ranks within [`GRACE_PERIOD`] and exits with
//! the failed rank's code. The launchers on other machines learn of the failure through the store. The kernel
//! kills a rank whose launcher has died, so no process is left behind. Ctrl-C, SIGTERM and SIGHUP are
//! forwarded to every rank, and all ranks stop after the same step. If a signal such as SIGSTOP stops a rank,
//! the collectives of the other ranks fail at their time limit; once another rank has exited, the launcher
//! ends the job.
//!
//! For a job on one host, the launcher generates the job secret. The ranks read it from their environment,
//! which only this user can read.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use parallel::c10d::{Secret, Store};
use parallel::process::{self, send_signal};
use parallel::rendezvous::{JOB_SECRET, open_store, secret_from_environment};
use parallel::world::RENDEZVOUS_TIMEOUT;
use parallel::{Axis, Mesh, ProcessGroups, RankInfo, Transport, World, launch, regular_file};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;

use crate::config::section::ParallelSection;
use crate::config::{ConfigError, Difference, differences};
use crate::console::print_stderr;
use crate::failure::Failure;
use crate::{exit, interrupt};

/// How long the other ranks may take to exit after one has failed.
const GRACE_PERIOD: Duration = Duration::from_secs(4);
/// The time between two checks of the ranks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The time between two queries of the store for failures of other machines.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The environment variable that gives a rank the process id of its launcher.
pub(crate) const LAUNCHER: &str = "COLOSSAL_LAUNCHER";

/// A job, and the part of it that this launcher starts.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The number of ranks on this host.
    pub(crate) local_size: usize,
    /// The number of hosts.
    pub(crate) nodes: usize,
    /// The index of this host, from 0.
    pub(crate) node: usize,
    /// The address of the job's store, which the launcher of host 0 serves. Port 0 picks any free port, for a
    /// job on one host.
    pub(crate) address: (String, u16),
    /// The folder for the log files.
    pub(crate) logs: PathBuf,
    /// The secret with which a process proves that it belongs to the job.
    secret: Secret,
}

impl Job {
    /// A job of `size` ranks on this host only.
    pub(crate) fn on_this_host(size: usize, out: &Path) -> anyhow::Result<Self> {
        let address = ("127.0.0.1".to_owned(), 0);
        Self::on_hosts(size, [0, 1], address, &out.join("logs"))
    }

    /// A job with `size` ranks on this host, which is host `node` of `nodes`. A job on a single host uses the
    /// loopback address.
    pub(crate) fn on_hosts(
        size: usize,
        [node, nodes]: [usize; 2],
        (host, port): (String, u16),
        logs: &Path,
    ) -> anyhow::Result<Self> {
        let alone = nodes == 1;
        let host = if alone { "127.0.0.1".to_owned() } else { host };
        let secret = match secret_from_environment()? {
            Some(secret) if !alone => secret,
            _ if alone => Secret::random().context("cannot read random bytes for the secret of the job")?,
            _ => return Err(parallel::Error::NoSecret { rank: node * size, size: nodes * size }.into()),
        };
        Ok(Self { local_size: size, nodes, node, address: (host, port), logs: logs.to_owned(), secret })
    }

    /// The rank of this launcher in the group of all launchers, one per host.
    fn rank_info(&self) -> RankInfo {
        let (address, port) = self.address.clone();
        let secret = Some(self.secret.clone());
        RankInfo { rank: self.node, size: self.nodes, address, port, secret, ..RankInfo::single() }
    }
}

/// Whether this process must launch `processes` ranks instead of being one of them.
pub(crate) fn is_launcher(processes: usize) -> anyhow::Result<bool> {
    if processes <= 1 || std::env::var_os(LAUNCHER).is_some() {
        return Ok(false);
    }
    let rank_info = RankInfo::from_environment()?;
    if rank_info.size > 1 {
        return Err(ConfigError::Launched { processes, rank: rank_info.rank, size: rank_info.size }.into());
    }
    Ok(true)
}

/// The startup settings that must be equal on every rank of a job.
pub(crate) struct StartupSpec<'a> {
    /// The name of the subcommand.
    pub(crate) command: &'a str,
    /// Whether the run resumes from a checkpoint.
    pub(crate) resume: bool,
    /// The resolved configuration.
    pub(crate) settings: &'a str,
}

/// Joins the job as one rank, as [`join_world`] does, with the process groups of its mesh.
pub(crate) fn join(
    threads: Option<usize>,
    parallel: &ParallelSection,
    start: &StartupSpec<'_>,
) -> anyhow::Result<Arc<ProcessGroups>> {
    groups(&join_world(threads, parallel.transport, start)?, parallel)
}

/// The process groups of this rank.
pub(crate) fn groups(world: &World, parallel: &ParallelSection) -> anyhow::Result<Arc<ProcessGroups>> {
    Ok(Arc::new(world.groups(&mesh(parallel, world.rank(), world.size())?)?))
}

/// Joins the job as one rank, checks that all ranks were started alike, and prepares the process. `threads`
/// is the number of threads per operation.
pub(crate) fn join_world(
    threads: Option<usize>,
    transport: Transport,
    start: &StartupSpec<'_>,
) -> anyhow::Result<World> {
    if let Some(launcher) = std::env::var(LAUNCHER).ok().and_then(|text| text.parse().ok()) {
        process::die_with_parent(launcher)?;
    }

    let rank_info = RankInfo::from_environment()?;
    let world = World::join(rank_info, transport, RENDEZVOUS_TIMEOUT)?;
    check_same_startup(&world, start)?;

    let prepared = launch::init_process(threads, world.ranks_sharing_cores());
    if let (0, Ok(refused)) = (world.rank(), &prepared) {
        for refused in refused {
            print_stderr(&format!("hint: {refused}"));
        }
    }

    // Every rank shares its outcome before it returns, so that no rank waits for one that has failed.
    let problem = prepared.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let problems = world.store_all_gather("problem", &problem)?;
    prepared?;
    if let Some((rank, problem)) = problems.into_iter().enumerate().find(|(_, problem)| !problem.is_empty()) {
        return Err(ConfigError::RankFailed { rank, problem }.into());
    }
    Ok(world)
}

/// Refuses ranks that were started with different settings. Every rank finds the same difference, before any
/// rank waits in a collective that another rank never enters.
fn check_same_startup(
    world: &World,
    StartupSpec { command, resume, settings }: &StartupSpec<'_>,
) -> anyhow::Result<()> {
    let own = format!("{settings}\n[command]\nname = \"{command}\"\nresume = {resume}\n");
    let all = world.store_all_gather("start", &own)?;
    for (rank, other) in all.iter().enumerate().filter(|(_, other)| **other != all[0]) {
        let mut found = differences(&all[0], other, &["out", "threads"])?.into_iter();
        if let Some(Difference { key, was: first, now: own }) = found.next() {
            return Err(ConfigError::RanksDiffer { rank, key, own, first }.into());
        }
    }
    Ok(())
}

/// The mesh of `size` processes, from the point of view of `rank`.
pub(crate) fn mesh(parallel: &ParallelSection, rank: usize, size: usize) -> anyhow::Result<Mesh> {
    let ParallelSection { pipeline, expert, sequence, tensor, .. } = parallel;
    let sizes = [pipeline.size, expert.size, sequence.size, tensor.size];
    let others = sizes.into_iter().fold(1, usize::saturating_mul);
    let wide = [
        (Axis::Pipeline, pipeline.size),
        (Axis::Data, parallel.data.unwrap_or((size / others).max(1))),
        (Axis::Expert, expert.size),
        (Axis::Sequence, sequence.size),
        (Axis::Tensor, tensor.size),
    ];
    Ok(Mesh::new(&wide, rank, size)?)
}

/// The command-line arguments of this process.
pub(crate) fn own_arguments() -> Vec<OsString> {
    std::env::args_os().skip(1).collect()
}

/// A rank that this launcher has started.
struct Rank {
    number: usize,
    child: Child,
    log: Option<Log>,
    ended: Option<ExitStatus>,
    /// Since when the launcher has seen it stopped by a signal.
    stopped_since: Option<Instant>,
}

/// The log file of a rank. A later run appends to it, and the lines of earlier runs stay.
struct Log {
    path: PathBuf,
    /// The byte offset at which the lines of this run begin.
    start: u64,
}

impl Log {
    fn open(path: PathBuf) -> std::io::Result<(Self, File)> {
        let file = regular_file::open(&path, File::options().append(true).create(true))?;
        let start = file.metadata()?.len();
        Ok((Self { path, start }, file))
    }

    /// The text that this run has written.
    fn text(&self) -> std::io::Result<String> {
        let mut file = regular_file::open(&self.path, File::options().read(true))?;
        file.seek(SeekFrom::Start(self.start))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Starts every rank that `job` has on this host, with `arguments`, and waits for all of them.
pub(crate) fn run(job: &Job, arguments: &[OsString]) -> anyhow::Result<()> {
    let store = Arc::new(open_store(&job.rank_info(), RENDEZVOUS_TIMEOUT)?);
    let others = PeerLaunchers::listen(job, &store)?;

    let mut signals = Signals::new(interrupt::handled_signals()).context("cannot listen for Ctrl-C")?;

    let mut ranks = start_all(job, store.port(), arguments)
        .inspect_err(|error| others.report_failure(&format!("{error:#}"), true))?;

    loop {
        if let Some(first) = ranks.first_failure() {
            others.report_failure(&ranks.0[first].failure_message(), ranks.0[first].is_root_cause());
            ranks.stop();
            return Err(ranks.0[ranks.root_cause(first)].failure().into());
        }
        if let Some(rank) = ranks.long_stopped(RENDEZVOUS_TIMEOUT) {
            let failure = Failure::RankStopped { rank, seconds: RENDEZVOUS_TIMEOUT.as_secs() };
            others.report_failure(&failure.to_string(), true);
            return Err(failure.into());
        }
        if ranks.have_exited() {
            others.wait_for_peers(&mut signals);
            return Ok(());
        }
        if let Some(reported) = others.poll_failure() {
            ranks.stop();
            if ranks.0.iter().any(|rank| !rank.has_succeeded() && !rank.was_stopped()) {
                return Err(Failure::OtherMachineFailed { failure: reported }.into());
            }
        }
        for signal in signals.pending() {
            ranks.forward(signal);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// The launchers on the other machines of a job, which communicate through its store. A store on another
/// machine may take long to answer, so a separate thread queries it and the launcher itself never blocks on
/// it for long.
struct PeerLaunchers<'a> {
    job: &'a Job,
    store: &'a Arc<Store>,
    failures: Receiver<String>,
}

impl<'a> PeerLaunchers<'a> {
    /// The store key that holds the reason for which the job failed.
    const FAILED: &'static str = "launcher/failed";

    /// The store key that the launcher of machine `node` sets when its ranks are done.
    fn done_key(node: usize) -> String {
        format!("launcher/done/{node}")
    }

    /// Starts the thread that watches the store for a failure on another machine.
    fn listen(job: &'a Job, store: &'a Arc<Store>) -> anyhow::Result<Self> {
        let (heard, failures) = mpsc::channel();
        let asked = Arc::clone(store);

        if job.nodes > 1 {
            let listen = move || {
                let reported = loop {
                    thread::sleep(STORE_POLL_INTERVAL);
                    match asked.check(Self::FAILED) {
                        Ok(false) => {}
                        Ok(true) => match asked.get(Self::FAILED, STORE_POLL_INTERVAL) {
                            Ok(reported) => break String::from_utf8_lossy(&reported).into_owned(),
                            Err(error) => break format!("bad news at the store: {error}"),
                        },
                        Err(error) => break format!("the launcher of machine 0 is gone ({error})"),
                    }
                };
                // The receiver is gone when the ranks of this machine have exited.
                let _ = heard.send(reported);
            };
            thread::Builder::new().spawn(listen).context("cannot listen to the other machines")?;
        }

        Ok(Self { job, store, failures })
    }

    /// Returns the failure that another machine has reported, if any.
    fn poll_failure(&self) -> Option<String> {
        self.failures.try_recv().ok()
    }

    /// Reports to the other launchers why the ranks of this machine failed, unless another launcher has
    /// already reported a failure. If this failure may only be a consequence of one on another machine
    /// (`is_cause` is false), it first gives that machine time to report.
    ///
    /// This process may host the store, so the method then waits for the other launchers to read the report.
    fn report_failure(&self, why: &str, is_cause: bool) {
        if self.job.nodes == 1 {
            return;
        }
        let (store, reported) = (Arc::clone(self.store), format!("machine {}: {why}", self.job.node));
        let tell = move || {
            if !is_cause {
                thread::sleep(STORE_POLL_INTERVAL);
            }
            // If two machines fail at the same time, the report of either may win.
            if !store.check(Self::FAILED).unwrap_or(true) {
                let _ = store.set(Self::FAILED, reported.as_bytes());
            }
        };
        // If the thread does not start, the other launchers still notice that the store is gone.
        if thread::Builder::new().spawn(tell).is_ok() {
            thread::sleep(3 * STORE_POLL_INTERVAL);
        }
    }

    /// Reports that all ranks of this machine have finished. The launcher that hosts the store keeps serving
    /// it until every machine has finished, one has failed, or the user sends a signal.
    fn wait_for_peers(&self, signals: &mut Signals) {
        if self.job.nodes == 1 {
            return;
        }
        let (store, own) = (Arc::clone(self.store), Self::done_key(self.job.node));
        let (said, is_said) = mpsc::channel();
        let say = move || said.send(store.set(&own, &[]).is_ok());
        if thread::Builder::new().spawn(say).is_ok() {
            let _ = is_said.recv_timeout(GRACE_PERIOD);
        }

        let until = Instant::now() + RENDEZVOUS_TIMEOUT;
        let mut waited_for: Vec<usize> =
            if self.job.node == 0 { (1..self.job.nodes).collect() } else { Vec::new() };
        while Instant::now() < until {
            waited_for.retain(|&node| {
                let key = Self::done_key(node);
                !(self.store.check(&key).unwrap_or(false)
                    && self.store.get(&key, STORE_POLL_INTERVAL).is_ok())
            });
            if waited_for.is_empty() {
                return;
            }
            if self.poll_failure().is_some() {
                // Keep the store up long enough for the other launchers to read the failure too.
                return thread::sleep(2 * STORE_POLL_INTERVAL);
            }
            // No rank is left that could save a checkpoint, so SIGUSR1 has no effect here.
            if signals.pending().any(|signal| signal != SIGUSR1) {
                return;
            }
            thread::sleep(POLL_INTERVAL);
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
    // A separate process group keeps the terminal's Ctrl-C from the rank: the launcher forwards it, once.
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    for (name, value) in [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", (job.nodes * job.local_size).to_string()),
        ("MASTER_ADDR", job.address.0.clone()),
        ("MASTER_PORT", port.to_string()),
        ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
        (JOB_SECRET, job.secret.expose()),
        (LAUNCHER, std::process::id().to_string()),
    ] {
        command.env(name, value);
    }

    let mut log = None;
    if rank > 0 {
        let path = job.logs.join(format!("rank-{rank}.log"));
        let (opened, file) = Log::open(path.clone()).with_context(|| path.display().to_string())?;
        command.stdout(Stdio::null()).stderr(file);
        log = Some(opened);
    }

    let child = command.spawn().with_context(|| format!("rank {rank} does not start"))?;
    Ok(Rank { number: rank, child, log, ended: None, stopped_since: None })
}

/// The ranks of this host. Dropping the list kills the ranks that are still running.
struct Ranks(Vec<Rank>);

impl Ranks {
    /// The index of a rank that has failed, if any.
    fn first_failure(&mut self) -> Option<usize> {
        self.0.iter_mut().position(|rank| rank.poll().is_some_and(|status| !status.success()))
    }

    /// Whether all ranks have exited.
    fn have_exited(&self) -> bool {
        self.0.iter().all(|rank| rank.ended.is_some())
    }

    /// The number of a rank that a signal has kept stopped for `limit` since another rank exited. As long as
    /// all ranks are there, their collectives have time limits of their own.
    fn long_stopped(&mut self, limit: Duration) -> Option<usize> {
        if self.0.iter().all(|rank| rank.ended.is_none()) {
            return None;
        }
        for rank in self.0.iter_mut().filter(|rank| rank.ended.is_none()) {
            if !process::is_stopped(rank.child.id()) {
                rank.stopped_since = None;
            } else if rank.stopped_since.get_or_insert_with(Instant::now).elapsed() >= limit {
                return Some(rank.number);
            }
        }
        None
    }

    /// The index of the rank that caused the failure, or `first` if no rank stands out. The other ranks exit
    /// with code 1 because their collective failed.
    fn root_cause(&self, first: usize) -> usize {
        self.0.iter().position(Rank::is_root_cause).unwrap_or(first)
    }

    /// Sends `signal` to every rank. A rank that is still starting has no handler for SIGUSR1 yet and would
    /// die of it, so it does not get that signal.
    fn forward(&self, signal: i32) {
        for rank in &self.0 {
            let process = rank.child.id();
            if signal != SIGUSR1 || process::is_signal_handled(process, signal) {
                send_signal(process, signal);
            }
        }
    }

    /// Waits up to [`GRACE_PERIOD`] for the remaining ranks, which detect the failure by themselves. Dropping
    /// the list kills those that are still running.
    fn stop(&mut self) {
        let until = Instant::now() + GRACE_PERIOD;
        while self.0.iter_mut().any(|rank| rank.poll().is_none()) && Instant::now() < until {
            thread::sleep(POLL_INTERVAL);
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
    /// The exit status of the process, if it has exited.
    fn poll(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Whether the rank failed by itself, and not because another rank failed or a signal stopped it.
    fn is_root_cause(&self) -> bool {
        self.ended.is_some_and(|status| {
            !status.success() && !self.was_stopped() && status.code() != Some(i32::from(exit::FAILED))
        })
    }

    fn has_succeeded(&self) -> bool {
        self.ended.is_some_and(|status| status.success())
    }

    /// Whether the rank exited because of Ctrl-C or another signal that it handles.
    fn was_stopped(&self) -> bool {
        self.ended.and_then(|status| status.code()) == Some(i32::from(exit::INTERRUPTED))
    }

    fn failure(&self) -> Failure {
        let code = self.ended.and_then(|status| u8::try_from(status.code()?).ok());
        if let (0, Some(code)) = (self.number, code) {
            return Failure::AlreadyReported { code };
        }
        let code = code.unwrap_or(exit::FAILED);
        Failure::Rank {
            rank: self.number,
            exit_status: self.exit_status_text(),
            last_error: self.last_error_line(),
            code,
        }
    }

    /// The message that other machines receive about the failure of this rank.
    fn failure_message(&self) -> String {
        format!("rank {} {}{}", self.number, self.exit_status_text(), self.last_error_line())
    }

    fn exit_status_text(&self) -> String {
        let status = self.ended;
        match (status.and_then(|status| status.code()), status.and_then(|status| status.signal())) {
            (Some(code), _) => format!("ended with code {code}"),
            (_, Some(signal)) => format!("was ended by signal {signal}"),
            _ => "was ended".to_owned(),
        }
    }

    /// The last error line of the log. It is empty for rank 0, whose output is already on the terminal.
    fn last_error_line(&self) -> String {
        let Some(log) = &self.log else { return String::new() };
        let text = log.text().unwrap_or_default();
        let line = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
        line.map_or_else(|| format!(" (its log: {})", log.path.display()), |line| format!(": {line}"))
    }
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::{SIGCONT, SIGSTOP};

    use super::*;

    fn rank(number: usize, seconds: &str) -> Rank {
        let child = Command::new("sleep").arg(seconds).spawn().unwrap();
        Rank { number, child, log: None, ended: None, stopped_since: None }
    }

    /// Asks as the launcher does, until a rank was found or `patience` is over.
    fn find(ranks: &mut Ranks, limit: Duration, patience: Duration) -> Option<usize> {
        let started = Instant::now();
        while started.elapsed() < patience {
            assert!(ranks.first_failure().is_none());
            if let Some(rank) = ranks.long_stopped(limit) {
                return Some(rank);
            }
            thread::sleep(POLL_INTERVAL);
        }
        None
    }

    #[test]
    fn a_rank_that_stays_stopped_after_another_has_exited_is_found() {
        let (limit, short, long) = (Duration::from_millis(300), Duration::from_millis(600), Duration::MAX);
        let mut ranks = Ranks(vec![rank(0, "1000"), rank(1, "1000")]);
        send_signal(ranks.0[1].child.id(), SIGSTOP);
        assert_eq!(find(&mut ranks, limit, short), None, "both ranks are there");

        let mut ranks = Ranks(vec![rank(0, "0"), rank(1, "1000")]);
        assert_eq!(find(&mut ranks, limit, short), None, "the other rank goes on");
        send_signal(ranks.0[1].child.id(), SIGSTOP);
        assert_eq!(find(&mut ranks, limit, long), Some(1));
        assert!(ranks.0[1].stopped_since.unwrap().elapsed() >= limit);
        // What was stopped and goes on is not counted as stopped since then.
        send_signal(ranks.0[1].child.id(), SIGCONT);
        assert_eq!(find(&mut ranks, limit, short), None, "the other rank goes on again");
        assert!(ranks.0[1].stopped_since.is_none());
    }
}
