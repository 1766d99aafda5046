"""Experts of which each process holds some, and computes these."""

from torch import Tensor, nn

from ..experts import Experts
from ..kernels.experts import grouped_part

__all__ = ["SplitExperts", "split"]


class SplitExperts(Experts):
    """The part of a sum over experts that some of them give."""

    def forward(self, x_btd: Tensor, weight_btx: Tensor) -> Tensor:
        return grouped_part(self.weighted, x_btd, weight_btx, self.config.experts_per_token)


def split(experts: nn.Module, number: int, parts: int) -> None:
    """Reduces experts, in place, to a part of them."""
    experts.__class__ = SplitExperts
    for projections in experts.children():
        for name, parameter in [*projections.named_parameters()]:
            own = parameter.detach().chunk(parts)[number].clone()
            projections.register_parameter(name, nn.Parameter(own))
