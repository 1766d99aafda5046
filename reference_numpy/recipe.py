"""A training recipe: the choices of loss, schedule and optimizer."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from .config import TransformerConfig
from .fields import POSITIVE, POSITIVE_OR_NONE, SHARE, Fields, at_least, integer

__all__ = ["PAPER", "Recipe"]

_Share = Annotated[float, SHARE]
_Count = Annotated[int, integer(1)]
_Weight = Annotated[float, at_least(0)]
_Limit = Annotated[float | None, POSITIVE_OR_NONE]


@dataclass(frozen=True, kw_only=True)
class Recipe(Fields):
    """The choices of a training run. As in `TransformerConfig`, no field has a default, except the
    weights of router losses.

    Raises ValueError naming every field that is out of range, with the requirement and the value.
    """

    KIND: ClassVar[str] = "recipe"

    smoothing: _Share  # label smoothing (SMOOTH)
    warmup: _Count  # steps until the learning rate peaks (NOAM)
    beta_1: _Share  # decay of the first moment (ADAM)
    beta_2: _Share  # decay of the second moment
    epsilon: Annotated[float, POSITIVE]  # added to the root of the second moment
    weight_decay: Annotated[float, at_least(0)]  # decoupled, for kernels and tables
    clip_norm: _Limit  # limit of the global gradient norm; None: no clipping
    microbatches: _Count  # parts of a batch whose gradients are summed before the update
    router_aux_weight: _Weight = 0.0  # of the loss that balances experts (BALANCE)
    router_z_weight: _Weight = 0.0  # of the loss that keeps router logits small

    def router_weights(self, config: TransformerConfig, mesh: object = None) -> dict[str, Any]:
        """Returns the weights of router losses, by argument of `training_loss`; {} if both are 0.

        Raises ValueError if there are weights but no routers, and on a mesh, whose devices would
        each balance their own tokens.
        """
        own = {name: getattr(self, name) for name in ("router_aux_weight", "router_z_weight")}
        if not any(own.values()):
            return {}
        config.need_router_loss()
        if mesh is not None:
            raise ValueError(f"router losses run on one device; got the mesh {mesh}")
        return own


# Vaswani et al. 2017, sections 5.3 and 5.4.
PAPER = Recipe(
    smoothing=0.1,
    warmup=4000,
    beta_1=0.9,
    beta_2=0.98,
    epsilon=1e-9,
    weight_decay=0.0,
    clip_norm=None,
    microbatches=1,
)
