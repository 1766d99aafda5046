"""Describes a component: its canonical parameters with axes and sizes, and its config fields."""

import copy
import dataclasses
import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from reference_numpy import TransformerConfig, parameters, preset

from ..judge.case import Case
from ..judge.expectation.components import answer, model_of

# axis -> its size, as a field of the config
_SIZES = {
    "d": "model_width", "r": "model_width", "h": "heads", "g": "key_value_heads", "k": "key_size", "e": "value_size",
    "f": "feed_forward_width", "x": "experts", "m": "expert_width", "w": "shared_width", "p": "max_positions + position_offset",
    "a": "segments", "c": "classes",
}  # fmt: skip
# models that together have every parameter, and for each condition a change that removes some
_WHOLE = preset(
    "tiny", source_vocabulary=102, share_embeddings=False, tie_logits=False, attention_bias=True, output_bias=True, final_norm=True,
    embedding_norm=True, positions="learned", max_positions=9, segments=2, gated_feed_forward=True, query_key_norm="head",
    norm_placement="sandwich", attention_sinks="all",
)  # fmt: skip
_MIXED = _WHOLE.replace(
    experts=4, experts_per_token=2, expert_width=5, shared_width=7, shared_gate=True, router_bias=True, selection_bias=True,
)  # fmt: skip
_ENCODER = _WHOLE.replace(decoder_layers=0, pooler=True, classes=3, masked_language_head=True)
_WITHOUT: dict[str, dict[str, Any]] = {
    "with query_key_value_bias": {"query_key_value_bias": False},
    "with attention_output_bias": {"attention_output_bias": False},
    "with feed_forward_bias": {"feed_forward_bias": False},
    "with gated_feed_forward": {"gated_feed_forward": False},
    'unless query_key_norm "none"': {"query_key_norm": "none"},
    "with experts": {"experts": 0},
    "with shared_width": {"shared_width": 0},
    "with shared_gate": {"shared_gate": False},
    "with router_bias": {"router_bias": False},
    "with selection_bias": {"selection_bias": False},
    'unless attention_sinks "none"': {"attention_sinks": "none"},
    "with norm_offset": {"norm_offset": False},
    'with norm_placement "sandwich"': {"norm_placement": "pre"},
    "with output_bias": {"output_bias": False},
    "unless share_embeddings": {"share_embeddings": True, "source_vocabulary": 101},
    "unless tie_logits": {"tie_logits": True},
    'with positions "learned"': {"positions": "sinusoidal", "max_positions": 0},
    "with segments": {"segments": 0},
    "with embedding_norm": {"embedding_norm": False},
    "with final_norm": {"final_norm": False},
    "with encoder_layers": {"encoder_layers": 0, "segments": 0},
    "with pooler": {"pooler": False, "classes": 0},
    "with classes": {"classes": 0},
    "with masked_language_head": {"masked_language_head": False},
}


def parameter_lines(component: str) -> Iterator[str]:
    """Yields the canonical parameters of a component in the order of the forward pass.

    Each line has the name, the axes, the shape and the config fields that add the parameter. Only
    the first layer of a stack is listed.
    """
    model = model_of(component)
    found: dict[str, tuple[str, str, str]] = {}
    for config in (_ENCODER,) if is_encoder_alone(component) else (_WHOLE, _MIXED, _ENCODER):
        whole = _axes(config, model)
        if whole is None:
            return
        left = {words: _axes(config, model, changes) for words, changes in _WITHOUT.items()}
        shapes = parameters.shapes(config, model)
        for name, letters in whole.items():
            if "layers." not in name or "layers.0" in name:
                when = ", ".join(words for words, axes in left.items() if axes is not None and name not in axes and _tells(words, name))
                found.setdefault(name, (letters, _shape(letters, config, shapes[name]), when))
    widths = [max(map(len, column), default=0) for column in zip(*((name, *row[:2]) for name, row in found.items()), strict=True)]
    for name, row in found.items():
        cells = (cell.ljust(width) for cell, width in zip((name, *row[:2]), widths, strict=True))
        yield "  ".join((*cells, row[2])).rstrip()


def is_encoder_alone(component: str) -> bool:
    """Returns whether the component is an encoder with a head."""
    return component in ("pool", "classify", "masked_language_logits")


def _axes(config: TransformerConfig, model: str, changes: Mapping[str, Any] | None = None) -> dict[str, str] | None:
    """Returns the axes of all parameters under a changed config; None if the config is invalid."""
    try:
        return parameters.axes(config.replace(**changes or {}), model)
    except ValueError:
        return None


def _tells(words: str, name: str) -> bool:
    """Returns whether to list a condition; without an encoder, only for cross-attention."""
    return words != "with encoder_layers" or "cross_attention" in name


def _shape(letters: str, config: TransformerConfig, sizes: Sequence[int]) -> str:
    """Returns the shape in config fields."""
    vocabulary = "source_vocabulary" if config.source_vocabulary in sizes else "target_vocabulary"
    return f"({', '.join(_SIZES.get(letter, vocabulary) for letter in letters.split())})"


def field_names(cases: Iterable[Case], component: str) -> list[str]:
    """Returns the config fields that a component depends on, in the order of the config."""
    seen: set[str] = set()
    for case in cases:
        answer(dataclasses.replace(case, config=_Seen.of(case.config, seen)))
    words = re.findall(r"\w+", " ".join(parameter_lines(component)))
    return [name for name in TransformerConfig.__dataclass_fields__ if name in {*seen, *words}]


class _Seen(TransformerConfig):
    """A config that records which fields are read."""

    @classmethod
    def of(cls, config: TransformerConfig, seen: set[str]) -> "_Seen":
        found = object.__new__(cls)
        found.__dict__.update(copy.copy(vars(config)), seen=seen)
        return found

    def __getattribute__(self, name: str) -> Any:
        if name in TransformerConfig.__dataclass_fields__:
            object.__getattribute__(self, "seen").add(name)
        return object.__getattribute__(self, name)

    def replace(self, **changes: Any) -> "_Seen":
        values = object.__getattribute__(self, "__dict__")
        plain = TransformerConfig(**{name: value for name, value in values.items() if name != "seen"})
        return _Seen.of(plain.replace(**changes), values["seen"])


def config_lines() -> dict[str, str]:
    """Returns a line per config field (name, allowed values, meaning), mapped to its group."""
    about = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(TransformerConfig), re.MULTILINE))
    rows = [(field.name, _wanted(field.type), about.get(field.name, "")) for field in dataclasses.fields(TransformerConfig)]
    widths = [max(map(len, column)) for column in itertools.islice(zip(*rows, strict=True), 2)]
    groups = {name: group for group, names in TransformerConfig.groups().items() for name in names}
    return {f"{name:{widths[0]}}  {wanted:{widths[1]}}  {text}".rstrip(): groups[name] for name, wanted, text in rows}


def _wanted(annotation: Any) -> str:
    """Returns the allowed values of a field."""
    rules = get_args(annotation)[1:]
    return str(", ".join(rule.wanted.removeprefix("one of ") for rule in rules if rule.wanted != "a name"))
