"""Reads Hugging Face folders and reports everything that is wrong with config.json and tensors."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters
from reference_numpy.suggestions import nearest

from ....common.reading import read_object
from .. import Checkpoint, CheckpointError, pickled, recognise, strict, tables
from ..tables import Native
from . import composite, entries, shown
from .families import FAMILIES
from .family import Family
from .heads import Heads, advice, belonging, select

CONFIG, GENERATION = recognise.CONFIG, "generation_config.json"
ROWS = 1024  # table rows compared at a time


@dataclass
class Examination:
    """The content of a folder.

    natives: the tensors that the config expects, by stored name. states: the state of every stored
    or missing tensor (matched, tied, missing, unexpected, shape, dtype, left out or buffer).
    alien: heads that must be ignored.
    """

    path: Path
    family: Family
    foreign: dict[str, Any]
    tensors: dict[str, np.ndarray]
    config: TransformerConfig | None = None
    natives: dict[str, Native] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    alien: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def checkpoint(self) -> Checkpoint:
        """Returns the checkpoint, as views of the files. Raises CheckpointError on any problem."""
        if self.problems or self.config is None:
            raise CheckpointError(self.path, self.problems)
        matched = ((native, self.tensors[key]) for key, native in self.natives.items() if self.states[key] == "matched")
        found = tables.canonical(matched)
        return Checkpoint(self.config, tables.Made(found.__getitem__, parameters.axes(self.config)), self.foreign)


def view(path: str | Path, *, ignore: Sequence[str] = (), spare: Sequence[str] = ()) -> Checkpoint:
    """Returns the checkpoint of a folder, or of a file or index in it, as views of its files.

    ignore: tensors, entries of config.json and generation_config.json, and heads to treat as absent
    (pooler, masked_language_head, classifier, or unsupported ones such as next_sentence_head).
    spare: heads that may be missing. Raises ValueError listing every problem: shards; unsupported
    entries; missing, unexpected and misshapen tensors; unsupported heads and how to ignore them;
    ties that contradict config.json; dtypes; values that are not finite.
    """
    return examine(path, ignore=ignore, spare=spare).checkpoint()


def examine(path: str | Path, *, ignore: Sequence[str] = (), spare: Sequence[str] = ()) -> Examination:
    """Like `view`, but returns the problems and the state of every tensor.

    Raises ValueError if config.json is not that of a supported family, or if there are no tensors.
    If files are damaged or missing, no other problems are reported.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    files = _files(folder)
    source = pickled.read(path)
    family, foreign = _told(folder, files, ignore, source.tensors)
    said = foreign[CONFIG]
    empty = [] if source.tensors else ["has no tensors"]
    found = Examination(path, family, foreign, dict(source.tensors), problems=list(source.problems or empty))
    if found.problems:
        return found
    found.problems += _unknown(ignore, family, [*source.tensors, *(name for entries in files.values() for name in entries)])
    keys = _keys(found, ignore)
    absent = [head.name for head in family.heads if head.name in spare and not belonging([head], keys)]
    heads = select(family, said, {name: found.tensors[key].shape for name, key in keys.items()}, [*ignore, *absent])
    found.alien = [head.name for head in heads.alien]
    for part, state in ((heads.left, "left out"), (heads.alien, "unexpected")):
        found.states |= {keys.pop(name): state for name in belonging(part, list(keys))}
    found.config, problems = entries.config_of(found.family, said, heads.chosen)
    if found.config:
        found.problems += heads.problems
        found.config = _matched(found, found.config, keys, heads)
    else:
        lacking = _lacking(found, said, keys, heads)
        problems = [entries.unadvised(problem) for problem in problems] if lacking else problems
        found.problems += lacking + [f"{CONFIG}: {problem}" for problem in problems] + heads.problems
    known = {key: native.shape for key, native in found.natives.items()}
    wide = [key for key, native in found.natives.items() if native.parts[0][0].name.endswith(strict.WIDE)]
    found.problems += strict.content_problems({key: found.tensors[key] for key in keys.values()}, known, wide)
    return found


def _matched(found: Examination, config: TransformerConfig, keys: Mapping[str, str], heads: Heads) -> TransformerConfig:
    """Matches tensors like `_match`, and returns the config corrected by what they show."""
    for corrected in (shown.layered, shown.mixed, shown.switched, shown.counted):
        config, problems = corrected(found.family, config, keys)
        found.problems += problems
    _match(found, config, keys, heads)
    return config


