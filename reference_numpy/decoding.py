"""Text generation: greedy search, sampling and beam search with incremental decoding."""

from collections.abc import Callable

import numpy as np

from . import arithmetic, beams, cache, checks, inputs, sampling, transformer
from .arrays import Array, Mask, Tree
from .config import TransformerConfig as Config
from .strategy import Options, Strategy
from .values import Text

__all__ = ["beam_search", "greedy_search", "sample"]


def greedy_search(
    parameters: Tree,
    config: Config,
    source: Text | Array | None,
    strategy: Options,
    prefix: Text | Array | None = None,
) -> dict[str, Array]:
    """Generates the likeliest token at every step; ties go to the lower id.

    source: ids `b s`; None for a decoder-only model, which needs a prefix, its prompt. strategy: a
    Strategy, or a mapping of its fields. prefix: ids `b p` that every answer continues, instead of
    the start token; shorter prefixes are padded on the left. Pass a Text to add a mask to the ids.
    An answer ends with the end token or after max_new_tokens tokens.

    Returns `token_bn` and `log_p_bn`, both `max_new_tokens` long. The tokens, int64, exclude the
    prefix and are padded after their end. log_p is the model's `log p` of each token given all
    before it, over the allowed tokens and before penalties; after the end it is 0. Half-precision
    dtypes compute `log p` in float32. Raises ValueError on invalid ids and options, and if a logit
    is inf or NaN.
    """
    model = Model(parameters, config, Strategy.of(strategy, config), source, prefix)
    return one_by_one(model, lambda scores_bv, _: scores_bv.argmax(axis=1))


def sample(
    parameters: Tree,
    config: Config,
    source: Text | Array | None,
    strategy: Options,
    uniform_bn: Array,
    prefix: Text | Array | None = None,
) -> dict[str, Array]:
    """Like `greedy_search`, but draws each token (SAMPLE).

    Logits pass penalties, temperature, top-k and top-p; a uniform number then selects the token, as
    `draw` does. uniform_bn: a number in [0, 1) for every token of every answer, instead of a random
    generator. Temperature 0 takes the likeliest token. Other arguments match `greedy_search`.
    """
    strategy = Strategy.of(strategy, config)
    model = Model(parameters, config, strategy, source, prefix)
    shape = len(model.target_bt), strategy.max_new_tokens
    least, most = uniform_bn.min(initial=0), uniform_bn.max(initial=0)
    checks.check_uniform(uniform_bn.shape, shape, least, most)

    def choose(scores_bv: Array, step: int) -> Array:
        if not strategy.temperature:
            return scores_bv.argmax(axis=1)
        kept_bv = sampling.truncate(scores_bv, strategy.temperature, strategy.top_k, strategy.top_p)
        return sampling.draw(kept_bv, uniform_bn[:, step])

    return one_by_one(model, choose)


