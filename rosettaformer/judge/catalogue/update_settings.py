"""Settings of the update: what else a step of Adam may do with its moments, its decay and its epsilon."""

import math
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from reference_numpy import arithmetic, optimizer
from reference_numpy.parameters import flatten, nest

from .alteration import Alteration, on_arguments, on_result, setting, settings

Tree = Mapping[str, Any]
Part = Callable[[Any], np.ndarray]
divide, root = arithmetic.divide, np.sqrt


def stepped(
    first: Part = lambda s: s.b1 * s.m + (1 - s.b1) * s.g,
    second: Part = lambda s: s.b2 * s.v + (1 - s.b2) * (s.g * s.g),
    first_hat: Part = lambda s: divide(s.first, s.number(1 - s.b1**s.n)),
    second_hat: Part = lambda s: divide(s.second, s.number(1 - s.b2**s.n)),
    direction: Part = lambda s: divide(s.first_hat, root(s.second_hat) + s.epsilon),
    moved: Part = lambda s: s.p - s.rate * (s.direction + s.decay * s.p),
    kept: Callable[[Any], tuple[Any, Any]] = lambda s: (s.first, s.second),
) -> Callable:
    """`adam` with other parts, each a function of what is known by then of one tensor.

    p, g, m, v: the parameters, gradients and moments before; n, rate, b1, b2, epsilon; decay, 0 where the tensor does not decay; then
    first and second, the new moments; first_hat and second_hat; direction; kept: the moments that the next step is given.
    """

    def altered(
        original: Callable, parameters: Tree, gradients: Tree, first_moment: Tree, second_moment: Tree, step: int,
        learning_rate: float, beta_1: float, beta_2: float, epsilon: float, weight_decay: float = 0.0,
    ) -> dict[str, Any]:  # fmt: skip
        flat = [flatten(tree) for tree in (parameters, gradients, first_moment, second_moment)]
        decays = flatten(optimizer.decay_mask(parameters))
        updated: dict[str, dict[str, Any]] = {"parameters": {}, "first_moment": {}, "second_moment": {}}
        for name in flat[0]:
            s = SimpleNamespace(**dict(zip("pgmv", (tree[name] for tree in flat), strict=True)), n=step, rate=learning_rate)
            s.number, s.b1, s.b2, s.epsilon, s.decay = s.p.dtype.type, beta_1, beta_2, epsilon, weight_decay * decays[name]
            for part, compute in (("first", first), ("second", second), ("first_hat", first_hat), ("second_hat", second_hat),
                                  ("direction", direction)):  # fmt: skip
                setattr(s, part, compute(s))
            updated["parameters"][name] = moved(s)
            updated["first_moment"][name], updated["second_moment"][name] = kept(s)
        return {tree: nest({name: x.astype(flat[0][name].dtype) for name, x in values.items()}) for tree, values in updated.items()}

    return altered


def _length(x: np.ndarray) -> float:
    return float(root(np.sum(np.square(x, dtype=np.float64))))


def _trusted(s: Any) -> np.ndarray:
    update = s.direction + s.decay * s.p
    both = _length(s.p) and _length(update)
    return s.p - s.rate * (_length(s.p) / _length(update) if both else 1.0) * update


