"""Data parallel by `tf.distribute`: every replica takes rows of a batch and holds every parameter
whole, and gradients are summed once."""

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig, layout, sites
from reference_numpy import parameters as canonical
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Group, Mesh, check, chunks

from .. import weights
from ..framework import keras
from ..transformer import Transformer

__all__ = [
    "Replicas",
    "Workers",
    "compilers",
    "count",
    "draw",
    "logical_devices",
    "on_mesh",
    "recomputing",
    "summed",
    "training_steps",
    "workers_alive",
]

_BATCH_ALONE = "TensorFlow's port splits the batch alone; got model={}"
_VJP = "_vjp"  # the end of the name of a component's gradient
_SEARCHES = ("greedy_search", "sample", "beam_search", "decode_in_steps")
_KINDS = {"cpu": "CPU", "cuda": "GPU"}
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
_PHILOX, _WORDS = 1, 4  # the generator, and how many words each of its counts gives


class Replicas:
    """The devices of a mesh, each of which has a copy of the model: those of this process, or one
    worker's or more where TF_CONFIG names a cluster.

    `tf.distribute` splits batches alone, so parameters are whole on every device, whether or not
    the mesh says `replicate`. Raises ValueError on a model axis, and on devices that are missing.
    """

    def __init__(self, config: TransformerConfig, mesh: Mesh, device: str = "cpu") -> None:
        if mesh.model > 1:
            raise ValueError(_BATCH_ALONE.format(mesh.model))
        check(config, mesh)
        self.mesh = mesh
        of_cluster = "TF_CONFIG" in os.environ
        self.strategy = _of_cluster(mesh) if of_cluster else _of_process(mesh, _KINDS[device])
        self.group = Workers(self.strategy) if of_cluster else Group()

    def rows(self, array: Any, begin: int, end: int) -> Any:
        """For every replica here its rows of an array's rows begin .. end."""
        places = chunks(end - begin, self.mesh.data)
        return self.each(
            lambda index: array[begin + places[index].start : begin + places[index].stop]
        )

    def each(self, value: Callable[[int], Any]) -> Any:
        """For every replica here the value of its number."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: weights.from_numpy(value(context.replica_id_in_sync_group))
        )

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function gives on every replica, of its own part of each argument."""
        with workers_alive():
            return self.strategy.run(function, args=arguments)

    def first(self, values: Any) -> Any:
        """One of the values of the replicas here, which are the same."""
        return tf.nest.map_structure(
            lambda value: self.strategy.experimental_local_results(value)[0], values
        )


class Workers(Group):
    """The processes of a cluster, in the order of TF_CONFIG: a chief first."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        resolver = strategy.cluster_resolver
        cluster = resolver.cluster_spec()
        tasks = [
            (job, index)
            for job in ("chief", "worker")
            if job in cluster.jobs
            for index in cluster.task_indices(job)
        ]
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


def logical_devices(count: int) -> None:
    """Makes that many devices of the CPU, unless there are as many.

    Raises ValueError if TensorFlow was used before, which then has one.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    have = len(tf.config.get_logical_device_configuration(cpu) or [None])
    if have >= count:
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError:
        raise ValueError(
            f"TensorFlow splits the CPU into devices before its first use; {count} are needed, "
            f"and it was used with {have}"
        ) from None


def count(config: TransformerConfig, target: np.ndarray) -> int:
    """The number of labels of a batch that count: every class does."""
    if config.classes:
        return target.size
    label_bt = target[:, 1:]
    every = config.padding_id is None
    return label_bt.size if every else int((label_bt != config.padding_id).sum())


