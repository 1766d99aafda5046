"""Ports of whole models: files with `load(folder)`, which returns a function from ids to logits.

    def load(folder):  # a Hugging Face checkpoint, in the dtype of its config.json
        model = ...
        return lambda token_bt, mask_bt: model(token_bt, mask_bt)  # logits_btv; of classes, logits_bc

The function takes the tokens, or the tokens and the mask of real tokens, or also the segments. It
may have more functions as attributes:

- `step(token_bt, mask_bt, cache)` returns logits and the next cache.
- `hidden(token_bt, mask_bt)` returns the hidden states `l b t d`.
- `gradients(token_bt, mask_bt, cotangent_btv)` returns a mapping from the checkpoint's tensor names
  to the gradients of `sum(cotangent * logits)`.
- `training(token_bt, mask_bt)` returns the mean of -log p over the labels of real tokens, and a
  mapping of its gradients.

Functions of an encoder-decoder take `source_bs, target_bt, source_mask_bs, target_mask_bt` instead;
`hidden` returns the states of encoder and decoder as a pair.

On a mesh, `load(folder, mesh)` is called in every process of the port. docs/like.md describes the
file.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from reference_numpy.sharding import Mesh

from ....common.processes import wire
from ...case import LAST, MASKS, Case, numpy_dtype
from ...expectation.components import VJP, forward_of
from ...status import UNLOADED
from ...suite.limits import limits_of
from ..port import NotCovered, NotLoaded, Unsupported

COMPONENTS = (
    "transformer", "transformer_vjp", "masked_language_logits", "masked_language_logits_vjp", "classify", "classify_vjp", "states",
    "routed_experts", "decode_in_steps", "training",
)  # fmt: skip


class Adapter:
    """Runs cases with the function that the file's `load` returns, one checkpoint at a time.

    Raises ValueError for invalid declarations in the file.
    """

    components = COMPONENTS

    def __init__(self, module: ModuleType) -> None:
        self._load = module.load
        self._parameters = inspect.signature(module.load).parameters
        self.takes_mesh = "mesh" in self._parameters
        self.limits = limits_of(vars(module))
        self._loaded: tuple[Any, Any] = (None, None)
        self._refused: dict[Any, Exception] = {}  # folder and mesh -> the error for its other cases, after loading failed

    def describe(self) -> dict[str, Any]:
        """Returns the limits that the port declares."""
        return {"limits": self.limits, "whole": True}

    def run(self, case: Case) -> Any:
        """Returns the outputs. Raises NotCovered, or NotLoaded if loading failed before."""
        function = self._function(os.path.join(case.folder, case.dtype), case.dtype, case.mesh)
        component = forward_of(case.component) or case.component
        if case.component.endswith(VJP):
            return _gradients(function, case)
        if component == "training":
            return _training(function, case)
        if component == "states":
            hidden = _attribute(function, "hidden")(*_inputs(_attribute(function, "hidden"), case))
            return _hidden(hidden, case)
        if component == "routed_experts":
            function = _attribute(function, component)
            return _chosen(function(*_inputs(function, case)), case)
        if component == "decode_in_steps" or case.splits:
            return _steps(_attribute(function, "step"), case)
        logits = _array(function(*_inputs(function, case)), case.dtype)
        last = self.limits.get("positions") == LAST and component != "classify"
        return logits[:, None] if logits.ndim == 2 and last else logits

    def _function(self, folder: str, dtype: str, mesh: Mesh | None) -> Callable[..., Any]:
        """Returns `load`'s result. Each folder is loaded once, even if loading fails."""
        key = folder, mesh
        if key in self._refused:
            raise self._refused[key]
        if self._loaded[0] != key:
            self._loaded = (None, None)  # frees the previous model first
            try:
                self._loaded = (key, self._of_folder(folder, {"dtype": dtype, "mesh": mesh}))
            except BaseException as error:  # including SystemExit
                kind = next((kind for kind in (NotCovered, Unsupported) if isinstance(error, kind)), None)
                self._refused[key] = kind(*error.args) if kind else NotLoaded(UNLOADED)
                raise
        return self._loaded[1]

    def _of_folder(self, folder: str, known: Mapping[str, Any]) -> Callable[..., Any]:
        function = self._load(folder, **{name: value for name, value in known.items() if name in self._parameters})
        if not callable(function):
            raise TypeError(f"load(folder) must return a function from token ids to logits; got {wire.named(function)}")
        return function


def _hidden(hidden: Any, case: Case) -> dict[str, np.ndarray]:
    """Returns the states of each stack by name."""
    stacks = [stack for stack in ("encoder", "decoder") if getattr(case.config, f"{stack}_layers")]
    if len(stacks) == 2 and not (isinstance(hidden, tuple) and len(hidden) == 2):
        raise TypeError(f"hidden must return a pair (states of the encoder, states of the decoder); got {wire.named(hidden)}")
    found = hidden if len(stacks) == 2 else (hidden,)
    return {f"{stack}.hidden_lbtd": _array(array, case.dtype) for stack, array in zip(stacks, found, strict=True)}


def _chosen(expert_btlk: Any, case: Case) -> np.ndarray:
    """Marks the experts with these ids, `b t l x`; padding has none. Raises ValueError on other axes and ids."""
    expert_btlk = np.asarray(wire.base(expert_btlk))
    ((_, token_bt, mask_bt),) = texts_of(case)
    config = case.config
    layers = sum(map(config.has_experts, range(config.decoder_layers)))
    wanted = (*token_bt.shape, layers, config.experts_per_token)
    if expert_btlk.shape != wanted or expert_btlk.dtype.kind not in "iu":
        raise ValueError(f"routed_experts must be integers b t l k of shape {wanted}; got {expert_btlk.dtype} {expert_btlk.shape}")
    if not ((expert_btlk >= 0) & (expert_btlk < config.experts)).all():
        raise ValueError(f"routed_experts must be from 0 to {config.experts - 1}; got {expert_btlk.min()} to {expert_btlk.max()}")
    chosen_btlx = np.zeros((*wanted[:3], config.experts), bool)
    np.put_along_axis(chosen_btlx, expert_btlk.astype(np.int64), True, axis=-1)
    return chosen_btlx if mask_bt is None else chosen_btlx & mask_bt[..., None, None]


