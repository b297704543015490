"""The least time that this machine can take for a figure, from the rates that the part `gemm` measures."""

RATES = {"float32": "gemm_float32", "bfloat16": "gemm_bfloat16"}
SMALL_BYTES = 64 << 20  # what may stay in the caches of the processor between two steps


def training_speed(bench, shape, lengths, dtype="float32", with_head=True, outputs=None):
    """Tokens a second, when nothing but the products takes time. `lengths` are those of all rows."""
    if bench.rates is None:
        return None
    rate = bench.rates[RATES[dtype]]
    return sum(lengths) * rate / shape.training_flop(lengths, with_head, outputs)


def adapter_training_speed(bench, shape, lengths):
    """Tokens a second in bf16, when nothing but the products with frozen weights takes time: forward, and of gradients."""
    if bench.rates is None:
        return None
    return sum(lengths) * bench.rates[RATES["bfloat16"]] / (2 * shape.forward_flop(lengths))


def decode_seconds(bench, shape, batch, context):
    """Seconds a step: the weights and the cache are read, or the products are computed, whichever takes longer."""
    if bench.rates is None:
        return None
    size = shape.decode_bytes(batch, context)
    reading = size / bench.rates["read_bytes_small" if size < SMALL_BYTES else "read_bytes"]
    return max(reading, shape.decode_flop(batch, context) / bench.rates["gemm_float32"])


def ppo_seconds(bench, shape, prompts, prompt_length, replies, reply_length, epochs):
    """Seconds of an iteration: prompts, steps of generation, three models that score, two that learn.

    A prompt is read once by each model, however many replies it has. Only tokens of replies need the head and the last
    layer. The sampler gives the log-probabilities of the policy.
    """
    if bench.rates is None:
        return None
    rate = bench.rates["gemm_float32"]
    head = 2 * shape.head * reply_length * replies
    prompt = shape.forward_flop([prompt_length] * prompts, with_head=False, outputs=0)
    reply = shape.forward_flop([reply_length] * replies, with_head=False, outputs=reply_length * replies, past=prompt_length)
    scored = shape.forward_flop([reply_length] * replies, with_head=False, outputs=replies, past=prompt_length)
    steps = round(reply_length)
    decode = sum(decode_seconds(bench, shape, replies, prompt_length + step) for step in range(steps))
    # Reference and critic; the reward model reads the last tokens alone.
    score = (3 * prompt + 2 * reply + scored + head) / rate
    update = epochs * 3 * (2 * (prompt + reply) + head) / rate
    return prompt / rate + decode + score + update
