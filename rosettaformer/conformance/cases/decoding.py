"""Cases of decoding in steps, and of the choice of a token."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng
from .transformer import ONE_LAYER, ids

DTYPES = ("float64", "float32")  # in which a token is chosen, whatever the model's dtype
V = 11


def cases(build: Builder) -> Iterator[Case]:
    """Yields cases of a target decoded at once, token by token, and after a prompt; padding on the left, in the middle and everywhere;
    every dialect. Tables of scores with repeated tokens and runs of them, with ties, and every way to truncate them.
    """
    for part in (_step_cases, _penalise_cases, _truncate_cases, _draw_cases):
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
    for dialect in ("paper_base", "guide", "keras_lab", "sapiens"):
        yield _steps(build, f"dialect_{dialect}", build.config(dialect, **ONE_LAYER), (2, 1, 2), "CAU3 PE13", dtypes=DTYPES)
    yield _steps(build, "one_token", even, (1,), "PE9", target_mask=np.ones((1, 1), bool), source_mask=np.ones((1, 1), bool))
    yield _steps(build, "long", even, (120, 1, 1, 64, 14), "CAU3", target_mask=ragged(2, 200), source_mask=ragged(2, 190))


def _steps(
    build: Builder, name: str, config: TransformerConfig, splits: tuple[int, ...], catches: str = "",
    target_mask: np.ndarray | None = None, source_mask: np.ndarray | None = None, **inputs: Any,
) -> Case:  # fmt: skip
    """Returns a case of a target, read in steps of these lengths, and a memory; each is padding where its mask is False."""
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
