"""Makes a page for each known bug: wrong and right code, the fix in each framework, its effect on cases."""

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
REPORT = re.compile(r"([\w.-]+(?:/[\w.-]+)?)#(\d+)")  # in the evidence: an issue or a pull request of a repository
MEASURED = 6  # at most this many runs of a defect are measured: core cases first, the smallest of them
# what the ids of a family begin with -> the family
FAMILIES = {
    "ATT": "Attention and its masks",
    "CAP": "Caps and scales of logits",
    "CAU": "Causal masks",
    "DRP": "Dropout",
    "EMB": "Embeddings and tied tables",
    "FFN": "Feed-forward and activation",
    "GEN": "Generation",
    "HED": "Pooler and masked-language head",
    "INI": "Initial weights",
    "LOS": "Losses",
    "MHA": "Attention heads and their projections",
    "NRM": "Norms and their place",
    "OPT": "Optimiser and schedule",
    "OUT": "Output of the model",
    "PAD": "Padding",
    "PE": "Positions",
    "PRC": "Precision",
    "QKN": "Norms of queries and keys",
    "RES": "Residuals",
    "ROT": "Rotary positions",
    "RSC": "Scaling of rotary positions",
    "SEG": "Segments",
    "SEQ": "Shifted and reversed sequences",
    "STR": "Structure of the stacks",
    "WIN": "Windows of attention",
}


def pages(run: "Run") -> Iterator[Page]:
    """Yields the index, and the pages in the order of families and numbers."""
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
    yield Page("defects/index.html", "Defects", "defects.html.jinja", values)
    for defect, found in zip(defects, measured([defect.id for defect in defects], run.cpus), strict=True):
        yield _page(defect, found)


def title(defect: Defect) -> str:
    """Returns its title as a heading."""
    return defect.title[0].upper() + defect.title[1:]


def seen_in(defect: Defect) -> list[str]:
    """Returns the frameworks in whose code it was reported."""
    names = {name for name, _ in REPORT.findall(defect.evidence)}
    return [framework for framework in TITLES.values() if names & repositories()[framework].keys()]


@functools.cache
def repositories() -> Mapping[str, Mapping[str, str]]:
    """Returns the repositories that the evidence names, by the framework of their code: name -> its address on GitHub, if it is known."""
    tables = tomllib.loads((resources.files(__package__) / "repositories.toml").read_text(encoding="utf-8"))
    return {name: dict.fromkeys(table.pop("unknown", ()), "") | table for name, table in tables.items()}


def _place(defect: Defect) -> tuple[str, int]:
    """Returns its family and its number, by which defects are sorted."""
    family = defect.id.rstrip("0123456789")
    return family, int(defect.id.removeprefix(family))


def measured(identities: Sequence[str], cpus: int) -> Iterator[list[Effect]]:
    """Yields what `effects` returns for each defect; cpus: how many processes compute it."""
    with ProcessPoolExecutor(cpus, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(effects, identities, chunksize=8)


def effects(identity: str) -> list[Effect]:
    """Returns what the defect does to some of the cases that claim it, the worst first."""
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
            caption=f"{edit.function}, {side}",
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
    """Returns the evidence as HTML: `transformers#7552` and `owner/repository#7552` link to that issue or pull request."""
    from markupsafe import Markup, escape

    known = {name: address for table in repositories().values() for name, address in table.items()}

    def link(found: re.Match[str]) -> str:
        name, number = found.groups()
        repository = name if "/" in name else known.get(name)
        return f'<a href="https://github.com/{repository}/issues/{number}">{found[0]}</a>' if repository else found[0]

    return Markup(REPORT.sub(link, str(escape(evidence))))
