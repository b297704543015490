//! Several processes of this program: started, watched, and ended together.
//!
//! ```text
//!   colossal-chat sft --nproc 4 ...           the launcher: serves the store, starts ranks 0 to 3, waits
//!     +- rank 0   speaks on the terminal
//!     +- rank 1   appends to OUT/logs/rank-1.log
//!     +- ...
//! ```
//! When a rank ends with an error, the others are stopped within [`GRACE_PERIOD`] and the launcher ends with the rank's code. The launchers of
//! other machines hear of it at the store. A rank whose launcher is gone is ended by the system, so nothing
//! is left behind. Ctrl-C, SIGTERM and SIGHUP reach every rank, and all of them end after the same step.
//!
//! The launcher of a job on one host makes the secret of the job. Ranks find it in their environment, which
//! only this user can read.

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
use parallel::{Axis, Mesh, ProcessGroups, RankInfo, World, launch};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::command::print_stderr;
use crate::config::section::ParallelSection;
use crate::config::{ConfigError, first_difference};
use crate::exit::{self, Failure};

/// How long the other ranks may take to end once one has failed.
const GRACE_PERIOD: Duration = Duration::from_secs(4);
/// Between two looks at the ranks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Between two looks at what the launchers of other machines say.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(500);
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
    /// What proves that a rank belongs to the job.
    secret: Secret,
}

impl Job {
    /// `size` ranks on this host alone.
    pub(crate) fn on_this_host(size: usize, out: &Path) -> anyhow::Result<Self> {
        let address = ("127.0.0.1".to_owned(), 0);
        Self::on_hosts(size, [0, 1], address, &out.join("logs"))
    }

    /// `size` ranks on this host, which is the `node`-th of `nodes`. Where it is the only one, they meet on
    /// loopback.
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

    /// This launcher among those of all hosts.
    fn rank_info(&self) -> RankInfo {
        let (address, port) = self.address.clone();
        let secret = Some(self.secret.clone());
        RankInfo { rank: self.node, size: self.nodes, address, port, secret, ..RankInfo::single() }
    }
}

/// Whether this process has to start `processes` others, rather than being one of them.
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

/// What every rank of a job must have been started with.
pub(crate) struct StartupSpec<'a> {
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
    start: &StartupSpec<'_>,
) -> anyhow::Result<Arc<ProcessGroups>> {
    if let Some(launcher) = std::env::var(LAUNCHER).ok().and_then(|text| text.parse().ok()) {
        process::die_with_parent(launcher)?;
    }
    let rank_info = RankInfo::from_environment()?;
    let world = World::join(rank_info, parallel.transport, RENDEZVOUS_TIMEOUT)?;
    check_same_startup(&world, start)?;
    let prepared = launch::init_process(threads, world.ranks_sharing_cores());
    if let (0, Ok(refused)) = (world.rank(), &prepared) {
        for refused in refused {
            print_stderr(&format!("hint: {refused}"));
        }
    }
    let problem = prepared.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let problems = world.store_all_gather("problem", &problem)?;
    prepared?;
    // Nobody waits for a rank that cannot come.
    if let Some((rank, problem)) = problems.into_iter().enumerate().find(|(_, problem)| !problem.is_empty()) {
        return Err(ConfigError::RankFailed { rank, problem }.into());
    }
    Ok(Arc::new(world.groups(&mesh(parallel, world.rank(), world.size())?)?))
}

/// Refuses ranks that were started with different words. Every rank finds the same one, before any of them waits for another in a
/// collective that the other does not know of.
fn check_same_startup(
    world: &World,
    StartupSpec { command, resume, settings }: &StartupSpec<'_>,
) -> anyhow::Result<()> {
    let own = format!("{settings}\n[command]\nname = \"{command}\"\nresume = {resume}\n");
    let all = world.store_all_gather("start", &own)?;
    for (rank, other) in all.iter().enumerate().filter(|(_, other)| **other != all[0]) {
        if let Some((key, [first, own])) = first_difference(&all[0], other, &["out", "threads"])? {
            return Err(ConfigError::RanksDiffer { rank, key, own, first }.into());
        }
    }
    Ok(())
}

/// The mesh of `size` processes, seen from `rank`.
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

/// This program's own arguments.
pub(crate) fn own_arguments() -> Vec<OsString> {
    std::env::args_os().skip(1).collect()
}

/// One rank.
struct Rank {
    number: usize,
    child: Child,
    log: Option<Log>,
    ended: Option<ExitStatus>,
}

/// The log of a rank. A later run writes behind an earlier one, whose lines stay.
struct Log {
    path: PathBuf,
    /// Where the lines of this run begin, in bytes.
    start: u64,
}

impl Log {
    fn open(path: PathBuf) -> std::io::Result<(Self, File)> {
        let file = File::options().append(true).create(true).open(&path)?;
        let start = file.metadata()?.len();
        Ok((Self { path, start }, file))
    }

