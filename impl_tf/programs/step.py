"""The training step on replicas."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial, reduce
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from reference_numpy import parameters as canonical
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import chunks

from ..dropout import Keep
from ..optimizer import Adam, clip_global_norm
from ..transformer import Transformer
from .sharding import Replicas, compilers, draw, following, lengths, summed, workers_alive

__all__ = ["Steps"]

Rows: TypeAlias = tf.distribute.DistributedValues  # for every replica, its part
Part: TypeAlias = tuple[tf.Tensor, list[tf.Tensor]]  # a loss and its gradients


class Steps:
    """The training steps of a run on replicas, and its evaluation loss.

    model and optimizer must be created in the strategy's scope. Padding is computed. compiled: each
    replica's forward and backward pass is one XLA graph; reduction and update are another graph.
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
        self._lengths: dict[str, tf.Variable] = {}  # text lengths of the stacks, if they matter
        if model.config.rotary_by_length:
            stacks = [name for name in ("encoder", "decoder") if hasattr(model, name)]
            with replicas.strategy.scope():
                self._lengths = {stack: tf.Variable(0, dtype=tf.int64) for stack in stacks}
        xla, graph = compilers(compiled)
        self._objective = model.classification_loss if model.config.classes else model.training_loss
        value = xla(partial(self._objective, total=1))
        # A partial hides the function from `run`, which would take it out of its graph.
        self._part = graph(partial(replicas.run, partial(xla(self._gradients_of_rows))))
        self._add = graph(partial(replicas.run, partial(tf.nest.map_structure, tf.add)))
        self._apply = graph(self._summed_and_applied)
        self._evaluate = graph(
            partial(replicas.run, lambda source, target: summed([value(source, target)])[0])
        )

    def step(
        self,
        steps: int,
        source: np.ndarray | None,
        target: np.ndarray,
        keep: Keep | None,
        total: int,
    ) -> tf.Tensor:
        """Makes one update after `steps` steps; returns the loss of the whole batch before it."""
        rows = len(target) // self._recipe.microbatches

        def part(begin: int) -> tuple[Rows, list[Rows]]:
            own_source, own_target = self._split(source, target, begin, begin + rows)
            masks, place = self._kept(keep, steps, begin, rows)
            with self._following(source, target, begin, begin + rows):
                return self._part(own_source, own_target, masks, place, tf.constant(total))

        begins = range(0, rows * self._recipe.microbatches, rows)
        found = reduce(self._add, map(part, begins))
        with workers_alive():
            return self._replicas.first(self._apply(found))

    def loss(self, source: np.ndarray | None, target: np.ndarray) -> float:
        """Returns the unsmoothed sum of -log p over the counted labels of the batch."""
        with workers_alive(), self._following(source, target, 0, len(target)):
            own_source, own_target = self._split(source, target, 0, len(target))
            return float(self._replicas.first(self._evaluate(own_source, own_target)))

    def _split(
        self, source: np.ndarray | None, target: np.ndarray, begin: int, end: int
    ) -> tuple[Rows | None, Rows]:
        own = None if source is None else self._replicas.rows(source, begin, end)
        return own, self._replicas.rows(target, begin, end)

    @contextmanager
    def _following(
        self, source: np.ndarray | None, target: np.ndarray, begin: int, end: int
    ) -> Iterator[None]:
        """Makes stacks use the longest of these rows, which may be on another replica."""
        if self._lengths:
            config = self._model.config
            read = None if config.classes else target[begin:end, :-1]
            given = None if source is None else source[begin:end]
            for stack, length in lengths(config, given, read).items():
                self._lengths[stack].assign(length)
        with following({getattr(self._model, stack): x for stack, x in self._lengths.items()}):
            yield

    def _kept(
        self, keep: Keep | None, steps: int, begin: int, rows: int
    ) -> tuple[dict[str, Rows] | None, Rows | None]:
        """Returns the given keep masks or, to draw random ones, the step and the index of each
        replica's first row in the whole batch.
        """
        if keep is not None:
            drops = canonical.flatten(keep)
            own = {n: self._replicas.rows(drop, begin, begin + rows) for n, drop in drops.items()}
            return own, None
        first = [begin + place.start for place in chunks(rows, self._replicas.mesh.data)]
        return None, self._replicas.each(lambda index: np.array([first[index], steps], np.int64))

    def _gradients_of_rows(
        self,
        source: tf.Tensor | None,
        target: tf.Tensor,
        keep: Mapping[str, tf.Tensor] | None,
        place: tf.Tensor | None,
        total: tf.Tensor,
    ) -> Part:
        """Returns a replica's part of the loss and gradients; 0 if it has no rows."""
        config = self._model.config
        if keep is None:
            source_length = 0 if source is None else source.shape[1]
            length = 0 if config.classes else target.shape[1] - 1
            keep = draw(config, self._seed, place, target.shape[0], source_length, length)
        with tf.GradientTape() as tape:
            smoothing, keep = self._recipe.smoothing, canonical.nest(keep)
            value = self._objective(source, target, smoothing, total, keep)
        own = [variable.value for variable in self._model.trainable_variables]
        gradients = tape.gradient(value, own, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return value, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _summed_and_applied(self, found: tuple[Rows, list[Rows]]) -> Rows:
        """Sums loss and gradients over the replicas, updates all copies of the variables, and
        returns the loss.

        Keras' own `apply` would sum again in a replica, and does not run outside one.
        """

        def clipped(found: Part) -> Part:
            value, *gradients = summed([found[0], *found[1]])
            if self._recipe.clip_norm is not None:
                gradients = clip_global_norm(gradients, self._recipe.clip_norm)
            return value, gradients

        value, gradients = self._replicas.run(clipped, found)
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
