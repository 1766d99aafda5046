"""Decoding in all four implementations: bad input raises one clear error, a batch of 0 is empty, and suspicious input keeps its meaning."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backends import FOUR, of_four
from kinds import every
from messages import mentions

from reference_numpy import TransformerConfig, parameters, preset
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation import components

PADDING, START, END, VOCABULARY, LIMIT = 0, 1, 2, 11, 3
SIZES = {"model_width": 8, "feed_forward_width": 12, "encoder_layers": 1, "decoder_layers": 1}
CONFIG = preset("tiny", source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY, padding_id=PADDING, output_bias=True, **SIZES)
OPTIONS = {"start_id": START, "end_id": END, "max_new_tokens": LIMIT}
SOURCE, ONE, UNIFORM = np.array([[3, 4, 5], [4, 5, PADDING]]), np.ones((2, 1), int), np.full((2, LIMIT), 0.5)
TARGET, MEMORY = np.full((2, 4), 4), np.random.default_rng(0).standard_normal((2, 3, 8))
SCORES = np.random.default_rng(1).standard_normal((2, VOCABULARY))

Answer = Callable[[Case], dict[str, np.ndarray]]


def _case(
    component: str, config: TransformerConfig = CONFIG, bias: float = 0.0, place: int = 3, mode: str = "", ties: bool = False, **inputs: Any
) -> Case:
    """bias: of the logit of one token. ties: constant logits, many of which are equal."""
    rng, values = np.random.default_rng(2), {}
    if component in (*components.SEARCHES, "decode_in_steps"):
        values = {name: rng.standard_normal(shape) for name, shape in parameters.shapes(config).items()}
        if config.decoder_layers:
            values["logits.bias"][place] = bias
    if ties:
        values = {name: 0 * value for name, value in values.items()} | {"logits.bias": np.array([1.0, 1, 0, 0, 2, 1, 2, 0, 2, 1, 0])}
    return Case("bad", component, config, inputs, values).at("float64", mode=mode)


def _search(component: str, source: np.ndarray = SOURCE, **changes: Any) -> Case:
    """Arrays among the changes, the config and the parameters of `_case` are passed as they are; all others are options."""
    given = {
        name: value
        for name, value in changes.items()
        if isinstance(value, np.ndarray) or name in ("config", "bias", "place", "mode", "ties")
    }
    options = OPTIONS | {name: value for name, value in changes.items() if name not in given}
    uniform = {"uniform_bn": UNIFORM} if component == "sample" else {}
    return _case(component, source=source, **{f"strategy.{name}": value for name, value in options.items()}, **(uniform | given))


_greedy, _sample, _beams = (functools.partial(_search, search) for search in ("greedy_search", "sample", "beam_search"))


def _steps(**changes: Any) -> Case:
    return _case("decode_in_steps", **({"target": TARGET, "memory_bsd": MEMORY, "splits": (2, 2)} | changes))


def _penalise(**changes: Any) -> Case:
    return _case("penalise", **({"scores_bv": SCORES, "token_bn": TARGET} | changes))


def _with(value: float, place: Any = 3) -> np.ndarray:
    """Sets a place in the second row of the scores to this value."""
    scores_bv = SCORES.copy()
    scores_bv[1, place] = value
    return scores_bv


IDS = "…"
KINDS = f"token {IDS} b t … b t v"
RANGE = f"token ids … 0 .. {VOCABULARY - 1}; got"
REAL = "must be boolean, True = real token; got"
NUMBERS = "uniform …"
LOGIT = "logits … inf or NaN"
NOTHING = "row of logits … -inf … -inf"
UNIT = "uniform … 0 … 1; got"
SOME = np.where(np.arange(4) < 2, TARGET, 99)
VALUES: dict[str, tuple[str, dict[str, Any], str]] = {
    "penalise_id_too_large": ("penalise", {"scores_bv": SCORES, "token_bn": TARGET + 7, "repetition_penalty": 2.0}, f"{RANGE} 11"),
    "penalise_id_negative": ("penalise", {"scores_bv": SCORES, "token_bn": TARGET - 5, "no_repeat_ngram": 2}, f"{RANGE} -1"),
    "penalise_id_unused": ("penalise", {"scores_bv": SCORES, "token_bn": TARGET - 5}, f"{RANGE} -1"),
    "penalise_id_hidden": ("penalise", {"scores_bv": SCORES, "token_bn": SOME, "mask_bn": SOME < 99}, f"{RANGE} 99"),
    **{
        f"{component}_{value}": (component, {"logits_bv": _with(value), **more}, LOGIT)
        for value in (np.nan, np.inf)
        for component, more in (("truncate", {}), ("draw", {"uniform_b": UNIFORM[:, 0]}))
    },
    "truncate_part_nan": ("truncate", {"logits_bv": _with(np.nan), "top_k": 2, "top_p": 0.5}, LOGIT),
    "truncate_nothing": ("truncate", {"logits_bv": _with(-np.inf, slice(None))}, NOTHING),
    "truncate_part_of_nothing": ("truncate", {"logits_bv": _with(-np.inf, slice(None)), "top_k": 2, "top_p": 0.5}, NOTHING),
    "draw_nothing": ("draw", {"logits_bv": _with(-np.inf, slice(None)), "uniform_b": UNIFORM[:, 0]}, NOTHING),
    **{
        f"draw_uniform_{value}": ("draw", {"logits_bv": SCORES, "uniform_b": np.array([0.5, value])}, f"{UNIT} {value}")
        for value in (np.nan, 1.5, -0.5)
    },
}
BAD = {
    # options
    "max_new_tokens_0": (_greedy(max_new_tokens=0), "max_new_tokens … 1; got 0"),
    "min_new_tokens": (_greedy(min_new_tokens=3), "min_new_tokens … max_new_tokens; got 3 and 3"),
    "repetition_penalty_beyond_float32": (_greedy(repetition_penalty=1e308), "repetition_penalty must be from 1e-9 to 1e9; got 1e+308"),
    "no_repeat_ngram_negative": (_greedy(no_repeat_ngram=-1), "no_repeat_ngram … 0; got -1"),
    "end_id_outside": (_greedy(end_id=11), "end_id … 0 .. 10; got 11"),
    "end_id_padding": (_greedy(end_id=PADDING), "end_id … 0"),
    "start_id_outside": (_greedy(start_id=99), "start_id … 0 .. 10; got 99"),
    "start_id_padding": (_beams(start_id=PADDING), "start_id … 0"),
    "temperature_below_float32": (_sample(temperature=1e-310), "temperature must be 0, or at least 1e-9; got 1e-310"),
    "top_k_negative": (_sample(top_k=-1), "top_k … 0; got -1"),
    "top_p_0": (_sample(top_p=0.0), "top_p … 0 … 1; got 0.0"),
    "beam_size_0": (_beams(beam_size=0), "beam_size … 1; got 0"),
    "beam_size_above_vocabulary": (_beams(beam_size=12), "beam_size … 11; got 12"),
    "n_best_above_beam_size": (_beams(beam_size=2, n_best=3), "n_best … beam_size; got 3 and 2"),
    "alpha_negative": (_beams(alpha=-0.5), "alpha … 0 … -0.5"),
    **{
        f"alpha_{alpha}_{make.args[0]}": (
            make(alpha=alpha, max_new_tokens=count, **({"uniform_bn": np.full((2, count), 0.5)} if make is _sample else {})),
            f"alpha … (5 … n) / 6)^alpha … float32; got {alpha} … n={count}",
        )
        for make in (_greedy, _sample, _beams)
        for alpha, count in ((1e308, 3), (40.0, 60))
    },
    "early_stop_word": (_beams(early_stop="never"), "early_stop must be True or False; got 'never'"),
    "option_unknown": (_beams(beams=2), "unknown strategy field 'beams' (nearest: beam_size)"),
    "options_missing": (
        _case("greedy_search", source=SOURCE, **{"strategy.start_id": START}),
        "a strategy needs end_id; a strategy needs max_new_tokens",
    ),
    "options_together": (
        _greedy(end_id=11, start_id=PADDING, beam_size=12),
        "end_id … 0 .. 10; got 11; start_id … 0; beam_size … 11; got 12",
    ),
    # sources
    "source_length_0": (_greedy(source=SOURCE[:, :0]), "token … 1; got shape (2, 0)"),
    "source_id_too_large": (_beams(source=SOURCE + 8), f"{RANGE} 13"),
    "source_id_negative": (_sample(source=SOURCE - 5), f"{RANGE} -5"),
    "source_floating": (_greedy(source=SOURCE * 1.0), f"source {IDS} b s; got float64 of shape (2, 3)"),
    "source_soft": (_greedy(source=np.eye(VOCABULARY)[SOURCE], prefix=ONE), f"source {IDS} b s; got float64 of shape (2, 3, 11)"),
    "source_mask_shape": (_greedy(source_mask_bs=SOURCE[:, :2] > 0), "source mask … b t = (2, 3); got shape (2, 2)"),
    "source_mask_dtype": (_beams(source_mask_bs=SOURCE), f"source mask {REAL} int64"),
    # prefixes
    "prefix_batch_beams": (_beams(prefix=np.ones((3, 2), int), beam_size=2), "source 2, prefix 3"),
    "prefix_id_too_large": (_greedy(prefix=11 * ONE), f"{RANGE} 11"),
    "prefix_id_negative": (_sample(prefix=-ONE), f"{RANGE} -1"),
    "prefix_ends_in_padding": (_greedy(prefix=np.array([[START, PADDING], [START, 4]])), "prefix … id 0"),
    "prefix_length_0": (_beams(prefix=ONE[:, :0]), f"prefix {IDS} b p, p … 1; got int64 of shape (2, 0)"),
    "prefix_floating": (_sample(prefix=ONE * 1.0), f"prefix {IDS} b p, p … 1; got float64 of shape (2, 1)"),
    # uniform numbers
    "uniform_shape": (_sample(uniform_bn=UNIFORM[:, :2]), f"{NUMBERS} (2, 3); got shape (2, 2)"),
    "uniform_1": (_sample(uniform_bn=2 * UNIFORM), f"{UNIT} 1.0"),
    "uniform_negative": (_sample(uniform_bn=np.array([[0.5, 0.5, -0.5]] * 2), temperature=0.0), f"{UNIT} -0.5"),
    "uniform_nan": (_sample(uniform_bn=np.array([[0.5, np.nan, 0.5]] * 2)), f"{UNIT} nan"),
    "draw_uniform_shape": (_case("draw", logits_bv=SCORES, uniform_b=UNIFORM), f"{NUMBERS} (2,); got shape (2, 3)"),
    # logits
    **{
        f"{value}_logit_{of}_{make.args[0]}": (make(bias=value, place=place, **more), LOGIT)
        for value in (np.nan, np.inf)
        for of, place in (("of_an_answer", 3), ("of_no_answer", PADDING))
        for make, more in ((_greedy, {}), (_sample, {}), (_beams, {"beam_size": 2}))
    },
    # sampling
    "truncate_temperature_0": (_case("truncate", logits_bv=SCORES, temperature=0.0), "temperature … 0; got 0.0"),
    "truncate_top_k_fraction": (_case("truncate", logits_bv=SCORES, top_k=2.5), "top_k … 0; got 2.5"),
    "truncate_top_p": (_case("truncate", logits_bv=SCORES, top_p=0.0), "top_p … 0 … 1; got 0.0"),
    "truncate_axes": (_case("truncate", logits_bv=SCORES[0]), "logits … b v; got shape (11,)"),
    "penalise_batch": (_penalise(scores_bv=SCORES[:1]), "scores 1, tokens 2"),
    "penalise_mask_shape": (_penalise(mask_bn=TARGET[:, :3] > 0), "mask … b t = (2, 4); got shape (2, 3)"),
    "penalise_floating": (_penalise(token_bn=TARGET * 1.0), "tokens … float64"),
    **{
        f"penalise_{name}_{value}": (_penalise(**{name: value}), f"{name} … {wanted} … {value}")
        for name, wanted, values in (
            ("no_repeat_ngram", "0", (-1, 2.5)),
            ("repetition_penalty", "greater than 0", (0.0, -1.0, np.nan, np.inf)),
        )
        for value in values
    },
    "draw_axes": (_case("draw", logits_bv=SCORES[0], uniform_b=UNIFORM[:, 0]), "logits … b v; got shape (11,)"),
    **{
        f"{name}_{mode}": (_case(component, mode=mode, **inputs), message)
        for name, (component, inputs, message) in VALUES.items()
        for mode in ("eager", "compiled")
    },
    "penalise_mask_dtype": (_penalise(mask_bn=TARGET * 1.0), f"mask {REAL} float64"),
    # steps
    "splits_sum": (_steps(splits=(1, 2)), "splits … 1 … 4; got (1, 2)"),
    "splits_0": (_steps(splits=(0, 4)), "splits … 1 … 4; got (0, 4)"),
    "steps_length_0": (_steps(target=TARGET[:, :0], splits=()), "token … 1; got shape (2, 0)"),
    "steps_floating": (_steps(target=TARGET * 1.0), f"{KINDS}; got float64 of shape (2, 4)"),
    "steps_id": (_steps(target=TARGET + 7), f"{RANGE} 11"),
    "steps_batch": (_steps(memory_bsd=MEMORY[:1]), "cache 1, target 2"),
    "steps_memory_width": (_steps(memory_bsd=MEMORY[..., 1:]), "memory … b t d … d=8; got shape (2, 3, 7)"),
    "steps_source_mask": (_steps(source_mask_bs=TARGET > 0), "source mask … b t = (2, 3); got shape (2, 4)"),
    "steps_target_mask_dtype": (_steps(target_mask_bt=TARGET * 1.0), f"target mask {REAL} float64"),
    "steps_target_mask_longer": (_steps(target_mask_bt=np.ones((2, 5), bool)), "target mask … b t = (2, 4); got shape (2, 5)"),
    **{
        f"no_decoder_{case.component}": (case, "decoder_layers=0")
        for case in (make(config=CONFIG.replace(decoder_layers=0)) for make in (_greedy, _sample, _beams, _steps))
    },
}  # fmt: skip


@pytest.mark.parametrize(("answer", "name"), of_four(BAD), indirect=["answer"])
def test_bad_input_is_one_clear_error(answer: Answer, name: str) -> None:
    case, message = BAD[name]
    with pytest.raises(ValueError) as error:
        answer(case)
    assert mentions(str(error.value), message)


NONE: dict[str, Any] = {"source": SOURCE[:0], "prefix": TARGET[:0], "repetition_penalty": 2.0, "no_repeat_ngram": 2}
EMPTY: dict[str, tuple[Callable[..., Case], dict[str, tuple[type, tuple[int, ...]]]]] = {
    "greedy_options": (lambda **mode: _greedy(**NONE, **mode), {"token_bn": (np.int64, (0, 3)), "log_p_bn": (np.float64, (0, 3))}),
    "sample": (
        lambda **mode: _sample(**NONE, uniform_bn=UNIFORM[:0], temperature=0.7, top_k=4, top_p=0.9, **mode),
        {"token_bn": (np.int64, (0, 3)), "log_p_bn": (np.float64, (0, 3))},
    ),
    "beams_options": (
        lambda **mode: _beams(**NONE, beam_size=2, early_stop=True, **mode),
        {"token_bwn": (np.int64, (0, 1, 3)), "score_bw": (np.float64, (0, 1))},
    ),
    "steps": (lambda **mode: _steps(target=TARGET[:0], memory_bsd=MEMORY[:0], **mode), {"output": (np.float64, (0, 4, 11))}),
    "penalise": (
        lambda **mode: _case("penalise", scores_bv=SCORES[:0], token_bn=TARGET[:0], repetition_penalty=2.0, no_repeat_ngram=2, **mode),
        {"output": (np.float64, (0, 11))},
    ),
    "truncate": (lambda **mode: _case("truncate", logits_bv=SCORES[:0], top_k=2, top_p=0.5, **mode), {"output": (np.float64, (0, 11))}),
    "draw": (lambda **mode: _case("draw", logits_bv=SCORES[:0], uniform_b=UNIFORM[:0, 0], **mode), {"output": (np.int64, (0,))}),
}  # fmt: skip


@pytest.mark.parametrize("mode", every(2, ["eager", "compiled"]))
@pytest.mark.parametrize(("answer", "name"), of_four(EMPTY), indirect=["answer"])
def test_an_empty_batch_gives_an_empty_answer(answer: Answer, name: str, mode: str) -> None:
    make, expected = EMPTY[name]
    assert {key: (array.dtype, array.shape) for key, array in answer(make(mode=mode)).items()} == expected


LONG = np.array([[PADDING, PADDING, START, 4, 5, 6, 7, 8, 9], [START, 3, 4, 5, 6, 7, 8, 9, 10]])
ALL = np.broadcast_to([START, *range(3, VOCABULARY)], (2, VOCABULARY - 2)).copy()
MEANT = {
    "prefix_longer_than_the_limit": _greedy(prefix=LONG),
    "prefix_longer_than_the_limit_beams": _beams(prefix=LONG, beam_size=3, n_best=2),
    "prefix_longer_than_the_limit_sample": _sample(prefix=LONG),
    "temperature_0": _sample(temperature=0.0, uniform_bn=1.9 * UNIFORM),
    "nothing_but_padding": _greedy(source=SOURCE * 0),
    "minus_infinite_logit": _beams(bias=-np.inf, beam_size=2),
    "ties": _greedy(ties=True, repetition_penalty=2.0, no_repeat_ngram=1),
    "ties_sample": _sample(ties=True, top_k=2, temperature=2.0),
    **{f"ties_beams_{size}_{alpha}": _beams(ties=True, beam_size=size, n_best=size, alpha=alpha, min_new_tokens=int(alpha > 0))
       for size in (2, 5) for alpha in (0.0, 0.6, 2.0)},
    "nothing_may_follow_sample": _sample(prefix=ALL, no_repeat_ngram=1, min_new_tokens=2),
    "nothing_may_follow_beams": _beams(prefix=ALL, no_repeat_ngram=1, min_new_tokens=2, beam_size=2),
    "explicit_mask_sample": _sample(source_mask_bs=SOURCE % 2 == 0),
    "explicit_mask_beams": _beams(source_mask_bs=SOURCE % 2 == 0, beam_size=2),
    "long_beams": _beams(max_new_tokens=20, beam_size=5, n_best=5, alpha=2.0),
    **{f"soft_steps_{mode}": _steps(target=np.eye(VOCABULARY)[TARGET], splits=(3, 1), source_mask_bs=SOURCE == 4, mode=mode)
       for mode in ("eager", "compiled")},
}  # fmt: skip


SLOW = (
    "soft_steps_compiled",
    "long_beams",
    "prefix_longer_than_the_limit_beams",
    "explicit_mask_beams",
    *(name for name in MEANT if "beams_" in name),
)


OF_EVERY_KIND = [
    *of_four([name for name in MEANT if name not in SLOW]),
    *(pytest.param(who, name, marks=pytest.mark.conformance) for name in SLOW for who in FOUR),
]


@pytest.mark.parametrize(("answer", "name"), OF_EVERY_KIND, indirect=["answer"])
def test_what_looks_bad_has_its_meaning(answer: Answer, name: str) -> None:
    found, expected = answer(MEANT[name]), components.answer(MEANT[name])
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-10, atol=0 if array.dtype.kind == "i" else 1e-12, err_msg=key)


@pytest.mark.parametrize("answer", ["numpy"], indirect=True)
def test_temperature_0_is_greedy_search(answer: Answer) -> None:
    """The reference does this, and the ports give its outputs above."""
    expected = answer(_greedy())
    for key, array in answer(MEANT["temperature_0"]).items():
        np.testing.assert_array_equal(array, expected[key])
