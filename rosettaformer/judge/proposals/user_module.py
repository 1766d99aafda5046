"""A user's module, built at small distinct sizes: its call and its parameters."""

import contextlib
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reference_numpy import preset

from ...common.modules import BACKENDS, attributes, face, framework_of
from ...common.modules.recording import ModuleCall
from .calling import Call, called
from .components import is_model
from .construction import Construction
from .open_arguments import is_length
from .tensors import Leaf
from .trials import example
from .user_code import FAILURES, Source, failure, limited
from .vocabulary import role_of

WIDTH, HEADS, SIZE = 12, 3, 4
SIZES: dict[str, Any] = {
    "source_vocabulary": 11, "target_vocabulary": 17, "model_width": WIDTH, "heads": HEADS, "key_value_heads": HEADS, "key_size": SIZE,
    "value_size": SIZE, "feed_forward_width": Construction.width, "encoder_layers": 2, "decoder_layers": 2, "padding_id": 0,
    "positions": "learned", "max_positions": 256,  # more than any case needs
}  # fmt: skip


@dataclass
class Started:
    """Parameters and submodules, as revealed by the first call of a Linen module."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    modules: list[Any] = field(default_factory=list)
    calls: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # path -> (first argument, output)


class UserModule:
    """The module of a class or function, and what can be observed of it.

    sizes: the sizes it is built at. arguments: of its call. started: what its first call reveals.
    leaves: its parameters. epsilon: of its norms. masked: whether its first call needs masks.

    Raises ValueError if it cannot be built or called, or is not a module of a framework.
    """

    def __init__(self, source: Source, plan: Construction, component: str, wanted: str) -> None:
        self.source, self.plan, self.sizes, self.masked = source, plan, _sizes(plan), False
        self._build(component, wanted)
        tables = {size for leaf in self.leaves for size in leaf.shape} & {SIZES["source_vocabulary"], SIZES["target_vocabulary"]}
        if len({self.sizes["source_vocabulary"], self.sizes["target_vocabulary"]}) > len(tables) == 1:  # both sides share one table
            self.sizes["source_vocabulary"] = self.sizes["target_vocabulary"]
            self._build(component, wanted)
        self.sizes |= _inferred(self.leaves, plan)

    @property
    def adapter(self) -> str:
        """The framework's name in a port."""
        return BACKENDS[self.framework]

    def _build(self, component: str, wanted: str) -> None:
        self.module = self.plan.make(preset("nn_transformer", **self.sizes))
        self.framework = framework_of(self.module)
        if not self.framework or wanted not in ("", self.framework, self.adapter):
            must = f"{self.source.name} must return a module of {wanted or 'torch, Keras or Flax'}"
            raise ValueError(f"{must}; got {type(self.module).__name__}. Write ports of other objects yourself: docs/ports.md")
        self.arguments = _arguments(self.module, self.framework)
        self.started = self._start(component) if self.framework in ("keras", "linen") else Started()
        self.leaves = _leaves(self.module, self.framework, self.started.variables)
        self.epsilon = _epsilon(self.module, self.framework, self.started.modules)

    def _start(self, component: str) -> Started:
        """Calls a Keras layer or initializes a Linen module, which have no parameters before that.

        Raises ValueError if the inputs of no component fit the module.
        """
        models, layers = ["transformer", "token_encoder"], ["encoder_layer", "decoder_layer", "multi_head_attention"]
        likely = models if {"source_vocabulary", "target_vocabulary"} & self.plan.fields else layers
        problems = []
        for name, decoder_only in itertools.product([component] if component else likely, (False, True)):
            call = called(name, self.arguments, self.adapter, decoder_only)
            for number, values in enumerate(self._values(call, name, decoder_only)):
                try:
                    with limited("a call of the module"):
                        started = _started(self.module, self.framework, values)
                    self.masked = number > 1
                    return started
                except FAILURES as error:
                    problems.append((len(call.unknown), failure(error)))
        raise ValueError(f"calling the module failed: {min(problems, key=lambda problem: problem[0])[1]}")

    def _values(self, call: Call, name: str, decoder_only: bool) -> Iterator[dict[str, Any]]:
        """Yields arguments for such a call: without masks, and with common masks of ones."""
        arrays = {one: value for one, value in example(name, self.sizes, decoder_only).items() if value is not None}
        batch, length = next(iter(arrays.values())).shape[:2]
        arrays["zeros_btd"] = np.zeros((batch, length, self.sizes["model_width"]))
        tensor = face(self.framework).tensor
        inputs = {one: tensor(value) for one, value in arrays.items()}
        given = {one: eval(text, {"inputs": inputs}) for one, text in call.given.items() if text != "itself"}
        values: dict[str, Any] = {one: argument.default for one, argument in self.arguments.items()}
        values = {one: None for one, default in values.items() if default is inspect.Parameter.empty}
        values |= {one: inputs.get(value) if isinstance(value, str) else value(inputs) for one, value in given.items()}
        yield values
        if not is_model(name):  # one row without a batch axis
            yield {one: value[0] if hasattr(value, "shape") else value for one, value in values.items()}
        memory = next((arrays[one].shape[1] for one in ("memory_bsd", "source") if one in arrays), length)
        keys = {one: length if side == "target" else memory for one, side in call.sides.items()}
        counts = {one: tensor(np.full(batch, keys[one], np.int32)) for one in keys if is_length(one)}
        hiding = [one for one in keys if "mask" in one.lower()]
        if counts:
            yield values | counts
        if hiding:
            for dtype, form in itertools.product((bool, np.float32, np.int32), ((batch, 0), (batch, 1, 1, 0), (batch, 1, 0), (length, 0))):
                shaped = {one: np.ones([size or keys[one] for size in form], dtype) for one in hiding}
                yield values | {one: tensor(mask) for one, mask in shaped.items()}


