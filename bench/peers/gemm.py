"""The rates of this machine: products in fp32 and bf16 at the sizes of the models, and reading of memory.

Each rate is the best of several tries, because a limit is what the machine can do and not what it did once.
"""

import time

import settings as process
import torch

PRODUCT_TRIES, READ_TRIES = 9, 30


def best_seconds(call, tries):
    times = []
    for _ in range(tries):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def product_rate(rows, inner, columns, dtype):
    """Operations a second of [rows, inner] x [inner, columns], by the faster of the two libraries of libtorch."""
    left, right = torch.randn(rows, inner, dtype=dtype), torch.randn(columns, inner, dtype=dtype)
    onednn = torch.ops.mkldnn._linear_pointwise
    calls = [lambda: torch.nn.functional.linear(left, right), lambda: onednn(left, right, None, "none", [], "")]
    return 2 * rows * inner * columns / min(best_seconds(call, PRODUCT_TRIES) for call in calls)


def read_rate(megabytes):
    """Bytes a second of a sum."""
    values = torch.ones(megabytes << 18)
    return values.numel() * 4 / best_seconds(values.sum, READ_TRIES)


def main():
    settings = process.read()
    products = {}
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            rates = {f"{m} x {k} x {n}": product_rate(m, k, n, dtype) for m, k, n in settings.products}
            products[str(dtype).removeprefix("torch.")] = rates
        result = {
            "products": products,
            "gemm_float32": max(products["float32"].values()),
            "gemm_bfloat16": max(products["bfloat16"].values()),
            "read_bytes": read_rate(256),
            "read_bytes_small": read_rate(settings.small_megabytes),
        }
    process.write(result)


if __name__ == "__main__":
    main()
