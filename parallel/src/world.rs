//! All processes of a job: their ranks, their rendezvous, and the process groups that they form.
//!
//! A launcher sets `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` for each process (torchrun and this
//! program's own launcher do). SLURM and Open MPI use environment variables of their own, which
//! [`RankInfo::from_environment`] reads as well. The processes meet at a store, which either rank 0 or the
//! launcher serves ([`crate::rendezvous`]).
//!
//! All ranks of a group create it together, and every rank creates its groups in the same order. A group uses
//! shared memory if all of its ranks run on one host, TCP otherwise, and NCCL for GPU tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parallel_sys::c10d::{Secret, Store};
use serde::{Deserialize, Serialize};
use tch::Device;

use crate::comm::gloo::GlooGroup;
use crate::comm::nccl::NcclGroup;
use crate::comm::shared::SharedGroup;
use crate::comm::staged::HostStaged;
use crate::comm::{Backend, ProcessGroup};
use crate::rendezvous::{self, JOB_SECRET, open_store};
use crate::{Axis, Error, Mesh, SysError};

/// How long ranks wait for one another at the rendezvous.
pub const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(300);
/// How long ranks wait for one another in a collective. It is long because rank 0 may be writing a large
/// model meanwhile. A dead rank is noticed at once.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(1800);
/// How long the rank that serves the store keeps it open for the others to read.
const STORE_LINGER: Duration = Duration::from_secs(7);
/// The shortest timeout for reading a value; a timeout of zero would mean to wait forever.
const MIN_WAIT: Duration = Duration::from_millis(10);

/// The transport that moves bytes between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Shared memory within a host, Gloo between hosts.
    #[default]
    Auto,
    /// Gloo everywhere.
    Gloo,
    /// Shared memory; an error if a group spans several hosts.
    Shared,
}

/// The rank of a process in its job, and the address of the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankInfo {
    /// The rank of this process, from 0.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// The host that serves the store.
    pub address: String,
    /// The port of the store.
    pub port: u16,
    /// Whether the launcher serves the store; otherwise rank 0 does.
    pub uses_agent_store: bool,
    /// The restart count of the job if torchrun serves the store and restarts the job; empty elsewhere.
    pub restart_count: String,
    /// The secret that only the processes of the job know. A single process needs none.
    pub secret: Option<Secret>,
}

/// The environment variables in which one launcher passes rank and world size.
struct LauncherVars {
    launcher: &'static str,
    rank: &'static str,
    size: &'static str,
    /// Whether the launcher also sets the rank for a process that runs alone.
    sets_rank_when_alone: bool,
}

const LAUNCHERS: [LauncherVars; 4] = [
    LauncherVars { launcher: "torchrun", rank: "RANK", size: "WORLD_SIZE", sets_rank_when_alone: false },
    LauncherVars {
        launcher: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        sets_rank_when_alone: false,
    },
    // MPI comes before SLURM: a SLURM shell may run another launcher, whose variables take precedence.
    LauncherVars { launcher: "MPI", rank: "PMI_RANK", size: "PMI_SIZE", sets_rank_when_alone: false },
    LauncherVars {
        launcher: "SLURM",
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        sets_rank_when_alone: true,
    },
];

impl LauncherVars {
    /// Returns an error if only one of the two variables is set.
    fn incomplete_pair_error(&self, value: &dyn Fn(&str) -> Option<String>) -> Option<Error> {
        let name = match (value(self.rank), value(self.size)) {
            (Some(_), None) if !self.sets_rank_when_alone => self.size,
            (None, Some(_)) => self.rank,
            _ => return None,
        };
        let problem = "is not set, though it comes with one that is: set both, or neither for one process";
        Some(Error::LauncherVars { launcher: self.launcher, name, value: String::new(), problem })
    }
}

impl RankInfo {
    /// A single process, without a launcher.
    pub fn single() -> Self {
        Self {
            rank: 0,
            size: 1,
            address: "127.0.0.1".to_owned(),
            port: 0,
            uses_agent_store: false,
            restart_count: String::new(),
            secret: None,
        }
    }

    /// Whether this process serves the store.
    pub fn hosts_store(&self) -> bool {
        self.rank == 0 && !self.uses_agent_store
    }

    /// Reads the launcher's variables, or returns a single process if no launcher has set any.
    pub fn from_environment() -> Result<Self, Error> {
        Self::from_vars(&|name| std::env::var(name).ok())
    }