def draw(
    config: TransformerConfig,
    seed: int,
    place: tf.Tensor,
    rows: int,
    source_length: int,
    target_length: int,
) -> dict[str, tf.Tensor]:
    """Random keep masks of some rows of a batch, by site: the same whichever replica draws them.

    place: the first of the rows in the whole batch, and the step. An entry is a function of seed,
    site, step and its place in the whole mask: Philox counts blocks of rows in one half of its
    counter and steps in the other.
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
    """The scope in which a model is made whose layers compute their activations again in the
    backward pass."""
    count = max(config.encoder_layers, config.decoder_layers)
    names = [f"layers_{index}" for index in range(count)]
    return keras.RematScope("list_of_layers", layer_names=names)


def on_mesh(case: Any, build: Callable[..., Callable[..., Any]]) -> Any:
    """What a component with parameters gives on the devices of a case's mesh: whole arrays, the
    same in every process; of `<component>_vjp` the gradients by name.

    build: of the component, `build(config, dtype)`. Raises NotImplementedError on a model axis, on
    a search and on a component without parameters.
    """
    component = case.component.removesuffix(_VJP)
    _need_batch_alone(case.mesh)
    if component in _SEARCHES or not case.parameters:
        raise NotImplementedError(f"TensorFlow's port computes {component} on one device")
    return _Asked(case, component, build).answer()


def training_steps(case: Any, trainer: Callable[..., Any]) -> dict[str, np.ndarray]:
    """The losses of a case's steps of training on its mesh, and the parameters after them.

    Raises NotImplementedError on a model axis.
    """
    _need_batch_alone(case.mesh)
    given, under = canonical.flatten(case.inputs), canonical.nest(case.inputs)
    masks = canonical.flatten(under.get("keep", {}))
    run = trainer(
        case.config,
        Recipe(**under["recipe"]),
        case.parameters,
        device=case.device,
        compiled=case.mode == "compiled",
        mesh=case.mesh,
        recompute=bool(given.get("recompute")),
    )
    losses = []
    for step in range(len(given["target"])):
        ids = (None if given.get(n) is None else given[n][step] for n in ("source", "target"))
        keep = {site: mask[step] for site, mask in masks.items()} or None
        losses.append(float(run.train_step(*ids, keep)))
    found = {name: x for name, x in run.tensors() if name.startswith("parameters.")}
    return {"losses": np.array(losses, case.dtype), **found}


class _Asked:
    """The component of a case on replicas, and its inputs: rows, whole arrays and plain values."""

    def __init__(self, case: Any, component: str, build: Callable[..., Any]) -> None:
        self._replicas = Replicas(case.config, case.mesh, case.device)
        with self._replicas.strategy.scope():
            self._function = build(case.config, tf.as_dtype(case.dtype))
            module = _owner(self._function)
            self._of = "transformer" if isinstance(module, Transformer) else component
            weights.load(module, case.parameters, case.config, self._of)
        self._variables = weights.variables(module, case.config, self._of)
        self._case, self._is_loss = case, component.endswith("_loss")
        given = canonical.flatten(case.inputs)
        arrays = {name: x for name, x in given.items() if isinstance(x, np.ndarray)}
        self._plain = {name: x for name, x in given.items() if name not in arrays}
        rows = {n: x for n, x in arrays.items() if x.ndim and _axes(n).startswith("b")}
        sizes = {len(x) for x in rows.values()}
        size = 0 if 0 in sizes else max(sizes)
        self._rows = {n: x for n, x in rows.items() if len(x) == size}  # one row may be for all
        self._whole = {n: weights.from_numpy(x) for n, x in arrays.items() if n not in self._rows}
        if self._is_loss and given.get("total") is None:
            labels = given["label_b" if component == "classification_loss" else "target"]
            self._plain["total"] = max(count(case.config, labels), 1)

    def answer(self) -> Any:
        """The outputs, or the gradients."""
        xla, graph = compilers(self._case.mode == "compiled")
        derived = self._case.component.endswith(_VJP)
        compute = xla(self._gradients if derived else self._outputs)

        def on_replica(own: dict[str, Any]) -> tuple[Any, Any]:
            shared, rows = compute(own)
            sums = summed([*shared.values()]) if shared else []
            return dict(zip(shared, sums, strict=True)), rows

        split = {name: self._replicas.rows(x, 0, len(x)) for name, x in self._rows.items()}
        run = graph(lambda own: self._replicas.run(on_replica, own))
        shared, rows = run(self._whole | split)
        shared = tf.nest.map_structure(weights.to_numpy, self._replicas.first(shared))
        rows = self._gathered(rows)
        if not derived:
            return shared["loss"] if self._is_loss else rows
        natives = {name: shared.pop(name) for name in self._variables}
        found = layout.from_native(natives, weights.TABLE, self._case.config, self._of)
        return rows | shared | {f"parameters.{name}": x for name, x in found.items()}

    def _outputs(self, own: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """What is a sum over the replicas, and what are rows."""
        found = self._function(**canonical.nest(self._plain | own))
        return ({"loss": found}, {}) if self._is_loss else ({}, found)

    def _gradients(self, own: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        own = {**own}
        cotangent = own.pop("cotangent")
        inputs = {name: x for name, x in own.items() if x.dtype.is_floating}
        natives = {name: variable.value for name, variable in self._variables.items()}
        with tf.GradientTape() as tape:
            tape.watch([*inputs.values()])
            found = tf.nest.flatten(self._outputs(own))[0]
        pulled = tape.gradient(found, inputs | natives, cotangent, tf.UnconnectedGradients.ZERO)
        pulled = {name: tf.convert_to_tensor(x) for name, x in pulled.items()}
        rows = {name: pulled.pop(name) for name in inputs if name in self._rows}
        return pulled, rows

    def _gathered(self, rows: Any) -> Any:
        """The rows of all replicas, by name if there are names."""
        gather = self._replicas.strategy.gather
        if not isinstance(rows, Mapping):
            return tf.nest.map_structure(lambda x: weights.to_numpy(gather(x, 0)), rows)
        return canonical.nest(
            {
                name: weights.to_numpy(gather(x, max(0, _axes(name).find("b"))))
                for name, x in canonical.flatten(rows).items()
            }
        )


def _need_batch_alone(mesh: Mesh) -> None:
    if mesh.model > 1:
        raise NotImplementedError(_BATCH_ALONE.format(mesh.model))


def _axes(name: str) -> str:
    """The letters in which a name ends; those of ids, of keep masks and of a cotangent are rows."""
    of_rows = name.startswith("keep.") or name in ("source", "target", "token", "cotangent")
    return "b" if of_rows else name.rpartition("_")[2]


def _owner(function: Any) -> Any:
    """The module whose parameters a component has."""
    if isinstance(function, functools.partial):
        return function.args[0]
    return getattr(function, "__self__", function)


def _of_cluster(mesh: Mesh) -> tf.distribute.Strategy:
    """The strategy of the workers that TF_CONFIG names."""
    strategy = _multi_worker()
    if strategy.num_replicas_in_sync != mesh.data:
        raise ValueError(
            f"the mesh {mesh} needs {mesh.devices} devices; the workers of TF_CONFIG have "
            f"{strategy.num_replicas_in_sync} together"
        )
    return strategy


@functools.cache  # a process joins its cluster once, before it uses TensorFlow
def _multi_worker() -> tf.distribute.Strategy:
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise ValueError(
            f"a worker of TF_CONFIG must join before TensorFlow's first use; got: {error}"
        ) from None


def _of_process(mesh: Mesh, kind: str) -> tf.distribute.Strategy:
    """The strategy of the first devices of that kind that this process has."""
    if kind == "CPU":
        logical_devices(mesh.devices)
    devices = [device.name for device in tf.config.list_logical_devices(kind)]
    if len(devices) < mesh.devices:
        raise ValueError(
            f"the mesh {mesh} needs {mesh.devices} devices; TensorFlow sees {len(devices)}"
        )
    return tf.distribute.MirroredStrategy(devices[: mesh.devices])


@contextmanager
def workers_alive() -> Iterator[None]:
    """Raises ConnectionError, in one sentence, if another worker has gone."""
    try:
        yield
    except _LOST as error:
        raise ConnectionError(
            "another worker of TF_CONFIG has ended or does not answer; start all of them again"
        ) from error


def summed(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Their sums over the replicas, in a replica."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, [*tensors])


def compilers(compiled: bool) -> Iterator[Callable[..., Any]]:
    """What makes a graph of a replica's function, by XLA, and of what replicas do together."""
    for jit_compile in (True, None):
        make = functools.partial(tf.function, autograph=False, jit_compile=jit_compile)
        yield make if compiled else lambda function: function
