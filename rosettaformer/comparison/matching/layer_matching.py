"""Matches layers by rename table, name, kind and shape, data flow, and finally order."""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reference_numpy.suggestions import nearest

from ...common.modules.words import ATTENDS, EMBEDS, PROJECTED
from .rename_table import Rename

ALIKE = {"dense_io": "dense", "depthwise_convolution": "convolution"}
SYNONYMS = {word: meant for meant, several in PROJECTED.items() for word in several}
SYNONYMS |= dict.fromkeys(ATTENDS, "attention") | dict.fromkeys(EMBEDS, "embedding")
SYNONYMS |= {"conv": "convolution", "bn": "norm", "ln": "norm", "fc": "dense", "linear": "dense"}
NONE: Mapping[str, tuple[str, str]] = {}
Problems = dict[tuple[str, str], str]
MAIN = ("kernel", "table", "scale", "query.kernel")
DEPTH = 3  # distance of neighbors that distinguish layers


@dataclass(eq=False)
class Network:
    """Layers, variables and execution order of one model.

    order: paths in the order in which first calls end. given, gives: hashes of the first input and
    output of each first call.
    """

    layers: dict[str, dict[str, Any]]
    variables: dict[str, list[dict[str, Any]]]  # by the path of the layer
    order: list[str]
    words: dict[str, list[str]] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)
    gives: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, about: Mapping[str, Any], calls: Iterable[Mapping[str, Any]]) -> "Network":
        variables: dict[str, list[dict[str, Any]]] = {}
        for one in about["variables"]:
            variables.setdefault(one["layer"], []).append(one)
        order = list(dict.fromkeys(call["path"] for call in calls))
        found = cls({layer["path"]: layer for layer in about["layers"]}, variables, order)
        for path in {*found.layers, *variables}:
            words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", path)
            found.words[path] = [SYNONYMS.get(word.lower(), word.lower()) for word in words]
        for call in calls:
            for told, arrays in ((found.given, call["inputs"]), (found.gives, call["outputs"])):
                if arrays:
                    told.setdefault(call["path"], hash(arrays[0].tobytes()))
        return found

    def kind(self, path: str) -> str:
        kind = self.layers.get(path, {}).get("kind", "")
        return ALIKE.get(kind, kind)

    def held(self) -> list[str]:
        """Returns the layers with required variables in execution order, uncalled ones last."""
        rank = {path: index for index, path in enumerate(self.order)}
        return sorted(filter(self._holds, self.variables), key=lambda path: rank.get(path, len(rank)))

    def _holds(self, path: str) -> bool:
        return any(one["required"] for one in self.variables.get(path, ()))

    @functools.cached_property
    def _by_number(self) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
        """The layers by the hash of their input, and by the hash of their output."""
        found: tuple[dict[int, list[str]], dict[int, list[str]]] = ({}, {})
        for layers, told in zip(found, (self.given, self.gives), strict=True):
            for path, number in told.items():
                layers.setdefault(number, []).append(path)
        return found

    def after(self, path: str) -> list[str]:
        """Returns the layers with variables that take the layer's output as input."""
        takers = self._by_number[0].get(self.gives.get(path, 0), ())
        return [other for other in takers if other != path and self._holds(other)]

    def before(self, path: str) -> list[str]:
        """Returns the layers with variables that produce the layer's input."""
        givers = self._by_number[1].get(self.given.get(path, 0), ())
        return [other for other in givers if other != path and self._holds(other)]

    def places(self) -> dict[str, int]:
        """Returns a hash of each layer with variables, from its kind, sizes and neighbors."""
        found = {}
        for path in self.held():
            main = [one for one in self.variables[path] if one["role"] in MAIN]
            sizes = sorted((one["role"], math.prod(one["shape"])) for one in main)
            found[path] = hash((self.kind(path), *sizes))
        for _ in range(DEPTH):
            around = {path: [sorted(found[one] for one in each) for each in (self.before(path), self.after(path))] for path in found}
            found = {path: hash((own, *map(tuple, around[path]))) for path, own in found.items()}
        return found

    def leaves(self) -> list[str]:
        """Returns the layers without called layers inside, in execution order."""
        return [path for path in self.order if path and not any(other.startswith(f"{path}.") for other in self.order)]

    def within(self, path: str) -> frozenset[str]:
        return frozenset(one for one in self.held() if not path or one == path or one.startswith(f"{path}."))


