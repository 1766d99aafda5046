"""Alterations of the reference, their injection into it, and the commonest: of arguments, and of results.

An alteration applies to every call of the functions that it replaces, or to the calls within a part of the
model.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..case import Case
from ..expectation import calls, components
from ..expectation.components import COMPONENTS
from ..expectation.patching import Replaces, patched
from ..expectation.paths import Paths

LAST = "last"
SUBLAYERS = {"layers.self_attention": "self_attention", "layers.cross_attention": "cross_attention", "layers.network": "feed_forward"}


@dataclass(frozen=True)
class Site:
    """One call of a function of the reference: the path of the component that calls it, and the number of layers of every stack.

    The path of a function of the layers that takes the name of a sub-layer ends in that name.
    """

    path: str
    layers: tuple[tuple[str, int], ...] = ()

    @property
    def last(self) -> str:
        """The path with `last` for the index of a stack's last layer."""
        parts = self.path.split(".")
        for stack, count in self.layers:
            index = len(stack.split(".")) * bool(stack) + 1
            if self.path.startswith(f"{stack}.layers." if stack else "layers.") and parts[index] == str(count - 1):
                parts[index] = LAST
        return ".".join(parts)


@dataclass(frozen=True)
class Place:
    """A part of a model: `encoder`, `decoder.layers.*.cross_attention`, `decoder.layers.last`; `**` matches any beginning of a path.

    The empty pattern is the whole model.
    """

    pattern: str = ""

    def holds(self, site: Site) -> bool:
        """Whether the site is within this part."""
        return _held(self.pattern, site)

    def __str__(self) -> str:
        return self.pattern.replace("**.", "every ")


