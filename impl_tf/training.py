"""A training run: loss and gradients, clipping, the schedule and Adam, batch after batch."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig, checks, layout
from reference_numpy import parameters as canonical
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Group, Mesh
from reference_numpy.strategy import Strategy

from . import weights
from .decoding import Searcher
from .dropout import Keep
from .framework import id_bounds
from .optimizer import Adam, clip_global_norm
from .programs.compiled import compiled as graph
from .programs.sharding import Replicas, count, recomputing
from .programs.step import Steps
from .programs.unpadding import Sides, Unpadded
from .schedule import Noam
from .transformer import Transformer

__all__ = ["Trainer"]

_PARTS = ("parameters", "first_moment", "second_moment")
_DEVICES = {"cpu": "/CPU:0", "cuda": "/GPU:0"}


class _Batch(NamedTuple):
    """The arguments of the graphs for one part of a batch."""

    sides: Sides | None  # the tokens to compute
    source: tf.Tensor | None
    target: tf.Tensor
    keep: Keep | None
    total: tf.Tensor  # counted labels of the whole batch
    place: tf.Tensor  # index of the part in the run


class Trainer:
    """Parameters and moments of one run, and the number of steps done.

    The loss is `classification_loss` if the config has classes, otherwise `training_loss`. A step
    is one graph compiled by XLA: forward, backward, clipping, and the update of the variables in
    place; with microbatches there is one graph for the gradients of a part and one for the update.
    Ids are checked before the graphs, which skip padding (`Unpadded`). Random keep masks come from
    Keras' seed generators, whose states (a key from seed and layer, a counter) the graph sets
    before drawing. device: cpu or cuda, where TensorFlow's own setting decides whether float32
    products use TF32. compiled=False: runs op by op.

    mesh: the replicas of `programs.sharding.Replicas`, each of which gets the whole batch and takes
    its rows; their random keep masks depend only on seed and step. group: the processes of the run.
    recompute: recomputes each layer's activations in the backward pass.
    """

    def __init__(
        self,
        config: TransformerConfig,
        recipe: Recipe,
        parameters: Mapping[str, np.ndarray],
        seed: int = 0,
        device: str = "cpu",
        compiled: bool = True,
        mesh: Mesh | None = None,
        recompute: bool = False,
    ) -> None:
        config.need_objective()
        self._weights = recipe.router_weights(config, mesh)
        if self._weights and recompute:
            raise ValueError("router losses need the activations of layers; got recompute=True")
        self.config, self.recipe, self.steps = config, recipe, 0
        # Keras seeds have 31 bits.
        self._key = int(np.random.SeedSequence(seed).generate_state(1)[0]) % 2**30
        self._device, self._dtype = _device(device), canonical.training_dtype(parameters)
        replicas = None if mesh is None else Replicas(mesh, device)
        self.group = Group() if replicas is None else replicas.group
        with tf.device(self._device) if replicas is None else replicas.strategy.scope():
            with recomputing(config) if recompute else nullcontext():
                self.model = Transformer(config, dtype=self._dtype)
            weights.load(self.model, parameters, config)
            self._optimizer = Adam(
                Noam(config.model_width, recipe.warmup),
                recipe.beta_1,
                recipe.beta_2,
                recipe.epsilon,
                recipe.weight_decay,
            )
            self._optimizer.build(self.model.trainable_variables)
        self._on_mesh: Steps | None = None
        if replicas is not None:
            self._on_mesh = Steps(replicas, self.model, self._optimizer, recipe, seed, compiled)
        objective = self.model.classification_loss if config.classes else self.model.training_loss
        self._loss = Unpadded(objective)
        self._whole_step = graph(self._one_step) if compiled else self._one_step
        self._part = graph(self._gradients) if compiled else self._gradients
        self._apply = graph(self._update) if compiled else self._update
        self._evaluate = graph(self._loss.run) if compiled else self._loss.run
        self._compiled, self._current = compiled, False
        self._searcher: Searcher | None = None

    def train_step(
        self, source: np.ndarray | None, target: np.ndarray, keep: Keep | None = None
    ) -> tf.Tensor:
        """Makes one update from a batch of ids `b s` and `b t`; returns the loss before the update.

        The device may still be computing the loss. target: if the config has classes, those of the
        rows, `b`. keep: keep masks by site; default, random. Raises ValueError on invalid ids and
        if the batch cannot be split; nothing changes then.
        """
        self._check(source, target)
        if len(target) % self.recipe.microbatches:
            raise ValueError(
                f"the batch must divide into {self.recipe.microbatches} microbatches; got "
                f"{len(target)} rows"
            )
        total = max(count(self.config, target), 1)
        if self._on_mesh is not None:
            loss = self._on_mesh.step(self.steps, source, target, keep, total)
        else:
            loss = self._step(self._batches(source, target, keep, total))
        self.steps, self._current = self.steps + 1, False
        return loss

    def loss(self, source: np.ndarray | None, target: np.ndarray) -> tuple[float, int]:
        """Returns the sum of -log p over counted labels, without smoothing, and their number."""
        self._check(source, target)
        if self._on_mesh is not None:
            return self._on_mesh.loss(source, target), count(self.config, target)
        with tf.device(self._device):
            sides = self._loss.tokens(source, target)
            tokens, labels = self._tensor(source), self._tensor(target)
            value = self._evaluate(sides, tokens, labels, total=1, training=False)
        return float(value), count(self.config, target)

    def greedy_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        """Runs `Searcher.greedy_search` on the current model."""
        return self._answers("greedy_search", source, strategy)

    def beam_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        """Runs `Searcher.beam_search` on the current model."""
        return self._answers("beam_search", source, strategy)

    def state(self) -> dict[str, np.ndarray]:
        """Copies the tensors `parameters.NAME`, `first_moment.NAME` and `second_moment.NAME`."""
        return dict(self.tensors())

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the items of `state` one by one."""
        for name, variable, axes, letters, sizes in self._held():
            yield name, layout.relayout(weights.to_numpy(variable), axes, letters, sizes)

    def load_state(self, state: Mapping[str, np.ndarray], steps: int) -> None:
        """Resumes the run from this `state` after `steps` steps; ValueError lists every problem.

        The arrays of the state may be lazy: they are read one by one.
        """
        if steps < 0:
            raise ValueError(f"steps must be at least 0; got {steps}")
        shapes = canonical.shapes(self.config).items()
        expected = {f"{part}.{name}": shape for part in _PARTS for name, shape in shapes}
        canonical.match(state, expected, self._dtype)
        for name, variable, axes, letters, sizes in self._held():
            array = layout.relayout(state[name], letters, axes, sizes)
            variable.assign(weights.from_numpy(array))
        self.steps, self._current = steps, False
        self._optimizer.iterations.assign(steps)

    def _answers(
        self, search: str, source: np.ndarray, strategy: Strategy
    ) -> dict[str, np.ndarray]:
        """Searches with the current parameters, by the graphs of the first call."""
        if self._searcher is None:
            self._searcher = Searcher(self.model, compiled=self._compiled)
        elif not self._current:
            self._searcher.refresh(self.model)
        self._current = True
        found = getattr(self._searcher, search)(source, strategy)
        return {name: tensor.numpy() for name, tensor in found.items()}

    def _held(self) -> Iterator[tuple[str, tf.Variable, str, str, dict[str, int]]]:
        """Yields each state tensor: name, variable, its axes, canonical axes, and sizes by axis."""
        shapes = canonical.shapes(self.config)
        own = [one.value for one in weights.variables(self.model, self.config).values()]
        parts = zip(*((one, *self._optimizer.moments(one)) for one in own), strict=True)
        for part, variables in zip(_PARTS, parts, strict=True):
            names = canonical.axes(self.config).items()
            for (name, letters), variable in zip(names, variables, strict=True):
                _, axes = layout.native(name, letters, weights.TABLE)
                sizes = dict(zip(letters.split(), shapes[name], strict=True))
                yield f"{part}.{name}", variable, axes, letters, sizes

    def _check(self, source: np.ndarray | None, target: np.ndarray) -> None:
        """Raises ValueError on ids and labels out of range, which a graph cannot check."""
        checks.check_source_given(self.config.encoder_layers, source)
        if source is not None:
            checks.check_same_batch(source=source.shape, target=target.shape)
        self.model.check_ids(source, target)
        if classes := self.config.classes:
            checks.check_classes(target.shape, target.dtype.name)
            checks.check_held(classes, *id_bounds(target), name="label")

    def _batches(
        self, source: np.ndarray | None, target: np.ndarray, keep: Keep | None, total: int
    ) -> Iterator[_Batch]:
        """Yields the parts of a batch."""
        parts = self.recipe.microbatches
        rows, flat = len(target) // parts, {} if keep is None else canonical.flatten(keep)
        for part in range(parts):
            chosen = slice(part * rows, (part + 1) * rows)
            own, labels = None if source is None else source[chosen], target[chosen]
            drops = {site: self._tensor(drop[chosen]) for site, drop in flat.items()}
            yield _Batch(
                self._loss.tokens(own, labels, **self._weights),
                self._tensor(own),
                self._tensor(labels),
                None if keep is None else canonical.nest(drops),
                tf.constant(total),
                tf.constant(self.steps * parts + part, tf.int64),
            )

    def _step(self, batches: Iterable[_Batch]) -> tf.Tensor:
        """Makes one update from the parts of a batch; returns its loss."""
        with tf.device(self._device):
            if self.recipe.microbatches == 1:
                return self._whole_step(*batches)
            added = partial(tf.nest.map_structure, tf.add)
            loss, gradients = reduce(added, map(self._part, batches))
            self._apply(gradients)
        return loss

    def _one_step(self, batch: _Batch) -> tf.Tensor:
        loss, gradients = self._gradients(batch)
        self._update(gradients)
        return loss

    def _gradients(self, batch: _Batch) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the loss of some rows, and the dense gradients of the model's variables."""
        sides, source, target, keep, total, place = batch
        for layer, generator in enumerate(self.model.non_trainable_variables):
            generator.assign(tf.stack([tf.constant(self._key + layer, place.dtype), place]))
        smoothing, training = self.recipe.smoothing, keep is None
        with tf.GradientTape() as tape:
            given = source, target, smoothing, total, keep, training
            loss = self._loss.run(sides, *given, **self._weights)
        own = [variable.value for variable in self.model.trainable_variables]
        gradients = tape.gradient(loss, own, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _update(self, gradients: list[tf.Tensor]) -> None:
        if self.recipe.clip_norm is not None:
            gradients = clip_global_norm(gradients, self.recipe.clip_norm)
        self._optimizer.apply(gradients)

    def _tensor(self, array: np.ndarray | None) -> tf.Tensor | None:
        return None if array is None else weights.from_numpy(array, self._device)


def _device(name: str) -> str:
    if name not in _DEVICES:
        raise ValueError(f"device must be one of {', '.join(_DEVICES)}; got {name!r}")
    if name == "cuda" and not tf.config.list_physical_devices("GPU"):
        raise ValueError("device cuda needs a GPU; TensorFlow sees none")
    return _DEVICES[name]
