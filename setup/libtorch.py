#!/usr/bin/env python3
"""Put libtorch 2.11.0 where the build looks for it: the folder `.libtorch` at the repository root.

An existing LIBTORCH is honoured. Otherwise three wheels come from the package index by pip, each checked against the
sha256 below, into a cache folder outside `target/`; a second run continues with the wheels that are still missing. From
them only what a CPU build needs is unpacked: the libraries, the headers, and a linker script that stands for libtorch.
Nothing of Python is needed once this has run.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "2.11.0"
ROOT = Path(__file__).resolve().parent.parent
LINK = ROOT / ".libtorch"
WHEELS = {
    "torch==2.11.0": "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a",
    "nvidia-cuda-runtime==13.0.96": "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    "nvidia-cuda-cupti==13.0.85": "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
}
PLATFORMS = ["manylinux_2_28_x86_64", "manylinux_2_25_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
LIBRARIES = {
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libc10.so",
    "torch/lib/libgomp.so.1",
    "nvidia/cu13/lib/libcudart.so.13",
    "nvidia/cu13/lib/libcupti.so.13",
}


def main():
    existing = os.environ.get("LIBTORCH")
    if existing and Path(existing).resolve() != LINK.resolve():
        check(Path(existing))
        return link_to(Path(existing).resolve())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "colossal-chat"
    folder = cache / f"libtorch-{VERSION}-cpu"
    if not folder.is_dir():
        unpack([fetch(cache / "wheels", name, digest) for name, digest in WHEELS.items()], folder)
        shutil.rmtree(cache / "wheels", ignore_errors=True)
    check(folder)
    link_to(folder)


def check(folder):
    """Refuse a folder that the build could not use, and say what it lacks."""
    for needed in ("lib/libtorch_cpu.so", "lib/libc10.so", "include/torch/csrc/api/include/torch/torch.h"):
        if not (folder / needed).exists():
            sys.exit(f"libtorch: {folder} has no {needed}; unset LIBTORCH, or point it at libtorch {VERSION}")
    header = (folder / "include/torch/headeronly/version.h").read_text()
    parts = [re.search(rf"TORCH_VERSION_{part} (\d+)", header) for part in ("MAJOR", "MINOR", "PATCH")]
    version = ".".join(part.group(1) for part in parts if part)
    if version != VERSION:
        sys.exit(f"libtorch: {folder} holds version {version}, and {VERSION} is needed; unset LIBTORCH to fetch it")


def fetch(wheels, name, digest):
    """The wheel of `name`, from `wheels` when it is there and whole, else by pip."""
    package, version = name.split("==")
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    for wheel in wheels.glob(pattern):
        if sha256(wheel) == digest:
            return wheel
        wheel.unlink()
    wheels.mkdir(parents=True, exist_ok=True)
    print(f"libtorch: fetching {name}", file=sys.stderr, flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(f"{name} --hash=sha256:{digest}\n")
        requirements.flush()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "none"]
        command += [word for platform in PLATFORMS for word in ("--platform", platform)]
        command += ["--require-hashes", "--dest", str(wheels), "-r", requirements.name]
        if "--resume-retries" in subprocess.run(command[:3] + ["download", "--help"], capture_output=True, text=True).stdout:
            command += ["--resume-retries", "5"]
        if subprocess.run(command).returncode != 0:
            sys.exit(f"libtorch: pip could not fetch {name}; run the same command again to continue where it stopped")
    return next(wheels.glob(pattern))


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def unpack(wheels, folder):
    """Unpack what the build needs beside `folder`, then rename: a broken run leaves nothing half-written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
    try:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.namelist():
                    target = place(entry)
                    if target is None:
                        continue
                    (partial / target).parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as source, open(partial / target, "wb") as sink:
                        shutil.copyfileobj(source, sink, 1 << 20)
        (partial / "lib/libtorch.so").write_text("INPUT(libtorch_cpu.so libc10.so)\n")
        partial.chmod(0o755)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def place(entry):
    """Where a wheel's entry goes in the libtorch folder, or None for what a CPU build does not need."""
    if entry in LIBRARIES:
        return "lib/" + entry.rsplit("/", 1)[1]
    if entry.startswith("torch/include/") and not entry.endswith("/"):
        return entry.removeprefix("torch/")
    return None


def link_to(folder):
    if LINK.is_symlink() or LINK.exists():
        if LINK.resolve() == folder.resolve():
            return
        if not LINK.is_symlink():
            sys.exit(f"libtorch: {LINK} is in the way; remove it")
        LINK.unlink()
    LINK.symlink_to(folder)
    print(f"libtorch: {LINK.name} -> {folder}", file=sys.stderr)


if __name__ == "__main__":
    main()
