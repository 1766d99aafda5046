"""Cases of incremental decoding, token selection, searches and sampling, on small models."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..case import Case
from .build import B, Builder, S, T, left_padding, parameters_of, ragged, rng
from .transformer import ONE_LAYER, ids

DTYPES = ("float64", "float32")  # token selection runs in these dtypes, whatever the model's dtype
V = 11


def cases(build: Builder) -> Iterator[Case]:
    """Yields targets decoded at once, token by token and after a prompt, with every kind of padding
    and dialect; and tables of scores with repeated tokens, repeated n-grams, ties, and every
    truncation."""
    for part in (_step_cases, _penalise_cases, _truncate_cases, _draw_cases, _search_cases):
        yield from part(build)


def _step_cases(build: Builder) -> Iterator[Case]:
    some, even = build.config(), build.config(model_width=12, **ONE_LAYER)
    yield _steps(build, "at_once", some, (T,), "CAU1 CAU2 CAU4 PE9")
    yield _steps(build, "one_by_one", some, (1,) * T, "CAU3 PE9 PE13")
    yield _steps(build, "prompt_first", build.config(**ONE_LAYER), (3, 1, 1), "CAU1 CAU3 CAU4 PE13 GEN9")
    padded = {"target_mask": left_padding(B, T), "source_mask": left_padding(B, S)}
    yield _steps(build, "left_padding", even, (2, 1, 2), "CAU3 CAU4 PE11 PE13 ATT7 ATT13 GEN6 GEN9", **padded)
    ended = ragged(B, T)
    ended[1] = [True, False, True, False, False]
    yield _steps(build, "ended_rows", even, (1, 2, 1, 1), "CAU3 ATT7 GEN6 GEN9", target_mask=ended, source_mask=ragged(B, S))
    explicit: dict[str, Any] = {"source_mask_bs": left_padding(B, S), "target_mask_bt": ragged(B, T)}
    yield _steps(build, "explicit_masks", build.config(padding_id=None, **ONE_LAYER), (2, 3), "CAU3 ATT7 GEN6 GEN9", **explicit)
    yield _steps(build, "no_source_mask", even, (3, 2), "CAU3 PE13", source_mask_bs=None)
    grouped = build.config("paper_base", heads=6, key_value_heads=2, activation="gelu_erf", **ONE_LAYER)
    yield _steps(build, "grouped_heads", grouped, (2, 1, 2), "MHA10 CAU3")
    yield _steps(build, "pre_norm", build.config(norm_placement="pre", **ONE_LAYER), (2, 1, 2), "NRM8 CAU3")
    for dialect in ("paper_base", "separate_tables", "unscaled_embedding", "feed_forward_dropout"):
        yield _steps(build, f"dialect_{dialect}", build.config(dialect, **ONE_LAYER), (2, 1, 2), "CAU3 PE13", dtypes=DTYPES)
    yield _steps(build, "one_token", even, (1,), "PE9", target_mask=np.ones((1, 1), bool), source_mask=np.ones((1, 1), bool))
    yield _steps(build, "long", even, (120, 1, 1, 64, 14), "CAU3", target_mask=ragged(2, 200), source_mask=ragged(2, 190))


def _steps(
    build: Builder, name: str, config: TransformerConfig, splits: tuple[int, ...], catches: str = "",
    target_mask: np.ndarray | None = None, source_mask: np.ndarray | None = None, **inputs: Any,
) -> Case:  # fmt: skip
    """Returns a case that reads a target in steps, with a memory. False in a mask: padding."""
    target_mask, source_mask = (ragged(B, n) if one is None else one for n, one in ((T, target_mask), (S, source_mask)))
    batch, length = source_mask.shape
    given: dict[str, Any] = {
        "target": ids(f"steps {name}", config.target_vocabulary, config.padding_id, target_mask),
        "memory_bsd": f"{batch} {length} d",
        "source_mask_bs": source_mask,
        **inputs,
    }
    if not config.encoder_layers:
        given |= {"memory_bsd": None, "source_mask_bs": None}
    case = build.make("decode_in_steps", name, config, catches, **given)
    return dataclasses.replace(case, inputs=dict(case.inputs) | {"splits": splits})


def _penalise_cases(build: Builder) -> Iterator[Case]:
    held = np.array([[3, 0, 1, 3, 2, 3], [4, 4, 4, 4, 4, 4], [5, 6, 7, 5, 6, 5], [9, 8, 9, 8, 10, 9]])
    real = left_padding(5, 6)[:4]

    def case(name: str, catches: str = "", **inputs: Any) -> Case:
        given: dict[str, Any] = {"scores_bv": (4, V), "token_bn": held}
        return build.make("penalise", name, build.config(), catches, dtypes=DTYPES, **(given | inputs))

    yield case("nothing")
    yield case("penalty", "GEN7", repetition_penalty=1.7)
    yield case("reward", "GEN7", repetition_penalty=0.6, mask_bn=real)
    for size in (1, 2, 3, 7):
        yield case(f"runs_of_{size}", no_repeat_ngram=size)
    yield case("padded_runs", no_repeat_ngram=2, mask_bn=real)
    yield case("equal_run_of_3", token_bn=np.full((4, 3), 6), no_repeat_ngram=3)
    started = np.array([[4, 5, 6, 1, 4, 5], [4, 5, 6, 1, 4, 5], [4, 5, 6, 4, 5, 0], [7, 8, 7, 8, 7, 8]])
    ended = np.arange(6) < np.array([[6], [5], [5], [6]])
    yield case("started_runs_of_3", token_bn=started, no_repeat_ngram=3, mask_bn=ended)
    gap = np.array([[True, True, False, True, True, True]] * 4)
    yield case("penalty_and_runs", "GEN7", repetition_penalty=1.3, no_repeat_ngram=2, mask_bn=gap)
    infinite = np.where(np.arange(V) % 3, rng("penalise infinite").standard_normal((4, V)), -np.inf)
    yield case("infinite", "GEN7", scores_bv=infinite, repetition_penalty=1.5, no_repeat_ngram=3)


def _truncate_cases(build: Builder) -> Iterator[Case]:
    table = 2 * rng("truncate table").standard_normal((4, V))
    ties = np.round(table)
    barred = np.where(np.arange(V) == 2, -np.inf, table)
    for name, logits, catches, options in (
        ("nothing", table, "", {}),
        ("temperature", table, "", {"temperature": 0.7}),
        ("top_k", table, "", {"top_k": 4}),
        ("top_k_of_all", table, "", {"top_k": 50}),
        ("top_p", table, "GEN4", {"top_p": 0.8}),
        ("top_p_small", table, "", {"top_p": 1e-6}),
        ("top_p_of_all", np.where(np.arange(V), -60.0, table), "", {"top_p": 1.0}),
        ("ties_top_k", ties, "", {"top_k": 3}),
        ("ties_top_p", ties, "GEN4", {"top_p": 0.83}),
        ("cool_top_p", table, "GEN3 GEN4", {"temperature": 0.5, "top_p": 0.8}),
        ("hot_top_p", table, "GEN3 GEN4", {"temperature": 3.0, "top_p": 0.6}),
        ("all", barred, "GEN3 GEN4", {"temperature": 1.8, "top_k": 6, "top_p": 0.7}),
    ):
        yield build.make("truncate", name, build.config(), catches, dtypes=DTYPES, logits_bv=logits, **options)  # type: ignore[arg-type]


def _draw_cases(build: Builder) -> Iterator[Case]:
    generator = rng("draw table")
    table = generator.standard_normal((9, V))
    spread = np.linspace(0.0, 0.97, 9)
    for name, logits in (
        ("plain", table),
        ("some", np.where(generator.random((9, V)) < 0.5, table, -np.inf)),
        ("one", np.where(np.arange(V) == np.arange(9)[:, None], table, -np.inf)),
        ("equal", np.zeros((9, V))),
        ("large", 1e3 * table),
    ):
        yield build.make("draw", name, build.config(), dtypes=DTYPES, logits_bv=logits, uniform_b=spread)
    barred = np.where(np.arange(V) < 9 - np.arange(9)[:, None], table, -np.inf)
    yield build.make("draw", "rounded_to_1", build.config(), dtypes=DTYPES, logits_bv=barred, uniform_b=np.ones(9))


# Nearly all cases share one model's sizes and lengths, so that a port compiles each search once.
SIZES: dict[str, Any] = {"model_width": 12, "target_vocabulary": 17, **ONE_LAYER}
TOKENS = 8
SINGLE = ("float64", "float32")  # in half precision, truncation and sampling are too often near a boundary
THOROUGH = ("plain", "alpha_0.6")  # these run in every dtype, the others in one,
QUICK = ("float32",)  # since compiling a whole search per dtype takes long
CACHE = "CAU3 PE13 GEN6"


def _search_cases(build: Builder) -> Iterator[Case]:
    """Yields outputs of different lengths, left padding, all options and models."""
    for case in (*_greedy_cases(build), *_sample_cases(build), *_beam_cases(build)):
        yield dataclasses.replace(case, dtypes=case.dtypes if case.name in THOROUGH else QUICK)


def _greedy_cases(build: Builder) -> Iterator[Case]:
    some = build.config(**SIZES)
    yield _search(build, "greedy_search", "quick", some, 33, f"{CACHE} GEN9", prefix=_prefix(some), min_new_tokens=2, no_repeat_ngram=3)
    yield _search(build, "greedy_search", "plain", some, 277, CACHE)
    yield _search(build, "greedy_search", "prefix", some, 108, f"{CACHE} GEN9", prefix=_prefix(some))
    yield _search(build, "greedy_search", "min_new_tokens", some, 108, CACHE, min_new_tokens=6)
    # with one token less the output would end here
    yield _search(build, "greedy_search", "min_new_tokens_exactly", some, 564, CACHE, min_new_tokens=3)
    yield _search(build, "greedy_search", "repetition_penalty", some, 284, CACHE, repetition_penalty=1.8)
    yield _search(build, "greedy_search", "no_repeat_ngram", some, 356, CACHE, no_repeat_ngram=2, prefix=_prefix(some))
    yield _search(build, "greedy_search", "one_token", some, 59, "GEN6", max_new_tokens=1)
    yield _search(build, "greedy_search", "nothing_may_follow", some, 0, prefix=_every_id(some), no_repeat_ngram=1, min_new_tokens=2)
    start, _ = _start_and_end(some)
    yield _search(build, "greedy_search", "start_is_end", some, 312, CACHE, end_id=start)
    yield _search(build, "greedy_search", "explicit_mask", some, 462, CACHE, source_mask_bs=_mask())
    scaled = {"positions": "rotary", "key_size": 6, "rotary_scaling": {"kind": "dynamic", "factor": 3.0, "original_length": S}}
    yield _search(build, "greedy_search", "dynamic_source", build.config(**SIZES, **scaled), 38, no_repeat_ngram=2)
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
    late: dict[str, Any] = {"beam_size": 3, "n_best": 3, "early_stop": True, "min_new_tokens": 2}
    yield _search(build, "beam_search", "early_stop_late", some, 35, "GEN1 GEN8", **late)
    yield _search(build, "beam_search", "one_beam", some, 27, f"{CACHE} GEN1 GEN8 GEN10", beam_size=1, alpha=1.5)
    yield _search(
        build, "beam_search", "prefix", some, 30, f"{beams} GEN1 GEN8 GEN10", beam_size=3, n_best=2, alpha=1.0, prefix=_prefix(some)
    )
    yield _search(build, "beam_search", "penalties", some, 15, f"{beams} GEN1 GEN7", beam_size=3, n_best=3, **penalties)
    yield _search(build, "beam_search", "two_tokens", some, 357, "GEN1 GEN8 GEN10", beam_size=4, n_best=4, max_new_tokens=2)
    full = _every_id(some)
    few: dict[str, Any] = {"prefix": np.where(np.arange(full.shape[1]) < np.arange(B)[:, None], full[:, -1:], full), "no_repeat_ngram": 1}
    yield _search(build, "beam_search", "missing_hypotheses", some, 59, beam_size=4, n_best=4, **few)
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
    """Returns the case with nearly equal scores, so that the longest output is among the best."""
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
    """Returns a search over sources, some of them padded.

    seed: of a model whose outputs differ in length and do not repeat a single token. options: of
    the strategy; arrays are separate inputs.
    """
    start, end = _start_and_end(config)
    arrays = {key: value for key, value in options.items() if isinstance(value, np.ndarray)}
    strategy = {"start_id": start, "end_id": end, "max_new_tokens": TOKENS} | {k: v for k, v in options.items() if k not in arrays}
    read = _source(config, arrays) if config.encoder_layers else _prompt(config, arrays)
    inputs = read | {f"strategy.{key}": value for key, value in strategy.items()} | arrays
    values = _model(config, seed)
    if "repetition_penalty" in strategy and "logits.bias" in values:
        values["logits.bias"] -= 3  # so that the largest scores have both signs, which a penalty treats differently
    return build.make(component, name, config, catches, values, **inputs)


def _source(config: TransformerConfig, given: dict[str, np.ndarray]) -> dict[str, Any]:
    return {"source": ids("search", config.source_vocabulary, config.padding_id, ragged(B, S))}


def _prompt(config: TransformerConfig, given: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns a decoder-only model's inputs: a left-padded prefix instead of the source."""
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
    """Returns a source mask that differs from the padding ids."""
    return left_padding(B, S)[:, ::-1].copy()


def _prefix(config: TransformerConfig) -> np.ndarray:
    """Returns left-padded prefixes of different lengths."""
    return ids("search prefix", config.target_vocabulary, config.padding_id, np.arange(4) >= np.array([[0], [3], [1]]))


def _every_id(config: TransformerConfig) -> np.ndarray:
    """Returns prefixes of all ids that an answer may contain before its end."""
    forbidden = config.padding_id, *_start_and_end(config)
    return np.array([[id_ for id_ in range(config.target_vocabulary) if id_ not in forbidden]] * B)


def _model(config: TransformerConfig, seed: int) -> dict[str, np.ndarray]:
    """Returns parameters with which the output depends on the input."""
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
