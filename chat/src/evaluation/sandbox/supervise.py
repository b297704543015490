"""Process 1 of a sandbox: runs the program on stdin in a child, and writes what came of it to stderr.

Stdin holds a nonce of 32 characters, a line "SECONDS KEYCTL FILTER" (the time limit, the number of the system
call `keyctl`, the filter of system calls in hexadecimal), and then the program. Stdout gets "ready" as soon as
the child is confined; what was written to stderr before that is why it could not be. After it, stderr gets one
line: the nonce, and "passed", "timed out" or "failed: REASON". The kernel kills all processes of the sandbox when
this one ends.

A program passes if it runs to its end without an exception. Its process then sends a random token, and nothing
else counts: a program that prints "passed", or that leaves with os._exit(0) or sys.exit(0) before its tests,
never comes to the line that sends the token. The program shares its interpreter with the token as with its own
tests, so code that is written to find the token, or to equal every value, can pass. It cannot reach this process:
not its descriptors or its memory (PR_SET_DUMPABLE, and the filter), and not by a signal (the kernel keeps those of
its descendants from process 1). The nonce is read when the child has closed its stdin.
"""
import ctypes
import errno
import os
import select
import signal
import sys
import time

LONGEST_REASON = 300
LONGEST_MESSAGE = 4096
NONCE_LENGTH = 32

# linux/prctl.h, linux/seccomp.h, linux/keyctl.h
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38
SECCOMP_MODE_FILTER = 2
KEYCTL_JOIN_SESSION_KEYRING = 1
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


class FilterProgram(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def main():
    # Files that the calling process left open.
    os.closerange(3, 65536)
    os.lseek(0, NONCE_LENGTH, os.SEEK_SET)
    header, _, source = sys.stdin.buffer.read().partition(b"\n")
    limit, keyctl, instructions = header.split()
    for name in set(os.environ) - {"OMP_NUM_THREADS"}:
        del os.environ[name]
    # The handler of Python would end this process; without one, the kernel ignores the signal here.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    leave_keyring(int(keyctl))
    control(PR_SET_DUMPABLE, 0)
    token = os.urandom(16)
    inbox, outbox = os.pipe()
    child = os.fork()
    if child == 0:
        leave = os._exit
        try:
            os.close(inbox)
            confine(bytes.fromhex(instructions.decode()))
            os.write(outbox, b"\0")
            run(source, outbox, token)
        finally:
            leave(1)
    os.close(outbox)
    if os.read(inbox, 1) != b"\0":
        # The child has said why.
        os._exit(1)
    deadline = time.monotonic() + float(limit)
    nonce = os.pread(0, NONCE_LENGTH, 0)
    os.write(1, b"ready\n")
    outcome = verdict(child, inbox, token, deadline)
    os.write(2, nonce + b" " + outcome.encode("utf-8", "replace") + b"\n")
    os._exit(0)


def control(option, *arguments):
    """The system call `prctl`."""
    arguments = [*arguments, 0, 0, 0, 0][:4]
    if LIBC.prctl(option, *(ctypes.c_ulong(argument) for argument in arguments)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def leave_keyring(number):
    """Leaves the session keyring of the calling process for an empty one. A kernel without keyrings has none."""
    joined = LIBC.syscall(ctypes.c_long(number), ctypes.c_long(KEYCTL_JOIN_SESSION_KEYRING), None)
    if joined < 0 and ctypes.get_errno() != errno.ENOSYS:
        raise OSError(ctypes.get_errno(), "cannot join an empty session keyring")


def confine(instructions):
    """Gives this process the filter of system calls, and takes its descriptors away except for the outbox."""
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        program = FilterProgram(len(instructions) // 8, instructions)
        control(PR_SET_NO_NEW_PRIVS, 1)
        control(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))
    except BaseException as error:
        os.write(2, f"the program cannot be confined: {error}".encode())
        raise
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.close(null)


def run(source, outbox, token):
    # The program may replace these functions.
    write, leave = os.write, os._exit
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
