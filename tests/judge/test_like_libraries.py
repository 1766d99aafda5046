"""Ports of whole models in PyTorch: the library transformers' own models conform, and so does a decoder that is written anew."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from decoder_folders import KINDS, all_in_float64
from decoder_folders import loaded as decoder
from hugging_face_folders import loaded
from in_process import InProcess
from whole_models import PLAIN, judged, models

import rosettaformer
from rosettaformer.checkpoints.hugging_face import FAMILIES
from rosettaformer.conformance import runner
from rosettaformer.conformance.ports.adapters import whole_model

pytestmark = pytest.mark.second
pytest.importorskip("torch")
TEMPLATE = Path(rosettaformer.__file__).parent / "templates" / "like_port.py"
PORTS = PLAIN.parent


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "open_worker", InProcess)


def _failing(port: Path, family: str, dtype: str, among: Any = lambda case: True) -> dict[str, str]:
    """What does not pass, with the reason; there is nothing that is not covered but the steps of an encoder."""
    cases = [case for case in models(family) if dtype in case.dtypes and among(case)]
    results = judged(port, cases, dtype)
    assert len(results) == len(cases) > 5
    return {case: f"{result.status} {result.excess:.3g} {result.message}" for case, result in results.items() if result.status != "pass"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_librarys_own_model_conforms(family: str, dtype: str) -> None:
    """Logits, hidden states, steps and gradients, of texts of 1 to 1,200 tokens."""
    pytest.importorskip("transformers")
    assert _failing(TEMPLATE, family, dtype) == {}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_decoder_that_is_written_anew_conforms(dtype: str) -> None:
    found = _failing(PORTS / "whole_plain.py", "qwen3", dtype, lambda case: case.component == "transformer")
    assert found == {}