    /// What this run has written.
    fn text(&self) -> std::io::Result<String> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.start))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Runs this program with `arguments` as every rank of `job`, and waits for all of them.
pub(crate) fn run(job: &Job, arguments: &[OsString]) -> anyhow::Result<()> {
    let store = Arc::new(open_store(&job.rank_info(), RENDEZVOUS_TIMEOUT)?);
    let others = PeerLaunchers::listen(job, &store)?;
    // Under `nohup` a closed terminal ends nothing.
    let heard = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !process::is_signal_ignored(signal));
    let mut signals = Signals::new(heard).context("cannot listen for Ctrl-C")?;
    let mut ranks = start_all(job, store.port(), arguments)
        .inspect_err(|error| others.report_failure(&format!("{error:#}"), true))?;
    loop {
        if let Some(first) = ranks.first_failure() {
            others.report_failure(&ranks.0[first].failure_message(), ranks.0[first].is_root_cause());
            ranks.stop();
            return Err(ranks.0[ranks.root_cause(first)].failure().into());
        }
        if ranks.have_exited() {
            others.wait_for_peers(&mut signals);
            return Ok(());
        }
        if let Some(reported) = others.poll_failure() {
            ranks.stop();
            if ranks.0.iter().any(|rank| !rank.has_succeeded() && !rank.was_stopped()) {
                return Err(Failure::OtherMachineFailed { told: reported }.into());
            }
        }
        for signal in signals.pending() {
            ranks.0.iter().for_each(|rank| send_signal(rank.child.id(), signal));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// The launchers of the other machines of a job, which talk at its store. A store on another machine may not answer for long, so whoever
/// asks it is a thread of its own, and the launcher waits for none of them for long.
struct PeerLaunchers<'a> {
    job: &'a Job,
    store: &'a Arc<Store>,
    failures: Receiver<String>,
}

impl<'a> PeerLaunchers<'a> {
    /// Why the job ends.
    const FAILED: &'static str = "launcher/failed";

    /// Where the launcher of a machine says that its ranks are done.
    fn done_key(node: usize) -> String {
        format!("launcher/done/{node}")
    }

    /// Begins to listen for bad news.
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
                // Nobody listens any more when this machine's ranks have ended.
                let _ = heard.send(reported);
            };
            thread::Builder::new().spawn(listen).context("cannot listen to the other machines")?;
        }
        Ok(Self { job, store, failures })
    }

    /// What one of them has told.
    fn poll_failure(&self) -> Option<String> {
        self.failures.try_recv().ok()
    }

    /// Reports to the other launchers why the ranks of this machine ended, unless another launcher has
    /// reported first. If the failure may be a consequence of one on another machine, it waits for that
    /// report. They have a moment to hear it, since the store may end with this process; where it does not
    /// answer, nobody is left to tell.
    fn report_failure(&self, why: &str, is_cause: bool) {
        if self.job.nodes == 1 {
            return;
        }
        let (store, reported) = (Arc::clone(self.store), format!("machine {}: {why}", self.job.node));
        let tell = move || {
            if !is_cause {
                thread::sleep(STORE_POLL_INTERVAL);
            }
            // Of two machines that fail at once either may be heard.
            if !store.check(Self::FAILED).unwrap_or(true) {
                let _ = store.set(Self::FAILED, reported.as_bytes());
            }
        };
        // Without a thread the others notice that the store is gone.
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
                // The others hear of it as well.
                return thread::sleep(2 * STORE_POLL_INTERVAL);
            }
            if signals.pending().next().is_some() {
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
    // A group of its own: Ctrl-C on the terminal reaches the launcher, which hands it on once.
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
    Ok(Rank { number: rank, child, log, ended: None })
}

/// The ranks of this host; those that still run when this is dropped are ended.
struct Ranks(Vec<Rank>);

impl Ranks {
    /// One that has failed.
    fn first_failure(&mut self) -> Option<usize> {
        self.0.iter_mut().position(|rank| rank.poll().is_some_and(|status| !status.success()))
    }

    /// Whether none runs any more.
    fn have_exited(&self) -> bool {
        self.0.iter().all(|rank| rank.ended.is_some())
    }

    /// The rank that caused the failure. The other ranks exit with code 1 because their collective failed.
    fn root_cause(&self, first: usize) -> usize {
        self.0.iter().position(Rank::is_root_cause).unwrap_or(first)
    }

    /// Waits for the others, which hear of a failure by themselves, and ends those that do not.
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
    /// How it ended, if it has.
    fn poll(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Whether it has failed, and not because it was left alone or stopped.
    fn is_root_cause(&self) -> bool {
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

    /// What other machines hear of its end.
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

    /// The last error line of its log. What rank 0 says stands on the terminal already.
    fn last_error_line(&self) -> String {
        let Some(log) = &self.log else { return String::new() };
        let text = log.text().unwrap_or_default();
        let line = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
        line.map_or_else(|| format!(" (its log: {})", log.path.display()), |line| format!(": {line}"))
    }
}
