"""Searches for the known bug of a sharded port that gives its outputs on a mesh."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...case import Case
from ...catalogue.sharded import Fault, all_faults, at
from ...catalogue.sharded.over_model import NEEDS
from ...expectation import mesh as on_mesh
from ...expectation.components import forward_of
from ...expectation.mesh.run import split_axes, table
from .. import words
from ..findings import Verdict
from .facts import Reply, facts

KINDS = ("self_attention", "cross_attention", "feed_forward", "logits")
# operations that do not affect the output of a forward pass
BACKWARD = {
    "input_gradient", "output_gradient", "shared_gradient", "key_gradient", "bias_gradient", "whole_gradient", "data_gradient",
    "norm_gradient", "label_count", "loss", "log_normaliser", "clip_factors",
}  # fmt: skip
OF_PARAMETERS = {"shared_gradient", "whole_gradient", "norm_gradient", "bias_gradient", "data_gradient"}  # affect only these gradients
NEAR = 4  # sub-layers after the last wrong gradient that may have caused it
Check = Callable[[], None]


def explanations(replies: Sequence[Reply], check: Check = lambda: None) -> tuple[list[Fault], list[str]]:
    """The faults that give every output, correct ones included, and the components to which they
    are limited.

    Several faults are returned only if no case tells them apart. Components are returned only if
    the faults would break correct outputs of the others. Both are empty if no output is wrong.
    Faults everywhere are tried first, then those at one kind of place, then at one place, then the
    same with vocabulary tables that `model` does not split. check: called before each run; may
    raise.
    """
    failing = sorted((reply for reply in replies if reply.wrong), key=_cost)
    if not failing or failing[0].case.mesh is None:
        return [], []
    right = sorted((reply for reply in replies if not reply.wrong and reply.outputs), key=_cost)

    def give(fault: Fault, replies: Sequence[Reply]) -> bool:
        return all(_gives(fault, reply, check) for reply in replies)

    alone = list(dict.fromkeys(reply.case.component for reply in failing))
    beside = [reply for reply in right if reply.case.component in alone]
    everywhere = [one for fault in all_faults().values() if _shows(fault, failing[0].case) for one in fault.hypotheses]
    each_places = ([""], [*_kinds(failing[0].case), *_wrong_norms(failing)], _sites(failing))
    for whole, places in itertools.product([(), *_whole_tables(failing)], each_places):
        own = [dataclasses.replace(fault, whole=whole) for fault in everywhere if fault.laid_out or not whole]
        tried = [dataclasses.replace(fault, place=place) for fault in own for place in places if _fits(fault, place)]
        possible = [fault for fault in tried if all(_may_give(fault, reply) for reply in failing)]
        quick = [fault for fault in possible if fault.replaces.keys() <= BACKWARD or give(fault, _forward(right))]
        given = [fault for fault in quick if give(fault, failing)]
        found = [fault for fault in given if any(reply.determined(predicted(fault, reply.case)) for reply in failing)]
        for replies_too, only in ((right, []), (beside, alone)):
            if every := [fault for fault in found if give(fault, replies_too)]:
                return list({fault.id: fault for fault in every[::-1]}.values())[::-1], only  # the first of each id
    return [], []


def _whole_tables(failing: Sequence[Reply]) -> list[tuple[str, ...]]:
    """The vocabulary tables that devices may hold whole although `model` splits them."""
    cases = [(reply.case, reply.case.mesh) for reply in failing]
    split = [name for case, mesh in cases if mesh and mesh.model > 1 for name in split_axes(case.config, mesh, case.component)]
    tables = {kind for name in split if (kind := table(name))}
    if not tables:
        return []
    return [("embeddings", "logits")] if len(tables) == 1 else [("embeddings",), ("embeddings", "logits")]


def _fits(fault: Fault, place: str) -> bool:
    """Whether the fault can occur at a place; norms only have faults of parameter gradients."""
    return not place or (fault.placed and (fault.replaces.keys() <= OF_PARAMETERS or not place.endswith("norm")))


def _forward(replies: Sequence[Reply]) -> list[Reply]:
    """The cheapest forward case, which rules out most faults of the forward pass."""
    return [reply for reply in replies if not _is_backward(reply.case)][:1]


def _shows(fault: Fault, case: Case) -> bool:
    """Whether the mesh has the fault's axis and the case can show the fault."""
    if fault.id in NEEDS and not NEEDS[fault.id](case):
        return False
    return not fault.axis or (case.mesh is not None and case.mesh.sizes[fault.axis] > 1)


def _cost(reply: Reply) -> float:
    case = reply.case
    steps = case.component == "training_steps"
    return sum(np.size(value) for value in case.inputs.values() if isinstance(value, np.ndarray) and value.dtype.kind in "iu") + 1e6 * steps


def _may_give(fault: Fault, reply: Reply) -> bool:
    """Whether the fault may change the wrong outputs, judged without a run."""
    mesh = reply.case.mesh
    if not reply.wrong or mesh is None:
        return True
    if fault.replaces.keys() <= BACKWARD and not _is_backward(reply.case):
        return False
    if fault.replaces.keys() <= OF_PARAMETERS and reply.case.component != "training_steps":
        names = reply.wrong_gradients
        if len(reply.wrong) > len(names) or not all(at(fault.place, name) for name in names if fault.place):
            return False
        return (
            fault.axis != "model" or not {*names} & split_axes(reply.case.config, fault.on(mesh), reply.case.component, fault.whole).keys()
        )
    return True


