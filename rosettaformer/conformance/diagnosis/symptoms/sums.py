"""The families of sums and products: a value plus or minus another one, and a value times a number."""

from collections.abc import Iterator

import numpy as np

from .answered import Answered
from .change import Alter, Change, factor_words, named, number, own
from .meaning import of_sum
from .steps import Step
from .values import Value

__all__ = ["differences", "factors", "replaced"]


def differences(answered: Answered, step: Step, target: np.ndarray | None) -> Iterator[Change]:
    """Proposes them. target: what the changed value must be, if that is known."""
    if (target is not None and target.shape != step.given.shape) or answered.expectation.dtype.kind == "b":
        return
    for value in answered.run.values:
        if value.array.dtype.kind != "f" or not _broadcasts(value.array, step.given):
            continue
        if target is not None:
            if (factor := answered.factor(target - step.given, value.array)) is not None:
                yield from (_sum(step, value, words) for words in factor_words(answered, factor))
        elif value.array.shape == step.given.shape or value.role == "parameter":
            yield from (_sum(step, value, plain) for plain in ("", "-1"))
    if target is not None and target.size > 1:
        found = answered.select(target - step.given)
        constant = float(found[0])
        if np.isfinite(constant) and constant and np.ptp(found) <= answered.allowed(step.given):
            yield Change("difference", f"{{}} plus {constant:.15g}, the same everywhere", 80, own(lambda given: given + constant))


def replaced(answered: Answered, step: Step, target: np.ndarray | None) -> Iterator[Change]:
    """Proposes another value in place of either term of the sum of a sub-layer and its residual."""
    if not step.sublayer:
        return
    residual, output = f"the residual of `{step.sublayer}`", f"the output of `{step.sublayer}_dropout`"
    for value in answered.run.values:
        if value.array.shape == step.given.shape and value.array.dtype.kind == "f":
            for part in (residual, output):
                yield Change("difference", f"it with {value.words} for {part}", 86, _instead(part, value.words))


def _instead(part: str, other: str) -> Alter:
    def alter(answered: Answered, given: np.ndarray) -> np.ndarray | None:
        one, value = answered.run.named.get(part), answered.run.named.get(other)
        return None if one is None or value is None else given - one + value

    return alter


def _broadcasts(value: np.ndarray, given: np.ndarray) -> bool:
    """Whether a value broadcasts to the input by its last axes, and has more than one element along the last one."""
    return 0 < value.ndim <= given.ndim and value.shape == given.shape[given.ndim - value.ndim :] and given.shape[-1] > 1


def _sum(step: Step, value: Value, plain: str) -> Change:
    """Adds a multiple of another value."""
    name = value.words
    sign = "minus" if plain.startswith("-") else "plus"
    times = f"{plain.removeprefix('-')} times " if plain not in ("", "-1") else ""

    def alter(answered: Answered, given: np.ndarray) -> np.ndarray | None:
        value, factor = answered.run.named.get(name), number(answered, plain)
        if value is None or factor is None:
            return given  # there is nothing to add
        return given + factor * value if _broadcasts(value, given) else None

    return Change("difference", f"{{}} {sign} {times}{name}", 76 if times else 86, alter, "" if times else of_sum(step, value, sign))


def factors(answered: Answered, step: Step, target: np.ndarray | None) -> Iterator[Change]:
    """Proposes them. target: what the changed value must be, if that is known."""
    if answered.expectation.dtype.kind in "biu" or (target is not None and target.shape != step.given.shape):
        return
    if target is None:
        found = list(named(answered.case))
    else:
        factor = answered.factor(target, step.given)
        found = [] if factor is None else factor_words(answered, factor)
    for plain in filter(None, found):
        meaning = _scaling(plain) if step.words.endswith("softmax` of {}") else ""
        rank = (92 if plain in named(answered.case) else 82) + bool(meaning)
        yield Change("factor", f"{{}} times {plain}", rank, _times(plain), meaning)


def _scaling(plain: str) -> str:
    """What a factor of the attention's logits means, which are divided by sqrt(key_size)."""
    if plain == "sqrt(key_size)":
        return "the logits are not divided by sqrt(key_size)"
    if plain == "1/sqrt(key_size)":
        return "the logits are divided by sqrt(key_size) twice"
    if plain.startswith("sqrt(key_size / "):
        return f"the logits are divided by sqrt({plain.removeprefix('sqrt(key_size / ').removesuffix(')').strip('()')})"
    return ""


def _times(plain: str) -> Alter:
    def alter(answered: Answered, given: np.ndarray) -> np.ndarray | None:
        factor = number(answered, plain)
        return None if factor is None else factor * given

    return alter
