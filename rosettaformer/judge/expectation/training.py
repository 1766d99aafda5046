"""Cases beyond the components: training steps, a model's loss, vectors of whole texts."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, arithmetic, loss, mask, transformer
from reference_numpy.parameters import flatten, nest
from reference_numpy.recipe import Recipe
from reference_numpy.training import Trainer
from reference_numpy.values import Text

Tree = Mapping[str, Any]
SHORTEST = 1e-12  # least length that a vector is divided by


def training_steps(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray | None,
    target: np.ndarray,
    recipe: Mapping[str, Any],
    keep: Tree | None = None,
    recompute: bool = False,
) -> dict[str, Any]:
    """Returns the loss before each training step and the parameters after the last one: `losses`
    `n` and `parameters`, a tree.

    source: `n b s` or None. target: `n b t`, or `n b` for a classifier. keep: keep masks, each with
    a leading n. recipe: the fields of `Recipe`. recompute: recompute activations in the backward
    pass, as frameworks may. Raises ValueError like `Trainer`.
    """
    flat, masks = flatten(parameters), flatten(keep or {})
    trainer = Trainer(config, Recipe(**recipe), flat, recompute=recompute)
    losses = [
        trainer.train_step(
            None if source is None else source[step],
            target[step],
            nest({site: mask_n[step] for site, mask_n in masks.items()}),
        )
        for step in range(len(target))
    ]
    after = {name: value for name, value in trainer.state().items() if name.startswith("parameters.")}
    return {"losses": np.array(losses, next(iter(flat.values())).dtype), **nest(after)}


def training(
    parameters: Tree, config: TransformerConfig, target: np.ndarray, source: None = None, target_mask_bt: np.ndarray | None = None
) -> dict[str, Any]:
    """Returns the mean of -log p over the labels of real tokens, and its gradients: `loss` and
    `parameters`, a tree.

    The label at a position is the next token; it counts if both tokens are real (target_mask_bt,
    True = real).
    """
    real_bt = np.ones(target.shape, bool) if target_mask_bt is None else target_mask_bt
    input_bt, label_bt = loss.teacher_forcing(target)
    model: Any = parameters, config, source, Text(input_bt, real_bt[:, :-1])
    labels = label_bt, real_bt[:, :-1] & real_bt[:, 1:]
    logits_btv = transformer.transformer(*model)
    value = loss.cross_entropy(logits_btv, *labels)
    g_btv = loss.cross_entropy_vjp(logits_btv, *labels, cotangent=np.ones((), logits_btv.dtype))["logits_btv"]
    return {"loss": value, "parameters": transformer.transformer_vjp(*model, cotangent=g_btv)["parameters"]}


def mean(
    parameters: dict[str, Any], config: TransformerConfig, source: np.ndarray, source_mask_bs: np.ndarray | None = None,
    segment_bs: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """`y = sum_s m_s x_s / sum_s m_s`, the mean vector `b d` of the real tokens; x from `encode`, m 1 at real tokens and 0 at padding."""
    x_bsd = transformer.encode(parameters, config, Text(source, source_mask_bs, segment_bs))
    real_bs = mask.token_mask(source, config.padding_id) if source_mask_bs is None else source_mask_bs
    weight_bs = real_bs.astype(x_bsd.dtype)
    count_b1 = arithmetic.sum(weight_bs, axis=1).clip(1)
    return arithmetic.divide(arithmetic.einsum("bsd,bs->bd", x_bsd, weight_bs), count_b1)


def first(
    parameters: dict[str, Any], config: TransformerConfig, source: np.ndarray, source_mask_bs: np.ndarray | None = None,
    segment_bs: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """`x_0`, the vector `b d` of the first token; x from `encode`."""
    return transformer.encode(parameters, config, Text(source, source_mask_bs, segment_bs))[:, 0]


def _scaled(pool: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Returns the function whose vectors `b d` are `y / |y|`, with y from `pool`."""

    @functools.wraps(pool, assigned=())
    def unit(*args: Any, **options: Any) -> np.ndarray:
        y_bd = pool(*args, **options)
        length_b1 = np.sqrt(arithmetic.sum(y_bd * y_bd, axis=1))
        return arithmetic.divide(y_bd, length_b1.clip(SHORTEST))

    return unit


unit_mean, unit_first = _scaled(mean), _scaled(first)
