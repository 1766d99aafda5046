"""Reads the constants of torch.export programs, JSON graphs and raw tensors, without torch."""

import functools
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import ml_dtypes
import numpy as np

from .reading import DRAWS, DROPS, NORMS, Constants

# numbers of torch._export.serde.schema.ScalarType
_DTYPES: dict[int, Any] = {
    1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float16, 7: np.float32, 8: np.float64, 10: np.complex64,
    11: np.complex128, 12: np.bool_, 13: ml_dtypes.bfloat16,
}  # fmt: skip
_WORDS = {"gelu": ["none"]}  # words of calls that pass none
_DRAWING = {
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "random", "bernoulli", "binomial", "cauchy",
    "exponential", "geometric", "log_normal", "multinomial", "normal", "normal_functional", "poisson", "uniform", "_fused_dropout",
}  # fmt: skip
_DROPPING = {"dropout", "native_dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"}
_TRAINABLE = {"rrelu", "rrelu_with_noise", "lstm", "gru", "rnn_tanh", "rnn_relu"}
_BY_RATE = {
    "scaled_dot_product_attention", "_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
}  # fmt: skip
_DEFAULTS = {"layer_norm": 1e-5, "group_norm": 1e-5, "instance_norm": 1e-5}  # epsilons that calls may omit


def read(path: Path, found: Constants) -> None:
    """Records the constants of every program. Tensors that were only traced are stored empty."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        for name in names:
            if "/data/" in name and name.endswith("_config.json"):
                _tensors(archive, name, found)
        programs = {PurePosixPath(name).stem: name for name in names if "/models/" in name and name.endswith(".json")}
        for own, name in programs.items():
            _program(json.loads(archive.read(name)), name, found)
            found.entries["forward" if len(programs) == 1 else own] = found.results[name]
        if any("/data/" in name and name.endswith(".pt") and "sample_inputs" not in name for name in names):
            found.opaque = "tensors that torch pickled"


def _tensors(archive: zipfile.ZipFile, config: str, found: Constants) -> None:
    folder = config.rpartition("/")[0]
    for name, given in json.loads(archive.read(config))["config"].items():
        meta, member = given["tensor_meta"], f"{folder}/{given['path_name']}"
        shape, strides = ([size["as_int"] for size in meta[side]] for side in ("sizes", "strides"))
        dtype, offset = _DTYPES.get(meta["dtype"]), meta["storage_offset"]["as_int"]
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        readable = dtype is not None and not given["use_pickle"] and archive.getinfo(member).file_size > last * np.dtype(dtype).itemsize
        value = functools.partial(_value, archive, member, dtype, shape, strides, offset)
        if archive.getinfo(member).file_size:
            found.weight(name, np.dtype(dtype).name if dtype else "", shape, value if readable else None, name)


def _value(archive: zipfile.ZipFile, member: str, dtype: Any, shape: list[int], strides: list[int], offset: int) -> np.ndarray:
    index = np.full(shape, offset)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        index += (np.arange(size) * stride).reshape([-1 if other == axis else 1 for other in range(len(shape))])
    result: np.ndarray = np.frombuffer(archive.read(member), dtype)[index]
    return result


def _program(program: dict[str, Any], scope: str, found: Constants) -> None:
    module = program["graph_module"]
    stored: dict[str, str] = {}
    for spec in module["signature"]["input_specs"]:
        (kind, given), *_ = spec.items()
        names = [given[key] for key in ("parameter_name", "buffer_name", "tensor_constant_name") if given.get(key)]
        if names and isinstance(given.get("arg"), dict):
            stored[given["arg"]["name"]] = names[0]
        elif kind == "user_input" and (argument := given["arg"].get("as_tensor")):
            meta = module["graph"]["tensor_values"].get(argument["name"], {})
            found.input(size.get("as_int") for size in meta.get("sizes", ()))
    _graph(module["graph"], scope, stored, found)


def _graph(graph: dict[str, Any], scope: str, stored: dict[str, str], found: Constants) -> None:
    def key(name: str) -> str:
        return stored.get(name, f"{scope}/{name}")

    found.results[scope] = [key(value) for given in graph["outputs"] for kind, value in _leaves(given) if kind == "name"]
    for node in graph["nodes"]:
        target = node["target"].split(".")
        operation = target[3] if target[:2] == ["torch", "ops"] and len(target) > 3 else target[-1]
        operation = operation.removeprefix("sym_") if operation in ("sym_sqrt", "sym_float") else operation.rstrip("_")
        if target[:2] == ["torch", "ops"] and target[2] not in ("aten", "prims", "higher_order", "_operator"):
            found.opaque = node["target"]
        place, inputs, words, bodies = node.get("name") or operation, list[Any](), list[str](), list[str]()
        for number, given in enumerate(node["inputs"]):
            for kind, value in _leaves(given["arg"]):
                if kind == "name":
                    inputs.append(key(value))
                elif kind == "word":
                    words.append(value)
                elif kind == "graph":
                    bodies.append(f"{scope}/{place}/{number}")
                    _graph(value, bodies[-1], stored, found)
                else:
                    own = (scope, place, number)
                    found.number(place, value, own)
                    inputs.append(own)
        if operation in _DEFAULTS and not any(given["name"] == "eps" for given in node["inputs"]):
            found.number(place, _DEFAULTS[operation])
        if operation in ("pow", "mul", "div", "add", "sub"):
            inputs = inputs[:2]
        outputs = [key(value) for given in node["outputs"] for kind, value in _leaves(given) if kind == "name"]
        operation = "pow" if operation == "float_pow" else operation
        words = words or _WORDS.get(operation, [])
        outputs += inputs[:1] if target[-2:-1] == [f"{operation}_"] else []  # in place
        found.node(operation, place, inputs, outputs, words, bodies=bodies, random=_random(operation, node["inputs"]))


def _random(operation: str, inputs: list[dict[str, Any]]) -> str:
    """Returns why a call's output is random or not that of inference; empty if it is neither."""
    given = {one["name"]: next(iter(one["arg"].values()), None) for one in inputs}
    rate = next((given[name] for name in ("p", "dropout", "dropout_p") if name in given), None)
    training = next((given[name] for name in ("train", "training") if name in given), None)
    if "batch_norm" in operation:
        return NORMS if training else ""
    if operation in _DRAWING:
        return DRAWS
    if operation in _BY_RATE:
        return DROPS if rate else ""
    live = training is not False if operation in _DROPPING else training and operation in _TRAINABLE
    return DROPS if live and rate != 0 else ""


def _leaves(argument: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the names, numbers, words and graphs in an argument."""
    for kind, value in argument.items():
        if kind in ("as_tensor", "as_custom_obj"):
            yield "name", value["name"]
        elif kind in ("as_tensors", "as_optional_tensors"):
            for one in value:
                one = one.get("as_tensor", one) if isinstance(one, dict) else one
                if isinstance(one, dict) and "name" in one:
                    yield "name", one["name"]
        elif kind in ("as_int", "as_float", "as_ints", "as_floats"):
            yield "number", [float(one) for one in value] if kind == "as_floats" else float(value) if kind == "as_float" else value
        elif kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            yield from [("name", value["as_name"])] if "as_name" in value else [("number", next(iter(value.values())))]
        elif kind == "as_sym_ints":
            for one in value:
                yield from _leaves({"as_sym_int": one})
        elif kind == "as_string":
            yield "word", value
        elif kind == "as_graph":
            yield "graph", value["graph"]
