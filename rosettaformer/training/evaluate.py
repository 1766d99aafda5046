"""How good a model is on held-out pairs: loss per token, and the task's scores of its greedy answers."""

import math
from collections.abc import Sequence

from .answers import Decoding, answer
from .backends import Trainer
from .batches import Buckets, Example, pad
from .tasks import Pair, Task
from .tokens import Tokens

__all__ = ["loss_per_token", "scores"]


def loss_per_token(trainer: Trainer, buckets: Buckets, examples: Sequence[Example]) -> float:
    """The mean of -log p over all target tokens, without smoothing and dropout; NaN where every example is longer than the buckets."""
    parts = [trainer.loss(*pad(*group)) for group in buckets.groups(examples)]
    count = sum(count for _, count in parts)
    return sum(total for total, _ in parts) / count if count else math.nan


def scores(trainer: Trainer, task: Task, tokens: Tokens, pairs: Sequence[Pair], decoding: Decoding) -> dict[str, float]:
    """The task's scores of the answers to the sources of the pairs."""
    found = answer(trainer, tokens.source([source for source, _ in pairs]), decoding)
    return task.score([tokens.text(hypothesis.tokens) for hypothesis in found], [target for _, target in pairs])
