"""Settings of the update: other moments, decay, epsilon and clipping in a step of Adam."""

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
    """Returns an `adam` with other parts, each a function of a tensor's state so far.

    The state has p, g, m, v (parameters, gradients and old moments), n, rate, b1, b2, epsilon and
    decay (0 for tensors without decay); then first and second (the new moments), first_hat,
    second_hat and direction. kept: the moments passed to the next step.
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
    "betas exchanged": ("beta_1 and beta_2 are swapped", stepped(
        lambda s: s.b2 * s.m + (1 - s.b2) * s.g, lambda s: s.b1 * s.v + (1 - s.b1) * s.g**2,
        lambda s: divide(s.first, s.number(1 - s.b2**s.n)), lambda s: divide(s.second, s.number(1 - s.b1**s.n)),
    )),
    "beta_1 in both": ("the second moment also uses beta_1", stepped(
        second=lambda s: s.b1 * s.v + (1 - s.b1) * s.g**2, second_hat=lambda s: divide(s.second, s.number(1 - s.b1**s.n)),
    )),
    "beta_2 in both": ("the first moment also uses beta_2", stepped(
        lambda s: s.b2 * s.m + (1 - s.b2) * s.g, first_hat=lambda s: divide(s.first, s.number(1 - s.b2**s.n)),
    )),
    "second average by beta_1": ("the second moment is averaged with beta_1, but corrected with beta_2", stepped(
        second=lambda s: s.b1 * s.v + (1 - s.b1) * s.g**2,
    )),
    "weights exchanged": ("the moments are (1 - beta) old + beta new", stepped(
        lambda s: (1 - s.b1) * s.m + s.b1 * s.g, lambda s: (1 - s.b2) * s.v + s.b2 * s.g**2,
    )),
    "sums": ("the moments are beta old + new, without 1 - beta", stepped(lambda s: s.b1 * s.m + s.g, lambda s: s.b2 * s.v + s.g**2)),
    "first sum": ("the first moment is beta_1 old + gradient, without 1 - beta_1", stepped(lambda s: s.b1 * s.m + s.g)),
    "second sum": ("the second moment is beta_2 old + squared gradient, without 1 - beta_2", stepped(second=lambda s: s.b2 * s.v + s.g**2)),
    "squares summed": ("the second moment is the sum of all squared gradients, as in Adagrad", stepped(
        second=lambda s: s.v + s.g**2, second_hat=lambda s: s.second,
    )),
    "magnitudes": ("the second moment averages magnitudes", stepped(second=lambda s: s.b2 * s.v + (1 - s.b2) * np.abs(s.g))),
    "squares of the first moment": ("the second moment averages the squares of the first moment", stepped(
        second=lambda s: s.b2 * s.v + (1 - s.b2) * s.first**2,
    )),
    "AdaBelief": ("the second moment averages (gradient - first moment)^2, as in AdaBelief", stepped(
        second=lambda s: s.b2 * s.v + (1 - s.b2) * (s.g - s.first) ** 2,
    )),
    "old": ("the update uses the previous step's moments", stepped(
        first_hat=lambda s: divide(s.m, s.number(1 - s.b1**s.n)), second_hat=lambda s: divide(s.v, s.number(1 - s.b2**s.n)),
    )),
    "corrected ones kept": ("the corrected moments are stored", stepped(kept=lambda s: (s.first_hat, s.second_hat))),
    "first corrected one kept": ("the corrected first moment is stored", stepped(kept=lambda s: (s.first_hat, s.second))),
    "not kept": ("the moments are not stored", stepped(kept=lambda s: (s.m, s.v))),
}  # fmt: skip
_OTHERS = {
    "AMSGrad": ("the second moment is the maximum of old and new, as in AMSGrad", stepped(
        second_hat=lambda s: divide(np.maximum(s.v, s.second), s.number(1 - s.b2**s.n)),
    )),
    "Adamax": ("the update divides by the largest gradient, as in Adamax", stepped(
        second=lambda s: np.maximum(s.b2 * s.v, np.abs(s.g)), direction=lambda s: divide(s.first_hat, s.second + s.epsilon),
    )),
    "Nesterov": ("the update looks ahead, as in NAdam", stepped(
        direction=lambda s: divide(
            s.b1 * s.first_hat + s.number((1 - s.b1) / (1 - s.b1**s.n)) * s.g, root(s.second_hat) + s.epsilon),
    )),
    "RMSprop": ("the update is the gradient over the root, as in RMSprop", stepped(
        direction=lambda s: divide(s.g, root(s.second) + s.epsilon),
    )),
    "gradient over the corrected root": ("the update is the gradient over the bias-corrected root", stepped(
        direction=lambda s: divide(s.g, root(s.second_hat) + s.epsilon),
    )),
    "SGD": ("the update is the gradient", stepped(direction=lambda s: s.g)),
    "momentum": ("the update is the first moment, without the root", stepped(direction=lambda s: s.first)),
    "corrected momentum": ("the update is the corrected first moment, without the root", stepped(direction=lambda s: s.first_hat)),
    "sign": ("the update is the sign of the first moment, as in Lion", stepped(direction=lambda s: np.sign(s.first))),
    "LAMB": ("the update is scaled to the norm of the tensor, as in LAMB", stepped(moved=_trusted)),
    "no root": ("the update divides by the second moment instead of its root", stepped(
        direction=lambda s: divide(s.first_hat, s.second_hat + s.epsilon),
    )),
    "ascends": ("the update is added instead of subtracted", stepped(moved=lambda s: s.p + s.rate * (s.direction - s.decay * s.p))),
}  # fmt: skip
_DECAYS: dict[str, tuple[str, Callable[[Tree], Tree]]] = {
    "kernels": ("weight decay skips embedding tables", lambda decays: _where(decays, lambda name, own: own and name.endswith("kernel"))),
    "tables": ("weight decay skips kernels", lambda decays: _where(decays, lambda name, own: own and name.endswith("table"))),
    "all but biases": ("weight decay skips only biases; scales and offsets decay",
                       lambda decays: _where(decays, lambda name, own: not name.endswith("bias"))),
    "all but norms": ("weight decay skips only scales and offsets; biases decay",
                      lambda decays: _where(decays, lambda name, own: not name.endswith(("scale", "offset")))),
    "all but biases and offsets": ("weight decay skips only biases and offsets; scales decay",
                                   lambda decays: _where(decays, lambda name, own: not name.endswith(("bias", "offset")))),
    "others": ("weight decay is inverted: only biases, scales and offsets decay", lambda decays: _where(decays, lambda name, own: not own)),
}  # fmt: skip


def _where(decays: Tree, meant: Callable[[str, bool], bool]) -> Tree:
    return nest({name: meant(name, own) for name, own in flatten(decays).items()})


def updates() -> Iterator[Alteration]:
    """Yields the settings of the update and of gradient clipping."""
    fix = "m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2; store both uncorrected"
    yield from settings("moments=", "adam", fix, _MOMENTS)
    fix = "p - rate (m_hat / (sqrt(v_hat) + epsilon) + decay p)"
    yield from settings("update=", "adam", fix, _OTHERS)
    fix = "decay only kernels and embedding tables"
    yield from settings("decay=", "adam", fix, _DECAYS, "optimizer.decay_mask", of=on_result)
    for value in (0.9, 0.95, 0.98, 0.99, 0.999):
        yield setting(f"beta_2={value}", "adam", f"beta_2 is {value}", "use the beta_2 that is passed", on_arguments(beta_2=value))
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
        """Clips by another measure of the gradients' size."""
        return scaled(lambda flat, limit: min(1.0, limit / size(flat)) if size(flat) else 1.0)

    def each_tensor(original: Callable, gradients: Tree, limit: float) -> dict[str, Any]:
        return nest({name: original({"own": g}, limit)["own"] for name, g in flatten(gradients).items()})

    rows: dict[str, tuple[str, Callable]] = {
        "norm + 1e-6": ("1e-6 is added to the gradient norm",
                        scaled(lambda flat, limit: min(1.0, limit / (math.sqrt(squares(flat)) + 1e-6)))),
        "each tensor": ("each tensor is clipped by its own norm", each_tensor),
        "by value": ("gradients are clipped by value", by_value),
        "always": ("gradients are always scaled to the limit, even if smaller",
                   scaled(lambda flat, limit: limit / math.sqrt(squares(flat)) if squares(flat) else 1.0)),
        "norm not rooted": ("the gradient norm is the sum of squares, without the root", by(squares)),
        "largest": ("the norm is the largest gradient", by(lambda flat: max(float(np.abs(g).max(initial=0)) for g in flat.values()))),
        "magnitudes": ("the gradient norm is the sum of magnitudes", by(lambda flat: sum(float(np.abs(g).sum()) for g in flat.values()))),
        "root mean square": ("the gradient norm is the root mean square instead of the root of the sum",
                             by(lambda flat: math.sqrt(squares(flat) / sum(g.size for g in flat.values())))),
        "sum of norms": ("the gradient norm is the sum of the tensors' norms",
                         by(lambda flat: sum(math.sqrt(float(np.sum(g * g))) for g in flat.values()))),
        "not scaled": ("gradients are not clipped", scaled(lambda flat, limit: 1.0)),
    }  # fmt: skip
    fix = "g min(1, limit / norm), norm = sqrt(sum g^2) over all tensors"
    yield from settings("clip=", "clip_global_norm", fix, rows)
