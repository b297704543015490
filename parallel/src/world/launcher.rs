//! What a launcher tells a process: its rank in the job, and where the ranks meet.
//!
//! A launcher sets `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` for each process (torchrun and this
//! program's own launcher do). SLURM and Open MPI use environment variables of their own, which
//! [`RankInfo::from_environment`] reads as well.

use parallel_sys::c10d::Secret;

use crate::Error;

/// The environment variable with the secret of a job.
pub const JOB_SECRET: &str = "COLOSSAL_JOB_SECRET";

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

    pub(super) fn from_vars(value: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
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
            secret: parse_secret(value(JOB_SECRET).as_deref())?,
        })
    }
}

/// Reads the secret of the job from the environment, if it is set.
pub fn secret_from_environment() -> Result<Option<Secret>, Error> {
    parse_secret(std::env::var(JOB_SECRET).ok().as_deref())
}

fn parse_secret(text: Option<&str>) -> Result<Option<Secret>, Error> {
    let short = |text: &str| Error::ShortSecret { length: text.len() };
    text.map(|text| Secret::new(text).ok_or_else(|| short(text))).transpose()
}
