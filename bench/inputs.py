"""Models, tokenizers and rows of the benchmark, all made from seeds. Standard library only."""

import json
import math
import random
import shutil
from array import array
from pathlib import Path

PADDING, BEGIN, END = 0, 1, 2
FIRST_WORD = 3  # rows hold no special token


def counting_rows(count, lengths, vocabulary, seed):
    """Rows with something to learn: each counts upwards from a start, with a stride of its own."""
    source = random.Random(seed)
    words = vocabulary - FIRST_WORD
    for _ in range(count):
        start, stride, length = source.randrange(words), source.randrange(1, 8), source.choice(lengths)
        yield [FIRST_WORD + (start + stride * place) % words for place in range(length)]


def pairs(count, lengths, prompt_length, vocabulary, seed):
    """Pairs of rows that begin with the same prompt. The lengths are those of prompt and reply together."""
    replies = counting_rows(2 * count, [length - prompt_length for length in lengths], vocabulary, seed)
    for prompt in counting_rows(count, [prompt_length], vocabulary, seed + 1):
        yield {
            "chosen_input_ids": prompt + next(replies),
            "rejected_input_ids": prompt + next(replies),
            "prompt_length": prompt_length,
        }


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def language_model(bench, shape):
    """A folder with random weights and a tokenizer whose word `w17` is token 17."""
    folder = bench.folder / f"model-{shape.vocabulary}-{shape.hidden}"
    if not folder.exists():
        config = bench.folder / "config.json"
        config.write_text(json.dumps(shape.config()))
        tokenizer = bench.folder / f"tokenizer-{shape.vocabulary}"
        write_tokenizer(tokenizer, shape.vocabulary)
        bench.ours("model", "init", config, "--tokenizer", tokenizer, "--out", folder)
    return folder


def large_model(bench, shape):
    """A folder with weights in bf16: random signs, and values between 2^-7 and 2^-5. Norms are 1.

    A number of bf16 is one byte with the sign and seven bits of the exponent, and one with the rest. The first byte is
    chosen, the second is random, so that a billion numbers are made in seconds.
    """
    folder = bench.folder / f"model-{shape.vocabulary}-{shape.hidden}-bf16"
    if folder.exists():
        return folder
    write_tokenizer(folder, shape.vocabulary)
    (folder / "config.json").write_text(json.dumps({**shape.config(), "dtype": "bfloat16"}))
    source, signs = random.Random(5), bytes(0xBC if byte & 0x80 else 0x3C for byte in range(256))
    shapes = {"model.embed_tokens.weight": [shape.vocabulary, shape.hidden], "model.norm.weight": [shape.hidden]}
    for layer in range(shape.layers):
        norms = {f"model.layers.{layer}.{name}_layernorm.weight": [shape.hidden] for name in ("input", "post_attention")}
        shapes |= norms | {f"{module}.weight": sizes for module, sizes in linear_layers(shape, layer).items()}

    header, end = {}, 0
    for name, sizes in shapes.items():
        begin, end = end, end + 2 * math.prod(sizes)
        header[name] = {"dtype": "BF16", "shape": sizes, "data_offsets": [begin, end]}
    with open(folder / "model.safetensors", "wb") as file:
        file.write(encoded(header))
        for sizes in shapes.values():
            count = math.prod(sizes)
            values = bytearray(b"\x80\x3f" * count if len(sizes) == 1 else source.randbytes(2 * count))
            if len(sizes) > 1:
                values[1::2] = values[1::2].translate(signs)
            file.write(values)
    return folder


def linear_layers(shape, layer):
    """The linear layers of one layer, with `[out, in]`."""
    hidden, inner, block = shape.hidden, shape.inner, f"model.layers.{layer}"
    attention = {f"{block}.self_attn.{name}_proj": [hidden, hidden] for name in "qkvo"}
    return attention | {
        f"{block}.mlp.gate_proj": [inner, hidden], f"{block}.mlp.up_proj": [inner, hidden],
        f"{block}.mlp.down_proj": [hidden, inner],
    }


def adapter(bench, shape, model, rank):
    """A folder with a LoRA adapter on every linear layer, whose `A` is random and whose `B` is zero."""
    folder = bench.folder / f"adapter-{shape.hidden}"
    if folder.exists():
        return folder
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    source, header, data = random.Random(6), {}, bytearray()
    for layer in range(shape.layers):
        for module, (outputs, inputs) in linear_layers(shape, layer).items():
            bound = 1 / math.sqrt(inputs)
            a = array("f", (source.uniform(-bound, bound) for _ in range(rank * inputs)))
            for name, sizes, values in (("A", [rank, inputs], a.tobytes()), ("B", [outputs, rank], bytes(4 * outputs * rank))):
                begin = len(data)
                data += values
                name = f"base_model.model.{module}.lora_{name}.weight"
                header[name] = {"dtype": "F32", "shape": sizes, "data_offsets": [begin, len(data)]}
    write_tensors(folder, header, data, "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(model), "r": rank, "lora_alpha": 2 * rank,
        "target_modules": [name.rsplit(".", 1)[1] for name in linear_layers(shape, 0)],
    }))
    return folder


