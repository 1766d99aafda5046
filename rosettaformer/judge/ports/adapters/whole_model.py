"""A port of a whole model: `load(folder)`, which returns a function from tokens to logits.

The file of such a port has nothing else that it must have:

    def load(folder):                       # as Hugging Face writes it, in the dtype that its config.json says
        model = ...
        return lambda token_bt, mask_bt: model(token_bt, mask_bt)  # logits_btv; of classes, logits_bc

The function takes the tokens alone, or the tokens and the mask of the real ones; a third argument is the segments. It may have further
functions as attributes: `step(token_bt, mask_bt, cache)`, which returns logits and the next cache; `hidden(token_bt, mask_bt)`, the states
`l b t d`; `gradients(token_bt, mask_bt, cotangent_btv)`, a mapping from the folder's names of tensors to the gradients of
`sum(cotangent * logits)`; `training(token_bt, mask_bt)`, the mean of -log p over the labels of real tokens, and a mapping of its gradients.
On a mesh `load(folder, mesh)` is called, in every process of the port. docs/like.md describes the file.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from reference_numpy.sharding import Mesh

from ....common.processes import wire
from ...case import LAST, Case, numpy_dtype
from ...expectation.components import VJP, forward_of
from ...status import UNLOADED
from ...suite.limits import limits_of
from ..port import NotCovered, NotLoaded, Unsupported

COMPONENTS = (
    "transformer", "transformer_vjp", "masked_language_logits", "masked_language_logits_vjp", "classify", "classify_vjp", "states",
    "decode_in_steps", "training",
)  # fmt: skip
SIDES = (("target", "target_mask_bt"), ("source", "source_mask_bs"))


class Adapter:
    """Answers cases by the function that a file's `load` returns, one folder at a time.

    Raises ValueError on a declaration that has no such value.
    """

    components = COMPONENTS

    def __init__(self, module: ModuleType) -> None:
        self._load = module.load
        self._parameters = inspect.signature(module.load).parameters
        self.takes_mesh = "mesh" in self._parameters
        self.limits = limits_of(vars(module))
        self._loaded: tuple[Any, Any] = (None, None)
        self._refused: dict[Any, Exception] = {}  # folder and mesh -> what a case of it is answered, since it could not be loaded

    def describe(self) -> dict[str, Any]:
        """Returns what the port declares that it does not give."""
        return {"limits": self.limits, "whole": True}

    def run(self, case: Case) -> Any:
        """Returns the answer. Raises NotCovered if the port has nothing that gives it, and NotLoaded if its folder has failed to load."""
        function = self._function(os.path.join(case.folder, case.dtype), case.dtype, case.mesh)
        component = forward_of(case.component) or case.component
        if case.component.endswith(VJP):
            return _gradients(function, case)
        if component == "training":
            return _training(function, case)
        if component == "states":
            stack = "encoder" if case.config.encoder_layers else "decoder"
            hidden = _attribute(function, "hidden")(*_inputs(_attribute(function, "hidden"), case))
            return {f"{stack}.hidden_lbtd": _array(hidden, case.dtype)}
        if component == "decode_in_steps":
            return _steps(_attribute(function, "step"), case)
        logits = _array(function(*_inputs(function, case)), case.dtype)
        last = self.limits.get("positions") == LAST and component != "classify"
        return logits[:, None] if logits.ndim == 2 and last else logits

    def _function(self, folder: str, dtype: str, mesh: Mesh | None) -> Callable[..., Any]:
        """Returns what `load` returns for the folder, which is loaded once: if that fails, it is not tried again."""
        key = folder, mesh
        if key in self._refused:
            raise self._refused[key]
        if self._loaded[0] != key:
            self._loaded = (None, None)  # the memory of one model is enough
            try:
                self._loaded = (key, self._of_folder(folder, {"dtype": dtype, "mesh": mesh}))
            except BaseException as error:  # SystemExit, too
                kind = next((kind for kind in (NotCovered, Unsupported) if isinstance(error, kind)), None)
                self._refused[key] = kind(*error.args) if kind else NotLoaded(UNLOADED)
                raise
        return self._loaded[1]

    def _of_folder(self, folder: str, known: Mapping[str, Any]) -> Callable[..., Any]:
        function = self._load(folder, **{name: value for name, value in known.items() if name in self._parameters})
        if not callable(function):
            raise TypeError(f"load(folder) must return a function of tokens; got {wire.named(function)}")
        return function


def _attribute(function: Any, name: str) -> Callable[..., Any]:
    if not callable(found := getattr(function, name, None)):
        raise NotCovered(f"what load(folder) returns has no {name}")
    return found


def _tokens(case: Case) -> tuple[np.ndarray, np.ndarray | None]:
    side, mask = next(names for names in SIDES if case.inputs.get(names[0]) is not None)
    return case.inputs[side], case.inputs.get(mask)


def _inputs(function: Callable[..., Any], case: Case, *more: Any) -> list[Any]:
    """Returns the arguments: tokens, and as many of mask and segments as the function takes, then `more`.

    Raises NotCovered if the case has padding or segments that the function does not take.
    """
    token_bt, mask_bt = _tokens(case)
    segment_bt = case.inputs.get("segment_bs")
    given = {"mask, which prompts with padding need": mask_bt, "segments, which two texts need": segment_bt}
    taken = _count(function) - len(more)
    for place, (what, value) in enumerate(given.items(), start=2):
        if value is not None and taken < place:
            raise NotCovered(f"its function takes no {what}")
    mask_bt = np.ones(token_bt.shape, bool) if mask_bt is None else mask_bt
    segment_bt = np.zeros_like(token_bt) if segment_bt is None else segment_bt
    return [*(token_bt.copy(), mask_bt.copy(), segment_bt.copy())[: max(1, min(taken, 3))], *more]


def _count(function: Callable[..., Any]) -> int:
    """Returns how many arguments a call may give by their places; of a torch module, its `forward`."""
    try:
        parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
    except (TypeError, ValueError):
        return 2
    if any(each.kind == each.VAR_POSITIONAL for each in parameters):
        return 3
    return sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)


def _steps(step: Callable[..., Any], case: Case) -> np.ndarray:
    """Returns the logits of all steps. Each is given its tokens, the mask of everything so far and the cache, at first None."""
    token_bt, mask_bt = _tokens(case)
    mask_bt = np.ones(token_bt.shape, bool) if mask_bt is None else mask_bt
    cache, logits = None, []
    for end, length in zip(np.cumsum(case.inputs["splits"]), case.inputs["splits"], strict=True):
        found = step(token_bt[:, end - length : end].copy(), mask_bt[:, :end].copy(), cache)
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(f"step must return a pair, logits and the next cache; got {wire.named(found)}")
        logits.append(_array(found[0], case.dtype))
        cache = found[1]
    return np.concatenate(logits, axis=1)


def _gradients(function: Any, case: Case) -> dict[str, np.ndarray]:
    """Returns the gradients by canonical name, of those by the names in the folder."""
    gradients = _attribute(function, "gradients")
    found = gradients(*_inputs(gradients, case, case.inputs["cotangent"].copy()))
    return _canonical(found, "gradients must return a mapping from names of tensors to arrays", case)


def _training(function: Any, case: Case) -> dict[str, np.ndarray]:
    """Returns the loss, and the gradients by canonical name."""
    training = _attribute(function, "training")
    found = training(*_inputs(training, case))
    required = "training must return a pair, the loss and a mapping from names of tensors to arrays"
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
    """Returns an array of the dtype, of a tensor of any framework. A wider one is rounded: only what is computed counts.

    Raises TypeError if it is none, and NotCovered if it is narrower, which a port that declares its `dtypes` does not return.
    """
    if value is None or isinstance(value, tuple | Mapping | str):
        raise TypeError(f"what load(folder) returns must give one array; got {wire.named(value)}")
    given = str(getattr(value, "dtype", "")).removeprefix("torch.")
    value = value.full_tensor() if hasattr(value, "full_tensor") else value  # torch's DTensor
    if hasattr(value, "detach"):  # torch has no bfloat16 for NumPy
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) in ("torch.bfloat16", "torch.float16") else value
    array, wanted = np.asarray(value), numpy_dtype(dtype)
    if array.dtype.kind in "f" and array.dtype.itemsize < wanted.itemsize:
        raise NotCovered(f"it computes in {given or array.dtype}, where {dtype} was asked; `dtypes` in the file says in which dtypes")
    return array.astype(wanted) if array.dtype.kind == "f" else array
