"""What an argument for rotary positions may be given: angles, their cosine and sine or complex numbers, or the positions."""

from collections.abc import Iterable, Sequence

from .vocabulary import PLACES, ROTARY, tokens

_HELPERS = {
    "torch": (
        "torch.arange({x}.shape[1], dtype={x}.dtype)[:, None] / {base!r} ** (torch.arange(0, {size}, 2, dtype={x}.dtype) / {size})",
        "torch.arange({x}.shape[1])[None]",
    ),
    "tf": (
        "tf.range({x}.shape[1], dtype={x}.dtype)[:, None] / {base!r} ** (tf.range(0, {size}, 2, dtype={x}.dtype) / {size})",
        "tf.range({x}.shape[1])[None]",
    ),
    "jax": (
        "jnp.arange({x}.shape[1], dtype={x}.dtype)[:, None] / {base!r} ** (jnp.arange(0, {size}, 2, dtype={x}.dtype) / {size})",
        "jnp.arange({x}.shape[1])[None]",
    ),
}  # fmt: skip
# angles `t j` as cosines and sines are stored
_FORMS = ("both(inputs)[None]", "both(inputs)", "angles(inputs)", "angles(inputs)[None]", "neighbours(inputs)")
_BOTH = {"torch": "torch.cat([{0}, {0}], -1)", "tf": "tf.concat([{0}, {0}], -1)", "jax": "jnp.concatenate([{0}, {0}], -1)"}
_NEIGHBOURS = {"torch": "{0}.repeat_interleave(2, -1)", "tf": "tf.repeat({0}, 2, -1)", "jax": "jnp.repeat({0}, 2, -1)"}
_LIBRARY = {
    "torch": ("torch", "torch.polar(torch.ones_like({0}), {0})"),
    "tf": ("tf", "tf.exp(1j * {0})"),
    "jax": ("jnp", "jnp.exp(1j * {0})"),
}  # the module of the functions, and the complex numbers of angles


def candidates(name: str, needed: bool, framework: str) -> list[str]:
    """Returns what an argument of that name may be given, the likeliest first; empty if it does not take rotations.

    An empty text is the argument's default.
    """
    words, library = set(tokens(name)), _LIBRARY[framework][0]
    if "start" in words or "offset" in words:
        return ["lambda inputs: 0"] if needed else []
    if words & {"cos", "cosine", "sin", "sine"}:
        function = "cos" if words & {"cos", "cosine"} else "sin"
        return [f"lambda inputs: {library}.{function}({form})" for form in _FORMS]
    pairs = [f"lambda inputs: ({library}.cos({form}), {library}.sin({form}))" for form in _FORMS]
    if name == "position_embeddings":
        return pairs
    if words & ROTARY:
        return [f"lambda inputs: {_LIBRARY[framework][1].format('angles(inputs)')}", *pairs]
    if words & PLACES:
        return [*([] if needed else [""]), "lambda inputs: positions(inputs)"]
    return []


def helpers(framework: str, x: str, size: int, base: float) -> dict[str, str]:
    """Returns the functions that the candidates call. x: the input with the tokens' vectors."""
    angles, positions = (text.format(x="x", size=size, base=base) for text in _HELPERS[framework])
    return {
        "both": f'''def both(inputs):
    """The angles of the first and of the second half of the features: t k."""
    return {_BOTH[framework].format("angles(inputs)")}''',
        "neighbours": f'''def neighbours(inputs):
    """The angles of neighbouring features: t k."""
    return {_NEIGHBOURS[framework].format("angles(inputs)")}''',
        "angles": f'''def angles(inputs):
    """The angle of every pair of features at the positions 0, 1, 2, ...: t j."""
    x = inputs["{x}"]
    return {angles}''',
        "positions": f'''def positions(inputs):
    """The positions 0, 1, 2, ...: 1 t."""
    x = inputs["{x}"]
    return {positions}''',
    }


def are_given(texts: Iterable[Sequence[str]]) -> bool:
    """Whether candidates of a call compute angles."""
    return any("(inputs)" in text and ("angles(" in text or "both(" in text) for found in texts for text in found)
