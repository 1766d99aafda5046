"""Data parallelism by `tf.distribute`: replicas hold all parameters and take rows of a batch;
gradients are summed once.
"""

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import ParamSpec, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig, sites
from reference_numpy.sharding import Group, Mesh, chunks

from .. import inputs, weights
from ..framework import keras

__all__ = [
    "BATCH_ALONE",
    "Replicas",
    "Workers",
    "compilers",
    "count",
    "draw",
    "following",
    "lengths",
    "logical_devices",
    "recomputing",
    "summed",
    "workers_alive",
]

BATCH_ALONE = "impl_tf only splits the batch"
_KINDS = {"cpu": "CPU", "cuda": "GPU"}
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
_PHILOX, _WORDS = 1, 4  # the generator, and words per count

P = ParamSpec("P")
R = TypeVar("R")
Distributed: TypeAlias = tf.distribute.DistributedValues  # a value for every local replica


class Replicas:
    """The devices of a mesh, each with a copy of the model: devices of this process, or of the
    workers of the cluster in TF_CONFIG.

    Raises ValueError on a model axis, and if devices are missing. Parameters are whole on every
    device, whatever `replicate` says.
    """

    def __init__(self, mesh: Mesh, device: str = "cpu") -> None:
        if mesh.model > 1:
            raise ValueError(f"{BATCH_ALONE}; got model={mesh.model}")
        self.mesh, self.group = mesh, Group()
        if "TF_CONFIG" in os.environ:
            self.strategy = _of_cluster(_KINDS[device])
            self.group = Workers(self.strategy)
        else:
            self.strategy = _of_process(mesh, _KINDS[device])
        if (have := self.strategy.num_replicas_in_sync) != mesh.devices:
            raise ValueError(
                f"the mesh {mesh} needs {mesh.devices} devices; the workers of TF_CONFIG have "
                f"{have} in total"
            )

    def rows(self, array: np.ndarray, begin: int, end: int) -> Distributed:
        """Returns for every local replica its share of the rows begin .. end of an array."""
        places = chunks(end - begin, self.mesh.data)
        return self.each(lambda index: array[begin:end][places[index]])

    def each(self, value: Callable[[int], np.ndarray]) -> Distributed:
        """Returns for every local replica the value of its index."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: weights.from_numpy(value(context.replica_id_in_sync_group))
        )

    def run(self, function: Callable[..., R], *arguments: Distributed) -> R:
        """Runs the function on every replica, with its part of each argument."""
        with workers_alive():
            return self.strategy.run(function, args=arguments)

    def first(self, values: R) -> R:
        """Returns the value of the first local replica; all are equal."""
        local = self.strategy.experimental_local_results
        return tf.nest.map_structure(lambda value: local(value)[0], values)


class Workers(Group):
    """The processes of a cluster, in the order of TF_CONFIG, the chief first."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        resolver = strategy.cluster_resolver
        cluster = resolver.cluster_spec()
        jobs = [job for job in ("chief", "worker") if job in cluster.jobs]
        tasks = [(job, index) for job in jobs for index in cluster.task_indices(job)]
        self.rank, self.size = tasks.index((resolver.task_type, resolver.task_id)), len(tasks)
        self._strategy = strategy
        self._found = tf.function(
            lambda flag: strategy.run(lambda: summed([flag])[0]), autograph=False
        )

    def any(self, flag: bool) -> bool:
        with workers_alive():
            found = self._found(tf.constant(int(flag)))
        return bool(self._strategy.experimental_local_results(found)[0])

    def barrier(self) -> None:
        self.any(False)


