"""What every peer's process does first and last: a JSON text of settings comes in, a JSON file of results goes out."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch


def read():
    settings = SimpleNamespace(**json.loads(sys.argv[1]))
    torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    return settings


def write(result):
    Path(sys.argv[2]).write_text(json.dumps(result))


def read_lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
