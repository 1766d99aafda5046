"""Defects of decoding: of the cache, of the choice of a token, and of beam search."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import beams, softmax

from .beam_settings import ends_among, penalised_by
from .cache_settings import numbered, with_mask
from .defect import Defect, on_arguments, on_call

__all__ = ["DEFECTS"]


def _always_divided(
    original: Callable, scores_bv: np.ndarray, token_bn: np.ndarray, repetition_penalty: float = 1.0, no_repeat_ngram: int = 0,
    mask_bn: Any = None,
) -> np.ndarray:  # fmt: skip
    held_bv = original(np.ones_like(scores_bv), token_bn, 2.0, 0, mask_bn) < 1
    divided_bv = np.where(held_bv, scores_bv / scores_bv.dtype.type(repetition_penalty), scores_bv)
    return original(divided_bv, token_bn, 1.0, no_repeat_ngram, mask_bn)


def _temperature_last(original: Callable, logits_bv: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Any:
    return original(original(logits_bv, 1.0, top_k, top_p), temperature)


def _without_the_crossing_one(
    original: Callable, logits_bv: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> np.ndarray:
    x_bv = original(logits_bv, temperature, top_k)
    order_bv = np.argsort(-x_bv, axis=1, kind="stable")
    sum_bv = np.cumsum(softmax.softmax(np.take_along_axis(x_bv, order_bv, axis=1)), axis=1)
    kept_bv = sum_bv <= top_p
    kept_bv[:, 0] = True
    np.put_along_axis(kept_bv, order_bv, kept_bv.copy(), axis=1)
    return np.where(kept_bv | (top_p == 1), x_bv, x_bv.dtype.type(-np.inf))


def _bound_of_this_length(original: Callable, live: list[beams.Beam], kept: list[beams.Beam], strategy: Any) -> bool:
    return original(live, kept, strategy.replace(max_new_tokens=max(len(live[0].tokens), strategy.min_new_tokens + 1)))


DEFECTS = (
    Defect(
        id="PE13",
        title="the positions of a step are counted from the step",
        component="decode_in_steps",
        what="A step on cached keys encodes its tokens as positions 0, 1, ..., not as those that follow the tokens which were read before.",
        shows="A target read at once is right, one that is read in steps is not: the model repeats itself. A second step shows it.",
        torch="position = past + torch.arange(token.size(1))  # past: how many tokens the cache holds",
        tf="position = past + tf.range(tf.shape(token)[1])  # past: how many tokens the cache holds",
        jax="position = past + jnp.arange(token.shape[1])  # past: how many tokens the cache holds",
        variants={
            "the positions of the later steps are one too small": numbered(
                lambda position_bt, past: np.maximum(position_bt - (past > 0), 0)
            ),
            "the positions of the later steps are one too large": numbered(lambda position_bt, past: position_bt + (past > 0)),
            "the tokens of a step have the position of its first": numbered(
                lambda position_bt, past: np.broadcast_to(position_bt[:, :1], position_bt.shape)
            ),
            "the tokens of a step have the position of its last": numbered(
                lambda position_bt, past: np.broadcast_to(position_bt[:, -1:], position_bt.shape)
            ),
            "the tokens of the later steps have the position of the last one": numbered(
                lambda position_bt, past: np.broadcast_to(position_bt[:, -1:], position_bt.shape) if past else position_bt
            ),
        },
        evidence="mlx-lm#93, executorch#2010",
        replaces={"cache._positions": on_call(lambda read_bt, length, **others: {"read_bt": read_bt[:, -length:]})},
    ),
    Defect(
        id="GEN1",
        title="the length penalty is a power of the length",
        component="beam_search",
        what="`log p / n^alpha` instead of `log p / ((5 + n) / 6)^alpha`.",
        shows="Scores are larger, and longer answers are preferred more. Any alpha above 0 shows it.",
        torch="score = log_p / ((5 + length) / 6) ** alpha  # generate(length_penalty=...) divides by length ** alpha",
        tf="score = log_p / ((5.0 + length) / 6.0) ** alpha  # generate(length_penalty=...) divides by length ** alpha",
        jax="score = log_p / ((5 + length) / 6) ** alpha  # generate(length_penalty=...) divides by length ** alpha",
        variants={
            "the score is multiplied by the length penalty": penalised_by(lambda n, alpha: ((5 + n) / 6) ** -alpha),
            "the length penalty is alpha times (5 + n) / 6": penalised_by(lambda n, alpha: alpha * (5 + n) / 6 if alpha else 1.0),
            "the length penalty is (5 + n)^alpha": penalised_by(lambda n, alpha: (5 + n) ** alpha),
            "the length penalty is (5 + n)^alpha / 6": penalised_by(lambda n, alpha: (5 + n) ** alpha / 6),
            "the length penalty is ((5 + n) / 5)^alpha": penalised_by(lambda n, alpha: ((5 + n) / 5) ** alpha),
            "the length penalty is the length, whatever alpha is": penalised_by(lambda n, alpha: float(n)),
            "the length penalty is the root of the length": penalised_by(lambda n, alpha: n**0.5),
        },
        evidence="transformers#16930",
        replaces=penalised_by(lambda n, alpha: n**alpha),
    ),
    Defect(
        id="GEN2",
        title="the search stops although a longer answer could still win",
        component="beam_search",
        what="The best score that a live beam can reach is taken to be that of its present length, whose penalty is smaller than that of a "
        "longer answer.",
        shows="Answers are too short where alpha is large; alpha 0 agrees. A large alpha shows it.",
        torch="highest = log_p[:, 0] / ((5 + max_new_tokens) / 6) ** alpha  # log p only falls; no penalty is larger than the last",
        tf="highest = log_p[:, 0] / ((5.0 + max_new_tokens) / 6.0) ** alpha",
        jax="highest = log_p[:, 0] / ((5 + max_new_tokens) / 6) ** alpha",
        evidence="OpenNMT-py#1320, transformers#20901",
        replaces={"beams.stops": _bound_of_this_length},
    ),
    Defect(
        id="GEN3",
        title="the temperature comes after top-p",
        what="The logits are cut by the probabilities at temperature 1, and what is left is divided by the temperature.",
        shows="Too many tokens are left where the temperature is low, too few where it is high; temperature 1 agrees. Top-p with another "
        "temperature shows it.",
        torch="logits = truncate(logits / temperature, top_k, top_p)  # first the temperature, then top-k, then top-p",
        tf="logits = truncate(logits / temperature, top_k, top_p)  # first the temperature, then top-k, then top-p",
        jax="logits = truncate(logits / temperature, top_k, top_p)  # first the temperature, then top-k, then top-p",
        evidence="transformers#8686",
        replaces={"sampling.truncate": _temperature_last},
    ),
    Defect(
        id="GEN4",
        title="top-p drops the token that crosses it",
        what="A token is kept where the sum of probabilities with its own is at most p; it must be where the sum before it is less than p.",
        shows="The tokens that are left have less than the probability p together. Any top-p below 1 shows it.",
        torch="kept = cumulative - p_sorted < top_p  # the sum before each token",
        tf="kept = tf.cumsum(p_sorted, axis=-1, exclusive=True) < top_p",
        jax="kept = jnp.cumsum(p_sorted, axis=-1) - p_sorted < top_p  # the sum before each token",
        evidence="C2C#21, fish-speech#1171",
        replaces={"sampling.truncate": _without_the_crossing_one},
    ),
    Defect(
        id="GEN5",
        title="the cache does not go with the beams",
        component="beam_search",
        what="The beams change places and their keys and values do not: a beam goes on with the past of another one.",
        shows="Answers and their scores do not belong together; one beam agrees. Beams that change places show it.",
        torch="cache = {name: tensor.index_select(0, parent) for name, tensor in cache.items()}  # in every layer, under every name",
        tf="cache = tf.nest.map_structure(lambda tensor: tf.gather(tensor, parent), cache)",
        jax="cache = jax.tree.map(lambda array: array[parent], cache)",
        evidence="PaddleNLP#6672, transformers#46612",
        replaces={"cache.reorder": lambda original, cache, row_b: cache},
    ),
    Defect(
        id="GEN6",
        title="cached steps see the padding of the source",
        component="decode_in_steps",
        what="The source's mask is given to the encoder and not to the cross-attention of the steps.",
        shows="Answers change with the length of the source's padding, and with what else is in the batch. A padded source shows it.",
        torch="logits = model.decode(token, memory, source_mask)  # in every step, not in the first alone",
        tf="logits = model.decode(token, memory, source_mask)  # in every step, not in the first alone",
        jax="logits = model.decode(token, memory, source_mask)  # in every step, not in the first alone",
        evidence="transformers#7373, TransformerLens#1617",
        replaces={"cache.start_cache": on_arguments(source_mask_bs=None)},
    ),
    Defect(
        id="GEN7",
        title="the repetition penalty divides negative scores",
        what="`x / penalty` for every token of the target: a negative score grows, which makes the token likelier.",
        shows="The model repeats itself the more, the larger the penalty. A negative score of a token that the target holds shows it.",
        torch="score = torch.where(score > 0, score / penalty, score * penalty)",
        tf="score = tf.where(score > 0, score / penalty, score * penalty)",
        jax="score = jnp.where(score > 0, score / penalty, score * penalty)",
        evidence="transformers#2302",
        replaces={"sampling.penalise": _always_divided},
    ),
    Defect(
        id="GEN8",
        title="the end token does not count in the length",
        component="beam_search",
        what="`log p / ((5 + n - 1) / 6)^alpha` instead of `log p / ((5 + n) / 6)^alpha`: n tokens with the end token.",
        shows="Scores are larger, those of short answers most. Any alpha above 0 shows it.",
        variants={
            "the start token counts in the length": penalised_by(lambda n, alpha: ((6 + n) / 6) ** alpha),
            "the length is that without the end token, to the power of alpha": penalised_by(lambda n, alpha: max(n - 1, 1) ** alpha),
            "the length is that with the start token, to the power of alpha": penalised_by(lambda n, alpha: (n + 1) ** alpha),
        },
        torch="score = log_p / ((5 + tokens.size(-1)) / 6) ** alpha  # tokens: the answer with its end, without its start",
        tf="score = log_p / ((5.0 + length) / 6.0) ** alpha  # length: of the answer with its end, without its start",
        jax="score = log_p / ((5 + length) / 6) ** alpha  # length: of the answer with its end, without its start",
        evidence="sockeye#483, transformers#8722",
        replaces=penalised_by(lambda n, alpha: ((4 + n) / 6) ** alpha),
    ),
    Defect(
        id="GEN9",
        title="cached steps see the padding of the target",
        component="decode_in_steps",
        what="A step's mask is that of causality: the padding of a prompt, or what was read after an end, has keys that are seen.",
        shows="A row that is padded gets other outputs than the same row without padding. A padded target in two steps shows it.",
        variants={
            "steps see the padding that was read before them": with_mask(lambda mask, past: mask | (np.arange(mask.shape[-1]) < past)),
            "steps see their own padding, and not what was before": with_mask(
                lambda mask, past: mask | (np.arange(mask.shape[-1]) >= past)
            ),
            "the mask of what was read is shifted by one": with_mask(lambda mask, past: np.roll(mask, 1, axis=-1)),
        },
        torch="mask = torch.cat([past_mask, token_mask], dim=1)[:, None, None]  # of all that has been read, in every step",
        tf="mask = tf.concat([past_mask, token_mask], axis=1)[:, None, None]  # of all that has been read, in every step",
        jax="mask = jnp.concatenate([past_mask, token_mask], axis=1)[:, None, None]  # of all that has been read, in every step",
        evidence="mlx-lm#1906, transformers#18104",
        replaces=with_mask(lambda mask, past: np.ones_like(mask)),
    ),
    Defect(
        id="GEN10",
        title="a beam ends only where its end is among the best continuations",
        component="beam_search",
        what="Of all continuations, ends among them, the 2 beam_size best are taken, and a beam whose end is not among them does not end.",
        shows="Answers that end early are missed where the vocabulary is large beside the beams. Beams whose ends are unlikely show it.",
        variants={
            "a beam ends only where its end is among the beam_size best continuations": ends_among(lambda size: size),
            "a beam that ends takes the place of a live one from then on": ends_among(lambda size: size, takes_a_place=True),
        },
        torch="ended = score[:, :, end_id]  # of every live beam, whatever the others are",
        tf="ended = score[:, :, end_id]  # of every live beam, whatever the others are",
        jax="ended = score[:, :, end_id]  # of every live beam, whatever the others are",
        evidence="fairseq#4901, ParlAI#2058, CTranslate2#911",
        replaces=ends_among(lambda size: 2 * size),
    ),
)
