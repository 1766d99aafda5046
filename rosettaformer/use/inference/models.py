"""Models for use: one interface to the four implementations, with NumPy arrays in and out."""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.sharding import Mesh, check
from reference_numpy.suggestions import known

from ...common.backends import BACKENDS, imported
from ...files.checkpoints import Checkpoint

METHODS = ("encode", "classify", "masked_language_logits", "states")  # of a Transformer, that read whole rows
DTYPES = ("float64", "float32", "bfloat16", "float16")
OF_MESHES = ("torch", "jax")


class Model(abc.ABC):
    """A model in evaluation. Masks are boolean, True = real token.

    A backend makes one of a config, parameters, the dtype to which they are rounded, a device, and whether a decoder's projections are in
    int8.
    """

    config: TransformerConfig
    speaks = True  # whether this process says what is found; of several, one does

    def shared(self, values: Iterable[Any]) -> Iterable[Any]:
        """Returns the values as every process of the model must have them."""
        return values

    def dealt(self, count: int, search: Callable[[range], Iterator[Any]]) -> Iterator[Any]:
        """Returns what a search of `count` prompts yields, of which this process is given its own."""
        return search(range(count))

    @abc.abstractmethod
    def start(self, rows: int, length: int) -> Any:
        """Returns an empty cache of a decoder-only model, for n rows of at most `length` tokens."""

    @abc.abstractmethod
    def read(self, token_bt: np.ndarray, mask_bt: np.ndarray, cache_: Any) -> tuple[np.ndarray, Any]:
        """Reads tokens; returns the logits `b v` after the last of them, and the new cache. The cache that was given is then of no use."""

    @abc.abstractmethod
    def reorder(self, cache_: Any, row_b: np.ndarray) -> Any:
        """Returns the cache whose row i is what row `row_b[i]` was."""

    @abc.abstractmethod
    def run(self, method: str, **inputs: np.ndarray | None) -> Any:
        """Returns what a method of the backend's Transformer gives, as arrays."""

    def encode(self, source: np.ndarray, source_mask_bs: np.ndarray, segment_bs: np.ndarray | None = None) -> np.ndarray:
        """Returns the vectors `b s d` of an encoder."""
        return np.asarray(self.run("encode", source=source, source_mask_bs=source_mask_bs, segment_bs=segment_bs))

    def classify(self, source: np.ndarray, source_mask_bs: np.ndarray, segment_bs: np.ndarray | None = None) -> np.ndarray:
        """Returns the logits `b c` of each row's classes."""
        return np.asarray(self.run("classify", source=source, source_mask_bs=source_mask_bs, segment_bs=segment_bs))

    def masked_language_logits(self, source: np.ndarray, source_mask_bs: np.ndarray, segment_bs: np.ndarray | None = None) -> np.ndarray:
        """Returns the logits `b s v` of what stands at every position."""
        return np.asarray(self.run("masked_language_logits", source=source, source_mask_bs=source_mask_bs, segment_bs=segment_bs))

    def states(self, **inputs: np.ndarray | None) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Returns the vectors and attention weights of every layer: see `reference_numpy.states.states`."""
        found: Mapping[str, Mapping[str, np.ndarray]] = self.run("states", **inputs)
        return found


def open_model(
    checkpoint: Checkpoint, backend: str = "numpy", dtype: str = "float32", device: str = "cpu", mesh: Mesh | None = None
) -> Model:
    """Returns the checkpoint's model in a backend, its parameters rounded to the dtype; int8: the projections of a decoder (INT8).

    mesh: of the devices over which prompts are dealt out, and a decoder-only model is split.
    Raises MissingBackend if the backend's framework is missing or broken, ValueError on another backend, dtype or device, and on a
    mesh that does not fit.
    """
    known("backend", [backend], BACKENDS)
    known("dtype", [dtype], (*DTYPES, "int8"))
    if dtype == "int8" and (backend == "numpy" or not checkpoint.config.decoder_layers):
        had = f"backend {backend}" if backend == "numpy" else "an encoder-only model"
        raise ValueError(f"dtype int8 needs a decoder and backend torch, tf or jax; got {had}")
    if mesh is not None:
        check_mesh(checkpoint.config, mesh, backend, dtype)
    kind = np.dtype(np.float32 if dtype == "int8" else getattr(ml_dtypes, dtype, dtype))
    imported(backend, BACKENDS[backend])
    given = checkpoint.config, checkpoint.parameters, kind, device, dtype == "int8"
    model: Model
    if mesh is None:
        model = imported(backend, f"{__package__}.{backend}_model").BackendModel(*given)
        return model
    model = imported(backend, f"{__package__}.{backend}_mesh").MeshModel(*given, mesh)
    return model


def check_mesh(config: TransformerConfig, mesh: Mesh, backend: str, dtype: str) -> None:
    """Raises ValueError on a mesh on which no decoder of the config runs."""
    if backend not in OF_MESHES:
        raise ValueError(f"a mesh needs backend {' or '.join(OF_MESHES)}; got {backend}")
    if config.encoder_layers:
        raise ValueError(f"a mesh needs a decoder-only model; got encoder_layers={config.encoder_layers}")
    if dtype == "int8" and (mesh.model > 1 or backend == "jax"):
        raise ValueError(f"dtype int8 needs backend torch and model=1, since its scales are of whole rows; got {backend} and {mesh}")
    check(config, mesh)


def rounded(parameters: Mapping[str, np.ndarray], dtype: np.dtype) -> dict[str, np.ndarray]:
    """Returns the parameters in a dtype; those that have it as they are."""
    return {name: array.astype(dtype, copy=False) for name, array in parameters.items()}
