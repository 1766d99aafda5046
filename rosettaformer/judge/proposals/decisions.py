"""What a proposal decides, and what it leaves open: one decision for each argument, parameter and config field."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from reference_numpy.config import POSITIONS

from .config_fields import GUESSED
from .draft import Choice, Draft
from .port_text import UNPAIRED
from .trying import said
from .weight_tables import tables_of

NO_COUNTERPART = "has no counterpart"


@dataclass(frozen=True)
class Decision:
    """One decision of a proposal.

    kind: what it is about: an argument of the "constructor" or of the "call", a parameter ("weight"), a field of the "config", "dtypes",
    the "output". name: of that. value: what it is; the candidates, if that is left open. why: what shows it.
    """

    kind: str
    name: str
    value: str
    why: str
    is_open: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.value} ({self.why})"


def decisions(draft: Draft, open_: Mapping[str, str]) -> Iterator[Decision]:
    """Yields every decision. open_: what is left open, by name."""
    tried = {**dict.fromkeys(draft.nearest, "tried: the nearest"), **dict.fromkeys(draft.tried, "tried: matches the reference")}

    def one(kind: str, name: str, value: str, usual: str, choice: str = "") -> Decision:
        choice = choice or name
        if choice in open_:
            return Decision(kind, name, open_[choice], "undecided", True)
        return Decision(kind, name, value, tried.get(choice, usual))

    for name, text in draft.construction.arguments.items():
        yield Decision("constructor", name, text, "--with" if name in draft.construction.given else "its name")
    for name, text in draft.given(draft.selection).items():
        yield one("call", name, text, "its name or its place", f"argument {name}")
    for name in draft.call.unknown:
        yield Decision("call", name, "None", NO_COUNTERPART, True)
    for component, rows in tables_of(draft.root(draft.selection)).items():
        why = "names, shapes and trying" if any(name.endswith(f" of {component}") for name in tried) else "names and shapes"
        for canonical, native, *axes in rows:
            yield Decision("weight", f"{component}.{canonical}", " ".join((native, *map(repr, axes))), why)
    for name in [name for name in open_ if name.startswith(("axes of", "order of", "missing "))]:
        yield Decision("weight", name.removeprefix("missing "), open_[name], "undecided", True)
    if "failure" in open_:
        yield Decision("output", "return", open_["failure"], "undecided", True)
    for leaf in draft.match.left:
        yield Decision("weight", leaf.path, f"shape {leaf.shape}", NO_COUNTERPART, True)
    for leaf in draft.match.unpaired:
        yield Decision("weight", leaf.path, "None", UNPAIRED)
    for name, value in draft.config(draft.selection).items():
        yield one("config", name, repr(value), "the constructor or the parameters")
    if draft.output != "output" or draft.form:
        form = f"{draft.form} the logits, by which it differs from the reference" * bool(draft.form)
        yield Decision("output", "return", draft.output, form or "its shape")
    if draft.refused:
        yield Decision("dtypes", "float64", f"left out: {', '.join(draft.dtypes)} alone", draft.refused)


def undecided(draft: Draft) -> dict[str, str]:
    """Returns what is missing or open, by name: in words, with the candidates."""
    found = {"failure": f"the module does not run: {draft.failure}"} if draft.failure else {}
    found |= {f"missing {name}": f"the module has no {name}" for name in draft.missing}
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