def _gives(fault: Fault, reply: Reply, check: Check) -> bool:
    check()
    try:
        return _begins(fault, reply) and reply.equals(predicted(fault, reply.case))
    except (ValueError, IndexError, ZeroDivisionError):  # the fault does not apply to this case
        return False


def _begins(fault: Fault, reply: Reply) -> bool:
    """Whether the first two losses of training match; a cheap check, True for other cases."""
    if reply.case.component != "training_steps" or "losses" not in reply.outputs:
        return True
    stepped = {name: value[:2] for name, value in reply.case.inputs.items() if isinstance(value, np.ndarray) and value.ndim}
    two = dataclasses.replace(reply.case, inputs={**reply.case.inputs, **stepped})
    losses, found = reply.outputs["losses"], predicted(fault, two)["losses"]
    return bool(losses.close(losses.got[:2], found, losses.allowed(found)).all())


def _is_backward(case: Case) -> bool:
    return bool(forward_of(case.component)) or "loss" in case.component or case.component in ("training", "training_steps", "cross_entropy")


def predicted(fault: Fault, case: Case) -> dict[str, np.ndarray]:
    """The float64 outputs of a port with the fault."""
    if case.mesh is None:
        raise ValueError(f"{case.id} must have a mesh")
    return on_mesh.answer(dataclasses.replace(case.at("float64"), mesh=fault.on(case.mesh)), fault.operations, fault.whole)


def _all_sites(case: Case) -> list[str]:
    """The paths of the attentions and feed-forward networks, in the order of the forward pass."""
    ends = (".query.kernel", ".hidden.kernel")
    names = [name.removesuffix(end) for name in case.parameters for end in ends if name.endswith(end)]
    return [name for name in names if name.rpartition(".")[2] in KINDS]


def _kinds(case: Case) -> list[str]:
    """The kinds of sub-layers and the names of norms."""
    sites = {site.rpartition(".")[2] for site in _all_sites(case)}
    norms = {name.split(".")[-2] for name in case.parameters if name.endswith(".scale") and "." in name}
    return [*(kind for kind in KINDS if kind in sites or kind == "logits"), *sorted(norms)]


def _wrong_norms(failing: Sequence[Reply]) -> list[str]:
    """All norms with wrong gradients as one place: FSDP2 is often set to ignore norms."""
    names = {name.split(".")[-2] for reply in failing for name in reply.wrong_gradients if "norm." in name}
    return [" and ".join(sorted(names))] if len(names) > 1 else []


def _sites(failing: Sequence[Reply]) -> list[str]:
    """The sub-layers that may contain the fault: those near the last wrong gradient."""
    sites, reply = _all_sites(failing[0].case), next((reply for reply in failing if reply.wrong_gradients), None)
    if reply is None or any(not _is_backward(each.case) for each in failing):
        return sites
    names = list(reply.case.parameters)
    last = max((names.index(name) for name in reply.wrong_gradients if not name.endswith("_embedding.table")), default=0)
    begins = [min(index for index, name in enumerate(names) if name.startswith(f"{site}.")) for site in sites]
    first = max((index for index, begin in enumerate(begins) if begin <= last), default=0)
    return sites[max(0, first - 1) : first + NEAR]


@dataclass(frozen=True)
class Said:
    """A conclusion about outputs: verdict, fault ids, headline and further lines."""

    verdict: Verdict
    ids: tuple[str, ...]
    text: str
    lines: tuple[str, ...] = ()


def said(replies: Sequence[Reply], framework: str = "", check: Callable[[], None] | None = lambda: None) -> Said | None:
    """The conclusion about a port's outputs on one mesh in one dtype; None if none is wrong.

    check: called often; may raise. Without it no fault is searched.
    """
    failing, right = ([reply for reply in replies if bool(reply.wrong) is wrong] for wrong in (True, False))
    if not failing:
        return None
    seen, (found, alone) = tuple(facts(failing, right)), explanations(replies, check) if check else ([], [])
    if not found:
        verdict = Verdict.UNEXPLAINED if check else Verdict.STOPPED
        return Said(verdict, (), words.no_fault(searched=bool(check)), (*seen, *([words.ON_ONE_DEVICE] if check else [])))
    one, ids = len(found) == 1, tuple(fault.id for fault in found)
    text = words.matches_on_mesh(ids, len(failing), len(right))
    causes = [f"cause: {found[0].title}"] if one else [fault.name for fault in found]
    place = [f"place: {found[0].place} and nowhere else"] if one and found[0].place else []
    only = [f"only in {', '.join(alone)}"] if alone else []
    layout = [f"layout: {' and '.join(found[0].whole)} whole over model"] if found[0].whole else []
    fix = [words.fix_on_mesh(found[0], framework)] if one else []
    return Said(Verdict.EXPLAINED if one else Verdict.INDISTINGUISHABLE, ids, text, (*causes, *place, *only, *layout, *seen, *fix))
