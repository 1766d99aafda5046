"""Selects the cases of a large model for which there is enough memory."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from reference_numpy import parameters

from ...common.memory import available_memory
from ..case import Case, numpy_dtype
from ..expectation.components import VJP, forward_of

PROCESSES = 5 << 28  # bytes of the judge and of a port with its framework, without a model
SMALL, EACH = 1 << 28, 12  # additional bytes for any case; for each parameter of a larger model
COMPARED, COMPUTED, ANSWERED = 40, 24, 3  # per output element: bytes in comparison and in computation, arrays in the port
COPIES = 3  # copies of parameters that are sent to a port
GIGA = 1e9


def fitting(
    cases: Iterable[Case], memory: float | None = None, required: bool = True, sent: int = 0, devices: int = 1
) -> list[Case]:  # fmt: skip
    """Returns the cases; each marks the dtypes for which memory does not suffice.

    memory: bytes for the judge and the port; by default those of their processes and `EACH` per
    parameter. sent: the number of ports that the parameters are sent to, if any; then the default
    is the available memory. devices: the number of a port's processes that hold the model; as with
    `sent`.

    Raises ValueError if `required` and there is not enough memory for any case.
    """
    cases, available = list(cases), available_memory()
    found = [_limited(case, available, memory, sent, devices) for case in cases]
    needs = [need(case, dtype, sent, devices) for case in cases for dtype in case.dtypes]
    if required and needs and not any(fits(case) for case in found):
        _refuse(count(cases[0]), min(needs), min(memory or available, available))
    return found


def require(parameters: int, dtypes: Sequence[str], ports: int) -> None:
    """Raises ValueError if memory does not suffice to send a model of that size to ports."""
    size = parameters * max(numpy_dtype(dtype).itemsize for dtype in dtypes)
    if size > SMALL and (needed := size * (COPIES - 1 + ports)) + PROCESSES > available_memory():
        _refuse(parameters, needed, available_memory())


def _refuse(parameters: int, needed: int, available: float) -> None:
    raise ValueError(
        f"a model of {parameters / 1e6:.0f} million parameters needs at least "
        f"{(needed + PROCESSES) / GIGA:.1f} GB of memory; {available / GIGA:.1f} GB are available"
    )


def within(dtypes: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """Returns the dtypes that are wanted; all if `wanted` is empty."""
    return tuple(dtype for dtype in dtypes if not wanted or dtype in wanted)


def fits(case: Case) -> tuple[str, ...]:
    """Returns the dtypes in which the case fits in memory."""
    return tuple(dtype for dtype in case.dtypes if dtype not in case.too_large)


def left_out(cases: Iterable[Case]) -> str:
    """Lists the cases that do not fit in memory; "" if all do."""
    found: dict[str, list[str]] = {}
    for case in cases:
        for dtype in case.too_large:
            found.setdefault(dtype, []).append(case.id)
    total = sum(map(len, found.values()))
    parts = (f"{dtype}: {', '.join(ids)}" for dtype, ids in found.items())
    return f"{total} comparisons skipped: not enough memory\n  " + "\n  ".join(parts) if total else ""


def _limited(case: Case, available: int, memory: float | None, sent: int, devices: int) -> Case:
    most = min(available, memory or (available if sent or devices > 1 else PROCESSES + EACH * count(case)))
    why = f"needs more than {most / GIGA:.1f} GB of memory"
    large = [dtype for dtype in case.dtypes if need(case, dtype, sent, devices) > max(SMALL, most - PROCESSES)]
    return dataclasses.replace(case, too_large=dict.fromkeys(large, why))


def count(case: Case) -> int:
    """Returns the number of parameters."""
    return sum(_sizes(case))


def need(case: Case, dtype: str, sent: int = 0, devices: int = 1) -> int:
    """Returns roughly how many bytes a case's arrays take in the judge and the port together.

    The judge holds one parameter at a time in float64, the outputs in float64 and in the dtype, and
    three copies of gradients. Parameters that are sent exist in the message, in the received copy,
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
    """Returns the number of elements that are compared, and of those that are only computed."""
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
