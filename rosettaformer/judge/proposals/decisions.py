"""The decisions of a proposal: one for each argument, parameter and config field."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from reference_numpy.config import POSITIONS

from . import words
from .config_fields import GUESSED
from .draft import Choice, Draft
from .trying import said
from .weight_tables import tables_of


@dataclass(frozen=True)
class Decision:
    """One decision of a proposal.

    kind: "constructor" or "call" (an argument), "weight" (a parameter), "config" (a field),
    "dtypes", or "output". name: of the argument, parameter or field. value: the decision; the
    candidates if it is open. why: the evidence.
    """

    kind: str
    name: str
    value: str
    why: str
    is_open: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.value} ({self.why})"


def decisions(draft: Draft, open_: Mapping[str, str]) -> Iterator[Decision]:
    """Yields every decision. open_: the open ones, by name."""
    tried = dict.fromkeys(draft.nearest, words.NEAREST) | dict.fromkeys(draft.tried, words.MATCHES)

    def one(kind: str, name: str, value: str, usual: str, choice: str = "") -> Decision:
        choice = choice or name
        if choice in open_:
            return Decision(kind, name, open_[choice], words.UNDECIDED, True)
        return Decision(kind, name, value, tried.get(choice, usual))

    for name, text in draft.construction.arguments.items():
        yield Decision("constructor", name, text, words.GIVEN if name in draft.construction.given else words.NAME)
    for name, text in draft.given(draft.selection).items():
        yield one("call", name, text, words.NAME_OR_PLACE, f"argument {name}")
    for name in draft.call.unknown:
        yield Decision("call", name, "None", words.NO_COUNTERPART, True)
    for component, rows in tables_of(draft.root(draft.selection)).items():
        why = words.TRIED_NAMES if any(name.endswith(f" of {component}") for name in tried) else words.NAMES
        for canonical, native, *axes in rows:
            yield Decision("weight", f"{component}.{canonical}", " ".join((native, *map(repr, axes))), why)
    for name in [name for name in open_ if name.startswith(("axes of", "order of", "missing "))]:
        yield Decision("weight", name.removeprefix("missing "), open_[name], words.UNDECIDED, True)
    if "failure" in open_:
        yield Decision("output", "return", open_["failure"], words.UNDECIDED, True)
    for leaf in draft.match.left:
        yield Decision("weight", leaf.path, f"shape {leaf.shape}", words.NO_COUNTERPART, True)
    for leaf in draft.match.unpaired:
        yield Decision("weight", leaf.path, "None", words.UNPAIRED)
    for name, value in draft.config(draft.selection).items():
        yield one("config", name, repr(value), words.FIELD)
    if draft.output != "output" or draft.form:
        yield Decision("output", "return", draft.output, words.other_form(draft.form) if draft.form else words.SHAPE)
    if draft.refused:
        yield Decision("dtypes", "float64", words.only(draft.dtypes), draft.refused)


def undecided(draft: Draft) -> dict[str, str]:
    """Returns what is missing or open, by name, described with its candidates."""
    found = {"failure": words.fails(draft.failure)} if draft.failure else {}
    found |= {f"missing {name}": words.lacks(name) for name in draft.missing}
    for choice in draft.choices:
        likely = choice.read and choice.value(draft.selection) == choice.values[0]
        found |= {choice.name: _candidates(draft, choice)} if choice.name in draft.undecided and not likely else {}
    guessed = {} if draft.verified else {name: draft.fixed[name] for name in GUESSED if name in draft.fixed}
    for name, value in guessed.items():
        others = [not value] if isinstance(value, bool) else [other for other in POSITIONS if other != value]
        found[name] = " or ".join(map(str, (value, *others)))
    return found


def _candidates(draft: Draft, choice: Choice) -> str:
    found = list(dict.fromkeys(said(draft, choice, value) for value in choice.values))
    return " or ".join(found[:3]) + " or ..." * (len(found) > 3) + draft.undecided[choice.name]
