"""Runs components, their gradients and training steps on a mesh for the judge."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig, layout
from reference_numpy import parameters as canonical
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Mesh

from .. import weights
from ..framework import Tree
from ..stacks import Decoder, Encoder
from ..transformer import Transformer
from .sharding import BATCH_ALONE, Replicas, compilers, count, following, lengths, summed

__all__ = ["Answer", "Build", "Case", "on_mesh"]

_VJP = "_vjp"  # suffix of a component's gradient
_SEARCHES = ("greedy_search", "sample", "beam_search", "decode_in_steps")

Named: TypeAlias = dict[str, tf.Tensor]
# The result of a component: tensors, or NumPy arrays.
Answer: TypeAlias = np.ndarray | tf.Tensor | tuple[tf.Tensor, ...] | Tree
Build: TypeAlias = Callable[[TransformerConfig, tf.DType], Callable[..., Answer]]


class Case(Protocol):
    """A case of the judge. inputs: arrays and plain values, by dotted names."""

    component: str
    config: TransformerConfig
    inputs: Mapping[str, Any]
    parameters: Mapping[str, np.ndarray]
    dtype: str
    device: str
    mode: str
    mesh: Mesh


def on_mesh(case: Case, components: Mapping[str, Build], trainer: Callable[..., Any]) -> Answer:
    """Returns a component's outputs on the mesh of a case; for `<component>_vjp` the gradients by
    name, for `training_steps` the losses and final parameters.

    Arrays are whole and the same in every process. Raises NotImplementedError on a model axis, a
    search, and a component without parameters.
    """
    component = case.component.removesuffix(_VJP)
    if case.mesh.model > 1:
        raise NotImplementedError(f"{BATCH_ALONE}; got model={case.mesh.model}")
    if component in _SEARCHES or not case.parameters:
        raise NotImplementedError(f"impl_tf computes {component} on one device only")
    with _products(case.device):
        if component == "training_steps":
            return _training_steps(case, trainer)
        return _Asked(case, component, components[component]).answer()


def _training_steps(case: Case, trainer: Callable[..., Any]) -> dict[str, np.ndarray]:
    """Returns the losses of a case's training steps, and the parameters after them."""
    given = canonical.nest(canonical.flatten(case.inputs))
    run = trainer(
        case.config,
        Recipe(**given["recipe"]),
        case.parameters,
        device=_kind(case.device),
        compiled=case.mode == "compiled",
        mesh=case.mesh,
        recompute=bool(given.get("recompute")),
    )
    arrays = {n: given[n] for n in ("source", "target", "keep") if given.get(n) is not None}
    losses = []
    for step in range(len(given["target"])):
        batch = tf.nest.map_structure(lambda array, step=step: array[step], arrays)
        losses.append(float(run.train_step(**{"source": None, **batch})))
    found = {name: x for name, x in run.tensors() if name.startswith("parameters.")}
    return {"losses": np.array(losses, case.dtype), **found}


