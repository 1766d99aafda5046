"""Wrong parameters in a whole model: from another layer, transposed, or with heads in another order."""

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from reference_numpy.parameters import axes

from ...case import Case
from ...catalogue import Alteration
from ...catalogue.alteration import reading
from ...stored import changed

LAYER = re.compile(r"(.*\blayers)\.(\d+)\.(.*)")  # a parameter of a layer: the stack, the layer, the rest
WORDS = {
    "first": "the first layer", "last": "the last layer", "reversed": "the layers in reverse order",
    "as text": "the layers ordered as text, 10 before 2", "next": "the next layer", "before": "the layer before",
}  # fmt: skip
Mapped = Callable[[str], str]  # the name of the parameter that stands for the parameter of a name


def tensor_changes(case: Case) -> Iterator[Alteration]:
    """The layers' parameters in the place of other layers', the largest groups first, then the
    transposed square ones, and those with the heads of a group apart, or together that should not.
    """
    letters = axes(case.config)
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for name in case.parameters:
        if parts := LAYER.fullmatch(name):
            found[parts[1]][parts[3]].append(int(parts[2]))
    for stack, layers in found.items():
        count = 1 + max(index for own in layers.values() for index in own)
        for group, rests in _groups(layers).items():
            for key, order in _orders(count).items():
                mapped = functools.partial(_of_other, stack, frozenset(rests), order)
                yield _change(f"{stack}.{group}={key}", f"{stack} use {group} of {WORDS[key]}", functools.partial(_read, mapped))
        for rest, (first, *_) in layers.items():
            array = case.parameters[f"{stack}.{first}.{rest}"]
            if array.ndim > 1 and array.size == len(array) ** 2:
                title = f"`{rest}` is transposed in {stack}"
                yield _change(f"{stack}.{rest}=transposed", title, functools.partial(_transposed, f"{stack}.", f".{rest}"))
            if "h" in (own := letters.get(f"{stack}.{first}.{rest}", "").split()):
                groups, axis = case.config.key_value_heads, own.index("h")
                for words, shape in (("kv head, then group", (-1, groups)), ("group, then kv head", (groups, -1))):
                    heads = np.arange(array.shape[axis]).reshape(shape).T.ravel()
                    if not np.array_equal(heads, np.arange(len(heads))):
                        title = f"the heads of `{rest}` are taken to be in the order {words}, in {stack}"
                        yield _change(f"{stack}.{rest}={words}", title, functools.partial(_reordered, f"{stack}.", f".{rest}", axis, heads))


def _change(name: str, title: str, read: Callable[[Case], Case]) -> Alteration:
    return reading(name, "transformer", title, "load each parameter into the place that its name says", read, "different parameter")


def _groups(layers: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """Parameters that a port may take from another layer together: all, one part, one kind, one."""
    found = {"all parameters": [*layers]}
    for part in dict.fromkeys(rest.partition(".")[0] for rest in layers):
        found[part] = [rest for rest in layers if rest.partition(".")[0] == part]
    for kind in dict.fromkeys(rest.rpartition(".")[2] for rest in layers):
        found[f"every {kind}"] = [rest for rest in layers if rest.rpartition(".")[2] == kind]
    return found | {rest: [rest] for rest in layers}


def _orders(count: int) -> dict[str, tuple[int, ...]]:
    """For each key of `WORDS`, the layer that each layer takes its parameters from; each order once."""
    own = tuple(range(count))
    orders = {
        "first": (0,) * count,
        "last": (count - 1,) * count,
        "reversed": own[::-1],
        "as text": tuple(sorted(own, key=str)),
        "next": own[1:] + own[:1],
        "before": own[-1:] + own[:-1],
    }
    distinct = {order: key for key, order in reversed(orders.items()) if order != own}
    return {key: order for order, key in reversed(distinct.items())}


def _of_other(stack: str, rests: frozenset[str], order: Sequence[int], name: str) -> str:
    parts = LAYER.fullmatch(name)
    if not parts or parts[1] != stack or parts[3] not in rests:
        return name
    return f"{stack}.{order[int(parts[2])]}.{parts[3]}"


def _read(mapped: Mapped, case: Case) -> Case:
    own = case.parameters

    def other(name: str, array: np.ndarray) -> np.ndarray:
        replacement = mapped(name)
        fits = replacement != name and replacement in own and own[replacement].shape == array.shape
        return own[replacement] if fits else array

    return dataclasses.replace(case, parameters=changed(own, other))


def _reordered(start: str, end: str, axis: int, order: np.ndarray, case: Case) -> Case:
    def taken(name: str, array: np.ndarray) -> np.ndarray:
        return np.take(array, order, axis) if name.startswith(start) and name.endswith(end) else array

    return dataclasses.replace(case, parameters=changed(case.parameters, taken))


def _transposed(start: str, end: str, case: Case) -> Case:
    def turned(name: str, array: np.ndarray) -> np.ndarray:
        meant = name.startswith(start) and name.endswith(end)
        return array.reshape(len(array), -1).T.reshape(array.shape) if meant else array

    return dataclasses.replace(case, parameters=changed(case.parameters, turned))
