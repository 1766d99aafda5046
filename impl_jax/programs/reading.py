"""The loop of a search, which reads the target again if its rotation switches (ROTARY)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..beams import Beams
from ..cache import length, positions
from ..transformer import Transformer
from .search import Request
from .static_cache import StaticCache, read

__all__ = ["State", "loop"]

State = tuple[Any, StaticCache, jax.Array]  # answers, cache, whether all logits were valid


def loop(
    model: Transformer, request: Request, step: Callable[[State], State], state: State
) -> State:
    """Runs steps until answers have max_new_tokens, or all rows are done; returns the state.

    Before the first token beyond an original length of longrope, the target is read again, so that
    all keys rotate by the frequencies of long texts. This is between two loops, since XLA copies
    the cache in every step that may do it.
    """
    most, switches = request.max_new_tokens, sorted(model.config.rotary_switches)

    def goes_on(until: jax.Array, state: State) -> jax.Array:
        return (state[0].length < until) & ~state[0].done_b.all()

    def part(state: State, until: jax.Array) -> tuple[State, None]:
        state = jax.lax.while_loop(partial(goes_on, until), step, state)
        beyond = goes_on(jnp.minimum(until + 1, most), state)
        again = partial(_again, model, request)
        return jax.lax.cond(beyond, again, lambda state: state, state), None

    if not switches:
        return jax.lax.while_loop(partial(goes_on, most), step, state)
    until_n = jnp.array(switches) + 1 - length(model.config, request.prefix_mask_bp)
    return jax.lax.scan(part, state, jnp.minimum(jnp.append(until_n, most), most))[0]


def _again(model: Transformer, request: Request, state: State) -> State:
    """Returns the state after reading the target again, except its last token.

    The cache then holds what beam w read in a step at place w of that step.
    """
    answers, cache, valid = state
    if isinstance(answers, Beams):
        token_bwn = answers.live_bwn
        own_w1 = jnp.arange(token_bwn.shape[1])[:, None]
        answers = answers._replace(place_bwn=jnp.broadcast_to(own_w1, token_bwn.shape))
    else:
        token_bwn = answers.token_bn[:, None]
    config, (batch, size, room) = model.config, token_bwn.shape
    before, prefix_mask_bp = request.prefix_bp.shape[1] - 1, request.prefix_mask_bp
    last_bw1 = jnp.broadcast_to(request.prefix_bp[:, -1:, None], (batch, size, 1))
    read_bwn = jnp.concatenate([last_bw1, token_bwn[..., :-1]], axis=2)
    own_bt = jax.lax.collapse(read_bwn.swapaxes(1, 2), 1)
    token_bt = jnp.concatenate([request.prefix_bp[:, :-1], own_bt], axis=1)
    real_bt = jnp.pad(prefix_mask_bp[:, :-1], ((0, 0), (0, room * size)), constant_values=True)
    step_t = jnp.append(jnp.arange(before), before + jnp.repeat(jnp.arange(room), size))
    beam_t = jnp.append(jnp.zeros(before, int), jnp.tile(jnp.arange(size), room))
    past_tt = step_t[:, None] - step_t
    seen_tt = (past_tt >= 0) & ((step_t < before) | (beam_t == beam_t[:, None]))
    mask_bhtt = (real_bt[:, None] & seen_tt)[:, None]
    masks = {config.window: mask_bhtt & (past_tt < config.window), 0: mask_bhtt}
    position_bt = jnp.maximum(positions(config, prefix_mask_bp, 1) + step_t - before, 0)
    text, empty = length(config, prefix_mask_bp) + answers.length, cache._replace(read=jnp.array(0))
    _, cache = read(model, token_bt, empty, position_bt, masks, text, end=cache.read)
    return answers, cache, valid
