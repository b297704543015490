#!/usr/bin/env python3
"""Put libtorch 2.11.0 where the build looks for it: the folder `.libtorch` at the repository root.

An existing LIBTORCH is honoured, also the folder `torch` of a Python environment. Otherwise wheels come from the package
index by pip, each checked against the sha256 below, into a cache folder outside `target/`; a second run continues with
the wheels that are still missing. From them only what a build needs is unpacked: the libraries, the headers, and a linker
script that stands for libtorch. Nothing of Python is needed once this has run.

With DEVICE=cuda, the libraries for GPUs of NVIDIA are unpacked as well, into `lib/cuda/`; later runs keep them. The program is linked with the
same libraries as without them, and loads those for GPUs at run time, on a machine that has one.
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
CUDA_WHEELS = {
    "nvidia-cublas==13.1.0.3": "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171",
    "nvidia-cuda-nvrtc==13.0.88": "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
    "nvidia-cudnn-cu13==9.19.0.56": "d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf",
    "nvidia-cufft==12.0.0.61": "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3",
    "nvidia-cufile==1.15.1.6": "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44",
    "nvidia-curand==10.4.0.35": "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc",
    "nvidia-cusolver==12.0.4.66": "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112",
    "nvidia-cusparse==12.6.3.3": "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b",
    "nvidia-cusparselt-cu13==0.8.0": "25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd",
    "nvidia-nccl-cu13==2.28.9": "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",
    "nvidia-nvjitlink==13.0.88": "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b",
    "nvidia-nvshmem-cu13==3.4.5": "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80",
    "nvidia-nvtx==13.0.85": "4936d1d6780fbe68db454f5e72a42ff64d1fd6397df9f363ae786930fd5c1cd4",
}
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(28, 16, -1)] + ["manylinux2014_x86_64"]
LIBRARIES = {
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libc10.so",
    "torch/lib/libgomp.so.1",
    "nvidia/cu13/lib/libcudart.so.13",
    "nvidia/cu13/lib/libcupti.so.13",
}


# Libraries of torch that only its Python module uses.
PYTHON_LIBRARIES = {"libtorch.so", "libtorch_python.so", "libtorch_global_deps.so", "libshm.so", "libshm_windows.so"}


def main():
    device = os.environ.get("DEVICE")
    if device not in (None, "", "cpu", "cuda"):
        sys.exit(f"libtorch: DEVICE={device}: use cpu or cuda")
    existing = os.environ.get("LIBTORCH")
    if existing and Path(existing).resolve() != LINK.resolve():
        check(Path(existing))
        return link_to(Path(existing).resolve())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "colossal-chat"
    # Without DEVICE, a link to the libraries for GPUs stays as it is.
    device = device or ("cuda" if LINK.resolve() == cache / f"libtorch-{VERSION}-cuda" else "cpu")
    folder = cache / f"libtorch-{VERSION}-{device}"
    if not folder.is_dir():
        wheels = WHEELS | (CUDA_WHEELS if device == "cuda" else {})
        unpack([fetch(cache / "wheels", name, digest) for name, digest in wheels.items()], folder, device)
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


def unpack(wheels, folder, device):
    """Unpack what the build needs beside `folder`, then rename: a broken run leaves nothing half-written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
    try:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.namelist():
                    target = place(entry, device)
                    if target is None:
                        continue
                    (partial / target).parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as source, open(partial / target, "wb") as sink:
                        shutil.copyfileobj(source, sink, 1 << 20)
        (partial / "lib/libtorch.so").write_text("INPUT(libtorch_cpu.so libc10.so)\n")
        if device == "cuda":
            # The program looks NCCL up by this name, in the folder of libtorch.
            (partial / "lib/libnccl.so").symlink_to("cuda/libnccl.so.2")
        partial.chmod(0o755)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def place(entry, device):
    """Where a wheel's entry goes in the libtorch folder, or None for what no build needs."""
    folder, _, name = entry.rpartition("/")
    if entry in LIBRARIES:
        return "lib/" + name
    if entry.startswith("torch/include/") and name:
        return entry.removeprefix("torch/")
    is_library = re.search(r"\.so(\.\d+)*$", name) and name not in PYTHON_LIBRARIES
    if device == "cuda" and is_library and (folder == "torch/lib" or re.fullmatch(r"nvidia/[^/]+/lib", folder)):
        return "lib/cuda/" + name
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
