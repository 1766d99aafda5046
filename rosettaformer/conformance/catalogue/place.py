"""Where in a model an alteration applies: to every call of the functions that it replaces, or to the calls within a part of the model."""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..case import Case
from ..reference import components
from ..reference.patching import Paths, patched

LAST = "last"


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
    name = "feed_forward" if function == "layers._feed_forward" else name
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
