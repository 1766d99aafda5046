"""Alterations of the reference, how they are injected, and helpers that change arguments or
results.

An alteration applies to every call of the functions it replaces, or to the calls in one part of the
model.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ..case import Case
from ..expectation import calls, components
from ..expectation.components import COMPONENTS
from ..expectation.patching import Replaces, patched, signature
from ..expectation.paths import KINDS, Paths

SUBLAYERS = {"layers.self_attention": "self_attention", "layers.cross_attention": "cross_attention", "layers.network": "feed_forward"}


@dataclass(frozen=True)
class Site:
    """One call of a reference function: the calling component's path and the names of the layers of
    each stack.

    For functions in `layers` that take a sub-layer's name, the path ends in that name.
    """

    path: str
    layers: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = ()

    @property
    def paths(self) -> list[str]:
        """The path, then the path with each name of its layer (`last`, `local`) for the index."""
        found = [self.path]
        for stack, layers in self.layers:
            before = f"{stack}.layers." if stack else "layers."
            if self.path.startswith(before):
                index, dot, rest = self.path.removeprefix(before).partition(".")
                found += [f"{before}{name}{dot}{rest}" for name in layers[int(index)]]
        return found


@dataclass(frozen=True)
class Place:
    """A part of a model, such as `encoder`, `decoder.layers.*.cross_attention`,
    `decoder.layers.last` or `decoder.layers.local`.

    `**` matches any prefix of a path; the empty pattern is the whole model.
    """

    pattern: str = ""

    def holds(self, site: Site) -> bool:
        """Returns whether the call site is in this part."""
        return _held(self.pattern, site)

    @property
    def of_kind(self) -> bool:
        """Whether it contains the layers of a kind, such as those with a window."""
        return _named(self.pattern.split(".")) in KINDS

    def __str__(self) -> str:
        return self.pattern.replace("**.", "every ")


def _site(paths: Paths, function: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Site:
    """Returns the site of a call of `module.function`, given the paths of the current run."""
    given = (*args, *options.values())
    name = next((value for value in given if isinstance(value, str)), "") if function.startswith("layers.") else ""
    name = SUBLAYERS.get(function, name)
    return Site(".".join(filter(None, (paths.current, name))), tuple(paths.layers.items()))


def sites(case: Case, functions: Iterable[str]) -> dict[str, list[Site]]:
    """Returns the call sites of these `module.function`s when the reference runs a case.

    Functions that are never called have no entry.
    """
    paths, found = Paths(), defaultdict(list)

    def recorded(function: str, original: Callable, *args: Any, **options: Any) -> Any:
        found[function].append(_site(paths, function, args, options))
        return original(*args, **options)

    with patched({function: functools.partial(recorded, function) for function in functions}), paths.followed():
        components.answer(case)
    return found


def limited(altered: Callable, function: str, place: Place, paths: Paths) -> Callable:
    """Applies the altered function to calls at the place and the original to all other calls."""

    def there(original: Callable, *args: Any, **options: Any) -> Any:
        if place.holds(_site(paths, function, args, options)):
            return altered(original, *args, **options)
        return original(*args, **options)

    return there


def places(sites: Iterable[Iterable[Site]]) -> list[Place]:
    """Returns the places that separate some of a function's sites from the others, widest first.

    Of places with the same sites, only the first is returned. sites: one sequence per run.
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
    """Yields the patterns of all places that contain the site."""
    for path in one.paths:
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            prefix = parts[:end]
            yield ".".join(prefix)
            yield ".".join("*" if index and prefix[index - 1] == "layers" else part for index, part in enumerate(prefix))
            if prefix[-1] != "layers" and prefix[-2:-1] != ["layers"]:
                yield f"**.{prefix[-1]}"


@functools.cache
def _held(pattern: str, site: Site) -> bool:
    return any(_within(pattern.split("."), path.split(".")) for path in site.paths)


def _width(pattern: str) -> tuple[int, bool, int, bool]:
    """The sort key of a pattern; patterns that match more come first."""
    parts = pattern.split(".")
    return (len(parts) - (parts[0] == "**"), parts[0] == "**", -parts.count("*"), bool(_named(parts)))


def _named(parts: list[str]) -> str:
    """The name by which a pattern selects layers; empty if it has none or an index."""
    names = (part for before, part in itertools.pairwise(parts) if before == "layers" and part != "*" and not part.isdigit())
    return next(names, "")


def _within(pattern: list[str], path: list[str]) -> bool:
    if pattern[0] == "**":
        return any(_within(pattern[1:], path[start:]) for start in range(len(path)))
    return len(pattern) <= len(path) and all(wanted in ("*", part) for wanted, part in zip(pattern, path, strict=False))


Array = np.ndarray
Altered = Mapping[str, Replaces]  # id of a known bug -> the functions it replaces
Variants = Mapping[str, Mapping[str, Replaces]]  # id -> title of a variant -> the functions it replaces
FRAMEWORKS = ("torch", "tf", "jax")
# where to look if the code is already correct
LOADED = "the weights are loaded this way: check the rows of `weights`, or the code that fills them"
CONFIGURED = "the model does not match `config`: correct the entry in `config`"


