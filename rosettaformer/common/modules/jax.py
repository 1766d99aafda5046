"""Shared by the interfaces of NNX and Linen: arrays, devices, gradients, calls without `jit`."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from impl_jax.framework import device
from impl_jax.weights import from_numpy, to_numpy

__all__ = ["device", "eager", "function", "gradients", "is_floating", "is_tensor", "like", "tensor", "to_numpy"]


def is_tensor(value: Any) -> bool:
    """Whether the value is an array, but not a random key."""
    return isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def is_floating(value: Any) -> bool:
    """Whether the value is an array of floats."""
    return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jnp.floating))


def tensor(array: Any) -> jax.Array:
    """Converts an array to a jax.Array of the nearest supported dtype."""
    return jnp.asarray(array)


def like(array: np.ndarray, tensor: jax.Array) -> jax.Array:
    """Converts an array to one with the other's dtype and sharding."""
    return from_numpy(array.astype(tensor.dtype), tensor.sharding)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Runs functions wrapped in `jax.jit` and `nnx.jit` without compiling them."""

    def call(wrapped: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapped.__wrapped__(*args, **kwargs)

    # `nnx.jit` passes clones of modules to the wrapped function, even if `jax.jit` is disabled.
    with jax.disable_jit(), mock.patch.object(type(nnx.jit(call)), "__call__", call):
        yield


def function(module: Any) -> Callable[..., Any]:
    """Returns the function that a call runs, with the module's arguments."""
    found: Callable[..., Any] = module.__call__
    return found


def gradients(
    function: Callable[..., list[jax.Array]], arguments: Sequence[Any], cotangents: Sequence[jax.Array], compiled: bool = False
) -> tuple[Any, ...]:
    """Returns the gradients of the sum of cotangent * output for each argument of the function."""

    def pull(arguments: Sequence[Any], cotangents: Sequence[jax.Array]) -> Any:
        outputs, back = jax.vjp(function, *arguments)
        return back([one.astype(output.dtype) for one, output in zip(cotangents, outputs, strict=True)])

    found: tuple[Any, ...] = (jax.jit(pull) if compiled else pull)(tuple(arguments), list(cotangents))
    return found
