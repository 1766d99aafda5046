"""Cases of the searches and of sampling, on small models."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..case import Case
from .build import B, Builder, S, left_padding, parameters_of, ragged, rng
from .transformer import ONE_LAYER, ids

# Nearly all have one model's sizes and lengths, so that a port that compiles a search does so once.
SIZES: dict[str, Any] = {"model_width": 12, "target_vocabulary": 17, **ONE_LAYER}
TOKENS = 8
SINGLE = ("float64", "float32")  # in half-precision dtypes truncation and draws too often lie near boundaries
THOROUGH = ("plain", "alpha_0.6")  # in every dtype; the others in one,
QUICK = ("float32",)  # since a port may compile a whole search for every dtype, which takes long
CACHE = "CAU3 PE13 GEN6"


def cases(build: Builder) -> Iterator[Case]:
    """Yields answers that end at different times; prefixes padded on the left; every option; and a model of every kind."""
    for case in (*_greedy_cases(build), *_sample_cases(build), *_beam_cases(build)):
        yield dataclasses.replace(case, dtypes=case.dtypes if case.name in THOROUGH else QUICK)


def _greedy_cases(build: Builder) -> Iterator[Case]:
    some = build.config(**SIZES)
    yield _search(build, "greedy_search", "quick", some, 33, f"{CACHE} GEN9", prefix=_prefix(some), min_new_tokens=2, no_repeat_ngram=3)
    yield _search(build, "greedy_search", "plain", some, 277, CACHE)
    yield _search(build, "greedy_search", "prefix", some, 108, f"{CACHE} GEN9", prefix=_prefix(some))
    yield _search(build, "greedy_search", "min_new_tokens", some, 108, CACHE, min_new_tokens=6)
    # here one token less would end the answer
    yield _search(build, "greedy_search", "min_new_tokens_exactly", some, 564, CACHE, min_new_tokens=3)
    yield _search(build, "greedy_search", "repetition_penalty", some, 284, CACHE, repetition_penalty=1.8)
    yield _search(build, "greedy_search", "no_repeat_ngram", some, 356, CACHE, no_repeat_ngram=2, prefix=_prefix(some))
    yield _search(build, "greedy_search", "one_token", some, 59, "GEN6", max_new_tokens=1)
    full = np.array([[id_ for id_ in range(some.target_vocabulary) if id_ not in (some.padding_id, *_start_and_end(some))]] * B)
    yield _search(build, "greedy_search", "nothing_may_follow", some, 0, prefix=full, no_repeat_ngram=1, min_new_tokens=2)
    start, _ = _start_and_end(some)
    yield _search(build, "greedy_search", "start_is_end", some, 312, CACHE, end_id=start)
    yield _search(build, "greedy_search", "explicit_mask", some, 462, CACHE, source_mask_bs=_mask())
    zero = build.config(**SIZES, padding_id=0)
    yield _search(build, "greedy_search", "padding_id_0", zero, 27, CACHE, prefix=_prefix(zero))
    yield from _of_every_kind(build, "greedy_search", (82, 527, 251), CACHE)
    yield _search(build, "greedy_search", "long", some, 138, CACHE, max_new_tokens=40)


def _sample_cases(build: Builder) -> Iterator[Case]:
    some = build.config(**SIZES)

    def case(name: str, seed: int, catches: str = "", **options: Any) -> Case:
        uniform_bn = rng(f"sample {name}").uniform(0.01, 0.99, (B, TOKENS))
        return dataclasses.replace(_search(build, "sample", name, some, seed, catches, uniform_bn=uniform_bn, **options), dtypes=SINGLE)

    everything: dict[str, Any] = {"temperature": 1.7, "top_k": 6, "top_p": 0.9, "repetition_penalty": 1.3, "no_repeat_ngram": 2}
    yield case("quick", 159, f"{CACHE} GEN3 GEN4", **everything, prefix=_prefix(some))
    yield case("plain", 31, CACHE)
    yield case("cool", 218, CACHE, temperature=0.5)
    yield case("zero_temperature", 277, CACHE, temperature=0.0)
    yield case("top_k", 138, CACHE, temperature=2.0, top_k=3)
    yield case("top_p", 221, f"{CACHE} GEN4", top_p=0.6)
    yield case("hot_top_p", 31, f"{CACHE} GEN3 GEN4", temperature=2.5, top_p=0.7)
    yield case("explicit_mask", 82, CACHE, top_k=6, source_mask_bs=_mask())
    yield case("everything", 21, f"{CACHE} GEN3 GEN4 GEN7", **everything, min_new_tokens=3, prefix=_prefix(some))


def _beam_cases(build: Builder) -> Iterator[Case]:
    some, beams = build.config(**SIZES), f"{CACHE} GEN5"
    penalties: dict[str, Any] = {"repetition_penalty": 1.3, "no_repeat_ngram": 2, "min_new_tokens": 3}
    quick: dict[str, Any] = {"beam_size": 3, "n_best": 2, "alpha": 2.0, "no_repeat_ngram": 3, "prefix": _prefix(some)}
    yield _search(build, "beam_search", "quick", some, 365, f"{beams} GEN1 GEN2 GEN8", **quick)
    yield _search(build, "beam_search", "alpha_0.6", some, 480, f"{beams} GEN1 GEN8 GEN10", beam_size=3, alpha=0.6)
    yield _search(build, "beam_search", "alpha_0", some, 138, beams, beam_size=3, alpha=0.0)
    yield _search(build, "beam_search", "alpha_2", some, 29, f"{beams} GEN1 GEN2 GEN8", beam_size=3, n_best=2, alpha=2.0)
    yield _search(build, "beam_search", "n_best", some, 495, f"{beams} GEN1 GEN8", beam_size=4, n_best=4, alpha=1.0)
    yield _search(build, "beam_search", "early_stop", some, 35, "GEN1 GEN8 GEN10", beam_size=3, early_stop=True)
    yield _search(build, "beam_search", "one_beam", some, 27, f"{CACHE} GEN1 GEN8 GEN10", beam_size=1, alpha=1.5)
    yield _search(
        build, "beam_search", "prefix", some, 30, f"{beams} GEN1 GEN8 GEN10", beam_size=3, n_best=2, alpha=1.0, prefix=_prefix(some)
    )
    yield _search(build, "beam_search", "penalties", some, 15, f"{beams} GEN1 GEN7", beam_size=3, n_best=3, **penalties)
    yield _search(build, "beam_search", "two_tokens", some, 357, "GEN1 GEN8 GEN10", beam_size=4, n_best=4, max_new_tokens=2)
    masked = {"beam_size": 3, "n_best": 2, "alpha": 1.0, "source_mask_bs": _mask()}
    yield _search(build, "beam_search", "explicit_mask", some, 108, f"{beams} GEN1", **masked)
    many = min(16, some.target_vocabulary)
    yield _search(build, "beam_search", "many_beams", some, 16, f"{beams} GEN1", beam_size=many, n_best=5, alpha=1.0)
    yield from _of_every_kind(build, "beam_search", (138, 398, 358), f"{beams} GEN1", beam_size=3, n_best=2, alpha=1.0)
    yield _search(build, "beam_search", "long", some, 27, f"{beams} GEN1", beam_size=3, alpha=1.0, max_new_tokens=40)
    yield _longest_wins(
        _search(build, "beam_search", "longest_wins", some, 27, f"{CACHE} GEN1 GEN2 GEN8", beam_size=3, n_best=2, alpha=3.0)
    )


def _longest_wins(case: Case) -> Case:
    """Returns the case with nearly equal scores at every step, the end token's the highest: the longest answer is among the best, whatever
    the sizes and the kind of the model.
    """
    start, end = _start_and_end(case.config)
    first = min({0, 1, 2, 3} - {start, end, case.config.padding_id})
    slope_v = 0.8 * (first - np.arange(case.config.target_vocabulary))
    slope_v[end] = 0.5
    flat = {"logits.kernel": 0.06 * case.parameters.get("logits.kernel", np.zeros(())), "logits.bias": slope_v}
    parameters = {name: flat.get(name, value) for name, value in case.parameters.items()}
    return dataclasses.replace(case, parameters=parameters)


def _of_every_kind(build: Builder, component: str, seeds: tuple[int, int, int], catches: str, **options: Any) -> Iterator[Case]:
    grouped = build.config(**SIZES | {"decoder_layers": 2}, heads=6, key_value_heads=2, norm_placement="pre", activation="gelu_tanh")
    configs = {
        "no_padding_id": build.config(**SIZES, padding_id=None),
        "tied": build.config("paper_base", **SIZES | {"source_vocabulary": 17}),
        "grouped_pre_norm": grouped,
    }
    for (name, config), seed in zip(configs.items(), seeds, strict=True):
        seen = catches.replace("GEN6", "") if config.padding_id is None else catches
        yield _search(build, component, name, config, seed, seen, **options)


def _search(build: Builder, component: str, name: str, config: TransformerConfig, seed: int, catches: str = "", **options: Any) -> Case:
    """Returns a search over sources, some of them padded. seed: of a model whose answers differ in length and do not repeat a single token.
    options: of the strategy; arrays are separate inputs.
    """
    start, end = _start_and_end(config)
    arrays = {key: value for key, value in options.items() if isinstance(value, np.ndarray)}
    strategy = {"start_id": start, "end_id": end, "max_new_tokens": TOKENS} | {k: v for k, v in options.items() if k not in arrays}
    read = _source(config, arrays) if config.encoder_layers else _prompt(config, arrays)
    inputs = read | {f"strategy.{key}": value for key, value in strategy.items()} | arrays
    values = _model(config, seed)
    if "repetition_penalty" in strategy and "logits.bias" in values:
        values["logits.bias"] -= 3  # so that scores of both signs are among the largest: a penalty changes them differently
    return build.make(component, name, config, catches, values, **inputs)


def _source(config: TransformerConfig, given: dict[str, np.ndarray]) -> dict[str, Any]:
    return {"source": ids("search", config.source_vocabulary, config.padding_id, ragged(B, S))}


def _prompt(config: TransformerConfig, given: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns what a decoder-only model reads in place of the source: a prefix that is padded on the left. A mask of the source becomes the
    prefix's.
    """
    mask = ragged(B, S)[:, ::-1]
    read: dict[str, Any] = {"source": None, "prefix": ids("search", config.target_vocabulary, config.padding_id, mask)}
    if given.pop("source_mask_bs", None) is not None:
        read["prefix_mask_bp"] = left_padding(B + 1, S)[:B]
    return read


