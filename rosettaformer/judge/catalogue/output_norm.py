"""Known bugs of norms on a sub-layer's output, with (sandwich) or without a norm on its input."""

from collections.abc import Callable
from typing import Any

from reference_numpy import normalization

from .alteration import Altered, Array, Replaces, Variants, on_call
from .normalization import IN, OUT


def _placed(**placements: str) -> Callable:
    """Replaces the norm placement: the config's placement -> the one to use."""

    def change(config: Any, **others: Any) -> dict[str, Any]:
        other = placements.get(config.norm_placement)
        return {"config": config.replace(norm_placement=other)} if other else {}

    return on_call(change)


def _after_the_sum(original: Callable, parameters: Any, config: Any, name: str, x_btd: Array, y_btd: Array, keep: Any) -> Array:
    of_output = config.output_norm(name)
    if not of_output:
        return original(parameters, config, name, x_btd, y_btd, keep)
    sum_btd = original(parameters, config.replace(norm_placement="pre"), name, x_btd, y_btd, keep)
    return normalization.norm(parameters[of_output], config, sum_btd)


def _exchanged(*pairs: tuple[str, str]) -> Replaces:
    """Swaps the parameters of these norms of a layer, if it has them."""

    def read(parameters: Any, **others: Any) -> dict[str, Any]:
        own = dict(parameters)
        for one, other in pairs:
            if one in own and other in own:
                own[one], own[other] = own[other], own[one]
        return {"parameters": own}

    return dict.fromkeys((IN, OUT), on_call(read))


ALTERED: Altered = {
    "NRM29": {OUT: _placed(sandwich="pre")},
    "NRM30": {OUT: _after_the_sum},
    "NRM31": _exchanged(("self_attention_output_norm", "feed_forward_norm")),
}
VARIANTS: Variants = {
    "NRM29": {"the norm of the sub-layer's input is missing (sandwich norm)": {IN: _placed(sandwich="post")}},
    "NRM30": {
        "the sub-layer's input is normalized instead of its output": {IN: _placed(after="pre"), OUT: _placed(after="pre")},
    },
    "NRM31": {
        "input and output norms are swapped in every sub-layer": _exchanged(
            *((f"{name}_norm", f"{name}_output_norm") for name in ("self_attention", "cross_attention", "feed_forward"))
        )
    },
}
