"""Bugs from the field, planted in graphs of transformers models exported by torch.

`FAULTS` has for each the export in which it is planted (`exported`) and an edit of that graph; `PLANTS` has
differences for any layer of any export.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx_exports import export

from rosettaformer.files.checkpoints.hugging_face import new

SCOPES = "pkg.torch.onnx.name_scopes"
LARGE = 120.0  # factor that takes scores beyond 1e4
TYPES: Mapping[Any, int] = {np.float16: onnx.TensorProto.FLOAT16, np.float32: onnx.TensorProto.FLOAT, np.float64: onnx.TensorProto.DOUBLE}


def exported(base: str, folder: Path) -> tuple[Path, Path]:
    """Returns a random model and its export, with inputs for padding, positions and segments.

    base: a family; `.fixed` exports one batch and length, `.large` a model with scores beyond 1e4, `.float64` a float64 model,
    `.exact` the same with float64 constants where torch 2.13 writes float32's.
    """
    import torch
    import transformers

    family, _, variant = base.partition(".")
    path, file = folder / base, folder / f"{base}.onnx"
    if not file.exists():
        wide = variant in ("float64", "exact")
        settings = {"layer_norm_epsilon": 2**-8} if wide else {}  # the ONNX attribute is float32
        new.write(family, path, dtype="float64" if wide else "float32", settings=settings)
        named = getattr(transformers, transformers.AutoConfig.from_pretrained(path).architectures[0])
        model = named.from_pretrained(path, attn_implementation="eager", dtype="auto").eval()
        if variant == "large":
            for layer in model.transformer.h:
                layer.attn.c_attn.weight.data[:, : 2 * model.config.n_embd] *= LARGE
            model.save_pretrained(path)
        model.config.use_cache = False
        ids = torch.arange(14).reshape(2, 7) + 3
        further = {"token_type_ids": ids * 0} if family == "bert" else {"position_ids": ids * 0 + torch.arange(7)}
        export(model, file, {"input_ids": ids, "attention_mask": ids * 0 + 1} | further, variant != "fixed")
        if variant == "exact":
            _exact(file)
    return path, file


def _exact(file: Path) -> None:
    graph = Graph(onnx.load(file))
    for name, array in list(graph.held.items()):
        for number in (12**-0.5, 0.044715, (2 / np.pi) ** 0.5, np.finfo(np.float64).min):
            with np.errstate(over="ignore"):
                rounded = np.float64(number).astype(np.float32)
            if array.dtype == np.float64 and array.size == 1 and array == rounded:
                graph.put(name, np.full_like(array, number))
    onnx.save(graph.model, file)


def faulty(name: str, folder: Path) -> tuple[Path, Path]:
    """Returns the folder of a model and its export with that bug."""
    base, plant = FAULTS[name]
    path, file = exported(base, folder)
    graph = Graph(onnx.load(file))
    plant(graph)
    graph.prune()
    onnx.save(graph.model, folder / f"{name}.onnx")
    return path, folder / f"{name}.onnx"


def planted(what: str, layer: str, file: Path, to: Path) -> Path:
    """Returns a copy of the file with one difference in a layer."""
    graph = Graph(onnx.load(file))
    PLANTS[what](graph, f"'{layer}'")
    onnx.save(graph.model, to)
    return to


class Graph:
    """A graph under edit."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.graph = model, model.graph
        del self.graph.value_info[:]  # an edit may change a dtype
        self.held = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
        self.made = {name: node for node in model.graph.node for name in node.output}
        self.count = 0

    def nodes(self, operation: str = "", scope: str = "") -> list[onnx.NodeProto]:
        """Returns the nodes, by default of any operation, whose scopes contain a text."""
        return [one for one in self.graph.node if operation in ("", one.op_type) and scope in _scopes(one)]

    def held_of(self, node: onnx.NodeProto) -> str:
        """Returns the first initializer that a node reads."""
        return next(name for name in node.input if name in self.held)

    def put(self, name: str, array: np.ndarray) -> None:
        """Replaces or adds an initializer."""
        tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
        if name in self.held:
            next(one for one in self.graph.initializer if one.name == name).CopyFrom(tensor)
        else:
            self.graph.initializer.append(tensor)
        self.held[name] = array

    def change(self, name: str, change: Callable[[np.ndarray], Any]) -> None:
        """Gives an initializer other numbers of the same dtype."""
        self.put(name, np.asarray(change(self.held[name].copy()), self.held[name].dtype))

    def constant(self, array: np.ndarray) -> str:
        """Adds an initializer; returns its name."""
        self.count += 1
        self.put(name := f"planted_{self.count}", array)
        return name

    def after(self, name: str, operation: str, *further: str, **attributes: Any) -> str:
        """Applies an operation to a tensor for all its readers; returns the result."""
        made = self.made.get(name)
        readers = [node for node in self.graph.node if name in node.input]
        place = 1 + [*self.graph.node].index(made) if made else 0
        self.count += 1
        result = f"planted_{self.count}"
        node = helper.make_node(operation, [name, *further], [result], **attributes)
        node.metadata_props.extend(made.metadata_props if made else [])
        self.graph.node.insert(place, node)
        for reader in readers:
            reader.input[:] = [result if given == name else given for given in reader.input]
        self.made[result] = self.graph.node[place]
        return result

    def prune(self) -> None:
        """Removes unused nodes, which no exporter writes."""
        read = {one.name for one in self.graph.output}
        for node in reversed([*self.graph.node]):
            if read & {*node.output}:
                read |= {*node.input}
            else:
                self.graph.node.remove(node)
        for tensor in [one for one in self.graph.initializer if one.name not in read]:
            self.graph.initializer.remove(tensor)