@dataclass(frozen=True, kw_only=True, eq=False)
class Alteration:
    """A change to what the reference computes. Compares by identity.

    component: the component that changes. replaces: the replaced functions, as `patched` takes
    them. fix: the correct code per framework. elsewhere: where the bug is if the code already
    matches the fix; empty if nowhere else. dtypes: the dtypes in which it shows. rounding: it only
    changes how these dtypes round, nothing in float64. random: its outputs are random, so two
    evaluations differ. undetermined: the title of the variant whose output may be rounding
    error alone, and is then ignored. family: a description shared with bugs that few cases
    distinguish from it. variants: title -> replaced functions, for the same bug in other forms.
    variant: the title if this is a variant, otherwise empty. place: where in a model it applies; None for everywhere. of_case: returns the
    alteration for a case, if it depends on the case. reads: returns the case that the reference
    computes instead of a case. generated: what it is, if it is derived from runs of the reference.
    writes: whether it may write into the arrays that it is given.
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
    undetermined: str = ""
    family: str = ""
    variants: Mapping[str, Replaces] = field(default_factory=dict)
    variant: str = ""
    place: Place | None = None
    of_case: Callable[[Case], "Alteration"] | None = None
    reads: Callable[[Case], Case] | None = None
    generated: str = ""
    writes: ClassVar[bool] = False

    @functools.cached_property
    def hypotheses(self) -> tuple["Alteration", ...]:
        """The alteration itself, then each variant under its own title and the same id."""
        variants = self.variants.items()
        return self, *(dataclasses.replace(self, title=name, variant=name, replaces=altered, variants={}) for name, altered in variants)

    def on(self, case: Case) -> "Alteration":
        """Returns the alteration for a case."""
        return dataclasses.replace(self.of_case(case), place=self.place) if self.of_case else self

    @property
    def ill_conditioned(self) -> bool:
        """Whether its output may be rounding error alone."""
        return bool(self.undetermined) and self.variant == self.undetermined

    @property
    def followed(self) -> bool:
        """Whether it depends on the current place in the model."""
        return self.place is not None

    def altering(self, paths: Paths) -> contextlib.AbstractContextManager[None]:
        """Patches the reference with the alteration. paths: tracks the place in the model."""
        if self.place is None:
            return patched(self.replaces)
        return patched({name: limited(altered, name, self.place, paths) for name, altered in self.replaces.items()})

    @property
    def name(self) -> str:
        """The id, the title and the place."""
        return f"{self.id} ({self.title})" + (f" only in {self.place}" if self.place else "")


def setting(id_: str, component: str, title: str, fix: str, altered: Callable, *places: str, elsewhere: str = "") -> Alteration:
    """Returns an alteration of the functions in `places` (default: the component's own)."""
    replaces = dict.fromkeys(places or (f"{COMPONENTS[component].module}.{component}",), altered)
    fixes = dict.fromkeys(FRAMEWORKS, fix)
    return Alteration(id=id_, title=title, component=component, fix=fixes, elsewhere=elsewhere, replaces=replaces)


def reading(id_: str, component: str, title: str, fix: str, reads: Callable[[Case], Case], generated: str = "") -> Alteration:
    """Returns an alteration of the case that the reference computes."""
    fixes = dict.fromkeys(FRAMEWORKS, fix)
    return Alteration(id=id_, title=title, component=component, fix=fixes, replaces={}, reads=reads, generated=generated)


def settings(
    prefix: str, component: str, fix: str, rows: Mapping[str, tuple[str, Any]], *places: str,
    of: Callable[[Any], Callable] = lambda altered: altered,
) -> Iterator[Alteration]:  # fmt: skip
    """Yields one setting per row: id suffix -> (title, the argument from which `of` makes the
    altered function).

    prefix: prefix of the ids.
    """
    for name, (title, value) in rows.items():
        yield setting(f"{prefix}{name}", component, title, fix, of(value), *places)


@contextlib.contextmanager
def injected(*alterations: Alteration) -> Iterator[None]:
    """Patches the reference with these alterations; later ones wrap earlier ones."""
    paths = Paths()
    with contextlib.ExitStack() as stack:
        for one in alterations:
            stack.enter_context(one.altering(paths))
        if any(one.followed for one in alterations):
            stack.enter_context(paths.followed())
        yield


def bound(original: Callable, *args: Any, **options: Any) -> dict[str, Any]:
    """Returns the arguments of a call by name, including defaults.

    Grouped values are unfolded into fields (see `calls.unfolded`), a mask into its boolean mask and
    its bias.
    """
    given = signature(original).bind(*args, **options)
    given.apply_defaults()
    found = calls.unfolded(given.arguments)
    if "mask_bhts" in found:
        found["mask_bhts"], found["bias_bhts"] = calls.parted(found["mask_bhts"])
    return found


def called(original: Callable, **given: Any) -> Any:
    """Calls the function with arguments as returned by `bound`, possibly changed."""
    declared = {name: one.default for name, one in signature(original).parameters.items()}
    if "bias_bhts" in given:
        given["mask_bhts"] = calls.joined(given["mask_bhts"], given.pop("bias_bhts"))
    return original(**calls.folded(declared, given))


def on_call(change: Callable[..., Mapping[str, Any]]) -> Callable:
    """Changes arguments: `change` takes all by name (see `bound`) and returns new ones."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        given = bound(original, *args, **options)
        return called(original, **given | dict(change(**given)))

    return altered


def on_arguments(**changes: Any) -> Callable:
    """Replaces these arguments, each by a value or by a function of the original argument."""
    return on_call(lambda **given: {name: change(given[name]) if callable(change) else change for name, change in changes.items()})


def on_result(change: Callable[[Any], Any]) -> Callable:
    """Applies a function to the result."""
    return lambda original, *args, **options: change(original(*args, **options))
