//! What a thread knows: its place in a region, and the size of its next regions.

use std::cell::Cell;
use std::sync::OnceLock;

use super::team::{Member, Team};

thread_local! {
    /// How many members the next region of this thread has, if the region does not say it.
    pub(super) static THREADS: Cell<u32> = Cell::new(initial_threads());
    /// The region that this thread is in.
    pub(super) static MEMBER: Cell<Member> = const { Cell::new(Member::OUTSIDE) };
}

/// `OMP_NUM_THREADS`, or the number of processors that this process may use.
fn initial_threads() -> u32 {
    static THREADS: OnceLock<u32> = OnceLock::new();
    *THREADS.get_or_init(|| {
        let set = std::env::var("OMP_NUM_THREADS").ok().and_then(|text| text.trim().parse().ok());
        set.filter(|&threads| threads > 0).unwrap_or_else(processors)
    })
}

pub(super) fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// Runs `body` as `member` of a region; afterwards the thread is where it was before.
pub(super) fn run_as(member: Member, body: impl FnOnce()) {
    let outer = MEMBER.replace(member);
    body();
    MEMBER.set(outer);
}

/// Calls `body` with this thread's place in its region. Outside every region the thread is the only member of
/// a team of its own.
pub(super) fn with_member<T>(body: impl FnOnce(&mut Member, &Team) -> T) -> T {
    thread_local! {
        static ALONE: Team = const { Team::new() };
    }
    let mut member = MEMBER.get();
    let result = match member.team() {
        Some(team) => body(&mut member, team),
        None => ALONE.with(|team| body(&mut member, team)),
    };
    MEMBER.set(member);
    result
}
