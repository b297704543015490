//! A filter of system calls for a program of a stranger: seccomp in mode 2 (`linux/seccomp.h`), a program for
//! the classic BPF machine that the kernel runs at each system call.
//!
//! | call | answer |
//! |---|---|
//! | of another architecture, or of x32 | EPERM |
//! | newer than `NEWEST`, `clone3` | ENOSYS, with which the C library does without |
//! | one of [`REFUSED`] | EPERM |
//! | `clone` except for a thread | EPERM |
//! | a socket of another family than UNIX, INET and INET6 | EPERM |
//! | `ioctl` that types into a terminal | EPERM |
//! | limits and scheduling of another process | EPERM |
//! | any other | as without the filter |
//!
//! A program under this filter stays one process: its memory is bounded by the limit of its address space,
//! as it has neither children nor memory that is counted elsewhere (`memfd_create`, System V). The filter
//! knows no paths and no pointers: which files can be reached is up to the mounts.

use libc::{c_int, c_long};

/// `AUDIT_ARCH_*` of `linux/audit.h`: the kind of processor that a system call is made for.
#[cfg(all(target_arch = "x86_64", target_endian = "little"))]
const ARCHITECTURE: Option<u32> = Some(0xC000_003E);
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
const ARCHITECTURE: Option<u32> = Some(0xC000_00B7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// The first number of the x32 calls on x86-64, which would reach every call under a second number.
const FIRST_OF_X32: u32 = 0x4000_0000;
/// `mseal` of Linux 6.10. What later calls can do is not known here.
const NEWEST: u32 = 462;

/// The number of the system call `keyctl`.
pub const KEYCTL: c_long = libc::SYS_keyctl;

/// The system calls that are refused, by name and number.
pub const REFUSED: &[(&str, c_long)] = &[
    // Other processes: their memory, their descriptors, their secrets.
    ("ptrace", libc::SYS_ptrace),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("process_madvise", libc::SYS_process_madvise),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("kcmp", libc::SYS_kcmp),
    ("setpriority", libc::SYS_setpriority),
    ("ioprio_set", libc::SYS_ioprio_set),
    ("keyctl", libc::SYS_keyctl),
    ("add_key", libc::SYS_add_key),
    ("request_key", libc::SYS_request_key),
    // Processes of its own.
    #[cfg(target_arch = "x86_64")]
    ("fork", libc::SYS_fork),
    #[cfg(target_arch = "x86_64")]
    ("vfork", libc::SYS_vfork),
    // Memory that no limit of a process counts.
    // A pipe with a small page of a huge one would hold the huge one.
    ("vmsplice", libc::SYS_vmsplice),
    ("memfd_create", libc::SYS_memfd_create),
    ("memfd_secret", libc::SYS_memfd_secret),
    ("shmget", libc::SYS_shmget),
    ("shmat", libc::SYS_shmat),
    ("shmdt", libc::SYS_shmdt),
    ("shmctl", libc::SYS_shmctl),
    ("semget", libc::SYS_semget),
    ("semop", libc::SYS_semop),
    ("semtimedop", libc::SYS_semtimedop),
    ("semctl", libc::SYS_semctl),
    ("msgget", libc::SYS_msgget),
    ("msgsnd", libc::SYS_msgsnd),
    ("msgrcv", libc::SYS_msgrcv),
    ("msgctl", libc::SYS_msgctl),
    ("mq_open", libc::SYS_mq_open),
    ("mq_unlink", libc::SYS_mq_unlink),
    // Wide interfaces of the kernel that a program of a task does not need.
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("io_uring_enter", libc::SYS_io_uring_enter),
    ("io_uring_register", libc::SYS_io_uring_register),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("bpf", libc::SYS_bpf),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("fanotify_init", libc::SYS_fanotify_init),
    ("quotactl", libc::SYS_quotactl),
    ("quotactl_fd", libc::SYS_quotactl_fd),
    ("syslog", libc::SYS_syslog),
    // Namespaces and mounts.
    ("unshare", libc::SYS_unshare),
    ("setns", libc::SYS_setns),
    ("chroot", libc::SYS_chroot),
    ("pivot_root", libc::SYS_pivot_root),
    ("mount", libc::SYS_mount),
    ("umount2", libc::SYS_umount2),
    ("open_tree", libc::SYS_open_tree),
    ("move_mount", libc::SYS_move_mount),
    ("fsopen", libc::SYS_fsopen),
    ("fsconfig", libc::SYS_fsconfig),
    ("fsmount", libc::SYS_fsmount),
    ("fspick", libc::SYS_fspick),
    ("mount_setattr", libc::SYS_mount_setattr),
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
];

/// The calls whose first argument is a process, with 0 for the calling one.
const OF_A_PROCESS: [c_long; 5] = [
    libc::SYS_prlimit64,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
];

const NEW_NAMESPACES: c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JEQ`, `BPF_JGT`, `BPF_JGE`, `BPF_JSET` and `BPF_RET` of
/// `linux/bpf_common.h`.
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// The offsets of the number and the architecture in `struct seccomp_data`.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;

/// An instruction (`struct sock_filter`): code, steps to jump if true and if false, operand.
type Instruction = (u16, u8, u8, u32);

/// The filter as an array of `struct sock_filter` in memory; `None` on a processor that it does not know.
pub fn filter() -> Option<Vec<u8>> {
    let bytes = |(code, if_true, if_false, operand): Instruction| {
        let [code_low, code_high] = code.to_ne_bytes();
        let [a, b, c, d] = operand.to_ne_bytes();
        [code_low, code_high, if_true, if_false, a, b, c, d]
    };
    Some(instructions(ARCHITECTURE?).into_iter().flat_map(bytes).collect())
}

fn instructions(architecture: u32) -> Vec<Instruction> {
    let mut filter = vec![
        (LOAD, 0, 0, ARCHITECTURE_OFFSET),
        (IF_EQUAL, 1, 0, architecture),
        answer(libc::EPERM),
        (LOAD, 0, 0, NUMBER_OFFSET),
        (IF_AT_LEAST, 0, 1, FIRST_OF_X32),
        answer(libc::EPERM),
        (IF_GREATER, 0, 1, NEWEST),
        answer(libc::ENOSYS),
    ];
    for (_, number) in REFUSED {
        filter.extend(of_call(*number, &[answer(libc::EPERM)]));
    }
    // Its flags lie behind a pointer. The C library then calls `clone`.
    filter.extend(of_call(libc::SYS_clone3, &[answer(libc::ENOSYS)]));
    filter.extend(of_call(
        libc::SYS_clone,
        &[
            load_argument(0),
            (IF_ANY_BIT, 0, 1, libc::CLONE_THREAD.cast_unsigned()),
            (IF_ANY_BIT, 0, 1, NEW_NAMESPACES.cast_unsigned()),
            answer(libc::EPERM),
            allow(),
        ],
    ));
    for number in [libc::SYS_socket, libc::SYS_socketpair] {
        let family = |family: c_int, steps| (IF_EQUAL, steps, 0, family.cast_unsigned());
        let families = [family(libc::AF_UNIX, 3), family(libc::AF_INET, 2), family(libc::AF_INET6, 1)];
        let rule = [&[load_argument(0)], &families[..], &[answer(libc::EPERM), allow()]].concat();
        filter.extend(of_call(number, &rule));
    }
    filter.extend(of_call(
        libc::SYS_ioctl,
        &[
            load_argument(1),
            (IF_EQUAL, 1, 0, libc::TIOCSTI as u32),
            (IF_EQUAL, 0, 1, libc::TIOCLINUX as u32),
            answer(libc::EPERM),
            allow(),
        ],
    ));
    for number in OF_A_PROCESS {
        let rule = [load_argument(0), (IF_EQUAL, 1, 0, 0), answer(libc::EPERM), allow()];
        filter.extend(of_call(number, &rule));
    }
    filter.push(allow());
    filter
}

/// What is done at a system call. The number is loaded, and `rule` ends with an answer.
fn of_call(number: c_long, rule: &[Instruction]) -> Vec<Instruction> {
    let steps = u8::try_from(rule.len()).expect("a rule is short");
    let number = u32::try_from(number).expect("system calls have small numbers");
    [&[(IF_EQUAL, 0, steps, number)], rule].concat()
}

/// Loads the lower half of an argument: all of an `int`.
fn load_argument(index: u32) -> Instruction {
    (LOAD, 0, 0, 16 + 8 * index)
}

/// The call fails with this number.
fn answer(errno: c_int) -> Instruction {
    (RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned())
}

fn allow() -> Instruction {
    (RETURN, 0, 0, libc::SECCOMP_RET_ALLOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86_64: u32 = 0xC000_003E;
    const I386: u32 = 0x4000_0003;
    const ALLOWED: u32 = 0x7FFF_0000;
    /// `SECCOMP_RET_ERRNO` with EPERM (1) and ENOSYS (38).
    const EPERM: u32 = 0x0005_0001;
    const ENOSYS: u32 = 0x0005_0026;

    /// Runs the filter as the machine of the BSD packet filter does.
    fn run(architecture: u32, number: u32, arguments: [u64; 2]) -> u32 {
        let filter = instructions(X86_64);
        let (mut at, mut register) = (0, 0);
        loop {
            let (code, if_true, if_false, operand) = filter[at];
            let jump = |is_true: bool| usize::from(if is_true { if_true } else { if_false });
            at += 1 + match code {
                LOAD => {
                    register = match operand {
                        0 => number,
                        4 => architecture,
                        16 => arguments[0] as u32,
                        24 => arguments[1] as u32,
                        other => panic!("offset {other}"),
                    };
                    0
                }
                IF_EQUAL => jump(register == operand),
                IF_GREATER => jump(register > operand),
                IF_AT_LEAST => jump(register >= operand),
                IF_ANY_BIT => jump(register & operand != 0),
                RETURN => return operand,
                other => panic!("code {other}"),
            };
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn calls_are_answered_by_number_architecture_and_arguments() {
        // Numbers of arch/x86/entry/syscalls/syscall_64.tbl of Linux.
        let plain = |number| run(X86_64, number, [0, 0]);
        // read, mmap, execve, exit_group, getrandom, futex_wait, mseal
        for number in [0, 9, 59, 231, 318, 455, 462] {
            assert_eq!(plain(number), ALLOWED, "{number}");
        }
        // shmget, fork, vfork, semget, msgget, ptrace, mount, add_key, keyctl, unshare, process_vm_readv, bpf,
        // memfd_create, perf_event_open, userfaultfd, io_uring_setup, pidfd_getfd
        for number in [29, 57, 58, 64, 68, 101, 165, 248, 250, 272, 310, 321, 319, 298, 323, 425, 438] {
            assert_eq!(plain(number), EPERM, "{number}");
            // The same under the numbers of x32, and as a call of a 32-bit program.
            assert_eq!(plain(number + 0x4000_0000), EPERM, "{number}");
            assert_eq!(run(I386, number, [0, 0]), EPERM, "{number}");
        }
        // read of x32 and of i386, number -1, clone3, the first call after mseal.
        assert_eq!([plain(0x4000_0000), run(I386, 3, [0, 0]), plain(u32::MAX)], [EPERM; 3]);
        assert_eq!([plain(435), plain(463)], [ENOSYS; 2]);

        // clone: what glibc gives for a thread, for fork, for vfork, and a thread in a new mount namespace.
        let clone = |flags| run(X86_64, 56, [flags, 0]);
        assert_eq!(clone(0x003d_0f00), ALLOWED);
        assert_eq!([clone(0x0120_0011), clone(0x4111), clone(0x003d_0f00 | 0x2_0000)], [EPERM; 3]);
        // socket and socketpair. The kernel reads an int, so the upper half does not count.
        for number in [41, 53] {
            let families = (0..64).filter(|family| run(X86_64, number, [1 << 40 | family, 1]) == ALLOWED);
            assert_eq!(families.collect::<Vec<_>>(), [1, 2, 10]);
        }
        // ioctl: FIONREAD, TIOCSTI, TIOCLINUX.
        let ioctl = |request| run(X86_64, 16, [0, request]);
        assert_eq!([ioctl(0x541B), ioctl(0x5412), ioctl(0x541C)], [ALLOWED, EPERM, EPERM]);
        // prlimit64, sched_setaffinity, sched_setscheduler, of itself and of process 1.
        for number in [302, 203, 144] {
            assert_eq!([run(X86_64, number, [0, 7]), run(X86_64, number, [1, 7])], [ALLOWED, EPERM]);
        }
    }

    #[test]
    fn the_filter_has_the_form_that_the_kernel_reads() {
        let Some(bytes) = filter() else { return };
        assert_eq!(bytes.len() % 8, 0);
        // The kernel takes 4096 instructions.
        assert!(bytes.len() / 8 < 4096);
        assert_eq!(bytes[bytes.len() - 8..], [6, 0, 0, 0, 0, 0, 0xFF, 0x7F]);
    }
}
