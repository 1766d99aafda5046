"""The sizes of the published models, the same for the libraries that build them."""

import dataclasses
import random


@dataclasses.dataclass(frozen=True)
class Sizes:
    """width: heads times head_size. epsilon: of norms where both libraries let one choose. base: of rotary positions."""

    vocabulary: int = 60
    positions: int = 64
    layers: int = 2
    heads: int = 4
    groups: int = 2
    head_size: int = 6
    hidden: int = 40
    epsilon: float = 1e-6
    base: float = 10000.0

    @property
    def width(self) -> int:
        return self.heads * self.head_size


def sizes(seed: int) -> Sizes:
    """Returns the usual sizes, or of another seed than 0 random ones."""
    if not seed:
        return Sizes()
    draw = random.Random(seed)
    heads = draw.choice((2, 3, 4, 6))
    groups = draw.choice([count for count in range(1, heads + 1) if heads % count == 0])
    return Sizes(
        vocabulary=draw.randint(60, 90),
        positions=draw.randint(20, 70),
        layers=draw.randint(1, 3),
        heads=heads,
        groups=groups,
        head_size=draw.choice((4, 6, 8)),
        hidden=draw.randint(8, 60),
        epsilon=10.0 ** -draw.randint(5, 7),
        base=draw.choice((1e3, 1e4, 5e5)),
    )
