"""The search for the fault of a mesh's devices that gives a port's answers, and what is said of them."""

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
from ..findings import Verdict
from .facts import Reply, facts

KINDS = ("self_attention", "cross_attention", "feed_forward", "logits")
# operations that no output of a forward pass shows
BACKWARD = {
    "input_gradient", "output_gradient", "shared_gradient", "key_gradient", "bias_gradient", "whole_gradient", "data_gradient",
    "norm_gradient", "label_count", "loss", "log_normaliser", "clip_factors",
}  # fmt: skip
OF_PARAMETERS = {"shared_gradient", "whole_gradient", "norm_gradient", "bias_gradient", "data_gradient"}  # they alter the named ones alone
NEAR = 4  # sub-layers after the last wrong gradient that may have made it wrong
Check = Callable[[], None]


def explanations(replies: Sequence[Reply], check: Check = lambda: None) -> tuple[list[Fault], list[str]]:
    """The faults each of which gives every answer, right ones too, to the tolerance; several only if no case tells them apart. Then the
    components that they are in alone, where answers of others are right: their own answers are given, right ones too. Empty if no answer
    is wrong. Those that are everywhere are tried first, then those at one kind of place, then at one place; then again of devices that have
    tables whole over `model`, as many plans leave them. check: is called before each run, and may raise.
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
                return _one_of_each(every), only
    return [], []


def _whole_tables(failing: Sequence[Reply]) -> list[tuple[str, ...]]:
    """The tables of the vocabulary that devices may have whole, of those that `model` splits: those of embeddings, unless they are the
    logits', and those of both."""
    cases = [(reply.case, reply.case.mesh) for reply in failing]
    split = [name for case, mesh in cases if mesh and mesh.model > 1 for name in split_axes(case.config, mesh, case.component)]
    tables = {kind for name in split if (kind := table(name))}
    if not tables:
        return []
    return [("embeddings", "logits")] if len(tables) == 1 else [("embeddings",), ("embeddings", "logits")]


def _fits(fault: Fault, place: str) -> bool:
    """Whether it can be at a place: in norms, what alters gradients of parameters alone."""
    return not place or (fault.placed and (fault.replaces.keys() <= OF_PARAMETERS or not place.endswith("norm")))


def _forward(replies: Sequence[Reply]) -> list[Reply]:
    """The quickest answer of a forward pass, which refutes most faults of one."""
    return [reply for reply in replies if not _is_backward(reply.case)][:1]


def _one_of_each(found: Sequence[Fault]) -> list[Fault]:
    """The first of each id."""
    return list({fault.id: fault for fault in found[::-1]}.values())[::-1]


def _shows(fault: Fault, case: Case) -> bool:
    """Whether the mesh has the axis along which it is made, and the case what it is about."""
    if fault.id in NEEDS and not NEEDS[fault.id](case):
        return False
    return not fault.axis or (case.mesh is not None and case.mesh.sizes[fault.axis] > 1)


def _cost(reply: Reply) -> float:
    case = reply.case
    steps = case.component == "training_steps"
    return sum(np.size(value) for value in case.inputs.values() if isinstance(value, np.ndarray) and value.dtype.kind in "iu") + 1e6 * steps


def _may_give(fault: Fault, reply: Reply) -> bool:
    """Whether the fault alters what is wrong, as far as can be said without a run."""
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
    except (ValueError, IndexError, ZeroDivisionError):  # the fault makes no sense on this case
        return False


def _begins(fault: Fault, reply: Reply) -> bool:
    """Whether the first two losses of steps of training are those of the fault: most of all are not. True of any other case."""
    if reply.case.component != "training_steps" or "losses" not in reply.outputs:
        return True
    stepped = {name: value[:2] for name, value in reply.case.inputs.items() if isinstance(value, np.ndarray) and value.ndim}
    two = dataclasses.replace(reply.case, inputs={**reply.case.inputs, **stepped})
    losses, found = reply.outputs["losses"], predicted(fault, two)["losses"]
    return bool(losses.close(losses.got[:2], found, losses.allowed(found)).all())


def _is_backward(case: Case) -> bool:
    return bool(forward_of(case.component)) or "loss" in case.component or case.component in ("training", "training_steps", "cross_entropy")


def predicted(fault: Fault, case: Case) -> dict[str, np.ndarray]:
    """What a port with the fault gives, in float64."""
    if case.mesh is None:
        raise ValueError(f"{case.id} must have a mesh")
    return on_mesh.answer(dataclasses.replace(case.at("float64"), mesh=fault.on(case.mesh)), fault.operations, fault.whole)


def _all_sites(case: Case) -> list[str]:
    """The paths of the attentions and feed-forward networks, in the order of the forward pass."""
    ends = (".query.kernel", ".hidden.kernel")
    names = [name.removesuffix(end) for name in case.parameters for end in ends if name.endswith(end)]
    return [name for name in names if name.rpartition(".")[2] in KINDS]


def _kinds(case: Case) -> list[str]:
    """The kinds of sub-layers, and the names of norms."""
    sites = {site.rpartition(".")[2] for site in _all_sites(case)}
    norms = {name.split(".")[-2] for name in case.parameters if name.endswith(".scale") and "." in name}
    return [*(kind for kind in KINDS if kind in sites or kind == "logits"), *sorted(norms)]


def _wrong_norms(failing: Sequence[Reply]) -> list[str]:
    """The names of norms whose gradients are wrong, as one place: what FSDP2 is told to ignore is often the norms of layers, or all."""
    names = {name.split(".")[-2] for reply in failing for name in reply.wrong_gradients if "norm." in name}
    return [" and ".join(sorted(names))] if len(names) > 1 else []


def _sites(failing: Sequence[Reply]) -> list[str]:
    """The sub-layers that one place alone may be: where gradients are wrong, those that come soon after the last wrong one."""
    sites, reply = _all_sites(failing[0].case), next((reply for reply in failing if reply.wrong_gradients), None)
    if reply is None or any(not _is_backward(each.case) for each in failing):
        return sites
    names = list(reply.case.parameters)
    last = max((names.index(name) for name in reply.wrong_gradients if not name.endswith("_embedding.table")), default=0)
    begins = [min(index for index, name in enumerate(names) if name.startswith(f"{site}.")) for site in sites]
    first = max((index for index, begin in enumerate(begins) if begin <= last), default=0)
    return sites[max(0, first - 1) : first + NEAR]


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
