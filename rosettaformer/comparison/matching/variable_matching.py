"""Matches variables of the two sides, with their axes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy.suggestions import nearest

from ..models.behaviour import INPUTS, OUTPUTS
from . import relations, weight_layout
from .layer_matching import Network, normal
from .rename_table import Rename

Pair = dict[str, Any]  # left, right, left_axes, right_axes, sizes, how, layer; right is empty if the other side has none
Arrays = Mapping[str, np.ndarray]
OPTIONAL = ("bias", "offset", "scale")  # a missing one is a difference between layers, not an error
CHANNELS = "c"
RELATED = 24  # maximum number of variables whose relation is sought


def pairs(
    left: Network,
    right: Network,
    layers: Mapping[str, tuple[str, str]],
    rename: Rename,
    flattened: Mapping[str, Sequence[Sequence[tuple[str, int]] | None]],
) -> tuple[list[Pair], list[str], set[tuple[str, str]]]:
    """Returns the table of variables, its problems, and the layers (side, path) with unmatched
    variables.

    flattened: named axes of a layer's flattened input, on the left and on the right, by the left's
    path.
    """
    table: list[Pair] = []
    problems: list[str] = []
    lost: list[dict[str, Any]] = []
    canonical = {one["canonical"]: one for several in right.variables.values() for one in several if one["canonical"]}
    everything = {one["name"]: one for several in right.variables.values() for one in several}
    taken: set[str] = set()
    for path, several in left.variables.items():
        other_path = layers.get(path, ("", ""))[0] if path in layers else None
        others = {one["name"]: one for one in right.variables.get(other_path, [])} if other_path is not None else {}
        for one in several:
            other, how = _found(one, others, everything, canonical, rename, taken)
            if other is None:
                lost.append(one)
                continue
            taken.add(other["name"])
            try:
                table.append(_with_axes(one, other, path, how, rename, flattened.get(path, (None, None))))
            except ValueError as error:
                problems.append(f"left {one['name']} and right {other['name']}: {error}")
                table += [_pair(one, None, path, "", "does not fit"), _alone(other, "does not fit")]
    spare = [one for one in everything.values() if one["name"] not in taken]
    for one, other, how in _of_one_shape(lost, spare):
        table.append(_with_axes(one, other, one["layer"], how, rename, (None, None)))
        lost.remove(one)
        spare.remove(other)
    table += [_pair(one, None, one["layer"], "", "none on the right") for one in lost]
    table += [_alone(one, "none on the left") for one in spare]
    known = [{path for path in layers if path}, {other for other, _ in layers.values() if other}]
    missing: set[tuple[str, str]] = set()
    every = {variable["name"]: variable for several in left.variables.values() for variable in several}
    for which, several, others in (("left", lost, everything), ("right", spare, every)):
        for one in several:
            role = one["role"]
            optional = role.rpartition(".")[2] in OPTIONAL or role.startswith(("mean", "variance"))
            if optional or not one["required"]:
                continue
            if one["layer"] not in known[which == "right"]:
                missing.add((which, one["layer"]))
                continue
            named = f"{which} {one['name']} {tuple(one['shape'])}"
            problems.append(f"{named} has no partner on the other side{nearest(one['name'], others)}")
    return table, problems, missing


def compare_values(table: Sequence[Pair], left: Network, right: Network, mine: Arrays, others: Arrays) -> None:
    """Marks pairs with different values, in the same layout, with `other numbers`, and with the
    `relation` of the first RELATED of them.
    """
    owned = [{one["name"]: one for several in network.variables.values() for one in several} for network in (left, right)]
    related = 0
    for row in table:
        if row["left"] in mine and row["right"] in others:
            arrays = mine[row["left"]], others[row["right"]]
            laid = _in_one_layout(owned[0][row["left"]], owned[1][row["right"]], *arrays)
            row["other numbers"] = not np.array_equal(*(laid or (np.sort(array, axis=None) for array in arrays)))
            related += row["other numbers"]
            noun = row["role"].rpartition(".")[2] or "weight"
            if row["other numbers"] and related <= RELATED and (found := relations.relation(*(laid or arrays), f" {noun}")):
                row["relation"] = vars(found)


def _in_one_layout(
    one: Mapping[str, Any], other: Mapping[str, Any], mine: np.ndarray, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns both arrays with the inputs first and the outputs last; None if the axes are unknown."""
    axes = _joined((one["axes"], other["axes"]))
    letters = [sorted(re.findall("[a-z]", text)) for text in axes]
    if not letters[0] or letters[0] != letters[1]:
        return None
    own, theirs, sizes = weight_layout.solved((axes[0], one["shape"]), (axes[1], other["shape"]), {**one["sizes"], **other["sizes"]})
    names = re.findall("[A-Za-z]", own)
    inner = {"i", *INPUTS, *"d" * (len(names) > 1)}
    if one["role"].startswith("output") or "v" in names:  # of attention, and tables
        inner = {*names} - {"d"}
    parts = [[name for name in names if name not in "xyz" and (name in inner) is side] for side in (True, False)]
    inside, outside = (f"({' '.join(part)})" if len(part) > 1 else "".join(part) for part in parts)
    wanted = " ".join(filter(None, [inside, *(name for name in names if name in "xyz"), outside]))
    return weight_layout.carried(mine, own, wanted, sizes), weight_layout.carried(others, theirs, wanted, sizes)


