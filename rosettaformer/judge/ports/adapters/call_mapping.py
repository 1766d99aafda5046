"""Calls a port's modules as its `call` declares: component -> {own argument: input or function}.

The keys `if`, `for` and `return` control the call. Modules that take an input in another form, such
as lengths instead of a mask, get inputs derived from the case's.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import mask, preset
from reference_numpy.suggestions import known

from ....common.modules import nests
from ...case import Case, numpy_dtype
from ...expectation import components
from ..port import NotCovered

ZEROS = "zeros_btd"  # the input of a module that adds positions to its input
_SEQUENCES = {"source_mask_bs": "source", "target_mask_bt": "target"}  # mask -> the ids that it follows from, if a case has no mask


def inputs_of(component: str) -> list[str]:
    """Returns the names of the reference's inputs of a component, in order."""
    given = {"parameters", "config", *components.config_arguments(component, preset("tiny"), "float64")}
    return [name for name in components.signature_of(component).parameters if name not in given]


def stands_for(component: str) -> dict[str, str]:
    """Returns a component's derived inputs, each with the input it replaces.

    `zeros_btd` replaces the positions, for a module that adds its own positions to its input.
    `length_b` replaces a mask (`self_length_b` replaces `self_mask_bhts`): the number of real keys
    per row, if they precede the padding.
    """
    lengths = {f"{name.rpartition('_')[0].removesuffix('mask')}length_b": name for name in inputs_of(component) if _is_key_mask(name)}
    return lengths | ({ZEROS: "position_bt"} if component == "positional_encoding" else {})


def derived(case: Case) -> tuple[dict[str, np.ndarray | None], dict[str, str]]:
    """Returns a case's derived inputs, and why the others cannot express the case."""
    found: dict[str, np.ndarray | None] = {}
    refused: dict[str, str] = {}
    for name, of in stands_for(case.component).items():
        make: Callable[[Case, str], np.ndarray | None] = _zeros if name == ZEROS else _lengths
        try:
            found[name] = make(case, of)
        except NotCovered as error:
            refused[name] = str(error)
    return found, refused


def _is_key_mask(name: str) -> bool:
    return name.rpartition("_")[0].endswith("mask") and name.rpartition("_")[2] in ("bhts", "bs", "bt")


def _zeros(case: Case, of: str) -> np.ndarray:
    position = np.asarray(case.inputs[of])
    if position.ndim != 2 or not np.array_equal(position, np.broadcast_to(np.arange(position.shape[1]), position.shape)):
        raise NotCovered("the module adds positions 0, 1, 2, ... to its input; the case has other positions")
    return np.zeros((*position.shape, case.config.model_width), numpy_dtype(case.dtype))


def _lengths(case: Case, of: str) -> np.ndarray | None:
    """Returns the number of real keys of each row; None if the mask hides nothing."""
    real_bs = _keys(case.inputs, of, case.config.padding_id)
    if real_bs is None:
        return None
    length_b = real_bs.sum(-1)
    if not np.array_equal(real_bs, np.arange(real_bs.shape[1]) < length_b[:, None]):
        raise NotCovered(f"the module takes the number of real keys per row; {of} also hides keys before the last real one")
    return length_b


def _keys(inputs: Mapping[str, Any], of: str, padding_id: int | None) -> np.ndarray | None:
    """Returns which keys of each row are real; None if all are."""
    value = inputs.get(of)
    if value is None:
        tokens = inputs.get(_SEQUENCES.get(of, ""))
        return None if tokens is None or padding_id is None or tokens.ndim != 2 else mask.token_mask(tokens, padding_id)
    if of.endswith("_bhts"):
        if value.shape[1:3] != (1, 1):
            raise NotCovered(f"the module takes the number of real keys per row; {of} differs between queries or heads")
        value = value[:, 0, 0]
    return np.asarray(value)


Row = Mapping[str, str | Callable[..., Any]]
# Keys that are not arguments: a condition on cases; the axis to loop over; a function of the output.
IF, FOR, RETURN = KEYWORDS = ("if", "for", "return")
EACH_ROW = "b"  # the only axis that a module can be looped over
_TOKENS = ("source", "target", "token")  # inputs that have this axis, although not in their names


