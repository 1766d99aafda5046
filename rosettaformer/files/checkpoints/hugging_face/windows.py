"""Entries of config.json that say which layers attend to a window."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.fields import is_integer

from .essential import shortest
from .family import Joint

KINDS = {"full_attention": "global", "sliding_attention": "local"}  # of layer_types
FIELDS = {"layer_pattern": "layer_types", "window": "sliding_window"}
LAYERS = 100_000  # more than a file has tensors

Entries = Mapping[str, Any]


def everywhere(default: int | None) -> Joint:
    """Returns the joint of a family whose layers all have a window, if `sliding_window` has a value, by default this one."""

    def read(entries: Entries) -> dict[str, Any]:
        window = entries["sliding_window"]
        return {"layer_pattern": ("global",), "window": 0} if window is None else {"layer_pattern": ("local",), "window": sized(window)}

    def write(config: TransformerConfig, said: Entries) -> dict[str, Any]:
        return {"sliding_window": config.window if config.layer_kind(0).window else None}

    fields = dict.fromkeys(FIELDS, "sliding_window")
    return Joint({"sliding_window": default}, fields, read, write, "of every layer; null: none")


def by_layer(
    entries: Entries,
    usual: Callable[[Entries, int], Sequence[str]],
    note: str,
    allowed: Callable[[Entries], Any] = lambda entries: True,
    unused: int | None = None,
) -> Joint:
    """Returns the joint of a family with `layer_types`.

    entries: those that it reads besides, `sliding_window` among them, and their defaults. usual: the kinds of that many layers where
    layer_types does not say them. allowed: whether the entries let a layer have a window. unused: the `sliding_window` that is written
    where no layer has one.
    """

    def read(entries: Entries) -> dict[str, Any]:
        kinds = layer_kinds(entries, lambda layers: usual(entries, layers))
        window = entries["sliding_window"] if allowed(entries) else None
        if "local" not in kinds:
            return {"layer_pattern": ("global",), "window": 0}
        if window is None:
            raise ValueError("layer_types has sliding_attention, which needs a sliding_window, and its use; got none")
        return {"layer_pattern": shortest(kinds), "window": sized(window)}

    def write(config: TransformerConfig, said: Entries) -> dict[str, Any]:
        kinds = [config.layer_kind(layer) for layer in range(config.decoder_layers)]
        window = max((kind.window for kind in kinds), default=0)
        names = {own: name for name, own in KINDS.items()}
        types = [names["local" if kind.window else "global"] for kind in kinds]
        switch = {"use_sliding_window": bool(window)} if "use_sliding_window" in entries else {}
        return {"layer_types": types, "sliding_window": window or unused, **switch}

    return Joint({"layer_types": None, **entries}, FIELDS, read, write, note)


def layer_kinds(entries: Entries, usual: Callable[[int], Sequence[str]]) -> list[str]:
    """Returns the kind of every layer."""
    layers, types = entries["num_hidden_layers"], entries["layer_types"]
    if not is_integer(layers) or layers < 1:
        raise ValueError(f"num_hidden_layers must be an integer of at least 1; got {layers!r:.100}")
    if types is None:
        return list(usual(min(layers, LAYERS)))
    if not isinstance(types, list) or len(types) != layers or not all(isinstance(one, str) and one in KINDS for one in types):
        raise ValueError(f"layer_types must have num_hidden_layers, {layers}, of {', '.join(KINDS)}; got {types!r:.200}")
    return [KINDS[one] for one in types]


def every(interval: Any, layers: int, name: str) -> list[bool]:
    """Returns for every layer whether it is not the last of that many. name: of the entry that says how many."""
    if not is_integer(interval) or interval < 1:
        raise ValueError(f"{name} must be an integer of at least 1; got {interval!r:.100}")
    return [bool((layer + 1) % interval) for layer in range(layers)]


def sized(window: Any, name: str = "sliding_window") -> Any:
    """Returns a window, the value of this entry. Raises ValueError if it is none."""
    if not is_integer(window) or window < 1:
        raise ValueError(f"{name} must be an integer of at least 1, or null; got {window!r:.100}")
    return window


def _after_some(entries: Entries, layers: int) -> list[str]:
    """Qwen: the layers from `max_window_layers` on."""
    first = entries["max_window_layers"]
    if not entries["use_sliding_window"] or entries["sliding_window"] is None:
        return ["global"] * layers
    if not is_integer(first):
        raise ValueError(f"max_window_layers must be an integer; got {first!r:.100}")
    return ["local" if layer >= first else "global" for layer in range(layers)]


QWEN = by_layer(
    {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28},
    _after_some,
    "`layer_types` says which layers have the window; without it those from `max_window_layers` on, if `use_sliding_window`",
    allowed=lambda entries: entries["use_sliding_window"],
)