def normal(name: str) -> str:
    """Returns a name without case and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def layers(
    left: Network, right: Network, rename: Rename, known: Mapping[str, tuple[str, str]] = NONE
) -> tuple[dict[str, tuple[str, str]], Problems]:
    """Returns the right's layer and how it was found, by the left's path; and the problems.

    Problems are keyed by side and path of a layer with variables, or by "" and the text for an
    error in the table. known: pairs that are already known.
    """
    pairs: dict[str, tuple[str, str]] = {"": ("", "whole"), **known}
    problems: Problems = {("", text): text for text in _renamed(left, right, rename, pairs)}
    taken = {other for other, _ in pairs.values()}
    # same full name and shapes, although a user's class hides the kind of one of them
    for path in left.held():
        free = path and path not in pairs and path not in taken and path in right.variables
        alike = free and sorted(_shapes(left, path)) == sorted(_shapes(right, path))
        if alike and left.kind(path) != right.kind(path):
            pairs[path] = (path, "name")
    taken = {other for other, _ in pairs.values()}
    lefts = [path for path in left.held() if path not in pairs]
    rights = [path for path in right.held() if path not in taken]
    waiting = []
    for mine, others in _groups(left, right, lefts, rights):
        found = _in_group(left, right, rename, mine, others)
        pairs |= found
        if not found and len(mine) == len(others):
            waiting.append((mine, others))
    _along(left, right, waiting, pairs)
    for mine, others in waiting:
        if _numbers(left, mine) != _numbers(right, others):  # one side counts from 0, the other from 1
            continue
        fits = _alike(left, right, *_rest(mine, others, pairs))
        pairs |= {one: found for one, found in fits.items() if _flow(left, right, one, found[0], pairs) is not False}
        _along(left, right, waiting, pairs)
    for mine, others in sorted(waiting, key=lambda group: left.kind(group[0][0]).endswith("norm")):  # norms last
        pairs |= {one: (other, "order") for one, other in zip(*_rest(mine, others, pairs), strict=True)}
        _along(left, right, waiting, pairs)
    taken = {other for other, _ in pairs.values()}
    lost, spare = [path for path in lefts if path not in pairs], [path for path in rights if path not in taken]
    problems |= {("left", path): _unmatched("left", path, left, spare, right) for path in lost if path}
    problems |= {("right", path): _unmatched("right", path, right, lost, left) for path in spare if path}
    _without_variables(left, right, rename, pairs)
    _containers(left, right, pairs)
    return pairs, problems


def compatible(left: Network, one: str, right: Network, other: str) -> bool:
    """Returns whether the layers have the same kind and compatible kernels, tables or scales."""
    if left.kind(one) != right.kind(other) or (not one) != (not other):
        return False
    mine = {variable["role"]: variable for variable in left.variables[one] if variable["required"]}
    others = {variable["role"]: variable for variable in right.variables[other] if variable["required"]}
    if left.kind(one) == "" or "" in mine or "" in others:
        return sorted(_shapes(left, one)) == sorted(_shapes(right, other))
    common = mine.keys() & others.keys()
    if not common or any((role in mine) != (role in others) for role in MAIN[:2]):
        return False
    return all(_fit(mine[role], others[role]) for role in common)


def _shapes(network: Network, path: str) -> list[tuple[int, ...]]:
    return [tuple(sorted(one["shape"])) for one in network.variables[path] if one["required"]]


def _fit(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Returns whether two tensors with the same role have compatible sizes."""
    if math.prod(one["shape"]) != math.prod(other["shape"]):
        return False
    if ("m" in one["axes"]) != ("m" in other["axes"]):  # a convolution with one group per channel, and a depthwise one
        return True
    groups = re.compile(r"\([^)]*\)|\w")
    pairs = ((groups.findall(each["axes"].replace("-", "")), each["shape"]) for each in (one, other))
    mine, others = (dict(zip(*each, strict=False)) for each in pairs)
    common = [letter for letter in mine.keys() & others.keys() if "(" not in letter and letter != "1"]
    return all(mine[letter] == others[letter] for letter in common)


