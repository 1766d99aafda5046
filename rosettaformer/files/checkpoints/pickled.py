"""Reads and writes torch.save state dicts. PyTorch is imported only when such a file is used."""

import itertools
import pickletools
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy.suggestions import nearest

from ...common import archives
from ...common.extras import require
from ...common.processes.text import without_advice
from . import SHOWN, CheckpointError, container, recognise
from .container import Container
from .recognise import TORCH, ForeignError, Kind

SUFFIXES = (".pt", ".pth", ".bin")
USUAL = ("state_dict", "model_state_dict", "model", "net", "module")  # common entries of training checkpoints, best first
WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")  # in Hugging Face folders without safetensors
LIGHTNING = "pytorch-lightning_version"


class _StandIn:
    """Replaces objects of classes that are not imported; ignores everything its pickle passes."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    __setstate__ = __init__


def read(path: Path, key: str | None = None) -> Container:
    """Reads tensors from a torch.save or safetensors file, an index, or a Hugging Face folder.

    The content decides the format, then the suffix. key: the entry that holds the state dict.
    Raises ValueError like `container.read`, and if a key is set for a file without entries.
    Raises ForeignError for a pickled module and for a training checkpoint without a key.
    """
    path = weights(path) or path
    if path.is_file() and path.name.endswith(".bin.index.json"):
        return container.read_index(path, lambda shard: Container(_state_dict(shard, None)))
    if _is_pickled(path):
        return Container(_state_dict(path, key))
    if key is not None:
        raise ValueError(f"--key selects an entry of a torch.save file, but {path} is not one; remove --key")
    return container.read(path)


def _is_pickled(path: Path) -> bool:
    """Whether the content, or else the suffix, is that of a torch.save file."""
    if not path.is_file() or path.name.endswith(".index.json"):
        return False
    kind = recognise.kind_of(path)
    return kind is TORCH or (kind is None and path.suffix in SUFFIXES)


def weights(path: Path) -> Path | None:
    """Returns the torch.save file, or the index of several, that holds a folder's weights.

    path: a Hugging Face folder or a file in it. None if the folder also has safetensors, which are
    preferred, or if its config.json is not one of a supported model.
    """
    try:
        kind = recognise.hugging_face_config(path).get("model_type")
    except (OSError, ValueError):
        return None
    if kind is not None and kind not in recognise.converted():
        return None
    if path.is_file():
        return path if re.fullmatch(r"pytorch_model.*\.bin(\.index\.json)?", path.name) else None
    found = [path / name for name in WEIGHTS if (path / name).is_file()]
    return found[0] if found and not any(path.glob("*.safetensors*")) else None


def _state_dict(path: Path, key: str | None) -> dict[str, np.ndarray]:
    """Returns the tensors of a state dict by name, read with weights_only=True: no code runs."""
    torch, weights = _torch()
    state = _select(path, _load(torch, path), key)
    if not isinstance(state, Mapping):
        raise CheckpointError(path, [f"must hold a state dict (names to tensors); got {_kind(state)}"])
    arrays, problems = {}, []
    for name, tensor in state.items():
        try:
            if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
                stored = tensor.untyped_storage().nbytes()
                problems.append(f"{name!s:.100} is incomplete: {stored} bytes are stored for shape {[*tensor.shape]}; save it again")
                continue
            arrays[str(name)] = weights.to_numpy(tensor)
        except (AttributeError, TypeError, RuntimeError):  # not a tensor, sparse, or no NumPy dtype
            problems.append(f"must hold a state dict (names to dense tensors); got {name!r}: {_kind(tensor)}")
    if problems:
        raise CheckpointError(path, problems)
    return arrays


def write(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a state dict to `path`, which must not exist."""
    torch, weights = _torch()
    state = {name: weights.from_numpy(array) for name, array in tensors.items()}
    with path.open("xb") as file:  # with a path, torch.save would write its name into the file
        torch.save(state, file)


def require_torch() -> None:
    """Raises MissingBackend if PyTorch is not installed."""
    require(f"a file in PyTorch's format ({', '.join(SUFFIXES)})", {"torch": ("torch",)})


