//! The memory that is free for further processes: of the machine, and of the control group of this process and
//! of those above it (cgroups version 1 and 2), as a container has one.
//!
//! ```text
//!   room of a group = its limit - its usage + the pages of files among it, which the kernel gives up first
//! ```

use std::path::{Path, PathBuf};

use super::field::read_bytes;

/// The files of a control group: limit, usage, and the names in `memory.stat` of its pages of files.
struct Version {
    root: &'static str,
    limit: &'static str,
    usage: &'static str,
    pages_of_files: [&'static str; 2],
}

const VERSION_1: Version = Version {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    pages_of_files: ["total_inactive_file", "total_active_file"],
};
const VERSION_2: Version = Version {
    root: "/sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    pages_of_files: ["inactive_file", "active_file"],
};

/// The memory that further processes can take, in bytes; `None` if the system does not report it.
pub fn available_bytes() -> Option<u64> {
    let machine = read_bytes("/proc/meminfo", "MemAvailable:");
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    machine.into_iter().chain(groups.lines().filter_map(room_of_line)).min()
}

/// The room of the group in a line `NUMBER:CONTROLLERS:PATH` of `/proc/self/cgroup`, if it limits memory.
fn room_of_line(line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let version = match controllers {
        "" => &VERSION_2,
        _ if controllers.split(',').any(|controller| controller == "memory") => &VERSION_1,
        _ => return None,
    };
    let folder: PathBuf = Path::new(version.root).join(path.trim_start_matches('/'));
    // In a container, the path may be that of the host, and only the root is there.
    let folders = folder.ancestors().take_while(|folder| folder.starts_with(version.root));
    folders.filter_map(|folder| version.room(folder)).min()
}

impl Version {
    fn room(&self, folder: &Path) -> Option<u64> {
        let number = |name| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let (limit, usage) = (number(self.limit)?, number(self.usage)?);
        let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let pages = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            self.pages_of_files.contains(&name).then(|| bytes.parse::<u64>().ok())?
        });
        Some(limit.saturating_sub(usage.saturating_sub(pages.sum())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_of_a_group_is_its_limit_without_what_it_cannot_give_up() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(VERSION_2.room(folder.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        write("memory.stat", "anon 500\nfile 200\ninactive_file 120\nactive_file 30\ntotal_active_file 9\n");
        assert_eq!(VERSION_2.room(folder.path()), None);
        write("memory.max", "1000\n");
        // 700 are in use, and 150 of them are pages of files.
        assert_eq!(VERSION_2.room(folder.path()), Some(450));
        write("memory.max", "500\n");
        assert_eq!(VERSION_2.room(folder.path()), Some(0));

        write("memory.limit_in_bytes", "1000\n");
        write("memory.usage_in_bytes", "700\n");
        assert_eq!(VERSION_1.room(folder.path()), Some(309));
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
    }
}