def _renamed(left: Network, right: Network, rename: Rename, pairs: dict[str, tuple[str, str]]) -> list[str]:
    """Adds the pairs of the table and returns its errors."""
    problems, known = [], {*right.layers, *right.variables}
    names = known | {one["name"] for several in right.variables.values() for one in several}
    for path in {**left.layers, **left.variables}:
        other = rename.of(path)
        if path and (other != path or path in rename.rows) and other in known:
            pairs[path] = (other, "renamed")
    for name, row in rename.rows.items():
        own = {*left.layers, *left.variables} | {one["name"] for several in left.variables.values() for one in several}
        if name in own and row.name not in names:
            problems.append(f"the rename table maps {name} to {row.name}, which does not exist on the right{nearest(row.name, names)}")
        parts = {part for each in own for part in each.split(".")}
        if name not in own and name not in parts and not any(each.startswith(f"{name}.") for each in own):
            problems.append(f"the rename table names {name}, which does not exist on the left{nearest(name, own)}")
    return problems


def _groups(left: Network, right: Network, lefts: list[str], rights: list[str]) -> list[tuple[list[str], list[str]]]:
    """Returns groups of compatible layers, in execution order on each side."""
    found: list[tuple[list[str], list[str]]] = []
    waiting, places = [path for path in lefts if path], (left.places(), right.places())
    while waiting:
        others = [other for other in rights if other and compatible(left, waiting[0], right, other)]
        mine = [path for path in waiting if path == waiting[0] or (others and compatible(left, path, right, others[0]))]
        waiting = [path for path in waiting if path not in mine]
        found += _at_their_places(mine, others, *places)
    return found


def _at_their_places(
    mine: list[str], others: list[str], left: Mapping[str, int], right: Mapping[str, int]
) -> list[tuple[list[str], list[str]]]:
    """Splits a group by place in the data flow, for places with as many layers on both sides."""
    counts = Counter(left[path] for path in mine), Counter(right[path] for path in others)
    common = [place for place in counts[0] if counts[0][place] == counts[1][place]]
    parts = [([path for path in mine if left[path] == place], [path for path in others if right[path] == place]) for place in common]
    rest = [path for path in mine if left[path] not in common], [path for path in others if right[path] not in common]
    return [*parts, rest] if rest[0] else parts


def _in_group(left: Network, right: Network, rename: Rename, mine: list[str], others: list[str]) -> dict[str, tuple[str, str]]:
    """Returns the pairs of a group by name or, if both sides have as many layers, by similarity of
    names.

    Names count only if every layer has a partner by name, since frameworks number from 0 or from 1.
    """
    names = {path: [other for other in others if normal(other) == normal(rename.of(path))] for path in mine}
    named = {path: (found[0], "name") for path, found in names.items() if len(found) == 1}
    if len(named) == len(mine) or (len(mine) != len(others) and named):
        return named
    if len(mine) != len(others):
        return {}
    if len(mine) == 1:
        return {mine[0]: (others[0], "shape")}
    alike = _alike(left, right, mine, others)
    return alike if len(alike) == len(mine) else {}


