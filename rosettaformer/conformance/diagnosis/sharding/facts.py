"""What the wrong outputs of a port on a mesh show, each sentence verified on every answer that is wrong."""

from collections.abc import Iterator, Sequence

import numpy as np

from reference_numpy.sharding import Split, splits

from ...case import Case
from ...reference.components import forward_of, model_of
from .replies import Reply

SHOWN = 6


def facts(failing: Sequence[Reply], right: Sequence[Reply]) -> list[str]:
    """The sentences on the answers that are wrong. right: the answers that are right."""
    return [*_forward(failing, right), *_losses(failing), *_gradients(failing)]


def _forward(failing: Sequence[Reply], right: Sequence[Reply]) -> Iterator[str]:
    own = [reply for reply in failing if "output" in reply.wrong and reply.outputs["output"].answer.ndim]
    if not own:
        return
    beside = [reply for reply in right if "output" in reply.outputs and reply.case.component == own[0].case.component]
    if beside and all(_rows(reply) > 1 for reply in own) and all(_rows(reply) == 1 for reply in beside):
        yield "outputs are right of one row, and wrong of several"
    found = [_moved_rows(reply) for reply in own]
    if all(found):
        yield from dict.fromkeys(sentence for sentence in found if sentence)


def _rows(reply: Reply) -> int:
    return len(reply.outputs["output"].answer)


def _moved_rows(reply: Reply) -> str:
    """Where every row of an output is a row of the reference, or right rows lie in the first part alone."""
    output = reply.outputs["output"]
    if not output.shaped or len(output.got) < 2:
        return ""
    allowed = output.allowed(output.reference)
    same = np.array([[output.close(own, other, allowed).all() for other in output.reference] for own in output.got])
    places = [int(row.argmax()) if row.sum() == 1 else -1 for row in same]
    if all(place >= 0 for place in places):
        return f"the rows of your output are the rows {places} of the reference"
    right = [index for index, row in enumerate(same) if row[index]]
    mesh = reply.case.mesh
    most = -(-len(places) // mesh.data) if mesh else 0
    if mesh and mesh.data > 1 and right == list(range(most)):
        return "only the first device's rows are right"
    return ""


def _losses(failing: Sequence[Reply]) -> Iterator[str]:
    found = [(reply, name) for reply in failing for name in ("loss", "output") if name in reply.wrong and not reply.outputs[name].answer.ndim]
    ratios = [float(reply.outputs[name].got) / float(reply.outputs[name].reference) for reply, name in found]
    if ratios:
        yield f"the loss is {_range(ratios)} times the right one"


def _range(ratios: Sequence[float]) -> str:
    low, high = f"{min(ratios):.4g}", f"{max(ratios):.4g}"
    return low if low == high else f"{low} to {high}"


def _gradients(failing: Sequence[Reply]) -> Iterator[str]:
    own = [reply for reply in failing if reply.wrong_gradients]
    if not own:
        return
    first = own[0]
    names = [name for name in first.case.parameters if any(name in reply.wrong_gradients for reply in own)]
    right = [name for name in first.case.parameters if all(name in reply.right_gradients for reply in own)]
    if not right:
        yield "every gradient is wrong"
    else:
        yield f"{len(names)} of {len(names) + len(right)} gradients are wrong; right are {_listed(right)}"
    for name in names[:SHOWN]:
        yield f"{name} ({said_split(first.case, name)}) is {_ratio([reply for reply in own if name in reply.wrong_gradients], name)}"
    if len(names) > SHOWN:
        yield f"and {len(names) - SHOWN} more"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _ratio(replies: Sequence[Reply], name: str) -> str:
    """How a gradient compares with the right one: one factor, or only its size."""
    gradients = [reply.gradient(name) for reply in replies]
    if any(not gradient.shaped or not np.isfinite(gradient.got).all() for gradient in gradients):
        return "of another shape, or not finite"
    factors = [gradient.factor(gradient.got, gradient.reference) for gradient in gradients]
    known = [factor for factor in factors if factor is not None]
    if len(known) == len(factors) and np.ptp(known) < 1e-3 * abs(known[0]):
        return f"the right one times {np.mean(known):.6g}"
    norms = [float(np.linalg.norm(gradient.got) / np.linalg.norm(gradient.reference)) for gradient in gradients]
    return f"no multiple of the right one; its norm is {_range(norms)} times as large"


def said_split(case: Case, name: str) -> str:
    """What a parameter is split over: `d over data, h over model`; whole if nothing."""
    component = model_of(forward_of(case.component) or case.component)
    if case.mesh is None:
        return "whole"
    return of_split(splits(case.config, case.mesh, component)[name])


def of_split(split: Split) -> str:
    """The axes of a parameter that are split, by their place."""
    found = [f"axis {axis} over {' and '.join(place) if isinstance(place, tuple) else place}" for axis, place in enumerate(split) if place]
    return ", ".join(found) or "whole"


