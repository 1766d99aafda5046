"""Experts that compute only their own tokens: sorted by expert, a block of tokens at a time."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..precision import upcast_half

__all__ = ["in_groups"]

BLOCK = 64  # most tokens computed at once

Tree = Any  # all experts as arrays with a first axis x, or one expert
Network = Callable[[Tree, jax.Array, jax.Array], jax.Array]
Rows = tuple[jax.Array, jax.Array]  # a token and its weight for one expert: `1 r d` and `r 1`
OfExpert = Callable[[jax.Array, Tree, jax.Array, jax.Array, Any], Any]


@functools.partial(jax.jit, static_argnames=("network", "count"), inline=True)
def in_groups(
    network: Network, experts: Tree, x_btd: jax.Array, weight_btx: jax.Array, count: int
) -> jax.Array:
    """`sum_e network(e, x, w_e)` over the experts whose weight is not 0, at most `count`: `b t d`.

    network: of one expert, tokens `1 n d` and weights `n 1`. Other experts are not even read.
    """
    x_nd, weight_nx = (jax.lax.collapse(x, 0, 2) for x in (x_btd, weight_btx))
    weight_nk, expert_nk = jax.lax.top_k(weight_nx, min(count, weight_nx.shape[1]))
    chosen_nk, tokens = weight_nk != 0, x_nd.shape[0]
    expert_r = jnp.where(chosen_nk, expert_nk, weight_nx.shape[1]).reshape(-1)  # others come last
    order_r = jnp.argsort(expert_r, stable=True)
    size_x = jnp.bincount(expert_r, length=weight_nx.shape[1])
    rows = x_nd[order_r // weight_nk.shape[1]][None], weight_nk.reshape(-1)[order_r][:, None]
    block = max(1, min(BLOCK, tokens)) if isinstance(tokens, int) else BLOCK
    y_1rd = _grouped(network, block, experts, size_x, rows)
    y_nkd = y_1rd[0, jnp.argsort(order_r)].reshape(*weight_nk.shape, -1)
    y_nd = jnp.where(chosen_nk[..., None], y_nkd, 0).sum(axis=1)
    return y_nd.reshape(x_btd.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _grouped(
    network: Network, block: int, experts: Tree, size_x: jax.Array, rows: Rows
) -> jax.Array:
    """`network(e, x, w)`, `1 r d`, where the first rows belong to the first expert, and so on.

    An expert's last block also computes rows of the next one, which then overwrites them.
    """
    rows, count = _padded(rows, block), rows[1].shape[0]

    def of_expert(
        _: jax.Array, own: Tree, first: jax.Array, size: jax.Array, y_1rd: jax.Array
    ) -> jax.Array:
        def of_block(number: jax.Array, y_1rd: jax.Array) -> jax.Array:
            start = first + number * block
            return _written(y_1rd, network(own, *_read(rows, start, block)), start)

        return jax.lax.fori_loop(0, -(-size // block), of_block, y_1rd)

    one = jax.tree.map(lambda array: array[0], experts)
    result = jax.eval_shape(network, one, *rows)
    return _each(of_expert, experts, size_x, jnp.zeros(result.shape, result.dtype))[:, :count]


def _grouped_vjp(
    network: Network, block: int, held: tuple[Tree, jax.Array, Rows], g_1rd: jax.Array
) -> tuple[Tree, None, Rows]:
    """Computes each block again; adds up the gradients of an expert in at least float32."""
    experts, size_x, rows = held
    rows, count, (g_1rd, _) = (
        _padded(rows, block),
        rows[1].shape[0],
        _padded((g_1rd, rows[1]), block),
    )

    def of_expert(
        index: jax.Array, own: Tree, first: jax.Array, size: jax.Array, found: tuple[Tree, Rows]
    ) -> tuple[Tree, Rows]:
        def of_block(number: jax.Array, found: tuple[Tree, Rows]) -> tuple[Tree, Rows]:
            start = first + number * block
            own_n1 = (number * block + jnp.arange(block) < size)[:, None]
            inputs = [jnp.where(own_n1, x, 0) for x in _read((*rows, g_1rd), start, block)]
            _, back = jax.vjp(network, own, *inputs[:2])
            of_own, *of_rows = back(inputs[2])
            total = jax.tree.map(lambda sum, part: sum + upcast_half(part), found[0], of_own)
            written = [_written(x, g, start) for x, g in zip(found[1], of_rows, strict=True)]
            return total, (written[0], written[1])

        zeros = jax.tree.map(lambda array: upcast_half(jnp.zeros_like(array)), own)
        of_own, of_rows = jax.lax.fori_loop(0, -(-size // block), of_block, (zeros, found[1]))
        put = jax.tree.map(
            lambda all, one: all.at[index].set(one.astype(all.dtype)), found[0], of_own
        )
        return put, of_rows

    of_experts, of_rows = _each(
        of_expert, experts, size_x, jax.tree.map(jnp.zeros_like, (experts, rows))
    )
    return of_experts, None, (of_rows[0][:, :count], of_rows[1][:count])


_grouped.defvjp(lambda network, block, *held: (_grouped(network, block, *held), held), _grouped_vjp)


def _each(of_expert: OfExpert, experts: Tree, size_x: jax.Array, carry: Any) -> Any:
    """`carry = of_expert(index, expert, first row, rows, carry)` for experts with rows in order."""
    first_x = jnp.cumsum(size_x) - size_x
    index_x = jnp.argsort(size_x == 0, stable=True)

    def step(place: jax.Array, carry: Any) -> Any:
        index = index_x[place]
        own = jax.tree.map(lambda array: array[index], experts)
        return of_expert(index, own, first_x[index], size_x[index], carry)

    return jax.lax.fori_loop(0, (size_x > 0).sum(), step, carry)


def _padded(rows: Rows, block: int) -> Rows:
    """Appends a block of zeros, so that the last block has all its rows."""
    x_1rd, weight_r1 = rows
    return jnp.pad(x_1rd, ((0, 0), (0, block), (0, 0))), jnp.pad(weight_r1, ((0, block), (0, 0)))


def _read(rows: tuple[jax.Array, ...], start: jax.Array, count: int) -> list[jax.Array]:
    """Returns rows from `start` on; they are the axis before the last."""
    return [jax.lax.dynamic_slice_in_dim(x, start, count, axis=x.ndim - 2) for x in rows]


def _written(rows: jax.Array, part: jax.Array, start: jax.Array) -> jax.Array:
    """Writes rows from `start` on."""
    return jax.lax.dynamic_update_slice_in_dim(rows, part, start, axis=rows.ndim - 2)
