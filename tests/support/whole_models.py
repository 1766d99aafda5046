"""Ports of whole models written by tests, their models, and the judge's verdicts."""

import functools
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import in_process
import pytest
from expectations import store

from rosettaformer.common.processes import Answer
from rosettaformer.judge import runner
from rosettaformer.judge.case import DTYPES, Case
from rosettaformer.judge.expectation.expectation_store import Store
from rosettaformer.judge.expectation.tolerance import Expectation
from rosettaformer.judge.ports import session
from rosettaformer.judge.result import Result
from rosettaformer.judge.suite.like_folders import cases_of

PLAIN = Path(__file__).parents[1] / "ports" / "whole_numpy.py"
SLOW = ("long", "far")  # prefixes of slow cases
TEXT = """
import sys
import numpy as np

sys.path.insert(0, {ports!r})
from whole_numpy import load as right

{top}

def load(folder):
    own = right(folder{changes})

    def logits({arguments}):
        y = own({given})
        {fault}
        return y

    logits.hidden, logits.gradients = own.hidden, own.gradients
    logits.step = getattr(own, "step", None)
    {further}
    return logits
"""
_REFERENCE = threading.RLock()  # guards the reference: expectations run it in other orders, and the plain port is the reference
_KEPT: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


class _InProcess(in_process.InProcess):
    def call(self, method: str, *arguments: Any, limit: float = 120.0) -> Answer:
        with _REFERENCE:
            return super().call(method, *arguments, limit=limit)


class _Locked(Store):
    def expect(self, case: Case) -> dict[str, Expectation]:
        with _REFERENCE:
            return store().expect(case)


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs ports in the test process, but never while an expectation is computed."""
    monkeypatch.setattr(session, "open_worker", _InProcess)
    monkeypatch.setattr(runner, "Store", _Locked)


@functools.cache
def models(family: str = "qwen3", dtypes: Sequence[str] = DTYPES) -> list[Case]:
    """Returns the cases of a family's new model, whose folders stay until the end of the process."""
    _KEPT.append(tempfile.TemporaryDirectory())
    return cases_of(family, Path(_KEPT[-1].name), dtypes)


def quick(family: str = "qwen3") -> list[Case]:
    """Returns the cases whose texts are not long."""
    return [case for case in models(family) if not case.name.startswith(SLOW)]


def written(
    folder: Path, fault: str = "pass", top: str = "", further: str = "", arguments: str = "token_bt, mask_bt", given: str = "",
    changes: str = "",
) -> str:  # fmt: skip
    """Writes a variant of the plain port: `fault` changes its logits y, `top` and `further` add lines to the file and to `load`, `changes`
    changes fields of its config."""
    path = folder / "a_whole_port.py"
    given = given or arguments
    changes = changes and f", {changes}"
    path.write_text(
        TEXT.format(ports=str(PLAIN.parent), fault=fault, top=top, further=further, arguments=arguments, given=given, changes=changes)
    )
    return str(path)


def judged(port: str | Path, cases: Sequence[Case], dtype: str = "float32") -> dict[str, Result]:
    """Returns the result of each case in that dtype by its id."""
    return {result.case: result for result in runner.run(cases, [str(port)], [dtype], store=_Locked())}
