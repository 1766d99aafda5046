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
from . import completion
from .declared import config_lines, field_names, is_encoder_alone, parameter_lines
from .options import Choice, mesh_option

Thing = TypeVar("Thing")

WIDTH = 100  # of the overview
NEVER = ("parameters", "config", "dtype", "cotangent")  # names that a case gives in another form
AXES = (
    "axes: b batch, t target or query position, s source or key position, n new token or beam, d model width, h query heads, g key heads, "
    "k key size, e value size, f hidden width, v vocabulary, p learned positions, a segments, r pooled width, c classes"
)


def _components(expression: str | None) -> Iterable[str]:
    """Prints each component as the reference calls it, and what it computes; for chosen ones everything there is to know."""
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
        yield f"    a port's module is called with: {', '.join(given)}" + (f"; no case gives {', '.join(left)}" if left else "")
        yield from _kinds(cases)
        if stands := stands_for(forward_of(name) or name):
            yield f"    in place of some: {', '.join(f'{made} for {of}' for made, of in stands.items())}"
        if "strategy" in given:
            yield from _strategy()
        if not forward_of(name) and (taken := field_names(cases, name)):
            named = {field: own for own, field in fields.items() if own != field}
            yield f"    from the config: {', '.join(f'{field} as {named[field]}' if field in named else field for field in taken)}"
            yield "        what each of them says: rosettaformer list config"
        gradient = f"; its gradient is {name}{VJP}" if name + VJP in COMPONENTS else ""
        yield f"    cases: {len(cases)}{gradient}"
    yield AXES


def _parameters(name: str) -> Iterable[str]:
    """Prints the canonical parameters of a component, one per line; for a gradient or a component that runs another one, where they are
    listed.
    """
    of, forward = model_of(forward_of(name) or name), forward_of(name) or name
    lines = [*parameter_lines(forward)]
    if not lines:
        return
    if forward != name or (of != name and not is_encoder_alone(name)):
        yield f"parameters: those of {of}, whose table in weights is theirs: rosettaformer list -k '{of} and not vjp'"
        return
    yield f"parameters{f', whose table in weights is that of {of}' * (of != name)}: canonical name, axes, shape" + (
        "; layers.0 stands for every layer" if any("layers.0" in line for line in lines) else ""
    )
    yield from (f"    {line}" for line in lines)


def _kinds(cases: Sequence[Case]) -> Iterable[str]:
    """Prints the arguments that are trees, which of their tensors decay, and the dtypes of ids and masks."""
    values = {name: value for case in cases for name, value in case.inputs.items()}
    trees: dict[str, Any] = {}
    for name in values:
        tree, dot, leaf = name.partition(".")
        if dot and isinstance(values[name], np.ndarray):
            trees.setdefault(tree, []).append(leaf)
    for tree, leaves in trees.items():
        first = "".join(f'["{part}"]' for part in leaves[0].split("."))
        yield f"        {tree}: nested mappings, such as {tree}{first}, of {', '.join(leaves)}"
    if "weight_decay" in values:
        own = {leaf: values[f"parameters.{leaf}"] for leaf in trees["parameters"]}
        decays = [name for name, decay in flatten(decay_mask(nest(own))).items() if decay]
        yield f"        weight decay applies to {', '.join(decays)}; no bias, scale or offset decays"
    for name, value in values.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "biu" and "." not in name:
            yield f"        {name}: {value.dtype}"


def _filled(words: Iterable[str]) -> str:
    """Returns the words with commas between them, in indented lines."""
    return textwrap.fill(", ".join(words), WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)


def _strategy() -> Iterable[str]:
    """Prints the fields of a search's strategy with their defaults, and the ids that no answer holds."""
    fields = [one.name + ("" if one.default is dataclasses.MISSING else f"={one.default}") for one in dataclasses.fields(Strategy)]
    yield f"    strategy: a mapping, always of all fields: {', '.join(fields)}"
    yield "    no answer holds the padding id or the strategy's start_id, unless it is its end_id: these ids are not scored"


def _arguments(cases: Iterable[Case]) -> dict[str, None]:
    """Returns the arguments that cases of a component give, by their outermost name."""
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
    """Prints fields under their groups, whose names choose all their fields."""
    lines = config_lines()
    for group, chosen in itertools.groupby(_chosen(lines, lambda line: f"{lines[line]} {line}", expression), lines.__getitem__):
        yield group
        yield from (f"    {line}" for line in chosen)


def _chosen(things: Iterable[Thing], name: Callable[[Thing], str], expression: str | None) -> Iterable[Thing]:
    return things if expression is None else matching(things, name, expression)


KINDS = {"components": _components, "config": _config, "cases": _cases, "defects": _defects, "ports": _ports}
LISTS = {
    "components": "every component with its arguments, and what it computes",
    "-k COMPONENT": "everything about a component: parameters, axes, what a port's module is called with",
    "config": "every field of the config, its values, and what it says",
    "cases": "every case of the suite, and its dtypes; with --mesh those on a mesh",
    "defects": "every defect of the catalogue; rosettaformer explain ID shows its page",
    "ports": "every port by name, and whether its framework is installed",
}


def _overview() -> Iterable[str]:
    """Prints the names that options take, and the lists that there are."""
    from ..files.checkpoints.hugging_face import new

    names = {
        "families, for --like": new.names(),
        f"components, for --component; most have a gradient, NAME{VJP}": [name for name in COMPONENTS if not forward_of(name)],
        "dtypes, for --dtype": DTYPES,
    }
    for title, words in names.items():
        yield from (f"{title}:", _filled(words), "")
    yield "lists:"
    yield from (f"    rosettaformer list {words:14}{what}" for words, what in LISTS.items())


@click.command()
@click.argument("kind", type=Choice(KINDS), required=False)
@click.option(
    "-k",
    "expression",
    metavar="EXPR",
    shell_complete=completion.words(completion.components),
    help="Only those that EXPR is true of: words joined by and, or, not, as in pytest.",
)
@mesh_option
def list(kind: str | None, expression: str | None, meshes: tuple[Mesh, ...]) -> None:
    """List the names that there are: families, components, dtypes; or everything of one KIND.

    With -k KIND is components, if none is given, and each of them comes with its whole description: its canonical parameters with their
    axes and shapes, the arguments that its cases give a port's module, and the fields that it takes from the config.
    """
    if meshes and kind != "cases":
        raise ValueError(f"--mesh is of the cases; got {kind or 'no kind'}")
    lines = _cases(expression, meshes) if meshes else KINDS[kind or "components"](expression)
    for line in _overview() if kind is None and expression is None else lines:
        click.echo(line)
