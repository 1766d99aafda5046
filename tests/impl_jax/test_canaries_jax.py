"""Each private name of JAX and Flax that impl_jax uses still works as expected."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from canaries import overridden, sing

import impl_jax
from impl_jax import framework


def _counted() -> None:
    double = jax.jit(lambda x: 2 * x)
    for size in (2, 3, 3):
        double(jnp.ones(size))
    assert framework.program_count(double) == 2


CANARIES: dict[str, Callable[[], None]] = {
    "jax.jit._cache_size": _counted,
}


@pytest.mark.parametrize("name", framework.PRIVATE)
def test_a_private_name_of_jax_or_flax_does_what_it_is_used_for(name: str) -> None:
    sing(name, framework.PRIVATE, CANARIES[name])


def test_only_the_framework_file_overrides_private_names_of_jax_and_flax() -> None:
    assert not [*overridden(impl_jax)]