def _lacking(found: Examination, said: Mapping[str, Any], keys: Mapping[str, str], heads: Heads) -> list[str]:
    """Reports missing tensors of a folder whose entries are not supported.

    They suggest that the folder belongs to another family.
    """
    config, _ = entries.config_of(found.family, entries.supported_alone(found.family, said), heads.chosen)
    own = Examination(found.path, found.family, found.foreign, found.tensors)
    if config:
        _matched(own, config, keys, heads)
    missing = [name for name, state in own.states.items() if state == "missing"]
    first = f"is missing tensors of a {found.family.name}, so its model_type may be wrong: {', '.join(missing[:3])}"
    return [f"{first} and {len(missing) - 3} more" if len(missing) > 3 else first] if missing else []


def described(path: Path, *, ignore: Sequence[str] = ()) -> Checkpoint:
    """Returns the checkpoint that a folder's JSON files describe, without reading tensors.

    ignore: entries and heads to treat as absent. Raises ValueError listing every problem.
    """
    files = _files(path)
    family, foreign = _told(path, files, ignore, ())
    problems = _unknown(ignore, family, [name for entries in files.values() for name in entries])
    heads = select(family, foreign[CONFIG], {}, ignore)
    config, wrong = entries.config_of(family, foreign[CONFIG], heads.chosen)
    problems += heads.problems + [f"{CONFIG}: {problem}" for problem in wrong]
    if problems or config is None:
        raise CheckpointError(path, problems)
    return Checkpoint(config, {}, foreign)


def _unknown(ignore: Sequence[str], family: Family, given: Sequence[str]) -> list[str]:
    """Reports each ignored name that is neither given nor a head of the family."""
    known = [*given, *(head.name for head in family.heads)]
    return [f"--ignore {name}: there is no such head, tensor or entry{nearest(name, known)}" for name in ignore if name not in known]


def _files(folder: Path) -> dict[str, dict[str, Any]]:
    """Reads config.json, and generation_config.json if there is one."""
    files = {CONFIG: recognise.hugging_face_config(folder)}
    if os.path.lexists(folder / GENERATION):
        files[GENERATION] = read_object(folder / GENERATION)
    return files


def _told(
    folder: Path, files: Mapping[str, Mapping[str, Any]], ignore: Sequence[str], tensors: Iterable[str]
) -> tuple[Family, dict[str, Any]]:
    """Returns the family and the entries that are not ignored. Raises ValueError if unsupported."""
    foreign = {file: {name: value for name, value in entries.items() if name not in ignore} for file, entries in files.items()}
    family = _family(foreign[CONFIG], tensors)
    if family and foreign[CONFIG].get("model_type") in composite.TEXTS:
        foreign[CONFIG] = composite.text_entries(family, foreign[CONFIG], tensors)
    if family is None:
        kind = foreign[CONFIG].get("model_type")
        if named := recognise.model_type(folder):
            raise recognise.ForeignError(folder, recognise.unread(named, folder, list(tensors)[:1]))
        raise ValueError(f"{folder / CONFIG} must have a supported model_type, one of {', '.join(FAMILIES)}; got {kind!r:.100}")
    foreign[CONFIG]["model_type"] = family.model_type
    return family, foreign


def family_of(path: Path, names: Iterable[str]) -> Family | None:
    """Returns the family of a folder or of a file's folder; None if it is not supported.

    config.json's model_type decides, or else its class or the tensor names.
    """
    try:
        return _family(recognise.hugging_face_config(path), names)
    except (OSError, ValueError):
        return None


def _family(said: Mapping[str, Any], names: Iterable[str]) -> Family | None:
    kind = said.get("model_type")
    if kind is not None:
        return composite.family_of(said) or FAMILIES.get(kind) if isinstance(kind, str) else None
    names = list(names)
    fitting = [family for family in FAMILIES.values() if family.owns(said, names)]
    return fitting[0] if len(fitting) == 1 else None


