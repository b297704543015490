//! A process group that ends with this process, in whatever way this process ends.
//!
//! The leader of the group is a shell that waits for the end of its stdin and then kills the group. The other
//! end of that pipe is in this process alone, so the kernel closes it when this process ends, also after
//! SIGKILL. The program of the user is started into the group, so it never runs unwatched, and what it starts
//! belongs to the group as well.
//!
//! The alternative is `PR_SET_PDEATHSIG`. It reaches the one process that asked for it and not what that has
//! started, it fires already when the thread ends that started the process, and it needs unsafe code or
//! `setpriv` of Linux. The shell is on every Unix. What leaves the group on purpose (`setsid`) is not reached
//! by either.

use std::io;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use std::os::unix::process::CommandExt;

/// The leader. It ignores the signals that a program may send to its whole group.
const WATCH: &str = "trap '' HUP INT QUIT TERM; read -r _; kill -s KILL 0";
/// How long the leader may take to kill its group on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two looks at a process.
const PAUSE: Duration = Duration::from_millis(2);

/// A process group, which is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Group {
    leader: Child,
}

impl Group {
    pub(super) fn new() -> io::Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", WATCH]).process_group(0);
        let leader = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { leader })
    }

    /// Makes `command` start its process in this group.
    pub(super) fn adopt(&self, command: &mut Command) {
        command.process_group(self.leader.id().cast_signed());
    }

    /// Kills every process of the group.
    pub(super) fn kill(&mut self) {
        drop(self.leader.stdin.take());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        if ends_within(&mut self.leader, PATIENCE).is_none() {
            // Somebody has stopped the leader.
            let _ = self.leader.kill();
            let _ = self.leader.wait();
        }
    }
}

/// How the process ended, if it has ended after `limit`.
pub(super) fn ends_within(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < end => thread::sleep(PAUSE),
            status => return status.ok().flatten(),
        }
    }
}
