"""A training run, step by step: the loss and its gradients, clipping, the schedule and Adam."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig, checks, layout
from reference_numpy import parameters as canonical
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Group, Mesh
from reference_numpy.strategy import Strategy

from . import weights
from .decoding import Searcher
from .framework import id_bounds
from .optimizer import Adam, adam, clip_global_norm, decay_mask
from .programs.compiled import compiled as graph
from .programs.sharding import Replicas, count, recomputing
from .programs.step import Steps
from .programs.unpadding import Sides, Unpadded
from .schedule import Noam
from .transformer import Transformer

__all__ = ["Trainer"]

Tree = Mapping[str, Any]
# a variable, its axes, its canonical axes and the size of each
_Held = tuple[tf.Variable, str, str, dict[str, int]]
_PARTS = ("parameters", "first_moment", "second_moment")
_DEVICES = {"cpu": "/CPU:0", "cuda": "/GPU:0"}


class Trainer:
    """Parameters and moments of one run, and the number of steps done.

    The loss is `Transformer.classification_loss` if the config has classes, otherwise
    `Transformer.training_loss`. A step is one graph compiled by XLA: forward, backward, clipping,
    and the update of the variables in place.

    With microbatches there is a graph for the gradients of a part and one for the update. Ids are
    checked before the graphs, which leave out padding: a shape of rows has a graph for each of a
    few numbers of tokens. Random keep masks come from Keras' seed generators, whose states (a key
    of seed and layer, a counter) a graph sets before it draws. device: cpu or cuda, on which
    TensorFlow's own setting says whether float32 is multiplied as TF32. compiled=False: operation
    by operation.

    mesh: the replicas of `programs.sharding.Replicas`, each of which is given the whole batch and
    takes its rows; their random keep masks are a function of seed and step alone. group: the
    processes that run it. recompute: the activations of each layer are computed again in the
    backward pass.
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
        self.config, self.recipe, self.steps = config, recipe, 0
        # A seed of Keras has 31 bits.
        self._key = int(np.random.SeedSequence(seed).generate_state(1)[0]) % 2**30
        self._device, self._dtype = _device(device), canonical.training_dtype(parameters)
        replicas = None if mesh is None else Replicas(mesh, device)
        self.group = Group() if replicas is None else replicas.group
        with tf.device(self._device) if replicas is None else replicas.strategy.scope():
            with recomputing(config) if recompute else nullcontext():
                self.model = Transformer(config, dtype=self._dtype)
            weights.load(self.model, parameters, config)
            self._optimizer = self._built_optimizer()
        self._on_mesh: Steps | None = None
        if replicas is not None:
            own = self.model, self._optimizer
            self._on_mesh = Steps(replicas, *own, recipe, seed, compiled)
        run: Callable[..., Any] = graph if compiled else lambda function: function
        self._whole_step, self._part, self._apply = (
            run(self._one_step),
            run(self._gradients),
            run(self._update),
        )
        objective = self.model.classification_loss if config.classes else self.model.training_loss
        self._loss = Unpadded(objective)
        self._evaluate = run(self._loss.run)
        self._compiled, self._current = compiled, False
        self._searcher: Searcher | None = None

    def train_step(
        self, source: np.ndarray | None, target: np.ndarray, keep: Tree | None = None
    ) -> tf.Tensor:
        """One update from a batch of ids `b s` and `b t`; returns the loss of the batch before it,
        a scalar tensor, which the device may still be computing.

        source: None in a decoder-only model. target: the classes of the rows, `b`, if the config
        has classes. keep: keep masks by site; by default random ones are drawn. Raises ValueError
        on ids that do not fit and on a batch that cannot be split; nothing is then changed.
        """
        if self._on_mesh is None:
            loss = self._step(self._batches(source, target, keep))
        else:
            self._check_batch(source, target)
            total = max(count(self.config, target), 1)
            loss = self._on_mesh.step(self.steps, source, target, keep, total)
        self.steps, self._current = self.steps + 1, False
        return loss

    def loss(self, source: np.ndarray | None, target: np.ndarray) -> tuple[float, int]:
        """In evaluation: the sum of -log p over the labels that count, without smoothing, and their
        number."""
        self._check(source, target)
        if self._on_mesh is not None:
            return self._on_mesh.loss(source, target), count(self.config, target)
        with tf.device(self._device):
            tokens = None if source is None else self._tensor(source)
            sides = self._loss.tokens(source, target)
            batch = tokens, self._tensor(target)
            value = self._evaluate(sides, *batch, total=1, training=False)
        return float(value), count(self.config, target)

    def greedy_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        """`Searcher.greedy_search` of the model as it is now."""
        return self._answers("greedy_search", source, strategy)

    def beam_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        """`Searcher.beam_search` of the model as it is now."""
        return self._answers("beam_search", source, strategy)

    def state(self) -> dict[str, np.ndarray]:
        """Copies of the parameters and moments: `parameters.<canonical name>`, `first_moment....`,
        `second_moment....`."""
        return dict(self.tensors())

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """The items of `state`, one by one."""
        for part, variables in self._parts().items():
            for name, (variable, native, letters, sizes) in variables.items():
                array = layout.relayout(weights.to_numpy(variable), native, letters, sizes)
                yield f"{part}.{name}", array

    def load_state(self, state: Mapping[str, np.ndarray], steps: int) -> None:
        """Continues a run from its `state` after that many steps.

        state: may read an array when it is asked for it. Raises ValueError listing all that does
        not fit.
        """
        if steps < 0:
            raise ValueError(f"steps must be at least 0; got {steps}")
        shapes = canonical.shapes(self.config)
        canonical.match(
            state,
            {f"{part}.{name}": shape for part in _PARTS for name, shape in shapes.items()},
            self._dtype,
        )
        for part, variables in self._parts().items():
            for name, (variable, native, letters, sizes) in variables.items():
                array = layout.relayout(state[f"{part}.{name}"], letters, native, sizes)
                variable.assign(weights.from_numpy(array))
        self.steps, self._current = steps, False
        self._optimizer.iterations.assign(steps)

    def _answers(
        self, search: str, source: np.ndarray, strategy: Strategy
    ) -> dict[str, np.ndarray]:
        """Searches with the parameters as they are now, by the graphs of the first call."""
        if self._searcher is None:
            self._searcher = Searcher(self.model, compiled=self._compiled)
        elif not self._current:
            self._searcher.refresh(self.model)
        self._current = True
        return {
            name: tensor.numpy()
            for name, tensor in getattr(self._searcher, search)(source, strategy).items()
        }

    def _built_optimizer(self) -> Adam:
        recipe, variables = self.recipe, weights.variables(self.model, self.config)
        decays = canonical.flatten(decay_mask(canonical.nest(canonical.axes(self.config))))
        exclude = [
            variable
            for variable, decay in zip(variables.values(), decays.values(), strict=True)
            if not decay
        ]
        schedule = Noam(self.config.model_width, recipe.warmup)
        optimizer = adam(
            schedule, recipe.beta_1, recipe.beta_2, recipe.epsilon, recipe.weight_decay, exclude
        )
        optimizer.build(self.model.trainable_variables)
        return optimizer

    def _parts(self) -> dict[str, dict[str, _Held]]:
        """The variables of the state by part and canonical name."""
        variables = weights.variables(self.model, self.config)
        shapes = canonical.shapes(self.config)
        parts: dict[str, dict[str, _Held]] = {part: {} for part in _PARTS}
        for name, letters in canonical.axes(self.config).items():
            native, axes = layout.native(name, letters, weights.TABLE)
            sizes = dict(zip(letters.split(), shapes[name], strict=True))
            variable = variables[native].value
            held = variable, *self._optimizer.moments(variable)
            for part, own in zip(_PARTS, held, strict=True):
                parts[part][name] = own, axes, letters, sizes
        return parts

    def _check(self, source: np.ndarray | None, target: np.ndarray) -> None:
        """Raises ValueError on ids and labels out of range, which a graph cannot see."""
        checks.check_source_given(self.config.encoder_layers, source)
        if source is not None:
            checks.check_same_batch(source=source.shape, target=target.shape)
        self.model.check_ids(source, target)
        if classes := self.config.classes:
            checks.check_classes(target.shape, target.dtype.name)
            checks.check_held(classes, *id_bounds(target), name="label")

    def _check_batch(self, source: np.ndarray | None, target: np.ndarray) -> None:
        self._check(source, target)
        parts = self.recipe.microbatches
        if len(target) % parts:
            raise ValueError(
                f"the batch must divide into {parts} microbatches; got {len(target)} rows"
            )

    def _batches(
        self, source: np.ndarray | None, target: np.ndarray, keep: Tree | None
    ) -> list[tuple[Any, ...]]:
        """The arguments of the graphs for each part of a batch: the tokens that it needs, ids, keep
        masks, the number of the batch's labels that count, and the part's place in the run."""
        parts = self.recipe.microbatches
        self._check_batch(source, target)
        total, rows = tf.constant(max(count(self.config, target), 1)), len(target) // parts
        batches = []
        for part in range(parts):
            chosen = slice(part * rows, (part + 1) * rows)
            drops = (
                None
                if keep is None
                else {
                    site: self._tensor(drop[chosen])
                    for site, drop in canonical.flatten(keep).items()
                }
            )
            masks = None if drops is None else canonical.nest(drops)
            place = tf.constant(self.steps * parts + part, tf.int64)
            ids = None if source is None else source[chosen], target[chosen]
            tokens = [None if array is None else self._tensor(array) for array in ids]
            batches.append((self._loss.tokens(*ids), *tokens, masks, total, place))
        return batches

    def _step(self, batches: list[tuple[Any, ...]]) -> tf.Tensor:
        """One update from the parts of a batch; returns its loss."""
        with tf.device(self._device):
            first, *others = batches
            if not others:
                return self._whole_step(*first)
            loss, gradients = self._part(*first)
            for batch in others:
                loss, gradients = tf.nest.map_structure(
                    tf.add, (loss, gradients), self._part(*batch)
                )
            self._apply(gradients)
        return loss

    def _one_step(self, *batch: Any) -> tf.Tensor:
        loss, gradients = self._gradients(*batch)
        self._update(gradients)
        return loss

    def _gradients(
        self,
        sides: Sides | None,
        source: tf.Tensor | None,
        target: tf.Tensor,
        keep: Tree | None,
        total: tf.Tensor,
        place: tf.Tensor,
    ) -> tuple[tf.Tensor, Any]:
        """The loss of some rows, and the gradients of the model's variables; rows of a table that
        no id names have the gradient 0."""
        for layer, generator in enumerate(self.model.non_trainable_variables):
            generator.assign(tf.stack([tf.constant(self._key + layer, place.dtype), place]))
        with tf.GradientTape() as tape:
            given = source, target, self.recipe.smoothing, total, keep
            loss = self._loss.run(sides, *given, training=keep is None)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _update(self, gradients: list[tf.Tensor]) -> None:
        if self.recipe.clip_norm is not None:
            gradients = clip_global_norm(gradients, self.recipe.clip_norm)
        self._optimizer.apply(gradients)

    def _tensor(self, array: np.ndarray) -> tf.Tensor:
        return weights.from_numpy(array, self._device)


def _device(name: str) -> str:
    if name not in _DEVICES:
        raise ValueError(f"device must be one of {', '.join(_DEVICES)}; got {name!r}")
    if name == "cuda" and not tf.config.list_physical_devices("GPU"):
        raise ValueError("device cuda needs a GPU that TensorFlow sees; it sees none")
    return _DEVICES[name]
