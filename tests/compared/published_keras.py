"""KerasHub's backbones in small sizes."""

from functools import partial

from keras_hub import models
from published_sizes import NAMES, Sizes, sizes


def _entries(name: str, own: Sizes):
    common = {
        "vocabulary_size": own.vocabulary, "num_layers": own.layers, "hidden_dim": own.width, "intermediate_dim": own.hidden,
    }  # fmt: skip
    encoder = common | {"num_heads": own.heads, "max_sequence_length": own.positions}
    decoder = common | {
        "num_query_heads": own.heads, "num_key_value_heads": own.groups, "layer_norm_epsilon": own.epsilon,
    }  # fmt: skip
    rotary, head_dim = decoder | {"rope_max_wavelength": own.base}, {"head_dim": own.head_size}
    plain = common | {"num_heads": own.heads, "key_value_dim": own.head_size}
    routed, narrow = {"num_experts": own.experts, "top_k": own.chosen}, {"moe_intermediate_dim": own.hidden // 2}
    image = {"image_shape": (16, 16, 3), "patch_size": 4, "mlp_dim": own.hidden}
    return {
        "bert": encoder | {"num_segments": 2},
        "llama": rotary,
        "mistral": rotary,
        "qwen2": rotary,
        "qwen3": rotary | head_dim,
        "gemma": decoder | head_dim | {"intermediate_dim": 2 * own.hidden, "layer_norm_epsilon": 1e-6},
        "t5": plain | {"activation": "relu", "use_gated_activation": False},
        "mixtral": rotary | routed,
        "qwen2_moe": rotary | routed | narrow | {"shared_expert_intermediate_dim": own.hidden},
        "qwen3_moe": rotary | head_dim | routed | narrow | {"norm_top_k_prob": True, "layer_norm_epsilon": 1e-6},
        "gpt_oss": rotary | head_dim | routed | {"sliding_window": own.window},
        "vit": image | {"num_layers": own.layers, "num_heads": own.heads, "hidden_dim": own.width},
    }.get(name, encoder)


def _backbone(name: str, seed: int = 0):
    own = {"qwen2": "Qwen", "vit": "ViT", "qwen2_moe": "QwenMoe"}.get(name, NAMES[name])
    return getattr(models, f"{own}Backbone")(**_entries(name, sizes(seed)))


_of = partial(partial, _backbone)
bert, roberta, distilbert, gpt2, llama, mistral, qwen2, qwen3, gemma, t5, bart, vit, mixtral, qwen2_moe, qwen3_moe, gpt_oss = map(
    _of, NAMES
)
