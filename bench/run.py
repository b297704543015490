"""Measures the program beside its peers, and writes docs/performance.md.

    python bench/run.py [--binary PATH] [--out FOLDER] [--rounds 3] [--threads 2] [--only PART,...] [--list]

The peers are Python packages with pinned versions (bench/requirements.txt). Without them our figures are measured
alone. Each part is written into the file of this machine as soon as it is done, so an interrupted run loses only the
part that it was in; parts that did not run keep their earlier entry.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import machine
import table
from measure import Bench, CommandFailed, NotEqual
from parts import busy, decode, eval as evaluation, gemm, ppo, qlora, rm, sft, startup

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"

PARTS = {
    "gemm": gemm,
    "sft": sft,
    "rm": rm,
    "qlora": qlora,
    "decode": decode,
    "ppo": ppo,
    "eval": evaluation,
    "startup": startup,
    "busy": busy,
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/colossal-chat")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    parser.add_argument("--rounds", type=int, default=3, help="how often the two sides take turns")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="some parts, with commas")
    parser.add_argument("--list", action="store_true", help="name the parts and stop")
    parser.add_argument("--quick", action="store_true", help="few steps, to try the command; needs another --out")
    parser.add_argument("--eval-work", help="for the part eval: the folder that eval_lm_eval.py describes")
    parser.add_argument("--eval-model", action="append", default=[], metavar="NAME=FOLDER")
    options = parser.parse_args()
    if options.quick and options.out.resolve() == RESULTS:
        parser.error("figures of --quick mean nothing: give them another folder with --out")
    unknown = [part for part in (options.only or "").split(",") if part and part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not options.list and not options.binary.exists():
        parser.error(f"{options.binary} does not exist: build it, or name another one with --binary")
    return options


def main():
    options = arguments()
    if options.list:
        for name, part in PARTS.items():
            print(f"{name:<8} {part.__doc__.splitlines()[0]}")
        return 0
    chosen = options.only.split(",") if options.only else list(PARTS)
    failed = []
    # A run that is terminated removes its folder, as one that Ctrl-C ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="colossal-chat-bench-") as folder:
        bench = Bench(options.binary, options.threads, options.rounds, options.quick, folder, options.eval_work,
                      options.eval_model)
        # Every limit needs the rates of the machine, from the same run.
        for name in ["gemm"] + [part for part in PARTS if part in chosen and part != "gemm"]:
            if not measure(bench, name, options):
                failed.append(name)
    if failed:
        print(f"not recorded: {', '.join(failed)}")
    return 1 if failed else 0


def measure(bench, name, options):
    """Runs one part and records it. Returns whether it came to an end."""
    print(f"{name}: {PARTS[name].__doc__.splitlines()[0]}", flush=True)
    in_use = machine.cores_in_use()
    if in_use > 0.1:
        print(f"  other processes use {in_use:.1f} cores: these figures will be off", flush=True)
    try:
        figures = PARTS[name].run(bench)
    except NotEqual as error:
        print(f"  not equal, so no time is recorded: {error}", flush=True)
        return False
    except CommandFailed as error:
        print(f"  a command failed: {error}", flush=True)
        return False
    if figures:
        entry = machine.provenance(bench.binary, ROOT, options.threads, options.rounds)
        record(options.out, name, {**entry, "cores_in_use_before": in_use, "figures": figures})
    return True


def record(folder, name, entry):
    """Puts the entry of one part into the file of this machine, and writes the page again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / machine.file_name()
    content = {"schema": table.SCHEMA, "processor": machine.processor(), "parts": {}}
    if path.exists():
        content = json.loads(path.read_text())
    content["parts"][name] = entry
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.rename(path)
    page = ROOT / "docs" / "performance.md" if folder.resolve() == RESULTS else folder / "performance.md"
    table.render(folder, page)


if __name__ == "__main__":
    sys.exit(main())
