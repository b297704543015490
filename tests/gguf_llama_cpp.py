"""GGUF files beside llama.cpp: the same replies, the same ids, and there and back.

    python tests/gguf_llama_cpp.py [BINARY]

For each of the models below (the public stories260k, a model of this program's own tokenizer, Qwen2, Qwen3, LLaMA 3 with scaled positions,
an adapter, all but the first with random weights):

(replies) the model is exported as F32, BF16, F16 and Q8_0, and 20 conversations are rendered with the template of the file and answered by
    llama.cpp, greedily. Their ids are compared with those of `generate --temperature 0`. F32 must agree in all. llama.cpp rounds what goes
    into a product with a BF16, F16 or Q8_0 matrix to that type, so a reply may turn where two logits are close: the script prints how
    many agree, and for those that do not, how far apart our log-probabilities of the two tokens are. Of BF16 and F16 that must be below 0.1.
(ids) odd texts are tokenized by both, with special tokens in them.
(back) F32 and BF16 files are imported: the tensors must be those of the folder, bit by bit, and the ids of the odd texts too.
(foreign) a file that llama.cpp quantized to Q8_0, and one that the Python package gguf wrote with F16, BF16 and Q8_0 matrices, are imported;
    their tensors must be those that the package reads.

Used with llama_cpp_python 0.3.36, gguf 0.19.0, numpy 2.4.6 and jinja2 3.1.6.
"""

import ctypes
import json
import os
import struct
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

