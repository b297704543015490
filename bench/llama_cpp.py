"""Measures `colossal-chat serve` beside the server of llama-cpp-python, as one and as many clients see them.

    python bench/llama_cpp.py [--binary PATH] [--out FOLDER] [--rounds 3] [--threads 2] [--quick]

Both servers have the same LLaMA of 42 M random weights in fp32, which the program makes and which is then written as a
GGUF file. Before anything is timed, greedy tokens of both are compared, and the script stops unless they are equal. Then
the two servers take turns. Clients ask at once, each its next prompt when its reply has ended, and read the reply as it
streams. Measured are the tokens of all replies a second, the median time to the first token, and the peak memory of the
server. The limit is the time of the products of all prompts, and of reading weights and cache at each step of all
clients together.

`llama_cpp.server` answers one request at a time: the other clients wait. By default it cuts a reply off when the next
client asks, and computes logits of prompts that nobody reads; both are switched off. Its cache is in fp32, and its flash
attention, which computes in fp16, is not used: with either in fp16 its tokens differ.

Besides bench/requirements.txt it needs two packages. The first is built for the processor of this machine:

    pip install 'llama-cpp-python[server]==0.3.36' gguf==0.19.0

The figures go into the file of this machine in bench/results, as the part `llama_cpp`, and from there into
docs/performance.md.
"""

import argparse
import asyncio
import contextlib
import importlib.metadata
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
PACKAGES = ["llama_cpp_python", "gguf"]
FLOAT32 = 0  # of ggml_type
START_SECONDS, STOP_SECONDS = 60, 20
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
            figures = measure(bench)
        except NotEqual as error:
            sys.exit(f"not equal, so no time is recorded: {error}")
        except CommandFailed as error:
            sys.exit(f"a command failed: {error}")
        entry = machine.provenance(bench.binary, ROOT, options.threads, options.rounds)
    entry["versions"] |= {package: importlib.metadata.version(package) for package in PACKAGES}
    record(options.out, "llama_cpp", {**entry, "cores_in_use_before": in_use, "figures": figures})


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    for package in PACKAGES:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            parser.error(f"{package} is not installed: see --help")
    return options


def measure(bench):
    gemm.run(bench)
    model, gguf = write_models(bench)
    prove_equal(bench, model, gguf)
    return [row for clients in REQUESTS for row in compare(Load(bench, model, gguf, clients))]


def write_models(bench):
    """The same weights and tokens twice: as a folder for the program, and as a file for llama.cpp."""
    shape, tokenizer = llama(), bench.folder / "tokenizer"
    write_tokenizer(tokenizer, shape.vocabulary)
    config, folder, gguf = (bench.folder / name for name in ("config.json", "model", "model.gguf"))
    config.write_text(json.dumps({**shape.config(), "initializer_range": INITIALIZER_RANGE}))
    bench.ours("model", "init", config, "--tokenizer", tokenizer, "--out", folder)
    bench.peer("write_gguf.py", model=folder, gguf=gguf, first_character=FIRST_CHARACTER)
    return folder, gguf


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


def prove_equal(bench, model, gguf):
    rows = inputs.random_rows(PROOFS, PROMPT_LENGTH, llama().vocabulary, seed=5)
    prompts = inputs.write_lines(bench.folder / "prompts.jsonl", ({"ids": row} for row in rows))
    _, _, mine = ours.generate(bench, model, prompts, PROOFS, NEW)
    theirs = bench.peer("llama_cpp_greedy.py", gguf=gguf, prompts=prompts, new=NEW)["ids"]
    if mine != theirs:
        raise NotEqual(f"greedy tokens\nours {mine}\npeer {theirs}")
    print(f"  greedy tokens of {PROOFS} prompts are equal, {len(set(sum(mine, [])))} different ones", flush=True)


class Load:
    """One number of clients: their prompts, and the runs of both servers on them."""

    def __init__(self, bench, model, gguf, clients):
        self.bench, self.model, self.gguf, self.clients = bench, model, gguf, clients
        count = clients if bench.quick else clients * REQUESTS[clients]
        first, *rows = inputs.random_rows(1 + count, PROMPT_LENGTH, llama().vocabulary, seed=clients)
        self.warm_up, self.prompts = text(first), [text(row) for row in rows]

    def ours(self):
        port = free_port()
        command = [self.bench.binary, "serve", "--model", f"llama={self.model}", "--device", "cpu"]
        command += ["--port", port, "--threads", self.bench.threads]
        return self.run(command, port, "/ready", os.environ)

    def peer(self):
        port, threads = free_port(), self.bench.threads
        command = [sys.executable, "-m", "llama_cpp.server", "--model", self.gguf, "--model_alias", "llama"]
        command += ["--port", port, "--n_threads", threads, "--n_threads_batch", threads, "--n_ctx", 1024]
        command += ["--interrupt_requests", "false", "--logits_all", "false"]
        command += ["--type_k", FLOAT32, "--type_v", FLOAT32]
        return self.run(command, port, "/v1/models", peer_environment())

    def run(self, command, port, path, environment):
        """Starts a server, waits until it answers at a path, lets all clients ask it, and stops it."""
        with running(command, f"http://127.0.0.1:{port}{path}", environment, self.bench.folder) as pid:
            asyncio.run(ask(port, self.warm_up))
            started = time.perf_counter()
            answers = asyncio.run(ask_all(port, self.prompts, self.clients))
            seconds = time.perf_counter() - started
            peak = peak_bytes(pid)
        replies, waits = zip(*answers)
        if short := [len(reply) for reply in replies if len(reply) != NEW]:
            raise NotEqual(f"{len(short)} replies have not {NEW} tokens but {short}")
        return {
            "value": len(replies) * NEW / seconds,
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
            rows += [tokens(prompt + reply[: same + 1]) for reply in replies if same < NEW]
        logprobs = last_logprobs(self.bench, self.model, rows) if rows else []
        gaps = [abs(mine - theirs) for mine, theirs in zip(logprobs[::2], logprobs[1::2])]
        if large := [gap for gap in gaps if not gap <= DRAW]:
            raise NotEqual(f"{len(large)} of {len(self.prompts)} replies, where log-probabilities differ by {large}")
        return len(gaps)


def compare(load):
    """Two rows of the table: tokens a second, and the first token."""
    name = f"{load.clients} client{'s' if load.clients > 1 else ''}"
    sides = {"ours": load.ours, "peer": load.peer}
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
def running(command, address, environment, folder):
    """A server that is ready to answer. It starts in `folder`: in bench, Python would take this file for llama_cpp."""
    command = [str(part) for part in command]
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
        try:
            if not answers_in_time(child, address):
                log.seek(0)
                raise CommandFailed(f"{' '.join(command)}\n{log.read().decode(errors='replace')[-3000:]}")
            yield child.pid
        finally:
            stop(child)


def stop(child):
    child.terminate()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
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
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


async def ask_all(port, prompts, clients):
    """Every client asks its share of the prompts, one after the other."""

    async def client(number):
        return [await ask(port, prompt) for prompt in prompts[number::clients]]

    shares = await asyncio.gather(*(client(number) for number in range(clients)))
    return sum(shares, [])


async def ask(port, prompt):
    """A greedy reply, and the seconds until its first text."""
    body = json.dumps({
        "model": "llama", "prompt": prompt, "stream": True, "temperature": 0, "max_tokens": NEW,
        "ignore_eos": True,  # known to ours only
        "repeat_penalty": 1.0,  # known to the peer only, which else has 1.1
    }).encode()
    started, reply, first = time.perf_counter(), "", None
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
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
