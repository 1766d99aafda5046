"""Defects of where positions are added, and of where they begin in the decoder."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import inputs, layers, positional_encoding

from .defect import Defect

__all__ = ["DEFECTS"]

Array = np.ndarray


def _before_every_layer(side: str, stack: str) -> Callable:
    """The encoder or decoder whose every layer is given its input with the positions added, not the first one alone."""

    def altered(original: Callable, parameters: Any, config: Any, token: Array, *rest: Any, **options: Any) -> Array:
        name, added = f"{stack}_layer", list[Array]()
        layer, learned, encoding = getattr(layers, name), positional_encoding.position_embedding, positional_encoding.positional_encoding

        def kept(function: Callable) -> Callable:
            def keep(*given: Any) -> Array:
                added.append(function(*given))
                return added[-1]

            return keep

        def with_positions(own: Any, config: Any, x_btd: Array, *others: Any) -> Array:
            first = own is parameters[stack]["layers"]["0"]
            return layer(own, config, x_btd if first else x_btd + added[0], *others)

        with (
            mock.patch.object(positional_encoding, "position_embedding", kept(learned)),
            mock.patch.object(positional_encoding, "positional_encoding", kept(encoding)),
            mock.patch.object(layers, name, with_positions),
        ):
            return original(parameters, config, token, *rest, **options)

    return altered


def _of_the_index(stack: str) -> Callable:
    """The encoder or decoder whose every layer, the first one, too, adds the sinusoids of the index in the row; a table of positions is
    read as before."""

    def altered(original: Callable, *args: Any, **options: Any) -> Array:
        name, encoding = f"{stack}_layer", positional_encoding.positional_encoding
        layer = getattr(layers, name)

        def with_positions(own: Any, config: Any, x_btd: Array, *others: Any) -> Array:
            return layer(own, config, x_btd + encoding(np.arange(x_btd.shape[1])[None], x_btd.shape[2], x_btd.dtype), *others)

        with (
            mock.patch.object(positional_encoding, "positional_encoding", lambda *given: np.zeros_like(encoding(*given))),
            mock.patch.object(layers, name, with_positions),
        ):
            return original(*args, **options)

    return altered


def _after_the_source(original: Callable, parameters: Any, config: Any, source: Any, *rest: Any, **options: Any) -> Array:
    numbered = inputs.masked_positions

    def going_on(config: Any, side: str, *given: Any) -> tuple[Array, Array]:
        mask_bt, position_bt = numbered(config, side, *given)
        return mask_bt, position_bt + source.shape[1] if side == "target" and source is not None else position_bt

    with mock.patch.object(inputs, "masked_positions", going_on):
        return original(parameters, config, source, *rest, **options)


DEFECTS = (
    Defect(
        id="PE25",
        title="positions are added before every layer",
        component="transformer",
        what="`layer(x + position)` in each layer, instead of the sum of embedding and position before the first one alone.",
        shows="Nothing with one layer. Two layers show it.",
        torch="x = self.embedding(token) + encoding[position]\nfor layer in self.layers: x = layer(x)",
        tf="x = self.embedding(token) + tf.gather(encoding, position)\nfor block in self.blocks: x = block(x)",
        jax="x = self.embed(token) + encoding[position]\nfor layer in self.layers: x = layer(x)",
        variants={
            "the sinusoids of the index in the row are added before every layer, whatever is padding": {
                "transformer.encode": _of_the_index("encoder"),
                "transformer.decode": _of_the_index("decoder"),
            }
        },
        evidence="derived, not reported; DETR adds them so, to queries and keys",
        replaces={
            "transformer.encode": _before_every_layer("source", "encoder"),
            "transformer.decode": _before_every_layer("target", "decoder"),
        },
    ),
    Defect(
        id="PE26",
        title="the target's positions go on where the source's end",
        component="transformer",
        what="The first target token has position s, as in one sequence of source and target, instead of 0.",
        shows="The logits differ although the encoder agrees. Any source shows it.",
        torch="x = self.target_embedding(target) + encoding[: target.size(1)]  # from 0, whatever the source is",
        tf="x = self.target_embedding(target) + encoding[: tf.shape(target)[1]]  # from 0, whatever the source is",
        jax="x = self.target_embed(target) + encoding[: target.shape[1]]  # from 0, whatever the source is",
        evidence="derived, not reported",
        replaces={"transformer.transformer": _after_the_source},
    ),
)
