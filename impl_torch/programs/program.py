"""Decoding steps as programs: compiled ahead of time, called without guards, cached on disk.

A program's name encodes all that torch needs to know, so that one program serves every model and
process with the same step.
"""

import contextlib
import hashlib
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from .. import framework
from ..kernels.int8 import LARGEST, OFFSET
from ..transformer import Transformer

__all__ = ["StepProgram", "signature"]

Cache = Mapping[str, Any]
Result = Tensor | tuple[Tensor, ...]  # a tuple has named fields
Arg = Tensor | bool | None  # argument of a step; constants unless tensors
Step = Callable[..., tuple[Result, Cache]]
Run = Callable[[list[Tensor]], list[Tensor]]
Slot = tuple[dict[str, Any], str]  # the dict of a module that holds a tensor, and the tensor's name
AUTO = torch.export.Dim.AUTO
VERSION = "2"  # of the rules of `compile_to`; part of a program's name
log = logging.getLogger(__name__)


class StepProgram:
    """Runs `step(model, target, cache, *args)` for single tokens, any length and any weights.

    Its inputs are, in this order: the target, a tensor as long as what has been read after the
    step, the tensors that a step may replace, the tensor arguments, and `fixed`.
    """

    def __init__(
        self, step: Step, model: Transformer, target: Tensor, cache: Cache, args: Sequence[Arg]
    ) -> None:
        self._kind: type[Result] = Tensor
        slots = list(_slots(model))

        def run(inputs: list[Tensor]) -> tuple[Tensor, ...]:
            rest = iter(inputs)
            target, end = next(rest), next(rest).shape[0]
            kept = {**cache, "read": end - 1}
            kept |= {"leading_b": next(rest), "target_mask_bwtw": next(rest)}
            if cache["source_mask_bs"] is not None:
                kept["source_mask_bs"] = next(rest)
            given = [next(rest) if isinstance(arg, Tensor) else arg for arg in args]
            kept["layers"] = [
                {name: type(pair)(*(next(rest) for _ in pair)) for name, pair in layer.items()}
                for layer in cache["layers"]
            ]
            if cache["encoding_pd"] is not None:
                kept["encoding_pd"] = next(rest)
            kept["rotations"] = {
                turning: type(table)(*(next(rest) for _ in table))
                for turning, table in cache["rotations"].items()
            }
            with _replaced(slots, list(rest)):
                result, after = step(model, target, kept, *given)
            if isinstance(result, Tensor):
                return result, after["leading_b"]
            self._kind = type(result)
            return *result, after["leading_b"]

        traced: Any = nn.Module()  # `torch.export` rejects functions
        traced.forward = run
        inputs = _inputs(target, cache, args) + fixed(model, cache)
        free = [dict.fromkeys(axes, AUTO) for axes in _lengths(cache, args, len(inputs))]
        with torch.inference_mode(False), torch.no_grad():
            # same layout but uninitialized, except prepacked kernels
            examples = [
                x if x.is_mkldnn else x.new_empty_strided(x.shape, x.stride()) for x in inputs
            ]
            exported = torch.export.export(
                traced, (examples,), dynamic_shapes=(free,), strict=False
            )
        self._run = loaded(exported, _key(exported))

    def __call__(
        self, target: Tensor, cache: Cache, args: Sequence[Arg], fixed: list[Tensor]
    ) -> tuple[Result, Cache]:
        *parts, leading_b = self._run(_inputs(target, cache, args) + fixed)
        result = parts[0] if self._kind is Tensor else self._kind(*parts)
        return result, {**cache, "read": cache["read"] + 1, "leading_b": leading_b}


def fixed(model: Transformer, cache: Cache) -> list[Tensor]:
    """Returns inputs that are constant during a search: keys, values, tables, weights."""
    kept = [x for layer in cache["layers"] for pair in layer.values() for x in pair]
    return [*kept, *_tables(cache), *(holder[name] for holder, name in _slots(model))]


def _tables(cache: Cache) -> list[Tensor]:
    """Returns the position tables."""
    encoding = [] if cache["encoding_pd"] is None else [cache["encoding_pd"]]
    return encoding + [part for table in cache["rotations"].values() for part in table]


