"""Devices by name, and what JAX takes from the process while it computes on one."""

import contextlib
from collections.abc import Iterator

import jax

__all__ = ["device", "settings"]

_PRECISION = {"cpu": "highest", "cuda": "highest", "cuda-tf32": "tensorfloat32"}


def device(name: str) -> jax.Device:
    """cpu, cuda, or cuda-tf32, whose float32 products are TF32. Raises ValueError on another name and where there is no such device."""
    if name not in _PRECISION:
        raise ValueError(f"device must be one of {', '.join(_PRECISION)}; got {name!r}")
    platform = name.removesuffix("-tf32")
    try:
        return jax.devices(platform)[0]
    except RuntimeError:
        raise ValueError(f"device {name} needs a {platform} backend; JAX has {jax.default_backend()}") from None


@contextlib.contextmanager
def settings(name: str, dtype: str) -> Iterator[None]:
    """New arrays are on the device of that name, products have its precision, and 64-bit types exist where the dtype is float64."""
    with jax.default_device(device(name)), jax.default_matmul_precision(_PRECISION[name]), jax.enable_x64(dtype == "float64"):
        yield
