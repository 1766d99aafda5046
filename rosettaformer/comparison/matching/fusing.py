"""Finds fused dense layers: one kernel for query, key and value, or for gate and hidden layer."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...common.modules.words import PROJECTED
from ..models.behaviour import FIRST_ROW, INPUTS
from .layer_matching import Network
from .rename_table import Rename

MOST = 4  # maximum number of fused layers
FIRST = [*PROJECTED, "gate"]  # the usual order in published models
Parts = dict[str, list[tuple[str, str, int, int, int]]]  # variable -> name, layer, axis and range of each part


def fused(
    one: Network, other: Network, mine: Sequence[str], others: Sequence[str], calls: Sequence[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Returns the other side's layers that each of mine fuses, in the order of its outputs.

    Fused layers have the same input. mine, others: layers without a partner. calls: calls of the
    other side.
    """
    given = {call["path"]: call["inputs"][0].tobytes() for call in reversed(calls) if call["inputs"]}
    siblings: dict[bytes, list[str]] = {}
    for path in other.order:
        if path in others and other.kind(path) == "dense" and path in given:
            siblings.setdefault(given[path], []).append(path)
    groups = [paths for paths in siblings.values() if 1 < len(paths) <= MOST]
    found = {}
    for path in one.order:
        if path not in mine or one.kind(path) != "dense":
            continue
        sizes = _sizes(one, path)
        group = next((paths for paths in groups if _sum([_sizes(other, each) for each in paths]) == sizes), None)
        if group:
            groups.remove(group)
            found[path] = sorted(group, key=lambda each: (_rank(other, each), group.index(each)))
    return found


def parts(one: Network, other: Network, found: Mapping[str, Sequence[str]]) -> Parts:
    """Returns the parts of the variables of fused layers, named after the layers on the other side."""
    result: Parts = {}
    for path, several in found.items():
        for variable in one.variables[path]:
            axis = _outputs(variable)
            if axis is None:
                continue
            start = 0
            for each in several:
                size = _sizes(other, each)[1]
                row = part(variable["name"], each), part(path, each), axis, start, start + size
                result.setdefault(variable["name"], []).append(row)
                start += size
    return result


def gated(one: Network, other: Network) -> Parts:
    """Returns gate and hidden layer as parts of one side's fused experts, if the other's are apart. The gate is first."""
    apart = any(variable["role"] == "gate.kernel" for path in other.variables for variable in other.variables[path])
    result: Parts = {}
    for path, several in one.variables.items():
        fused = one.kind(path) == "experts" and all(variable["role"] != "gate.kernel" for variable in several)
        for variable in several if apart and fused else ():
            axis = _outputs(variable)
            if axis is not None and variable["role"].startswith("hidden."):
                name, half = variable["name"], variable["shape"][axis] // 2
                result[name] = [(f"{name}[gate]", path, axis, 0, half), (f"{name}[hidden]", path, axis, half, 2 * half)]
    return result


def aligned(left: Network, right: Network, lost: Sequence[str], spare: Sequence[str]) -> list[tuple[str, str, tuple[Parts, Parts]]]:
    """Returns pairs of position tables with different lengths or offsets, and their common rows."""

    def tables(network: Network, paths: Sequence[str]) -> list[tuple[str, Mapping[str, Any], int]]:
        found: list[tuple[str, Mapping[str, Any], int]] = []
        for path in paths:
            first = network.layers.get(path, {}).get("hyperparameters", {}).get(FIRST_ROW)
            table = next((one for one in network.variables.get(path, []) if one["role"] == "table" and one["required"]), None)
            if first is not None and table:
                found.append((path, table, first))
        return found

    result = []
    mine, others = tables(left, lost), tables(right, spare)
    if len(mine) != len(others):
        return []
    for (one, table, first), (other, of_other, first_of_other) in zip(mine, others, strict=True):
        if table["shape"][1] == of_other["shape"][1]:
            count = min(table["shape"][0] - first, of_other["shape"][0] - first_of_other)
            rows: list[Parts] = []  # the rows from one on, as the only part of each table
            for path, own, start in ((one, table, first), (other, of_other, first_of_other)):
                name = own["name"]
                rows.append({name: [(f"{name}[{start}:]", f"{path}[{start}:]", 0, start, start + count)]})
            result.append((f"{one}[{first}:]", f"{other}[{first_of_other}:]", (rows[0], rows[1])))
    return result


