//! The hosts of a job: which ranks run on one host, and which of them share cores.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Transport;

/// Where a process runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HostInfo {
    /// Identifies the host: boot id, network namespace and pid namespace. Two ranks can use shared memory
    /// only if this value is equal.
    pub(super) host: String,
    /// The process id on that host.
    pub(super) pid: u32,
    /// The cores that the process may use.
    pub(super) cores: BTreeSet<usize>,
    /// The GPUs that the process may see, as its environment says; `None` if it may see all.
    pub(super) visible_gpus: Option<String>,
}

impl HostInfo {
    pub(super) fn local() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let link =
            |name: &str| std::fs::read_link(name).map(|path| path.display().to_string()).unwrap_or_default();
        let host = format!("{} {} {}", boot.trim(), link("/proc/self/ns/net"), link("/proc/self/ns/pid"));
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let visible_gpus = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        Self { host, pid: std::process::id(), cores: cores(list.unwrap_or_default()), visible_gpus }
    }
}

/// Parses a list of core numbers such as `0-3,8`.
pub(super) fn cores(list: &str) -> BTreeSet<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let range = |item: &str| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        Some(number(first)?..=number(last)?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// The rank of a process among the processes of the job on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRank {
    /// The rank, from 0.
    pub rank: usize,
    /// The number of processes on the host.
    pub size: usize,
    /// Whether the launcher shows every process of the host other GPUs, as SLURM may do:
    /// `CUDA_VISIBLE_DEVICES` is set for all of them, and differs.
    pub has_own_gpus: bool,
    /// Whether processes may share a GPU: the transport takes tensors of a GPU through the host. NCCL wants a
    /// GPU for each rank.
    pub can_share_gpus: bool,
}

impl LocalRank {
    /// The only process on its host.
    pub const SINGLE: Self = Self { rank: 0, size: 1, has_own_gpus: false, can_share_gpus: false };

    /// The rank of process `rank` among the ranks on its host. `hosts` has an entry for each rank.
    pub(super) fn new(rank: usize, hosts: &[HostInfo], transport: Transport) -> Self {
        let is_local = |other: &usize| hosts[*other].host == hosts[rank].host;
        let ranks: Vec<usize> = (0..hosts.len()).filter(is_local).collect();
        let visible: BTreeSet<&String> =
            ranks.iter().filter_map(|&rank| hosts[rank].visible_gpus.as_ref()).collect();
        Self {
            rank: ranks.iter().filter(|&&other| other < rank).count(),
            size: ranks.len(),
            has_own_gpus: visible.len() == ranks.len(),
            can_share_gpus: transport.stages_gpus(),
        }
    }

    /// The last of `size` processes on a host, which are connected by `transport`.
    pub fn last_of(size: usize, transport: Transport) -> Self {
        Self { rank: size - 1, size, has_own_gpus: false, can_share_gpus: transport.stages_gpus() }
    }
}

/// The number of processes, including process `rank`, that may run on the same cores as that one.
pub(super) fn num_sharing_cores(rank: usize, hosts: &[HostInfo]) -> usize {
    let own = &hosts[rank];
    let shares = |other: &&HostInfo| other.host == own.host && !other.cores.is_disjoint(&own.cores);
    hosts.iter().filter(shares).count().max(1)
}

/// Lists the ranks of each host, as in `{0, 1} and {2, 3}`.
pub(super) fn ranks_by_host(ranks: &[usize], hosts: &[HostInfo]) -> String {
    let mut by_host: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for &rank in ranks {
        by_host.entry(&hosts[rank].host).or_default().push(rank.to_string());
    }
    by_host.values().map(|ranks| format!("{{{}}}", ranks.join(", "))).collect::<Vec<_>>().join(" and ")
}
