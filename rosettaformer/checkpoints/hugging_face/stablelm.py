"""StableLM (Bellagente et al. 2024): StableLmModel, StableLmForCausalLM and classes with other heads.

Norms have offsets, and a part of each head rotates.
"""

from . import decoder, rotary
from .family import ONLY, Entry, head_sizes

FAMILY = decoder.family(
    "StableLM", "stablelm", "StableLm",
    fixed={**decoder.LAYER_NORM},
    entries=decoder.entries(
        Entry("use_qkv_bias", False, ("query_key_value_bias",)),
        epsilon="layer_norm_eps",
        vocab_size=50304, hidden_size=2560, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, intermediate_size=6912,
        layer_norm_eps=1e-5,
    ),
    joints=(head_sizes("hidden_size", "num_attention_heads"), rotary.flat(10000.0, 4096, partial=0.25)),
    # hidden_dropout drops the output of the feed-forward alone; the 12B model has a parallel block and norms of queries and keys
    only={**ONLY, "use_parallel_residual": False, "qk_layernorm": False, "hidden_dropout": 0.0},
    ignored={"norm_eps": "the class reads `layer_norm_eps`"},
    without=("ForQuestionAnswering",),
    table=decoder.table(
        *decoder.LAYER_NORMS, *decoder.attention(output=False), *decoder.feed_forward(),
        last=decoder.layer_norm("norm", "decoder.final_norm"),
    ),
)  # fmt: skip
