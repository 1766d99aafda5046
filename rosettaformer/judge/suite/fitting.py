"""Which cases of a large model are asked: those for which there is memory."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from reference_numpy import parameters

from ...common.memory import available_memory
from ..case import Case, numpy_dtype
from ..expectation.components import VJP, forward_of

PROCESSES = 5 << 28  # bytes of the judge and of a port with its framework, before either has a model
SMALL, EACH = 1 << 28, 12  # bytes that every case may take beside them, and those of a larger model for each of its parameters
COMPARED, COMPUTED, ANSWERED = 40, 24, 3  # of each element of an output: bytes while it is compared and computed, arrays in the port
COPIES = 3  # of parameters that are sent to a port
GIGA = 1e9


def fitting(
    cases: Iterable[Case], memory: float | None = None, required: bool = True, sent: int = 0, devices: int = 1
) -> list[Case]:  # fmt: skip
    """Returns the cases, each with the dtypes for which there is no memory.

    memory: bytes that the judge and the port may take; by default those of their processes, and
    `EACH` for each parameter. sent: the number of ports, if the parameters are sent to them; then
    the default is what is available. devices: how many processes of a port have the model, of which
    the same is true.
    Raises ValueError if some case is required, and the memory is enough for none.
    """
    cases, available = list(cases), available_memory()
    found = [_limited(case, available, memory, sent, devices) for case in cases]
    needs = [need(case, dtype, sent, devices) for case in cases for dtype in case.dtypes]
    if required and needs and not any(fits(case) for case in found):
        _refuse(count(cases[0]), min(needs), min(memory or available, available))
    return found


def require(parameters: int, dtypes: Sequence[str], ports: int) -> None:
    """Raises ValueError if there is no memory to send a model of so many parameters, in each of the
    dtypes, to ports that keep it.
    """
    size = parameters * max(numpy_dtype(dtype).itemsize for dtype in dtypes)
    if size > SMALL and (needed := size * (COPIES - 1 + ports)) + PROCESSES > available_memory():
        _refuse(parameters, needed, available_memory())


def _refuse(parameters: int, needed: int, available: float) -> None:
    raise ValueError(
        f"a model of {parameters / 1e6:.0f} million parameters needs at least "
        f"{(needed + PROCESSES) / GIGA:.1f} GB of memory; {available / GIGA:.1f} GB are available"
    )


def within(dtypes: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """Returns those of the dtypes that are wanted; all if none is named."""
    return tuple(dtype for dtype in dtypes if not wanted or dtype in wanted)


def fits(case: Case) -> tuple[str, ...]:
    """Returns the dtypes in which there is memory for the case."""
    return tuple(dtype for dtype in case.dtypes if dtype not in case.too_large)


def left_out(cases: Iterable[Case]) -> str:
    """Returns which cases are not asked for want of memory, in words; empty if all are."""
    found: dict[str, list[str]] = {}
    for case in cases:
        for dtype in case.too_large:
            found.setdefault(dtype, []).append(case.id)
    total = sum(map(len, found.values()))
    parts = (f"{dtype}: {', '.join(ids)}" for dtype, ids in found.items())
    return f"left out, since they need more memory: {total} comparisons\n  " + "\n  ".join(parts) if total else ""


def _limited(case: Case, available: int, memory: float | None, sent: int, devices: int) -> Case:
    most = min(available, memory or (available if sent or devices > 1 else PROCESSES + EACH * count(case)))
    why = f"more than {most / GIGA:.1f} GB of memory would be needed"
    large = [dtype for dtype in case.dtypes if need(case, dtype, sent, devices) > max(SMALL, most - PROCESSES)]
    return dataclasses.replace(case, too_large=dict.fromkeys(large, why))


def count(case: Case) -> int:
    """Returns the number of parameters."""
    return sum(_sizes(case))


def need(case: Case, dtype: str, sent: int = 0, devices: int = 1) -> int:
    """Returns about how many bytes the arrays of a case take, in the judge's process and in the
    port's, at the same time.

    The judge has one parameter at a time, in float64, the outputs in float64 and in the dtype, and
    of gradients three of each. Parameters that are sent are in a message, in what arrives of it,
    and in the port's model.
    """
    sizes, item = _sizes(case), numpy_dtype(dtype).itemsize
    outputs, others = _outputs(case)
    judge = max(8 * max(sizes) + COMPUTED * (outputs + others), COMPARED * outputs)
    port = item * (max(devices, COPIES * sent) * sum(sizes) + max(1, sent) * ANSWERED * outputs)
    gradients = (3 * 8 + 4 * item) * sum(sizes) if forward_of(case.component) or case.component == "training" else 0
    return judge + port + gradients


def _sizes(case: Case) -> Sequence[int]:
    return [math.prod(shape) for shape in parameters.shapes(case.config).values()]


def _outputs(case: Case) -> tuple[int, int]:
    """Returns the numbers of elements that are compared, and of those that are only computed."""
    config = case.config
    side = next(side for side in ("target", "prefix", "source") if case.inputs.get(side) is not None)
    rows, length = np.shape(case.inputs[side])[:2]
    layers = config.encoder_layers + config.decoder_layers
    if case.component.removesuffix(VJP) in ("pool", "classify"):
        return rows * config.model_width, 0
    if case.component == "states":
        hidden, weights = (layers + 1) * rows * length * config.model_width, layers * rows * config.heads * length**2
        return (hidden, weights) if case.outputs else (hidden + weights, 0)
    return rows * length * (config.target_vocabulary if config.decoder_layers else config.source_vocabulary), 0