def _attribute(function: Any, name: str) -> Callable[..., Any]:
    if not callable(found := getattr(function, name, None)):
        raise NotCovered(f"the function that load(folder) returns has no attribute {name}")
    return found


def texts_of(case: Case) -> list[tuple[str, np.ndarray, np.ndarray | None]]:
    """Returns the side, the tokens and the mask of every text, the source first."""
    return [(side, case.inputs[side], case.inputs.get(mask)) for side, mask in MASKS.items() if case.inputs.get(side) is not None]


def _inputs(function: Callable[..., Any], case: Case, *more: Any) -> list[Any]:
    """Returns the arguments: tokens, then masks and segments if they are taken, then `more`.

    Raises NotCovered if the case has padding or segments that the function does not take.
    """
    texts = texts_of(case)
    others = [(MASKS[side] if len(texts) > 1 else "mask_bt", "padded prompts", np.ones(ids.shape, bool), mask) for side, ids, mask in texts]
    if len(texts) == 1:
        others.append(("segment_bt", "pairs of texts", np.zeros_like(texts[0][1]), case.inputs.get("segment_bs")))
    given = [ids for _, ids, _ in texts]
    taken = _count(function) - len(more)
    for name, needing, usual, value in others:
        if len(given) < taken:
            given.append(usual if value is None else value)
        elif value is not None:
            raise NotCovered(f"the function that load(folder) returns does not take {name}, which {needing} need")
    return [*(array.copy() for array in given), *more]


def _count(function: Callable[..., Any]) -> int:
    """Returns the number of positional arguments; for a torch module, of its `forward`."""
    try:
        parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
    except (TypeError, ValueError):
        return 2
    if any(each.kind == each.VAR_POSITIONAL for each in parameters):
        return 9
    return sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)


def _steps(step: Callable[..., Any], case: Case) -> np.ndarray:
    """Returns the logits of all steps, each from its tokens, the mask so far, and the cache."""
    texts = [(ids, np.ones(ids.shape, bool) if mask is None else mask) for _, ids, mask in texts_of(case)]
    *before, (token_bt, mask_bt) = texts
    splits = case.splits or case.inputs["splits"]
    cache, logits = None, []
    for end, length in zip(np.cumsum(splits), splits, strict=True):
        part = [*before, (token_bt[:, end - length : end], mask_bt[:, :end])]
        found = step(*(ids.copy() for ids, _ in part), *(mask.copy() for _, mask in part), cache)
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(f"step must return a pair (logits, next cache); got {wire.named(found)}")
        logits.append(_array(found[0], case.dtype))
        cache = found[1]
    return np.concatenate(logits, axis=1)


def _gradients(function: Any, case: Case) -> dict[str, np.ndarray]:
    """Returns the gradients by canonical name, converted from the checkpoint's names."""
    gradients = _attribute(function, "gradients")
    found = gradients(*_inputs(gradients, case, case.inputs["cotangent"].copy()))
    return _canonical(found, "gradients must return a mapping from tensor name to array", case)


def _training(function: Any, case: Case) -> dict[str, np.ndarray]:
    """Returns the loss, and the gradients by canonical name."""
    training = _attribute(function, "training")
    found = training(*_inputs(training, case))
    required = "training must return a pair (loss, mapping from tensor name to gradient)"
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(f"{required}; got {wire.named(found)}")
    loss = found[0] if hasattr(found[0], "dtype") else np.asarray(found[0], numpy_dtype(case.dtype))
    return {"loss": _array(loss, case.dtype)} | _canonical(found[1], required, case)


def _canonical(found: Any, required: str, case: Case) -> dict[str, np.ndarray]:
    from ....files.checkpoints.hugging_face.gradients import canonical

    if not isinstance(found, Mapping):
        raise TypeError(f"{required}; got {wire.named(found)}")
    arrays = {str(name): _array(value, case.dtype) for name, value in found.items() if value is not None}
    own = canonical(os.path.join(case.folder, case.dtype), case.config, arrays)
    return {f"parameters.{name}": array for name, array in own.items()}


def _array(value: Any, dtype: str) -> np.ndarray:
    """Converts a tensor of any framework to an array of the dtype. A wider tensor is rounded to it.

    Raises TypeError if the value is not a tensor, and NotCovered if its dtype is narrower; a port
    that declares its `dtypes` does not return narrower outputs.
    """
    if value is None or isinstance(value, tuple | Mapping | str):
        raise TypeError(f"the functions of load(folder) must return one array; got {wire.named(value)}")
    given = str(getattr(value, "dtype", "")).removeprefix("torch.")
    value = value.full_tensor() if hasattr(value, "full_tensor") else value  # torch's DTensor
    if hasattr(value, "detach"):  # torch has no bfloat16 for NumPy
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) in ("torch.bfloat16", "torch.float16") else value
    array, wanted = np.asarray(value), numpy_dtype(dtype)
    if array.dtype.kind in "f" and array.dtype.itemsize < wanted.itemsize:
        raise NotCovered(
            f"the port returns {given or array.dtype} for a {dtype} checkpoint: list the dtypes it supports as `dtypes` in its file"
        )
    return array.astype(wanted) if array.dtype.kind == "f" else array
