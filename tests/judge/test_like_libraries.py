"""Ports of whole models in PyTorch: the library transformers' own models conform, and so does a decoder that is written anew."""

from collections.abc import Callable
from pathlib import Path

import pytest
from decoder_folders import KINDS
from kinds import conformance
from whole_models import PLAIN, in_this_process, judged, models

import rosettaformer
from rosettaformer.checkpoints.hugging_face import FAMILIES
from rosettaformer.conformance.case import Case

pytestmark = pytest.mark.conformance
pytest.importorskip("torch")
TEMPLATE = Path(rosettaformer.__file__).parent / "templates" / "like_port.py"
PORTS = PLAIN.parent


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


def _failing(port: Path, family: str, dtype: str, among: Callable[[Case], bool] = lambda case: True) -> dict[str, str]:
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
    assert _failing(PORTS / "whole_plain.py", "qwen3", dtype, lambda case: case.component == "transformer") == {}


# the template, with the library's model in float64 throughout
DOUBLE = """
import importlib.util
import types
from pathlib import Path

from decoder_folders import all_in_float64
from {module} import loaded

found = importlib.util.spec_from_file_location("like_template", {template!r})
template = importlib.util.module_from_spec(found)
found.loader.exec_module(template)
kind = types.SimpleNamespace(from_pretrained=lambda folder, **given: loaded(Path(folder), {kind!r}))
template.AutoModelForCausalLM = template.AutoModelForMaskedLM = kind
dtypes = ("float64",)

def load(folder):
    own = template.load(folder)
    found = all_in_float64()(own)
    for name, function in vars(own).items():
        if callable(function) and name != "__wrapped__":
            setattr(found, name, all_in_float64()(function))
    return found
"""


@pytest.mark.parametrize("family", [family if family in ("gemma3_text", "gpt2", "bert") else conformance(family) for family in FAMILIES])
def test_the_librarys_own_model_conforms_in_float64(tmp_path: Path, family: str) -> None:
    """Of a decoder since Llama the library's source computes in float64 what it says is to be in float32."""
    pytest.importorskip("transformers")
    kind = next(iter(FAMILIES[family].classes))
    module = "decoder_folders" if family in KINDS else "hugging_face_folders"
    port = tmp_path / "in_double.py"
    port.write_text(DOUBLE.format(module=module, template=str(TEMPLATE), kind=kind))
    assert _failing(port, family, "float64") == {}
