"""The rates of the machine, from which every limit follows."""

from shapes import FLOAT_BYTES, SMALL, llama

MICRO_BATCH_TOKENS = 1024


def run(bench):
    if not bench.has("torch"):
        return []
    model = llama()
    sizes = [(model.hidden, model.hidden), (model.hidden, model.inner), (model.inner, model.hidden)]
    sizes.append((model.hidden, model.vocabulary))
    products = [[MICRO_BATCH_TOKENS, *size] for size in sizes] + [[1536, 1536, 1536]]
    small = SMALL.parameters * FLOAT_BYTES >> 20
    rates = bench.peer("gemm.py", products=products, small_megabytes=small)
    bench.rates = rates
    return [
        rate("products in fp32", "Gflop/s", rates["gemm_float32"], rates["products"]["float32"]),
        rate("products in bf16", "Gflop/s", rates["gemm_bfloat16"], rates["products"]["bfloat16"]),
        rate("reading 256 MiB", "GB/s", rates["read_bytes"]),
        rate(f"reading {small} MiB, the weights of the small model", "GB/s", rates["read_bytes_small"]),
    ]


def rate(name, unit, value, by_size=None):
    row = {"name": name, "unit": unit, "limit": value / 1e9}
    if by_size:
        row["note"] = "; ".join(f"{size}: {speed / 1e9:.0f}" for size, speed in by_size.items())
    print(f"  {name}: {row['limit']:.4g} {unit}", flush=True)
    return row