def _alone(one: Mapping[str, Any], how: str) -> Pair:
    return {"left": "", "right": one["name"], "layer": one["layer"], "how": how, "trainable": one["trainable"]}


def _of_one_shape(lost: Sequence[Mapping[str, Any]], spare: Sequence[Mapping[str, Any]]) -> list[tuple[Any, Any, str]]:
    """Returns pairs of unmatched variables by unique shape, or by order if there are as many."""

    def by_shape(several: Sequence[Mapping[str, Any]]) -> dict[tuple[int, ...], list[Any]]:
        found: dict[tuple[int, ...], list[Any]] = {}
        for one in several:
            if one["required"] and one["role"].rpartition(".")[2] not in OPTIONAL:
                found.setdefault(tuple(size for size in one["shape"] if size != 1), []).append(one)
        return found

    mine, others = by_shape(lost), by_shape(spare)
    found = []
    for shape, several in mine.items():
        if shape and len(several) == len(others.get(shape, [])):
            how = "shape" if len(several) == 1 else "order"
            found += [(one, other, how) for one, other in zip(several, others[shape], strict=True)]
    return found


def _found(
    one: Mapping[str, Any], others: Mapping[str, Any], everything: Mapping[str, Any], canonical: Mapping[str, Any], rename: Rename,
    taken: set[str],
) -> tuple[Any, str]:  # fmt: skip
    """Returns the partner of a variable: by table, canonical name, role, name or shape."""
    if one["name"] in rename.rows and rename.rows[one["name"]].name in everything:
        return everything[rename.rows[one["name"]].name], "renamed"
    if one["canonical"] and one["canonical"] in canonical:
        return canonical[one["canonical"]], "canonical name"
    if one["canonical"] and canonical:
        return None, ""
    free = [other for name, other in others.items() if name not in taken]
    if one["role"] and any(other["role"] for other in free):
        same = [other for other in free if other["role"] == one["role"]]
        return (same[0], "role") if same else (None, "")
    unknown = [other for other in free if not other["role"]] or free
    end = normal(one["name"].rpartition(".")[2])
    same = [other for other in unknown if normal(other["name"].rpartition(".")[2]) == end]
    if len(same) == 1:
        return same[0], "name"
    same = [other for other in unknown if tuple(other["shape"]) == tuple(one["shape"])]
    return (same[0], "shape") if len(same) == 1 else (None, "")


def _pair(one: Mapping[str, Any], other: Any, path: str, axes: str, how: str) -> Pair:
    name = "" if other is None else other["name"]
    return {"left": one["name"], "right": name, "layer": path, "how": how, "trainable": one["trainable"], "left_axes": axes,
            "right_axes": axes, "sizes": {}, "role": one["role"], "shape": list(one["shape"])}  # fmt: skip


