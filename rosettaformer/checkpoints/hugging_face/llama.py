"""Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024): LlamaModel, LlamaForCausalLM and classes with other heads."""

from . import decoder, rotary
from .family import ONLY, head_sizes

FAMILY = decoder.family(
    "Llama", "llama", "Llama",
    entries=decoder.entries(
        decoder.ATTENTION_BIAS, decoder.MLP_BIAS,
        vocab_size=32000, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008,
    ),
    joints=(head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}), rotary.flat(10000.0, 2048)),
    only={**ONLY, "rope_interleaved": False},
    ignored={"is_llama_config": "a mark of other programs"},
    prefixes=("transformer.",),  # of LlamaForQuestionAnswering
    table=decoder.table(*decoder.NORMS, *decoder.attention(), *decoder.feed_forward(biases=True)),
)  # fmt: skip
