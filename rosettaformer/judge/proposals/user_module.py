"""A user's module, built at small sizes that all differ, with its parameters."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import preset

from ...common.modules import BACKENDS, face, framework_of
from . import parameter_leaves
from .calling import Call, called
from .component_inputs import is_model
from .construction import Construction
from .failures import FAILURES, failure, limited
from .source import Source
from .trials import example
from .vocabulary import role_of

WIDTH, HEADS, SIZE = 12, 3, 4
SIZES: dict[str, Any] = {
    "source_vocabulary": 11, "target_vocabulary": 17, "model_width": WIDTH, "heads": HEADS, "key_value_heads": HEADS, "key_size": SIZE,
    "value_size": SIZE, "feed_forward_width": Construction.width, "encoder_layers": 2, "decoder_layers": 2, "padding_id": 0,
    "positions": "learned", "max_positions": 256,  # more than any case has
}  # fmt: skip


class Subject:
    """The module of a class or function, and what can be seen of it.

    sizes: at which it is built. started: what its first call shows. leaves: its parameters. epsilon: what its norms say. masked: whether
    its first call needs masks.
    Raises ValueError if it cannot be built or called, or if it is not a module of a framework.
    """

    def __init__(self, source: Source, plan: Construction, component: str, wanted: str) -> None:
        self.source, self.plan, self.sizes, self.masked = source, plan, _sizes(plan), False
        self._build(component, wanted)
        tables = {size for leaf in self.leaves for size in leaf.shape} & {SIZES["source_vocabulary"], SIZES["target_vocabulary"]}
        if len({self.sizes["source_vocabulary"], self.sizes["target_vocabulary"]}) > len(tables) == 1:  # its tables are a single tensor
            self.sizes["source_vocabulary"] = self.sizes["target_vocabulary"]
            self._build(component, wanted)
        self.sizes |= _inferred(self.leaves, plan)

    @property
    def adapter(self) -> str:
        """The framework as a port names it."""
        return BACKENDS[self.framework]

    def _build(self, component: str, wanted: str) -> None:
        self.module = self.plan.make(preset("nn_transformer", **self.sizes))
        self.framework = framework_of(self.module)
        if not self.framework or wanted not in ("", self.framework, self.adapter):
            must = f"{self.source.name} must give a module of {wanted or 'torch, Keras or Flax'}"
            raise ValueError(f"{must}; got {type(self.module).__name__}; the port of anything else is written by hand: docs/ports.md")
        parameter_leaves.signature(self.module)
        self.started = self._start(component) if self.framework in ("keras", "linen") else parameter_leaves.Started()
        self.leaves = parameter_leaves.leaves(self.module, self.started.variables)
        self.epsilon = parameter_leaves.epsilon(self.module, self.started.modules)

    def _start(self, component: str) -> parameter_leaves.Started:
        """Calls a Keras layer, or initialises a Linen module: they have no parameters before they are given inputs.

        Raises ValueError if no component's inputs fit the module.
        """
        vocabulary = {"source_vocabulary", "target_vocabulary"} & self.plan.fields
        layers = ["encoder_layer", "decoder_layer", "multi_head_attention"]
        likely = ["transformer"] * bool(self.sizes["decoder_layers"]) + ["pool"] if vocabulary else layers
        arguments, problems = parameter_leaves.signature(self.module), []
        for name, decoder_only in itertools.product((component,) if component else likely, (False, True)):
            call = called(name, arguments, self.adapter, decoder_only)
            for number, values in enumerate(self._values(call, name, decoder_only)):
                try:
                    with limited("a call of the module"):
                        started = parameter_leaves.started(self.module, self.framework, values)
                    self.masked = number > 1
                    return started
                except FAILURES as error:
                    problems.append((len(call.unknown), failure(error)))
        raise ValueError(f"the module cannot be called: {min(problems, key=lambda problem: problem[0])[1]}")

    def _values(self, call: Call, name: str, decoder_only: bool) -> Iterator[dict[str, Any]]:
        """Yields the arguments of a call as that component: without masks, and with masks of ones in the forms that modules take."""
        sizes = self.sizes | ({"encoder_layers": 0, "segments": 0} if decoder_only else {})
        arrays = example(name, sizes)
        batch, length = next(array for array in arrays.values() if array is not None).shape[:2]
        arrays["zeros_btd"] = np.zeros((batch, length, self.sizes["model_width"]))
        tensor = face(self.framework).tensor
        inputs = {one: tensor(value) for one, value in arrays.items() if value is not None}
        known = {"inputs": inputs, "segments": lambda inputs: inputs["segment_bs"]}
        given = {one: eval(text, known) for one, text in call.given.items() if text != "itself"}
        values: dict[str, Any] = {one: inputs.get(value) if isinstance(value, str) else value(inputs) for one, value in given.items()}
        none = {one: None for one, argument in parameter_leaves.signature(self.module).items() if argument.default is argument.empty}
        yield {**none, **values}
        if not is_model(name):  # one row without a batch axis
            yield {**none, **{one: value[0] if hasattr(value, "shape") else value for one, value in values.items()}}
        keys = {one: length if side == "target" else _length(arrays, length) for one, side in call.sides.items()}
        counts = {one: tensor(np.full(batch, keys[one], np.int32)) for one in call.component_lengths}
        if counts:
            yield {**none, **values, **counts}
        if call.component_masks:
            for dtype, form in itertools.product((bool, np.float32, np.int32), ((batch, 0), (batch, 1, 1, 0), (batch, 1, 0), (length, 0))):
                shaped = {one: np.ones([size or keys[one] for size in form], dtype) for one in call.component_masks}
                yield {**none, **values, **{one: tensor(mask) for one, mask in shaped.items()}}


def _length(arrays: Mapping[str, Any], length: int) -> int:
    """Returns how many keys there are."""
    return next((arrays[name].shape[1] for name in ("memory_bsd", "source") if arrays.get(name) is not None), length)


def _sizes(plan: Construction) -> dict[str, Any]:
    """Returns the sizes at which the module is built: all distinct, as far as its constructor can tell them apart."""
    sizes = dict(SIZES)
    if "key_value_heads" in plan.fields:  # fewer than the heads, and more than one
        sizes |= {"model_width": 2 * WIDTH, "heads": 2 * HEADS, "key_value_heads": 2}
    if "key_size" in plan.fields:
        sizes |= {"key_size": 6, "value_size": 10 if "value_size" in plan.fields else 6}  # even: features rotate in pairs
    if "heads" not in plan.fields and "key_size" not in plan.fields:
        sizes |= {"heads": 1, "key_value_heads": 1, "key_size": WIDTH, "value_size": WIDTH}
    if not {"source_vocabulary", "target_vocabulary"} <= plan.fields:
        sizes["source_vocabulary"] = sizes["target_vocabulary"]
    if "segments" in plan.fields:
        sizes["segments"] = 3
    if "classes" in plan.fields:  # of an encoder-only model
        sizes |= {"classes": 5, "pooler": True, "decoder_layers": 0}
    return sizes


def _inferred(leaves: list[parameter_leaves.Leaf], plan: Construction) -> dict[str, Any]:
    """Returns sizes that the constructor derives: of keys and values a projection's size for each head; of the feed-forward the size that
    two kernels have beside the model width.
    """
    found, sizes = {}, _sizes(plan)
    width = sizes["model_width"]
    for name, role, heads in (("key_size", "query", "heads"), ("value_size", "value", "key_value_heads")):
        outputs = {_outputs(leaf, width) for leaf in leaves if role_of(_last(leaf.path)) == role} - {0}
        if "key_size" not in plan.fields and len(outputs) == 1 and (size := outputs.pop()) % sizes[heads] == 0:
            found[name] = size // sizes[heads]
    if "feed_forward_width" not in plan.fields or not any(sizes["feed_forward_width"] in leaf.shape for leaf in leaves):
        own = {width, 2 * width, 3 * width, SIZES["source_vocabulary"], SIZES["target_vocabulary"], SIZES["max_positions"]}
        own |= {sizes[heads] * (sizes | found)["key_size"] for heads in ("heads", "key_value_heads")}
        other = [max(leaf.shape) for leaf in leaves if len(leaf.shape) > 1 and width in leaf.shape]
        seen = [size for size in other if size not in own and other.count(size) > 1]
        found |= {"feed_forward_width": seen[0]} if seen else {}
    return found


def _last(path: str) -> str:
    """Returns the last step of a path that says what a tensor is for."""
    return [step for step in path.split(".") if step not in ("kernel", "weight")][-1:][0] if path not in ("kernel", "weight") else ""


def _outputs(leaf: parameter_leaves.Leaf, width: int) -> int:
    """Returns how many outputs a projection from the model width has; 0 if it is not one."""
    size = int(np.prod(leaf.shape))
    return size // width if len(leaf.shape) > 1 and width in leaf.shape and size % width == 0 else 0


def letters(sizes: Mapping[str, Any]) -> dict[str, int]:
    """Returns the size of every letter of axes; `v` and `w` of the source's and the target's vocabulary, `i` of a head's slice of the
    width.
    """
    config = preset("nn_transformer", **sizes)
    slice_ = config.model_width // config.heads
    return {**config.sizes, "v": config.source_vocabulary, "w": config.target_vocabulary, "i": slice_}