def _with_axes(
    one: Mapping[str, Any], other: Mapping[str, Any], path: str, how: str, rename: Rename,
    flattened: Sequence[Sequence[tuple[str, int]] | None],
) -> Pair:  # fmt: skip
    """Returns the pair with the axes of both sides; without known axes, the shapes must be equal."""
    pair = _pair(one, other, path, "", how)
    row = rename.rows.get(one["name"])
    axes = (row.left, row.right) if row and row.left else _joined((one["axes"], other["axes"]))
    if ("m" in axes[0]) != ("m" in axes[1]):
        axes = (_depthwise(axes[0]), _depthwise(axes[1]))
    known = {**one["sizes"], **other["sizes"], **(row.sizes if row else {})}
    if not axes[0] or not axes[1]:
        if tuple(one["shape"]) != tuple(other["shape"]) and _long(one) == _long(other):
            left_axes, right_axes = (_with_ones(each["shape"]) for each in (one, other))
            sizes = dict(zip("ABCDEFGH", _long(one), strict=False))
            return pair | {"left_axes": left_axes, "right_axes": right_axes, "sizes": sizes, "how": how}
        if tuple(one["shape"]) != tuple(other["shape"]):
            raise ValueError(
                f"shapes {tuple(one['shape'])} and {tuple(other['shape'])} differ and the axes are unknown; add a row with axes to --rename"
            )
        return pair | {"how": f"{how}, as it is"}
    if not (row and row.left) and one["role"] == "kernel" and any(flattened):
        groups = [_group(flat) for flat in _both(flattened)]
        axes = (axes[0].replace("i", groups[0]), axes[1].replace("i", groups[1]))
        known |= {letter: size for letter, (_, size) in zip("PQRSTU", sorted(_both(flattened)[0]), strict=False)}
        how = f"{how}, flattened"
    left_axes, right_axes, sizes = weight_layout.solved((axes[0], one["shape"]), (axes[1], other["shape"]), known)
    return pair | {"left_axes": left_axes, "right_axes": right_axes, "sizes": sizes, "how": how}


def _long(variable: Mapping[str, Any]) -> list[int]:
    return [size for size in variable["shape"] if size != 1]


def _with_ones(shape: Sequence[int]) -> str:
    """Returns letters for the axes of a shape, with 1 for axes of length 1."""
    letters = iter("ABCDEFGH")
    return " ".join("1" if size == 1 else next(letters) for size in shape)


def _joined(axes: Sequence[str]) -> tuple[str, str]:
    """Returns the axes of two dense variables, joining several axes if the other side has one."""
    found = list(axes)
    for one, several in (("i", INPUTS), ("o", OUTPUTS)):
        for which in (0, 1):
            letters = [letter for letter in several if letter in found[1 - which].split()]
            if letters and one in found[which].split():
                found[which] = " ".join(f"({' '.join(letters)})" if letter == one else letter for letter in found[which].split())
    return found[0], found[1]


def _depthwise(axes: str) -> str:
    """Returns the axes of a convolution with one group per channel as those of a depthwise one."""
    return axes if "m" in axes else axes.replace("o i", "(i m) 1").replace("i o", "1 (i m)")


def _both(flattened: Sequence[Sequence[tuple[str, int]] | None]) -> list[list[tuple[str, int]]]:
    """Returns the named axes on both sides; a side that does not trace axes has channels last."""
    known = next(flat for flat in flattened if flat)
    last = [atom for atom in known if atom[0] != CHANNELS] + [atom for atom in known if atom[0] == CHANNELS]
    return [list(flat) if flat else last for flat in flattened]


def _group(atoms: Sequence[tuple[str, int]]) -> str:
    """Returns the axes in brackets, one letter each."""
    letters = dict(zip(sorted(map(tuple, atoms)), "PQRSTU", strict=False))
    return f"({' '.join(letters[tuple(atom)] for atom in atoms)})"  # type: ignore[index]
