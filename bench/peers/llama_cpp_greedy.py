"""The peer of `colossal-chat generate` in llama.cpp: greedy tokens, by the library and not by its server."""

from itertools import islice

import settings as process
from llama_cpp import GGML_TYPE_F32, Llama


def main():
    settings = process.read()
    threads, cache = settings.threads, GGML_TYPE_F32
    model = Llama(
        settings.gguf, n_ctx=1024, n_threads=threads, n_threads_batch=threads, type_k=cache, type_v=cache, verbose=False)
    process.write({"ids": [greedy(model, row["ids"], settings.new) for row in process.read_lines(settings.prompts)]})


def greedy(model, prompt, new):
    model.reset()
    return list(islice(model.generate(prompt, temp=0.0, repeat_penalty=1.0), new))


if __name__ == "__main__":
    main()
