"""Runs one command, and writes its exit status, its wall seconds and its peak resident bytes as JSON.

    python launch.py OUT.json COMMAND ARGUMENT...

Linux counts the memory of the process that starts a command into the peak of that command. So a small process has to
start it, and this one imports next to nothing.
"""

import json
import os
import signal
import sys
import time


def main():
    out, command = sys.argv[1], sys.argv[2:]
    started = time.perf_counter()
    child = os.posix_spawnp(command[0], command, os.environ)

    def stop(*_):
        os.kill(child, signal.SIGKILL)

    # Whoever stops the launcher stops the command.
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - started
    result = {"status": status, "seconds": seconds, "peak_bytes": usage.ru_maxrss * 1024}
    with open(out, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
