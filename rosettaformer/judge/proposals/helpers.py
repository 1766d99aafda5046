"""Helper functions for a port's `call`, in the framework's API: masks and rotations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .components import inputs


@dataclass(frozen=True)
class Dialect:
    """A framework's API: functions, dtypes, the cast to a dtype, and import lines."""

    library: str
    arange: str
    concatenate: str
    repeat: str
    full: str
    boolean: str
    single: str
    integer: str
    cast: str
    imports: tuple[str, ...]


DIALECTS = {
    "torch": Dialect(
        "torch", "torch.arange", "torch.cat", "torch.repeat_interleave", "torch.full", "torch.bool", "torch.float32", "torch.long",
        "({}).to({})", ("import torch",),
    ),
    "tf": Dialect(
        "tf", "tf.range", "tf.concat", "tf.repeat", "tf.fill", "tf.bool", "tf.float32", "tf.int32",
        "tf.cast({}, {})", ("import keras", "import tensorflow as tf"),
    ),
    "jax": Dialect(
        "jnp", "jnp.arange", "jnp.concatenate", "jnp.repeat", "jnp.full", "bool", "jnp.float32", "jnp.int32",
        "({}).astype({})", ("import jax", "import jax.numpy as jnp", "from flax import nnx"),
    ),
}  # fmt: skip

# the functions' text for a batch -> for one row
_OF_ROW = (
    ("[None, None]", "[None]"), ("mask.shape[2]", "mask.shape[0]"), ("mask[:, 0, 0]", "mask[0, 0]"), ('"].shape[1]', '"].shape[0]'),
    ("(keys.shape[0], 1, 1, keys.shape[1]", "(1, 1, keys.shape[0]"), ("b 1 1 s", "1 1 s"), ("b s", "s"), ("of each row", "of the row"),
)  # fmt: skip


def helpers(text: str, component: str, framework: str, config: Mapping[str, Any], by_row: bool) -> str:
    """Returns the functions used by a call's texts. by_row: for a row without a batch axis."""
    needed = []
    dialect = DIALECTS[framework]
    for name, source in (_masks(component, dialect, config.get("padding_id")) | _rotations(component, dialect, config)).items():
        if by_row:
            for of_batch, of_row in _OF_ROW:
                source = source.replace(of_batch, of_row)
        if f"{name}(" in text:
            needed.append(source)
            text += source
    return "\n\n\n".join(reversed(needed))


def _masks(component: str, dialect: Dialect, padding: object) -> dict[str, str]:
    """Returns the functions for masks, lengths and ids, each before those that it calls."""
    data, arange = inputs(component), dialect.arange
    first, second = data[:2] if component == "multi_head_attention" else ("target",) * 2 if "target" in data else ("x_btd",) * 2
    found = {
        "attend_mask": '''def attend_mask(inputs):
    """The mask combined with the causal mask; None if nothing is masked."""
    mask = inputs["mask_bhts"]
    if not inputs["causal"]:
        return mask
    return earlier(inputs)[None, None] if mask is None else mask & earlier(inputs)''',
        "attend_self": '''def attend_self(inputs):
    """The mask combined with the causal mask."""
    mask = inputs["self_mask_bhts"]
    return earlier(inputs)[None, None] if mask is None else mask & earlier(inputs)''',
        "attend_source": '''def attend_source(inputs):
    """True at real source tokens: b 1 1 s."""
    return given(keys_source(inputs), lambda mask: mask[:, None, None])''',
        "attend_target": '''def attend_target(inputs):
    """True at real target tokens that are not in the future: b 1 t s."""
    mask = keys_target(inputs)
    return earlier(inputs)[None, None] if mask is None else mask[:, None, None] & earlier(inputs)''',
    }
    for side, axes in (("source", "bs"), ("target", "bt")):
        tokens_of = "None" if padding is None or side not in data else f'inputs["{side}"] != {padding!r}'
        found[f"keys_{side}"] = f'''def keys_{side}(inputs):
    """True at real {side} tokens: {" ".join(axes)}."""
    mask = inputs["{side}_mask_{axes}"]
    return mask if mask is not None else {tokens_of}'''
    return found | {
        "earlier": f'''def earlier(inputs):
    """The causal mask: t s, True = may attend."""
    targets, sources = inputs["{first}"].shape[1], inputs["{second}"].shape[1]
    return {arange}(sources)[None] <= {arange}(targets)[:, None] + sources - targets''',
        "rows": '''def rows(mask):
    """The mask as a mask of keys: b s."""
    if mask.shape[1] != 1 or mask.shape[2] != 1:
        raise NotCovered("the module only takes masks of keys")
    return mask[:, 0, 0]''',
        "given": """def given(mask, change):
    return None if mask is None else change(mask)""",
        "filled": f'''def filled(mask, keys):
    """The mask; all ones if a case has none, since the module requires a mask."""
    return {dialect.library}.ones((keys.shape[0], 1, 1, keys.shape[1]), dtype={dialect.boolean}) if mask is None else mask''',
        "lengths": f'''def lengths(length, keys):
    """The number of real keys of each row; all if a case has no mask, since the module requires it."""
    return {dialect.full}((keys.shape[0],), keys.shape[1]) if length is None else length''',
        "ids": '''def ids(tokens):
    """Token ids. Some cases have a row of weights per token instead."""
    if "float" in str(tokens.dtype):
        raise NotCovered("the embedding only takes ids, not rows of weights")
    return tokens''',
    }


def _rotations(component: str, dialect: Dialect, config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the functions for rotations, by name; each precedes those that it calls."""
    arange, x = dialect.arange, f'x = inputs["{inputs(component)[0]}"]'
    size, base = config.get("key_size", 2), config.get("rotary_base", 10000.0)
    return {
        "both": f'''def both(inputs):
    """The angles, once for each half of the features: t k."""
    return {dialect.concatenate}([angles(inputs), angles(inputs)], -1)''',
        "neighbours": f'''def neighbours(inputs):
    """The angles, repeated for adjacent features: t k."""
    return {dialect.repeat}(angles(inputs), 2, -1)''',
        "angles": f'''def angles(inputs):
    """The angle of each pair of features at positions 0, 1, 2, ...: t j."""
    {x}
    return {arange}(x.shape[1], dtype=x.dtype)[:, None] / {base!r} ** ({arange}(0, {size}, 2, dtype=x.dtype) / {size})''',
        "positions": f'''def positions(inputs):
    """The positions 0, 1, 2, ...: 1 t."""
    {x}
    return {arange}(x.shape[1])[None]''',
    }
