"""Calls an exported model's functions by the meaning of inputs and outputs, whole or in steps."""

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from reference_numpy import TransformerConfig, mask, positional_encoding

from ..checkpoints.strict import numpy_dtype
from . import meanings
from .bundle import Bundle
from .meanings import IGNORED, UNKNOWN
from .signature import Entry, Tensor

Arrays = Mapping[str, np.ndarray]
CACHED = ("keys", "values")  # of all layers; for one layer, key.N and value.N
_OF_SOURCE = ("source", "source_mask", "source_padding", "source_derived", "source_positions", "segments")


class NotShown(Exception):
    """Raised if a function lacks an input, or has no room, for a case; the message says which."""


class Calls:
    """The functions of an exported model with this config.

    tensors: the meanings of inputs and outputs whose names do not show it, see `meanings`.
    function: the whole model's; "" if the file has only one function or one named forward. Raises
    ValueError if the function or the meaning of an input is unknown.
    """

    def __init__(self, bundle: Bundle, config: TransformerConfig, tensors: Mapping[str, str], function: str = "") -> None:
        self.bundle, self.config = bundle, config
        self.forward_name = function or (bundle.names[0] if len(bundle.names) == 1 else "forward")
        if self.forward_name not in bundle.names:
            which = f"has no function {function}" if function else "has no function named forward"
            raise ValueError(f"the file {which}, only {', '.join(bundle.names)}; choose the whole model with --function")
        self._inputs, self._outputs = {}, {}
        for name in bundle.names:
            if name in (self.forward_name, "encode", "step"):
                self._inputs[name] = meanings.of_inputs(bundle.entry(name), config, tensors)
                self._outputs[name] = meanings.of_outputs(bundle.entry(name), config, tensors)
        entries = map(bundle.entry, self._inputs)
        known = [tensor.name for entry in entries for tensor in (*entry.inputs, *entry.outputs)]
        if unknown := [name for name in tensors if not fnmatch.filter(known, name) and name not in known]:
            raise ValueError(f"--tensor names inputs or outputs that the file lacks: {', '.join(unknown)}")

    @property
    def meanings(self) -> dict[str, tuple[Mapping[str, str], Mapping[str, str]]]:
        """The meanings of inputs and of outputs by name, for every function that is called."""
        return {name: (self._inputs[name], self._outputs[name]) for name in self._inputs}

    def signatures(self, file: Path) -> set[str]:
        """Returns the names that a file has for the called functions."""
        return {signature for path, signature in map(self.bundle.place, self._inputs) if path == file}

    @property
    def gives(self) -> dict[str, Tensor]:
        """The outputs of the whole model, by meaning."""
        meanings_of = self._outputs[self.forward_name]
        return {meanings_of[one.name]: one for one in self.entry.outputs if one.name in meanings_of}

    @property
    def entry(self) -> Entry:
        """The function of the whole model."""
        return self.bundle.entry(self.forward_name)

    @cached_property
    def step_name(self) -> str:
        """The function that takes or keeps a cache; empty if there is none."""
        return next((name for name, found in self._inputs.items() if any(map(_is_cache, found.values())) or self.keeps(name)), "")

    def keeps(self, name: str) -> bool:
        """Whether a function keeps a cache between calls: any state with four axes."""
        return any(len(one.shape) == 4 for one in self.bundle.entry(name).kept)

    @cached_property
    def step_size(self) -> int | None:
        """The number of tokens per step; None if it is free."""
        given = next(one for one in self.bundle.entry(self.step_name).inputs if self._inputs[self.step_name][one.name] == "target")
        return size if len(given.shape) == 2 and isinstance(size := given.shape[1], int) else None

    @cached_property
    def room(self) -> int | None:
        """The number of tokens that fit into the cache; None if it grows."""
        if not self.step_name:
            return None
        entry, meanings_of = self.bundle.entry(self.step_name), self._inputs[self.step_name]
        given = {self._outputs[self.step_name].get(one.name): one.shape for one in entry.outputs}
        inputs = [(one.shape, meanings_of[one.name]) for one in entry.inputs]
        caches = [(shape, meaning) for shape, meaning in inputs if shape and _is_cache(meaning) and given.get(meaning) == shape]
        kept = [(one.shape, "") for one in entry.kept if len(one.shape) == 4]
        sizes = [shape[self._axis(shape, meaning)] for shape, meaning in (*kept, *caches) if not meaning.startswith("cross")]
        return max((size for size in sizes if isinstance(size, int) and size), default=None)

    def _axis(self, shape: tuple[int | str, ...], meaning: str = "") -> int:
        """Returns the token axis of a cache with axes `l b s g k`, `b s g k` or `b g s k`."""
        groups = self.config.key_value_heads
        inner = len(shape) == 4 and shape[2] == groups and shape[1] != groups
        return 2 if meaning in CACHED or not inner else 1

    @property
    def fixed(self) -> dict[str, int]:
        """The fixed sizes of the whole model's token inputs: rows, source and target."""
        found: dict[str, int] = {}
        for tensor in self.entry.inputs:
            side = self._inputs[self.forward_name][tensor.name]
            if side in ("source", "target") and len(tensor.shape) == 2:
                sizes = {"rows": tensor.shape[0], side: tensor.shape[1]}
                found |= {what: size for what, size in sizes.items() if isinstance(size, int)}
        return found if self.room is None else found | {"room": self.room}

    def forward(self, **given: np.ndarray | None) -> dict[str, np.ndarray]:
        """Runs the whole model on source, target, masks, segments; returns outputs by meaning."""
        values = self._values({name: array for name, array in given.items() if array is not None})
        if self.forward_name == self.step_name:
            values |= self._empty(self.forward_name, len(next(iter(values.values()))))
        return self.call(self.forward_name, values)

    def start(self, rows: int, source: np.ndarray | None = None, source_mask: np.ndarray | None = None) -> "Steps":
        """Returns the state before the first step. Raises NotShown if no function takes a cache."""
        if not self.step_name:
            raise NotShown("the file has no function that takes a cache")
        state = self._empty(self.step_name, rows)
        if source is not None:
            given = {"source": source} | ({} if source_mask is None else {"source_mask": source_mask})
            values = self._values(given)
            state |= {name: array for name, array in values.items() if name in _OF_SOURCE}
            state |= self.call("encode", values) if "encode" in self._inputs else {}
        return Steps(self, state)

    def call(self, name: str, values: Arrays, resumed: bool = False) -> dict[str, np.ndarray]:
        """Runs a function and returns its outputs by meaning, those without one by `UNKNOWN` and name.

        resumed: continues from the state that its last call left. Raises NotShown if the function
        lacks an input or room for it.
        """
        takes = self._inputs[name]
        for side in ("source", "target"):
            real = values.get(f"{side}_mask")
            hidden = real is not None and not (real.all() or np.array_equal(real, values.get(f"{side}_derived", np.empty(0))))
            if hidden and side in takes.values() and not {f"{side}_mask", f"{side}_padding"} & {*takes.values()}:
                raise NotShown(f"the file takes no mask for its {side}")
        room = self.room if name == self.step_name else None
        if room and (length := values["target_mask"].shape[1]) > room:
            raise NotShown(f"the cache has room for {room} tokens; got {length}")
        if "segments" not in takes.values() and values.get("segments", np.zeros(1)).any():
            raise NotShown("the file takes no segments")
        arrays = {}
        for tensor in self.bundle.entry(name).inputs:
            if (meaning := takes[tensor.name]) not in values:
                raise NotShown(f"its function {name} needs the input {tensor.name} ({meaning}), which the case does not have")
            array = values[meaning]
            if room and meaning in ("target_mask", "target_padding"):
                array = np.pad(array, ((0, 0), (0, room - array.shape[1])), constant_values=meaning == "target_padding")
            arrays[tensor.name] = _fitting(tensor, array)
        outputs = (self.bundle.resume if resumed else self.bundle.run)(name, arrays)
        return {self._outputs[name].get(own, UNKNOWN + own): array for own, array in outputs.items()}

    def _values(self, given: Arrays) -> dict[str, np.ndarray]:
        """Adds the masks, positions and segments that follow from the given values."""
        values = dict(given)
        for side in ("source", "target"):
            if side in given:
                values |= self.of_mask(side, given[side], given.get(f"{side}_mask"))
        if "source" in given:
            values.setdefault("segments", np.zeros(given["source"].shape, np.int64))
        return values

    def of_mask(self, side: str, token_bt: np.ndarray, real_bt: np.ndarray | None) -> dict[str, np.ndarray]:
        """Returns the mask, padding and positions of tokens, and the mask that the ids imply."""
        derived_bt = mask.token_mask(token_bt, self.config.padding_id)
        real_bt = derived_bt if real_bt is None else real_bt
        position_bt = positional_encoding.token_positions(real_bt, self.config.position_start)
        own = {f"{side}_mask": real_bt, f"{side}_padding": ~real_bt, f"{side}_positions": position_bt, f"{side}_derived": derived_bt}
        alone = {"cache_positions": np.arange(token_bt.shape[1]), "uses_cache": np.array([False]), "logits_to_keep": np.zeros((), np.int64)}
        return own | alone

    def _empty(self, name: str, rows: int) -> dict[str, np.ndarray]:
        """Returns an empty cache in the form that a function takes."""
        config, found = self.config, {}
        for tensor in self.bundle.entry(name).inputs:
            meaning = self._inputs[name][tensor.name]
            if _is_cache(meaning) and not meaning.startswith("cross"):
                heads, size = config.key_value_heads, config.value_size if meaning.startswith("value") else config.key_size
                layers = (config.decoder_layers,) if meaning in CACHED else ()
                axis = self._axis(tensor.shape, meaning)
                fixed = tensor.shape[axis] if self.room and tensor.shape else 0
                room = fixed if isinstance(fixed, int) else 0
                own = (rows, room, heads, size) if layers or axis == 1 else (rows, heads, room, size)
                found[meaning] = np.zeros((*layers, *own), numpy_dtype(tensor.dtype))
        return found


