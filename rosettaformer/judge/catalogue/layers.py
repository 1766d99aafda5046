"""Known bugs of the residual connections and the sub-layers' inputs."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import dropout, mask

from ..expectation.patching import patched
from .alteration import Altered, Variants, on_arguments, on_call
from .normalization import normed
from .residual import from_input


def _other_placement(config: Any) -> Any:
    if config.parallel:
        return config
    return config.replace(norm_placement="post" if config.norm_placement == "pre" else "pre")


def _norm_before_residual(
    original: Callable, parameters: Any, config: Any, name: str, x_btd: np.ndarray, y_btd: np.ndarray, keep: Any
) -> np.ndarray:
    if config.norm_placement == "pre" or config.parallel:
        return original(parameters, config, name, x_btd, y_btd, keep)
    y_btd = dropout.dropout(y_btd, dropout.part(keep, f"{name}_dropout"), config.dropout_rate)
    return x_btd + normed(parameters, config, f"{name}_norm", y_btd)


def _target_mask_for_cross(memory_bsd: Any, self_mask_bhts: Any, **others: Any) -> dict[str, Any]:
    given = memory_bsd is not None and self_mask_bhts is not None
    fits = given and self_mask_bhts.shape[-1] == memory_bsd.shape[1]
    return {"cross_mask_bhts": self_mask_bhts} if fits else {}


def _source_mask_for_target(cross_mask_bhts: Any, x_btd: np.ndarray, **others: Any) -> dict[str, Any]:
    fits = cross_mask_bhts is not None and cross_mask_bhts.shape[-1] == x_btd.shape[1]
    return {"self_mask_bhts": cross_mask_bhts} if fits else {}


def _causal(x_btd: np.ndarray, mask_bhts: Any, **others: Any) -> dict[str, Any]:
    return {"mask_bhts": mask.combine_masks(mask_bhts, mask.causal_mask(x_btd.shape[1], x_btd.shape[1]))}


def _cross_query_from_attention(original: Callable, *args: Any, **options: Any) -> np.ndarray:
    """Uses the self-attention's raw output as the cross-attention's query."""
    outputs: list[np.ndarray] = []

    def kept(attend: Callable, *given: Any) -> np.ndarray:
        outputs.append(attend(*given))
        return outputs[-1]

    def of_output(attend: Callable, parameters: Any, config: Any, x_btd: np.ndarray, *others: Any) -> np.ndarray:
        return attend(parameters, config, outputs[-1], *others)

    with patched({"layers.self_attention": kept, "layers.cross_attention": of_output}):
        return original(*args, **options)


_RESIDUAL = ("layers.residual_in", "layers.residual_out", "layers.residual_in_vjp", "layers.residual_out_vjp")
ALTERED: Altered = {
    "NRM8": dict.fromkeys(_RESIDUAL, on_arguments(config=_other_placement)),
    "NRM9": {"layers.residual_out": _norm_before_residual},
    "ATT16": {"layers.cross_attention": on_arguments(cross_mask_bhts=None)},
    "ATT17": {"layers.decoder_layer": on_call(_target_mask_for_cross)},
    "ATT30": {"layers.decoder_layer": on_call(_source_mask_for_target)},
    "CAU10": {"layers.encoder_layer": on_call(_causal)},
    "ATT18": {"layers.encoder_layer": on_arguments(mask_bhts=None)},
    "MHA11": {"layers.decoder_layer": from_input("layers.cross_attention", "x_btd")},
}
VARIANTS: Variants = {
    "MHA11": {
        "the cross-attention's query is the self-attention's output, before residual and norm": {
            "layers.decoder_layer": _cross_query_from_attention
        }
    },
}