class _Asked:
    """A component on replicas, and its inputs: rows, whole arrays and plain values."""

    def __init__(self, case: Case, component: str, build: Build) -> None:
        self._replicas = Replicas(case.mesh, _kind(case.device))
        with self._replicas.strategy.scope():
            self._function = build(case.config, tf.as_dtype(case.dtype))
            module = _owner(self._function)
            self._of = "transformer" if isinstance(module, Transformer) else component
            weights.load(module, case.parameters, case.config, self._of)
        self._variables = weights.variables(module, case.config, self._of)
        self._module, self._case, self._is_loss = module, case, component.endswith("_loss")
        given = canonical.flatten(case.inputs)
        arrays = {name: x for name, x in given.items() if isinstance(x, np.ndarray)}
        self._plain = {name: x for name, x in given.items() if name not in arrays}
        rows = {n: x for n, x in arrays.items() if x.ndim and _axes(n).startswith("b")}
        sizes = {len(x) for x in rows.values()}
        size = 0 if 0 in sizes else max(sizes)
        self._rows = {n: x for n, x in rows.items() if len(x) == size}  # others are shared by all
        self._whole = {n: weights.from_numpy(x) for n, x in arrays.items() if n not in self._rows}
        if self._is_loss and given.get("total") is None:
            labels = given["label_b" if component == "classification_loss" else "target"]
            self._plain["total"] = max(count(case.config, labels), 1)
        self._stacks: dict[Encoder | Decoder, int] = {}  # stack -> the text length that it uses
        if case.config.rotary_by_length:
            self._follow(given)

    def answer(self) -> Answer:
        """Returns the outputs, or the gradients."""
        xla, graph = compilers(self._case.mode == "compiled")
        derived = self._case.component.endswith(_VJP)
        compute = xla(self._gradients if derived else self._outputs)

        def on_replica(own: Named) -> tuple[Named, Answer]:
            shared, rows = compute(own)
            return summed(shared) if shared else {}, rows

        split = {name: self._replicas.rows(x, 0, len(x)) for name, x in self._rows.items()}
        run = graph(lambda own: self._replicas.run(on_replica, own))
        with following(self._stacks):
            shared, rows = run(self._whole | split)
        shared = tf.nest.map_structure(weights.to_numpy, self._replicas.first(shared))
        rows = self._gathered(rows)
        if not derived:
            return shared["loss"] if self._is_loss else rows
        natives = {name: shared.pop(name) for name in self._variables}
        found = layout.from_native(natives, weights.TABLE, self._case.config, self._of)
        return rows | shared | {f"parameters.{name}": x for name, x in found.items()}

    def _follow(self, given: Mapping[str, Any]) -> None:
        """Computes the text length of the whole batch: its largest position plus 1."""
        position_bt = given.get("position_bs", given.get("position_bt"))
        if isinstance(self._module, Transformer):
            source, target = given.get("source"), given.get("target")
            read = target[:, :-1] if self._is_loss and target is not None else target
            mask_bs, mask_bt = given.get("source_mask_bs"), given.get("target_mask_bt")
            found = lengths(self._case.config, source, read, mask_bs, mask_bt)
            self._stacks = {getattr(self._module, stack): x for stack, x in found.items()}
        elif position_bt is not None:
            length = int(position_bt.max(initial=0)) + 1
            if isinstance(self._module, Encoder | Decoder):
                self._stacks = {self._module: length}
            else:
                self._plain["length"] = length

    def _outputs(self, own: Named) -> tuple[Named, Answer]:
        """Returns the sums over replicas, and the rows."""
        found = self._function(**canonical.nest(self._plain | own))
        return ({"loss": found}, {}) if self._is_loss else ({}, found)

    def _gradients(self, own: Named) -> tuple[Named, Named]:
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

    def _gathered(self, rows: Answer) -> Answer:
        """Gathers the rows of all replicas, by name if named."""

        def gathered(name: str, x: tf.distribute.DistributedValues) -> np.ndarray:
            axis = max(0, _axes(name).find("b"))
            return weights.to_numpy(self._replicas.strategy.gather(x, axis))

        if not isinstance(rows, Mapping):
            return tf.nest.map_structure(functools.partial(gathered, ""), rows)
        flat = canonical.flatten(rows)
        return canonical.nest({name: gathered(name, x) for name, x in flat.items()})


@contextmanager
def _products(device: str) -> Iterator[None]:
    """Enables TF32 products only on the device cuda-tf32."""
    settings = tf.config.experimental
    before = settings.tensor_float_32_execution_enabled()
    settings.enable_tensor_float_32_execution(device == "cuda-tf32")
    try:
        yield
    finally:
        settings.enable_tensor_float_32_execution(before)


def _kind(device: str) -> str:
    return device.partition("-")[0]


def _axes(name: str) -> str:
    """Returns the axes suffix of a name; ids, keep masks and cotangents count as rows."""
    of_rows = name.startswith("keep.") or name in ("source", "target", "token", "cotangent")
    return "b" if of_rows else name.rpartition("_")[2]


def _owner(function: Any) -> Any:
    """Returns the module that holds a component's parameters."""
    if isinstance(function, functools.partial):
        return _owner(function.args[0])
    return getattr(function, "__self__", function)
