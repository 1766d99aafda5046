"""ONNX files of small models, as torch's exporter writes them, and differences that are planted in their graphs."""

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rosettaformer.checkpoints.hugging_face import new

__all__ = ["PLANTS", "export", "export_with_cache", "exported", "planted"]
SCOPES = "pkg.torch.onnx.name_scopes"


def exported(family: str, folder: Path) -> tuple[Path, Path]:
    """A new random model of a family and its export from transformers: the folder and the file."""
    import torch
    import transformers

    path, file = folder / family, folder / f"{family}.onnx"
    if not file.exists():
        new.write(family, path)
        named = transformers.AutoConfig.from_pretrained(path).architectures[0]
        model = getattr(transformers, named).from_pretrained(path, attn_implementation="eager", dtype="float32").eval()
        model.config.use_cache = False
        ids = torch.arange(14).reshape(2, 7) + 3
        export(model, file, {"input_ids": ids, "attention_mask": ids * 0 + 1})
    return path, file


def export(model: Any, file: Path, inputs: Mapping[str, Any], dynamic: bool = True) -> None:
    """Writes what torch makes of a module. dynamic: rows and positions are not fixed."""
    import torch

    dims = [torch.export.Dim("b"), torch.export.Dim("t")] if dynamic else []
    options: dict[str, Any] = {"dynamic_shapes": {name: dict(enumerate(dims)) for name in inputs}} if dynamic else {}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (), str(file), kwargs=dict(inputs), input_names=[*inputs], dynamo=True, external_data=False, verbose=False, **options
        )


def export_with_cache(model: Any, file: Path) -> None:
    """Writes a decoder of transformers whose keys and values are inputs and outputs, as the field names them."""
    import torch
    from transformers import DynamicCache

    layers, heads, size = model.config.num_hidden_layers, model.config.num_key_value_heads, model.config.head_dim

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: list[Any]) -> tuple[Any, ...]:
            cache = DynamicCache(config=model.config)
            for layer in range(layers):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            found = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache, use_cache=True
            )
            return (found.logits, *(each for layer in found.past_key_values.layers for each in (layer.keys, layer.values)))

    model.set_attn_implementation("eager")
    free, past = torch.export.Dim.DYNAMIC, [torch.randn(2, heads, 5, size) for _ in range(2 * layers)]
    given = (torch.ones(2, 3, dtype=torch.long), torch.ones(2, 8, dtype=torch.long), torch.arange(5, 8)[None].repeat(2, 1), past)
    names = [f"past_key_values.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Step().eval(), given, str(file), dynamo=True, external_data=False, verbose=False,
            dynamic_shapes=(*({0: free, 1: free},) * 3, [{0: free, 2: free}] * len(past)),
            input_names=["input_ids", "attention_mask", "position_ids", *names],
            output_names=["logits", *(name.replace("past_key_values", "present") for name in names)],
        )  # fmt: skip


def planted(what: str, layer: str, file: Path, to: Path) -> Path:
    """A copy of the file with one difference in a layer."""
    import onnx

    model = onnx.load(file)
    PLANTS[what](model, list(_nodes(model, layer)))
    onnx.save(model, to)
    return to


def _nodes(model: Any, layer: str) -> Iterator[Any]:
    for node in model.graph.node:
        if any(one.key == SCOPES and f"'{layer}'" in one.value for one in node.metadata_props):
            yield node


def _weight(model: Any, nodes: list[Any], change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Changes the first matrix that the nodes read, for them alone."""
    from onnx import numpy_helper

    held = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    node, name = next((node, name) for node in nodes for name in node.input if name in held and held[name].ndim == 2)
    _constant(model, node, name, change(held[name].copy()))


def _constant(model: Any, node: Any, name: str, array: np.ndarray) -> None:
    """Gives a node another array where it reads that name."""
    from onnx import numpy_helper

    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array, np.float32), f"planted.{name}"))
    node.input[[*node.input].index(name)] = f"planted.{name}"


def _epsilon(model: Any, nodes: list[Any]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 0.03
                return
    made = {name: node for node in nodes for name in node.output}
    root = next(node for node in nodes if node.op_type == "Sqrt")
    added = made[root.input[0]]
    _constant(model, added, next(name for name in added.input if name not in made), np.array(0.03))


def _scale(model: Any, nodes: list[Any]) -> None:
    """Multiplies the scores of attention."""
    made = {name: node for node in nodes for name in node.output}
    softmax = next(node for node in nodes if node.op_type == "Softmax")
    masked = made[softmax.input[0]]
    scaled = next(made[name] for name in masked.input if name in made and made[name].op_type == "Mul")
    _constant(model, scaled, next(name for name in scaled.input if name not in made), np.array(0.4))


def _activation(model: Any, nodes: list[Any]) -> None:
    """Takes the other form of GELU, or another sigmoid in SiLU."""
    from onnx import helper, numpy_helper

    node = next(node for node in nodes if node.op_type in ("Gelu", "Tanh", "Sigmoid"))
    if node.op_type == "Gelu":
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("approximate", "tanh"))
    elif node.op_type == "Sigmoid":
        node.op_type = "HardSigmoid"
    else:  # erf(u / sqrt(2)) in place of tanh(sqrt(2 / pi) (u + 0.044715 u^3))
        product = helper.make_node("Mul", [nodes[0].input[0], "planted.root"], ["planted.u"])
        product.metadata_props.extend(node.metadata_props)
        model.graph.node.insert([*model.graph.node].index(node), product)
        model.graph.initializer.append(numpy_helper.from_array(np.array(0.5**0.5, np.float32), "planted.root"))
        node.op_type, node.input[0] = "Erf", "planted.u"


def _number(array: np.ndarray) -> np.ndarray:
    array[1, 2] += 0.25
    return array


PLANTS: Mapping[str, Callable[[Any, list[Any]], None]] = {
    "epsilon": _epsilon,
    "scale": _scale,
    "activation": _activation,
    "transposed": lambda model, nodes: _weight(model, nodes, np.transpose),
    "values": lambda model, nodes: _weight(model, nodes, _number),
    "factor": lambda model, nodes: _weight(model, nodes, lambda array: 1.01 * array),
}
