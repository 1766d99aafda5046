"""`new-port --from`: writes a port for a user's class, derived from its parameters and arguments."""

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
)  # fields that distinguish families


@dataclass(frozen=True)
class Proposal:
    """A proposed port file: its text, its decisions, and the class's model family, if any."""

    component: str
    text: str
    decisions: tuple[Decision, ...]
    family: str = ""

    @property
    def left(self) -> tuple[Decision, ...]:
        """The decisions left to the user."""
        return tuple(one for one in self.decisions if one.is_open)


def propose(source: str, file: str, component: str = "", framework: str = "", given: Mapping[str, str] | None = None) -> Proposal:
    """Returns the port of `my_model.py:Model`, to be written to `file`.

    component: the component that the class implements; by default derived from its parameters.
    framework: the required framework, if any. given: constructor arguments by name.

    Raises ValueError if the class cannot be loaded or built, is not a module of a framework, or
    matches no component.
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
        raise ValueError(f"cannot write a port of {source}: {error}") from error
    except BaseException as error:  # anything else that the user's code raises
        raise ValueError(f"cannot write a port of {source}: {failure(error)}") from error
    return Proposal(draft.component, text, tuple(decisions(draft, left)), _family(draft))


def _family(draft: Draft) -> str:
    """Returns the first model family that makes the module's choices; "" if there is none."""
    found = draft.config(draft.selection)
    own = {name: found[name] for name in _OF_FAMILIES if name in found}
    if not draft.is_modern or not has_norms(draft.component):
        return ""
    return next((name for name, family in FAMILIES.items() if all(family.fixed.get(field, own[field]) == own[field] for field in own)), "")
