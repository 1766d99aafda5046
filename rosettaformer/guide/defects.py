"""Creates a page for each known bug: broken and fixed code, fixes, effects on cases."""

import functools
import multiprocessing
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import resources
from typing import TYPE_CHECKING, Any

from ..judge.case import Case
from ..judge.catalogue import Defect, all_defects
from ..judge.catalogue.effect import Effect, effect
from ..judge.expectation import tolerance
from ..judge.suite import all_cases
from .code import Code
from .planted import Edit, planted
from .site import Page

if TYPE_CHECKING:
    from .build import Run

TITLES = {"torch": "PyTorch", "tf": "Keras", "jax": "Flax"}
REPORT = re.compile(r"([\w.-]+(?:/[\w.-]+)?)#(\d+)")  # an issue or pull request in the evidence
MEASURED = 6  # most measured runs of a known bug: core cases first, then the smallest
# prefix of the ids -> family
FAMILIES = {
    "ATT": "Attention and its masks",
    "CAP": "Soft caps and logit scales",
    "CAU": "Causal masks",
    "DRP": "Dropout",
    "EMB": "Embeddings and tied tables",
    "FFN": "Feed-forward and activation",
    "GEN": "Generation",
    "HED": "Pooler and masked-language head",
    "INI": "Initial weights",
    "LOS": "Losses",
    "MHA": "Attention heads and projections",
    "MOE": "Mixtures of experts",
    "NRM": "Norms and their placement",
    "OPT": "Optimizer and schedule",
    "OUT": "Model output",
    "PAD": "Padding",
    "PE": "Positions",
    "PRC": "Precision",
    "QKN": "Query and key norms",
    "RES": "Residual connections",
    "ROT": "Rotary positions (RoPE)",
    "RSC": "RoPE scaling",
    "SEG": "Segments",
    "SEQ": "Shifted and reversed sequences",
    "SNK": "Attention sinks",
    "STR": "Structure of the stacks",
    "WIN": "Sliding windows",
}


def pages(run: "Run") -> Iterator[Page]:
    """Yields the index and the pages, sorted by family and number."""
    defects = sorted(all_defects().values(), key=_place)
    groups: dict[str, list[Defect]] = {}
    for defect in defects:
        groups.setdefault(_place(defect)[0], []).append(defect)
    values = {
        "groups": [
            (family, FAMILIES.get(family, family), [(one, title(one), seen_in(one)) for one in found]) for family, found in groups.items()
        ],
        "counts": {framework: sum(framework in seen_in(defect) for defect in defects) for framework in TITLES.values()},
        "count": len(defects),
    }
    yield Page("defects/index.html", "Known bugs", "defects.html.jinja", values)
    for defect, found in zip(defects, measured([defect.id for defect in defects], run.cpus), strict=True):
        yield _page(defect, found)


def title(defect: Defect) -> str:
    """Returns the title with a capital letter, as a heading."""
    return defect.title[0].upper() + defect.title[1:]


def seen_in(defect: Defect) -> list[str]:
    """Returns the frameworks in whose code the bug was reported."""
    names = {name for name, _ in REPORT.findall(defect.evidence)}
    return [framework for framework in TITLES.values() if names & repositories()[framework].keys()]


@functools.cache
def repositories() -> Mapping[str, Mapping[str, str]]:
    """Returns repositories named in evidence: framework -> name -> address or empty."""
    tables = tomllib.loads((resources.files(__package__) / "repositories.toml").read_text(encoding="utf-8"))
    return {name: dict.fromkeys(table.pop("unknown", ()), "") | table for name, table in tables.items()}


def _place(defect: Defect) -> tuple[str, int]:
    """Returns the family and number of a known bug, by which pages are sorted."""
    family = defect.id.rstrip("0123456789")
    return family, int(defect.id.removeprefix(family))


def measured(identities: Sequence[str], cpus: int) -> Iterator[list[Effect]]:
    """Yields the `effects` of each known bug. cpus: number of processes."""
    with ProcessPoolExecutor(cpus, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(effects, identities, chunksize=8)


def effects(identity: str) -> list[Effect]:
    """Returns the bug's effects on some of the cases that catch it, worst first."""
    defect = all_defects()[identity]
    claiming = [case for case in _cases().values() if identity in case.catches]
    chosen = sorted(claiming, key=lambda case: (not case.core, case.size))[:MEASURED]
    runs = [case.at(dtype) for dtype in defect.dtypes for case in chosen][:MEASURED]
    return sorted((effect(defect, case, _expected(case.id, case.dtype)) for case in runs), key=lambda one: -one.times)


def _page(defect: Defect, found: list[Effect]) -> Page:
    values = {
        "defect": defect,
        "title": title(defect),
        "edits": [_sides(edit) for edit in planted().get(defect.id, ())],
        "fixes": {TITLES[framework]: fix for framework, fix in defect.fix.items()},
        "effects": found,
        "evidence": _linked(defect.evidence),
    }
    names = (defect.id, title(defect), *defect.variants)
    return Page(f"defects/{defect.id}.html", f"{defect.id}: {title(defect)}", "defect.html.jinja", values, defect.component, names)


def _sides(edit: Edit) -> dict[str, Code]:
    origins = {"wrong": "wrong.txt", "right": edit.file}
    return {
        side: Code(
            textwrap.dedent(getattr(edit, side)),
            f"rosettaformer/guide/snippets/components/{file}",
            caption=f"{edit.function}, {'broken' if side == 'wrong' else 'fixed'}",
        )
        for side, file in origins.items()
    }


@functools.cache
def _cases() -> Mapping[str, Case]:
    return {case.id: case for case in all_cases(grad=True)}


@functools.cache
def _expected(identity: str, dtype: str) -> Mapping[str, tolerance.Expectation]:
    return tolerance.expect(_cases()[identity].at(dtype))


def _linked(evidence: str) -> Any:
    """Returns the evidence as HTML, with links for issues such as `transformers#7552`."""
    from markupsafe import Markup, escape

    known = {name: address for table in repositories().values() for name, address in table.items()}

    def link(found: re.Match[str]) -> str:
        name, number = found.groups()
        repository = name if "/" in name else known.get(name)
        return f'<a href="https://github.com/{repository}/issues/{number}">{found[0]}</a>' if repository else found[0]

    return Markup(REPORT.sub(link, str(escape(evidence))))
