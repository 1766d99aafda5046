"""`rosettaformer list`."""

import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any, TypeVar

import click
import numpy as np

from reference_numpy.optimizer import decay_mask
from reference_numpy.parameters import flatten, nest
from reference_numpy.sharding import Mesh
from reference_numpy.strategy import Strategy

from ..common.backends import PORTS, how_to_install
from ..common.extras import installed
from ..judge.case import DTYPES, Case
from ..judge.catalogue import all_defects
from ..judge.expectation.components import COMPONENTS, VJP, forward_of, function_of, model_of
from ..judge.ports.adapters.call_mapping import stands_for
from ..judge.ports.port import ENTRY_POINTS
from ..judge.suite import all_cases
from ..judge.suite.expression import choose, matching
from ..judge.suite.meshes import mesh_cases
from . import completion, words
from .declared import config_lines, field_names, is_encoder_alone, parameter_lines
from .options import Choice, Grouped, examples, expression_option, mesh_option

Thing = TypeVar("Thing")

WIDTH = 100  # width of the overview
NEVER = ("parameters", "config", "dtype", "cotangent")  # arguments that a case passes in another form


def _components(expression: str | None) -> Iterable[str]:
    """Yields the signature and purpose of each component; with an expression, full descriptions."""
    every = all_cases(grad=True)
    for name in _chosen(COMPONENTS, str, expression):
        function = function_of(name)
        text = inspect.getdoc(function) or ""
        yield f"{name}({', '.join(inspect.signature(function).parameters)})"
        if expression is None:
            yield "    " + " ".join(text.partition("\n\n")[0].split())
            continue
        yield from (f"    {line}".rstrip() for line in text.splitlines())
        yield ""
        yield from (f"    {line}" for line in _parameters(name))
        cases = [case for case in every if case.component == name]
        given, fields = _arguments(cases), {own: field for own, field in COMPONENTS[name].arguments.items() if field != "dtype"}
        left = [other for other in inspect.signature(function).parameters if other not in {*given, *fields, *NEVER}]
        yield f"    {words.arguments(given, left)}"
        yield from _kinds(cases)
        if stands := stands_for(forward_of(name) or name):
            yield f"    {words.instead(stands)}"
        if "strategy" in given:
            yield from _strategy()
        if not forward_of(name) and (taken := field_names(cases, name)):
            named = {field: own for own, field in fields.items() if own != field}
            yield f"    config fields: {', '.join(f'{field} as {named[field]}' if field in named else field for field in taken)}"
            yield f"        {words.FIELDS}"
        yield f"    {words.cases(len(cases), name + VJP if name + VJP in COMPONENTS else '')}"
    yield textwrap.fill(words.AXES, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _parameters(name: str) -> Iterable[str]:
    """Yields the canonical parameters of a component, or the component that lists them."""
    of, forward = model_of(forward_of(name) or name), forward_of(name) or name
    lines = [*parameter_lines(forward)]
    if not lines:
        return
    if forward != name or (of != name and not is_encoder_alone(name)):
        yield words.parameters_of(of)
        return
    yield words.parameters(of if of != name else "", any("layers.0" in line for line in lines))
    yield from (f"    {line}" for line in lines)


def _kinds(cases: Sequence[Case]) -> Iterable[str]:
    """Yields the nested arguments, parameters with weight decay, and dtypes of ids and masks."""
    values = {name: value for case in cases for name, value in case.inputs.items()}
    trees: dict[str, Any] = {}
    for name in values:
        tree, dot, leaf = name.partition(".")
        if dot and isinstance(values[name], np.ndarray):
            trees.setdefault(tree, []).append(leaf)
    for tree, leaves in trees.items():
        first = "".join(f'["{part}"]' for part in leaves[0].split("."))
        yield f"        {tree}: nested dict, such as {tree}{first}, of {', '.join(leaves)}"
    if "weight_decay" in values:
        own = {leaf: values[f"parameters.{leaf}"] for leaf in trees["parameters"]}
        decays = [name for name, decay in flatten(decay_mask(nest(own))).items() if decay]
        yield f"        {words.decay(decays)}"
    for name, value in values.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "biu" and "." not in name:
            yield f"        {name}: {value.dtype}"


def _filled(words: Iterable[str]) -> str:
    """Returns the words separated by commas, in indented lines."""
    return textwrap.fill(", ".join(words), WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)


def _strategy() -> Iterable[str]:
    """Yields the fields of a search strategy with defaults, and the ids never generated."""
    fields = [one.name + ("" if one.default is dataclasses.MISSING else f"={one.default}") for one in dataclasses.fields(Strategy)]
    yield f"    strategy: dict of all the fields: {', '.join(fields)}"
    yield f"    {words.NEVER_GENERATED}"


def _arguments(cases: Iterable[Case]) -> dict[str, None]:
    """Returns the names of the arguments that the cases of a component pass."""
    keys = (key for case in cases for key in case.inputs)
    return dict.fromkeys(key.partition(".")[0] for key in keys if key != "cotangent")


def _cases(expression: str | None, meshes: Sequence[Mesh] = ()) -> Iterable[str]:
    cases = mesh_cases(meshes) if meshes else all_cases(grad=True)
    for case in choose(cases, expression) if expression is not None else cases:
        marks = [str(case.mesh or "")] + ["core"] * case.core + [f"suite release {case.release}"] * (case.release > 1)
        yield "  ".join(filter(None, (f"{case.id:55}", f"{' '.join(case.dtypes):35}", ", ".join(filter(None, marks))))).rstrip()


def _defects(expression: str | None) -> Iterable[str]:
    for defect in _chosen(all_defects().values(), lambda defect: f"{defect.id} {defect.component} {defect.title}", expression):
        yield f"{defect.id:6}  {defect.component:28}  {defect.title}" + (" (unobservable)" if defect.unobservable else "")


def _ports(expression: str | None) -> Iterable[str]:
    rows = [(name, module, "installed" if installed(needs) else how_to_install(name)) for name, (module, needs, _) in PORTS.items()]
    rows += [(point.name, point.value, "installed") for point in entry_points(group=ENTRY_POINTS)]
    for name, module, state in _chosen(rows, " ".join, expression):
        yield f"{name:12}  {module:24}  {state}"


def _config(expression: str | None) -> Iterable[str]:
    """Yields the fields by group; the name of a group selects all its fields."""
    lines = config_lines()
    for group, chosen in itertools.groupby(_chosen(lines, lambda line: f"{lines[line]} {line}", expression), lines.__getitem__):
        yield group
        yield from (f"    {line}" for line in chosen)


def _chosen(things: Iterable[Thing], name: Callable[[Thing], str], expression: str | None) -> Iterable[Thing]:
    return things if expression is None else matching(things, name, expression)


KINDS = {"components": _components, "config": _config, "cases": _cases, "defects": _defects, "ports": _ports}


def _overview() -> Iterable[str]:
    """Yields the values of the common options, and the lists."""
    from ..files.checkpoints.hugging_face import new

    names = {
        "families (--like)": new.names(),
        f"components (--component); most have a gradient, NAME{VJP}": [name for name in COMPONENTS if not forward_of(name)],
        "dtypes (--dtype)": DTYPES,
    }
    for title, values in names.items():
        yield from (f"{title}:", _filled(values), "")
    yield "lists:"
    yield from (f"    rosettaformer list {kind:14}{text}" for kind, text in words.LISTS.items())


@click.command(cls=Grouped, epilog=examples("list", "list -k multi_head_attention"))
@click.argument("kind", type=Choice(KINDS), required=False, metavar="[KIND]")
@expression_option("Entries", completion.components)
@mesh_option
def list(kind: str | None, expression: str | None, meshes: tuple[Mesh, ...]) -> None:
    """List families, components, dtypes, cases, known bugs and ports.

    KIND is components, config, cases, defects or ports; without it, prints an overview.

    With -k, KIND is components by default, and each is described in full: parameters with axes and
    shapes, the arguments of a port's module, and config fields.
    """
    if meshes and kind != "cases":
        raise ValueError(f"--mesh needs `list cases`; got {f'list {kind}' if kind else 'list'}")
    lines = _cases(expression, meshes) if meshes else KINDS[kind or "components"](expression)
    for line in _overview() if kind is None and expression is None else lines:
        click.echo(line)
