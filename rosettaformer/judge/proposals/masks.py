"""What a mask argument of a module may be given: every form in which modules take masks, the likeliest first."""

from collections.abc import Sequence

from ..ports.adapters.call_mapping import stands_for
from .component_inputs import INPUTS, OF_MEMORY, is_model
from .vocabulary import TARGET, tokens

_CAST = {"torch": "({}).to({})", "tf": "tf.cast({}, {})", "jax": "({}).astype({})"}
_FLOATS = {"torch": "torch.float32", "tf": "tf.float32", "jax": "jnp.float32"}  # of masks of a model, whose inputs are ids
_INTEGERS = {"torch": "torch.long", "tf": "tf.int32", "jax": "jnp.int32"}


def candidates(
    component: str,
    name: str,
    masks: Sequence[str],
    names: Sequence[str],
    framework: str,
    own_causality: bool,
    by_row: bool,
    filled: bool = False,
) -> list[str]:
    """Returns what a mask may be given; empty if another argument serves the same purpose.

    by_row: without a batch axis. filled: with ones if a case has no mask.
    """
    mask = side(component, name, masks, names)
    plain = f'inputs["{mask}"]'
    beside = [other for other in names if other != name and side(component, other, masks, names) == mask]
    padding = [other for other in (name, *beside) if "padding" in other]
    if beside and not padding and names.index(beside[0]) < names.index(name):
        return []
    causal = _is_causal(component, mask, own_causality)
    full = f"attend_{mask.split('_')[0]}(inputs)" if causal or is_model(component) else f'inputs["{mask}"]'
    if padding and name not in padding:  # the padding has an argument of its own
        if not causal:
            return []
        return [f"lambda inputs: {sign}earlier(inputs)" for sign in ("~", "")]
    if filled:
        of = INPUTS[component][0][0 if mask == "self_mask_bhts" else -1]
        full, plain = (f'filled({text}, inputs["{of}"])' for text in (full, plain))
    of_keys, keys = plain, "rows(mask)"
    if is_model(component):
        of_keys, keys = f"keys_{mask.split('_')[0]}(inputs)", "mask"
    rows = [f"lambda inputs: given({of_keys}, lambda mask: {sign}{keys})" for sign in ("~", "")]
    if is_model(component):
        rows.append(f"lambda inputs: given({of_keys}, lambda mask: {_CAST[framework].format(keys, _INTEGERS[framework])})")
    dtype = _FLOATS[framework] if is_model(component) else f'inputs["{INPUTS[component][0][0]}"].dtype'
    first = "0" if by_row else ":, 0"
    whole = [
        f'"{mask}"' if full == f'inputs["{mask}"]' else f"lambda inputs: {full}",
        *(f"lambda inputs: given({full}, lambda mask: {change})" for change in (f"mask[{first}]", "~mask", f"~mask[{first}]")),
        *(f"lambda inputs: given({full}, lambda mask: {_CAST[framework].format(sign + 'mask', dtype)})" for sign in ("", "~")),
        f"lambda inputs: given({full}, lambda mask: -1e9 * {_CAST[framework].format('~mask', dtype)})",
    ]
    if causal and not is_model(component):  # the module is causal by itself
        whole += [text.replace(full, plain) for text in whole[1:]] + [f"lambda inputs: {plain}" if filled else f'"{mask}"']
    rows = [] if causal and component == "decoder_layer" and not padding else rows
    return [*rows, *whole] if padding else [*whole, *rows]


def lengths(
    component: str,
    name: str,
    masks: Sequence[str],
    names: Sequence[str],
    framework: str,
    own_causality: bool,
    by_row: bool,
    filled: bool = False,
) -> list[str]:
    """Returns what an argument for the number of real keys of a row may be given; arguments: see `candidates`."""
    mask = side(component, name, masks, names)
    length = next(length for length, of in stands_for(component).items() if of == mask)
    if not filled:
        whole = _CAST[framework].format("length", _INTEGERS[framework])
        return [f'"{length}"', f'lambda inputs: given(inputs["{length}"], lambda length: {whole})']
    keys = INPUTS[component][0][0 if mask == "self_mask_bhts" else -1]
    if by_row:
        return [f'lambda inputs: inputs["{keys}"].shape[0] if inputs["{length}"] is None else inputs["{length}"]']
    return [f'lambda inputs: lengths(inputs["{length}"], inputs["{keys}"])']


def _is_causal(component: str, mask: str, own_causality: bool) -> bool:
    if component in ("multi_head_attention", "self_attention", "self_attention_sublayer"):
        return not own_causality
    return mask in ("self_mask_bhts", "target_mask_bt")


def side(component: str, name: str, masks: Sequence[str], names: Sequence[str]) -> str:
    """Returns which of the component's masks an argument is."""
    if len(masks) == 1:
        return masks[0]
    words = set(tokens(name))
    if is_model(component):
        return masks[1] if words & TARGET and not words & {"memory", "src", "source"} else masks[0]
    if words & (TARGET | {"self", "look", "ahead", "causal", "slf"}) and not words & {"memory", "src", "source", "cross", "enc", "encoder"}:
        return masks[0]
    if words & (OF_MEMORY | {"padding"}):
        return masks[1]
    return masks[0] if names.index(name) == 0 else masks[1]
