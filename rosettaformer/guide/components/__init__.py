"""Creates a page for each component: equation, four sources side by side, and facts."""

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from reference_numpy import TransformerConfig

from ...judge.components import DECLARED, GROUPS
from ...judge.expectation.components import OWN, VJP, WHOLE, takes_config
from ..code import Code
from ..figures import figures as drawings
from ..site import Page
from . import plain, sites
from .alignment import aligned
from .cells import cell_of, code_of
from .component_arguments import Argument, arguments, cases_of, errors
from .config_fields import behind, fields, fields_of
from .decisions import decisions, governing
from .facts import defects_of, figures, number, parameters_of
from .modules import PACKAGES, Symbol, read
from .names import full_name, stock, used
from .prose import paragraphs, sentence, told
from .sources import Source, source
from .written import written

if TYPE_CHECKING:
    from ..build import Run

COLUMNS = dict(zip(PACKAGES, ("NumPy reference", "PyTorch", "TensorFlow, Keras", "JAX, Flax"), strict=True))
FRAMEWORKS = {"torch": "PyTorch", "tf": "TensorFlow, Keras", "jax": "JAX, Flax"}
# group -> its components, in the order of the index
GROUPED = {group: [one.name for one in sorted(DECLARED.values(), key=lambda one: not one.first) if one.group == group] for group in GROUPS}
NEVER = ("parameters", "config", "dtype")  # not inputs of a case
ORDER = tuple(component for group in GROUPED.values() for component in group)


def pages(run: "Run") -> Iterator[Page]:
    """Yields the index and the pages, in the order of the groups."""
    yield Page(
        "components/index.html",
        "Components",
        "components.html.jinja",
        {"groups": GROUPED, "line": lambda one: sentence(DECLARED[one].purpose, lambda name: ""), "titled": _title},
    )
    yield _config()
    yield sites.page()
    for component in ORDER:
        yield _page(component, run)


def _config() -> Page:
    """Returns the page of the config: every field and the components that read it."""
    parts = [component for component in ORDER if component not in (*WHOLE, "initialise")]
    readers = {name: [one for one in parts if fields()[name] in fields_of(one)] for name in fields()}
    groups = {group: [fields()[name] for name in names] for group, names in TransformerConfig.groups().items()}
    values = {"groups": groups, "readers": readers, "say": _said}
    summary = "Every field of a TransformerConfig: meaning, values, and the components that read it."
    return Page(
        "components/config.html",
        "Config",
        "config.html.jinja",
        values,
        summary,
        ("TransformerConfig", *((name, f"#{name}") for name in fields())),
    )


def _page(component: str, run: "Run") -> Page:
    declared = DECLARED[component]
    sources = [source(component, package) for package in PACKAGES]
    gradient = component + VJP if component + VJP in OWN else ""
    known = tuple(entry for entry in stock().get(component, ()))
    said = told(sources[0].docstring, [one.name for one in arguments(component)])
    values = {
        "component": component,
        "docs": _with_decisions(paragraphs(f"{said.lead}\n\n{said.source}", _link), component),
        "facts": [_with_decisions(sentence(fact, _link), component) for fact in said.facts],
        "plain": [[*row] for row in plain.rows(component)],
        "plain_note": declared.plain_note,
        "without_plain": declared.without_plain,
        "plain_uses": [(name, plain.home_of(name)) for name in plain.used(component)],
        "example": plain.example() if component == "scaled_dot_product_attention" else None,
        "drawings": drawings(component),
        "say": lambda text: sentence(text, _link),
        "columns": [_column(one) for one in sources],
        "rows": [[cell_of(piece) for piece in row] for row in aligned(sources, component)],
        "stock": {title: [entry for entry in known if entry.framework == framework] for framework, title in FRAMEWORKS.items()},
        "elsewhere": {title: declared.elsewhere.get(framework, "") for framework, title in FRAMEWORKS.items()},
        "used": {FRAMEWORKS[one.package.removeprefix("impl_")]: used(one) for one in sources[1:]},
        "calls": sources[0].calls,
        "called_by": [other for other in ORDER if component in source(other, PACKAGES[0]).calls],
        "arguments": [(one, _with_decisions(_meaning(one), component)) for one in arguments(component)],
        "given": (given := cases_of()[component].given),
        "not_given": [one.name for one in arguments(component) if one.name not in (*given, *NEVER) and not one.field],
        "fields": [(one, _said(one.meaning)) for one in fields_of(component)] if takes_config(component) else [],
        "errors": [sentence(text, _link) for text in errors(component)],
        "parameters": parameters_of(component),
        "decisions": [(id, decisions()[id]) for id in governing(component)],
        "inherited": _inherited(component),
        "figures": [(name, cases_of()[name], figures(run.summary, name)) for name in (component, gradient) if name],
        "defects": list(defects_of(component)),
        "gradient": _gradient(gradient) if gradient else None,
        "written": written(component),
        "fast": [(COLUMNS[one.package], [_fast(symbol) for symbol in one.fast]) for one in sources[1:] if one.fast],
        "purpose": declared.purpose,
        "titled": _title,
        "number": number,
    }
    return Page(
        f"components/{component}.html", _title(component), "component.html.jinja", values, declared.purpose, _names(component, sources)
    )