_MOMENTS = {
    "betas exchanged": ("the two betas are exchanged", stepped(
        lambda s: s.b2 * s.m + (1 - s.b2) * s.g, lambda s: s.b1 * s.v + (1 - s.b1) * s.g**2,
        lambda s: divide(s.first, s.number(1 - s.b2**s.n)), lambda s: divide(s.second, s.number(1 - s.b1**s.n)),
    )),
    "beta_1 in both": ("the second moment has beta_1, too", stepped(
        second=lambda s: s.b1 * s.v + (1 - s.b1) * s.g**2, second_hat=lambda s: divide(s.second, s.number(1 - s.b1**s.n)),
    )),
    "beta_2 in both": ("the first moment has beta_2, too", stepped(
        lambda s: s.b2 * s.m + (1 - s.b2) * s.g, first_hat=lambda s: divide(s.first, s.number(1 - s.b2**s.n)),
    )),
    "second average by beta_1": ("the second moment is averaged by beta_1", stepped(second=lambda s: s.b1 * s.v + (1 - s.b1) * s.g**2)),
    "weights exchanged": ("the moments are (1 - beta) old + beta new", stepped(
        lambda s: (1 - s.b1) * s.m + s.b1 * s.g, lambda s: (1 - s.b2) * s.v + s.b2 * s.g**2,
    )),
    "sums": ("the moments are beta old + new, without 1 - beta", stepped(lambda s: s.b1 * s.m + s.g, lambda s: s.b2 * s.v + s.g**2)),
    "first sum": ("the first moment is beta_1 old + gradient, without 1 - beta_1", stepped(lambda s: s.b1 * s.m + s.g)),
    "second sum": ("the second moment is beta_2 old + squared gradient, without 1 - beta_2", stepped(second=lambda s: s.b2 * s.v + s.g**2)),
    "squares summed": ("the second moment is the sum of all squared gradients, as Adagrad's", stepped(
        second=lambda s: s.v + s.g**2, second_hat=lambda s: s.second,
    )),
    "magnitudes": ("the second moment averages magnitudes, not squares", stepped(second=lambda s: s.b2 * s.v + (1 - s.b2) * np.abs(s.g))),
    "squares of the first moment": ("the second moment averages the squares of the first", stepped(
        second=lambda s: s.b2 * s.v + (1 - s.b2) * s.first**2,
    )),
    "AdaBelief": ("the second moment averages (gradient - first moment)^2, as AdaBelief's", stepped(
        second=lambda s: s.b2 * s.v + (1 - s.b2) * (s.g - s.first) ** 2,
    )),
    "old": ("the update uses the moments before this step's gradient", stepped(
        first_hat=lambda s: divide(s.m, s.number(1 - s.b1**s.n)), second_hat=lambda s: divide(s.v, s.number(1 - s.b2**s.n)),
    )),
    "corrected ones kept": ("the corrected moments are kept for the next step", stepped(kept=lambda s: (s.first_hat, s.second_hat))),
    "first corrected one kept": ("the corrected first moment is kept for the next step", stepped(kept=lambda s: (s.first_hat, s.second))),
    "not kept": ("the moments of this step are not kept", stepped(kept=lambda s: (s.m, s.v))),
}  # fmt: skip
_OTHERS = {
    "AMSGrad": ("the second moment is the larger one of the old and the new, as AMSGrad's", stepped(
        second_hat=lambda s: divide(np.maximum(s.v, s.second), s.number(1 - s.b2**s.n)),
    )),
    "Adamax": ("the update divides by the largest gradient, as Adamax", stepped(
        second=lambda s: np.maximum(s.b2 * s.v, np.abs(s.g)), direction=lambda s: divide(s.first_hat, s.second + s.epsilon),
    )),
    "Nesterov": ("the update looks ahead, as NAdam", stepped(
        direction=lambda s: divide(
            s.b1 * s.first_hat + s.number((1 - s.b1) / (1 - s.b1**s.n)) * s.g, root(s.second_hat) + s.epsilon),
    )),
    "RMSprop": ("the update is the gradient over the root, as RMSprop", stepped(
        direction=lambda s: divide(s.g, root(s.second) + s.epsilon),
    )),
    "gradient over the corrected root": ("the update is the gradient, not its average, over the root", stepped(
        direction=lambda s: divide(s.g, root(s.second_hat) + s.epsilon),
    )),
    "SGD": ("the update is the gradient", stepped(direction=lambda s: s.g)),
    "momentum": ("the update is the first moment, not divided by the root", stepped(direction=lambda s: s.first)),
    "corrected momentum": ("the update is the corrected first moment, not divided by the root", stepped(direction=lambda s: s.first_hat)),
    "sign": ("the update is the sign of the first moment, as Lion's", stepped(direction=lambda s: np.sign(s.first))),
    "LAMB": ("the update is scaled to the length of the tensor, as LAMB's", stepped(moved=_trusted)),
    "no root": ("the update divides by the second moment, not by its root", stepped(
        direction=lambda s: divide(s.first_hat, s.second_hat + s.epsilon),
    )),
    "ascends": ("the update is added", stepped(moved=lambda s: s.p + s.rate * (s.direction - s.decay * s.p))),
}  # fmt: skip
_DECAYS: dict[str, tuple[str, Callable[[Tree], Tree]]] = {
    "kernels": ("kernels decay and tables do not", lambda decays: _where(decays, lambda name, own: own and name.endswith("kernel"))),
    "tables": ("tables decay and kernels do not", lambda decays: _where(decays, lambda name, own: own and name.endswith("table"))),
    "all but biases": ("all but biases decay, scales and offsets among them",
                       lambda decays: _where(decays, lambda name, own: not name.endswith("bias"))),
    "all but norms": ("all but scales and offsets decay, biases among them",
                      lambda decays: _where(decays, lambda name, own: not name.endswith(("scale", "offset")))),
    "all but biases and offsets": ("all but biases and offsets decay, scales among them",
                                   lambda decays: _where(decays, lambda name, own: not name.endswith(("bias", "offset")))),
    "others": ("kernels and tables do not decay, all others do", lambda decays: _where(decays, lambda name, own: not own)),
}  # fmt: skip


