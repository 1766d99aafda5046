"""The rename table, which maps names of layers and variables on the left to names on the right.

It is a TOML file with rows `"left" = "right"`: whole names, prefixes, or single parts of names; the
longest match wins. {n} matches a number. A row of a variable can have axes, and sizes that the
shapes do not determine:

    "layers.{n}.mlp.up_proj" = "transformer_layer_{n}._feedforward_gate_dense"
    "head.weight" = {name = "head.kernel", left = "o (c h w)", right = "(h w c) o", c = 8, h = 7, w = 7}

Several rows may have the same right name, for tied tables. A list splits a fused variable of the
left, in order or with ranges of the outputs. "" marks a name without a partner; names of the right
without a partner are a list under "":

    "h.{n}.attn.c_attn.bias" = ["layer_{n}.query.bias", "layer_{n}.key.bias", "layer_{n}.value.bias"]
    "h.{n}.attn.c_attn.weight" = [{name = "layer_{n}.query.kernel", slice = "0:24"}, {name = "layer_{n}.key.kernel", slice = "24:48"}]
    "rotary_emb.scale" = ""
    "" = ["reverse_embeddings"]

Tables from transformers to KerasHub are included (`SHIPPED`).
"""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reference_numpy.suggestions import known

from ...common.reading import read_toml

FORM = '"left" = "right", or "left" = {name = "right", left = "o i", right = "i o"}, or a list of names, or of {name, slice}'
NUMBER = "{n}"
SHIPPED = "keras-hub:"  # prefix of the family of an included table
WHOLE = (0, -1)  # range of a part that follows from the sizes of the parts
TABLES = Path(__file__).with_name("tables")
GROUP = re.compile(r"\([^)]*\)")


@dataclasses.dataclass(frozen=True)
class Row:
    """A name on the right, and the axes on both sides.

    sizes: sizes that the shapes do not determine.
    """

    name: str
    left: str = ""
    right: str = ""
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Rename:
    """A rename table.

    rows: by the left's name, or a part of it. parts: the right's names for each fused variable of
    the left, with ranges of its outputs. alone: names of the left and of the right without a
    partner.
    """

    rows: Mapping[str, Row] = dataclasses.field(default_factory=dict)
    parts: Mapping[str, Sequence[tuple[str, int, int]]] = dataclasses.field(default_factory=dict)
    alone: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def numbered(self, names: Iterable[str]) -> "Rename":
        """Returns the table with {n} expanded to the numbers in the left's names."""
        names = [*names]
        rows = {left: row for left, row in self.rows.items() if NUMBER not in left}
        parts = {left: each for left, each in self.parts.items() if NUMBER not in left}
        # every pattern with every number that makes it a name or a prefix
        found = []
        for pattern in (one for one in (*self.rows, *self.parts) if NUMBER in one):
            escaped = re.escape(pattern).replace(r"\{n\}", r"(\d+)", 1).replace(r"\{n\}", r"\1")
            known = re.compile(rf"{escaped}(\..*)?")
            numbers = dict.fromkeys(match[1] for match in map(known.fullmatch, names) if match)
            found += [(pattern, number) for number in numbers]
        for pattern, number in found:
            left = pattern.replace(NUMBER, number)
            if pattern in self.rows:
                row = self.rows[pattern]
                rows.setdefault(left, dataclasses.replace(row, name=row.name.replace(NUMBER, number)))
            else:
                parts[left] = [(name.replace(NUMBER, number), start, stop) for name, start, stop in self.parts[pattern]]
        return Rename(rows, parts, self.alone)

    def is_alone(self, which: int, name: str) -> bool:
        """Returns whether the table marks the name, or a prefix of it, as having no partner."""
        return any(re.fullmatch(re.escape(one).replace(r"\{n\}", r"\d+") + r"(\..*)?", name) for one in self.alone[which])

    def of(self, name: str) -> str:
        """Returns the name on the right; the same name if no row matches."""
        if name in self.rows:
            return self.rows[name].name
        starts = [left for left in self.rows if name.startswith(f"{left}.")]
        if starts:
            longest = max(starts, key=len)
            rest = name.removeprefix(f"{longest}.")
            return ".".join(filter(None, [self.rows[longest].name, self._by_part(rest)]))
        return self._by_part(name)

    def _by_part(self, name: str) -> str:
        return ".".join(self.rows[part].name if part in self.rows else part for part in name.split("."))


