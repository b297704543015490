//! What the members of a region share: a barrier, and the loops and sections that they divide.
//!
//! All members meet the same loops in the same order, but not at the same time: without a barrier between
//! them, one member may be in the third loop while another is in the first. Each member therefore counts the
//! loops that it has begun, and the team keeps a loop under its number from its first member to its last.

use std::collections::BTreeMap;
use std::ffi::c_long;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::futex::{self, spin_while};

/// A thread's place in a region.
#[derive(Clone, Copy)]
pub(super) struct Member {
    team: *const Team,
    /// The number of the member, from 0 to the size of the team.
    pub(super) id: u32,
    /// Whether this region, or one around it, has more than one member.
    pub(super) is_parallel: bool,
    /// How many loops of the region the member has begun.
    loops: u32,
    /// The number of the chunk that the member has taken in its loop.
    chunk: u64,
}

impl Member {
    /// The place of a thread that is in no region.
    pub(super) const OUTSIDE: Self =
        Self { team: std::ptr::null(), id: 0, is_parallel: false, loops: 0, chunk: 0 };

    /// Member `id` of a region. The team must live until the region has ended.
    pub(super) fn new(team: &Team, id: u32, is_parallel: bool) -> Self {
        Self { team, id, is_parallel, ..Self::OUTSIDE }
    }

    /// The team of the region; `None` outside every region.
    pub(super) fn team<'a>(self) -> Option<&'a Team> {
        // SAFETY: a thread has this place only while the region runs, and the team lives as long.
        unsafe { self.team.as_ref() }
    }
}

/// What the members of one region share.
pub(super) struct Team {
    /// The number of members.
    pub(super) size: u32,
    /// How many members have arrived at the current barrier.
    arrived: AtomicU32,
    /// How many barriers have been passed.
    barriers: AtomicU32,
    /// How many members sleep at a barrier.
    sleepers: AtomicU32,
    loops: Mutex<BTreeMap<u32, Loop>>,
    turn_ended: Condvar,
}

impl Team {
    /// A team of one member.
    pub(super) const fn new() -> Self {
        Self::with_size(1)
    }

    pub(super) const fn with_size(size: u32) -> Self {
        Self {
            size,
            arrived: AtomicU32::new(0),
            barriers: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            loops: Mutex::new(BTreeMap::new()),
            turn_ended: Condvar::new(),
        }
    }

    /// Waits until all members have arrived.
    pub(super) fn barrier(&self) {
        let passed = self.barriers.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            self.arrived.store(0, Ordering::Relaxed);
            self.barriers.fetch_add(1, Ordering::SeqCst);
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                futex::wake(&self.barriers, i32::MAX);
            }
            return;
        }

        let is_waiting = || self.barriers.load(Ordering::SeqCst) == passed;
        while spin_while(is_waiting) {
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            futex::sleep(&self.barriers, passed);
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Begins the next loop of `member` and takes its first chunk: its first iteration and the one after its
    /// last.
    pub(super) fn start_loop(&self, member: &mut Member, new: Loop) -> Option<(c_long, c_long)> {
        member.loops += 1;
        self.loops().entry(member.loops).or_insert(new);
        self.next_chunk(member)
    }

    /// Takes the next chunk of the loop of `member`.
    pub(super) fn next_chunk(&self, member: &mut Member) -> Option<(c_long, c_long)> {
        let mut loops = self.loops();
        let current = loops.get_mut(&member.loops)?;
        member.chunk = current.chunks;
        current.take()
    }

    /// Waits until the chunks before that of `member` have ended.
    pub(super) fn await_turn(&self, member: &Member) {
        let is_waiting = |loops: &mut BTreeMap<u32, Loop>| {
            loops.get(&member.loops).is_some_and(|current| current.turn < member.chunk)
        };
        drop(self.turn_ended.wait_while(self.loops(), is_waiting));
    }

    /// Ends the turn of the chunk of `member`, when it has come.
    pub(super) fn end_turn(&self, member: &Member) {
        self.await_turn(member);
        if let Some(current) = self.loops().get_mut(&member.loops) {
            current.turn = member.chunk + 1;
        }
        self.turn_ended.notify_all();
    }

    /// Ends the part of `member` in its loop. The last member removes the loop.
    pub(super) fn end_loop(&self, member: &Member) {
        let mut loops = self.loops();
        let Some(current) = loops.get_mut(&member.loops) else { return };
        current.ended += 1;
        if current.ended == self.size {
            loops.remove(&member.loops);
        }
    }

    fn loops(&self) -> MutexGuard<'_, BTreeMap<u32, Loop>> {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A loop that members divide while it runs: each of them takes the next chunk when it has finished one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loop {
    next: c_long,
    end: c_long,
    step: c_long,
    /// The iterations of a chunk.
    chunk: c_long,
    /// How many chunks have been taken.
    chunks: u64,
    /// The number of the chunk whose ordered blocks may run.
    turn: u64,
    /// How many members have ended their part.
    ended: u32,
}

impl Loop {
    /// The iterations `start`, `start + step` and so on up to `end`, without it.
    pub(super) fn new(start: c_long, end: c_long, step: c_long, chunk: c_long) -> Self {
        Self { next: start, end, step, chunk: chunk.max(1), chunks: 0, turn: 0, ended: 0 }
    }

    /// Sections `1..=count`.
    pub(super) fn sections(count: c_long) -> Self {
        Self::new(1, count + 1, 1, 1)
    }

    fn take(&mut self) -> Option<(c_long, c_long)> {
        let is_up = self.step > 0;
        if if is_up { self.next >= self.end } else { self.next <= self.end } {
            return None;
        }
        let start = self.next;
        let stop = start.saturating_add(self.step.saturating_mul(self.chunk));
        self.next = if is_up { stop.min(self.end) } else { stop.max(self.end) };
        self.chunks += 1;
        Some((start, self.next))
    }
}