def told(rename: Rename, left: Mapping[str, Any], right: Mapping[str, Any]) -> tuple[Parts, dict[str, tuple[str, str]]]:
    """Returns the parts of variables in a rename table, and the pairs of their layers.

    left, right: variables by name.

    Raises ValueError on an unknown name.
    """
    result: Parts = {}
    pairs: dict[str, tuple[str, str]] = {}
    for name, several in rename.parts.items():
        for known, each in ((left, name), *((right, other) for other, _, _ in several)):
            if each not in known:
                raise ValueError(f"the rename table names {each}, which does not exist on the {'left' if known is left else 'right'}")
        one = left[name]
        axis, end = _outputs(one), 0
        for other, begin, until in several:
            start, stop = begin, until
            if until <= begin:
                sizes = zip(right[other]["axes"].split(), right[other]["shape"], strict=True)
                start, stop = end, end + math.prod(size for letter, size in sizes if letter not in {"i", *INPUTS})  # number of outputs
            end = stop
            layer = part(one["layer"], right[other]["layer"])
            row = part(name, right[other]["layer"]), layer, len(one["shape"]) - 1 if axis is None else axis, start, stop
            result.setdefault(name, []).append(row)
            pairs[layer] = (right[other]["layer"], "renamed")
    return result, pairs


def split(network: Network, several: Parts) -> None:
    """Replaces variables by their parts, each in a layer of its own."""
    for path in list(network.variables):
        own = network.variables[path]
        whole = [one for one in own if one["name"] in several]
        for variable in whole:
            for name, layer, axis, start, stop in several[variable["name"]]:
                shape = [stop - start if index == axis else size for index, size in enumerate(variable["shape"])]
                role = variable["role"] if layer != path else f"{name.rpartition('[')[2][:-1]}.{variable['role'].rpartition('.')[2]}"
                own_part = variable | {"name": name, "layer": layer, "shape": tuple(shape), "role": role}
                network.variables.setdefault(layer, []).append(own_part)
                network.layers.setdefault(layer, network.layers[path] | {"path": layer})
                network.words[layer] = network.words[path]
        if whole:
            network.variables[path] = [one for one in own if one not in whole]
            if not network.variables[path]:
                del network.variables[path]


def part(name: str, other: str) -> str:
    """Returns the name of a part, after its layer on the other side."""
    return f"{name}[{other.rpartition('.')[2]}]"


def _rank(network: Network, path: str) -> int:
    return next((index for index, word in enumerate(FIRST) if word in network.words[path]), len(FIRST))


def _sizes(network: Network, path: str) -> tuple[int, int]:
    """Returns the number of inputs and outputs of a dense layer."""
    kernel = next((one for one in network.variables[path] if one["role"] == "kernel"), None)
    if kernel is None or len(kernel["axes"].split()) != len(kernel["shape"]):
        return 0, 0
    inside = outside = 1
    for letter, size in zip(kernel["axes"].split(), kernel["shape"], strict=True):
        inside, outside = (inside * size, outside) if letter in "irst" else (inside, outside * size)
    return inside, outside


def _sum(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    inputs = {inside for inside, _ in sizes}
    return (inputs.pop(), sum(outside for _, outside in sizes)) if len(inputs) == 1 else (0, 0)


def _outputs(variable: Mapping[str, Any]) -> int | None:
    """Returns the axis of the outputs; None unless there is exactly one."""
    axes = variable["axes"].split()
    return axes.index("o") if axes.count("o") == 1 else None


def views(arrays: Mapping[str, Any], several: Parts) -> Iterator[tuple[str, Any]]:
    """Yields the arrays, replacing those with parts by views of their parts."""
    for name, array in arrays.items():
        if name not in several:
            yield name, array
            continue
        for part, _, axis, start, stop in several[name]:
            yield part, array[(slice(None),) * axis + (slice(start, stop),)]
