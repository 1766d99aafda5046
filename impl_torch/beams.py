"""The beams of all rows: which are live, which are finished, and when to stop (BEAM)."""

import numpy as np
import torch
from torch import Tensor

from reference_numpy.strategy import Strategy

__all__ = ["Beams", "best", "hypotheses"]


class Beams:
    """The beams of all rows. Every step's choices stay on the device; the host traces the answers
    back through the parents at the end.

    live_bw: log p of the live beams; kept_bw: scores of the best finished hypotheses. Both are
    sorted, best first, and padded with -inf.
    """

    def __init__(
        self, strategy: Strategy, rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.strategy = strategy
        self.live_bw = torch.full(
            (rows, strategy.beam_size), -torch.inf, dtype=dtype, device=device
        )
        self.kept_bw = self.live_bw.clone()
        self.live_bw[:, 0] = 0
        self.done_b = torch.zeros(rows, dtype=torch.bool, device=device)
        self._first_b1 = strategy.beam_size * torch.arange(rows, device=device)[:, None]
        # tokens and parents of the live beams, scores of the finished ones
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []

    def advance(self, scores_bwv: Tensor) -> tuple[Tensor, Tensor]:
        """Chooses the next token of each beam, `(b w) 1`, and the model row that each beam
        continues.
        """
        strategy, length = self.strategy, len(self._steps) + 1
        total_bwv = scores_bwv + self.live_bw[:, :, None]
        ended_bw = total_bwv[:, :, strategy.end_id] / _length_penalty(length, strategy.alpha)
        ended_bw = ended_bw.masked_fill(self.done_b[:, None], -torch.inf)
        total_bwv[:, :, strategy.end_id] = -torch.inf
        self.live_bw, token_bw, parent_bw = best(total_bwv, strategy.beam_size)
        self.kept_bw = (
            torch.cat([self.kept_bw, ended_bw], dim=1).topk(strategy.beam_size, dim=1).values
        )
        self.done_b = self.done_b | (self.live_bw[:, 0] == -torch.inf) | self._stops()
        self._steps.append((token_bw, parent_bw, ended_bw))
        return token_bw.reshape(-1, 1), (parent_bw + self._first_b1).reshape(-1)

    def _stops(self) -> Tensor:
        """Returns whether no live beam can still beat the worst finished hypothesis: log p only
        falls, and the longest answer has the largest penalty.
        """
        worst_b = self.kept_bw[:, -1]
        if self.strategy.early_stop:
            return worst_b > -torch.inf
        highest_b = self.live_bw[:, 0] / _length_penalty(
            self.strategy.max_new_tokens, self.strategy.alpha
        )
        return (worst_b > -torch.inf) & (highest_b <= worst_b)

    def n_best(self, pad_id: int) -> dict[str, Tensor]:
        """Returns the hypotheses of highest score; ties go to the lower tokens."""
        token_tbw, parent_tbw, score_tbw = (
            torch.stack(parts).cpu().numpy() for parts in zip(*self._steps, strict=True)
        )
        count, device = self.strategy.n_best, self.live_bw.device
        token_bwn = np.full((score_tbw.shape[1], count, self.strategy.max_new_tokens), pad_id)
        score_bw = np.full(token_bwn.shape[:2], -np.inf, score_tbw.dtype)
        for row in range(len(token_bwn)):
            kept = hypotheses(token_tbw[:, row], parent_tbw[:, row], score_tbw[:, row], count)
            for place, (score, tokens) in enumerate(kept):
                token_bwn[row, place, : len(tokens) + 1] = *tokens, self.strategy.end_id
                score_bw[row, place] = score
        return {
            "token_bwn": torch.from_numpy(token_bwn).to(device),
            "score_bw": torch.from_numpy(score_bw).to(device),
        }


def best(total_bwv: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the largest log p, largest first, with their tokens and beams; ties go to the lower
    token, then to the better beam.

    `max` returns the first of equal values; `topk` may return any.
    """
    beams = total_bwv.shape[1]
    flat_bn = total_bwv.transpose(1, 2).flatten(1)  # by token, then by beam
    found: list[torch.return_types.max] = []
    for _ in range(count):
        found.append(flat_bn.max(dim=1, keepdim=True))
        flat_bn.scatter_(1, found[-1].indices, -torch.inf)
    index_bw = torch.cat([one.indices for one in found], dim=1)
    return torch.cat([one.values for one in found], dim=1), index_bw // beams, index_bw % beams


def hypotheses(
    token_tw: np.ndarray, parent_tw: np.ndarray, score_tw: np.ndarray, count: int
) -> list[tuple[float, list[int]]]:
    """Returns the best hypotheses of one row: scores, and tokens before the end token. A beam that
    ends at step t was live at step t - 1.
    """
    finite = np.sort(score_tw[np.isfinite(score_tw)])
    lowest = finite[-count:].min(initial=np.inf)
    found = []
    for step, beam in np.argwhere(np.isfinite(score_tw) & (score_tw >= lowest)).tolist():
        tokens, place = [], beam
        for earlier in reversed(range(step)):
            tokens.append(int(token_tw[earlier, place]))
            place = parent_tw[earlier, place]
        found.append((float(score_tw[step, beam]), tokens[::-1]))
    return sorted(found, key=lambda one: (-one[0], one[1]))[:count]


def _length_penalty(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha
