"""What a setting is: an alteration that is one's choice, with one fix for every framework."""

from collections.abc import Callable

from ..reference.components import COMPONENTS
from .defect import Defect

__all__ = ["setting"]


def setting(id_: str, component: str, title: str, fix: str, altered: Callable, *places: str, elsewhere: str = "") -> Defect:
    """The setting that alters these functions of the reference; the component's own where none is named. elsewhere: as of a defect."""
    replaces = dict.fromkeys(places or (f"{COMPONENTS[component][0]}.{component}",), altered)
    return Defect(
        id=id_, title=title, component=component, what=title, torch=fix, tf=fix, jax=fix, elsewhere=elsewhere, replaces=replaces,
    )  # fmt: skip