    fn from_vars(value: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let is_set = |vars: &&LauncherVars| value(vars.rank).is_some() && value(vars.size).is_some();
        let Some(vars) = LAUNCHERS.iter().find(is_set) else {
            return match LAUNCHERS.iter().find_map(|vars| vars.incomplete_pair_error(value)) {
                Some(error) => Err(error),
                None => Ok(Self::single()),
            };
        };

        let number = |name: &'static str| -> Result<Option<usize>, Error> {
            let invalid = |text: String| Error::LauncherVars {
                launcher: vars.launcher,
                name,
                value: text,
                problem: "is not a number",
            };
            value(name).map(|text| text.trim().parse().map_err(|_| invalid(text))).transpose()
        };

        let size = number(vars.size)?.unwrap_or(1);
        let rank = number(vars.rank)?.unwrap_or(0);
        if rank >= size {
            return Err(Error::RankOutOfRange { rank, size });
        }
        if size == 1 {
            return Ok(Self::single());
        }

        let uses_agent_store = value("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| text == "True");
        let address = value("MASTER_ADDR");
        let port = number("MASTER_PORT")?.and_then(|port| u16::try_from(port).ok());
        let missing = |name| Error::LauncherVars {
            launcher: vars.launcher,
            name,
            value: String::new(),
            problem: "is not set: name the host and a free port of rank 0, the same on every rank",
        };
        Ok(Self {
            rank,
            size,
            address: address.ok_or_else(|| missing("MASTER_ADDR"))?,
            port: port.ok_or_else(|| missing("MASTER_PORT"))?,
            uses_agent_store,
            restart_count: value("TORCHELASTIC_RESTART_COUNT")
                .filter(|_| uses_agent_store)
                .unwrap_or_default(),
            secret: rendezvous::parse_secret(value(JOB_SECRET).as_deref())?,
        })
    }
}

/// One process of a job, connected to the others.
#[derive(Clone, Debug)]
pub struct World {
    rank_info: RankInfo,
    transport: Transport,
    interface: String,
    timeout: Duration,
    store: Option<Arc<Store>>,
    /// The host of each rank.
    hosts: Vec<HostInfo>,
}

/// Where a process runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HostInfo {
    /// Identifies the host: boot id, network namespace and pid namespace. Two ranks can use shared memory
    /// only if this value is equal.
    host: String,
    /// The process id on that host.
    pid: u32,
    /// The cores that the process may use.
    cores: BTreeSet<usize>,
}

impl HostInfo {
    fn local() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let link =
            |name: &str| std::fs::read_link(name).map(|path| path.display().to_string()).unwrap_or_default();
        let host = format!("{} {} {}", boot.trim(), link("/proc/self/ns/net"), link("/proc/self/ns/pid"));
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Self { host, pid: std::process::id(), cores: cores(list.unwrap_or_default()) }
    }
}

