"""`new-port --from`: proposes the port of a user's class from its constructor, its parameters and its arguments."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reference_numpy.config import POSITIONS
from reference_numpy.suggestions import known

from ...files.checkpoints.hugging_face import FAMILIES
from .component_inputs import INPUTS, has_norms
from .draft import Choice, Draft
from .drafting import drafted
from .failures import TooLong, failure, quiet
from .port_text import UNPAIRED, written
from .source import loaded
from .trying import decide, said

_OF_FAMILIES = (
    "norm",
    "norm_placement",
    "query_key_norm",
    "norm_one_plus_scale",
    "gated_feed_forward",
    "positions",
)  # fields that tell families apart


@dataclass(frozen=True)
class Proposal:
    """A port's file: its text, what is left to be decided, remarks about it, and the family of models that it is a part of, if any."""

    component: str
    text: str
    left: tuple[str, ...]
    notes: tuple[str, ...] = ()
    family: str = ""


def propose(source: str, file: str, component: str = "", framework: str = "", given: Mapping[str, str] | None = None) -> Proposal:
    """Returns the port of `my_model.py:Model`, to be written into `file`.

    component: its counterpart in the reference; found by its parameters if not given. framework: the required one. given: constructor
    arguments by name.
    Raises ValueError if it cannot be loaded or built, is not a module of a framework, or is not a known component.
    """
    if component:
        known("component", [component], INPUTS)
    try:
        with quiet(), loaded(source) as found:
            draft = drafted(found, component, framework, given or {})
            if not draft.failure and not draft.missing and not draft.match.rest:
                decide(draft)
            problems = _open(draft)
            text = written(draft, draft.selection, file, problems)
    except (ValueError, KeyboardInterrupt):
        raise
    except TooLong as error:
        raise ValueError(f"no port of {source} can be proposed: {error}") from error
    except BaseException as error:  # whatever else the user's code raises
        raise ValueError(f"no port of {source} can be proposed: {failure(error)}") from error
    left = [*problems.values(), *(f"{leaf.path} of shape {leaf.shape} has no counterpart" for leaf in draft.match.rest)]
    left += [f"the argument {name} has no counterpart" for name in draft.call.unknown]
    return Proposal(draft.component, text, tuple(left), tuple(_notes(draft)), _family(draft))


def _family(draft: Draft) -> str:
    """Returns the first family of models whose choices are the module's; empty if none is, or if the module shows too few."""
    found = draft.config(draft.selection)
    own = {name: found[name] for name in _OF_FAMILIES if name in found}
    if not draft.is_modern or not has_norms(draft.component):
        return ""
    return next((name for name, family in FAMILIES.items() if all(family.fixed.get(field, own[field]) == own[field] for field in own)), "")


def _notes(draft: Draft) -> Iterator[str]:
    """Yields the remarks about a proposal, even one that leaves nothing open."""
    if draft.refused:
        yield f"proposed in {', '.join(draft.dtypes)} alone; in float64: {draft.refused}"
    if draft.form:
        yield f"the output is {draft.form} the logits, by which it differs from the reference"
    if biases := [leaf.path for leaf in draft.match.unpaired]:
        yield f"{', '.join(biases[:3])}{', ...' * (len(biases) > 3)} {UNPAIRED}"


def _open(draft: Draft) -> dict[str, str]:
    """Returns what is missing or undecided, by name: in words, with the candidates."""
    found = {"failure": f"the module does not run: {draft.failure}"} if draft.failure else {}
    found |= {f"missing {name}": f"the module has no {name}" for name in draft.missing}
    doubted = [one for one in draft.choices if one.name in draft.undecided and not (one.read and draft.selection.get(one.name, 0) == 0)]
    found |= {choice.name: _candidates(draft, choice) for choice in doubted}
    if not draft.verified:
        found |= {name: f"{name}: {' or '.join(map(str, _either(draft.fixed[name])))}" for name in draft.shown if name in draft.fixed}
    return found


def _either(value: Any) -> tuple[Any, ...]:
    """Returns a field's value, and the others that it may have."""
    return (value, not value) if isinstance(value, bool) else (value, *(other for other in POSITIONS if other != value))


def _candidates(draft: Draft, choice: Choice) -> str:
    found = list(dict.fromkeys(said(draft, choice, value) for value in choice.values))
    text = f"{choice.name}: " * (not choice.name.startswith("argument")) + " or ".join(found[:3]) + " or ..." * (len(found) > 3)
    return text + draft.undecided[choice.name]