class CallTable:
    """A port's `call`. Raises ValueError if it names an unknown component or input."""

    def __init__(self, call: Any) -> None:
        if not isinstance(call, Mapping) or not all(isinstance(row, Mapping) for row in call.values()):
            raise ValueError(f'call must be like {{"feed_forward": {{"x": "x_btd"}}}}: component, your argument, input; got {call!r:.100}')
        known("component of call", call, [name for name in components.COMPONENTS if not components.forward_of(name)])
        self._rows: Mapping[str, Row] = call
        for component, row in call.items():
            _check(component, row)

    def around(self, function: Any, case: Case, stack: Callable[[list[Any]], Any]) -> Any:
        """Wraps the component to take the case's inputs. stack: stacks equal shapes."""
        if case.component not in self._rows:
            return function
        return CallMapping(function, case.component, self._rows[case.component], derived(case)[1], stack)

    def arguments(self, component: str) -> list[str]:
        """Returns the arguments that are unchanged inputs, in the reference's order."""
        order, row = [*inputs_of(component), ZEROS], self._rows.get(component, {})
        own = [argument for argument, what in row.items() if argument not in KEYWORDS and what in order]
        return sorted(own, key=lambda argument: order.index(str(row[argument])))

    def adds_positions(self) -> bool:
        """Whether the positions' module adds them to its input: its row uses the zeros."""
        return any(
            what == ZEROS or (argument != RETURN and callable(what) and _looks_at_zeros(what))
            for argument, what in self._rows.get("positional_encoding", {}).items()
        )

    def repeats(self, component: str) -> bool:
        """Whether the module is called once per row of the batch."""
        return FOR in self._rows.get(component, {})

    def derived(self, case: Case) -> dict[str, np.ndarray | None]:
        """Returns the derived inputs of the case, if the component has a row."""
        return derived(case)[0] if case.component in self._rows else {}


def _check(component: str, row: Mapping[Any, Any]) -> None:
    """Raises ValueError if a row is invalid."""
    allowed = [*inputs_of(component), *stands_for(component)]
    others = {argument: what for argument, what in row.items() if argument not in (FOR, RETURN)}
    for argument, what in others.items():
        if not isinstance(argument, str) or not (isinstance(what, str) or callable(what)):
            must = f"each entry of call[{component!r}] must be your argument: an input, or a function of all inputs"
            raise ValueError(f"{must}; got {argument!r}: {what!r:.100}")
    known(f"an input in call of {component}", [what for what in others.values() if isinstance(what, str)], allowed)
    if RETURN in row and not callable(row[RETURN]):
        raise ValueError(f'"return" in call[{component!r}] must be a function (output, inputs); got {row[RETURN]!r:.100}')
    if FOR in row and (row[FOR] != EACH_ROW or not any(map(_has_rows, inputs_of(component)))):
        raise ValueError(f'"for" in call[{component!r}] must be "b", the batch axis, and its inputs must have it; got {row[FOR]!r:.100}')


