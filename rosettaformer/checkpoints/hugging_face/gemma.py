"""Gemma (Gemma Team 2024): GemmaModel, GemmaForCausalLM and classes with other heads. Norms multiply by 1 + scale."""

from . import decoder, rotary
from .family import ONLY, head_sizes

# as the first files have it, "gelu" is its approximation
_ACTIVATIONS = decoder.TANH | {"gelu": "gelu_tanh"}

FAMILY = decoder.family(
    "Gemma", "gemma", "Gemma",
    fixed=decoder.GEMMA,
    entries=decoder.entries(
        decoder.ATTENTION_BIAS,
        words=_ACTIVATIONS,
        vocab_size=256000, hidden_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=16, intermediate_size=24576,
        tie_word_embeddings=True,
    ),
    joints=(head_sizes("hidden_size", "num_attention_heads", {"head_dim": 256}, divides=False), rotary.flat(10000.0, 8192)),
    only={**ONLY, "use_bidirectional_attention": (None, False)},
    ignored={"hidden_activation": "the class reads `hidden_act`"},
    without=("ForQuestionAnswering",),
    table=decoder.table(*decoder.NORMS, *decoder.attention(), *decoder.feed_forward()),
)  # fmt: skip
