"""Examines the programs of a torch.export archive: their JSON graphs and their tensors.

Loading turns a graph's names and guards into Python source, evaluates its sizes, and looks up any
function of torch that a node names. Therefore all are restricted to what torch.export writes.
"""

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._export.serde.serialize import deserialize_scalar_type
from torch.export.pt2_archive import PT2ArchiveReader

from .torch_archive import PROGRAMS, first_line, only_tensors

SCHEMA = 8  # major version of the graph format that torch 2.8 to 2.13 read
# folder of tensors -> prefix of a tensor's file name
_TENSORS = {"data/weights/": "weight_", "data/constants/": "tensor_"}
_PLAIN = re.compile(r"[\w.\-+/ ]*")
_ENDLESS = re.compile(r"(u|zuf)\d{6,}")  # torch counts up to the number in such a size
_FREE = {"stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack", "custom", "from_node"}  # node texts that loading ignores
_OPERATORS = re.compile(
    r"torch\.ops\.(aten|prims|quantized_decomposed)\.\w+(\.\w+)?"
    r"|torch\.ops\.higher_order\.(cond|while_loop|map_impl|scan|associative_scan|wrap_with_set_grad_enabled|wrap_with_autocast"
    r"|flex_attention|invoke_subgraph|out_dtype)"
    r"|_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|not_|abs|lshift|rshift|getitem)"
    r"|math\.[a-z]\w*|torch\.(sym_|_sym_)[a-z0-9]+"
)
_FILES = re.compile(r"torch\.ops\.aten\.from_file(\..*)?")  # maps a file, and can write it
_SIZES = {
    *("Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Max", "Min", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "ITE"),
    *("Equality", "Unequality", "StrictLessThan", "StrictGreaterThan", "LessThan", "GreaterThan", "floor", "ceiling", "Piecewise", "Pow"),
    *("FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "LShift", "RShift"),
    *("PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv", "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat"),
    *("IsNonOverlappingAndDenseIndicator", "Identity"),
}
_GUARDS = {"IsNonOverlappingAndDenseIndicator", "cast_symbool_to_symint_guardless", "min", "max", "abs", "int", "float"}
_METHODS = {"size", "stride", "storage_offset", "dim", "item", "isnan", "floor", "ceil", "trunc", "sqrt"}
_NODES = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.Tuple),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.unaryop, ast.boolop, ast.cmpop),
)
_POWERS = {"Pow", "PowByNatural", "FloatPow", "LShift"}
_IMPORTING = {"collections.defaultdict"}  # its spec names a module, which would be imported


def examine(path: Path, members: Mapping[str, int]) -> dict[str, Any]:
    """Returns the graphs of an archive by program name.

    Raises ValueError if a program is damaged, or holds more than a model needs.
    """
    reader = PT2ArchiveReader(str(path))
    if wrong := next((name for name in members if re.match(r"data/constants/(custom_obj|opaque_obj)", name)), None):
        raise ValueError(f"{path} must hold only tensors and graphs; {wrong} is a pickled object, which could run code")
    names = [name.removeprefix(PROGRAMS).removesuffix(".json") for name in members if name.startswith(PROGRAMS)]
    return {name: _program(path, reader, members, name) for name in names}


def _program(path: Path, reader: PT2ArchiveReader, members: Mapping[str, int], name: str) -> Any:
    graph = _json(path, reader, members, f"{PROGRAMS}{name}.json")
    try:
        version, operators = graph["schema_version"], [*_strings(graph)]
        said = f"{version['major']}.{version['minor']}"
        if version["major"] != SCHEMA:
            raise ValueError(f"the graph of {path} must have schema {SCHEMA} for torch {torch.__version__}; got {said}")
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{PROGRAMS}{name}.json in {path} is not a torch.export graph; got {type(error).__name__}: {error}") from None
    for key, text, inside in operators:
        if problem := _problem(key, text, inside):
            raise ValueError(f"the graph of {path} {problem}")
    for folder, start in _TENSORS.items():
        kind = folder.split("/")[1]
        if (legacy := f"{folder}{name}.pt") in members:
            only_tensors(path, legacy, _bytes(path, reader, legacy))
            continue
        config = _json(path, reader, members, f"{folder}{name}_{kind}_config.json")
        try:
            for own, tensor in config["config"].items():
                _tensor(path, reader, members, folder, start, own, tensor)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the {kind} of {path} must be tensors; got {type(error).__name__}: {error}") from None
    samples = f"data/sample_inputs/{name}.pt"
    if samples not in members:
        raise ValueError(f"{path} lacks the member {samples}, which torch.export.save writes; export it again")
    if members[samples]:
        only_tensors(path, samples, _bytes(path, reader, samples))
    return graph


def _bytes(path: Path, reader: PT2ArchiveReader, member: str) -> bytes:
    try:
        return reader.read_bytes(member)
    except RuntimeError as error:
        raise ValueError(f"{member} in {path} is damaged: {first_line(error)}") from None


def _json(path: Path, reader: PT2ArchiveReader, members: Mapping[str, int], member: str) -> Any:
    if member not in members:
        raise ValueError(f"{path} lacks the member {member}, which torch.export.save writes; export it again")
    try:
        return json.loads(_bytes(path, reader, member))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{member} in {path} is not valid JSON; {first_line(error)}") from None