def _keys(found: Examination, ignore: Sequence[str]) -> dict[str, str]:
    """Maps native to stored names, without buffers and ignored tensors."""
    keys: dict[str, str] = {}
    mark = found.family.marked
    others = {native.removesuffix(mark) for native in map(found.family.native, found.tensors) if mark and native.endswith(mark)}
    for key in found.tensors:
        native = found.family.native(key)
        if key in ignore or re.fullmatch(found.family.beside, native) or native.startswith(tuple(others)):
            found.states[key] = "left out"
        elif re.fullmatch(found.family.buffers, native):
            found.states[key] = "buffer"
        elif native in keys:
            found.states[key] = "unexpected"
            found.problems.append(f"{key} and {keys[native]} are the same tensor of a {found.family.name}; --ignore one of them")
        else:
            keys[native] = key
    return keys


def _match(found: Examination, config: TransformerConfig, keys: Mapping[str, str], heads: Heads) -> None:
    """Matches the config's tensors with the folder's, and records every problem."""
    family, ties = found.family, _ties(found.family, config)
    keys, prefixed = dict(keys), any(key.startswith(family.prefix) for key in keys.values())
    rows = family.rows(config, keys)
    expected = {native.name: native for native in tables.natives(rows, config)}
    held_by_none = parameters.axes(config).keys() - {part.name for native in expected.values() for part, _, _ in native.parts}
    found.problems += [f"no tensor of a {family.name} holds {name}" for name in sorted(held_by_none)]
    held = {row.parts[0].name for row in rows}
    for name in [row.name for row in family.table if row not in rows and row.parts[0].name in held and row.name in keys]:
        found.states[keys.pop(name)] = "left out"  # another tensor replaces it
    for twin, name in family.twins.items():
        if name not in keys and twin in keys:
            keys[name] = keys.pop(twin)
        elif name in expected and twin in keys:
            _compare(found, keys.pop(twin), keys[name], tied=config.tie_logits)
    for name, stored in ties.items():
        if name in keys:
            if stored in keys:
                _compare(found, keys[name], keys[stored], tied=True)
            keys.pop(name)
        expected.pop(name)
    if not config.tie_logits:
        untied = [name for name in _ties(family, config.replace(tie_logits=True)) if name not in keys]
        found.problems += [f"config.json has tie_word_embeddings=false, but there is no {name}" for name in untied]
    lost = _lost_heads(found, heads, [name for name in expected if name not in keys])
    found.natives = {keys.get(name, family.stored(name, prefixed)): native for name, native in expected.items() if name not in lost}
    shapes = {key: native.shape for key, native in found.natives.items()}
    found.problems += shown.contradictions(family, found.natives, found.tensors)
    buffers = {key: found.tensors[key] for key, state in found.states.items() if state == "buffer"}
    found.problems += shown.positions(config, buffers)
    found.problems += parameters.mismatches({key: found.tensors[key] for key in keys.values()}, shapes)
    found.states |= {key: "unexpected" for key in keys.values() if key not in shapes}
    for key, shape in shapes.items():
        found.states[key] = _state(found.tensors.get(key), shape)


def _state(array: np.ndarray | None, shape: tuple[int, ...]) -> str:
    if array is None:
        return "missing"
    if array.shape != shape:
        return "shape"
    return "matched" if str(array.dtype) in strict.DTYPES else "dtype"


def _ties(family: Family, config: TransformerConfig) -> dict[str, str]:
    """Returns the native tensors that the config ties to other tensors."""
    names = {row.parts[0].name: row.name for row in family.table}
    return {names[name]: names[stored] for name, stored in parameters.ties(config).items()}


def _lost_heads(found: Examination, heads: Heads, missing: Sequence[str]) -> list[str]:
    """Returns the tensors of completely missing heads; each such head is one problem."""
    lost: list[str] = []
    for head in found.family.heads:
        own = belonging([head], [row.name for row in found.family.table])
        if head.flag and head.name in heads.chosen and own and {*own} <= {*missing}:
            found.problems.append(f"lacks the {head.name} of its class (tensors {', '.join(own)}); {advice(head.name)}")
            lost += own
    return lost


def _compare(found: Examination, key: str, stored: str, tied: bool) -> None:
    """Compares a stored tensor with the tensor it is tied to; a difference is a problem."""
    found.states[key] = "tied"
    first, second = found.tensors[key], found.tensors[stored]
    parts = (slice(start, start + ROWS) for start in range(0, len(first), ROWS))
    same = first.shape == second.shape and first.dtype == second.dtype
    if tied and not (same and all(first[part].tobytes() == second[part].tobytes() for part in parts)):
        found.problems.append(f"{key} differs from {stored}, to which config.json ties it (tie_word_embeddings)")
