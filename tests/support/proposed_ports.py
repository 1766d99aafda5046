"""Ports that `new-port --from` proposes in this process, and the judge's verdicts on them."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from expectations import suite

from rosettaformer.judge import runner
from rosettaformer.judge.case import DTYPES
from rosettaformer.judge.proposals import Proposal, propose
from rosettaformer.judge.status import Status

MODELS = Path(__file__).parents[1] / "proposed"
_NEEDED = {"keras": "keras", "nnx": "flax", "linen": "flax", "transformers": "transformers", "modern": "transformers"}  # by first word


def proposed(source: str, component: str = "", **given: str) -> Proposal:
    """Returns the proposal for `file.py:CLASS` of the models folder, or `module:CLASS`, if its framework is installed."""
    pytest.importorskip(_NEEDED.get(Path(source).name.partition(".")[0].partition("_")[0], "torch"))
    try:
        return propose(str(MODELS / source) if ".py:" in source else source, "my_port.py", component, given=given)
    finally:
        forget()


def proposed_text(text: str, name: str, file: str = "my_file.py") -> Proposal:
    """Returns the proposal for a class in a file with that source."""
    Path(file).write_text(text)
    return propose(f"{file}:{name}", "my_port.py")


def judged(proposal: Proposal, dtypes: Sequence[str] = DTYPES, names: Sequence[str] = ()) -> dict[str, set[Status]]:
    """Returns the results of the component's cases by name. names: of cases; empty means all."""
    Path("my_port.py").write_text(proposal.text)
    cases = [case for case in suite() if case.component == proposal.component and (not names or case.name in names)]
    found: dict[str, set[Status]] = {}
    for result in runner.run(cases, ["my_port.py"], dtypes):
        if result.status != "not covered":
            found.setdefault(result.case.partition("/")[2], set()).add(result.status)
    forget()
    return found


def config(proposal: Proposal) -> dict[str, str]:
    """Returns the config fields that the port fixes, as written, without those left open."""
    return {one.name: one.value for one in proposal.decisions if one.kind == "config" and not one.is_open}


def changed(text: str, *changes: tuple[str, str]) -> str:
    """Returns the text after each replacement, whose original occurs exactly once."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def forget() -> None:
    """Clears the caches of model and port files, so that the next test reads its own."""
    folders = (str(MODELS), str(MODELS.parent / "ports"), os.getcwd())
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(folders):
            del sys.modules[name]
