"""Entries of config.json that decide which layers attend to a window."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.fields import is_integer

from .essential import shortest
from .family import Joint

KINDS = {"full_attention": "global", "sliding_attention": "local"}  # values of layer_types
FIELDS = {"layer_pattern": "layer_types", "window": "sliding_window"}
LAYERS = 100_000  # upper limit, more than the tensors that a file may have

Entries = Mapping[str, Any]


def everywhere(default: int | None, switch: str = "") -> Joint:
    """Returns the joint of a family whose layers all have a window if `sliding_window` is set.

    switch: an entry that must be true as well.
    """

    def read(entries: Entries) -> dict[str, Any]:
        window = entries["sliding_window"] if not switch or entries[switch] else None
        return {"layer_pattern": ("global",), "window": 0} if window is None else {"layer_pattern": ("local",), "window": sized(window)}

    def write(config: TransformerConfig, said: Entries) -> dict[str, Any]:
        window = config.layer_kind(0).window
        return {"sliding_window": window or None} | ({switch: bool(window)} if switch else {})

    fields, entries = dict.fromkeys(FIELDS, "sliding_window"), {"sliding_window": default} | ({switch: False} if switch else {})
    return Joint(entries, fields, read, write, "applies to every layer; null: no window")


def by_layer(
    entries: Entries,
    usual: Callable[[Entries, int], Sequence[str]],
    note: str,
    allowed: Callable[[Entries], Any] = lambda entries: True,
    unused: int | None = None,
) -> Joint:
    """Returns the joint of a family with `layer_types`.

    entries: the other entries that it reads, including `sliding_window`, and their defaults.
    usual: returns the kinds of that many layers if layer_types is absent. allowed: whether the
    entries enable windows. unused: the `sliding_window` to write if no layer has a window.
    """

    def read(entries: Entries) -> dict[str, Any]:
        kinds = layer_kinds(entries, lambda layers: usual(entries, layers))
        window = entries["sliding_window"] if allowed(entries) else None
        if "local" not in kinds:
            return {"layer_pattern": ("global",), "window": 0}
        if window is None:
            raise ValueError("layer_types has sliding_attention, so sliding_window must be set and enabled; got none")
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
        raise ValueError(f"layer_types must have num_hidden_layers={layers} items of {', '.join(KINDS)}; got {types!r:.200}")
    return [KINDS[one] for one in types]


def every(interval: Any, layers: int, name: str) -> list[bool]:
    """Returns False for the last of every `interval` layers, else True. name: for errors."""
    if not is_integer(interval) or interval < 1:
        raise ValueError(f"{name} must be an integer of at least 1; got {interval!r:.100}")
    return [bool((layer + 1) % interval) for layer in range(layers)]


def all_but_some(entries: Entries, layers: int) -> list[str]:
    """Gives a window to all layers but the last of every `sliding_window_pattern`."""
    name = "sliding_window_pattern"
    return ["local" if local else "global" for local in every(entries[name], layers, name)]


def sized(window: Any, name: str = "sliding_window") -> Any:
    """Checks and returns a window size. name: the entry that has it."""
    if not is_integer(window) or window < 1:
        raise ValueError(f"{name} must be an integer of at least 1, or null; got {window!r:.100}")
    return window


def _after_some(entries: Entries, layers: int) -> list[str]:
    """Gives a window to the layers from `max_window_layers` on (Qwen)."""
    first = entries["max_window_layers"]
    if not entries["use_sliding_window"] or entries["sliding_window"] is None:
        return ["global"] * layers
    if not is_integer(first):
        raise ValueError(f"max_window_layers must be an integer; got {first!r:.100}")
    return ["local" if layer >= first else "global" for layer in range(layers)]


QWEN = by_layer(
    {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28},
    _after_some,
    "`layer_types` sets which layers have a window; default: those from `max_window_layers` on, if `use_sliding_window`",
    allowed=lambda entries: entries["use_sliding_window"],
)