def signature(target: Tensor, cache: Cache, args: Sequence[Arg], fixed: list[Tensor]) -> Hashable:
    """Returns what must be equal for a program to apply; lengths may differ."""
    inputs = _inputs(target, cache, args) + fixed
    sizes = [
        tuple(-1 if axis in free else size for axis, size in enumerate(x.shape))
        for x, free in zip(inputs, _lengths(cache, args, len(inputs)), strict=True)
    ]
    others = tuple(None if isinstance(arg, Tensor) else arg for arg in args)
    kinds = tuple((x.dtype, x.device, x.layout) for x in inputs)
    chosen = cache["source_mask_bs"] is None, cache["windows"], tuple(cache["rotations"])
    return chosen, tuple(sizes), kinds, others, torch.get_num_threads()


def _inputs(target: Tensor, cache: Cache, args: Sequence[Arg]) -> list[Tensor]:
    """Returns the inputs that may change in every step."""
    kept = [cache["leading_b"], cache["target_mask_bwtw"]]
    if cache["source_mask_bs"] is not None:
        kept.append(cache["source_mask_bs"])
    length = target.new_empty(cache["read"] + 1, 0)
    return [target, length, *kept, *(arg for arg in args if isinstance(arg, Tensor))]


def _lengths(cache: Cache, args: Sequence[Arg], count: int) -> list[tuple[int, ...]]:
    """Returns, for each of `count` inputs, the axes whose sizes are variables of a program."""
    axes: list[tuple[int, ...]] = [(), (0,), (), (2,)] + [(1,)] * (
        cache["source_mask_bs"] is not None
    )
    axes += [()] * sum(isinstance(arg, Tensor) for arg in args)
    for layer, window in zip(cache["layers"], cache["windows"], strict=True):
        for name, pair in layer.items():
            fixed_size = window and name == "self_attention"
            axes += [() if fixed_size else (1,)] * len(pair)
    axes += [(0,)] * len(_tables(cache))
    return axes + [()] * (count - len(axes))


def _slots(model: Transformer) -> Iterator[Slot]:
    """Yields where a model stores what a step reads: parameters, buffers and fused kernels."""
    encoder = {*model.encoder.modules()} if model.config.encoder_layers else ()
    for module in model.modules():
        for holder in framework.holders(module) if module not in encoder else ():
            yield from ((holder, name) for name, x in holder.items() if isinstance(x, Tensor))


@contextlib.contextmanager
def _replaced(slots: Sequence[Slot], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Puts tensors into slots; slots that share a tensor all get the first of theirs."""
    own = [holder[name] for holder, name in slots]
    first: dict[int, Tensor] = {}
    for (holder, name), x, tensor in zip(slots, own, tensors, strict=True):
        holder[name] = first.setdefault(id(x), tensor)
    try:
        yield
    finally:
        for (holder, name), x in zip(slots, own, strict=True):
            holder[name] = x


def _key(exported: ExportedProgram) -> str:
    """Names a program by its graph and shapes, constants, torch, processor and threads."""
    code = exported.graph_module.print_readable(
        print_output=False, include_stride=True, include_device=True
    )
    lines = [line for line in code.splitlines() if not line.lstrip().startswith("#")]
    constants = sorted(exported.constants.items())
    lines += [f"{name} {x.tolist()}" for name, x in constants if isinstance(x, Tensor)]
    devices = {x.device for x in exported.example_inputs[0][0]}
    on = [torch.cuda.get_device_properties(device) for device in devices if device.type == "cuda"]
    about = torch.__version__, torch.cpu.get_capabilities(), torch.get_num_threads(), *on
    lines += [VERSION, *map(str, about)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def loaded(exported: ExportedProgram, key: str) -> Run:
    """Loads the exported program as machine code, compiling it unless it is on disk."""
    with tempfile.TemporaryDirectory() as temporary:
        place = temporary if torch.compiler.config.force_disable_caches else framework.programs()
        path = Path(place, "impl_torch", f"{key}.pt2")
        if not path.exists():
            compile_to(exported, path)
        return framework.program(path)


def compile_to(exported: ExportedProgram, path: Path) -> None:
    """Writes the program's file, with products of packed kernels called from C++: the kernels are
    inputs, while Inductor's own rules only take constants.
    """
    of_x = torch.tensor(1 / LARGEST), torch.tensor(OFFSET, dtype=torch.int32)
    int8: Callable[..., Any] = partial(framework.compiled_int8, of_x)
    rules = {torch.ops.impl_torch.one_dnn_int8.default: int8, **framework.kernel_rules()}
    started = time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.stem}.{os.getpid()}.pt2")
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore", FutureWarning)  # about torch itself
        framework.compile_to(exported, temporary, rules)
    temporary.replace(path)
    log.info("compiling a step of decoding (once): %.1f s", time.monotonic() - started)
