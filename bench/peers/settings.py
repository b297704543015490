"""What every peer's process does first and last: a JSON text of settings comes in, a JSON file of results goes out."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch


def read():
    settings = SimpleNamespace(**{"device": "cpu", "dtype": "float32", "learning_rate": 1e-4} | json.loads(sys.argv[1]))
    torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    return settings


def seconds(settings):
    """A clock that waits for the GPU first, which computes while Python goes on."""
    if settings.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def write(result):
    if torch.cuda.is_initialized():
        result["device_peak_bytes"] = torch.cuda.max_memory_allocated()
    Path(sys.argv[2]).write_text(json.dumps(result))


def read_lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
