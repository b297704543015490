//! Ranks as threads of one process.

use std::collections::BTreeSet;
use std::thread;

use parallel_sys::c10d::Secret;
use tch::{Kind, Tensor};

use super::hosts::cores;
use super::*;
use crate::Axis;
use crate::comm::Reduction;

fn rank_info(vars: &[(&str, &str)]) -> Result<RankInfo, Error> {
    RankInfo::from_vars(&|name| {
        vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn each_launcher_is_understood() {
    let meeting = [("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];
    let torchrun = [("RANK", "3"), ("WORLD_SIZE", "8")];
    let agent = [("TORCHELASTIC_USE_AGENT_STORE", "True")];
    let found = rank_info(&[&torchrun[..], &meeting, &agent].concat()).unwrap();
    assert_eq!((found.rank, found.size), (3, 8));
    assert_eq!((found.address.as_str(), found.port, found.uses_agent_store), ("node1", 29500, true));
    let slurm = [("SLURM_PROCID", "5"), ("SLURM_STEP_NUM_TASKS", "6")];
    let found = rank_info(&[&slurm[..], &meeting].concat()).unwrap();
    assert_eq!((found.rank, found.size, found.uses_agent_store), (5, 6, false));
    let mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let found = rank_info(&[&mpi[..], &meeting].concat()).unwrap();
    assert_eq!((found.rank, found.size, found.uses_agent_store), (1, 2, false));
    assert_eq!(rank_info(&[]).unwrap(), RankInfo::single());
    let hydra = [("PMI_RANK", "2"), ("PMI_SIZE", "4")];
    let found = rank_info(&[&hydra[..], &meeting].concat()).unwrap();
    assert_eq!((found.rank, found.size, found.uses_agent_store), (2, 4, false));
    // In the shell of an allocation, where another launcher is at work.
    let shell = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
    let found = rank_info(&[&hydra[..], &shell, &meeting].concat()).unwrap();
    assert_eq!((found.rank, found.size), (2, 4));
    // Inside an allocation, a command that was not started as several tasks is one process.
    assert_eq!(
        rank_info(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]).unwrap(),
        RankInfo::single()
    );
    assert_eq!(rank_info(&[("SLURM_PROCID", "0")]).unwrap(), RankInfo::single());
}

#[test]
fn what_a_launcher_left_out_or_garbled_is_named() {
    let error = rank_info(&[("RANK", "0"), ("WORLD_SIZE", "2")]).unwrap_err().to_string();
    assert!(error.contains("MASTER_ADDR is not set"), "{error}");
    let error = rank_info(&[("RANK", "x"), ("WORLD_SIZE", "2")]).unwrap_err().to_string();
    assert!(error.contains("RANK = \"x\" is not a number"), "{error}");
    assert!(rank_info(&[("RANK", "2"), ("WORLD_SIZE", "2")]).is_err());
    // Half of what makes a rank is no process of its own.
    let error = rank_info(&[("RANK", "1")]).unwrap_err().to_string();
    assert!(error.contains("WORLD_SIZE is not set, though"), "{error}");
    let error = rank_info(&[("OMPI_COMM_WORLD_SIZE", "4")]).unwrap_err().to_string();
    assert!(error.contains("Open MPI") && error.contains("OMPI_COMM_WORLD_RANK is not set"), "{error}");
}

#[test]
fn only_ranks_with_cores_in_common_share_them() {
    assert_eq!(cores("0-2,8"), BTreeSet::from([0, 1, 2, 8]));
    assert_eq!(cores(""), BTreeSet::new());
    let mut world = World::single();
    let host = |host: &str, list: &str| HostInfo {
        host: host.to_owned(),
        pid: 1,
        cores: cores(list),
        visible_gpus: None,
    };
    // SLURM has bound the tasks of host a to two cores each; those of b share all four.
    world.hosts = vec![host("a", "0-1"), host("a", "2-3"), host("b", "0-3"), host("b", "0-3")];
    let sharers = [0, 1, 2, 3].map(|rank| {
        world.rank_info.rank = rank;
        world.ranks_sharing_cores()
    });
    assert_eq!(sharers, [1, 1, 2, 2]);
}

#[test]
fn a_job_that_starts_again_does_not_read_what_was_said_before() {
    let (server, meeting) = meeting();
    let join = |attempt: &str| {
        let rank_info = RankInfo { size: 2, restart_count: attempt.to_owned(), ..meeting.clone() };
        World::join(rank_info, Transport::Auto, Duration::from_millis(300)).map(drop)
    };
    // Rank 0 came twice, rank 1 the first time only.
    server.set("0/host/1", serde_json::to_string(&HostInfo::local()).unwrap().as_bytes()).unwrap();
    server.set("0/host/read/1", b"").unwrap();
    join("0").unwrap();
    assert!(join("1").unwrap_err().to_string().contains("rank 1 did not arrive"));
}

/// A store, and the place of a rank 0 that finds it.
fn meeting() -> (Store, RankInfo) {
    let rank_info = RankInfo { secret: Some(Secret::random().unwrap()), ..RankInfo::single() };
    let server = open_store(&rank_info, RENDEZVOUS_TIMEOUT).unwrap();
    let rank_info = RankInfo { port: server.port(), uses_agent_store: true, ..rank_info };
    (server, rank_info)
}

/// Runs `body` on the ranks of a world, each a thread.
pub(crate) fn run_worlds(size: usize, transport: Transport, body: impl Fn(&World) + Sync) {
    let (_server, meeting) = meeting();
    thread::scope(|scope| {
        for rank in 0..size {
            let (body, meeting) = (&body, &meeting);
            scope.spawn(move || {
                let rank_info = RankInfo { rank, size, ..meeting.clone() };
                let world = World::join(rank_info, transport, Duration::from_secs(20)).unwrap();
                body(&world);
                // Nobody leaves while others may still look for it.
                world.group("end", &(0..size).collect::<Vec<_>>()).unwrap().barrier().unwrap();
            });
        }
    });
}

#[test]
fn groups_of_a_mesh_reduce_along_their_axis() {
    for transport in [Transport::Auto, Transport::Gloo] {
        run_worlds(4, transport, |world| {
            // data 2 x tensor 2: rank = 2 data + tensor.
            let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Tensor, 2)], world.rank(), 4).unwrap();
            let groups = world.groups(&mesh).unwrap();
            let local = [world.rank() as f64];
            let sum = |group: &ProcessGroup| group.all_reduce_sum(local).unwrap()[0];
            assert_eq!(sum(groups.axis_group(Axis::Tensor)), [1.0, 1.0, 5.0, 5.0][world.rank()]);
            assert_eq!(sum(groups.axis_group(Axis::Data)), [2.0, 4.0, 2.0, 4.0][world.rank()]);
            assert_eq!(sum(groups.axis_group(Axis::Pipeline)), local[0]);
            assert_eq!(sum(groups.world()), 6.0);
            let named = if transport == Transport::Gloo { "gloo" } else { "shared memory" };
            assert_eq!(groups.world().transport(), named);
            assert_eq!(groups.axis_group(Axis::Pipeline).transport(), "none");
            assert_eq!(world.ranks_sharing_cores(), 4);
        });
    }
}

#[test]
fn both_transports_agree_on_every_collective_and_count_the_same_bytes() {
    for transport in [Transport::Auto, Transport::Gloo] {
        run_worlds(3, transport, |world| {
            let group = world.group("all", &[0, 1, 2]).unwrap();
            let rank = world.rank() as i64;
            // Large enough that shared memory hands it over; started before and waited for after a small one.
            let large = Tensor::full([300_000], rank, (Kind::Float, Device::Cpu));
            let work = group.start_all_reduce(&large, Reduction::Sum).unwrap();
            assert_eq!(group.all_reduce_max([rank as f64]).unwrap(), [2.0]);
            work.wait().unwrap();
            assert_eq!(large.double_value(&[299_999]), 3.0);
            let pair = Tensor::from_slice(&[rank, rank * 10]).reshape([1, 2]);
            let all = group.all_gather(&pair).unwrap();
            assert_eq!(all, Tensor::from_slice(&[0i64, 0, 1, 10, 2, 20]).reshape([3, 2]));
            let chunk = group.reduce_scatter(&(&all.to_kind(Kind::Float) + rank as f64)).unwrap();
            assert_eq!(
                chunk,
                Tensor::from_slice(&[3.0f32 * rank as f32 + 3.0, 30.0 * rank as f32 + 3.0]).reshape([1, 2])
            );
            let gathered = group.all_gather_bytes(&vec![7u8; world.rank() * 2]).unwrap();
            assert_eq!(gathered, [vec![], vec![7, 7], vec![7, 7, 7, 7]]);
            // 2 n (P - 1) / P of 1 200 000 and of 8 bytes; n (P - 1) of 16; n (P - 1) / P of 24; lengths 8 x
            // 2, rank x 2.
            let sent = 1_600_000 + 10 + 32 + 16 + 16 + 2 * 2 * rank as u64;
            assert_eq!(group.sent_bytes(), sent);
        });
    }
}

/// Rank `r` contributes `1000 r + index`. The lengths are those of one and of several buffers of shared
/// memory, and the large one runs on a thread of its own.
#[test]
fn collectives_in_place_give_each_rank_its_part_of_the_sum_and_all_parts() {
    for transport in [Transport::Auto, Transport::Gloo] {
        run_worlds(3, transport, |world| {
            let group = world.group("all", &[0, 1, 2]).unwrap();
            let rank = world.rank() as i64;
            for part in [1i64, 7, 200_003] {
                for kind in [Kind::Float, Kind::BFloat16] {
                    let before = group.sent_bytes();
                    let index = Tensor::arange(3 * part, (Kind::Double, Device::Cpu)).remainder(64.0);
                    let tensor = (&index + 64.0 * rank as f64).to_kind(kind);
                    let range = rank * part;
                    group.start_reduce_scatter_in_place(&tensor).unwrap().wait().unwrap();
                    // 3 index + 64 (0 + 1 + 2), at most 381: exact in bf16 up to 256, so compare after
                    // rounding.
                    let sum = (&index * 3.0 + 192.0).to_kind(kind);
                    assert_eq!(tensor.narrow(0, range, part), sum.narrow(0, range, part), "{part} {kind:?}");

                    group.start_all_gather_in_place(&tensor).unwrap().wait().unwrap();
                    assert_eq!(tensor, sum, "{part} {kind:?}");
                    // Each sends n (P - 1) / P of the whole tensor.
                    let bytes = 2 * 2 * part as u64 * kind.elt_size_in_bytes() as u64;
                    assert_eq!(group.sent_bytes() - before, bytes);
                }
            }
        });
    }
}

#[test]
fn who_does_not_come_is_named() {
    let rank_info = RankInfo { size: 3, secret: Some(Secret::random().unwrap()), ..RankInfo::single() };
    let error = World::join(rank_info, Transport::Auto, Duration::from_millis(300)).unwrap_err().to_string();
    assert!(error.contains("ranks 1, 2 did not arrive"), "{error}");
}

/// Lets a stranger write `value` under `key`.
fn stranger(meeting: &RankInfo, key: &str, value: &str) {
    let secret = Secret::random().unwrap();
    let stranger = Store::connect(&meeting.address, meeting.port, &secret, RENDEZVOUS_TIMEOUT).unwrap();
    stranger.set(key, value.as_bytes()).unwrap();
}

#[test]
fn a_rank_whose_entry_a_stranger_writes_is_named() {
    let (_server, meeting) = meeting();
    let host = serde_json::to_string(&HostInfo::local()).unwrap();
    stranger(&meeting, "/host/1", &host);
    let rank_info = RankInfo { size: 2, ..meeting };
    let error = World::join(rank_info, Transport::Auto, RENDEZVOUS_TIMEOUT).unwrap_err().to_string();
    assert!(error.contains("`host` of rank 1 was not written by a rank of this job"), "{error}");
}

#[test]
fn memory_that_a_stranger_offers_is_named_and_not_mapped() {
    const NAME: &str = "colossal-chat-of-a-stranger";
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().matches(NAME).count();
    let memory = parallel_sys::shared::SharedMemory::create(NAME, 2, RENDEZVOUS_TIMEOUT).unwrap();
    assert_eq!(mapped(), 1);
    let (server, meeting) = meeting();
    let join = |rank: usize| {
        World::join(RankInfo { rank, size: 2, ..meeting.clone() }, Transport::Auto, RENDEZVOUS_TIMEOUT)
            .unwrap()
    };
    let world = thread::scope(|scope| {
        scope.spawn(|| join(0));
        join(1)
    });
    stranger(&meeting, "shared//all/0", &memory.address());
    let error = world.group("all", &[0, 1]).unwrap_err().to_string();
    assert!(error.contains("`shared//all/0` at the store was not written by a rank of this job"), "{error}");
    // Nor where a rank of the job itself says so.
    server.set("shared//other/0", memory.address().as_bytes()).unwrap();
    let error = world.group("other", &[0, 1]).unwrap_err().to_string();
    assert!(error.contains("is open there instead") && error.contains("it was not mapped"), "{error}");
    assert_eq!(mapped(), 1);
}

#[test]
fn a_launcher_without_a_secret_is_told_which_one_to_set() {
    let meeting = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
    let ranks = [("RANK", "1"), ("WORLD_SIZE", "2")];
    assert_eq!(rank_info(&[&ranks[..], &meeting].concat()).unwrap().secret, None);
    let short = [("COLOSSAL_JOB_SECRET", "too short")];
    let error = rank_info(&[&ranks[..], &meeting, &short].concat()).unwrap_err().to_string();
    assert!(
        error.contains("COLOSSAL_JOB_SECRET has 9 characters") && !error.contains("too short"),
        "{error}"
    );
}

#[test]
fn memory_that_is_not_there_is_an_error_of_the_collective() {
    run_worlds(2, Transport::Auto, |world| {
        let group = world.group("all", &[0, 1]).unwrap();
        // 2^60 bytes of each.
        let error = group.recv(&[1 << 58], (Kind::Float, Device::Cpu), 1 - world.rank(), 0).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(&format!("rank {}: receive of the group all", world.rank())), "{message}");
        assert!(message.contains("allocate memory"), "{message}");
    });
}