def _arguments(module: Any, framework: str) -> dict[str, inspect.Parameter]:
    """Returns the call's arguments without * and **. Raises ValueError if not callable."""
    name = {"torch": "forward", "keras": "call"}.get(framework, "__call__")
    function = getattr(module, name, None)
    if function is None or getattr(function, "__qualname__", "") in ("_forward_unimplemented", "Layer.call"):
        raise ValueError(f"{type(module).__name__} does not define {name}(). Choose a class that does")
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: parameter for name, parameter in inspect.signature(function).parameters.items() if parameter.kind not in kinds}


def _started(module: Any, framework: str, values: Mapping[str, Any]) -> Started:
    """Calls a Keras layer or initializes a Linen module, which creates its parameters.

    Raises whatever the module raises.
    """
    found = Started()
    if framework == "keras":
        module(**values)
        return found
    import jax

    linen = face(framework)

    def enter(call: ModuleCall) -> None:
        found.modules.append(call.module)

    def leave(call: ModuleCall, output: Any) -> None:
        if call.args:
            found.calls[call.path] = call.args[0], output

    with linen.calls(linen.path, enter, leave):
        found.variables = linen.variables(module.init(jax.random.key(0), **values).get("params", {}))
    return found


def _leaves(module: Any, framework: str, variables: Mapping[str, Any]) -> list[Leaf]:
    """Returns the trainable parameters. variables: of a Linen module."""
    if framework != "torch":
        found = variables.items() if framework == "linen" else attributes.variables(module)
        return [Leaf(path, tuple(value.shape), "in" if path.endswith("kernel") else "") for path, value in found]
    if lazy := [path for path, value in module.named_parameters() if type(value).__name__ == "UninitializedParameter"]:
        raise ValueError(f"{lazy[0]} has no shape before the first call. Choose a function that builds the module and calls it once")
    return [Leaf(path, tuple(value.shape), _first(module, path)) for path, value in module.named_parameters() if value.requires_grad]


def _first(module: Any, path: str) -> str:
    """Returns which axes of a torch parameter come first: outputs or inputs."""
    names = {cls.__name__ for cls in type(module.get_submodule(path.rpartition(".")[0])).__mro__}
    if names & {"Linear", "Conv1d"} or path.endswith(("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")):
        return "out"
    return "in" if "Conv1D" in names else ""


def _epsilon(module: Any, framework: str, others: Sequence[Any]) -> float | None:
    """Returns the norms' epsilon if all agree. others: modules that the module created."""
    found = set()
    own = module.modules() if framework == "torch" else attributes.parts(module)
    for node, name in itertools.product((*own, *others), ("eps", "epsilon", "variance_epsilon", "layer_norm_eps")):
        with contextlib.suppress(*FAILURES):  # reading a property may fail
            value = getattr(node, name, None)
            if isinstance(value, float) and 0 < value < 0.1:
                found.add(value)
    return found.pop() if len(found) == 1 else None


def _sizes(plan: Construction) -> dict[str, Any]:
    """Returns the sizes to build the module at, as distinct as its constructor allows."""
    sizes = dict(SIZES)
    if "key_value_heads" in plan.fields:  # fewer than heads, more than 1
        sizes |= {"model_width": 2 * WIDTH, "heads": 2 * HEADS, "key_value_heads": 2}
    if "key_size" in plan.fields:
        sizes |= {"key_size": 6, "value_size": 10 if "value_size" in plan.fields else 6}  # even, since RoPE rotates pairs
    if "heads" not in plan.fields and "key_size" not in plan.fields:
        sizes |= {"heads": 1, "key_value_heads": 1, "key_size": WIDTH, "value_size": WIDTH}
    if not {"source_vocabulary", "target_vocabulary"} <= plan.fields:
        sizes["source_vocabulary"] = sizes["target_vocabulary"]
    return sizes


def _inferred(leaves: list[Leaf], plan: Construction) -> dict[str, Any]:
    """Returns sizes that the constructor derives: head sizes, and the feed-forward width."""
    found, sizes = {}, _sizes(plan)
    width = sizes["model_width"]
    kernels = [leaf for leaf in leaves if len(leaf.shape) > 1 and width in leaf.shape]
    for name, role, heads in (("key_size", "query", "heads"), ("value_size", "value", "key_value_heads")):
        wide = [int(np.prod(leaf.shape)) for leaf in kernels if _role(leaf.path) == role]
        outputs = {size // width for size in wide if size % width == 0}
        if "key_size" not in plan.fields and len(outputs) == 1 and (size := outputs.pop()) % sizes[heads] == 0:
            found[name] = size // sizes[heads]
    if "feed_forward_width" not in plan.fields or not any(sizes["feed_forward_width"] in leaf.shape for leaf in leaves):
        own = {width, 2 * width, 3 * width, SIZES["source_vocabulary"], SIZES["target_vocabulary"], SIZES["max_positions"]}
        own |= {sizes[heads] * (sizes | found)["key_size"] for heads in ("heads", "key_value_heads")}
        other = [max(leaf.shape) for leaf in kernels]
        seen = [size for size in other if size not in own and other.count(size) > 1]
        found |= {"feed_forward_width": seen[0]} if seen else {}
    return found


def _role(path: str) -> str:
    """Returns the projection named by the last step of a path."""
    steps = [step for step in path.split(".") if step not in ("kernel", "weight")]
    return role_of(steps[-1]) if steps else ""
