"""Cases of a decoder's block as it is usually written: causal, positions 0, 1, 2, ..., one size of head, no mask and no positions given.

Every choice but the decoder-only stack gives way to what a port fixes, so that a port of one block is asked them whatever it is.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..case import Case
from .build import B, Builder
from .transformer import ids

LENGTHS = {"plain_causal": 5, "plain_causal_long": 40, "plain_causal_one_position": 1}
# the choices of Llama at sizes that keep axes apart; all of them are a port's to fix
USUAL: dict[str, Any] = {
    "heads": 6, "key_value_heads": 2, "key_size": 4, "value_size": 4, "model_width": 24, "epsilon": 1e-3, "rotary_base": 500.0,
    "padding_id": None, "decoder_layers": 2,
}  # fmt: skip


def cases(build: Builder) -> Iterator[Case]:
    heads = build.fixed.get("heads", USUAL["heads"])
    config = build.config("llama2_7b", USUAL | {"key_value_heads": 1 if heads % 2 else 2}, encoder_layers=0)
    for name, length in LENGTHS.items():
        yield from _cases(build, config, name, length)


def _cases(build: Builder, config: TransformerConfig, name: str, length: int) -> Iterator[Case]:
    rows = f"b {length} d"
    token = ids(name, config.target_vocabulary, config.padding_id, np.ones((B, length), bool))
    given: dict[str, dict[str, Any]] = {
        "multi_head_attention": {"query_btd": rows, "memory_bsd": rows, "causal": True},
        "self_attention": {"x_btd": rows, "causal": True},
        "self_attention_sublayer": {"x_btd": rows, "causal": True},
        "decoder_layer": {"x_btd": rows},
        "decoder": {"x_btd": rows},
        "token_decoder": {"target": token},
        "transformer": {"source": None, "target": token},
    }
    for component, inputs in given.items():
        made = config.replace(decoder_layers=1) if component == "decoder_layer" and "decoder_layers" not in build.fixed else config
        yield build.make(component, name, made, **inputs)