def _scopes(node: onnx.NodeProto) -> str:
    return next((one.value for one in node.metadata_props if one.key == SCOPES), "")


def _layer_norm_epsilon(graph: Graph) -> None:
    for node in graph.nodes("LayerNormalization", "ln_f"):
        next(one for one in node.attribute if one.name == "epsilon").f = 1e-5


def _rms_norm_epsilon(graph: Graph) -> None:
    root = graph.nodes("Sqrt", "model.norm")[0]
    graph.change(graph.held_of(graph.made[root.input[0]]), lambda epsilon: 1e-5)


def _scale(graph: Graph) -> None:
    """Scales by the model's width instead of the head size."""
    for masked in _masked(graph):
        scaled = graph.made[masked.input[0]]
        graph.put(graph.held_of(scaled), np.array(48**-0.5, np.float32))


def _masked(graph: Graph) -> Iterator[onnx.NodeProto]:
    """Yields the additions of masks."""
    for softmax in graph.nodes("Softmax"):
        yield graph.made[softmax.input[0]]


def _mask_constant(graph: Graph) -> None:
    for node in graph.nodes("Where"):
        graph.put(node.input[2], np.array(-1e4, np.float32))


def _no_cast_of_angles(graph: Graph) -> None:
    (angle,) = graph.nodes("Mul", "rotary_emb")
    _rounded(graph, angle.output[0], np.float16)


def _rounded(graph: Graph, name: str, dtype: type) -> None:
    graph.after(graph.after(name, "Cast", to=TYPES[dtype]), "Cast", to=TYPES[np.float32])


def _scores_in_float16(graph: Graph) -> None:
    least = graph.constant(np.array(np.finfo(np.float16).min, np.float32))
    for node in graph.nodes("Softmax"):
        _rounded(graph, graph.after(node.input[0], "Max", least), np.float16)


def _float32_norms(graph: Graph) -> None:
    """Casts norms to float32, as an exporter does that has LayerNormalization only in float32."""
    for node in graph.nodes("LayerNormalization"):
        for place, name in enumerate(list(node.input)):
            copy = helper.make_node("Cast", [name], [f"planted_{node.output[0]}_{place}"], to=TYPES[np.float32])
            copy.metadata_props.extend(node.metadata_props)
            graph.graph.node.insert([*graph.graph.node].index(node), copy)
            node.input[place] = copy.output[0]
        graph.after(node.output[0], "Cast", to=TYPES[np.float64])


def _frequencies(frequency: Callable[[np.ndarray], np.ndarray]) -> Callable[[Graph], None]:
    """frequency: a function of the exponents -2 i / size."""
    return lambda graph: graph.change("model.rotary_emb.inv_freq", lambda old: frequency(-np.arange(len(old)) / len(old)))


def _pairs_permuted(graph: Graph) -> None:
    """Gives a graph that rotates halves the kernels of a checkpoint that rotates adjacent pairs."""
    for projection in ("q_proj", "k_proj"):
        for node in graph.nodes("MatMul", projection):
            graph.change(graph.held_of(node), lambda kernel: kernel.reshape(len(kernel), -1, 5, 2).swapaxes(2, 3).reshape(kernel.shape))


def _true(graph: Graph, name: str) -> None:
    graph.after(name, "Or", graph.constant(np.array(True)))


def _key_heads_tiled(graph: Graph) -> None:
    for node in graph.nodes("Expand", "self_attn"):
        graph.after(node.output[0], "Transpose", perm=[0, 2, 1, 3, 4])


