"""Random `config.json` files of every family, for `families_transformers.py`: keys present, absent, null and unusual.

Every key that a configuration or modelling file of transformers 5.23 reads for one of the families is here. A key is absent half of the
time, has one of its usual values otherwise, and one of its odd values (null, out of place, another family's) now and then.
"""

LAYERS = 3
ACTIVATIONS = ["silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "relu"]
ODD_ACTIVATIONS = ["quick_gelu", "relu6", "gelu_10", "tanh", "", None]
FLAG = [True, False]

# Key: (usual values, odd values).
ROPES = [
    {"rope_type": "default"},
    {"type": "default", "rope_theta": 50.0},
    {"rope_theta": 300.0},
    {"rope_type": "linear", "factor": 2.0},
    {"type": "linear", "factor": 4, "rope_theta": 500.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"type": "yarn", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 0.9,
     "original_max_position_embeddings": 8},
    {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.3, "truncate": False, "original_max_position_embeddings": 8},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 32},
    {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1, "high_freq_factor": 2},
]
ODD_ROPES = [
    None,
    {},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"rope_type": "linear"},
    {"rope_type": "linear", "factor": None},
    {"rope_type": "linear", "factor": 0.5},
    {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "factor": 2.0, "rope_theta": None},
    {"rope_type": "yarn", "factor": 4.0, "truncate": None, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": None, "beta_fast": None, "mscale": None,
     "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "original_max_position_embeddings": 16},
    {"rope_type": "longrope", "factor": 2.0},
    {"rope_type": "linear", "type": "dynamic", "factor": 2.0},
    {"rope_type": None, "type": "linear", "factor": 2.0},
    {"rope_type": "default", "factor": 2.0},
    {"full_attention": {"rope_type": "default", "rope_theta": 10.0}},
]
ROTARY = {
    "rope_theta": ([100.0, 1e6, 10000], [None, "10000", 1.5]),
    "rope_scaling": (ROPES, ODD_ROPES),
    "rope_parameters": (ROPES, ODD_ROPES),
    "partial_rotary_factor": ([1.0], [0.5, None]),
    "rotary_emb_base": ([], [77.0]),
    "rotary_pct": ([], [1.0, 0.5]),
    "original_max_position_embeddings": ([], [16, None]),
    "max_position_embeddings": ([64, 40, 16], [None]),
}
GATED = {
    **ROTARY,
    "num_key_value_heads": ([4, 2, 1], [None, 3]),
    "head_dim": ([16, 8, 12], [None, 7]),
    "rms_norm_eps": ([1e-5, 1e-2], [None, "1e-5"]),
    "hidden_act": (ACTIVATIONS, ODD_ACTIVATIONS),
    "tie_word_embeddings": (FLAG, [None]),
    "attention_bias": (FLAG, [None]),
    "mlp_bias": (FLAG, [None]),
    "qkv_bias": (FLAG, [None]),
    "attention_dropout": ([0.1, 0.0], [None]),
    "pretraining_tp": ([2], [None]),
}
WINDOWS = {
    "sliding_window": ([4, 9, 100], [None, 0]),
    "use_sliding_window": ([True, True, False], [None]),
    "max_window_layers": ([0, 1, 2, 5], [None]),
    "layer_types": (
        [["sliding_attention", "full_attention", "sliding_attention"], ["full_attention"] * LAYERS],
        [None, ["sliding_attention"] * LAYERS, ["full_attention"], ["linear_attention"] * LAYERS, ["attention"] * LAYERS],
    ),
}
EXPERTS = {
    "num_experts": ([4, 6], [None, 0]),
    "num_local_experts": ([4, 5], [None]),
    "num_experts_per_tok": ([1, 2, 3], [None, 9]),
    "norm_topk_prob": (FLAG, [None]),
    "decoder_sparse_step": ([1, 2], [None, 3]),
    "mlp_only_layers": ([[], [0], [1, 2]], [None, [-1], "0"]),
    "output_router_logits": (FLAG, [None]),
    "router_aux_loss_coef": ([0.01], [None]),
    "router_jitter_noise": ([0.0], [0.1]),
    "shared_expert_intermediate_size": ([40], [None]),
}
SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
DEFAULT_KV_HEADS = {"mistral": 8, "mixtral": 8, "qwen2": 32, "qwen3": 32, "qwen2_moe": 16, "qwen3_moe": 4}
# Sizes that are always there, and keys that may be.
FAMILIES = {
    "llama": (SIZES, {**GATED, "sliding_window": ([], [4]), "layer_types": ([], [["sliding_attention"] * LAYERS])}),
    "mistral": (SIZES, {**GATED, **WINDOWS}),
    "qwen2": (SIZES, {**GATED, **WINDOWS}),
    "qwen3": (SIZES, {**GATED, **WINDOWS}),
    "mixtral": (SIZES, {**GATED, **EXPERTS, "sliding_window": WINDOWS["sliding_window"]}),
    "qwen2_moe": ({**SIZES, "moe_intermediate_size": 24}, {**GATED, **WINDOWS, **EXPERTS}),
    "qwen3_moe": ({**SIZES, "moe_intermediate_size": 24}, {**GATED, **WINDOWS, **EXPERTS}),
    "gpt2": (
        {"n_embd": 48, "n_layer": LAYERS, "n_head": 4, "n_positions": 64},
        {
            "n_inner": ([80], [None]),
            "activation_function": (ACTIVATIONS, ODD_ACTIVATIONS),
            "layer_norm_epsilon": ([1e-2], [None]),
            "scale_attn_weights": (FLAG, [None]),
            "scale_attn_by_inverse_layer_idx": (FLAG, [None]),
            "reorder_and_upcast_attn": (FLAG, [None]),
            "add_cross_attention": ([False], [True]),
            "tie_word_embeddings": (FLAG, [None]),
            "hidden_size": ([], [48, 32, None]),
            "num_hidden_layers": ([], [3, 2]),
            "attn_pdrop": ([0.1, 0.0], []),
            "head_dim": ([], [8]),
        },
    ),
    "opt": (
        {"hidden_size": 48, "ffn_dim": 80, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "max_position_embeddings": 64},
        {
            "word_embed_proj_dim": ([48, 24], [None]),
            "do_layer_norm_before": (FLAG, [None]),
            "_remove_final_layer_norm": (FLAG, []),
            "enable_bias": (FLAG, [None]),
            "layer_norm_elementwise_affine": (FLAG, [None]),
            "activation_function": (ACTIVATIONS, ODD_ACTIVATIONS),
            "tie_word_embeddings": (FLAG, [None]),
            "dropout": ([0.0, 0.1], []),
            "layerdrop": ([0.0], [0.1]),
            "layer_norm_epsilon": ([], [1e-2]),
        },
    ),
    "bloom": (
        {"hidden_size": 48, "n_layer": LAYERS, "n_head": 4},
        {
            "n_embed": ([], [48, 32, None]),
            "num_attention_heads": ([], [4, 8]),
            "layer_norm_epsilon": ([1e-2], [None]),
            "apply_residual_connection_post_layernorm": (FLAG, [None]),
            "tie_word_embeddings": (FLAG, [None]),
            "pretraining_tp": ([2], []),
            "slow_but_exact": (FLAG, []),
            "hidden_act": ([], ["relu"]),
            "seq_length": ([64], []),
            "hidden_dropout": ([0.1], []),
        },
    ),
    "gpt_neox": (
        {"hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": LAYERS, "num_attention_heads": 4},
        {
            **ROTARY,
            "rotary_emb_base": ([77, 10000], [None]),
            "rotary_pct": ([0.25, 0.5, 1.0], [None, 0.2]),
            "rope_theta": ([], [100.0]),
            "partial_rotary_factor": ([], [0.5]),
            "hidden_act": (ACTIVATIONS, ODD_ACTIVATIONS),
            "layer_norm_eps": ([1e-2], [None]),
            "use_parallel_residual": (FLAG, [None]),
            "attention_bias": (FLAG, [None]),
            "tie_word_embeddings": (FLAG, [None]),
            "is_decoder": (FLAG, []),
            "head_dim": ([], [16, 8]),
        },
    ),
}
# Keys of any family.
EVERYWHERE = {
    "dtype": (["float32", "bfloat16"], []),
    "torch_dtype": (["float32", "float16"], []),
    "initializer_range": ([0.1], [None, -1.0]),
    "use_cache": (FLAG, []),
    "eos_token_id": ([2, [2, 3]], [None]),
    "per_layer_config": ([], [{"0": {"rms_norm_eps": 0.5}}]),
    "final_logit_softcapping": ([], [30.0]),
    "logit_scale": ([], [2.0]),
    "is_encoder_decoder": ([False], []),
    "chunk_size_feed_forward": ([0], [2]),
    "attn_implementation": ([], ["sdpa"]),
    "alibi": ([], [True]),
}


def draw(generator, family, vocabulary):
    """One configuration of `family`: its sizes, and some of its keys."""
    sizes, keys = FAMILIES[family]
    config = {"model_type": family, "vocab_size": vocabulary, **sizes}
    # Few odd values at once, so that most configurations are ones that both sides take.
    odd_share = generator.choice([0.0, 0.0, 0.02, 0.05, 0.1])
    for key, (usual, odd) in {**EVERYWHERE, **keys}.items():
        if odd and generator.random() < odd_share:
            config[key] = generator.choice(odd)
        elif usual and generator.random() < 0.4:
            config[key] = generator.choice(usual)
    if "num_key_value_heads" in keys and "num_key_value_heads" not in config:
        # As many query heads as this family's default of key and value heads.
        config.update(hidden_size=64, num_attention_heads=DEFAULT_KV_HEADS.get(family, 4))
    return config
