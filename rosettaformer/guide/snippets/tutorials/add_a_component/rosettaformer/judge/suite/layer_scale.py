"""Cases of LayerScale."""

from collections.abc import Iterator

from ..case import Case
from .build import Builder


def cases(build: Builder) -> Iterator[Case]:
    """Yields ordinary inputs, as many positions as features, and one position."""
    some = build.config()
    for name, letters in (("plain", "b t d"), ("square", "b d d"), ("one_position", "1 1 d")):
        yield build.make("layer_scale", name, some, "LSC1", release=1, x_btd=letters, y_btd=letters)