class Steps:
    """The cache of rows that are decoded step by step."""

    def __init__(self, calls: Calls, state: dict[str, np.ndarray]) -> None:
        self._calls, self._state = calls, state
        self._token_bt: np.ndarray | None = None
        self._mask_bt: np.ndarray | None = None

    def read(self, token_bt: np.ndarray, mask_bt: np.ndarray | None = None) -> np.ndarray:
        """Reads tokens, as many per call as the function takes; returns their logits `b t v`."""
        mask_bt = mask.token_mask(token_bt, self._calls.config.padding_id) if mask_bt is None else mask_bt
        size = self._calls.step_size or max(token_bt.shape[1], 1)
        parts = [slice(start, start + size) for start in range(0, max(token_bt.shape[1], 1), size)]
        return np.concatenate([self._read(token_bt[:, part], mask_bt[:, part]) for part in parts], axis=1)

    def _read(self, token_bt: np.ndarray, mask_bt: np.ndarray) -> np.ndarray:
        calls, before = self._calls, 0 if self._mask_bt is None else self._mask_bt.shape[1]
        every_bt = token_bt if self._token_bt is None else np.concatenate([self._token_bt, token_bt], axis=1)
        self._mask_bt = mask_bt if self._mask_bt is None else np.concatenate([self._mask_bt, mask_bt], axis=1)
        self._token_bt = every_bt
        values = calls.of_mask("target", every_bt, self._mask_bt)
        new = {"target_positions": values["target_positions"][:, before:], "cache_positions": np.arange(before, every_bt.shape[1])}
        values |= new | {"target": token_bt, "uses_cache": np.array([before > 0])}
        found = calls.call(calls.step_name, self._state | values, resumed=before > 0 and calls.keeps(calls.step_name))
        self._state |= {name: array for name, array in found.items() if _is_cache(name) and array.size}
        return found["logits"]

    def reorder(self, row_b: np.ndarray) -> None:
        """Replaces row i by row `row_b[i]`. Raises NotShown if the function keeps its own cache."""
        if self._calls.keeps(self._calls.step_name) and not np.array_equal(row_b, np.arange(len(row_b))):
            raise NotShown("the file keeps its cache internally, so rows cannot be reordered")
        for name, array in self._state.items():
            self._state[name] = array.take(row_b, axis=1 if name.split("_")[-1] in CACHED else 0)
        if self._mask_bt is not None and self._token_bt is not None:
            self._mask_bt, self._token_bt = self._mask_bt[row_b], self._token_bt[row_b]


