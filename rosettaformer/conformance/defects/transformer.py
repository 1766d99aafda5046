"""Defects of the stacks."""

from typing import Any

import numpy as np

from reference_numpy import normalization, transformer

from .defect import Defect

__all__ = ["DEFECTS"]

_encoder, _decoder = transformer.encoder, transformer.decoder


def _other_final_norm(stack: Any) -> Any:
    """The stack without its final norm, or with a fresh one where it has none."""

    def altered(parameters: Any, config: Any, *rest: Any, **options: Any) -> np.ndarray:
        y = stack(parameters, config.replace(final_norm=False), *rest, **options)
        if config.final_norm:
            return y
        width = config.model_width
        return normalization.layer_norm({"scale": np.ones(width, y.dtype), "offset": np.zeros(width, y.dtype)}, y, config.epsilon)

    return altered


DEFECTS = (
    Defect("NRM10", "the final norm is missing, or one is added", "encoder", "pytorch#24930",
           {"transformer.encoder": _other_final_norm(_encoder), "transformer.decoder": _other_final_norm(_decoder)}),
)  # fmt: skip
