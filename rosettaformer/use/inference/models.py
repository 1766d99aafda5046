"""A common interface to the models of all backends, with NumPy arrays as inputs and outputs."""

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

METHODS = ("encode", "classify", "masked_language_logits", "states")  # of Transformer, for whole rows
DTYPES = ("float64", "float32", "bfloat16", "float16")
OF_MESHES = ("torch", "jax")


class Model(abc.ABC):
    """A model in evaluation mode. Masks are boolean, True for real tokens.

    A backend creates it from a config, parameters, the dtype to round them to, a device, and
    whether a decoder's projections use int8.
    """

    config: TransformerConfig
    speaks = True  # whether this process prints results; one process of a mesh does

    def shared(self, values: Iterable[Any]) -> Iterable[Any]:
        """Returns the values, the same in every process of the model."""
        return values

    def dealt(self, count: int, search: Callable[[range], Iterator[Any]]) -> Iterator[Any]:
        """Searches `count` prompts, this process its own share of them, and yields the results."""
        return search(range(count))

    @abc.abstractmethod
    def start(self, rows: int, length: int, source: tuple[np.ndarray, np.ndarray] | None = None) -> Any:
        """Returns an empty cache for rows of at most `length` tokens.

        source: an encoder-decoder's sources and their masks, each of as many adjacent rows.
        """

    @abc.abstractmethod
    def read(self, token_bt: np.ndarray, mask_bt: np.ndarray, cache_: Any) -> tuple[np.ndarray, Any]:
        """Reads tokens; returns the logits `b v` after the last one, and the next cache."""

    @abc.abstractmethod
    def reorder(self, cache_: Any, row_b: np.ndarray) -> Any:
        """Reorders the rows of a cache: row i comes from row `row_b[i]`."""

    @abc.abstractmethod
    def run(self, method: str, **inputs: np.ndarray | None) -> Any:
        """Calls a method of the backend's Transformer, and returns arrays."""

    def encode(self, source: np.ndarray, source_mask_bs: np.ndarray, segment_bs: np.ndarray | None = None) -> np.ndarray:
        """Returns an encoder's vectors `b s d`."""
        return np.asarray(self.run("encode", source=source, source_mask_bs=source_mask_bs, segment_bs=segment_bs))

    def classify(self, source: np.ndarray, source_mask_bs: np.ndarray, segment_bs: np.ndarray | None = None) -> np.ndarray:
        """Returns the class logits `b c` of each row."""
        return np.asarray(self.run("classify", source=source, source_mask_bs=source_mask_bs, segment_bs=segment_bs))

    def masked_language_logits(self, source: np.ndarray, source_mask_bs: np.ndarray, segment_bs: np.ndarray | None = None) -> np.ndarray:
        """Returns the token logits `b s v` of every position."""
        return np.asarray(self.run("masked_language_logits", source=source, source_mask_bs=source_mask_bs, segment_bs=segment_bs))

    def states(self, **inputs: np.ndarray | None) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Returns the vectors and attention weights of every layer, as in the reference."""
        found: Mapping[str, Mapping[str, np.ndarray]] = self.run("states", **inputs)
        return found


def open_model(
    checkpoint: Checkpoint, backend: str = "numpy", dtype: str = "float32", device: str = "cpu", mesh: Mesh | None = None
) -> Model:
    """Loads a checkpoint into a backend, with parameters rounded to the dtype.

    dtype: int8 quantizes a decoder's projections (INT8). mesh: the devices that share prompts and a
    decoder-only model. Raises MissingBackend if the framework is missing or broken, and ValueError
    on an unknown backend, dtype or device, and on a mesh that does not fit.
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
    """Raises ValueError if a decoder with this config cannot run on the mesh."""
    if backend not in OF_MESHES:
        raise ValueError(f"a mesh needs backend {' or '.join(OF_MESHES)}; got {backend}")
    if config.encoder_layers:
        raise ValueError(f"a mesh needs a decoder-only model; got encoder_layers={config.encoder_layers}")
    if dtype == "int8" and (mesh.model > 1 or backend == "jax"):
        raise ValueError(f"dtype int8 needs backend torch and model=1, since each row has one scale; got {backend} and {mesh}")
    check(config, mesh)


def rounded(parameters: Mapping[str, np.ndarray], dtype: np.dtype) -> dict[str, np.ndarray]:
    """Rounds parameters to a dtype; those that have it are not copied."""
    return {name: array.astype(dtype, copy=False) for name, array in parameters.items()}
