"""The step of a training run on replicas."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from reference_numpy import parameters as canonical
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import chunks

from ..dropout import Keep
from ..optimizer import Adam, clip_global_norm
from ..rotary import by_length
from ..transformer import Transformer
from .sharding import Replicas, compilers, draw, following, lengths, summed, workers_alive

__all__ = ["Steps"]


class Steps:
    """The steps of a training run on replicas, and its loss in evaluation.

    model and optimizer were made in the strategy's scope. Padding is computed. compiled: every
    replica's forward and backward pass is one graph compiled by XLA, which reduces nothing; the
    reduction and the update are a graph beside it.
    """

    def __init__(
        self,
        replicas: Replicas,
        model: Transformer,
        optimizer: Adam,
        recipe: Recipe,
        seed: int,
        compiled: bool,
    ) -> None:
        self._replicas, self._model, self._optimizer = replicas, model, optimizer
        self._recipe, self._seed = recipe, seed
        self._lengths: dict[str, tf.Variable] = {}  # of what the stacks read, if they depend on it
        if by_length(model.config):
            stacks = [name for name in ("encoder", "decoder") if hasattr(model, name)]
            with replicas.strategy.scope():
                self._lengths = {stack: tf.Variable(0, dtype=tf.int64) for stack in stacks}
        xla, graph = compilers(compiled)
        run, self._gradients = replicas.run, xla(self._gradients_of_rows)
        self._part = graph(lambda *batch: run(lambda *own: self._gradients(*own), *batch))
        self._add = graph(lambda *parts: run(_added, *parts))
        self._apply = graph(self._summed_and_applied)
        self._value = xla(self._value_of_rows)
        self._evaluate = graph(
            lambda *batch: run(lambda *own: summed([self._value(*own)])[0], *batch)
        )

    def step(
        self,
        steps: int,
        source: np.ndarray | None,
        target: np.ndarray,
        keep: Keep | None,
        total: int,
    ) -> tf.Tensor:
        """One update after that many steps; returns the loss of the whole batch before it."""
        rows = len(target) // self._recipe.microbatches
        found: Any = None
        for begin in (part * rows for part in range(self._recipe.microbatches)):
            ids = self._split(source, target, begin, begin + rows)
            masks = self._kept(keep, steps, begin, rows)
            with self._following(source, target, begin, begin + rows):
                part = self._part(*ids, *masks, tf.constant(total))
            found = part if found is None else self._add(found, part)
        with workers_alive():
            return self._replicas.first(self._apply(*found))

    def loss(self, source: np.ndarray | None, target: np.ndarray) -> float:
        """The sum of -log p over the labels of the batch that count, without smoothing."""
        with workers_alive(), self._following(source, target, 0, len(target)):
            return float(self._replicas.first(self._evaluate(*self._split(source, target))))

    def _split(
        self, source: np.ndarray | None, target: np.ndarray, begin: int = 0, end: int | None = None
    ) -> tuple[Any, Any]:
        end = len(target) if end is None else end
        own = None if source is None else self._replicas.rows(source, begin, end)
        return own, self._replicas.rows(target, begin, end)

    @contextmanager
    def _following(
        self, source: np.ndarray | None, target: np.ndarray, begin: int, end: int
    ) -> Iterator[None]:
        """Stacks follow the longest of these rows of the batch, which another replica may have."""
        if self._lengths:
            config = self._model.config
            read = None if config.classes else target[begin:end, :-1]
            given = None if source is None else source[begin:end]
            for stack, length in lengths(config, given, read).items():
                self._lengths[stack].assign(length)
        with following({getattr(self._model, stack): x for stack, x in self._lengths.items()}):
            yield

    def _kept(self, keep: Keep | None, steps: int, begin: int, rows: int) -> tuple[Any, Any]:
        """The keep masks that are given, and where random ones are drawn: the step, and the place
        of each replica's first row in the whole batch."""
        if keep is not None:
            drops = canonical.flatten(keep)
            own = {n: self._replicas.rows(drop, begin, begin + rows) for n, drop in drops.items()}
            return own, None
        first = [begin + place.start for place in chunks(rows, self._replicas.mesh.data)]
        return None, self._replicas.each(lambda index: np.array([first[index], steps], np.int64))

    def _gradients_of_rows(
        self, source: Any, target: Any, keep: Any, place: Any, total: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """A replica's part of the loss and of its gradients; 0 where it has no rows."""
        config = self._model.config
        if keep is None:
            lengths = (
                0 if source is None else source.shape[1],
                0 if config.classes else target.shape[1] - 1,
            )
            keep = draw(config, self._seed, place, target.shape[0], *lengths)
        with tf.GradientTape() as tape:
            given = source, target, self._recipe.smoothing, total, canonical.nest(keep)
            value = _objective(self._model)(*given)
        gradients = tape.gradient(value, self._model.trainable_variables)
        return value, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _value_of_rows(self, source: tf.Tensor | None, target: tf.Tensor) -> tf.Tensor:
        return _objective(self._model)(source, target, total=1)

    def _summed_and_applied(self, value: tf.Tensor, gradients: list[tf.Tensor]) -> tf.Tensor:
        """Sums a loss and its gradients over the replicas and updates every copy of the variables;
        returns the loss.

        Keras' own `apply` would sum once more in a replica, and does not run outside one.
        """

        def clipped(value: tf.Tensor, gradients: list[tf.Tensor]) -> tuple[Any, Any]:
            value, *gradients = summed([value, *gradients])
            if self._recipe.clip_norm is not None:
                gradients = clip_global_norm(gradients, self._recipe.clip_norm)
            return value, gradients

        value, gradients = self._replicas.run(clipped, value, gradients)
        rate = self._optimizer.learning_rate
        for variable, gradient in zip(self._model.trainable_variables, gradients, strict=True):
            self._replicas.strategy.extended.update(
                variable.value,
                lambda own, own_gradient: self._optimizer.update_step(own_gradient, own, rate),
                args=(gradient,),
                group=False,
            )
        self._optimizer.iterations.assign_add(1)
        return value


def _objective(model: Transformer) -> Callable[..., tf.Tensor]:
    return model.classification_loss if model.config.classes else model.training_loss


def _added(first: Any, second: Any) -> Any:
    return tf.nest.map_structure(tf.add, first, second)
