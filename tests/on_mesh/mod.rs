//! The ranks of a mesh as threads of one process, for the tests of every crate that needs them.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parallel::c10d::Secret;
use parallel::rendezvous::open_store;
use parallel::{Axis, Mesh, ProcessGroups, RankInfo, Transport, World};

/// Runs `body` on the ranks of a mesh with these axes, each a thread. Returns their results in the order of
/// the ranks.
pub(crate) fn on_mesh<T: Send>(
    axes: &[(Axis, usize)],
    transport: Transport,
    body: impl Fn(&Arc<ProcessGroups>) -> T + Sync,
) -> Vec<T> {
    const TIMEOUT: Duration = Duration::from_secs(20);
    let size = axes.iter().map(|(_, size)| size).product();
    let meeting = RankInfo { secret: Some(Secret::random().unwrap()), ..RankInfo::single() };
    let server = open_store(&meeting, TIMEOUT).unwrap();
    let meeting = RankInfo { port: server.port(), uses_agent_store: true, ..meeting };

    let rank = |rank: usize| {
        let rank_info = RankInfo { rank, size, ..meeting.clone() };
        let world = World::join(rank_info, transport, TIMEOUT).unwrap();
        let groups = Arc::new(world.groups(&Mesh::new(axes, rank, size).unwrap()).unwrap());
        let result = body(&groups);
        // No rank leaves while another one still waits for it.
        groups.world().barrier().unwrap();
        result
    };
    let rank = &rank;
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|index| scope.spawn(move || rank(index))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
