"""Reads the constants of a SavedModel: nodes of its graph and functions, and small variables."""

import functools
import re
from pathlib import Path

import tensorflow as tf

from ..examining.saved_model import parsed
from ..signature import named
from .reading import DRAWS, NORMS, Constants

_HIDDEN = ("_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter")
_DRAWING = re.compile(r"(Stateless)?(Parameterized)?(Random(?!Get)|TruncatedNormal|Multinomial)|Stateful(Uni|Standard|Truncated)")
_TWICE = "_all_variables/"  # prefix of the second copy of every variable in Keras' exports


def read(path: Path, found: Constants) -> None:
    """Records the constants of a folder."""
    for graph in parsed(path).meta_graphs:
        _nodes(graph.graph_def.node, "", found)
        for function in graph.graph_def.library.function:
            name = function.signature.name
            _nodes(function.node_def, f"{name}/", found)
            found.results[name] = [f"{name}/{output.partition(':')[0]}" for output in function.ret.values()]
        own = {name: [one.name.partition(":")[0] for one in given.outputs.values()] for name, given in graph.signature_def.items()}
        found.entries |= named({name: keys for name, keys in own.items() if not name.startswith("__saved_model")})
        for name, signature in graph.signature_def.items():
            for tensor in signature.inputs.values() if not name.startswith("__saved_model") else ():
                found.input([None] if tensor.tensor_shape.unknown_rank else [side.size for side in tensor.tensor_shape.dim])
    _variables(path / "variables" / "variables", found)


def _nodes(nodes, scope: str, found: Constants) -> None:  # type: ignore[no-untyped-def]
    for node in nodes:
        key, words, bodies = scope + node.name, [], [node.op]
        for name, given in node.attr.items():
            kind = given.WhichOneof("value")
            if kind == "tensor":
                sizes = [side.size for side in given.tensor.tensor_shape.dim]
                known = min(sizes, default=0) >= 0
                value = functools.partial(tf.make_ndarray, given.tensor) if known else None
                found.weight(key, tf.dtypes.as_dtype(given.tensor.dtype).name, sizes, value, key)
            elif kind in ("f", "i"):
                found.number(node.name, getattr(given, kind))
            elif kind in ("func", "list"):
                if given.list.f or given.list.i:
                    found.number(node.name, [*given.list.f, *given.list.i])
                bodies += [given.func.name, *(one.name for one in given.list.func)]
            elif kind == "s" and not name.startswith("_"):
                words.append(given.s[:40].decode(errors="replace"))
        if node.op.startswith("FusedBatchNorm") and "epsilon" not in node.attr:
            found.number(node.name, 1e-4)
        if node.op == "Dequantize":
            found.rounded = True
        inputs = [scope + name.split(":")[0] for name in node.input if not name.startswith("^")]
        trains = "is_training" not in node.attr or bool(node.attr["is_training"].b)
        normed = node.op.startswith("FusedBatchNorm") and trains
        random = NORMS if normed else DRAWS * bool(_DRAWING.match(node.op))
        found.node(node.op, node.name, inputs[:1] if node.op == "Cast" else inputs, [key], words, bodies=bodies, random=random)


def _variables(prefix: Path, found: Constants) -> None:
    if not prefix.with_suffix(".index").is_file():
        return
    reader = tf.train.load_checkpoint(str(prefix))
    dtypes, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    hidden = (*_HIDDEN, _TWICE) if any(name.startswith("variables/") for name in shapes) else _HIDDEN
    for name, shape in shapes.items():
        if not name.startswith(hidden) and dtypes[name] != tf.string:
            found.weight(name, dtypes[name].name, shape, functools.partial(reader.get_tensor, name))