def _where(decays: Tree, meant: Callable[[str, bool], bool]) -> Tree:
    return nest({name: meant(name, own) for name, own in flatten(decays).items()})


def updates() -> Iterator[Alteration]:
    """The settings of the update and of the clipping before it."""
    fix = "m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2; keep both as they are"
    yield from settings("moments=", "adam", fix, _MOMENTS)
    fix = "p - rate (m_hat / (sqrt(v_hat) + epsilon) + decay p)"
    yield from settings("update=", "adam", fix, _OTHERS)
    fix = "let kernels and tables decay, and nothing else"
    yield from settings("decay=", "adam", fix, _DECAYS, "optimizer.decay_mask", of=on_result)
    for value in (0.9, 0.95, 0.98, 0.99, 0.999):
        yield setting(f"beta_2={value}", "adam", f"beta_2 is {value}", "use the beta_2 that is given", on_arguments(beta_2=value))
    yield from _clippings()


def _clippings() -> Iterator[Alteration]:
    def scaled(factor: Callable[[dict[str, np.ndarray], float], float]) -> Callable:
        """Multiplies all gradients by one factor."""

        def altered(original: Callable, gradients: Tree, limit: float) -> dict[str, Any]:
            flat = flatten(gradients)
            number = factor({name: g.astype(np.float64) for name, g in flat.items()}, limit)
            return nest({name: g * g.dtype.type(number) for name, g in flat.items()})

        return altered

    def squares(flat: Mapping[str, np.ndarray]) -> float:
        return sum(float(np.sum(g * g)) for g in flat.values())

    def by_value(original: Callable, gradients: Tree, limit: float) -> dict[str, Any]:
        return nest({name: np.clip(g, -limit, limit) for name, g in flatten(gradients).items()})

    def by(size: Callable[[dict[str, np.ndarray]], float]) -> Callable:
        """Clips by another size of all gradients."""
        return scaled(lambda flat, limit: min(1.0, limit / size(flat)) if size(flat) else 1.0)

    def each_tensor(original: Callable, gradients: Tree, limit: float) -> dict[str, Any]:
        return nest({name: original({"own": g}, limit)["own"] for name, g in flatten(gradients).items()})

    rows: dict[str, tuple[str, Callable]] = {
        "norm + 1e-6": ("1e-6 is added to the norm",
                        scaled(lambda flat, limit: min(1.0, limit / (math.sqrt(squares(flat)) + 1e-6)))),
        "each tensor": ("every tensor is clipped by its own norm", each_tensor),
        "by value": ("every element is clipped to the limit", by_value),
        "always": ("gradients are scaled to the limit, smaller ones, too",
                   scaled(lambda flat, limit: limit / math.sqrt(squares(flat)) if squares(flat) else 1.0)),
        "norm not rooted": ("the norm is the sum of squares, without its root", by(squares)),
        "largest": ("the norm is the largest magnitude", by(lambda flat: max(float(np.abs(g).max(initial=0)) for g in flat.values()))),
        "magnitudes": ("the norm is the sum of magnitudes", by(lambda flat: sum(float(np.abs(g).sum()) for g in flat.values()))),
        "root mean square": ("the norm is the root of the mean of squares, not of their sum",
                             by(lambda flat: math.sqrt(squares(flat) / sum(g.size for g in flat.values())))),
        "sum of norms": ("the norms of the tensors are added up",
                         by(lambda flat: sum(math.sqrt(float(np.sum(g * g))) for g in flat.values()))),
        "not scaled": ("gradients are not clipped", scaled(lambda flat, limit: 1.0)),
    }  # fmt: skip
    fix = "g min(1, limit / norm), norm = sqrt(sum g^2) over all tensors"
    yield from settings("clip=", "clip_global_norm", fix, rows)
