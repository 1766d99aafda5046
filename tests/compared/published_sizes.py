"""The sizes of the published models, shared by the libraries that build them."""

import dataclasses
import random
from typing import Any

# model_type -> prefix of its class names in transformers
NAMES = {
    "bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "gpt2": "GPT2", "llama": "Llama",
    "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma": "Gemma", "t5": "T5", "bart": "Bart",
    "vit": "ViT", "mixtral": "Mixtral", "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe", "gpt_oss": "GptOss",
}  # fmt: skip
POOLERS = {"roberta": {"add_pooling_layer": False}, "vit": {"add_pooling_layer": False}}  # KerasHub has no pooler


@dataclasses.dataclass(frozen=True)
class Sizes:
    """width: heads times head_size. epsilon: of norms that have it as an option in both libraries.

    base: of rotary positions. window: of gpt-oss' local layers.
    """

    vocabulary: int = 60
    positions: int = 64
    layers: int = 2
    heads: int = 4
    groups: int = 2
    head_size: int = 6
    hidden: int = 40
    experts: int = 5
    chosen: int = 2
    epsilon: float = 1e-6
    base: float = 10000.0
    window: int = 3

    @property
    def width(self) -> int:
        return self.heads * self.head_size


def sizes(seed: int) -> Sizes:
    """Returns the usual sizes, or random ones for a seed other than 0."""
    if not seed:
        return Sizes()
    draw = random.Random(seed)
    heads = draw.choice((2, 3, 4, 6))
    groups = draw.choice([count for count in range(1, heads + 1) if heads % count == 0])
    return Sizes(
        vocabulary=draw.randint(60, 90),
        positions=draw.randint(20, 70),
        layers=draw.randint(1, 3),
        heads=heads,
        groups=groups,
        head_size=draw.choice((4, 6, 8)),
        hidden=draw.randint(8, 60),
        epsilon=10.0 ** -draw.randint(5, 7),
        base=draw.choice((1e3, 1e4, 5e5)),
    )


def entries(model_type: str, seed: int) -> dict[str, Any]:
    """Returns the entries of a transformers config, with KerasHub's values where it fixes them."""
    own = sizes(seed)
    encoder = {
        "vocab_size": own.vocabulary, "hidden_size": own.width, "num_hidden_layers": own.layers,
        "num_attention_heads": own.heads, "intermediate_size": own.hidden,
    }  # fmt: skip
    positions = {"max_position_embeddings": own.positions}
    rotary = {"num_key_value_heads": own.groups, "rms_norm_eps": own.epsilon, "rope_theta": own.base}
    decoder, head_dim = encoder | positions | rotary, {"head_dim": own.head_size}
    routed, narrow = {"num_experts_per_tok": own.chosen}, {"moe_intermediate_size": own.hidden // 2}
    plain = {"rope_type": "default", "rope_theta": own.base}
    image = {"image_size": 16, "patch_size": 4, "layer_norm_eps": 1e-6}
    stack = {"layers": own.layers, "attention_heads": own.heads, "ffn_dim": own.hidden}
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in stack.items()}
    found: dict[str, dict[str, Any]] = {
        "bert": encoder | positions | {"hidden_act": "gelu_pytorch_tanh"},
        "roberta": encoder | {"max_position_embeddings": own.positions + 2, "type_vocab_size": 1},
        "distilbert": positions | _named(own, "vocab_size dim n_layers n_heads hidden_dim"),
        "gpt2": {"n_positions": own.positions} | _named(own, "vocab_size n_embd n_layer n_head n_inner"),
        "mistral": decoder | {"sliding_window": 512},
        "qwen3": decoder | head_dim,
        "gemma": decoder | head_dim | {"rope_theta": 10000.0, "rms_norm_eps": 1e-6},
        "t5": {"d_kv": own.head_size} | _named(own, "vocab_size d_model num_layers num_heads d_ff"),
        "bart": {"vocab_size": own.vocabulary, "d_model": own.width} | positions | sides,
        "mixtral": decoder | routed | {"num_local_experts": own.experts, "sliding_window": 512},
        "qwen2_moe": decoder | routed | narrow | {"num_experts": own.experts, "shared_expert_intermediate_size": own.hidden},
        "qwen3_moe": decoder | head_dim | routed | narrow | {"num_experts": own.experts, "norm_topk_prob": True, "rms_norm_eps": 1e-6},
        "gpt_oss": decoder | head_dim | routed | {"num_local_experts": own.experts, "sliding_window": own.window, "rope_parameters": plain},
        "vit": {name: value for name, value in encoder.items() if name != "vocab_size"} | image,
    }
    return found.get(model_type, decoder)


def _named(own: Sizes, names: str) -> dict[str, int]:
    values = own.vocabulary, own.width, own.layers, own.heads, own.hidden
    return dict(zip(names.split(), values, strict=True))
