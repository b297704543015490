//! Data-parallel ranks as threads of one process.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parallel::c10d::Secret;
use parallel::rendezvous::open_store;
use parallel::{Axis, Mesh, ProcessGroups, RankInfo, Transport, World};

/// Runs `body` on `size` data-parallel ranks, each a thread.
pub(crate) fn on_ranks<T: Send>(
    size: usize,
    transport: Transport,
    body: impl Fn(&Arc<ProcessGroups>) -> T + Sync,
) -> Vec<T> {
    const TIMEOUT: Duration = Duration::from_secs(20);
    let meeting = RankInfo { secret: Some(Secret::random().unwrap()), ..RankInfo::single() };
    let server = open_store(&meeting, TIMEOUT).unwrap();
    let meeting = RankInfo { port: server.port(), uses_agent_store: true, ..meeting };
    let rank = |rank: usize| {
        let place = RankInfo { rank, size, ..meeting.clone() };
        let world = World::join(place, transport, TIMEOUT).unwrap();
        let groups = Arc::new(world.groups(&Mesh::new(&[(Axis::Data, size)], rank, size).unwrap()).unwrap());
        let ended = body(&groups);
        groups.world().barrier().unwrap();
        ended
    };
    let rank = &rank;
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|index| scope.spawn(move || rank(index))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
