# Checks a sandbox from within: passes if nothing outside can be reached, and if the limits hold.
# PORT, MEMORY, FILE_SIZE, THREADS, TMP_SIZE, TMP_FILES and REFUSED (system calls by name) stand before these lines.
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import termios
import threading

TIOCLINUX = 0x541C
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def refused(what, action, *arguments):
    try:
        action(*arguments)
    except (OSError, MemoryError, RuntimeError) as error:
        return getattr(error, "errno", None)
    raise AssertionError(f"{what} is possible")


def forbidden(what, number, *arguments):
    """The system call fails with EPERM: the filter answers it before the kernel looks at its arguments."""
    arguments = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    result = LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments))
    if result == 0 and os.getpid() != PROCESS:
        os._exit(0)
    assert result == -1 and ctypes.get_errno() == errno.EPERM, f"{what} is possible"


def connect():
    with socket.socket() as client:
        client.settimeout(1)
        client.connect(("127.0.0.1", PORT))


def write_file(name, size):
    with open(f"/tmp/{name}", "wb", buffering=0) as file:
        for _ in range(size // (1 << 20)):
            file.write(bytes(1 << 20))


def fill_tmp():
    for number in range(TMP_SIZE // FILE_SIZE + 1):
        write_file(f"full-{number}", FILE_SIZE)


def make_files():
    for number in range(TMP_FILES + 1):
        open(f"/tmp/file-{number}", "x").close()


def empty_tmp():
    for name in os.listdir("/tmp"):
        os.remove(f"/tmp/{name}")


def start_threads():
    for _ in range(THREADS + 1):
        threading.Thread(target=RELEASE.wait, daemon=True).start()


def limit_supervisor():
    resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))


PROCESS, RELEASE = os.getpid(), threading.Event()
assert os.getppid() == 1, "there is no process namespace"
assert not set(os.environ) - {"OMP_NUM_THREADS"}, "the environment is not empty"
assert resource.getrlimit(resource.RLIMIT_CPU)[1] != resource.RLIM_INFINITY, "processor time has no limit"
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0), "a core file is possible"
refused("a connection to the machine", connect)
for path in "/etc/passwd", "/proc/self/status", "/sys/class/net", "/dev/shm", "/dev/pts", "/dev/tty":
    refused(f"a look at {path}", os.stat, path)
refused("writing to the root folder", open, "/written", "w")
refused("writing to the standard library", open, os.__file__, "a")

for name, number in REFUSED.items():
    forbidden(f"the system call {name}", number)
for family in set(range(64)) - {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6}:
    what = f"a socket of the family {family}"
    assert refused(what, socket.socket, family, socket.SOCK_STREAM) == errno.EPERM, f"{what} is not forbidden"
refused("a second process", os.fork)
refused("limiting process 1", limit_supervisor)
os.kill(1, signal.SIGKILL)  # has no effect
with open(os.devnull) as null:
    for request in termios.TIOCSTI, TIOCLINUX:
        what = f"typing into a terminal (ioctl {request:#x})"
        assert refused(what, fcntl.ioctl, null, request, b"x") == errno.EPERM, f"{what} is not forbidden"

refused("a large allocation", bytearray, MEMORY)
refused("a large shared mapping", mmap.mmap, -1, MEMORY)
refused("a large file", write_file, "large", FILE_SIZE + (1 << 20))
empty_tmp()
refused(f"more than {TMP_SIZE >> 20} MiB in /tmp", fill_tmp)
empty_tmp()
refused("a large number of files", make_files)
empty_tmp()
refused("a large number of threads", start_threads)
RELEASE.set()
with open("/tmp/written", "w") as file:
    file.write("the folder for temporary files can be written")
