"""The least time that this machine can take for a figure, from the rates that the part `gemm` measures."""

RATES = {"float32": "gemm_float32", "bfloat16": "gemm_bfloat16"}
SMALL_BYTES = 64 << 20  # what may stay in the caches of the processor between two steps


def training_speed(bench, shape, lengths, dtype="float32", with_head=True):
    """Tokens a second, when nothing but the products takes time. `lengths` are those of all rows."""
    if bench.rates is None:
        return None
    rate = bench.rates[RATES[dtype]]
    return sum(lengths) * rate / shape.training_flop(lengths, with_head)


def decode_seconds(bench, shape, batch, context):
    """Seconds a step: the weights and the cache are read, or the products are computed, whichever takes longer."""
    if bench.rates is None:
        return None
    size = shape.decode_bytes(batch, context)
    reading = size / bench.rates["read_bytes_small" if size < SMALL_BYTES else "read_bytes"]
    return max(reading, shape.decode_flop(batch, context) / bench.rates["gemm_float32"])


def ppo_seconds(bench, shape, prompts, prompt_length, replies, reply_length, epochs):
    """Seconds of an iteration: prompts, steps of generation, three models that score, two that learn.

    A prompt that has several replies is read once. Only tokens of replies need the head.
    """
    if bench.rates is None:
        return None
    rate = bench.rates["gemm_float32"]
    rows = [prompt_length + reply_length] * replies
    head = 2 * shape.head * reply_length * replies
    prefill = shape.forward_flop([prompt_length] * prompts, with_head=False) / rate
    steps = round(reply_length)
    decode = sum(decode_seconds(bench, shape, replies, prompt_length + step) for step in range(steps))
    body = shape.forward_flop(rows, with_head=False)
    score = (3 * body + head) / rate
    update = epochs * 3 * (2 * body + head) / rate
    return prefill + decode + score + update
