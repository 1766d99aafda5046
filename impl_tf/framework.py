"""Keras on the TensorFlow backend: base classes of layers, and all private names in use.

No other file of the package uses private names of Keras.
"""

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig

__all__ = [
    "PRIVATE",
    "Configured",
    "Recomputed",
    "Routed",
    "Traced",
    "Tree",
    "attached_mask",
    "check_dense",
    "check_total_given",
    "decays",
    "id_bounds",
    "ids",
    "keras",
    "other_layers",
    "register",
    "sizes",
    "unlocked",
    "variable_index",
]

# Private names of Keras, and the consequence of losing each.
PRIVATE = {
    "keras.layers.Layer._remat_mode": "a recomputed layer would recompute itself forever",
    "keras.layers.Layer._get_call_context": "a recomputed layer would not know if it trains",
    "keras.layers.Layer._flatten_layers": "fused programs would skip a user's own layers",
    "keras.layers.Layer._tracker": "a built layer could not get LoRA's variables",
    "keras.optimizers.Optimizer._get_variable_index": "variables would lose their moments",
    "keras.optimizers.Optimizer._use_weight_decay": "all variables would decay",
    "tf.Tensor._keras_mask": "the masks of Masking and mask_zero would be lost",
}

if keras.backend.backend() != "tensorflow":
    raise ValueError(
        "impl_tf needs Keras on the TensorFlow backend (KERAS_BACKEND=tensorflow); "
        f"got {keras.backend.backend()}"
    )

# Tensors, nested by the parts of their canonical names.
Tree: TypeAlias = Mapping[str, "tf.Tensor | Tree"]

register = keras.saving.register_keras_serializable(package="rosettaformer")


class Routed:
    """Collects the logits of routers. Keras copies the lists that it passes to a layer."""

    def __init__(self) -> None:
        self.logits: list[tf.Tensor] = []


class Recomputed:
    """A Keras layer that keras.RematScope can recompute.

    Keras passes all arguments of a call to `tf.recompute_grad`, which takes floating tensors only;
    the others are captured for it. The recomputation uses the original arguments, masks, training
    mode and random numbers.
    """

    _remat_mode: object  # set by Keras

    def rematerialized_call(
        self, layer_call: Callable[..., tf.Tensor], *args: object, **kwargs: object
    ) -> Callable[..., tf.Tensor]:
        given = inspect.signature(layer_call).bind(*args, **kwargs).arguments
        tensors = {name: value for name, value in given.items() if tf.is_tensor(value)}
        floating = {name: x for name, x in tensors.items() if x.dtype.is_floating}
        if not floating:
            return layer_call
        training = self._get_call_context().get_value("training")  # type: ignore[attr-defined]
        variables = self.non_trainable_variables  # type: ignore[attr-defined]
        seeds = [variable for variable in variables if not tf.as_dtype(variable.dtype).is_floating]
        first: list[list[tf.Tensor]] = []  # values of the seeds in the first call

        def call(*again: tf.Tensor) -> tf.Tensor:
            masked = map(_masked, again, floating.values())
            arguments = given | dict(zip(floating, masked, strict=True))
            now = [tf.identity(seed.value) for seed in seeds]
            if not first:
                first.append(now)
                return layer_call(**arguments)
            tf.nest.map_structure(keras.Variable.assign, seeds, first[0])
            mode, self._remat_mode = self._remat_mode, None
            try:
                return self(**{**arguments, "training": training})  # type: ignore[operator]
            finally:
                self._remat_mode = mode
                tf.nest.map_structure(keras.Variable.assign, seeds, now)

        run = super().rematerialized_call(call, *args, **kwargs)  # type: ignore[misc]
        return lambda *_, **__: run(*floating.values())