/// Parses a list of core numbers such as `0-3,8`.
fn cores(list: &str) -> BTreeSet<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let range = |item: &str| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        Some(number(first)?..=number(last)?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

impl World {
    /// A world of a single process.
    pub fn single() -> Self {
        Self {
            rank_info: RankInfo::single(),
            transport: Transport::Auto,
            interface: String::new(),
            timeout: RENDEZVOUS_TIMEOUT,
            store: None,
            hosts: vec![HostInfo::local()],
        }
    }

    /// Meets the other processes of the job. The error names the missing ranks if they do not arrive within
    /// `timeout`.
    pub fn join(rank_info: RankInfo, transport: Transport, timeout: Duration) -> Result<Self, Error> {
        if rank_info.size == 1 {
            return Ok(Self { rank_info, transport, timeout, ..Self::single() });
        }
        let store = open_store(&rank_info, timeout)?;
        let interface = std::env::var("GLOO_SOCKET_IFNAME").unwrap_or_default();
        let mut world = Self {
            rank_info,
            transport,
            interface,
            timeout,
            store: Some(Arc::new(store)),
            hosts: Vec::new(),
        };
        let local_host = serde_json::to_string(&HostInfo::local()).expect("plain data");
        let host_infos = world.store_all_gather("host", &local_host)?;
        let version_mismatch = |rank: usize| move |_| Error::VersionMismatch { rank };
        let parse =
            |(rank, text): (usize, &String)| serde_json::from_str(text).map_err(version_mismatch(rank));
        world.hosts = host_infos.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
        Ok(world)
    }

    /// All-gathers one text per rank through the store, in rank order, under the key `subject`. The error
    /// names the missing ranks if they do not arrive within the timeout.
    pub fn store_all_gather(&self, subject: &str, value: &str) -> Result<Vec<String>, Error> {
        let Some(store) = &self.store else { return Ok(vec![value.to_owned()]) };

        let address = || format!("{}:{}", self.rank_info.address, self.rank_info.port);
        let key = |rank: usize| self.key(&format!("{subject}/{rank}"));
        store.set(&key(self.rank_info.rank), value.as_bytes())?;

        let until = Instant::now() + self.timeout;
        let mut values = Vec::with_capacity(self.rank_info.size);
        for rank in 0..self.rank_info.size {
            let left = until.saturating_duration_since(Instant::now()).max(MIN_WAIT);
            let bytes = match store.get(&key(rank), left) {
                Ok(bytes) => bytes,
                Err(cause @ SysError::InvalidTag { .. }) => {
                    return Err(Error::InvalidTag {
                        rank,
                        subject: subject.to_owned(),
                        address: address(),
                        cause,
                    });
                }
                Err(_) => return Err(self.missing_ranks_error(store, &key, address())),
            };
            values.push(String::from_utf8_lossy(&bytes).into_owned());
        }

        // The store may disappear when rank 0 exits, so rank 0 stays until all ranks have read, or
        // `STORE_LINGER` has passed. A rank that is slower than that gets an error.
        let has_read = |rank: usize| self.key(&format!("{subject}/read/{rank}"));
        store.set(&has_read(self.rank_info.rank), &[])?;
        if self.rank_info.rank == 0 {
            let until = Instant::now() + STORE_LINGER;
            let read = |rank| {
                store.get(&has_read(rank), until.saturating_duration_since(Instant::now()).max(MIN_WAIT))
            };
            let _ = (0..self.rank_info.size).try_for_each(|rank| read(rank).map(drop));
        }
        Ok(values)
    }

    /// Returns the error that names the ranks which have not yet written their `key`.
    fn missing_ranks_error(&self, store: &Store, key: &dyn Fn(usize) -> String, address: String) -> Error {
        let has_arrived = (0..self.rank_info.size).map(|rank| store.check(&key(rank)));
        match has_arrived.collect::<Result<Vec<bool>, _>>() {
            Err(cause) => Error::Rendezvous { address, cause },
            Ok(has_arrived) => Error::MissingRanks {
                rank: self.rank_info.rank,
                missing: (0..self.rank_info.size).filter(|&rank| !has_arrived[rank]).collect(),
                address,
                seconds: self.timeout.as_secs(),
            },
        }
    }

    /// The store key of `name`, which no earlier start of the same job has used.
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.rank_info.restart_count)
    }

    /// The rank of this process.
    pub fn rank(&self) -> usize {
        self.rank_info.rank
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.rank_info.size
    }

    /// The number of processes, including this one, that may run on the same cores as this one.
    pub fn ranks_sharing_cores(&self) -> usize {
        let local_host = &self.hosts[self.rank_info.rank];
        let shares =
            |host: &&HostInfo| host.host == local_host.host && !host.cores.is_disjoint(&local_host.cores);
        self.hosts.iter().filter(shares).count().max(1)
    }

    /// The rank of this process among the ranks on its host.
    fn local_rank(&self) -> LocalRank {
        let local_host = &self.hosts[self.rank()].host;
        let local = |rank: &usize| self.hosts[*rank].host == *local_host;
        let below = (0..self.rank()).filter(local).count();
        LocalRank { rank: below, size: (0..self.hosts.len()).filter(local).count() }
    }

    /// The process group of `ranks`, in this order. Every one of them calls this function with the same
    /// arguments.
    pub fn group(&self, name: &str, ranks: &[usize]) -> Result<ProcessGroup, Error> {
        let position = ranks.iter().position(|&rank| rank == self.rank());
        let position = position.ok_or(Error::RankOutOfRange { rank: self.rank(), size: ranks.len() })?;
        if ranks.len() == 1 {
            return Ok(ProcessGroup::single(name, self.rank()));
        }
        // All groups along one axis have the same name, so the key contains the first rank of the group.
        let key = self.key(&format!("{name}/{}", ranks[0]));
        let communicator = self.communicator(name, &key, ranks, Device::Cpu)?;
        let (world, owned_name, owned) = (self.clone(), name.to_owned(), ranks.to_vec());
        let connect = move |subgroup: &str, group_ranks: &[usize], device: Device| {
            let ranks: Vec<usize> = group_ranks.iter().map(|&group_rank| owned[group_rank]).collect();
            world.communicator(&owned_name, &format!("{key}/{subgroup}"), &ranks, device)
        };
        Ok(ProcessGroup::new(name, ranks.to_vec(), position, Some(communicator), Some(Box::new(connect))))
    }

    /// Connects `ranks`, which meet under `key`, with the backend for tensors of `device`.
    fn communicator(
        &self,
        name: &str,
        key: &str,
        ranks: &[usize],
        device: Device,
    ) -> Result<Box<dyn Backend>, Error> {
        let position = ranks.iter().position(|&rank| rank == self.rank());
        let position = position.ok_or(Error::RankOutOfRange { rank: self.rank(), size: ranks.len() })?;

        let store = self.store.as_ref().expect("a world of several ranks has a store");
        let rank_and_size = [position, ranks.len()];
        let same_host = ranks.iter().all(|&rank| self.hosts[rank].host == self.hosts[ranks[0]].host);
        let failed = |cause| Error::Collective {
            rank: self.rank(),
            group: name.to_owned(),
            collective: "join",
            cause,
        };

        if let Device::Cuda(index) = device {
            return Ok(Box::new(
                NcclGroup::join(store, key, rank_and_size, index, COLLECTIVE_TIMEOUT).map_err(failed)?,
            ));
        }
        if device != Device::Cpu {
            let host = self.communicator(name, &format!("{key}/host"), ranks, Device::Cpu)?;
            return Ok(Box::new(HostStaged::new(host, position)));
        }

        Ok(match self.transport {
            Transport::Shared if !same_host => {
                return Err(Error::SpansHosts { group: name.to_owned(), hosts: self.hosts_of(ranks) });
            }
            Transport::Auto | Transport::Shared if same_host => {
                let owner = self.hosts[ranks[0]].pid;
                Box::new(
                    SharedGroup::join(store, key, owner, rank_and_size, COLLECTIVE_TIMEOUT)
                        .map_err(failed)?,
                )
            }
            _ => {
                // One host uses the loopback interface. Gloo's default resolves the host name, which may wait
                // for a name server.
                let interface = if same_host && self.interface.is_empty() { "lo" } else { &self.interface };
                Box::new(
                    GlooGroup::join(store, key, interface, rank_and_size, COLLECTIVE_TIMEOUT)
                        .map_err(failed)?,
                )
            }
        })
    }

    /// Lists the ranks of each host, as in `{0, 1} and {2, 3}`.
    fn hosts_of(&self, ranks: &[usize]) -> String {
        let mut hosts: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for &rank in ranks {
            hosts.entry(&self.hosts[rank].host).or_default().push(rank.to_string());
        }
        hosts.values().map(|ranks| format!("{{{}}}", ranks.join(", "))).collect::<Vec<_>>().join(" and ")
    }

    /// The process groups of `mesh`: one along each axis, the combined ones, and the group of all ranks.
    pub fn groups(&self, mesh: &Mesh) -> Result<ProcessGroups, Error> {
        let groups = ProcessGroups::build(mesh, |name, ranks| self.group(name, ranks))?;
        Ok(ProcessGroups { local_rank: self.local_rank(), ..groups })
    }
}