def read(name: str | Path) -> Rename:
    """Reads a table from a file, or an included one such as `keras-hub:llama`; empty without a
    name.

    Raises ValueError that lists every invalid row.
    """
    text = str(name)
    if not text:
        return Rename()
    path = Path(text)
    if text.startswith(SHIPPED) and not path.exists():
        family = text.removeprefix(SHIPPED)
        known(f"the table {text}", [family], shipped())
        path = TABLES / f"{family}.toml"
    rows, parts, problems = {}, {}, []
    alone: tuple[list[str], list[str]] = ([], [])
    for left, value in read_toml(path).items():
        if not left and isinstance(value, list) and all(isinstance(each, str) for each in value):
            alone[1].extend(value)
        elif value == "":
            alone[0].append(left)
        elif isinstance(value, str) and left:
            rows[left] = Row(value)
        elif isinstance(value, list) and left and value and all(isinstance(each, str) and each for each in value):
            parts[left] = [(each, *WHOLE) for each in value]
        elif isinstance(value, list) and left and all(map(_is_part, value)):
            parts[left] = [(each["name"], *map(int, each["slice"].split(":"))) for each in value]
        elif isinstance(value, dict) and isinstance(value.get("name"), str):
            sizes = {letter: size for letter, size in value.items() if isinstance(size, int)}
            rows[left] = Row(value["name"], str(value.get("left", "")), str(value.get("right", "")), sizes)
        else:
            problems.append(f"{left!r} must be {FORM}; got {value!r:.80}")
    if problems:
        raise ValueError(f"{path}:\n  " + "\n  ".join(problems))
    return Rename(rows, parts, (tuple(alone[0]), tuple(alone[1])))


def shipped() -> list[str]:
    """Returns the families with an included table from transformers (left) to KerasHub (right)."""
    return sorted(path.stem for path in TABLES.glob("*.toml"))


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and bool(re.fullmatch(r"\d+:\d+", str(value.get("slice", ""))))


def unfinished(weights: Sequence[Mapping[str, Any]], layers: Mapping[str, tuple[str, str]]) -> str:
    """Returns the table of the matched names, with rows to fill in and the candidates."""
    rows = [{"left": one, "right": other} for one, (other, _) in layers.items()]
    spare = [row["right"] for row in weights if not row["left"]]
    lines = [written([row for row in weights if row["left"] and row["right"]], rows).rstrip("\n")]
    lines += ['# fill in the names, or keep "" for no partner; candidates:', *(f"#   {name}" for name in spare)]
    lines += [f'# "{row["left"]}" = ""' for row in weights if row["left"] and not row["right"]]
    return "\n".join(lines) + "\n"


def written(weights: Sequence[Mapping[str, Any]], layers: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table as TOML, without rows that are found automatically."""
    several = {row["left"] for row in layers if row["left"].endswith("]")}  # parts of fused layers and of tables
    holding = {row["layer"] for row in weights if row["left"]} - several
    rows = [(row["left"], f'"{row["right"]}"') for row in layers if row["left"] in holding and row["left"] != row["right"]]
    held: dict[str, list[str]] = {}
    own = []
    for row in weights:
        if row["left"].endswith(":]") or not (row["left"] and row["right"]):
            continue
        if row["layer"] in several:
            held.setdefault(row["left"].rpartition("[")[0], []).append(row["right"])
        elif not row["how"].startswith(("role", "name", "canonical name")) or not row["layer"]:
            own.append((row["left"], _partner(row)))
    own += [(name, json.dumps(names)) for name, names in held.items()]
    own += [(row["left"], '""') for row in weights if not row["right"]]
    if spare := [row["right"] for row in weights if not row["left"]]:
        own.append(("", json.dumps(spare)))
    lines = ["# layers", *_folded(rows), "# variables", *_folded(own)]
    return "\n".join(lines) + "\n"


def _partner(row: Mapping[str, Any]) -> str:
    """Returns the right's name of a variable, with axes and sizes if needed."""
    if not row.get("left_axes"):
        return f'"{row["right"]}"'
    shown = "".join(GROUP.sub("", row[f"{side}_axes"]) for side in ("left", "right"))
    sizes = "".join(f", {letter} = {size}" for letter, size in row["sizes"].items() if letter != "1" and letter not in shown)
    return f'{{name = "{row["right"]}", left = "{row["left_axes"]}", right = "{row["right_axes"]}"{sizes}}}'


def _folded(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the lines of a table, with {n} for numbers in names that differ only in them."""
    patterns = [_pattern(left, right) for left, right in rows]
    counts = Counter(patterns), Counter(left for left, _ in patterns)
    lines = [
        f'"{left}" = {right}'
        for pattern, row in zip(patterns, rows, strict=True)
        for left, right in [pattern if counts[0][pattern] == counts[1][pattern[0]] > 1 else row]
    ]
    return [*dict.fromkeys(lines)]


def _pattern(left: str, right: str) -> tuple[str, str]:
    """Returns the row with {n} for the first number of the left, if the right has it, too."""
    number = re.search(r"\d+", left)
    found = number and re.compile(rf"(?<!\d){number[0]}(?!\d)")
    if not number or not found or not found.search(right):
        return left, right
    parts = (left[: number.start()], left[number.end() :])
    return NUMBER.join(parts), re.sub(r'"[^"]*"', lambda name: found.sub(NUMBER, name[0], count=1), right)