def _gate_and_up(graph: Graph, layer: str = "") -> None:
    for gate, up in zip(graph.nodes("MatMul", f"{layer}mlp.gate_proj"), graph.nodes("MatMul", f"{layer}mlp.up_proj"), strict=True):
        gate.input[1], up.input[1] = up.input[1], gate.input[1]


def _no_final_norm(graph: Graph) -> None:
    square = graph.nodes("Pow", "model.norm")[0]
    (head,) = graph.nodes("MatMul", "lm_head")
    head.input[0] = square.input[0]


def _transposed(graph: Graph) -> None:
    graph.change("transformer.h.1.attn.c_proj.weight", np.transpose)


def _gelu(approximate: str, scope: str) -> Callable[[Graph], None]:
    """Uses the other form of GELU in the activations."""

    def plant(graph: Graph) -> None:
        for node in graph.nodes("Gelu", scope):
            node.attribute[0].s = approximate.encode()
        for node in graph.nodes("Tanh", scope):
            own = _scopes(node)
            product = next(one for one in graph.nodes("Mul") if _scopes(one).startswith(own.rpartition(", ")[0]))
            last = [one for one in graph.graph.node if _scopes(one).startswith(own.rpartition(", ")[0])][-1]
            last.op_type, last.input[:] = "Gelu", [product.input[0]]
            last.attribute.append(helper.make_attribute("approximate", approximate))

    return plant


def _positions_of_the_row(graph: Graph) -> None:
    """Counts positions from the row's start, ignoring position ids."""
    count = graph.nodes("Range")[-1].output[0]
    for node in graph.nodes("Gather", "wpe"):
        place = [*graph.graph.node].index(node)
        sums = helper.make_node("Mul", ["position_ids", graph.constant(np.array(0))], ["planted_zeros"])
        added = helper.make_node("Add", ["planted_zeros", count], ["planted_positions"])
        node.input[1] = "planted_positions"
        graph.graph.node.remove(copy := graph.graph.node[place])
        late = 1 + [*graph.graph.node].index(graph.made[count])
        for one in (copy, added, sums):
            graph.graph.node.insert(late, one)
        for reader in [one for one in graph.graph.node if copy.output[0] in one.input]:
            graph.graph.node.remove(reader)
            graph.graph.node.insert(late + 3, reader)


def _untied(graph: Graph) -> None:
    (head,) = graph.nodes("MatMul", "lm_head")
    graph.change(head.input[1], lambda kernel: np.random.default_rng(0).normal(0, 0.02, kernel.shape))


def _no_bias(graph: Graph) -> None:
    graph.change("transformer.h.1.mlp.c_fc.bias", np.zeros_like)


def _exchanged_layers(graph: Graph) -> None:
    first, second = (f"transformer.h.{layer}.mlp.c_fc.weight" for layer in (0, 2))
    kernel = graph.held[first]
    graph.put(first, graph.held[second])
    graph.put(second, kernel)


def _one_segment(graph: Graph) -> None:
    for node in graph.nodes("Gather", "token_type_embeddings"):
        graph.graph.node.insert(0, helper.make_node("Mul", ["token_type_ids", graph.constant(np.array(0))], ["planted_segments"]))
        node.input[1] = "planted_segments"


def _batch_in_a_shape(graph: Graph) -> None:
    """Fixes the number of rows to the example's, as an exporter does that records the size it saw."""
    shape = next(node for node in graph.nodes("Concat", "self_attn") if len(node.input) == 4)
    shape.input[0] = graph.constant(np.array([2]))


def _length_in_a_slice(graph: Graph) -> None:
    graph.nodes("Slice", "embeddings")[0].input[2] = graph.constant(np.array([7]))


def _no_embedding_scale(graph: Graph) -> None:
    graph.change("model.embed_tokens.embed_scale", np.ones_like)


def _window_of_one_more(graph: Graph) -> None:
    graph.change(graph.held_of(graph.nodes("Sub")[0]), lambda window: window + 1)


def _no_cap(graph: Graph) -> None:
    for node in graph.nodes("Tanh", "self_attn"):
        node.op_type = "Identity"


def _offset_twice(graph: Graph) -> None:
    for node in graph.nodes("Mul", "norm"):
        for name in node.input:
            if name in graph.held and graph.held[name].size > 1:
                graph.change(name, lambda scale: scale + 1)


