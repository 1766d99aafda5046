"""The beams of all rows: which are live, which are finished, and when to stop (BEAM)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .framework import Array

__all__ = ["Beams", "best", "keep", "length_penalty", "stops"]


class Beams(NamedTuple):
    """The live beams of every row, best first and all of one length, and the best finished
    hypotheses.

    Empty slots have a score of -inf. token_bw: the next token that each beam reads. The beams of a
    row share one cache, in which the tokens read at the same step are adjacent; place_bwn says
    which of them belongs to each beam, so that no key or value is moved.
    """

    length: jax.Array
    token_bw: jax.Array
    live_bwn: jax.Array
    live_bw: jax.Array
    place_bwn: jax.Array
    kept_bwn: jax.Array
    kept_bw: jax.Array
    done_b: jax.Array

    @classmethod
    def start(cls, token_bw: jax.Array, room: int, pad_id: jax.Array, dtype: jnp.dtype) -> "Beams":
        """Starts one live beam per row, which reads token_bw first. room: longest answer, in
        tokens.
        """
        token_bwn = jnp.full((*token_bw.shape, room), pad_id, int)
        nothing_bw = jnp.full(token_bw.shape, -jnp.inf, dtype)
        return cls(
            length=jnp.zeros((), int),
            token_bw=token_bw,
            live_bwn=token_bwn,
            live_bw=nothing_bw.at[:, 0].set(0),
            place_bwn=jnp.broadcast_to(jnp.arange(token_bw.shape[1])[:, None], token_bwn.shape),
            kept_bwn=token_bwn,
            kept_bw=nothing_bw,
            done_b=jnp.zeros(len(token_bw), bool),
        )

    def advance(
        self,
        scores_bwv: jax.Array,
        length_penalty_n: jax.Array,
        end_id: jax.Array,
        max_new_tokens: jax.Array,
        early_stop: jax.Array,
    ) -> "Beams":
        """Appends one token to every beam, given the scores of each live beam. length_penalty_n:
        for n tokens.
        """
        penalty_n = jnp.asarray(length_penalty_n, scores_bwv.dtype)
        total_bwv = scores_bwv + self.live_bw[..., None]
        ended_bw = total_bwv[..., end_id] / penalty_n[self.length + 1]
        kept_bwn, kept_bw = keep(self, ended_bw, end_id)
        live_bw, token_bw, parent_bw = best(total_bwv.at[..., end_id].set(-jnp.inf))
        live_bwn = jax.lax.dynamic_update_index_in_dim(
            _rows(self.live_bwn, parent_bw), token_bw, self.length, axis=2
        )
        read_n = jnp.arange(live_bwn.shape[2]) <= self.length
        place_bwn = jnp.where(read_n, _rows(self.place_bwn, parent_bw), self.place_bwn)
        stops_b = stops(live_bw, kept_bw, penalty_n[max_new_tokens], early_stop)
        last = self.length + 1 == max_new_tokens
        done_b = last | (live_bw[:, 0] == -jnp.inf) | stops_b
        new = token_bw, live_bwn, live_bw, place_bwn, kept_bwn, kept_bw, done_b
        return Beams(
            self.length + 1,
            *(
                jnp.where(jnp.expand_dims(self.done_b, range(1, now.ndim)), then, now)
                for then, now in zip(self[1:], new, strict=True)
            ),
        )


def best(total_bwv: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns log p, token and parent of the continuations of largest log p, largest first; ties go
    to the lower token, then to the better beam.

    The best of a row are among the best of each of its beams.
    """
    batch, size, _ = total_bwv.shape
    score_bww, token_bww = jax.lax.top_k(total_bwv, size)
    parent_bww = jnp.broadcast_to(jnp.arange(size)[:, None], token_bww.shape)
    candidates = (-score_bww, token_bww.astype(int), parent_bww)
    flat = [x.reshape(batch, size * size) for x in candidates]
    ordered = jax.lax.sort(flat, dimension=1, num_keys=3)
    negative_bw, token_bw, parent_bw = (x[:, :size] for x in ordered)
    return -negative_bw, token_bw, parent_bw


def keep(beams: Beams, ended_bw: jax.Array, end_id: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the best of the kept hypotheses and of the beams that end now; ties: lower tokens."""
    end_bw1 = jnp.full_like(beams.live_bwn[..., :1], end_id)
    ended_bwn = jax.lax.dynamic_update_slice_in_dim(beams.live_bwn, end_bw1, beams.length, axis=2)
    token_bcn = jnp.concatenate([beams.kept_bwn, ended_bwn], axis=1)
    score_bc = jnp.concatenate([beams.kept_bw, ended_bw], axis=1)
    order_bw = jnp.argsort(_rank(score_bc, token_bcn), axis=1)[:, : ended_bw.shape[1]]
    return _rows(token_bcn, order_bw), jnp.take_along_axis(score_bc, order_bw, axis=1)


def _rank(score_bc: jax.Array, token_bcn: jax.Array) -> jax.Array:
    """Returns how many candidates of the row rank before each: by score, then by lower tokens."""
    differs_bccn = token_bcn[:, :, None] != token_bcn[:, None]
    first_bcc1 = differs_bccn.argmax(axis=-1)[..., None]
    mine_bcc, other_bcc = (
        jnp.take_along_axis(jnp.broadcast_to(x, differs_bccn.shape), first_bcc1, axis=-1)[..., 0]
        for x in (token_bcn[:, :, None], token_bcn[:, None])
    )
    index_c = jnp.arange(score_bc.shape[1])
    lower_bcc = (other_bcc < mine_bcc) | ((other_bcc == mine_bcc) & (index_c < index_c[:, None]))
    mine_bc1, other_b1c = score_bc[:, :, None], score_bc[:, None]
    return ((other_b1c > mine_bc1) | ((other_b1c == mine_bc1) & lower_bcc)).sum(axis=-1)


def stops(
    live_bw: jax.Array, kept_bw: jax.Array, penalty: jax.Array, early_stop: jax.Array
) -> jax.Array:
    """Returns whether no live beam can still beat the row's worst hypothesis. penalty: longest
    answer.
    """
    full_b, highest_b = kept_bw[:, -1] > -jnp.inf, live_bw[:, 0] / penalty
    return full_b & (early_stop | (highest_b <= kept_bw[:, -1]))


def length_penalty(length: Array, alpha: float) -> Array:
    """`((5 + n) / 6)^alpha`, the divisor of log p for n tokens (Wu et al. 2016, eq. 14)."""
    return ((5 + length) / 6) ** alpha


def _rows(x_bcn: jax.Array, index_bw: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x_bcn, index_bw[..., None], axis=1)
