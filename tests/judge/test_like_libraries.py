"""Ports of whole models in PyTorch: the models of the transformers library conform, and so does an independently written decoder."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import decoder_folders
import hugging_face_folders
import numpy as np
import pytest
from whole_models import PLAIN, SLOW, in_this_process, judged, models

from rosettaformer.files.checkpoints.hugging_face import FAMILIES, new
from rosettaformer.judge.case import Case
from rosettaformer.judge.suite.like import like_cases
from rosettaformer.judge.templates import TEMPLATES

pytestmark = pytest.mark.conformance
pytest.importorskip("torch")
TEMPLATE = TEMPLATES / "like_port.py"
OF_PAIRS = TEMPLATES / "like_seq2seq_port.py"
ALONE = [family for family, found in FAMILIES.items() if not found.encoder_decoder]
DTYPES = ("float32", "bfloat16")
EVERY = 10  # one in this many models also gets the slow cases


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


def _failing(port: Path, family: str, dtype: str, among: Callable[[Case], bool] = lambda case: True) -> dict[str, str]:
    """Returns the failing cases with their reasons; only steps of an encoder may be not covered."""
    cases = [case for case in models(family) if dtype in case.dtypes and among(case)]
    results = judged(port, cases, dtype)
    assert len(results) == len(cases) > 5
    return {case: f"{result.status} {result.excess:.3g} {result.message}" for case, result in results.items() if result.status != "pass"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_librarys_own_model_conforms(family: str, dtype: str) -> None:
    """Logits, hidden states, steps and gradients for texts of 1 to 1,200 tokens."""
    pytest.importorskip("transformers")
    assert _failing(OF_PAIRS if FAMILIES[family].encoder_decoder else TEMPLATE, family, dtype) == {}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_decoder_that_is_written_anew_conforms(dtype: str) -> None:
    port = PLAIN.with_name("whole_plain.py")
    assert _failing(port, "qwen3", dtype, lambda case: case.component == "transformer") == {}


def settings(family: str, seed: int) -> dict[str, Any]:
    """Draws entries of the family's config.json, for models that read texts of at least 20 to 700 tokens.

    Widths are realistic: a norm over or after few features amplifies a single rounding. Grouped products take multiples of 16 bytes.
    """
    folders = decoder_folders if family in decoder_folders.KINDS else hugging_face_folders
    drawn = folders.drawn(family, seed).settings
    longest = int(np.random.default_rng(seed).integers(20, 700))
    kept = {name: value for name, value in drawn.items() if value is not None and name != "num_labels"}
    names = FAMILIES[family].entry_names()
    learned = "max_positions" in names
    kept.pop("word_embed_proj_dim", None)
    if learned:
        kept[names["model_width"]] *= 8
    kept |= dict.fromkeys({"embedding_size"} & kept.keys(), kept[names["model_width"]])
    if "experts" in names:
        factor = 8 // math.gcd(8, kept[names["model_width"]])
        kept |= {names[field]: factor * kept[names[field]] for field in ("model_width", "heads", "key_value_heads")}
        width = names.get("expert_width", names["feed_forward_width"])
        return kept | {width: 8 * kept[width], "max_position_embeddings": 64}
    hidden = names["feed_forward_width"]
    kept[hidden] = 20 + kept.get(hidden, 20)
    return kept | {names.get("max_positions", "max_position_embeddings"): longest if learned else 64}


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.evidence)])
@pytest.mark.parametrize("family", ALONE)
def test_random_models_conform(family: str, many: bool, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    pytest.importorskip("transformers")
    wrong = {}
    for seed in range(pytestconfig.getoption("--soak") // 8 if many else 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        dtypes = DTYPES if many else DTYPES[:1]
        for dtype in dtypes:
            new.write(family, folder / dtype, seed=seed, dtype=dtype, settings=settings(family, seed))
        for dtype in dtypes:
            cases = [case for case in like_cases(folder) if dtype in case.dtypes]
            cases = [case for case in cases if not (seed % EVERY and case.name.startswith(SLOW))]
            for result in judged(TEMPLATE, cases, dtype).values():
                if result.status != "pass":
                    wrong[seed, dtype, result.case] = f"{result.status} {result.excess:.3g} {result.message}"
    assert wrong == {}
