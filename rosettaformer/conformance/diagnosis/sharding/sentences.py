"""What is said of a port on a mesh."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...case import Case
from ...catalogue.sharded import Fault
from ...reference.tolerance import Expectation
from ..findings import Verdict
from .facts import Reply, facts
from .search import explanations

BESIDE = "a mistake that is there on one device, too, has its name there: diagnose the port without --mesh"


@dataclass(frozen=True)
class Said:
    """What is said of a port's answers: the verdict, the ids of the faults that give them, the first line and further ones."""

    verdict: Verdict
    ids: tuple[str, ...]
    text: str
    lines: tuple[str, ...] = ()


def said(replies: Sequence[Reply], framework: str = "", check: Callable[[], None] | None = lambda: None) -> Said | None:
    """What is said of a port's answers on one mesh in one dtype; None if none is wrong. check: is called often, and may raise; None, and no
    fault is searched.
    """
    failing, right = ([reply for reply in replies if bool(reply.wrong) is wrong] for wrong in (True, False))
    if not failing:
        return None
    seen, (found, alone) = tuple(facts(failing, right)), explanations(replies, check) if check else ([], [])
    if not found:
        tried = "no fault of the catalogue gives your output" if check else "the limit had passed before a fault was found"
        verdict = Verdict.UNEXPLAINED if check else Verdict.STOPPED
        return Said(verdict, (), "; ".join([tried, *seen[:1]]), (*seen[1:], *([BESIDE] if check else [])))
    count = f"all {len(failing)} cases that fail" if len(failing) > 1 else "the one case that fails"
    beside = f", and it is right on the other {len(right)}" if right else ""
    names = " or ".join(fault.name for fault in found)
    only = f"only in {', '.join(alone)}: " * bool(alone)
    layout = f", {' and '.join(found[0].whole)} whole over model," * bool(found[0].whole)
    text = f"{only}your output equals the reference on this mesh{layout} with {names}, on {count}{beside}"
    fixes = _fixes(found[0], framework) if len(found) == 1 else ()
    return Said(
        Verdict.EXPLAINED if len(found) == 1 else Verdict.INDISTINGUISHABLE, tuple(fault.id for fault in found), text, (*seen, *fixes)
    )


def _fixes(fault: Fault, framework: str) -> tuple[str, ...]:
    if framework not in fault.fix:
        return (f"fix of {fault.id}: rosettaformer explain {fault.id}",)
    return (f"fix of {fault.id}:", f"  {framework}: {fault.fix[framework]}")


def fingerprint(case: Case, expected: Mapping[str, Expectation], given: Mapping[str, np.ndarray]) -> str:
    """A sentence on the outputs that a port gave of a case on `case.mesh` and that differ from the expected ones: the fault of the
    catalogue that gives them, or what they show. Empty if they show nothing that is known.

    It patches the reference: nothing else may run it meanwhile.
    """
    found = said([Reply(case, expected, given)])
    if found is None:
        return ""
    return found.text if found.ids else "; ".join(facts([Reply(case, expected, given)], []))