def write_tokenizer(folder, vocabulary):
    folder.mkdir(exist_ok=True)
    words = {f"w{token}": token for token in range(vocabulary)}
    parts = ["truncation", "padding", "normalizer", "post_processor", "decoder"]
    tokenizer = {
        "version": "1.0",
        **{part: None for part in parts},
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": f"w{PADDING}"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": f"w{PADDING}",
        "bos_token": f"w{BEGIN}",
        "eos_token": f"w{END}",
        # A conversation is its words and nothing else.
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def reward_model(bench, source, name):
    """A copy of a model folder with a score head of random values."""
    folder = bench.folder / name
    if folder.exists():
        return folder
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["LlamaForSequenceClassification"]
    config["id2label"], config["label2id"] = {"0": "LABEL_0"}, {"LABEL_0": 0}
    (folder / "config.json").write_text(json.dumps(config))
    draw = random.Random(1)
    head = array("f", (draw.gauss(0.0, 0.02) for _ in range(config["hidden_size"])))
    header, data = read_tensors(folder)
    begin = len(data)
    data += head.tobytes()
    header["score.weight"] = {"dtype": "F32", "shape": [1, len(head)], "data_offsets": [begin, len(data)]}
    write_tensors(folder, header, data)
    return folder


class Endings:
    """A model whose replies end with a chosen probability at each token.

    A network without biases has no direct way to favour a token. So every row of the embedding gets the same
    vector added, which the final norm then carries into every hidden state; the row of one token gets a multiple of
    it. Because this token is not part of any context, its logit, and so its log-odds, is linear in the multiple: two
    measurements of log-odds give the multiple for any wanted value.
    """

    COMMON = 0.1  # what is added to each value of the embedding
    SCALE = 3.0  # makes the random part of the embedding larger, so that logits are clearly apart

    def __init__(self, bench, source, shape):
        self.bench, self.source, self.shape = bench, source, shape
        self.at_zero = self.measure(0.0)
        self.slope = self.measure(1.0) - self.at_zero

    def model(self, name, end_log_odds):
        """A folder whose replies have these log-odds of the end token; its padding token is never drawn."""
        multiple = (end_log_odds - self.at_zero) / self.slope
        never = (-30.0 - self.at_zero) / self.slope
        return self.write(name, {END: multiple, PADDING: never})

    def write(self, name, multiples):
        folder = self.bench.folder / name
        if folder.exists():
            return folder
        shutil.copytree(self.source, folder)
        header, data = read_tensors(folder)
        begin, end = header["model.embed_tokens.weight"]["data_offsets"]
        values = array("f")
        values.frombytes(bytes(data[begin:end]))
        hidden = self.shape.hidden
        values = array("f", (self.SCALE * value + self.COMMON for value in values))
        for token, multiple in multiples.items():
            for place in range(token * hidden, (token + 1) * hidden):
                values[place] += (multiple - 1.0) * self.COMMON
        data[begin:end] = values.tobytes()
        write_tensors(folder, header, data)
        return folder

    def measure(self, multiple):
        """The mean log-odds of the end token after random contexts, by the program's own `logprobs`."""
        folder = self.write(f"endings-{multiple}", {END: multiple})
        contexts = random_rows(16, 48, self.shape.vocabulary, seed=7)
        rows = write_lines(folder / "rows.jsonl", ({"ids": row + [END]} for row in contexts))
        out = folder / "logprobs.jsonl"
        self.bench.ours("logprobs", "--model", folder, "--input", rows, "--output", out)
        last = [json.loads(line)["logprobs"][-1] for line in out.read_text().splitlines()]
        shutil.rmtree(folder)
        return sum(value - math.log1p(-math.exp(value)) for value in last) / len(last)


def random_rows(count, length, vocabulary, seed):
    source = random.Random(seed)
    return [[source.randrange(FIRST_WORD, vocabulary) for _ in range(length)] for _ in range(count)]


def read_tensors(folder):
    """The header and the bytes of a safetensors file: the length of the header, the header as JSON, the values."""
    content = (Path(folder) / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])


def write_tensors(folder, header, data, name="model.safetensors"):
    (Path(folder) / name).write_bytes(encoded(header) + bytes(data))


def encoded(header):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # values begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text
