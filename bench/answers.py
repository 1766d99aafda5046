"""The reference's outputs, and the distance of a row's outputs from them."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from reference_numpy import decoding, parameters
from reference_numpy import transformer as reference
from reference_numpy.training import Trainer
from rosettaformer.comparison.timing.rows import BOUNDS, LOSS_BOUNDS

from .problem import Problem
from .workloads import PADDING

Arrays = Mapping[str, np.ndarray]
# For beam search: how much a hypothesis's log p may fall below the reference's best, relative to it.
SCORE_BOUND = 1e-3
SEARCHED = 128  # most new tokens of a reference search, which runs NumPy once per token
CHECKED = 2  # training steps whose losses are compared; the second depends on the gradients and the update


def bound_of(kind: str, precision: str) -> float:
    """Returns the largest difference that a timed row may have."""
    return {"training": LOSS_BOUNDS, "beam": dict.fromkeys(BOUNDS, SCORE_BOUND)}.get(kind, BOUNDS)[precision]


def forward(nested: Mapping[str, Any], problem: Problem) -> np.ndarray:
    """Returns the reference's logits, or the encoder's output, from nested parameters."""
    if problem.task.kind == "encoder":
        return reference.encode(nested, problem.config, problem.source)
    return reference.transformer(nested, problem.config, problem.encoded, problem.target)


class Reference:
    """The outputs for one problem, each computed when a row is first compared with it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._kept: tuple[np.ndarray, np.ndarray] | None = None

    def check_shape(self, output: Arrays) -> None:
        """Raises ValueError unless the output has the expected shape."""
        task = self.problem.task
        got = output["token_bn" if task.decodes else "output"].shape
        wanted = (task.batch, task.new_tokens) if task.decodes else self.expected.shape
        if got != wanted:
            raise ValueError(f"shape {got}; expected {wanted}")

    def difference(self, output: Arrays, skips: bool = False) -> tuple[float, str]:
        """Returns the difference from the reference, and a search's agreement in words.

        Positions of padding are not compared. With skips they must be zeros; otherwise raises
        ValueError.
        """
        kind = self.problem.task.kind
        if kind in ("greedy", "beam"):
            return self._greedy(output) if kind == "greedy" else self._beam(output)
        away, expected = output["output"] - self.expected, self.expected
        if kind != "training":
            real = self.problem.inputs[-1] != PADDING
            away, expected = away[real], expected[real]
            if skips and output["output"][~real].any():
                raise ValueError("with skip_padding, outputs at padding must be zeros; they are not")
        return float(np.abs(away).max() / np.abs(expected).max()), ""

    @functools.cached_property
    def _nested(self) -> Mapping[str, np.ndarray]:
        return parameters.nest(_wide(self.problem.tensors))

    @functools.cached_property
    def expected(self) -> np.ndarray:
        """Returns logits, losses, or the encoder's output, in float64."""
        problem = self.problem
        if problem.task.kind == "training":
            trainer = Trainer(problem.checked.config, problem.checked.recipe, _wide(problem.tensors))
            return np.array([trainer.train_step(problem.encoded, problem.sequence) for _ in range(CHECKED)])
        return forward(self._nested, problem)

    @functools.cached_property
    def _found(self) -> np.ndarray:
        """Returns the reference's search results, `b w n`, best first, in float32."""
        problem, nested = self.problem, parameters.nest(self.problem.tensors)
        if problem.task.kind == "greedy":
            return decoding.greedy_search(nested, problem.config, strategy=problem.strategy, **problem.question)["token_bn"][:, None]
        return decoding.beam_search(nested, problem.config, strategy=problem.strategy, **problem.question)["token_bwn"]

    def _greedy(self, output: Arrays) -> tuple[float, str]:
        """Returns how far chosen tokens' logits are below the largest, relative to it.

        Near ties, after which correct outputs differ, therefore need no exception.
        """
        token_bn = output["token_bn"]
        logits_bnv, strategy = self._logits(token_bn), self.problem.strategy
        largest, away = np.abs(logits_bnv[np.isfinite(logits_bnv)]).max(), 0.0
        if "log_p_bn" in output:
            away = np.abs(output["log_p_bn"] - (_take(logits_bnv, token_bn) - _log_sum(logits_bnv))).max()
        logits_bnv = logits_bnv.copy()
        logits_bnv[:, : strategy.min_new_tokens, strategy.end_id] = -np.inf
        away = max(away, (logits_bnv.max(axis=-1) - _take(logits_bnv, token_bn)).max())
        return float(away / largest), self._agreement(token_bn) if token_bn.shape[1] <= SEARCHED else ""

    def _beam(self, output: Arrays) -> tuple[float, str]:
        """Returns how much worse the best hypothesis's log p is than the reference's.

        A row without scores has its own rule for ending hypotheses, some by force: up to its last
        token, a hypothesis must be as likely as one of the reference's beams.
        """
        token_bn = output["token_bn"]
        log_p_bwn = np.stack([self._log_p(self._found[:, beam]) for beam in range(self._found.shape[1])], axis=1)
        if "score_b" not in output:
            mine_b, least_b = self._log_p(token_bn)[:, :-1].sum(axis=1), log_p_bwn[:, :, :-1].sum(axis=-1).min(axis=1)
            away = ((least_b - mine_b) / -least_b).max()
            return float(max(away, 0.0)), self._agreement(token_bn[:, :-1], beams=self._found.shape[1])
        divisor = ((5 + self.problem.task.new_tokens) / 6) ** self.problem.strategy.alpha
        mine_b, best_b = self._log_p(token_bn).sum(axis=1), log_p_bwn[:, 0].sum(axis=-1)
        away = max(((best_b - mine_b) / -best_b).max(), np.abs(output["score_b"] * divisor / mine_b - 1).max())
        return float(away), self._agreement(token_bn)

    def _agreement(self, token_bn: np.ndarray, beams: int = 1) -> str:
        same = (token_bn[:, None] == self._found[:, :beams, : token_bn.shape[1]]).all(axis=-1).any(axis=1)
        whose = "the reference's" if beams == 1 else "one of the reference's beams"
        return f"{same.sum()} of {len(same)} outputs equal {whose}, token by token"

    def _logits(self, token_bn: np.ndarray) -> np.ndarray:
        """Returns each token's logits in float64; -inf for tokens in no output.

        Cached for the next row, which usually has the same outputs.
        """
        problem, kept = self.problem, self._kept
        if kept is None or not np.array_equal(kept[0], token_bn):
            target = np.concatenate([problem.begin, token_bn[:, :-1]], axis=1)
            logits_bnv = reference.transformer(self._nested, problem.config, problem.question["source"], target)
            logits_bnv = logits_bnv[:, problem.begin.shape[1] - 1 :]
            logits_bnv[:, :, problem.strategy.forbidden_ids(problem.config)] = -np.inf
            kept = self._kept = token_bn, logits_bnv
        return kept[1]

    def _log_p(self, token_bn: np.ndarray) -> np.ndarray:
        logits_bnv = self._logits(token_bn)
        return _take(logits_bnv, token_bn) - _log_sum(logits_bnv)


def _wide(tensors: Arrays) -> dict[str, np.ndarray]:
    return {name: tensor.astype(np.float64) for name, tensor in tensors.items()}


def _take(x_bnv: np.ndarray, token_bn: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x_bnv, token_bn[:, :, None], axis=-1)[:, :, 0]


def _log_sum(x_bnv: np.ndarray) -> np.ndarray:
    largest_bn1 = x_bnv.max(axis=-1, keepdims=True)
    return (largest_bn1 + np.log(np.exp(x_bnv - largest_bn1).sum(axis=-1, keepdims=True)))[:, :, 0]
