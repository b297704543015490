//! All processes of a job: their ranks, their rendezvous, and the process groups that they form.
//!
//! The processes meet at a store, which either rank 0 or the launcher serves ([`crate::rendezvous`]).
//!
//! All ranks of a group create it together, and every rank creates its groups in the same order. A group uses
//! shared memory if all of its ranks run on one host, TCP otherwise, and NCCL for GPU tensors, unless the
//! transport is set.

mod groups;
mod hosts;
mod launcher;
mod transport;

pub use groups::{ProcessGroups, WeightGatheringGroups};
pub use hosts::LocalRank;
pub use launcher::{JOB_SECRET, RankInfo, secret_from_environment};
pub use transport::Transport;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parallel_sys::c10d::Store;
use tch::Device;

use self::hosts::HostInfo;
use crate::comm::gloo::GlooGroup;
use crate::comm::nccl::NcclGroup;
use crate::comm::shared::SharedGroup;
use crate::comm::staged::HostStaged;
use crate::comm::{Backend, ProcessGroup};
use crate::rendezvous::open_store;
use crate::{Error, Mesh, SysError};

/// How long ranks wait for one another at the rendezvous.
pub const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(300);
/// How long ranks wait for one another in a collective. It is long because rank 0 may be writing a large
/// model meanwhile. A dead rank is noticed at once.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(1800);
/// How long the rank that serves the store keeps it open for the others to read.
const STORE_LINGER: Duration = Duration::from_secs(7);
/// The shortest timeout for reading a value; a timeout of zero would mean to wait forever.
const MIN_WAIT: Duration = Duration::from_millis(10);

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
        self.store_all_gather_within(self.timeout, subject, value)
    }

    /// Returns the text of rank 0, which may have worked on it as long as ranks wait for one another in a
    /// collective. What the other ranks give is ignored.
    pub fn store_broadcast(&self, subject: &str, value: &str) -> Result<String, Error> {
        Ok(self.store_all_gather_within(COLLECTIVE_TIMEOUT, subject, value)?.swap_remove(0))
    }

    fn store_all_gather_within(
        &self,
        timeout: Duration,
        subject: &str,
        value: &str,
    ) -> Result<Vec<String>, Error> {
        let Some(store) = &self.store else { return Ok(vec![value.to_owned()]) };

        let address = || format!("{}:{}", self.rank_info.address, self.rank_info.port);
        let key = |rank: usize| self.key(&format!("{subject}/{rank}"));
        store.set(&key(self.rank_info.rank), value.as_bytes())?;

        let until = Instant::now() + timeout;
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
                Err(_) => return Err(self.missing_ranks_error(store, &key, address(), timeout)),
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
    fn missing_ranks_error(
        &self,
        store: &Store,
        key: &dyn Fn(usize) -> String,
        address: String,
        timeout: Duration,
    ) -> Error {
        let has_arrived = (0..self.rank_info.size).map(|rank| store.check(&key(rank)));
        match has_arrived.collect::<Result<Vec<bool>, _>>() {
            Err(cause) => Error::Rendezvous { address, cause },
            Ok(has_arrived) => Error::MissingRanks {
                rank: self.rank_info.rank,
                missing: (0..self.rank_info.size).filter(|&rank| !has_arrived[rank]).collect(),
                address,
                seconds: timeout.as_secs(),
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
        hosts::num_sharing_cores(self.rank(), &self.hosts)
    }

    /// The process groups of `mesh`: one along each axis, the combined ones, and the group of all ranks.
    pub fn groups(&self, mesh: &Mesh) -> Result<ProcessGroups, Error> {
        let local_rank = LocalRank::new(self.rank(), &self.hosts, self.transport);
        ProcessGroups::build(mesh, local_rank, |name, ranks| self.group(name, ranks))
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
        Ok(ProcessGroup::new(name, ranks.to_vec(), position, Some(communicator), Some(Arc::new(connect))))
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

        if let (Device::Cuda(index), false) = (device, self.transport.stages_gpus()) {
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
                return Err(Error::SpansHosts {
                    group: name.to_owned(),
                    hosts: hosts::ranks_by_host(ranks, &self.hosts),
                });
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
}

#[cfg(test)]
pub(crate) mod tests;