def _site(paths: Paths, function: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Site:
    """Where a call of `module.function` is; the paths are those of the run."""
    given = (*args, *options.values())
    name = next((value for value in given if isinstance(value, str)), "") if function.startswith("layers.") else ""
    name = SUBLAYERS.get(function, name)
    return Site(".".join(filter(None, (paths.current, name))), tuple(paths.layers.items()))


def sites(case: Case, functions: Iterable[str]) -> dict[str, list[Site]]:
    """The calls of these functions, `module.function`, in the reference's run on a case; functions that are not called are left out."""
    paths, found = Paths(), defaultdict(list)

    def recorded(function: str, original: Callable, *args: Any, **options: Any) -> Any:
        found[function].append(_site(paths, function, args, options))
        return original(*args, **options)

    with patched({function: functools.partial(recorded, function) for function in functions}), paths.followed():
        components.answer(case)
    return found


def limited(altered: Callable, function: str, place: Place, paths: Paths) -> Callable:
    """The altered function for calls at the place; other calls go to the function itself."""

    def there(original: Callable, *args: Any, **options: Any) -> Any:
        if place.holds(_site(paths, function, args, options)):
            return altered(original, *args, **options)
        return original(*args, **options)

    return there


def places(sites: Iterable[Iterable[Site]]) -> list[Place]:
    """The places that separate some of a function's sites from the others, the widest first. Of places with the same sites only the first.

    sites: run by run.
    """
    runs = [list(dict.fromkeys(run)) for run in sites]
    every = frozenset((index, one) for index, run in enumerate(runs) for one in run)
    patterns = sorted(dict.fromkeys(pattern for _, one in sorted(every, key=str) for pattern in _patterns(one)), key=_width)
    found: dict[frozenset[tuple[int, Site]], Place] = {}
    for pattern in patterns:
        place = Place(pattern)
        meant = frozenset(pair for pair in every if place.holds(pair[1]))
        if meant and meant != every:
            found.setdefault(meant, place)
    return list(found.values())


def _patterns(one: Site) -> Iterator[str]:
    """The places that the site is in."""
    for path in (one.path, one.last):
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            prefix = parts[:end]
            yield ".".join(prefix)
            yield ".".join("*" if index and prefix[index - 1] == "layers" else part for index, part in enumerate(prefix))
            if not prefix[-1].isdigit() and prefix[-1] not in ("layers", LAST):
                yield f"**.{prefix[-1]}"


@functools.cache
def _held(pattern: str, site: Site) -> bool:
    return any(_within(pattern.split("."), path.split(".")) for path in {site.path, site.last})


def _width(pattern: str) -> tuple[int, bool, int, bool]:
    """The sort key of a pattern: those that match more come first."""
    parts = pattern.split(".")
    return (len(parts) - (parts[0] == "**"), parts[0] == "**", -parts.count("*"), LAST in parts)


def _within(pattern: list[str], path: list[str]) -> bool:
    if pattern[0] == "**":
        return any(_within(pattern[1:], path[start:]) for start in range(len(path)))
    return len(pattern) <= len(path) and all(wanted in ("*", part) for wanted, part in zip(pattern, path, strict=False))


Array = np.ndarray
Altered = Mapping[str, Replaces]  # what a defect replaces, by its id
Variants = Mapping[str, Mapping[str, Replaces]]  # what its variants do, by its id and their titles
FRAMEWORKS = ("torch", "tf", "jax")
# where a mistake may be whose code is right
LOADED = "the weights are loaded this way: compare the rows of `weights`, or the code that fills them"
CONFIGURED = "the model does not match `config`: correct the entry in `config`"


@dataclass(frozen=True, kw_only=True, eq=False)
class Alteration:
    """A change of what the reference computes. An alteration equals only itself.

    component: the component that computes otherwise. replaces: the functions that do, as `patched` takes them. fix: what is right, by
    framework. elsewhere: where the mistake is if the code is as the fix says already; empty where it is nowhere else. dtypes: where it
    shows. rounding: it alters how these dtypes round, and nothing in float64. random: it draws at random, so that two evaluations of one
    input differ. undetermined: it may leave an answer to rounding, where it says nothing. family: what is computed with it and with those
    from which few cases tell it. variants: the same mistake as others make it: a title -> what it replaces instead. variant: in one of
    them its title; otherwise empty. place: where in a model it is, everywhere if None. of_case: the alteration on a case, if it is another
    one on every case.
    """

    id: str
    title: str
    component: str
    replaces: Replaces
    fix: Mapping[str, str]
    elsewhere: str = ""
    dtypes: tuple[str, ...] = ("float32",)
    rounding: bool = False
    random: bool = False
    undetermined: bool = False
    family: str = ""
    variants: Mapping[str, Replaces] = field(default_factory=dict)
    variant: str = ""
    place: Place | None = None
    of_case: Callable[[Case], "Alteration"] | None = None

    @functools.cached_property
    def hypotheses(self) -> tuple["Alteration", ...]:
        """The alteration itself, then each of its variants: an alteration of the same id, under its own title."""
        variants = self.variants.items()
        return self, *(dataclasses.replace(self, title=name, variant=name, replaces=altered, variants={}) for name, altered in variants)

    def on(self, case: Case) -> "Alteration":
        """The alteration on a case."""
        return dataclasses.replace(self.of_case(case), place=self.place) if self.of_case else self

    @property
    def followed(self) -> bool:
        """Whether it needs to know where in a model the run is."""
        return self.place is not None

    def altering(self, paths: Paths) -> contextlib.AbstractContextManager[None]:
        """The reference with the alteration in it. paths: says where the run is."""
        if self.place is None:
            return patched(self.replaces)
        return patched({name: limited(altered, name, self.place, paths) for name, altered in self.replaces.items()})

    @property
    def name(self) -> str:
        """The id and the title, and where it is."""
        return f"{self.id} ({self.title})" + (f" in {self.place} alone" if self.place else "")


def setting(id_: str, component: str, title: str, fix: str, altered: Callable, *places: str, elsewhere: str = "") -> Alteration:
    """The alteration of these functions, with one fix for every framework; of the component's own function if none is named."""
    replaces = dict.fromkeys(places or (f"{COMPONENTS[component].module}.{component}",), altered)
    fixes = dict.fromkeys(FRAMEWORKS, fix)
    return Alteration(id=id_, title=title, component=component, fix=fixes, elsewhere=elsewhere, replaces=replaces)


def settings(
    prefix: str, component: str, fix: str, rows: Mapping[str, tuple[str, Any]], *places: str,
    of: Callable[[Any], Callable] = lambda altered: altered,
) -> Iterator[Alteration]:  # fmt: skip
    """The settings of a table: of each the end of its id, its title, and what `of` makes the function of.

    prefix: how the ids begin.
    """
    for name, (title, value) in rows.items():
        yield setting(f"{prefix}{name}", component, title, fix, of(value), *places)


@contextlib.contextmanager
def injected(*alterations: Alteration) -> Iterator[None]:
    """The reference with these alterations in it. Of several in one function each alters what those before it left there."""
    paths = Paths()
    with contextlib.ExitStack() as stack:
        for one in alterations:
            stack.enter_context(one.altering(paths))
        if any(one.followed for one in alterations):
            stack.enter_context(paths.followed())
        yield


def bound(original: Callable, *args: Any, **options: Any) -> dict[str, Any]:
    """The arguments of a call by name, including defaults; the fields of its values by themselves, as `calls.unfolded`, and of a mask
    the boolean one and the bias.
    """
    given = inspect.signature(original).bind(*args, **options)
    given.apply_defaults()
    found = calls.unfolded(given.arguments)
    if "mask_bhts" in found:
        found["mask_bhts"], found["bias_bhts"] = calls.parted(found["mask_bhts"])
    return found


def called(original: Callable, **given: Any) -> Any:
    """Calls the function with the arguments that `bound` returns, changed or not."""
    declared = {name: one.default for name, one in inspect.signature(original).parameters.items()}
    if "bias_bhts" in given:
        given["mask_bhts"] = calls.joined(given["mask_bhts"], given.pop("bias_bhts"))
    return original(**calls.folded(declared, given))


def on_call(change: Callable[..., Mapping[str, Any]]) -> Callable:
    """Changes arguments: `change` takes all by name, as `bound`, and returns the new ones by name."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        given = bound(original, *args, **options)
        return called(original, **given | dict(change(**given)))

    return altered


def on_arguments(**changes: Any) -> Callable:
    """Replaces these arguments, each by a value or by a function of the argument that is given."""
    return on_call(lambda **given: {name: change(given[name]) if callable(change) else change for name, change in changes.items()})


def on_result(change: Callable[[Any], Any]) -> Callable:
    """Changes the result."""
    return lambda original, *args, **options: change(original(*args, **options))
