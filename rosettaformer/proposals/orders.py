"""What is open about names and axes: layouts, and what only the order of declaration told apart."""

import itertools
from collections.abc import Iterator

from .draft import Choice, Draft
from .parts import Part


def choices_of(draft: Draft) -> Iterator[Choice]:
    """Yields what is open about names and axes: layouts, and what only the order of declaration told apart."""
    seen: set[str] = set()
    for part in _parts(draft.match.root):
        shows = {"multi_head_attention": "attention", "feed_forward": "feed_forward"}.get(part.component, "norms")
        layouts = max((len(row.axes) for row in part.rows), default=1)
        if layouts > 1 and f"axes of {part.component}" not in seen:
            seen.add(f"axes of {part.component}")
            yield Choice(f"axes of {part.component}", tuple(range(layouts)), shows)
        roles = [name.partition(".")[0] for name in part.ordered if name.endswith("kernel")]
        fused = [row.name.partition(".")[0] for row in part.rows if "/3" in row.axes[0] and row.name.endswith("kernel")]
        roles = roles or fused
        if len(roles) > 1 and f"order of {part.component}" not in seen:
            seen.add(f"order of {part.component}")
            orders = tuple(tuple(zip(roles, order, strict=True)) for order in itertools.permutations(roles))
            yield Choice(f"order of {part.component}", orders, shows)
        slots = [name for name in part.ordered if name.endswith("_norm")]
        if len(slots) > 1 and f"order of norms of {part.component}" not in seen:
            seen.add(f"order of norms of {part.component}")
            orders = tuple(tuple(zip(slots, order, strict=True)) for order in itertools.permutations(slots))
            yield Choice(f"order of norms of {part.component}", orders, "norms")


def _parts(part: Part) -> Iterator[Part]:
    yield part
    for child in part.parts:
        yield from _parts(child)
