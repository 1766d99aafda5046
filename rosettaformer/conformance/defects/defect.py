"""What a defect is, and the commonest alterations of a function: of what it is given, and of what it returns."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Defect", "on_arguments", "on_call", "on_result"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Defect:
    """A real mistake of ports, as an alteration of the reference; one that is equal is the same object.

    component: that of the first function that it replaces, where no other is named. what: what is computed instead, with the formula.
    shows: how it shows, and which input reveals it. torch, tf, jax: its fix in that framework. evidence: where it was made. replaces:
    `module.function` of reference_numpy (a name of more parts is a whole one) -> the altered function, which takes the function that it
    replaces first, then that function's arguments under the same names. dtypes: where it shows. rounding: it alters how these dtypes
    round, and nothing in float64. random: it draws at random, so that two evaluations of one input differ.
    unobservable: why no output can reveal it; empty for a defect that the cases must catch.
    """

    id: str
    title: str
    component: str = ""
    replaces: Mapping[str, Callable]
    what: str
    shows: str = ""
    torch: str
    tf: str
    jax: str
    evidence: str = ""
    dtypes: tuple[str, ...] = ("float32",)
    rounding: bool = False
    random: bool = False
    unobservable: str = ""

    def __post_init__(self) -> None:
        if not self.component:
            object.__setattr__(self, "component", next(iter(self.replaces)).rpartition(".")[2])

    @property
    def fix(self) -> dict[str, str]:
        """The fix by framework."""
        return {"torch": self.torch, "tf": self.tf, "jax": self.jax}


def on_call(change: Callable[..., Mapping[str, Any]]) -> Callable:
    """The function with other arguments: those that `change` returns by name, given all of them, defaults among them, by name."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        given = inspect.signature(original).bind(*args, **options)
        given.apply_defaults()
        given.arguments |= change(**given.arguments)
        return original(*given.args, **given.kwargs)

    return altered


def on_arguments(**changes: Any) -> Callable:
    """The function with these arguments: each is a value, or a function of the argument that is given."""
    return on_call(lambda **given: {name: change(given[name]) if callable(change) else change for name, change in changes.items()})


def on_result(change: Callable[[Any], Any]) -> Callable:
    """The function whose result is changed."""
    return lambda original, *args, **options: change(original(*args, **options))