def _torch() -> Any:
    require_torch()
    import torch

    from impl_torch import weights

    return torch, weights


def _load(torch: Any, path: Path) -> Any:
    """Loads a file with inert objects in place of classes that PyTorch considers unsafe.

    Raises ForeignError for a pickled module, and CheckpointError if the file cannot be read.
    """
    try:
        archives.require_stored(path)
        named = torch.serialization.get_unsafe_globals_in_checkpoint(path) if zipfile.is_zipfile(path) else _named(path)
        stand_ins = [(type(name, (_StandIn,), {}), name) for name in named]
        with torch.serialization.safe_globals(stand_ins), path.open("rb") as file:  # with a path, the suffix would matter
            state = torch.load(file, map_location="cpu", weights_only=True)
    except ForeignError:
        raise
    except Exception as error:  # corrupt files can raise any exception
        raise CheckpointError(path, [f"cannot be read as a state dict of tensors: {_reason(error):.200}"]) from None
    if isinstance(state, _StandIn):
        raise _whole(path, type(state).__name__)
    return state


def _reason(error: Exception) -> str:
    """Returns PyTorch's error without its advice to let the file run code."""
    text = str(error)
    own = text.partition("WeightsUnpickler error:")[2] or ("" if "weights_only" in text else text)
    words = without_advice(" ".join(own.split()))
    return words or "the file holds other objects or is damaged"


def _named(path: Path) -> list[str]:
    """Returns the classes and functions that a file from before PyTorch 1.6 references.

    Such a file pickles a magic number, a version, the machine and the object. Raises ForeignError
    if the object is a module.
    """
    with path.open("rb") as file:
        for _ in range(4):
            made = [(code.name, str(value).replace(" ", ".")) for code, value, _ in pickletools.genops(file)]
    first = next((name for code, name in made if code in ("GLOBAL", "EMPTY_DICT", "EMPTY_LIST")), "None")
    if first not in ("None", "collections.OrderedDict") and not first.startswith("torch._"):  # a tensor's own functions
        raise _whole(path, first)
    return [name for code, name in made if code == "GLOBAL"]


def _whole(path: Path, name: str) -> ForeignError:
    advice = "load it where the class is importable, then save its weights with torch.save(model.state_dict(), FILE)"
    return ForeignError(path, Kind(f"a pickled object of class {name}", advice))


def _select(path: Path, state: Any, key: str | None) -> Any:
    """Returns the state, or its entry at the key. Raises ForeignError if a key is required."""
    if not isinstance(state, Mapping):
        return state
    if key is not None:
        if key not in state:
            raise ValueError(f"--key {key}: {path} has no such entry{nearest(key, map(str, state))}; its entries: {_listed(state)}")
        return state[key]
    inner = {name: value.values() for name, value in state.items() if isinstance(value, Mapping)}
    if entries := [str(name) for name, values in inner.items() if any(hasattr(value, "layout") for value in values)]:
        raise ForeignError(path, _training(path, state, entries))
    return state


def _training(path: Path, state: Mapping[Any, Any], entries: list[str]) -> Kind:
    """Describes a training checkpoint that holds state dicts in these entries."""
    what = "a Lightning checkpoint" if LIGHTNING in state else "a training checkpoint"
    best = next((name for name in USUAL if name in entries), entries[0])
    if weights(path):  # the folder is read as a whole, without a key
        return Kind(f"{what} with tensors in {_listed(entries)}", f"save its entry {best} with torch.save as {path.name}")
    first = {str(name).partition(".")[0] for name in state[best]}
    names = (
        f". All its names begin with {first.pop()}.: that prefix is detected, or set it with --name prefix=NAME" if len(first) == 1 else ""
    )
    return Kind(f"{what} with tensors in {_listed(entries)}", f"select them with --key {best}{names}")


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(f"{name!s:.100}" for name in itertools.islice(names, SHOWN))


def _kind(value: Any) -> str:
    if isinstance(value, _StandIn):
        return f"an object of class {type(value).__name__}"
    return f"a {value.layout} tensor of {value.dtype}" if hasattr(value, "layout") else f"a {type(value).__name__}"
