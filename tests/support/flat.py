"""The reference's functions with flat arguments, each input of a case under its own name: `flat.transformer(parameters, config, ids)`."""

from typing import Any

from reference_numpy import preset
from reference_numpy import transformer as whole
from rosettaformer.judge.expectation import calls, components

PLAIN = preset("tiny", attention_dropout_rate=0.0)  # neither rotates nor normalizes queries and keys


def multi_head_attention(parameters: Any, query_btd: Any, memory_bsd: Any, *rest: Any, config: Any = PLAIN, **options: Any) -> Any:
    return components.function_of("multi_head_attention")(parameters, query_btd, memory_bsd, *rest, config=config, **options)


def multi_head_attention_vjp(parameters: Any, query_btd: Any, memory_bsd: Any, *rest: Any, config: Any = PLAIN, **options: Any) -> Any:
    return components.function_of("multi_head_attention_vjp")(parameters, query_btd, memory_bsd, *rest, config=config, **options)


def encode(parameters: Any, config: Any, source: Any, source_mask_bs: Any = None, keep: Any = None, segment_bs: Any = None) -> Any:
    return whole.encode(parameters, config, calls.text(source, source_mask_bs, segment_bs), keep)


def decode(
    parameters: Any, config: Any, target: Any, memory_bsd: Any = None, source_mask_bs: Any = None, target_mask_bt: Any = None,
    keep: Any = None,
) -> Any:  # fmt: skip
    return whole.decode(parameters, config, calls.text(target, target_mask_bt), memory_bsd, source_mask_bs, keep)


def __getattr__(name: str) -> Any:
    if name not in components.ASKED:
        raise AttributeError(name)
    return components.function_of(name)