def _masked(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Attaches the Keras mask of another tensor to x."""
    if x is not like and (mask_bt := attached_mask(like)) is not None:
        x._keras_mask = mask_bt
    return x


class Traced(Recomputed, keras.layers.Layer):
    """A Keras layer that reports an output shape to `summary`, default that of its first input.

    Symbolic calls are traced too, so that its checks apply. The output has the first input's mask.
    """

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_spec(self, *args: object, **kwargs: object) -> keras.KerasTensor:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return tuple(input_shape)


class Configured(Traced):
    """A Keras layer built from a TransformerConfig, which is saved as a plain mapping.

    Layers that are its attributes are built with it.
    """

    def __init__(self, config: TransformerConfig, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.config = config

    def build(self, input_shape: object = None) -> None:
        for part in vars(self).values():
            if isinstance(part, keras.layers.Layer) and not part.built:
                part.build((None, None, self.config.model_width))

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: object = None) -> Self:
        return cls(**{**config, "config": TransformerConfig.from_dict(config["config"])})


def sizes(x: tf.Tensor) -> tuple[int | tf.Tensor, ...]:
    """Returns the sizes of a tensor's axes: ints, or scalar tensors where the graph has unknowns.

    `keras.ops.shape` does the same, but runs an operation even if all sizes are known.
    """
    shape = tuple(x.shape)
    return keras.ops.shape(x) if None in shape else shape


def id_bounds(ids: tf.Tensor) -> tuple[int, ...]:
    """Returns the smallest and largest id of a tensor or array; () if there are none, if they are
    not integers, or if a graph does not know them.
    """
    check_dense(ids)
    if tf.is_symbolic_tensor(ids):
        return ()
    ids = np.asarray(ids)
    return (int(ids.min()), int(ids.max())) if ids.dtype.kind in "iu" and ids.size else ()


def check_dense(*given: object) -> None:
    """Raises ValueError on ragged and sparse tensors."""
    for x in given:
        if isinstance(x, (tf.RaggedTensor, tf.SparseTensor)):
            raise ValueError(
                "ids and masks must be dense tensors with shorter rows padded; "
                f"got a {type(x).__name__}"
            )


def ids(token: tf.Tensor) -> tf.Tensor:
    """Casts a graph's floating ids `b t` to integers, like keras.layers.Embedding: under a
    strategy, `fit` builds models with such ids.
    """
    symbolic = tf.is_symbolic_tensor(token) and token.dtype.is_floating and len(token.shape) == 2
    return tf.cast(token, tf.int64) if symbolic else token


def attached_mask(x: tf.Tensor) -> tf.Tensor | None:
    """Returns the mask `b t` that Keras attached to a tensor (Masking, mask_zero), or None."""
    return getattr(x, "_keras_mask", None)


def other_layers(model: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Returns layers of a Transformer that are of other packages or have their own `call`, and the
    model itself if it overrides a computation; overriding training is allowed.
    """

    def is_ours(kind: type) -> bool:
        return kind.__module__.partition(".")[0] == __name__.partition(".")[0]

    def is_own(layer: keras.layers.Layer) -> bool:
        kind = type(layer)
        if layer is not model:
            return is_ours(kind) and "call" not in vars(layer)
        own = next(filter(is_ours, kind.__mro__))
        computing = ("call", "encode", "decode", "embed", "head")
        same = all(getattr(kind, name) is getattr(own, name) for name in computing)
        return same and "call" not in vars(layer)

    return [layer for layer in model._flatten_layers() if not is_own(layer)]


@contextlib.contextmanager
def unlocked(layer: keras.layers.Layer) -> Iterator[None]:
    """Context in which a built layer accepts new variables."""
    layer._tracker.unlock()
    yield
    layer._tracker.lock()


def variable_index(
    optimizer: keras.optimizers.Optimizer, variable: keras.Variable | tf.Variable
) -> int:
    """Returns the index of a variable in an optimizer."""
    return optimizer._get_variable_index(variable)


def decays(optimizer: keras.optimizers.Optimizer, variable: keras.Variable | tf.Variable) -> bool:
    """Whether `exclude_from_weight_decay` spares a variable: False if it does."""
    return optimizer._use_weight_decay(variable)


def check_total_given(total: object) -> None:
    """Raises ValueError in one of several replicas, which would only count its own rows."""
    replica = tf.distribute.get_replica_context()
    if total is None and replica is not None and replica.num_replicas_in_sync > 1:
        raise ValueError(
            f"total must be given under a strategy of {replica.num_replicas_in_sync} replicas, "
            "whose gradients are summed: the number of counted labels in the rows of all "
            "replicas; got None"
        )
