"""Process 1 of a sandbox: runs the program on stdin in a child, and says on stdout what came of it.

The first line of stdin is the time limit in seconds, the rest is the program. Stdout gets the line "ready"
and then "passed", "timed out" or "failed: REASON". The kernel kills all processes of the sandbox when this one
ends.

A program passes if it runs to its end without an exception. Its process then sends a random token, and nothing
else counts: a program that prints "passed", that leaves with os._exit(0) or sys.exit(0) before its tests, or
that kills its parent never comes to the line that sends the token. The program shares its interpreter with the
token as with its own tests, so code that is written to find the token, or to equal every value, can pass.
"""
import os
import select
import sys
import time

LONGEST_REASON = 300
LONGEST_MESSAGE = 4096


def main():
    # Files that the calling process left open.
    os.closerange(3, 65536)
    limit, _, source = sys.stdin.buffer.read().partition(b"\n")
    for name in set(os.environ) - {"OMP_NUM_THREADS"}:
        del os.environ[name]
    token = os.urandom(16)
    inbox, outbox = os.pipe()
    os.write(1, b"ready\n")
    deadline = time.monotonic() + float(limit)
    child = os.fork()
    if child == 0:
        leave = os._exit
        try:
            os.close(inbox)
            run(source, outbox, token)
        finally:
            leave(1)
    os.close(outbox)
    os.write(1, verdict(child, inbox, token, deadline).encode("utf-8", "replace") + b"\n")
    os._exit(0)


def run(source, outbox, token):
    # The program may replace these functions.
    write, leave = os.write, os._exit
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.close(null)
    os.setsid()
    try:
        exec(source.decode("utf-8"), {})
    except BaseException as error:
        write(outbox, describe(error).encode("utf-8", "replace")[:LONGEST_MESSAGE])
        leave(1)
    write(outbox, token)
    leave(0)


def describe(error):
    """The exception on one line. An address would differ from run to run."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    return name if not text or " at 0x" in text else f"{name}: {text[:LONGEST_REASON]}"


def verdict(child, inbox, token, deadline):
    """Waits for a message of the child, its end, or the deadline."""
    status = None
    while True:
        left = deadline - time.monotonic()
        readable, _, _ = select.select([inbox], [], [], 0 if status is not None else min(max(left, 0), 0.02))
        message = os.read(inbox, LONGEST_MESSAGE) if readable else b""
        if message == token:
            return "passed"
        if message:
            return "failed: " + message.decode("utf-8", "replace")
        if status is not None:
            signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            end = f"signal {signal}" if signal else f"exit code {os.WEXITSTATUS(status)}"
            return f"failed: the program ended with {end} before its tests were over"
        if left <= 0:
            return "timed out"
        ended, found = os.waitpid(child, os.WNOHANG)
        # What it said last is read before its end counts.
        status = found if ended else None
        if readable and status is None:
            # It closed its end, and no message can come.
            time.sleep(0.005)


main()
