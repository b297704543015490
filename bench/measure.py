"""Runs the program and its peers, and turns what they took into figures. Standard library only."""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


class NotEqual(Exception):
    """The two sides computed different things, so their times are not recorded."""


class CommandFailed(Exception):
    """A command ended with an error; the message holds the end of what it wrote."""


class Bench:
    """What every part needs to know: the program, the threads, the rounds and a folder for inputs."""

    def __init__(self, binary, threads, rounds, quick, folder, eval_work, eval_models):
        self.binary = Path(binary).resolve()
        self.threads = threads
        self.rounds = rounds
        self.quick = quick
        self.folder = Path(folder)
        self.eval_work = eval_work
        self.eval_models = eval_models
        self.rates = None
        self.absent = set()

    def has(self, package):
        """Whether a peer's package is installed. The first time that it is not, a line says how to install it."""
        if importlib.util.find_spec(package):
            return True
        if package not in self.absent:
            self.absent.add(package)
            print(f"{package} is not installed: its figures are left out. To have them:")
            print("    pip install -r bench/requirements.txt", flush=True)
        return False

    def ours(self, *arguments):
        """Runs the program; returns its seconds and its peak memory."""
        return run([self.binary, *arguments, "--threads", self.threads])

    def peer(self, script, python=sys.executable, **settings):
        """Runs a script of bench/peers in a process of its own; returns what it wrote, its seconds and its peak."""
        settings["threads"] = self.threads
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            out = Path(folder) / "result.json"
            text = json.dumps(settings, default=str)
            seconds, peak = run([python, HERE / "peers" / script, text, out], peer_environment())
            return {**json.loads(out.read_text()), "process_seconds": seconds, "peak_bytes": peak}


def run(command, environment=None):
    """Runs a command; returns its wall seconds and its peak resident bytes."""
    command = [str(part) for part in command]
    with tempfile.TemporaryFile() as errors, tempfile.NamedTemporaryFile() as out:
        launcher = [sys.executable, "-I", "-S", HERE / "launch.py", out.name, *command]
        child = subprocess.Popen(launcher, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        try:
            child.wait()
        finally:
            # After an exception, such as Ctrl-C, nothing goes on computing.
            child.terminate()
            child.wait()
        result = json.loads(out.read() or '{"status": 1}')
        if result["status"] != 0:
            errors.seek(0)
            text = errors.read().decode(errors="replace")
            raise CommandFailed(f"{' '.join(command)}\n{text[-3000:]}")
    return result["seconds"], result["peak_bytes"]


def peer_environment():
    """The peers load the libtorch of their own package, also when the program was given another one."""
    kept = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    quiet = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**kept, **quiet}


def alternate(rounds, sides, check):
    """Runs the sides in turn (ours, the peer, ours, the peer, ...) and checks each round for equality.

    `sides` maps "ours" and "peer" to functions. A function returns a dictionary with the measured `value`,
    `peak_bytes`, and whatever `check` compares. Returns the lists of these, and the largest difference.
    """
    samples, largest = {name: [] for name in sides}, None
    for _ in range(rounds):
        for name, side in sides.items():
            samples[name].append(side())
        if "peer" in sides and check:
            difference = check(samples["ours"][-1], samples["peer"][-1])
            largest = difference if largest is None else max(largest, difference)
    return samples, largest


def within(tolerance, what, ours, peer):
    """The largest difference of two lists of numbers. Stops the part when it is above `tolerance`."""
    if len(ours) != len(peer):
        raise NotEqual(f"{what}: {len(ours)} numbers, the peer has {len(peer)}")
    difference = max(abs(left - right) for left, right in zip(ours, peer))
    # A difference that is not a number is not within anything.
    if not difference <= tolerance:
        raise NotEqual(f"{what} differs by {difference:.3g}, above {tolerance:g}\nours {ours}\npeer {peer}")
    return difference


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "all": values}


def figure(name, unit, samples, higher_is_better=False, **more):
    """One row of the table: medians, extremes, the ratio of each round, and the peaks of memory.

    The ratio says how many times better ours is, so it is above one when ours is faster. `more` holds `limit`,
    `difference`, `setting` (of the peer) and `note`.
    """
    row = {"name": name, "unit": unit, "higher_is_better": higher_is_better}
    for side, runs in samples.items():
        row[side] = summary([sample["value"] for sample in runs])
        peaks = [sample["peak_bytes"] for sample in runs if "peak_bytes" in sample]
        row[side]["peak_bytes"] = max(peaks, default=None)
    if "peer" in samples:
        pairs = zip(row["ours"]["all"], row["peer"]["all"])
        row["ratio"] = summary([ours / peer if higher_is_better else peer / ours for ours, peer in pairs])
    row.update((key, value) for key, value in more.items() if value is not None)
    show(row)
    return row


def show(row):
    text = f"  {row['name']}: ours {row['ours']['median']:.4g} {row['unit']}"
    if "peer" in row:
        text += f", peer {row['peer']['median']:.4g}, ratio {row['ratio']['median']:.2f}"
    if row.get("limit"):
        text += f", limit {row['limit']:.4g}"
    print(text, flush=True)


def fastest(settings, measure, higher_is_better):
    """Tries each setting of the peer twice, in turn, and returns the one with the best value."""
    if len(settings) == 1:
        return settings[0]
    best = max if higher_is_better else min
    tries = [{setting: measure(setting)["value"] for setting in settings} for _ in range(2)]
    values = {setting: best(values[setting] for values in tries) for setting in settings}
    print("  settings of the peer: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()), flush=True)
    return best(values, key=values.get)