def _rest(mine: Sequence[str], others: Sequence[str], pairs: Mapping[str, tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Returns the layers without a partner so far."""
    taken = {other for other, _ in pairs.values()}
    return [path for path in mine if path not in pairs], [path for path in others if path not in taken]


def _along(left: Network, right: Network, waiting: Sequence[tuple[list[str], list[str]]], pairs: dict[str, tuple[str, str]]) -> None:
    """Adds pairs of layers that are neighbors of known pairs in the data flow."""
    before = -1
    while before != len(pairs):
        before, taken = len(pairs), {other for other, _ in pairs.values()}
        for mine, others in waiting:
            for one in mine:
                free = [other for other in others if other not in taken and _flow(left, right, one, other, pairs)]
                if one not in pairs and len(free) == 1:
                    pairs[one] = (free[0], "data flow")
                    taken.add(free[0])


def _flow(left: Network, right: Network, one: str, other: str, pairs: Mapping[str, tuple[str, str]]) -> bool | None:
    """Returns whether the neighbors of both layers are partners; None if none of them is known."""
    known = {path for path, _ in pairs.values()}
    around = (left.after(one), right.after(other)), (left.before(one), right.before(other))
    sets = [({pairs[path][0] for path in mine if path in pairs}, {*others} & known) for mine, others in around]
    # With other boundaries, such as a scale inside or after an embedding, one side has no neighbors.
    agrees = [mine == others for mine, others in sets if mine and others]
    return all(agrees) if agrees else None


def _alike(left: Network, right: Network, mine: list[str], others: list[str]) -> dict[str, tuple[str, str]]:
    """Returns the pairs whose names are most similar, from both sides."""

    def best(scores: list[tuple[int, str]]) -> str:
        first = sorted(scores, reverse=True)[:2]
        return first[0][1] if first[0][0] > 0 and (len(first) == 1 or first[0][0] > first[1][0]) else ""

    score = {(one, other): _common(left.words[one], right.words[other]) for one in mine for other in others}
    of_right = {other: best([(score[one, other], one) for one in mine]) for other in others}
    found = {one: best([(score[one, other], other) for other in others]) for one in mine}
    return {one: (other, "likeness of names") for one, other in found.items() if other and of_right[other] == one}


def _numbers(network: Network, paths: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(word for word in network.words[path] if word.isdigit()) for path in paths}


def _common(one: list[str], other: list[str]) -> int:
    """Returns a score of common words; numbers count only if both names have as many."""
    numbers = [[word for word in words if word.isdigit()] for words in (one, other)]
    shared = len({*one} & {*other} - {*numbers[0], *numbers[1]})
    if len(numbers[0]) != len(numbers[1]):
        return 0
    return 2 * shared + 3 * sum(a == b for a, b in zip(*numbers, strict=True)) if shared else 0


def _unmatched(which: str, path: str, own: Network, others: Sequence[str], other: Network) -> str:
    """Describes a layer without a partner."""
    kin = [one for one in others if other.kind(one) == own.kind(path)]
    like = nearest(path, kin or others)
    close = next((one for one in kin or others if f"nearest: {one})" in like), kin[0] if kin else "")
    said = f"; the nearest is {_described(other, close)}" if close else ""
    return f"{which} {_described(own, path)} has no partner on the other side{said}"


def _described(network: Network, path: str) -> str:
    shapes = ", ".join(f"{one['name'].rpartition('.')[2]} {tuple(one['shape'])}" for one in network.variables.get(path, []))
    return f"{path or 'the whole model'} ({network.layers.get(path, {}).get('type', 'variable')}: {shapes})"


def _without_variables(left: Network, right: Network, rename: Rename, pairs: dict[str, tuple[str, str]]) -> None:
    """Pairs layers without variables: by name, or if there are as many between the same two layers."""
    taken = {other for other, _ in pairs.values()}
    hold = {*left.held()}, {*right.held()}
    names = {normal(path): path for path in right.leaves() if path not in taken}
    for path in left.leaves():
        other = names.get(normal(rename.of(path)))
        both_hold = path in hold[0] and other in hold[1]
        if path not in pairs and not both_hold and other and left.kind(path) == right.kind(other):
            pairs[path] = (other, "name")
    back = {other: path for path, (other, _) in pairs.items()}
    mine, others = (_between(network, known) for network, known in ((left, {path: path for path in pairs}), (right, back)))
    for place, paths in mine.items():
        if len(paths) == len(others.get(place, [])):
            pairs |= {one: (other, "place") for one, other in zip(paths, others[place], strict=True)}


def _between(network: Network, known: Mapping[str, str]) -> dict[tuple[str, str], list[str]]:
    """Returns the unmatched layers of each kind, grouped by the matched layer before them."""
    found: dict[tuple[str, str], list[str]] = {}
    anchor, held = "", {*network.held()}
    for path in network.leaves():
        if path in known:
            anchor = known[path]
        elif (kind := network.kind(path)) and path not in held:
            found.setdefault((anchor, kind), []).append(path)
    return found


def _containers(left: Network, right: Network, pairs: dict[str, tuple[str, str]]) -> None:
    """Pairs layers that contain the same layers, outermost first."""
    taken = {other for other, _ in pairs.values()}
    held: dict[frozenset[str], list[str]] = {}
    for path in sorted(right.order, key=len):
        if path and path not in taken and (inside := right.within(path)):
            held.setdefault(inside, []).append(path)
    groups: dict[frozenset[str], list[str]] = {}
    for path in sorted(left.order, key=len):
        if path and path not in pairs and (inside := left.within(path)) and all(one in pairs for one in inside):
            groups.setdefault(frozenset(pairs[one][0] for one in inside), []).append(path)
    for inside, paths in groups.items():
        pairs |= {one: (other, "contents") for one, other in zip(paths, held.get(inside, []), strict=False)}