@dataclasses.dataclass(frozen=True)
class CallMapping:
    """Calls a port's module or function with its own arguments; row by row if it takes no batch.

    refused: the derived inputs that cannot express the case, with the reason.
    """

    function: Any
    component: str
    row: Row
    refused: Mapping[str, str]
    stack: Callable[[list[Any]], Any]

    def __call__(self, **inputs: Any) -> Any:
        rows = [self._one(one) for one in self._each(inputs)]
        return self._stacked(rows) if FOR in self.row else rows[0]

    def arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the own arguments, of the first row if called row by row, and others.

        Raises NotCovered if the module does not support the case, or an input with a value is not
        used by any argument.
        """
        own, given = self._given(self._each(inputs)[0])
        if RETURN not in self.row:
            self._require_taken(given)
        return own

    def _one(self, inputs: Mapping[str, Any]) -> Any:
        """Returns one call's output. Inputs that "return" reads count as used."""
        own, given = self._given(inputs)
        if RETURN not in self.row:
            self._require_taken(given)
            return self.function(**own)
        try:
            output = self.row[RETURN](self.function(**own), given)  # type: ignore[operator]
        except Exception:
            self._require_taken(given)
            raise
        self._require_taken(given)
        return output

    def _given(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], "_Inputs"]:
        """Returns the own arguments, and all inputs."""
        defaults, of = _defaults(self.component), stands_for(self.component)
        given = _Inputs({**defaults, **{name: value for name, value in inputs.items() if name in (*defaults, *of)}}, self.refused)
        others = {name: value for name, value in inputs.items() if name not in given}
        if IF in self.row and not _holds(_read(self.row[IF], given)):
            condition = f"{self.row[IF]} is set" if isinstance(self.row[IF], str) else 'its "if" holds'
            raise NotCovered(f"the port's {self.component} only supports cases where {condition}")
        own = {argument: _read(what, given) for argument, what in self.row.items() if argument not in KEYWORDS}
        return others | own, given

    def _require_taken(self, given: "_Inputs") -> None:
        """Raises NotCovered if an input has a value that nothing read."""
        of = stands_for(self.component)
        taken = {*given.taken, *(of[name] for name in given.taken if name in of)}
        left = [name for name, default in _defaults(self.component).items() if name not in taken and _has_value(given[name], default)]
        if left:
            raise NotCovered(f"the port's {self.component} does not use {', '.join(left)}")

    def _each(self, inputs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Returns the inputs of each call."""
        if FOR not in self.row:
            return [inputs]
        if any(name.startswith("keep") and value is not None for name, value in inputs.items()):
            raise NotCovered(f"the port's {self.component} runs row by row, where keep masks are not supported")
        rows = {name: value for name, value in inputs.items() if _has_rows(name) and getattr(value, "ndim", 0) > 0}
        count = max(int(value.shape[0]) for value in rows.values())
        if not count:
            raise NotCovered(f"the port's {self.component} runs row by row, and the case has no rows")
        return [{**inputs, **{name: value[min(i, int(value.shape[0]) - 1)] for name, value in rows.items()}} for i in range(count)]

    def _stacked(self, rows: list[Any]) -> Any:
        """Stacks the outputs of all rows."""
        alike = zip(*(list(nests.leaves(row)) for row in rows), strict=True)
        leaves = [None if same[0] is None else self.stack(list(same)) for same in alike]
        stacked = iter(leaves)
        return nests.mapped(rows[0], lambda leaf: next(stacked))


class _Inputs(Mapping[str, Any]):
    """All inputs by name, with defaults or None. Remembers which were read."""

    def __init__(self, values: Mapping[str, Any], refused: Mapping[str, str] | None = None) -> None:
        self._values, self._refused, self.taken = values, refused or {}, set[str]()

    def __getitem__(self, name: str) -> Any:
        if name in self._refused:
            raise NotCovered(self._refused[name])
        if name not in self._values:
            raise KeyError(f"{name} is not an input; the inputs are {', '.join(self._values)}")
        self.taken.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values


def _read(what: Any, given: _Inputs) -> Any:
    return given[what] if isinstance(what, str) else what(given)


def _holds(value: Any) -> bool:
    """Whether a condition holds, or an input used as a condition is given."""
    return value is not None and (hasattr(value, "ndim") or bool(value))


def _looks_at_zeros(what: Callable[..., Any]) -> bool:
    given = _Inputs(dict.fromkeys((*inputs_of("positional_encoding"), ZEROS), mock.MagicMock()))
    with contextlib.suppress(Exception):  # it reads its inputs before it computes
        what(given)
    return ZEROS in given.taken


def _has_rows(name: str) -> bool:
    """Whether an input's first axis is the batch."""
    return name in _TOKENS or (name.rpartition("_")[2].startswith("b") and "_" in name)


def _defaults(component: str) -> dict[str, Any]:
    """Returns a component's inputs with their default values."""
    declared = components.signature_of(component).parameters
    return {name: None if declared[name].default is inspect.Parameter.empty else declared[name].default for name in inputs_of(component)}


def _has_value(value: Any, default: Any) -> bool:
    """Whether an input has a value other than its default."""
    if value is None or value is False or value is default or (isinstance(value, Mapping) and not value):
        return False
    return not (isinstance(value, (int, float, str)) and value == default)