def logical_devices(mesh: Mesh) -> None:
    """Splits the CPU into the devices of a mesh, unless there are enough.

    Raises ValueError if TensorFlow was already used with fewer devices.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    have = len(tf.config.get_logical_device_configuration(cpu) or [None])
    if have >= mesh.devices:
        return
    devices = [tf.config.LogicalDeviceConfiguration()] * mesh.devices
    try:
        tf.config.set_logical_device_configuration(cpu, devices)
    except RuntimeError:
        raise ValueError(
            f"the mesh {mesh} needs {mesh.devices} devices; TensorFlow sees {have}, and can split "
            "the CPU only before its first use"
        ) from None


def count(config: TransformerConfig, target: np.ndarray) -> int:
    """Returns the number of labels of a batch that count; every class does."""
    # No id equals None.
    return target.size if config.classes else int((target[:, 1:] != config.padding_id).sum())


def lengths(
    config: TransformerConfig,
    source: np.ndarray | None,
    target: np.ndarray | None,
    source_mask: np.ndarray | None = None,
    target_mask: np.ndarray | None = None,
) -> dict[str, int]:
    """Returns the text length of each stack in a whole batch: the largest position plus 1."""
    read = {"encoder": ("source", source, source_mask), "decoder": ("target", target, target_mask)}
    found = {}
    for stack, (side, token, mask_bt) in read.items():
        if token is not None and getattr(config, f"{stack}_layers"):
            token = tf.convert_to_tensor(token)
            _, position_bt = inputs.masked_positions(config, side, token, mask_bt)
            found[stack] = int(position_bt.numpy().max(initial=0)) + 1
    return found


@contextmanager
def following(length_of: Mapping[keras.layers.Layer, int | tf.Variable]) -> Iterator[None]:
    """Makes frequencies that depend on the text length (ROTARY) use this length for a stack: that
    of the whole batch, of which a replica reads some rows.
    """
    for stack, length in length_of.items():
        stack.walk = functools.partial(stack.walk, length=length)
    try:
        yield
    finally:
        for stack in length_of:
            del stack.walk


def draw(
    config: TransformerConfig,
    seed: int,
    place: tf.Tensor,
    rows: int,
    source_length: int,
    target_length: int,
) -> dict[str, tf.Tensor]:
    """Draws keep masks for some rows of a batch, by site; the same on every replica.

    place: index of the first row in the whole batch, and the step. Philox counts blocks of rows in
    one half of its counter and steps in the other.
    """
    shapes = sites.shapes(config, rows, source_length, target_length)
    result = {}
    for index, (site, shape) in enumerate(shapes.items()):
        key = np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)
        width = math.prod(shape[1:])
        blocks = -(-width // _WORDS)
        word = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[rows, _WORDS * blocks],
            key=key,
            counter=tf.bitcast(place * [blocks, 1], tf.uint64),
            alg=_PHILOX,
            dtype=tf.uint32,
        )
        kept = word >= tf.constant(int(sites.rate(config, site) * 2**32), tf.uint32)
        result[site] = tf.reshape(kept[:, :width], shape)
    return result


def recomputing(config: TransformerConfig) -> keras.RematScope:
    """Scope for creating a model that recomputes activations in the backward pass."""
    count = max(config.encoder_layers, config.decoder_layers)
    names = [f"layers_{index}" for index in range(count)]
    return keras.RematScope("list_of_layers", layer_names=names)


@functools.cache  # a process joins its cluster once, before it uses TensorFlow
def _of_cluster(kind: str) -> tf.distribute.Strategy:
    """Returns the strategy of the workers in TF_CONFIG, each with all of its devices of this kind;
    the CPU is one device.
    """
    try:
        if kind == "CPU":
            tf.config.set_visible_devices([], "GPU")
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise ValueError(
            f"a worker of TF_CONFIG must join before TensorFlow's first use; it says: {error}"
        ) from None


def _of_process(mesh: Mesh, kind: str) -> tf.distribute.Strategy:
    """Returns a strategy for this process's first devices of this kind."""
    if kind == "CPU":
        logical_devices(mesh)
    devices = [device.name for device in tf.config.list_logical_devices(kind)]
    if len(devices) < mesh.devices:
        raise ValueError(
            f"the mesh {mesh} needs {mesh.devices} devices; TensorFlow sees {len(devices)}"
        )
    return _mirrored(tuple(devices[: mesh.devices]), kind)


@functools.cache  # collectives of two strategies share keys and block each other
def _mirrored(devices: tuple[str, ...], kind: str) -> tf.distribute.Strategy:
    """CPUs sum on the first device, in a fixed order, without collectives."""
    if kind == "CPU":
        return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
    return tf.distribute.MirroredStrategy(devices)


@contextmanager
def workers_alive() -> Iterator[None]:
    """Raises a one-line ConnectionError if another worker is gone."""
    try:
        yield
    except _LOST as error:
        raise ConnectionError(
            "another worker of TF_CONFIG has ended or does not answer; restart all workers"
        ) from error


def summed(tensors: R) -> R:
    """Sums tensors of a nest over the replicas, within a replica."""
    # Graph arguments have no device, which a process with one replica needs.
    placed = tf.nest.map_structure(tf.identity, tensors)
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, placed)


def compilers(compiled: bool) -> Iterator[Callable[[Callable[P, R]], Callable[P, R]]]:
    """Yields decorators that compile a replica's function, by XLA, and their joint work."""
    for jit_compile in (True, None):
        make = functools.partial(tf.function, autograph=False, jit_compile=jit_compile)
        yield make if compiled else lambda function: function
