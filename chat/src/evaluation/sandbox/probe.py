# Checks a sandbox from within: passes if nothing outside can be reached, and if the limits hold.
# PORT, OUTSIDE, MEMORY, FILE_SIZE and PROCESSES stand before these lines.
import os
import resource
import signal
import socket


def refused(what, action, *arguments):
    try:
        action(*arguments)
    except (OSError, MemoryError):
        return
    raise AssertionError(f"{what} is possible")


def write_too_much():
    with open("/tmp/large", "wb", buffering=0) as file:
        for _ in range(FILE_SIZE // (1 << 20) + 1):
            file.write(bytes(1 << 20))
    os.remove("/tmp/large")


def connect():
    with socket.socket() as client:
        client.settimeout(1)
        client.connect(("127.0.0.1", PORT))


def fork_too_often():
    for _ in range(PROCESSES + 1):
        if os.fork() == 0:
            signal.pause()


assert os.getppid() == 1, "there is no process namespace"
assert [name for _, name in socket.if_nameindex()] == ["lo"], "there is no network namespace"
assert not set(os.environ) - {"OMP_NUM_THREADS"}, "the environment is not empty"
assert resource.getrlimit(resource.RLIMIT_CPU)[1] != resource.RLIM_INFINITY, "processor time has no limit"
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0), "a core file is possible"
refused("a connection to the machine", connect)
refused("reading a file outside", open, OUTSIDE)
refused("writing to the root folder", open, "/written", "w")
refused("writing to the standard library", open, os.__file__, "a")
refused("a large allocation", bytearray, MEMORY)
refused("a large file", write_too_much)
refused("a large number of processes", fork_too_often)
with open("/tmp/written", "w") as file:
    file.write("the folder for temporary files can be written")