def _start_and_end(config: TransformerConfig) -> tuple[int, int]:
    """Returns the first two ids that are not padding."""
    first, second = [id_ for id_ in range(3) if id_ != config.padding_id][:2]
    return first, second


def _mask() -> np.ndarray:
    """Returns a source mask that hides other tokens than the padding ids do."""
    return left_padding(B, S)[:, ::-1].copy()


def _prefix(config: TransformerConfig) -> np.ndarray:
    """Returns prefixes of different lengths, the shorter rows padded on the left."""
    return ids("search prefix", config.target_vocabulary, config.padding_id, np.arange(4) >= np.array([[0], [3], [1]]))


def _model(config: TransformerConfig, seed: int) -> dict[str, np.ndarray]:
    """Returns parameters with which the input decides the output, unlike those of a model at the beginning of its training."""
    values = parameters_of(config, "transformer", rng(f"search {seed}"))
    last = "decoder.final_norm" if config.final_norm else f"decoder.layers.{config.decoder_layers - 1}.feed_forward_norm"
    for name, value in values.items():
        if name.endswith("_embedding.table"):
            value *= 0.25
        elif name.startswith("decoder.") and name.endswith("kernel"):
            value *= 1.5
        elif name == f"{last}.scale":
            value *= 12 if config.tie_logits else 3
        elif name.startswith("decoder.") and name.endswith("offset"):
            value *= 0.3
        elif name == "logits.bias":
            value *= 0.1
    return values