def _names(component: str, sources: list[Source]) -> tuple[str | tuple[str, str], ...]:
    """Returns a component's search terms, including names in the frameworks."""
    native = [name for entry in stock().get(component, ()) for name in (entry.name, full_name(entry.name))]
    own = [component, *(symbol.name for one in sources for symbol in [one.main[0].symbol])]
    calls = [name for one in sources[1:] for name in used(one)]
    found = dict.fromkeys([(name, "#framework") for name in native])
    found |= dict.fromkeys([(name, "#source") for name in calls if name not in native])
    found |= dict.fromkeys([(name, "#plain") for name in plain.functions(component) if name != component])
    found |= dict.fromkeys([(one.name, "#arguments") for one in arguments(component) if len(one.name) > 1 and one.name not in NEVER])
    if takes_config(component):
        found |= dict.fromkeys([(one.name, "#config") for one in fields_of(component)])
    return (*dict.fromkeys([*own, *governing(component)]), *found)


def _meaning(argument: Argument) -> str:
    """Returns an argument's meaning and the config field from which a model takes it."""
    links = [f'<a href="config.html#{name}"><code>{name}</code></a>' for name in behind(argument.field) if argument.field]
    field = "; models pass " + " and ".join(links) if links else ""
    every = '; <a href="keep.html">all sites</a>' if argument.name.partition("_")[0] == "keep" else ""
    return _said(argument.meaning) + field + every


def _said(text: str) -> str:
    return sentence(text, lambda name: "config.html" if name == "TransformerConfig" else _link(name))


def _column(one: Source) -> dict[str, Any]:
    main = one.main[0]
    notes = "" if one.package == PACKAGES[0] else paragraphs(one.docstring, _link, blocks=False)
    files = dict.fromkeys(block.symbol.path for block in one.blocks)
    titles = {"title": COLUMNS.get(one.package, one.package), "plain": plain.TITLES[one.package]}
    return {"package": one.package, **titles, "name": main.symbol.name, "files": list(files),
            "path": f"{main.symbol.path}:{main.lines[0]}", "notes": notes}  # fmt: skip


def _gradient(component: str) -> dict[str, Any]:
    own = source(component, PACKAGES[0])
    return {"about": paragraphs(own.docstring, _link), "code": [code_of(block) for block in own.blocks], "name": component}


def _fast(symbol: Symbol) -> dict[str, Any]:
    """Returns a definition of the fast path: place, docstring and source."""
    file = read(symbol.package, symbol.module)
    node = file.definitions[symbol.name]
    first, last = min([node.lineno, *(part.lineno for part in node.decorator_list)]), node.end_lineno or node.lineno
    text = "\n".join(file.lines[first - 1 : last])
    about = paragraphs(ast.get_docstring(node) or "", _link, blocks=False)
    return {"name": symbol.name, "path": f"{symbol.path}:{first}", "about": about, "code": Code(text, symbol.path)}


def _inherited(component: str) -> list[tuple[str, list[str]]]:
    """Returns the decisions inherited from used components: (component, ids), nearest first."""
    own, found, queue = set(governing(component)), [], [*source(component, PACKAGES[0]).calls]
    seen = {component}
    while queue:
        other = queue.pop(0)
        if other in seen or other.endswith(VJP):
            continue
        seen.add(other)
        queue += source(other, PACKAGES[0]).calls
        if ids := [id for id in governing(other) if id not in own]:
            own |= {*ids}
            found.append((other, ids))
    return found


def _link(name: str) -> str:
    """Returns the link to a component's page from this folder; empty if it has none."""
    last = name.removesuffix("()").rpartition(".")[2].removesuffix(VJP)
    plain = name.count(".") < 2 and last in ORDER and name.partition(".")[0] not in ("F", "nn", "nnx", "tf", "jnp", "torch", "optax", "nnx")
    return f"{last}.html" if plain else ""


def _with_decisions(markup: str, component: str) -> str:
    """Returns the markup with decision ids linked to their texts."""
    return re.sub(rf"\b({'|'.join(governing(component))})\b", r'<a href="#\1">\1</a>', markup) if governing(component) else markup


def _title(component: str) -> str:
    """Returns `layer_norm` as a heading."""
    return component.replace("_", " ").capitalize()