/// The rank of a process among the processes of the job on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRank {
    /// The rank, from 0.
    pub rank: usize,
    /// The number of processes on the host.
    pub size: usize,
}

impl LocalRank {
    /// The only process on its host.
    pub const SINGLE: Self = Self { rank: 0, size: 1 };
}

/// The process groups of a mesh that one rank belongs to.
#[derive(Debug)]
pub struct ProcessGroups {
    mesh: Mesh,
    local_rank: LocalRank,
    world: ProcessGroup,
    axis_groups: Vec<Arc<ProcessGroup>>,
    tensor_parallel: Arc<ProcessGroup>,
    data_parallel: Arc<ProcessGroup>,
    dense_data_parallel: Arc<ProcessGroup>,
    expert_data_parallel: Arc<ProcessGroup>,
    loss_group: Arc<ProcessGroup>,
    pipeline_expert_group: Arc<ProcessGroup>,
    embedding_group: Option<Arc<ProcessGroup>>,
}

impl ProcessGroups {
    /// The groups of a single process.
    pub fn single() -> Self {
        let single_rank = |name: &str| Arc::new(ProcessGroup::single(name, 0));
        let axis_groups = Axis::ALL.iter().map(|axis| single_rank(axis.name())).collect();
        let [
            tensor_parallel,
            data_parallel,
            dense_data_parallel,
            expert_data_parallel,
            loss_group,
            pipeline_expert_group,
        ] = [
            "tensor",
            "data-parallel",
            "dense-data-parallel",
            "expert-data-parallel",
            "loss",
            "pipeline-expert",
        ]
        .map(single_rank);
        let (mesh, world) = (Mesh::single(), ProcessGroup::single("world", 0));
        Self {
            mesh,
            local_rank: LocalRank::SINGLE,
            world,
            axis_groups,
            tensor_parallel,
            data_parallel,
            dense_data_parallel,
            expert_data_parallel,
            loss_group,
            pipeline_expert_group,
            embedding_group: None,
        }
    }

