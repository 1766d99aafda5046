"""`new-port --from`: proposes the port of a user's class from its constructor, its parameters and its arguments."""

from collections.abc import Mapping
from dataclasses import dataclass

from reference_numpy.suggestions import known

from ...files.checkpoints.hugging_face import FAMILIES
from .components import COMPONENTS, has_norms
from .decisions import Decision, decisions, undecided
from .draft import Draft
from .drafting import drafted
from .port_text import written
from .trying import decide
from .user_code import TooLong, failure, loaded, quiet

__all__ = ["Decision", "Proposal", "propose"]
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
    """A port's file: its text, the decisions that it makes, and the family of models that it is a part of, if any."""

    component: str
    text: str
    decisions: tuple[Decision, ...]
    family: str = ""

    @property
    def left(self) -> tuple[Decision, ...]:
        """What is left to be decided."""
        return tuple(one for one in self.decisions if one.is_open)


def propose(source: str, file: str, component: str = "", framework: str = "", given: Mapping[str, str] | None = None) -> Proposal:
    """Returns the port of `my_model.py:Model`, to be written into `file`.

    component: its counterpart in the reference; found by its parameters if not given. framework: the required one. given: constructor
    arguments by name.
    Raises ValueError if it cannot be loaded or built, is not a module of a framework, or is not a known component.
    """
    if component:
        known("component", [component], COMPONENTS)
    try:
        with quiet(), loaded(source) as found:
            draft = drafted(found, component, framework, given or {})
            if not draft.failure and not draft.missing and not draft.match.left:
                decide(draft)
            left = undecided(draft)
            text = written(draft, draft.selection, file, left)
    except (ValueError, KeyboardInterrupt):
        raise
    except TooLong as error:
        raise ValueError(f"no port of {source} can be proposed: {error}") from error
    except BaseException as error:  # whatever else the user's code raises
        raise ValueError(f"no port of {source} can be proposed: {failure(error)}") from error
    return Proposal(draft.component, text, tuple(decisions(draft, left)), _family(draft))


def _family(draft: Draft) -> str:
    """Returns the first family of models whose choices are the module's; empty if none is, or if the module shows too few."""
    found = draft.config(draft.selection)
    own = {name: found[name] for name in _OF_FAMILIES if name in found}
    if not draft.is_modern or not has_norms(draft.component):
        return ""
    return next((name for name, family in FAMILIES.items() if all(family.fixed.get(field, own[field]) == own[field] for field in own)), "")