HERE = Path(__file__).resolve().parent
STORIES = HERE.parent.parent / "shared/models/stories260k"
NEW_TOKENS = 24
SMALL_VOCABULARY, PADDED_VOCABULARY = 600, 640
CLOSE = 0.1
PROMPTS = [
    "Once upon a time", "What is 3 + 4?", "Tell me a story about a cat and a dog.", "请问三加四等于几?", "a", "Hello!", "  two spaces",
    "Line one\nline two", "naïve café", "👩‍👩‍👧 family", "1234567890", "ALL CAPS", "don't we'll I'd", "(brackets) [and] {braces}",
    "How do I greet someone?", "Lily liked to play", "x = y ** 2; print(x)", "…", "Convert 5 km to m.", "The end.",
]
TEXTS = PROMPTS + [
    " ", "   three   spaces ", "\n\n\tTabs\r\nand lines\n", "ﬁ Ⅻ ½ ٣ ²", "e\u0301 and é", "\u200b\ufeff zero", "▁▁ mark ▁ x",
    "<|im_start|>user\nhi<|im_end|>\n", "hi</s> there<s>x", "<unk><0x41>[PAD3]", "<|eos|><|bos|>", "\u007f \U0010ffff", "It's 12345 o'clock\u00a0now", "a" * 200,
]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role + ': ' + message.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
SMALL = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0, initializer_range=0.15,
)
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
)
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def run(binary, *words):
    done = subprocess.run([str(binary), *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{words}: {done.stderr}")
    return done


def rewrite(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def split_like(folder, digits, **model):
    """Gives a byte-level tokenizer the pattern of Qwen2 or LLaMA 3."""

    def change(value):
        pattern = {"Regex": SPLIT.replace("DIGITS", digits)}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_]}
        value["model"].update(model)
        if digits == r"\p{N}":
            value["normalizer"] = {"type": "NFC"}

    rewrite(folder / "tokenizer.json", change)


def clear_padding(path, vocabulary):
    """Sets the embeddings of ids without a token to zero, so that no reply has them, as training would."""
    data = bytearray(path.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    for name, tensor in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__" and tensor["shape"][0] == PADDED_VOCABULARY:
            start, end = (8 + length + offset for offset in tensor["data_offsets"])
            start += (end - start) // PADDED_VOCABULARY * vocabulary
            data[start:end] = bytes(end - start)
    path.write_bytes(data)


def make(binary, scratch):
    """The folders of the models, by name."""
    folders = {}
    stories = scratch / "stories"
    stories.mkdir()
    for file in STORIES.iterdir():
        (stories / file.name).write_bytes(file.read_bytes())
    (stories / "chat_template.jinja").write_text(TEMPLATE)
    folders["stories260k"] = stories

    run(binary, "data", "synth", "--out", scratch / "world", "--train", 200, "--preferences", 10, "--prompts", 10,
        "--pretraining", 400, "--heldout", 10, "--heldout-preferences", 5)
    run(binary, "data", "tokenizer", scratch / "world/text.parquet", "--vocab-size", SMALL_VOCABULARY, "--out", scratch / "tokenizer")
    for name, settings, change in [
        ("own", dict(model_type="llama", tie_word_embeddings=True), None),
        ("qwen2", dict(model_type="qwen2", tie_word_embeddings=False), dict(digits=r"\p{N}")),
        ("qwen3", dict(model_type="qwen3", tie_word_embeddings=True, head_dim=32), dict(digits=r"\p{N}")),
        ("llama3", dict(model_type="llama", rope_scaling=LLAMA3, rope_theta=500000.0, head_dim=32, attention_bias=True),
         dict(digits=r"\p{N}{1,3}", ignore_merges=True)),
    ]:
        config = scratch / f"{name}.json"
        # More embeddings than tokens, as many models have.
        config.write_text(json.dumps({**SMALL, "vocab_size": PADDED_VOCABULARY, **settings}))
        folder = folders[name] = scratch / name
        run(binary, "model", "init", config, "--tokenizer", scratch / "tokenizer", "--seed", 5, "--out", folder)
        clear_padding(folder / "model.safetensors", SMALL_VOCABULARY)
        if change:
            split_like(folder, **change)

    adapter = scratch / "adapter.toml"
    adapter.write_text(
        f'out = "{scratch / "adapter"}"\n[model]\npath = "{folders["own"]}"\n[model.lora]\nr = 4\n[data]\n'
        f'train = "{scratch / "world/sft.parquet"}"\n[train]\nsteps = 20\nlr = 1e-2\n'
    )
    run(binary, "sft", "--config", adapter)
    folders["adapter"] = scratch / "adapter/final"
    return folders


def ours(binary, folder, scratch, dtype="float32"):
    prompts = scratch / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    done = run(binary, "generate", "--model", folder, "--input", prompts, "--temperature", 0, "--max-new-tokens", NEW_TOKENS,
               "--dtype", dtype)
    return [json.loads(line)["ids"] for line in done.stdout.splitlines()]


def our_ids(binary, folder, scratch):
    texts = scratch / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    done = run(binary, "logprobs", "--model", folder, "--input", texts)
    return [json.loads(line)["ids"] for line in done.stdout.splitlines()]


def gap(binary, folder, scratch, prefix, tokens):
    """How far apart our log-probabilities of two next tokens are."""
    rows = scratch / "gap.jsonl"
    rows.write_text("".join(json.dumps({"ids": prefix + [token]}) + "\n" for token in tokens))
    done = run(binary, "logprobs", "--model", folder, "--input", rows)
    first, second = [json.loads(line)["logprobs"][-1] for line in done.stdout.splitlines()]
    return abs(first - second)


class Theirs:
    def __init__(self, path):
        # llama.cpp keeps keys and values in F16 otherwise.
        exact = dict(type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
        self.llama = llama_cpp.Llama(str(path), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, **exact)
        vocab = llama_cpp.llama_model_get_vocab(self.llama._model.model)
        text = lambda id: llama_cpp.llama_vocab_get_text(vocab, id).decode()
        self.ends = lambda token: llama_cpp.llama_vocab_is_eog(vocab, token)
        bos, eos = self.llama.token_bos(), self.llama.token_eos()
        self.format = Jinja2ChatFormatter(
            self.llama.metadata["tokenizer.chat_template"], eos_token=text(eos), bos_token=text(bos), stop_token_ids=[eos]
        )

    def prompt(self, text):
        rendered = self.format(messages=[{"role": "user", "content": text}]).prompt
        return self.llama.tokenize(rendered.encode(), add_bos=False, special=True)

    def reply(self, prompt):
        tokens = []
        for token in self.llama.generate(prompt, temp=0.0, repeat_penalty=1.0):
            tokens.append(token)
            if self.ends(token) or len(tokens) == NEW_TOKENS:
                return tokens

    def ids(self, text):
        return self.llama.tokenize(text.encode(), add_bos=False, special=True)


def compare_replies(binary, folder, file, scratch, dtype):
    theirs, gaps = Theirs(file), []
    for prompt, own in zip(PROMPTS, ours(binary, folder, scratch)):
        prefix = theirs.prompt(prompt)
        other = theirs.reply(prefix)
        if own == other:
            continue
        at = next((at for at, pair in enumerate(zip(own, other)) if pair[0] != pair[1]), None)
        if at is None:
            sys.exit(f"{file.name}: one reply ends before the other: {own} {other}")
        gaps.append(gap(binary, folder, scratch, prefix + own[:at], [own[at], other[at]]))
    return gaps


def compare_ids(binary, folder, file, scratch):
    theirs, metadata = Theirs(file), None
    bos = theirs.llama.token_bos()
    is_normalized = json.loads((folder / "tokenizer.json").read_text()).get("normalizer") == {"type": "NFC"}
    for text, own in zip(TEXTS, our_ids(binary, folder, scratch)):
        # llama.cpp normalizes no text, which the export has said.
        if is_normalized and unicodedata.normalize("NFC", text) != text:
            continue
        # Ours begin with BOS where texts do; whether theirs do is the caller's choice.
        own = own[1:] if own[:1] == [bos] else own
        other = theirs.ids(text)
        other = other[1:] if other[:1] == [bos] else other
        if own != other:
            sys.exit(f"{file.name}: the ids of {text!r} differ: {own} {other}")


def tensors(folder):
    """The bytes of all tensors of a folder, with dtype and shape."""
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    data = raw[8 + length :]
    return {
        name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]) for name, entry in header.items()
    }


def compare_back(binary, folder, file, scratch, exact):
    out = scratch / f"{file.stem}-back"
    run(binary, "model", "import", file, "--out", out)
    if exact is not None and tensors(out) != tensors(exact):
        sys.exit(f"{file.name}: the tensors of the import differ from those of {exact}")
    if our_ids(binary, out, scratch) != our_ids(binary, folder, scratch):
        sys.exit(f"{file.name}: the ids of the import differ")
    return out


def rounded(folder, scratch):
    """A copy of a folder with weights in bf16."""
    out = scratch / f"{folder.name}-bf16"
    out.mkdir()
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    header, data = {}, b""
    for name, (dtype, shape, bytes_) in tensors(folder).items():
        assert dtype == "F32"
        bits = np.frombuffer(bytes_, "<u4")
        narrow = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(narrow)]}
        data += narrow
    text = json.dumps(header).encode()
    (out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    rewrite(out / "config.json", lambda config: config.update(dtype="bfloat16"))
    return out


def quantized_by_llama_cpp(file, scratch):
    out = scratch / f"{file.stem}-by-llama-cpp.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
    if llama_cpp.llama_model_quantize(str(file).encode(), str(out).encode(), ctypes.byref(params)):
        sys.exit("llama.cpp does not quantize")
    return out


def written_by_the_package(file, scratch):
    """The same model with matrices of three types in turn."""
    out, reader = scratch / f"{file.stem}-by-python.gguf", gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(out, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        inner = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    kinds = [gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.Q8_0]
    for index, tensor in enumerate(reader.tensors):
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if data.ndim == 1:
            writer.add_tensor(tensor.name, data)
            continue
        kind = kinds[index % 3]
        if kind == gguf.GGMLQuantizationType.Q8_0 and data.shape[1] % 32:
            kind = gguf.GGMLQuantizationType.F16
        writer.add_tensor(tensor.name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def compare_foreign(binary, folder, file, scratch, heads):
    """Imports a file, and compares its tensors with those that the package reads."""
    out = compare_back(binary, folder, file, scratch, None)
    own, reader = tensors(out), gguf.GGUFReader(file)
    family = json.loads((folder / "config.json").read_text())["model_type"]
    modules = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], 99)
    names = {}
    for name in own:
        module, kind = name.rsplit(".", 1)
        names[f"{modules.get_name(module)}.{kind}"] = name
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            continue
        dtype, shape, bytes_ = own[names[tensor.name]]
        bits = np.frombuffer(bytes_, {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[dtype])
        values = (bits.astype("<u4") << 16).view("<f4") if dtype == "BF16" else bits.astype("<f4")
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("<f4")
        module = tensor.name.split(".")[-2]
        if heads and module in ("attn_q", "attn_k"):
            count = heads[module == "attn_k"]
            half = expected.shape[0] // count // 2
            expected = expected.reshape(count, half, 2, -1).swapaxes(1, 2).reshape(expected.shape)
        if not np.array_equal(values.reshape(shape), expected.reshape(shape)):
            sys.exit(f"{file.name}: {tensor.name} differs")
    return sorted({tensor.tensor_type.name for tensor in reader.tensors})


def check(binary, name, folder, scratch):
    counts = []
    for dtype in ["f32", "bf16", "f16", "q8_0"]:
        file = scratch / f"{name}-{dtype}.gguf"
        # A folder in bf16 has norms in bf16 too, which a file holds as F32.
        reference = rounded(folder, scratch) if dtype == "bf16" and name != "adapter" else folder
        noted = run(binary, "model", "export", reference, "--gguf", file, "--dtype", dtype).stderr
        if dtype == "f32":
            print(f"{name}: " + " / ".join(noted.strip().splitlines()))
        gaps = compare_replies(binary, reference, file, scratch, dtype)
        counts.append(f"{dtype} {len(PROMPTS) - len(gaps)}/{len(PROMPTS)}" + (f" (gaps up to {max(gaps):.3f})" if gaps else ""))
        if gaps and (dtype == "f32" or dtype != "q8_0" and max(gaps) > CLOSE):
            sys.exit(f"{name} {dtype}: replies differ, {gaps}")
    f32 = scratch / f"{name}-f32.gguf"
    compare_ids(binary, folder, f32, scratch)
    is_adapter = name == "adapter"
    compare_back(binary, folder, f32, scratch, None if is_adapter else folder)
    if not is_adapter:
        compare_back(binary, folder, scratch / f"{name}-bf16.gguf", scratch, scratch / f"{folder.name}-bf16")
    config = json.loads((folder / "config.json").read_text())
    heads = [config["num_attention_heads"], config["num_key_value_heads"]] if config["model_type"] == "llama" else None
    foreign = [quantized_by_llama_cpp(f32, scratch), written_by_the_package(f32, scratch)]
    kinds = [",".join(compare_foreign(binary, folder, file, scratch, heads)) for file in foreign]
    print(f"  replies {'; '.join(counts)}; ids of {len(TEXTS)} texts; back; foreign {' and '.join(kinds)}")


def main():
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    binary = Path(sys.argv[1] if len(sys.argv) > 1 else HERE.parent / "target/release/colossal-chat").resolve()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        for name, folder in make(binary, scratch).items():
            check(binary, name, folder, scratch)


if __name__ == "__main__":
    main()
