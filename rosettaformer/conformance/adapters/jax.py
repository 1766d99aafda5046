"""The judge's adapter of JAX with Flax NNX: runs a case on any module or function."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import flax
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from flax import nnx

from impl_jax import weights
from impl_jax.compiled import compiled

from ..case import Case
from ..port import Unsupported

__all__ = ["Adapter"]

_PRECISION = {"cpu": "highest", "cuda": "highest", "cuda-tf32": "tensorfloat32"}


class Adapter:
    """Runs cases on the components of a port.

    port: a module or namespace with `components` (name -> build(config, dtype), dtype being JAX's), and where they differ from those
    of `impl_jax`: `weights` (the table), `compiled` and `modes`.
    """

    def __init__(self, port: Any) -> None:
        self.components: dict[str, Callable[..., Any]] = port.components
        self.table = getattr(port, "weights", weights.TABLE)
        self.compiled = getattr(port, "compiled", compiled)
        self.modes: tuple[str, ...] = getattr(port, "modes", ("compiled", "eager"))

    def run(self, case: Case) -> Any:
        """The port's outputs, in the dtype that the port returned: an array, or a tuple of arrays.

        float64 cases run under jax_enable_x64, all others without it, which is JAX's default. Raises ValueError on a device or mode that
        is not there, and Unsupported where XLA lacks an operation in the case's dtype.
        """
        mode = case.mode or self.modes[0]
        if mode not in self.modes:
            raise ValueError(f"mode must be one of {', '.join(self.modes)}; got {mode!r}")
        device = _device(case.device)
        with _settings(case, device), _unsupported():
            function = self.components[case.component](case.config, jnp.dtype(case.dtype))
            if isinstance(function, nnx.Module):
                if case.parameters:
                    weights.load(function, case.parameters, case.config, case.component, self.table)
                function.eval()
            inputs = {
                name: weights.from_numpy(value, device) if isinstance(value, np.ndarray) else value for name, value in case.inputs.items()
            }
            result = (self.compiled(function) if mode == "compiled" else function)(**inputs)
            return jax.tree.map(weights.to_numpy, result)

    @staticmethod
    def describe() -> dict[str, Any]:
        """Versions, devices and the precision of float32 products, for `doctor`."""
        gpus: list[jax.Device] = []
        with contextlib.suppress(RuntimeError):  # no CUDA backend
            gpus = jax.devices("cuda")
        return {
            "version": {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "flax": flax.__version__},
            "devices": ["cpu", *(f"cuda: {gpu.device_kind}" for gpu in gpus)],
            "precision": jax.config.jax_default_matmul_precision or "default",  # type: ignore[attr-defined]
        }


def _device(name: str) -> jax.Device:
    if name not in _PRECISION:
        raise ValueError(f"device must be one of {', '.join(_PRECISION)}; got {name!r}")
    platform = name.removesuffix("-tf32")
    try:
        return jax.devices(platform)[0]
    except RuntimeError:
        raise ValueError(f"device {name} needs a {platform} backend; JAX has {jax.default_backend()}") from None


@contextlib.contextmanager
def _settings(case: Case, device: jax.Device) -> Iterator[None]:
    """What JAX takes from the process, for one case: 64-bit types, precision of float32 products, the device of new arrays."""
    with jax.enable_x64(case.dtype == "float64"), jax.default_matmul_precision(_PRECISION[case.device]), jax.default_device(device):
        yield


@contextlib.contextmanager
def _unsupported() -> Iterator[None]:
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("UNIMPLEMENTED"):
            raise
        raise Unsupported(str(error).partition("\n")[0]) from error