def _tensor(
    path: Path, reader: PT2ArchiveReader, members: Mapping[str, int], folder: str, start: str, name: str, said: Mapping[str, Any]
) -> None:
    """Raises ValueError unless a tensor fits into its file."""
    file = said["path_name"]
    if not _PLAIN.fullmatch(name) or not re.fullmatch(rf"{start}\d+", file) or f"{folder}{file}" not in members:
        raise ValueError(f"the tensor {name!r} of {path} must be stored in {folder}{start}0, 1, ...; got {file!r}")
    if said["use_pickle"]:
        only_tensors(path, f"{folder}{file}", _bytes(path, reader, f"{folder}{file}"))
        return
    meta = said["tensor_meta"]
    shape, strides = ([size["as_int"] for size in meta[side]] for side in ("sizes", "strides"))
    offset, itemsize = meta["storage_offset"]["as_int"], deserialize_scalar_type(meta["dtype"]).itemsize
    if len(shape) != len(strides) or min([offset, *shape, *strides], default=0) < 0:
        sizes = f"{shape}, strides {strides}, from {offset}"
        raise ValueError(f"the sizes of the tensor {name} of {path} must not be negative or unequal in number; got {sizes}")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    if math.prod(shape) and last * itemsize > (size := members[f"{folder}{file}"]):
        raise ValueError(f"the tensor {name} of {path} needs {last * itemsize} bytes for its sizes {shape}; its file {file} has {size}")


def _strings(value: Any, key: str = "", inside: bool = False) -> Iterator[tuple[str, str, bool]]:
    """Yields every text of a graph, with its key, and whether it is inside a node."""
    if isinstance(value, str):
        yield key, value, inside
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one, key, inside)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield "", name, False
            if name not in _FREE or not isinstance(one, str):
                yield from _strings(one, name, inside or name == "nodes")


def _problem(key: str, text: str, inside: bool) -> str:
    """Returns what is wrong with a text of a graph; empty if nothing."""
    if key in ("target", "as_operator"):
        return _operator(text)
    if key == "expr_str":
        return "" if _within(text, _SIZES, set()) else f"has a size that is not plain arithmetic: {text[:80]!r}"
    if key == "guards_code":
        return "" if _within(text, _GUARDS, _METHODS) else f"has an input guard that is not a comparison of sizes: {text[:80]!r}"
    if key in ("in_spec", "out_spec"):
        return _structure(text)
    if inside and key in ("as_string", "as_strings"):
        return ""
    return "" if _PLAIN.fullmatch(text) and not _ENDLESS.fullmatch(text) else f"has an invalid name: {text[:80]!r}"


def _operator(target: str) -> str:
    if _OPERATORS.fullmatch(target) and not _FILES.fullmatch(target):
        _, _, name = target.partition("torch.ops.aten.")
        if not name or torch._C._dispatch_has_kernel(f"aten::{name.removesuffix('.default')}"):
            return ""
        return f"calls aten.{name}, for which torch {torch.__version__} has no kernel"
    parts = target.split(".")
    if target.startswith("torch.ops.") and len(parts) > 3 and parts[2] not in ("aten", "prims", "higher_order"):
        own = ".".join(parts[2:4])[:80]
        return f"calls the custom operator {own}, which torch lacks; it would need the library that registers {parts[2][:40]}"
    return f"must call only torch's operators; got {target[:80]!r}"


def _within(text: str, functions: set[str], methods: set[str]) -> bool:
    """Whether an expression is arithmetic with only these functions and methods."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_allowed(node, functions, methods) for node in ast.walk(tree))


def _allowed(node: ast.AST, functions: set[str], methods: set[str]) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args):
            return name in functions and (name not in _POWERS or all(map(_small, args[1:])))
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in methods
        case ast.Call():
            return False
        case ast.Attribute(attr=name):
            return bool(methods) and not name.startswith("_")
        case ast.Subscript():
            return bool(methods)
        case ast.Constant(value=value):
            return isinstance(value, int | float) or bool(_PLAIN.fullmatch(str(value)))
        case ast.BinOp(op=ast.Pow(), right=right):
            return _small(right)
    return isinstance(node, _NODES)


def _small(node: ast.expr) -> bool:
    """Whether an exponent contains only small numbers and no power."""
    inner = [*ast.walk(node)]
    numbers = [one.value for one in inner if isinstance(one, ast.Constant) and isinstance(one.value, int | float)]
    powers = (isinstance(one, ast.Pow) or (isinstance(one, ast.Name) and one.id in _POWERS) for one in inner)
    return max(numbers, default=0) <= 64 and not any(powers)


def _structure(text: str) -> str:
    """Returns what is wrong with a spec of nested inputs or outputs; empty if nothing."""
    try:
        pending = [json.loads(text)[1]]
        while pending:
            spec = pending.pop()
            pending += spec["children_spec"]
            kind, context = spec["type"] or "", json.loads(spec["context"]) if isinstance(spec["context"], str) else spec["context"]
            texts = [text for _, text, _ in _strings(context)]
            if kind in _IMPORTING or "__enum__" in texts:
                return f"has inputs or outputs in a {kind}, which would import a module; use tuples, lists and dicts instead"
            if wrong := next((one for one in (kind, *texts) if not _PLAIN.fullmatch(one)), None):
                return f"has inputs or outputs with an invalid name: {wrong[:80]!r}"
    except (ValueError, LookupError, TypeError, RecursionError):
        return f"has an invalid description of its inputs and outputs: {text[:80]!r}"
    return ""
