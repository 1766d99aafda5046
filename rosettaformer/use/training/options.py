"""The options of a run, and the model's config and recipe that they determine."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from reference_numpy import TransformerConfig, preset
from reference_numpy.recipe import PAPER, Recipe
from reference_numpy.sharding import Mesh

from ...common.backends import BACKENDS
from ...common.reading import parse_settings
from .schema import BOOLEAN, Check, choice, integer, number, optional, several, text

LONGEST = 2**15  # tokens of one side of a pair


def mesh(free: Mapping[str, Any]) -> Mesh | None:
    """Parses the mesh of a run's free options. Raises ValueError on an invalid one."""
    return Mesh.parse(free["mesh"]) if free["mesh"] else None


def compiles(free: Mapping[str, Any]) -> bool:
    """Whether a run compiles its steps; NumPy does not, nor does torch on a mesh."""
    return free["backend"] != "numpy" and not (free["backend"] == "torch" and free["mesh"])


def _is_mesh(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(Mesh.parse(value))
    except ValueError:
        return False


_MESH: Check = (_is_mesh, "a mesh such as data=2,model=2")

# Options fixed for the whole run: the default, unless user or task set one, and their check.
# None is the preset's or the paper's value.
_FIXED: dict[str, tuple[Any, Check]] = {
    "preset": (None, optional(text())),
    "settings": ((), several(text())),
    "vocabulary": (8000, integer(0, 2**24)),
    "max_length": (100, integer(1, LONGEST)),
    "batch_tokens": (4096, integer(1)),
    "buckets": (4, integer(1)),
    "seed": (0, integer()),
    "dropout": (None, optional(number())),
    "smoothing": (PAPER.smoothing, number()),
    "warmup": (PAPER.warmup, integer(1)),
    "beta_1": (PAPER.beta_1, number()),
    "beta_2": (PAPER.beta_2, number()),
    "epsilon": (PAPER.epsilon, number()),
    "clip_norm": (PAPER.clip_norm, optional(number())),
    "weight_decay": (PAPER.weight_decay, number()),
    "microbatches": (PAPER.microbatches, integer(1)),
    "router_aux_weight": (PAPER.router_aux_weight, number()),
    "router_z_weight": (PAPER.router_z_weight, number()),
}
OF_DATA = {"vocabulary": int, "max_length": int, "batch_tokens": int, "buckets": int}  # fixed options about reading the data
# Options that every call may change; they keep their last value otherwise.
_FREE: dict[str, tuple[Any, Check]] = {
    "backend": ("torch", choice(*BACKENDS)),
    "device": ("cpu", text()),
    "mesh": (None, optional(_MESH)),
    "recompute": (False, BOOLEAN),
    "steps": (100_000, integer(1)),
    "minutes": (None, optional(number())),
    "validate_every": (250, integer(1)),
    "save_every": (250, integer(1)),
    "keep": (5, integer(1)),
    "average": (5, integer(1)),
    "patience": (None, optional(integer(1))),
    "sample": (200, integer(1)),
}
OF_LOOP = dict.fromkeys(("validate_every", "save_every", "sample", "keep", "average", "patience"), int)
FIXED, FREE = ({name: default for name, (default, _) in table.items()} for table in (_FIXED, _FREE))
FIXED_FIELDS, FREE_FIELDS = ({name: check for name, (_, check) in table.items()} for table in (_FIXED, _FREE))
SMALL = {"model_width": 128, "heads": 4, "feed_forward_width": 512, "encoder_layers": 2, "decoder_layers": 2}
_OF_TOKENS = ("source_vocabulary", "target_vocabulary", "padding_id")


def config(fixed: Mapping[str, Any], vocabulary: int) -> TransformerConfig:
    """Returns the config: the preset's, or a small version of the paper's, with the options.

    The tokens set the vocabularies. Key and value sizes follow from width and heads, unless they
    are set. Raises ValueError on options that do not fit.
    """
    told = parse_settings(fixed["settings"])
    if idle := [name for name in _OF_TOKENS if name in told]:
        raise ValueError(f"{', '.join(idle)} cannot be set, since the tokens decide; use --data vocabulary=N")
    base = preset(fixed["preset"]) if fixed["preset"] else preset("paper_base", **_with_heads(preset("paper_base"), SMALL))
    told = _with_heads(base, told)
    if fixed["dropout"] is not None:
        told = {"dropout_rate": fixed["dropout"]} | told
    result = base.replace(**told, source_vocabulary=vocabulary, target_vocabulary=vocabulary, padding_id=0)
    if not result.decoder_layers:
        raise ValueError("training needs a decoder: decoder_layers must be at least 1; got 0")
    return result


def recipe(fixed: Mapping[str, Any]) -> Recipe:
    """Returns the paper's recipe with the options."""
    return PAPER.replace(**{field.name: fixed[field.name] for field in dataclasses.fields(Recipe)})


def _with_heads(base: TransformerConfig, told: Mapping[str, Any]) -> dict[str, Any]:
    """Adds key and value sizes of d / h if the options change d or h and set no other size."""
    width, heads = (told.get(name, getattr(base, name)) for name in ("model_width", "heads"))
    implied: dict[str, Any] = {}
    if "heads" in told:
        implied["key_value_heads"] = heads
    if ("heads" in told or "model_width" in told) and all(type(size) is int and size > 0 for size in (width, heads)):
        implied |= dict.fromkeys(("key_size", "value_size"), max(width // heads, 1))
    return implied | dict(told)