def beam_search(
    parameters: Tree,
    config: Config,
    source: Text | Array | None,
    strategy: Options,
    prefix: Text | Array | None = None,
) -> dict[str, Array]:
    """Returns the hypotheses of highest score `log p / ((5 + n) / 6)^alpha` (BEAM).

    n counts the end token. At each step every live beam ends once, and the beam_size likeliest
    continuations of all beams stay live; the last of max_new_tokens tokens can only be the end
    token. Ties go to the lower token. A row stops when beam_size hypotheses are finished and no
    live beam can beat the worst of them; early_stop ignores the live beams. Penalties act on
    `log p`. Arguments and errors match `greedy_search`.

    Returns `token_bwn`, int64, and `score_bw`: the `n_best` hypotheses of each row, best first.
    Missing hypotheses are padding with score -inf. Source: Wu et al. 2016, eq. 14.
    """
    strategy = Strategy.of(strategy, config)
    model = Model(parameters, config, strategy, source, prefix, strategy.beam_size)
    rows = [beams.Row(strategy) for _ in range(len(model.target_bt) // strategy.beam_size)]
    for _ in range(strategy.max_new_tokens):
        scores_bv = model.penalised(model.log_p)
        scores_bwv = scores_bv.reshape(len(rows), strategy.beam_size, scores_bv.shape[1])
        for row, scores_wv in zip(rows, scores_bwv, strict=True):
            row.advance(scores_wv)
        if all(row.done for row in rows):
            break
        model.read(*continued(rows, strategy.beam_size))
    return n_best(rows, strategy, strategy.pad_id(config), scores_bwv.dtype)


def one_by_one(model: "Model", choose: Callable[[Array, int], Array]) -> dict[str, Array]:
    """Generates one answer per row, token by token. choose: (scores `b v`, step) -> tokens `b`."""
    strategy, pad_id = model.strategy, model.strategy.pad_id(model.config)
    shape = len(model.logits_bv), strategy.max_new_tokens
    done_b = np.zeros(shape[0], bool)
    token_bn, log_p_bn = np.full(shape, pad_id), np.zeros(shape, model.logits_bv.dtype)
    for step in range(strategy.max_new_tokens):
        scores_bv = model.penalised(model.logits_bv)
        nothing_b = np.isneginf(scores_bv).all(axis=1)
        scores_bv[nothing_b, strategy.end_id] = 0  # if no token is allowed, the answer ends
        token_bn[:, step] = token_b = np.where(done_b, pad_id, choose(scores_bv, step))
        log_p_b = np.take_along_axis(model.log_p, token_b[:, None], axis=1)[:, 0]
        log_p_bn[:, step] = np.where(done_b, log_p_b.dtype.type(0), log_p_b)
        done_b = done_b | (token_b == strategy.end_id)
        if step + 1 == strategy.max_new_tokens or done_b.all():
            break
        model.read(token_b[:, None])
    return {"token_bn": token_bn, "log_p_bn": log_p_bn}


def start(
    config: Config, strategy: Strategy, source: Text | None, prefix: Text | Array | None
) -> tuple[Array, Array]:
    """Returns the prefix of every answer, by default the start token, and which tokens are real."""
    checks.check_prefix_given(prefix is not None, source is not None, strategy.start_id)
    if prefix is None:
        ids = source.ids  # type: ignore[union-attr]
        prefix = np.full((len(ids), 1), strategy.start_id, ids.dtype)
    prefix_bp, mask_bp, _ = text = Text.of(prefix)
    if mask_bp is not None:
        checks.check_token_mask("prefix mask", mask_bp.shape, str(mask_bp.dtype), prefix_bp.shape)
    last, real = prefix_bp[..., -1:].tolist(), () if mask_bp is None else mask_bp[:, -1].tolist()
    checks.check_prefix(prefix_bp.shape, str(prefix_bp.dtype), config.padding_id, last, real)
    # The last token of an answer is never read.
    checks.check_length(prefix_bp.shape[1] + strategy.max_new_tokens - 1, config.max_positions)
    return prefix_bp, inputs.real(config, text)


def continued(rows: list[beams.Row], size: int) -> tuple[Array, Array]:
    """Returns what the model reads next: the last token of every beam, `(b w) 1`, and the model row
    that each beam continues, `(b w)`. Both are arbitrary in rows without a live beam.
    """
    token, parent = np.zeros((len(rows), size), int), np.zeros((len(rows), size), int)
    for index, row in enumerate(rows):
        for place, beam in enumerate(row.live):
            token[index, place], parent[index, place] = beam.tokens[-1], beam.parent
    row_b = parent + size * np.arange(len(rows))[:, None]
    return token.reshape(-1, 1), row_b.reshape(-1)


class Model:
    """The model after reading a target, with one copy of each row per beam."""

    def __init__(
        self,
        parameters: Tree,
        config: Config,
        strategy: Strategy,
        source: Text | Array | None,
        prefix: Text | Array | None,
        copies: int = 1,
    ) -> None:
        self.parameters, self.config, self.strategy = parameters, config, strategy
        config.need_decoder()
        checks.check_source_given(config.encoder_layers, source)
        text = None
        if source is not None:
            text = Text.of(source)
            checks.check_source(text.ids.shape, str(text.ids.dtype))
        prefix_bp, mask_bp = start(config, strategy, text, prefix)
        row_b = np.repeat(np.arange(len(prefix_bp)), copies)
        memory_bsd = real_bs = None
        if text is not None:
            checks.check_same_batch(source=text.ids.shape, prefix=prefix_bp.shape)
            real_bs = inputs.real(config, text)
            text = text._replace(mask_bt=real_bs)
            memory_bsd = transformer.encode(parameters, config, text)[row_b]
            real_bs = real_bs[row_b]
        self._memory = memory_bsd, real_bs, len(row_b)
        self._cache = cache.start_cache(parameters, config, *self._memory)
        self._prefix_length = prefix_bp.shape[1]
        self.target_bt, self.target_mask_bt = prefix_bp[row_b][:, :0], mask_bp[row_b][:, :0]
        self.read(prefix_bp[row_b], mask_bt=mask_bp[row_b])

    def read(self, token_bt: Array, row_b: Array | None = None, mask_bt: Mask = None) -> None:
        """Reads these tokens, after replacing row i by row `row_b[i]` if row_b is set."""
        if row_b is not None:
            self._cache = cache.reorder(self._cache, row_b)
            self.target_bt, self.target_mask_bt = self.target_bt[row_b], self.target_mask_bt[row_b]
        mask_bt = inputs.real(self.config, Text(token_bt, mask_bt))
        before_bt = self.target_mask_bt
        self.target_bt = np.concatenate([self.target_bt, token_bt], axis=1)
        self.target_mask_bt = np.concatenate([self.target_mask_bt, mask_bt], axis=1)
        if self._switches(before_bt):
            # rotate every key again, by the frequencies of long texts (ROTARY)
            self._cache = cache.start_cache(self.parameters, self.config, *self._memory)
            token_bt, mask_bt = self.target_bt, self.target_mask_bt
        given = self.parameters, self.config, token_bt, self._cache, mask_bt
        logits_btv, self._cache = cache.decode_step(*given)
        self.logits_bv = arithmetic.upcast_half(logits_btv[:, -1])
        checks.check_logits(bool((self.logits_bv < np.inf).all()))
        self.logits_bv[:, self.strategy.forbidden_ids(self.config)] = -np.inf

    def _switches(self, before_bt: Array) -> bool:
        """Whether the target grows beyond a length at which rotation factors switch."""
        config, after_bt = self.config, self.target_mask_bt
        return any(
            0 < cache.length(config, before_bt) <= original < cache.length(config, after_bt)
            for original in config.rotary_switches
        )

    @property
    def log_p(self) -> Array:
        x_bv = self.logits_bv - np.max(self.logits_bv, axis=1, keepdims=True)
        return x_bv - np.log(arithmetic.sum(arithmetic.exp(x_bv), axis=1))

    def penalised(self, scores_bv: Array) -> Array:
        """Returns the scores after penalties, with the end token excluded before min_new_tokens."""
        strategy = self.strategy
        penalties = strategy.repetition_penalty, strategy.no_repeat_ngram
        scores_bv = sampling.penalise(scores_bv, self.target_bt, *penalties, self.target_mask_bt)
        if self.target_bt.shape[1] - self._prefix_length < strategy.min_new_tokens:
            scores_bv[:, strategy.end_id] = -np.inf
        return scores_bv


def n_best(
    rows: list[beams.Row], strategy: Strategy, pad_id: int, dtype: np.dtype
) -> dict[str, Array]:
    token_bwn = np.full((len(rows), strategy.n_best, strategy.max_new_tokens), pad_id)
    score_bw = np.full(token_bwn.shape[:2], -np.inf, dtype)
    for index, row in enumerate(rows):
        for place, beam in enumerate(row.kept[: strategy.n_best]):
            token_bwn[index, place, : len(beam.tokens)] = beam.tokens
            score_bw[index, place] = beam.score
    return {"token_bwn": token_bwn, "score_bw": score_bw}