    /// The rank of this process among the processes of the job on its host.
    pub fn local_rank(&self) -> LocalRank {
        self.local_rank
    }

    /// The groups that a process of `mesh` would have. They have ranks and sizes, but no backend, so they can
    /// only be used for planning.
    pub fn fake(mesh: &Mesh) -> Self {
        let this_rank = mesh.rank();
        let make = |name: &str, ranks: &[usize]| {
            let position =
                ranks.iter().position(|&rank| rank == this_rank).expect("every group of a rank contains it");
            Ok(ProcessGroup::fake(name, ranks.to_vec(), position))
        };
        Self::build(mesh, make).expect("fake groups open no connection")
    }

    /// Builds the groups of `mesh`; `make` creates a group from its name and its ranks.
    fn build(
        mesh: &Mesh,
        make: impl Fn(&str, &[usize]) -> Result<ProcessGroup, Error>,
    ) -> Result<Self, Error> {
        let everyone: Vec<usize> = (0..mesh.world_size()).collect();
        let mut axis_groups = Vec::with_capacity(Axis::ALL.len());
        for axis in Axis::ALL {
            axis_groups.push(Arc::new(make(axis.name(), &mesh.group(&[axis]))?));
        }

        // Combined groups span several axes. If only one of these axes has more than one rank, the group of
        // that axis is shared, unless `separate` is set. Gradient all-reduces run while collectives over the
        // sequence and expert axes are under way, so the two groups that reduce gradients need communicators
        // of their own when one of these axes is in use.
        let combined_group =
            |name: &str, axes: &[Axis], separate: bool| -> Result<Arc<ProcessGroup>, Error> {
                let mut axes_in_use = axes.iter().filter(|&&axis| mesh.size(axis) > 1);
                match (axes_in_use.next(), axes_in_use.next()) {
                    (None, _) => Ok(Arc::clone(&axis_groups[axes[axes.len() - 1] as usize])),
                    (Some(&axis), None) if !separate => Ok(Arc::clone(&axis_groups[axis as usize])),
                    _ => Ok(Arc::new(make(name, &mesh.group(axes))?)),
                }
            };

        let separate = mesh.size(Axis::Sequence) > 1 || mesh.size(Axis::Expert) > 1;
        let tensor_parallel = combined_group("tensor", &Axis::TENSOR, false)?;
        let data_parallel = combined_group("data-parallel", &[Axis::Data, Axis::Expert], false)?;
        let dense_data_parallel =
            combined_group("dense-data-parallel", &[Axis::Data, Axis::Expert, Axis::Sequence], separate)?;
        let expert_data_parallel =
            combined_group("expert-data-parallel", &[Axis::Data, Axis::Sequence], separate)?;
        let loss_group = combined_group("loss", &[Axis::Pipeline, Axis::Data, Axis::Expert], false)?;
        let pipeline_expert_group =
            combined_group("pipeline-expert", &[Axis::Pipeline, Axis::Expert], false)?;

        // The embedding group holds the first and the last stage, which share a tied embedding.
        let (stages, stage) = (mesh.group(&[Axis::Pipeline]), mesh.coordinate(Axis::Pipeline));
        let embedding_group = match stages.as_slice() {
            [first, .., last] if stage == 0 || stage + 1 == stages.len() => {
                Some(Arc::new(make("embedding", &[*first, *last])?))
            }
            _ => None,
        };

        let (mesh, world) = (mesh.clone(), make("world", &everyone)?);
        Ok(Self {
            local_rank: LocalRank::SINGLE,
            mesh,
            world,
            axis_groups,
            tensor_parallel,
            data_parallel,
            dense_data_parallel,
            expert_data_parallel,
            loss_group,
            pipeline_expert_group,
            embedding_group,
        })
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The group of all ranks.
    pub fn world(&self) -> &ProcessGroup {
        &self.world
    }

    /// The ranks that differ from this one along `axis` only.
    pub fn axis_group(&self, axis: Axis) -> &Arc<ProcessGroup> {
        &self.axis_groups[axis as usize]
    }

    /// The data-parallel group: the ranks that train on different rows of a step. It spans the data and
    /// expert axes, because expert-parallel ranks also have rows of their own.
    /// Megatron: `get_data_parallel_group()`.
    pub fn data_parallel(&self) -> &ProcessGroup {
        &self.data_parallel
    }

    /// The ranks that hold the other experts of the same layers.
    pub fn expert_parallel(&self) -> &Arc<ProcessGroup> {
        self.axis_group(Axis::Expert)
    }

    /// The ranks that train on different tokens of the same rows.
    pub fn sequence_parallel(&self) -> &Arc<ProcessGroup> {
        self.axis_group(Axis::Sequence)
    }

    /// The ranks that hold replicas of the dense (non-expert) weights, along the data, expert and sequence
    /// axes. The gradients of dense weights are all-reduced over this group; those of expert weights over
    /// [`expert_data_parallel`](Self::expert_data_parallel).
    /// Megatron: `get_data_parallel_group(with_context_parallel=True)`.
    pub fn dense_data_parallel(&self) -> &Arc<ProcessGroup> {
        &self.dense_data_parallel
    }

    /// The weight replicas: the ranks that hold identical weights, experts included, along the data and
    /// sequence axes. The gradients of expert weights are all-reduced over this group; those of dense weights
    /// over the larger [`dense_data_parallel`](Self::dense_data_parallel). Evaluation and rollout split their
    /// rows over it too: without gradients, the ranks of an expert-parallel group run the same rows.
    /// Megatron: `get_expert_data_parallel_group()`.
    pub fn expert_data_parallel(&self) -> &Arc<ProcessGroup> {
        &self.expert_data_parallel
    }

    /// The pipeline and expert ranks that together hold all parameters of one model, each at least once.
    /// Unlike Megatron's model-parallel group (tensor and pipeline), it does not span the tensor axis: the
    /// tensor-parallel shards of one parameter are in different groups.
    pub fn pipeline_expert_group(&self) -> &Arc<ProcessGroup> {
        &self.pipeline_expert_group
    }

    /// The ranks that hold the other layers of the same model.
    pub fn pipeline_parallel(&self) -> &Arc<ProcessGroup> {
        self.axis_group(Axis::Pipeline)
    }

    /// The ranks with the first and the last layers; `None` if this rank has neither or if there is only one
    /// stage.
    pub fn embedding_group(&self) -> Option<&Arc<ProcessGroup>> {
        self.embedding_group.as_ref()
    }

    /// The loss group. Each training row of a step contributes its loss on exactly one rank of this group, so
    /// a sum over the group is the loss of the step.
    pub fn loss_group(&self) -> &ProcessGroup {
        &self.loss_group
    }

    /// The ranks that hold shards of the same weights.
    pub fn tensor_parallel(&self) -> &Arc<ProcessGroup> {
        &self.tensor_parallel
    }

    /// Whether this rank takes part in saving. Only the first weight replica does; the other replicas hold
    /// the same values.
    pub fn saves_weights(&self) -> bool {
        self.expert_data_parallel.rank() == 0
    }

    /// Whether this is rank 0, which writes files and prints messages for the whole job.
    pub fn is_rank_zero(&self) -> bool {
        self.world.rank() == 0
    }
}

#[cfg(test)]
pub(crate) mod tests;