def _is_cache(meaning: str) -> bool:
    return meaning.removeprefix("cross_").partition(".")[0] in (*CACHED, "key", "value")


def _fitting(tensor: Tensor, array: np.ndarray) -> np.ndarray:
    """Converts an array to an input's dtype. Raises NotShown if its shape does not fit."""
    fits = not tensor.shape or len(tensor.shape) == array.ndim
    if not fits or any(isinstance(size, int) and size != got for size, got in zip(tensor.shape, array.shape, strict=False)):
        raise NotShown(f"the file takes only {tensor}")
    return np.asarray(array, numpy_dtype(tensor.dtype) if tensor.dtype else None, order="C")


def unjudged(calls: Calls, asked: Collection[str], chosen: bool) -> Iterator[tuple[str, str]]:
    """Yields what is not judged: its place and a sentence.

    asked: the meanings of the outputs that cases judge. chosen: whether the user chose the function
    and thereby left out the others.
    """
    for function, (_, outputs) in calls.meanings.items():
        judged = {IGNORED, *_read_by_steps(calls, function), *(asked if function == calls.forward_name else ())}
        left = [tensor for tensor in calls.bundle.entry(function).outputs if outputs.get(tensor.name) not in judged]
        if left:
            options = f"set its meaning with --tensor NAME=MEANING, or accept it with NAME={IGNORED}"
            yield f"outputs/{function}", f"not judged: {_listed(tensor.name for tensor in left)}; {options}"
    body = calls.entry.body
    others = [name for name in calls.bundle.names if name not in calls.meanings and not (body and calls.bundle.entry(name).body == body)]
    if others and not chosen:
        option = "judge one with --function NAME, which also accepts that the others are not judged"
        yield "outputs/functions", f"not called: {_listed(others)}; {option}"


def _read_by_steps(calls: Calls, function: str) -> set[str]:
    """Returns the meanings of outputs that steps read or judge."""
    if not calls.step_name or function not in (calls.step_name, "encode"):
        return set()
    inputs, _ = calls.meanings[calls.step_name]
    return {*inputs.values(), *(["logits"] if function == calls.step_name else [])}


def _listed(names: Iterable[str]) -> str:
    """Lists every name; those that differ only in their numbers as one pattern."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    return ", ".join(pattern if len(own) > 1 else own[0] for pattern, own in alike.items())