# name -> the export and the edit of its graph
FAULTS: Mapping[str, tuple[str, Callable[[Graph], None]]] = {
    "rms_norm_epsilon": ("llama", _rms_norm_epsilon),
    "no_rotary_scaling": ("llama", _frequencies(lambda exponent: 500000.0**exponent)),
    "rotary_angles_in_float16": ("llama", _no_cast_of_angles),
    "rotary_pairs": ("llama", _pairs_permuted),
    "no_causal_mask": ("llama", lambda graph: _true(graph, graph.nodes("LessOrEqual")[0].output[0])),
    "no_padding_mask": ("llama", lambda graph: _true(graph, graph.nodes("Cast")[0].output[0])),
    "key_heads_tiled": ("llama", _key_heads_tiled),
    "gate_and_up": ("llama", _gate_and_up),
    "gate_and_up_of_one_layer": ("llama", lambda graph: _gate_and_up(graph, "layers.1.")),
    "no_final_norm": ("llama", _no_final_norm),
    "scores_in_float16": ("llama", _scores_in_float16),
    "batch_in_a_shape": ("llama", _batch_in_a_shape),
    "layer_norm_epsilon": ("gpt2", _layer_norm_epsilon),
    "attention_scale": ("gpt2", _scale),
    "transposed_kernel": ("gpt2", _transposed),
    "gelu_of_erf": ("gpt2", _gelu("none", "mlp.act")),
    "positions_of_the_row": ("gpt2", _positions_of_the_row),
    "untied_head": ("gpt2", _untied),
    "no_bias": ("gpt2", _no_bias),
    "exchanged_layers": ("gpt2", _exchanged_layers),
    "float32_norms": ("gpt2.exact", _float32_norms),
    "float32_constants": ("gpt2.float64", lambda graph: None),
    "mask_of_1e4": ("gpt2.large", _mask_constant),
    "fixed_sizes": ("gpt2.fixed", lambda graph: None),
    "gelu_of_tanh": ("bert", _gelu("tanh", "")),
    "one_segment": ("bert", _one_segment),
    "length_in_a_slice": ("bert", _length_in_a_slice),
    "no_embedding_scale": ("gemma2", _no_embedding_scale),
    "window_of_one_more": ("gemma2", _window_of_one_more),
    "no_cap": ("gemma2", _no_cap),
    "norm_offset_twice": ("gemma2", _offset_twice),
    "rotary_base": ("gemma2", _frequencies(lambda exponent: 10000.0**exponent)),
}


def _kernel_of_layer(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Graph, str], None]:
    """Changes the first matrix that the layer reads, for this layer only."""

    def plant(graph: Graph, scope: str) -> None:
        matrices = {name for name, array in graph.held.items() if array.ndim == 2}
        node = next(node for node in graph.nodes(scope=scope) if matrices.intersection(node.input))
        place = next(place for place, name in enumerate(node.input) if name in matrices)
        node.input[place] = graph.constant(change(graph.held[node.input[place]].copy()))

    return plant


def _number_of_layer(graph: Graph, node: onnx.NodeProto, number: float) -> None:
    """Gives a node another constant."""
    node.input[[*node.input].index(graph.held_of(node))] = graph.constant(np.array(number, np.float32))


def _epsilon_of_layer(graph: Graph, scope: str) -> None:
    for node in graph.nodes("LayerNormalization", scope):
        next(one for one in node.attribute if one.name == "epsilon").f = 0.03
    for root in graph.nodes("Sqrt", scope):
        _number_of_layer(graph, graph.made[root.input[0]], 0.03)


def _scale_of_layer(graph: Graph, scope: str) -> None:
    for softmax in graph.nodes("Softmax", scope):
        masked = [graph.made[name] for name in graph.made[softmax.input[0]].input if name in graph.made]
        _number_of_layer(graph, next(node for node in masked if node.op_type == "Mul"), 0.4)


def _activation_of_layer(graph: Graph, scope: str) -> None:
    """Uses the other form of GELU, or another sigmoid in SiLU."""
    _gelu("tanh" if graph.nodes("Gelu", scope) else "none", scope)(graph)
    for node in graph.nodes("Sigmoid", scope):
        node.op_type = "HardSigmoid"


def _one_number(array: np.ndarray) -> np.ndarray:
    array[1, 2] += 0.25
    return array


PLANTS: Mapping[str, Callable[[Graph, str], None]] = {
    "epsilon": _epsilon_of_layer,
    "scale": _scale_of_layer,
    "activation": _activation_of_layer,
    "transposed": _kernel_of_layer(np.transpose),
    "values": _kernel_of_layer(_one_number),
    "factor": _kernel_of_layer(lambda array: 1.01 * array),
}
