# What hostile programs have tried in a sandbox, with the system calls of x86-64 by number. Passes if all of it is
# refused. BLOCKS processes of BLOCK bytes would exceed the memory of a sandbox.
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import socket
import struct
import subprocess

BLOCKS, BLOCK = 13, 700 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
POSSIBLE = []


def call(number, *arguments):
    values = [value if isinstance(value, (bytes, ctypes.Array)) else ctypes.c_long(value) for value in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *values)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"call {number}")
    return result


def attack(name, action, *arguments):
    try:
        action(*arguments)
    except (OSError, MemoryError, subprocess.SubprocessError):
        return
    POSSIBLE.append(name)


def take_descriptors_of_process_1():
    process = call(434, 1, 0)  # pidfd_open
    taken = 0
    for descriptor in range(16):
        try:
            found = call(438, process, descriptor, 0)  # pidfd_getfd
        except OSError as error:
            if error.errno == errno.EBADF:
                taken += 1
            continue
        taken += 1
        os.ftruncate(found, 0)
        os.write(found, b"passed\n")
    if not taken:
        raise PermissionError("no descriptor")


def fork_many():
    for _ in range(BLOCKS):
        if os.fork() == 0:
            memory = bytearray(BLOCK)
            while memory:
                pass


def make_files():
    for number in range(460_000):
        open(f"/tmp/{number}", "x").close()


def map_shared():
    return [mmap.mmap(-1, BLOCK) for _ in range(2)]


def read_memory_of_process_1():
    buffer = ctypes.create_string_buffer(16)
    local = struct.pack("QQ", ctypes.addressof(buffer), 16)
    remote = struct.pack("QQ", id(LIBC), 16)
    call(310, 1, local, 1, remote, 1, 0)


attack("reading the session keyring", call, 250, 0, -3, 1)
attack("a keyring of another name", call, 250, 1, b"mine")
attack("writing to the session keyring", call, 248, b"user", b"name", b"secret", 6, -3)
attack("asking for a key", call, 249, b"user", b"name", 0, -3)
attack("the descriptors of process 1", take_descriptors_of_process_1)
attack("the memory of process 1", read_memory_of_process_1)
attack("ptrace attach", call, 101, 16, 1, 0, 0)
attack("ptrace seize", call, 101, 0x4206, 1, 0, 0)
attack("limiting process 1", resource.prlimit, 1, resource.RLIMIT_CPU, (0, 0))
attack("moving process 1", os.sched_setaffinity, 1, {0})
attack("slowing process 1", os.setpriority, os.PRIO_PROCESS, 1, 19)
attack("processes", fork_many)
attack("a command", subprocess.run, ["/usr/bin/env"])
attack("a command by posix_spawn", os.posix_spawn, "/usr/bin/env", ["env"], {})
attack("clone into a user namespace", call, 56, 0x10000000 | 17, 0, 0, 0, 0)
attack("clone3 into a user namespace", call, 435, struct.pack("11Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)
attack("unshare into a user namespace", call, 272, 0x10000000)
attack("a mount", call, 165, b"tmpfs", b"/tmp", b"tmpfs", 0, b"")
attack("a root folder", os.chroot, "/tmp")
attack("shared memory of System V", call, 29, 0, BLOCK, 0o1600)
attack("semaphores of System V", call, 64, 0, 1, 0o1600)
attack("messages of System V", call, 68, 0, 0o1600)
attack("memory as a file", os.memfd_create, "name")
attack("shared memory", map_shared)
attack("memory", bytearray, MEMORY)
attack("many files", make_files)
for family, name in (16, "netlink"), (17, "packet"), (38, "alg"), (40, "vsock"), (44, "xdp"):
    attack(f"a socket of {name}", socket.socket, family, socket.SOCK_DGRAM)
    attack(f"a pair of sockets of {name}", socket.socketpair, family, socket.SOCK_DGRAM)
attack("io_uring", call, 425, 1, bytes(120))
attack("userfaultfd", call, 323, 1)
attack("bpf", call, 321, 0, bytes(72), 72)
attack("perf_event_open", call, 298, struct.pack("IIQ", 1, 112, 0) + bytes(96), 0, -1, -1, 0)
attack("typing into a terminal", fcntl.ioctl, os.open("/dev/null", os.O_RDWR), 0x5412, b"x")
attack("a call of x32", call, 0x4000_0000 + 39)
assert not POSSIBLE, ", ".join(POSSIBLE)
