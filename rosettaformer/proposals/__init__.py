"""`new-port --from`: the port of a user's class, proposed from its constructor, its parameters and its arguments."""

from collections.abc import Mapping
from dataclasses import dataclass

from reference_numpy import TransformerConfig, preset
from reference_numpy.suggestions import known

from .draft import Choice, Draft, missing
from .drafting import drafted
from .inputs import INPUTS
from .source import loaded
from .trying import decide, said, start
from .writing import written

__all__ = ["Proposal", "propose"]


@dataclass(frozen=True)
class Proposal:
    """A port's file: its text, and what is left to be decided."""

    component: str
    text: str
    left: tuple[str, ...]


def propose(source: str, file: str, component: str = "", framework: str = "", given: Mapping[str, str] | None = None) -> Proposal:
    """The port of `my_model.py:Model`, to be written into `file`.

    component: what it is of the reference; found by its parameters where it is not given. framework: what it must be of. given: constructor
    arguments by name.
    Raises ValueError where it cannot be loaded or built, is no module of a framework, or is no component that is known here.
    """
    if component:
        known("component", [component], INPUTS)
    with loaded(source) as found:
        draft = drafted(found, component, framework, given or {})
        problems = _open(draft)
        if not problems and not draft.match.rest and not draft.call.unknown:
            problems = _tried(draft)
        text = written(draft, draft.settings, file, problems)
    left = [*problems.values(), *(f"{leaf.path} of shape {leaf.shape} has no counterpart" for leaf in draft.match.rest)]
    left += [f"the argument {name} has no counterpart" for name in draft.call.unknown]
    return Proposal(draft.component, text, tuple(left))


def _open(draft: Draft) -> dict[str, str]:
    """What is missing, by name."""
    config = _config(draft)
    return {f"missing {name}": f"the module has no {name}" for name in missing(draft, config)}


def _config(draft: Draft) -> TransformerConfig:
    return preset("semillero", **{**draft.sizes, **draft.config(draft.settings)})


def _tried(draft: Draft) -> dict[str, str]:
    """Decides what can be decided by trying; what is left, by name, with the candidates."""
    start(draft)
    decide(draft)
    return {choice.name: _candidates(draft, choice) for choice in draft.choices if choice.name in draft.undecided}


def _candidates(draft: Draft, choice: Choice) -> str:
    found = list(dict.fromkeys(said(draft, choice, value) for value in choice.values))
    return f"{choice.name}: " * (not choice.name.startswith("argument")) + " or ".join(found[:3]) + " or ..." * (len(found) > 3)
