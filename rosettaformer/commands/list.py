"""`rosettaformer list`."""

import dataclasses
import importlib.util
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import TypeVar

import click

from reference_numpy import parameters, preset
from reference_numpy.strategy import Strategy

from ..conformance.cases import all_cases
from ..conformance.cases.expression import choose, matching
from ..conformance.defects import all_defects
from ..conformance.ports.adapters.derived import stands_for
from ..conformance.ports.port import ENTRY_POINTS, PORTS
from ..conformance.reference.components import COMPONENTS, VJP, forward_of, model_of, module_of, takes_config
from .options import Choice

__all__ = ["list"]

Thing = TypeVar("Thing")

FEW = 26  # so many parameters are listed
BIASES = ("attention_bias", "output_bias")  # fields of the config that add parameters
NEVER = ("parameters", "config", "dtype", "cotangent")  # what a case gives in another way
AXES = (
    "axes: b batch, t target or query position, s source or key position, n new token or beam, d model width, h query heads, g key heads, "
    "k key size, e value size, f hidden width, v vocabulary"
)


def _components(expression: str | None) -> Iterable[str]:
    """Each component as the reference calls it, and what it computes; of those that are chosen everything that there is to know."""
    counts = Counter(case.component for case in all_cases(grad=True))
    for name in _chosen(COMPONENTS, str, expression):
        function = getattr(module_of(COMPONENTS[name][0]), name)
        text = inspect.getdoc(function) or ""
        yield f"{name}({', '.join(inspect.signature(function).parameters)})"
        if expression is None:
            yield "    " + " ".join(text.partition("\n\n")[0].split())
            continue
        yield from (f"    {line}".rstrip() for line in text.splitlines())
        yield ""
        if own := _parameters(name):
            yield f"    parameters: {own}"
        given, fields = _arguments(name), {own: field for own, field in COMPONENTS[name][1].items() if field != "dtype"}
        left = [other for other in inspect.signature(function).parameters if other not in {*given, *fields, *NEVER}]
        yield f"    a port's module is called with: {', '.join(given)}" + (f"; no case gives {', '.join(left)}" if left else "")
        if stands := stands_for(forward_of(name) or name):
            yield f"    in place of some: {', '.join(f'{made} for {of}' for made, of in stands.items())}"
        if "strategy" in given:
            yield from _strategy()
        taken = [own if own == field else f"{field} as {own}" for own, field in fields.items()] or ["all of it"] * takes_config(name)
        if taken:
            yield f"    from the config: {', '.join(taken)}"
        gradient = f"; its gradient is {name}{VJP}" if name + VJP in COMPONENTS else ""
        yield f"    cases: {counts[name]}{gradient}"
    yield AXES


def _parameters(name: str) -> str:
    """The parameters of a component with their axes, in the order of the forward pass, and those that a config may add; of a whole model
    only how many."""
    model, config = model_of(forward_of(name) or name), preset("tiny")
    try:
        axes = parameters.axes(config, model)
    except ValueError:
        return ""
    if len(axes) > FEW:
        return f"{len(axes)} tensors of a whole stack"
    text = _with_axes(axes)
    for field in BIASES:
        more = parameters.axes(config.replace(**{field: True}), model)
        if added := {key: letters for key, letters in more.items() if key not in axes}:
            text += f"; with {field} {_with_axes(added)}"
    return text


def _strategy() -> Iterable[str]:
    """The fields of a search's strategy with their defaults, and which ids no answer holds."""
    fields = [one.name + ("" if one.default is dataclasses.MISSING else f"={one.default}") for one in dataclasses.fields(Strategy)]
    yield f"    strategy: {', '.join(fields)}"
    yield "    no answer holds the padding id or the strategy's start_id, unless it is its end_id: these ids are not scored"


def _with_axes(axes: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({letters})" for name, letters in axes.items())


def _arguments(name: str) -> dict[str, None]:
    """What cases of the component give, by the outermost name."""
    keys = (key for case in all_cases(grad=True) if case.component == name for key in case.inputs)
    return dict.fromkeys(key.partition(".")[0] for key in keys if key != "cotangent")


def _cases(expression: str | None) -> Iterable[str]:
    cases = all_cases(grad=True)
    for case in choose(cases, expression) if expression is not None else cases:
        marks = ["core"] * case.core + [f"since version {case.since}"] * (case.since > 1)
        yield "  ".join(filter(None, (f"{case.id:55}", f"{' '.join(case.dtypes):35}", ", ".join(marks)))).rstrip()


def _defects(expression: str | None) -> Iterable[str]:
    for defect in _chosen(all_defects().values(), lambda defect: f"{defect.id} {defect.component} {defect.title}", expression):
        yield f"{defect.id:6}  {defect.component:28}  {defect.title}" + (" (unobservable)" if defect.unobservable else "")


def _ports(expression: str | None) -> Iterable[str]:
    rows = [(name, module, "installed" if importlib.util.find_spec(needs) else install) for name, (module, needs, install) in PORTS.items()]
    rows += [(point.name, point.value, "installed") for point in entry_points(group=ENTRY_POINTS)]
    for name, module, state in _chosen(rows, " ".join, expression):
        yield f"{name:12}  {module:24}  {state}"


def _chosen(things: Iterable[Thing], name: Callable[[Thing], str], expression: str | None) -> Iterable[Thing]:
    return things if expression is None else matching(things, name, expression)


KINDS = {"components": _components, "cases": _cases, "defects": _defects, "ports": _ports}


@click.command()
@click.argument("kind", type=Choice(KINDS), default="components")
@click.option("-k", "expression", metavar="EXPR", help="Only those that EXPR is true of: words joined by and, or, not, as in pytest.")
def list(kind: str, expression: str | None) -> None:
    """List the components with their arguments, or the cases, the defects of the catalogue, or the ports.

    KIND is components (the default), cases, defects or ports. With -k a component comes with its whole description: axes, parameters,
    the arguments that its cases give a port's module, and what it takes from the config.
    """
    for line in KINDS[kind](expression):
        click.echo(line)
