"""The networks of the benchmark, and how much arithmetic and memory traffic they need at least."""

from dataclasses import dataclass

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Shape:
    """A LLaMA whose embedding is also its head."""

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int

    def config(self):
        """The content of `config.json`."""
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": True,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "rms_norm_eps": 1e-6,
        }

    @property
    def body(self):
        """Values of the matrices of all layers: four of attention, three of the feed-forward part."""
        return self.layers * (4 * self.hidden**2 + 3 * self.hidden * self.inner)

    @property
    def head(self):
        return self.vocabulary * self.hidden

    @property
    def parameters(self):
        """All values. Two norms a layer and one at the end."""
        return self.body + self.head + (2 * self.layers + 1) * self.hidden

    @property
    def after_attention(self):
        """Values of the matrices of a layer behind its attention: its output and the feed-forward part."""
        return self.hidden**2 + 3 * self.hidden * self.inner

    def forward_flop(self, lengths, with_head=True, outputs=None, past=0):
        """Operations of one pass over rows: two a weight and token, and causal attention.

        Attention multiplies queries with keys, and weights with values, over half of T x T places: 2 T^2 H a layer
        together. Each row continues a sequence of `past` tokens, which a row of its own computes. The last layer needs
        no more behind its attention than `outputs` tokens, and so does the head: all but the last token of each row,
        which has no target, unless they are given.
        """
        tokens = sum(lengths)
        outputs = tokens - len(lengths) if outputs is None else outputs
        attention = sum(2 * self.layers * self.hidden * ((past + length) ** 2 - past**2) for length in lengths)
        dropped = 2 * self.after_attention * (tokens - outputs)
        return 2 * self.body * tokens + attention - dropped + (2 * self.head * outputs if with_head else 0)

    def training_flop(self, lengths, with_head=True, outputs=None):
        """The backward pass has twice the products of the forward pass."""
        return 3 * self.forward_flop(lengths, with_head, outputs)

    def decode_flop(self, batch, context):
        """Operations of one step of generation, in which each row has `context` tokens in its cache."""
        return batch * (2 * (self.body + self.head) + 4 * self.layers * self.hidden * context)

    def decode_bytes(self, batch, context):
        """Bytes that one step reads: every weight once, and keys and values of every row."""
        return FLOAT_BYTES * (self.body + self.head + 2 * self.layers * self.hidden * context * batch)


def llama(vocabulary=32_000):
    """42 M parameters at a vocabulary of 32,000."""
    return Shape(vocabulary, hidden=512, inner=1408, layers=8, heads=8)


# 7,636,224 parameters: 11,000 x 256 of the embedding, 6 x (4 x 256^2 + 3 x 256 x 704) of the layers, 13 x 256 of norms.
SMALL = Shape(vocabulary=11_000, hidden=256, inner=704, layers=6, heads=4)

# 1.3 B parameters: 65,536,000 of the embedding, 24 x (4 x 2048^2 + 3 x 2048 x 5632) of the layers, 49 x 2048 of norms.
LARGE = Shape(vocabulary=32_000, hidden=2048, inner=5632, layers=24, heads=32)
