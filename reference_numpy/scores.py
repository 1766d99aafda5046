"""How an attention treats its scores `query key^T`: choices made once by config and layer."""

from typing import NamedTuple

__all__ = ["Scores"]


class Scores(NamedTuple):
    """The choices between the product of queries and keys and the softmax.

    scale: multiplies the product; None: `1 / sqrt(k)` (SCALE). cap: `soft_cap` of the scaled
    scores, before the mask (SOFTCAP); None: no cap. window: hides keys at this distance or more
    from the query (WINDOW); 0 hides none. causal: hides keys after the query (CAUSAL). sink:
    whether each head has a sink, a learned score that joins the softmax (SINK).
    """

    scale: float | None = None
    cap: float | None = None
    window: int = 0
    causal: bool = False
    sink: bool = False

    def factor(self, key_size: int) -> float:
        """Returns the scale, default `1 / sqrt(k)`."""
        return key_size**-0.5 if self.scale is None else self.scale
