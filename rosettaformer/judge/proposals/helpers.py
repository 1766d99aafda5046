"""The functions that a port's `call` uses: masks of the inputs, and which cases cannot be asked."""

from collections.abc import Mapping
from typing import Any

from . import rotations
from .component_inputs import INPUTS

_EARLIER = {
    "torch": "torch.ones(targets, sources, dtype=torch.bool).tril(sources - targets)",
    "tf": "tf.range(sources)[None] <= tf.range(targets)[:, None] + sources - targets",
    "jax": "jnp.tril(jnp.ones((targets, sources), bool), sources - targets)",
}
_ONES = {
    "torch": "torch.ones(keys.shape[0], 1, 1, keys.shape[1], dtype=torch.bool)",
    "tf": "tf.ones((keys.shape[0], 1, 1, keys.shape[1]), tf.bool)",
    "jax": "jnp.ones((keys.shape[0], 1, 1, keys.shape[1]), bool)",
}
_FULL = {
    "torch": "torch.full((keys.shape[0],), keys.shape[1])",
    "tf": "tf.fill([keys.shape[0]], keys.shape[1])",
    "jax": "jnp.full(keys.shape[0], keys.shape[1])",
}
# what the functions say about a batch, and about one row
_OF_ROW = (
    ("[None, None]", "[None]"), ("mask.shape[2]", "mask.shape[0]"), ("mask[:, 0, 0]", "mask[0, 0]"), ('"].shape[1]', '"].shape[0]'),
    ("(keys.shape[0], 1, 1, keys.shape[1]", "(1, 1, keys.shape[0]"), ("b 1 1 s", "1 1 s"), ("b s", "s"), ("of each row", "of the row"),
)  # fmt: skip


def helpers(text: str, component: str, framework: str, config: Mapping[str, Any], by_row: bool) -> str:
    """Returns the functions that the texts of a call use, as a part of the port's file. by_row: of one row without a batch axis."""
    needed = []
    functions = _functions(component, framework, config.get("padding_id"))
    size, base = config.get("key_size", 2), config.get("rotary_base", 10000.0)
    for name, source in (functions | rotations.helpers(framework, INPUTS[component][0][0], size, base)).items():
        if by_row:
            for of_batch, of_row in _OF_ROW:
                source = source.replace(of_batch, of_row)
        if f"{name}(" in text:
            needed.append((name, source))
            text += source
    return "\n\n\n".join(source for _, source in reversed(needed))


def _functions(component: str, framework: str, padding: object) -> dict[str, str]:
    data = INPUTS[component][0]
    first, second = data[:2] if component == "multi_head_attention" else ("target",) * 2 if "target" in data else ("x_btd",) * 2
    lengths = f'inputs["{first}"].shape[1], inputs["{second}"].shape[1]'
    found = {
        "attend_mask": '''def attend_mask(inputs):
    """The mask together with the causal one; None where everything may be attended to."""
    mask = inputs["mask_bhts"]
    if not inputs["causal"]:
        return mask
    return earlier(inputs)[None, None] if mask is None else mask & earlier(inputs)''',
        "attend_self": '''def attend_self(inputs):
    """The mask together with the causal one."""
    mask = inputs["self_mask_bhts"]
    return earlier(inputs)[None, None] if mask is None else mask & earlier(inputs)''',
        "attend_source": '''def attend_source(inputs):
    """Where the source has real tokens: b 1 1 s."""
    return given(keys_source(inputs), lambda mask: mask[:, None, None])''',
        "attend_target": '''def attend_target(inputs):
    """Where the target has real tokens that are not later: b 1 t s."""
    mask = keys_target(inputs)
    return earlier(inputs)[None, None] if mask is None else mask[:, None, None] & earlier(inputs)''',
    }
    for side, axes in (("source", "bs"), ("target", "bt")):
        tokens_of = "None" if padding is None or side not in INPUTS[component][0] else f'inputs["{side}"] != {padding!r}'
        found[f"keys_{side}"] = f'''def keys_{side}(inputs):
    """Where the {side} has real tokens: {" ".join(axes)}."""
    mask = inputs["{side}_mask_{axes}"]
    return mask if mask is not None else {tokens_of}'''
    found["earlier"] = f'''def earlier(inputs):
    """The causal mask: t s, True = may attend."""
    targets, sources = {lengths}
    return {_EARLIER[framework]}'''
    found["rows"] = '''def rows(mask):
    """A mask of the keys alone: b s."""
    if mask.shape[1] != 1 or mask.shape[2] != 1:
        raise NotCovered("the module's mask is of the keys alone")
    return mask[:, 0, 0]'''
    found["given"] = """def given(mask, change):
    return None if mask is None else change(mask)"""
    found["filled"] = f'''def filled(mask, keys):
    """The mask; that of all keys where a case has none, since the module needs one."""
    return {_ONES[framework]} if mask is None else mask'''
    found["lengths"] = f'''def lengths(length, keys):
    """How many keys of each row are real: all where a case has no mask, since the module needs a number."""
    return {_FULL[framework]} if length is None else length'''
    found["segments"] = '''def segments(inputs):
    """The segment of every token: 0 where a case has none."""
    return inputs["source"] * 0 if inputs["segment_bs"] is None else inputs["segment_bs"]'''
    found["ids"] = '''def ids(tokens):
    """Token ids; some cases have a row of weights for each token."""
    if "float" in str(tokens.dtype):
        raise NotCovered("the embedding takes ids, not rows of weights")
    return tokens'''
    return found
