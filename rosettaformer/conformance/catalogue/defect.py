"""What a defect is, and the commonest alterations of a function: of what it is given, and of what it returns."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..case import Case
from ..reference.paths import Paths
from .place import Place, limited, replaced

__all__ = ["CONFIGURED", "LOADED", "Defect", "bound", "on_arguments", "on_call", "on_result"]

# where a mistake may be whose code is right
LOADED = "the parameters are loaded so; compare the rows of `weights`, or what fills them"
CONFIGURED = "the model is built otherwise than `config` says; declare there what it has"


@dataclass(frozen=True, kw_only=True, eq=False)
class Defect:
    """A real mistake of ports, as an alteration of the reference; one that is equal is the same object.

    component: that of the first function that it replaces, where no other is named. what: what is computed instead, with the formula.
    shows: how it shows, and which input reveals it. torch, tf, jax: its fix in that framework. elsewhere: where the mistake is if the code
    is as the fix says already; empty where it is nowhere else. evidence: where it was made. replaces:
    `module.function` of reference_numpy (a name of more parts is a whole one) -> the altered function, which takes the function that it
    replaces first, then that function's arguments under the same names. dtypes: where it shows. rounding: it alters how these dtypes
    round, and nothing in float64. random: it draws at random, so that two evaluations of one input differ. undetermined: it may leave
    an answer to rounding alone, where it says nothing. place: where in a model it is, everywhere where none is given.
    family: what is computed with it and with those from which few cases tell it.
    unobservable: why no output can reveal it; empty for a defect that the cases must catch.
    variants: the same mistake as others make it: a title -> what it replaces instead. variant: in one of them its title; otherwise empty.
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
    elsewhere: str = ""
    evidence: str = ""
    dtypes: tuple[str, ...] = ("float32",)
    rounding: bool = False
    random: bool = False
    undetermined: bool = False
    family: str = ""
    unobservable: str = ""
    variants: Mapping[str, Mapping[str, Callable]] = field(default_factory=dict)
    variant: str = ""
    place: Place | None = None

    def __post_init__(self) -> None:
        if not self.component:
            object.__setattr__(self, "component", next(iter(self.replaces)).rpartition(".")[2])

    @functools.cached_property
    def hypotheses(self) -> tuple["Defect", ...]:
        """The defect itself, then each of its variants: a defect of the same id, under its own title."""
        variants = self.variants.items()
        return self, *(dataclasses.replace(self, title=name, variant=name, replaces=altered, variants={}) for name, altered in variants)

    def on(self, case: Case) -> "Defect":
        """The alteration on a case: itself, unless it is another one on every case."""
        return self

    @property
    def followed(self) -> bool:
        """Whether it must be known where in a model the run is."""
        return self.place is not None

    @contextlib.contextmanager
    def altering(self, paths: Paths) -> Iterator[None]:
        """The reference with the alteration in it. paths: says where the run is."""
        with contextlib.ExitStack() as stack:
            for function, altered in self.replaces.items():
                there = altered if self.place is None else limited(altered, function, self.place, paths)
                stack.enter_context(replaced(function, functools.partial(_with_its_signature, there)))
            yield

    @property
    def name(self) -> str:
        """The id and the title, and where it is."""
        return f"{self.id} ({self.title})" + (f" in {self.place} alone" if self.place else "")

    @property
    def fix(self) -> dict[str, str]:
        """The fix by framework."""
        return {"torch": self.torch, "tf": self.tf, "jax": self.jax}


def bound(original: Callable, *args: Any, **options: Any) -> dict[str, Any]:
    """All arguments of a call by name, defaults among them."""
    given = inspect.signature(original).bind(*args, **options)
    given.apply_defaults()
    return dict(given.arguments)


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


def _with_its_signature(altered: Callable, original: Callable) -> Callable:
    return functools.update_wrapper(functools.partial(altered, original), original)
