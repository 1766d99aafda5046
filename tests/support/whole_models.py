"""Ports of whole models that tests write, the models that they are given, and what the judge says of them."""

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from expectations import store

from rosettaformer.conformance import runner
from rosettaformer.conformance.case import DTYPES, Case
from rosettaformer.conformance.cases.like_folders import cases_of
from rosettaformer.conformance.result import Result

__all__ = ["PLAIN", "judged", "models", "quick", "written"]

PLAIN = Path(__file__).parents[1] / "ports" / "whole_numpy.py"
SLOW = ("long", "far")  # beginnings of the names of cases that take long
TEXT = '''
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
'''
_KEPT: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


@functools.cache
def models(family: str = "qwen3", dtypes: Sequence[str] = DTYPES) -> list[Case]:
    """The cases of a family's new model, whose folders stay to the end."""
    _KEPT.append(tempfile.TemporaryDirectory())
    return cases_of(family, Path(_KEPT[-1].name), dtypes)


def quick(family: str = "qwen3") -> list[Case]:
    """Those of texts that are not long."""
    return [case for case in models(family) if not case.name.startswith(SLOW)]


def written(
    folder: Path, fault: str = "pass", top: str = "", further: str = "", arguments: str = "token_bt, mask_bt", given: str = "",
    changes: str = "",
) -> str:  # fmt: skip
    """A port of the plain one: `fault` changes its logits y, `top` and `further` are further lines of the file and of `load`, `changes`
    other fields of its config."""
    path = folder / "a_whole_port.py"
    given = given or arguments
    changes = changes and f", {changes}"
    path.write_text(
        TEXT.format(ports=str(PLAIN.parent), fault=fault, top=top, further=further, arguments=arguments, given=given, changes=changes)
    )
    return str(path)


def judged(port: str | Path, cases: Sequence[Case], dtype: str = "float32") -> dict[str, Result]:
    """The result of each case in that dtype, by its id."""
    return {result.case: result for result in runner.run(cases, [str(port)], [dtype], store=store())}
