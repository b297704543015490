"""What is written beside every figure: the processor, the versions, the commit, what else was running."""

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import time
from pathlib import Path

PACKAGES = ["torch", "transformers", "trl", "lm_eval", "peft", "bitsandbytes"]


def processor():
    """The name of the processor. Some machines only say "AMD EPYC", so family and model are part of it."""
    fields = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = re.sub(r"\((R|TM)\)", "", fields.get("model name", platform.machine()))
    family, model = fields.get("cpu family", "unknown"), fields.get("model", "unknown")
    return f"{name}, family {family}, model {model}, {os.cpu_count()} cores"


def file_name():
    return re.sub(r"[^a-z0-9]+", "-", processor().lower()).strip("-") + ".json"


def provenance(binary, root, threads, rounds):
    return {
        "commit": commit(root),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "threads": threads,
        "rounds": rounds,
        "versions": {"colossal-chat": program_version(binary), "python": platform.python_version(), **versions()},
    }


def commit(root):
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True).stdout.strip()

    name = git("rev-parse", "--short", "HEAD") or "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench", ":!docs")
    return f"{name} with changes" if changed else name


def program_version(binary):
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def versions():
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def cores_in_use(seconds=1.0):
    """How many cores other processes use while this one sleeps."""

    def busy_ticks():
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
        return user + nice + system + irq + softirq + steal

    before = busy_ticks()
    time.sleep(seconds)
    return (busy_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds
