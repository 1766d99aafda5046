"""The plain versions of components: functions of a few lines in four frameworks, corresponding statements in one row."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ..code import Code, lines
from .cells import unindented
from .modules import PACKAGES

FOLDER = resources.files("rosettaformer.guide") / "snippets" / "components"
ORIGIN = "rosettaformer/guide/snippets/components"
FILES = dict(zip(PACKAGES, ("plain_numpy.py", "plain_pytorch.py", "plain_keras.py", "plain_flax.py"), strict=True))
TITLES = dict(zip(PACKAGES, ("NumPy", "PyTorch", "Keras", "JAX"), strict=True))
LONGEST = 15  # lines of a function
# component -> its functions, if they are not the one of its name
FUNCTIONS = {
    "rotary_embedding": ("rotary_halves", "rotary_neighbours"),
    "scaled_dot_product_attention": ("scaled_dot_product_attention", "alibi_bias"),
    "multi_head_attention": ("multi_head_attention", "linear"),
    "activation": ("relu", "gelu_erf", "gelu_tanh", "gelu_sigmoid", "silu"),
    "feed_forward": ("feed_forward", "gated_feed_forward", "linear"),
    "encoder_layer": ("pre_norm_encoder_layer", "post_norm_encoder_layer"),
    "decoder_layer": ("pre_norm_decoder_layer", "post_norm_decoder_layer"),
    "logits": ("logits", "linear"),
    "transformer": ("transformer", "encode", "decode"),
    "pool": ("pool", "encode_bert"),
    "initialise": ("initial_kernel", "initial_table"),
}
CONSTANTS = "JAX computes the constants by NumPy, whose powers are more accurate than those of a compiled program."
# what is to be known of them
NOTES = {
    "positional_encoding": CONSTANTS,
    "rotary_embedding": CONSTANTS,
    "scaled_dot_product_attention": "`alibi_bias` gives the `bias_bhts` of ALiBi (Press et al. 2022), a penalty for distance in place of "
    "positions. Its slopes are those of a number of heads that is a power of two.",
    "transformer": "The model is that of the paper of 2017: post-norm, relu, sinusoidal positions.",
    "greedy_search": "`target` is the prompt, or the start token; `allowed_v` is True for the tokens that an answer may hold: not for "
    "padding, and not for the start. Each step reads all tokens so far. With a cache of keys and values (`decode_in_steps`) it reads "
    "one: the tutorials on Llama 3 write that loop.",
    "pool": "The model is BERT: learned positions, segments, a norm of the embedding.",
}
# why a component has no plain version
WITHOUT = {
    "states": "It is `transformer` that keeps what its layers return; there is no other mathematics in it to write down.",
    "decode_in_steps": "Its plain version is `transformer` on all tokens so far; keeping keys and values does not fit into fifteen lines.",
    "sample": "It is `greedy_search` with `draw(truncate(...))` of the last logits in place of the largest one.",
    "beam_search": "Each step is `transformer` on all tokens so far; the bookkeeping of its beams does not fit into fifteen lines.",
}


@dataclass(frozen=True)
class Statement:
    """A statement on a page: its lines as HTML with the width of their indentation, and whether a function begins with it."""

    lines: tuple[tuple[int, Any], ...]
    origin: str
    opens: bool


def functions(component: str) -> tuple[str, ...]:
    """Returns the names of the component's plain functions, none if it has no plain version."""
    return () if component in WITHOUT else FUNCTIONS.get(component, (component,))


def rows(component: str) -> list[tuple[Statement, ...]]:
    """Returns the statements of the component's plain functions, those that correspond side by side."""
    columns = [[statement for name in functions(component) for statement in _statements(package, name)] for package in PACKAGES]
    return list(zip(*columns, strict=True))


def used(component: str) -> list[str]:
    """Returns the plain functions that those of the component call and that are not shown with them."""
    shown = functions(component)
    nodes = (node for name in shown for node in ast.walk(function(PACKAGES[0], name)))
    calls = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [name for name in dict.fromkeys(calls) if name in _parsed(PACKAGES[0]) and name not in shown]


def function(package: str, name: str) -> ast.FunctionDef:
    """Returns a plain function, parsed."""
    return _parsed(package)[name]


def home_of(name: str) -> str:
    """Returns the component on whose page a plain function stands first."""
    return _homes().get(name, name)


def example() -> tuple[Code, str]:
    """Returns a call of the attention with numbers, and what it prints."""
    file = FOLDER / "attention_example.py"
    ran = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    return Code(file.read_text(encoding="utf-8"), f"{ORIGIN}/{file.name}"), ran.stdout


def _statements(package: str, name: str) -> Iterator[Statement]:
    node = function(package, name)
    yield _statement(package, node.lineno, node.body[0].lineno - 1, True)
    for part in node.body:
        for first, last in _parts(part):
            yield _statement(package, first, last, False)


def _parts(node: ast.stmt) -> Iterator[tuple[int, int]]:
    """Yields the first and last lines of a statement: of one that holds others its header, then each of them."""
    body: list[ast.stmt] = getattr(node, "body", [])
    yield node.lineno, body[0].lineno - 1 if body else node.end_lineno or node.lineno
    for part in body:
        yield from _parts(part)


def _statement(package: str, first: int, last: int, opens: bool) -> Statement:
    text = _text(package)
    plain, marked = text.split("\n"), lines(text)
    made = tuple((len(plain[i]) - len(plain[i].lstrip()), unindented(marked[i])) for i in range(first - 1, last))
    return Statement(made, f"{ORIGIN}/{FILES[package]}:{first}", opens)


@functools.cache
def _homes() -> dict[str, str]:
    return {name: component for component, names in reversed(FUNCTIONS.items()) for name in names}


@functools.cache
def _parsed(package: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(_text(package)).body if isinstance(node, ast.FunctionDef)}


@functools.cache
def _text(package: str) -> str:
    return (FOLDER / FILES[package]).read_text(encoding="utf-8")
