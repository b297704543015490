"""Asks a server many things at once, as many clients do, half of whom leave at random.

    colossal-chat serve --model ppo=colossal-demo/ppo/final --port 8011
    python bench/serve.py --port 8011 --model ppo [--clients 64] [--requests 20] [--pid PID]

Every answer is compared with the one that the server gave to the same question alone. At the end nothing may be under way,
and no page of the KV cache may be in use. Prints the times to the first token and between tokens, and the resident memory
of the process PID before and after. Standard library only.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from pathlib import Path


def main():
    options = arguments()
    asyncio.run(run(options))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=20, help="of each client")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--stay", type=float, default=0.5, help="the share of clients that read to the end")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


async def run(options):
    questions = [f"what is {number} + {number % 7 + 11}?" for number in range(10, 74)]
    wanted = {question: (await ask(options, question))[0] for question in questions}
    resident = memory(options.pid)
    times = {"first": [], "between": [], "answers": 0, "left": 0, "wrong": 0, "tokens": 0}
    started = time.perf_counter()
    await asyncio.gather(*(client(options, number, questions, wanted, times) for number in range(options.clients)))
    seconds = time.perf_counter() - started
    await settle(options)

    print(f"{options.clients} clients, {times['answers']} answers, {times['left']} left, {times['wrong']} wrong, {seconds:.1f} s")
    print(f"tokens of whole answers per second: {times['tokens'] / seconds:.0f}")
    for name, label in (("first", "first token"), ("between", "between tokens")):
        values = sorted(1000 * value for value in times[name])
        print(f"{label}: p50 {statistics.median(values):.1f} ms, p99 {values[int(0.99 * (len(values) - 1))]:.1f} ms")
    if resident:
        print(f"resident memory: {resident} MiB before, {memory(options.pid)} MiB after")
    if times["wrong"]:
        raise SystemExit("some answers were wrong")


async def client(options, number, questions, wanted, times):
    draw = random.Random(f"{options.seed}-{number}")
    for _ in range(options.requests):
        question = draw.choice(questions)
        leave_after = None if draw.random() < options.stay else draw.randrange(0, 12)
        answer, first, between = await ask(options, question, leave_after)
        if leave_after is not None:
            times["left"] += 1
            continue
        times["answers"] += 1
        times["wrong"] += answer != wanted[question]
        times["first"].append(first)
        times["between"] += between
        times["tokens"] += len(between) + 1


async def ask(options, question, leave_after=None):
    """The answer, the time to its first text and the times between its texts. Leaves after so many events, if it is given."""
    body = json.dumps({
        "model": options.model, "messages": [{"role": "user", "content": question}], "temperature": 0, "stream": True,
        "max_tokens": options.max_tokens, "ignore_eos": True,
    }).encode()
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", options.port)
    try:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        text, first, between, last, events = "", None, [], None, 0
        while line := await reader.readline():
            if line.startswith(b"HTTP/1.1") and b" 200 " not in line:
                raise SystemExit(f"the server answers {line.decode().strip()}: {(await reader.read()).decode()}")
            if not line.startswith(b"data: {"):
                continue
            if leave_after is not None and events >= leave_after:
                break
            events += 1
            choice = json.loads(line[6:])["choices"][0]
            piece = choice["delta"].get("content") or ""
            if not piece:
                continue
            now = time.perf_counter()
            if first is None:
                first = now - started
            else:
                between.append(now - last)
            last, text = now, text + piece
        return text, first, between
    finally:
        writer.close()


async def settle(options):
    """Waits until nothing is under way, for half a minute at most."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_used_tokens")
    for _ in range(300):
        reader, writer = await asyncio.open_connection("127.0.0.1", options.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        lines = (await reader.read()).decode().splitlines()
        writer.close()
        found = [line for line in lines if any(line.startswith(f"colossal_chat_{name}") for name in names)]
        if all(line.endswith(" 0") for line in found):
            return
        await asyncio.sleep(0.1)
    raise SystemExit("something is still under way: " + "; ".join(found))


def memory(pid):
    """Resident memory in MiB."""
    if pid is None:
        return None
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
