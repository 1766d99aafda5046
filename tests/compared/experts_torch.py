"""Experts of which two have equal scores for every token: another one wins in each of the models."""

import torch


class Lower(torch.nn.Module):
    """The lower of two experts with equal scores wins."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(1)
        self.router = torch.nn.Linear(6, 4, bias=False)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(4))
        with torch.no_grad():
            for tensor in self.parameters():
                tensor.copy_(torch.randn(tensor.shape, generator=drawn))
            self.router.weight[1] = self.router.weight[0]

    def order(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.argsort(stable=True, dim=-1, descending=True)

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.softmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x)
        chosen = self.order(scores)[..., :1]
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return (outputs * torch.zeros_like(scores).scatter(-1, chosen, self.weights(scores).gather(-1, chosen))[..., None, :]).sum(-1)


class Upper(Lower):
    def order(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.shape[-1] - 1 - scores.flip(-1).argsort(stable=True, dim=-1, descending=True)


class Sigmoid(Upper):
    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.sigmoid()
