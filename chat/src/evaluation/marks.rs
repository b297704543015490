//! How the processes of an evaluation learn that the others are at work, and that they are done.
//!
//! ```text
//!   .done-3   "17"     process 3 is at work: the number grows every few seconds
//!             "done"   it has asked all its requests
//! ```
//! A process may be done hours before another, and a collective waits only so long. The launcher ends the
//! job when one of its processes dies, but `srun` does not, and a process that was stopped does not die. A
//! process whose number grows no more therefore ends the wait.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context as _;
use parallel::regular_file;

use super::share::Share;

/// What the name of a mark begins with; the rank follows.
const MARK: &str = ".done-";
/// What a mark says at the end.
const DONE: &str = "done";

/// No mark is longer, in bytes.
const LONGEST: u64 = 64;

/// How often processes give a sign of life, and look for those of others.
#[derive(Clone, Copy)]
struct Pace {
    /// The time between two signs of life.
    beat: Duration,
    /// The time between two looks.
    look: Duration,
    /// So many looks without a sign of life end the wait. They are counted, because a process that is
    /// stopped itself must not take the time for the silence of others.
    looks: u32,
}

/// Files on another machine appear late. Five minutes without a sign of life are none.
const PACE: Pace = Pace { beat: Duration::from_secs(5), look: Duration::from_millis(50), looks: 6000 };

/// The mark of this process, which gives signs of life until the process is done.
pub(crate) struct Mark<'a> {
    folder: &'a Path,
    share: Share,
    pace: Pace,
    /// Ends the thread when it is dropped. `None` for a process that is alone.
    beating: Option<(Sender<()>, JoinHandle<()>)>,
}

impl<'a> Mark<'a> {
    /// Starts to give signs of life in `folder`, unless this process is alone.
    pub(crate) fn start(folder: &'a Path, share: Share) -> anyhow::Result<Self> {
        Self::with_pace(folder, share, PACE)
    }

    fn with_pace(folder: &'a Path, share: Share, pace: Pace) -> anyhow::Result<Self> {
        if share.size == 1 {
            return Ok(Self { folder, share, pace, beating: None });
        }
        let path = mark(folder, share.rank);
        write(&path, "0")?;
        let (stop, stopped) = mpsc::channel::<()>();
        let beat = move || {
            let mut number = 0u64;
            while stopped.recv_timeout(pace.beat) == Err(RecvTimeoutError::Timeout) {
                number += 1;
                // One that cannot be written is a sign less.
                let _ = write(&path, &number.to_string());
            }
        };
        let thread =
            thread::Builder::new().spawn(beat).context("cannot start the thread of signs of life")?;
        Ok(Self { folder, share, pace, beating: Some((stop, thread)) })
    }

    /// Marks this process as done, and waits until all are. Fails if one gives no sign of life any more.
    pub(crate) fn wait_for_all(mut self) -> anyhow::Result<()> {
        if !self.stop() {
            return Ok(());
        }
        write(&mark(self.folder, self.share.rank), DONE)?;
        for rank in 0..self.share.size {
            self.wait_for(rank)?;
        }
        Ok(())
    }

    fn wait_for(&self, rank: usize) -> anyhow::Result<()> {
        let (path, mut last, mut looks) = (mark(self.folder, rank), String::new(), 0);
        loop {
            // While it is written, a file is empty for an instant, and on another machine it may be missing.
            let said = regular_file::read_to_string(&path, LONGEST).unwrap_or_default();
            if said == DONE {
                return Ok(());
            }
            looks = if said == last { looks + 1 } else { 0 };
            last = said;
            if looks == self.pace.looks {
                anyhow::bail!(
                    "rank {rank}: no sign of life for {} s in {}: it has died or is stopped; end the job and start the \
                     same command again, which asks only what has no answer yet",
                    (self.pace.look * looks).as_secs(),
                    path.display()
                );
            }
            thread::sleep(self.pace.look);
        }
    }

    /// Ends the signs of life. Returns whether there were any.
    fn stop(&mut self) -> bool {
        let Some((stop, thread)) = self.beating.take() else { return false };
        drop(stop);
        let _ = thread.join();
        true
    }
}

impl Drop for Mark<'_> {
    /// A process that has failed gives no sign of life.
    fn drop(&mut self) {
        self.stop();
    }
}

/// Removes the marks of an earlier evaluation.
pub(crate) fn remove_marks(folder: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.strip_prefix(MARK).is_some_and(|rank| rank.parse::<usize>().is_ok()) {
            std::fs::remove_file(&path).with_context(|| format!("{}: cannot be removed", path.display()))?;
        }
    }
    Ok(())
}

fn mark(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("{MARK}{rank}"))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = File::options();
    let file = regular_file::open(path, options.write(true).create(true).truncate(true));
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("{}: cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signs of life often enough that a loaded machine loses none of a hundred.
    const FAST: Pace = Pace { beat: Duration::from_millis(2), look: Duration::from_millis(5), looks: 100 };

    fn share(rank: usize) -> Share {
        Share { rank, size: 2 }
    }

    #[test]
    fn a_process_waits_for_one_that_is_at_work_and_not_for_one_that_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let fast = |rank: usize| Mark::with_pace(folder.path(), share(rank), FAST).unwrap();
        let other = fast(1);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| fast(0).wait_for_all());
            // Longer than the silence that would end the wait.
            thread::sleep(3 * FAST.looks * FAST.look / 2);
            assert!(!waiting.is_finished(), "it gives signs of life");
            other.wait_for_all().unwrap();
            waiting.join().unwrap().unwrap();
        });

        // A process that ends without a word, and one that never began.
        drop(fast(1));
        let error = fast(0).wait_for_all().unwrap_err().to_string();
        assert!(error.starts_with("rank 1: no sign of life for 0 s in "), "{error}");
        remove_marks(folder.path()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let error = fast(0).wait_for_all().unwrap_err().to_string();
        assert!(error.contains(".done-1: it has died or is stopped"), "{error}");
    }

    #[test]
    fn a_process_that_is_alone_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let alone = Share { rank: 0, size: 1 };
        Mark::start(folder.path(), alone).unwrap().wait_for_all().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
