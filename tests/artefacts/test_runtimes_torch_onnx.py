"""ONNX, torch.export and AOTInductor files: what their runtimes report about a sound file, and that a damaged or hostile one is rejected in
one sentence before any of it runs.
"""

import functools
import io
import json
import os
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from training_runs import tree

from rosettaformer.files.artefacts.constants import constants
from rosettaformer.files.artefacts.kinds import kind_of
from rosettaformer.files.artefacts.opening import open_artefact
from rosettaformer.files.artefacts.signature import Artefact, Tensor

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")

from rosettaformer.files.artefacts.examining import onnx_model  # noqa: E402, imports onnx

FLOAT, HUGE = onnx.TensorProto.FLOAT, 1 << 40
MARKER = "was-run"  # the folder that hostile code creates

# ---- ONNX


def model(**changes: Any) -> Any:
    """Returns y = x + w. changes: node, w, functions, opsets, nodes."""
    helper = onnx.helper
    node = changes.get("node") or helper.make_node("Add", ["x", "w"], ["y"])
    w = changes.get("w") or onnx.numpy_helper.from_array(np.arange(3, dtype=np.float32), "w")
    tensors = [helper.make_tensor_value_info(name, FLOAT, ["b", 3]) for name in ("x", "y")]
    graph = helper.make_graph(changes.get("nodes") or [node], "g", tensors[:1], tensors[1:], [w])
    opsets = [helper.make_opsetid(*one) for one in (changes.get("opsets") or {"": 21, "own": 1}).items()]
    functions = changes.get("functions") or []
    return helper.make_model(graph, functions=functions, ir_version=10, opset_imports=opsets)


def saved(folder: Path, made: Any, name: str = "m.onnx") -> Path:
    (folder / name).write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return folder / name


def external(location: str, length: int | None = 12, offset: int = 0, shape: tuple[int, ...] = (3,)) -> Any:
    w = onnx.TensorProto(name="w", data_type=FLOAT, dims=shape, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            w.external_data.add(key=key, value=str(value))
    return model(w=w)


def linked(folder: Path) -> Path:
    (folder / "inside").mkdir()
    (folder / "w.bin").write_bytes(bytes(12))
    (folder / "inside/w.bin").symlink_to(folder / "w.bin")
    return saved(folder / "inside", external("w.bin"))


def cached(folder: Path, blobs: str = "blobs") -> Path:
    """A model in huggingface_hub's cache: links of a snapshot to the files of a folder next to all snapshots."""
    (folder / blobs).mkdir()
    (folder / "snapshots/0/onnx").mkdir(parents=True)
    for name, content in (("w.bin", np.float32([1, 2, 3]).tobytes()), ("m.onnx", external("w.bin").SerializeToString())):
        (folder / blobs / f"sum of {name}").write_bytes(content)
        (folder / "snapshots/0/onnx" / name).symlink_to(f"../../../{blobs}/sum of {name}")
    return folder / "snapshots/0/onnx/m.onnx"


def disguised(folder: Path) -> Path:
    """A folder of blobs that is itself a link."""
    path = cached(folder, "elsewhere")
    (folder / "blobs").symlink_to("elsewhere")
    return path


def beside(made: Any, size: int = 12) -> Callable[[Path], Path]:
    """A model with a file of zeros next to it."""

    def make(folder: Path) -> Path:
        (folder / "w.bin").write_bytes(bytes(size))
        return saved(folder, made)

    return make


def function(name: str, calls: list[str]) -> Any:
    nodes = [onnx.helper.make_node(one, ["a"], ["c"], domain="own" if one.startswith("F") else "") for one in calls]
    return onnx.helper.make_function(
        "own", name, ["a"], ["c"], nodes, [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("own", 1)]
    )


def calling(name: str, domain: str = "own") -> Any:
    return onnx.helper.make_node(name, ["x"], ["y"], domain=domain)


def branch() -> list[Any]:
    """Returns nodes with a branch that has a custom operator."""
    out = onnx.helper.make_tensor_value_info("z", FLOAT, None)
    inner = onnx.helper.make_graph([onnx.helper.make_node("Mark", ["x"], ["z"], domain="ai.onnx.contrib")], "i", [], [out])
    yes = onnx.helper.make_node("Constant", [], ["c"], value=onnx.helper.make_tensor("c", onnx.TensorProto.BOOL, [], [True]))
    return [yes, onnx.helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)]


def stored(dims: list[int], raw: bytes = bytes(12)) -> Any:
    return onnx.TensorProto(name="w", data_type=FLOAT, dims=dims, raw_data=raw)


def sparse() -> Any:
    made, places = model(), np.zeros(1, np.int64)
    values, indices = map(onnx.numpy_helper.from_array, (np.ones(1, np.float32), places), ("s", "s_indices"))
    made.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [HUGE]))
    return made


BILLION = [function(f"F{i}", [f"F{i + 1}"] * 10 if i < 9 else ["Relu"]) for i in range(10)]
HUGE_CONSTANT = onnx.helper.make_node("Constant", [], ["y"], value=stored([HUGE]))
UNKNOWN_INPUT = onnx.helper.make_node("Add", ["x", "nix"], ["y"])
MS = "com.microsoft"
empty = functools.partial(onnx.TensorProto, name="w")
# the file's content, or its maker, and the sentence
ONNX: dict[str, tuple[Any, str]] = {
    "empty": (b"", r"ONNX.*empty"),
    "truncated": (model().SerializeToString()[:-20], r"ONNX.*damaged"),
    "no graph": (b"\x08\n", r"damaged.*operator set"),
    "ORT's format": (b"\x20\0\0\0ORTM" + bytes(99), r"\(\.ort\).*\.onnx"),
    "huge dims": (model(w=stored([HUGE])), f"the tensor w .* {4 * HUGE} bytes .* got 12"),
    "huge dims, no data": (model(w=empty(dims=[HUGE], data_type=FLOAT)), rf"w.*{HUGE}.*0"),
    "negative dims": (model(w=stored([-3])), r"sizes.*\[-3\]"),
    "no dtype": (model(w=empty(dims=[3])), r"sizes.*dtype 0"),
    "sparse and huge": (sparse(), r"sparse.*most"),
    "huge constant": (model(nodes=[HUGE_CONSTANT]), f"the tensor w .* {4 * HUGE} bytes"),
    "absolute": (lambda folder: saved(folder, external(str(folder / "w.bin"))), r"relative.*'/"),
    "parent": (external("../w.bin"), r"relative.*'\.\./w\.bin'"),
    "drive": (external("C:\\w.bin"), r"relative.*'C:"),
    "link": (linked, r"w\.bin.*link"),
    "link next to the cache": (lambda folder: cached(folder, "others"), r"w\.bin.*link"),
    "link behind a link": (disguised, r"w\.bin.*link"),
    "missing": (external("w.bin"), r"w\.bin.*missing"),
    "short": (beside(external("w.bin"), 11), r"the tensor w .* ends at byte 12 of w\.bin, which has 11"),
    "offset": (beside(external("w.bin", offset=4)), r"ends at byte 16 of w\.bin, which has 12"),
    "sizes of a file": (beside(external("w.bin", shape=(HUGE,))), rf"{4 * HUGE}.*w.bin.*12"),
    "negative offset": (beside(external("w.bin", offset=-4)), r"length.*got -4"),
    "custom operator": (model(node=calling("Mark", "my.plugin")), r"my\.plugin\.Mark.*registers"),
    "custom operator in a branch": (
        model(nodes=branch()),
        r"ai\.onnx\.contrib\.Mark would need onnxruntime-extensions",
    ),
    "custom operator in a function": (
        model(node=calling("F"), functions=[function("F", ["FMissing"])]),
        r"own\.FMissing would need",
    ),
    "recursion": (model(node=calling("F"), functions=[function("F", ["F"])]), "F calls itself"),
    "a billion nodes": (model(node=calling("F0"), functions=BILLION), r"10000000.*1000000000"),
    "unknown operator": (model(node=calling("Nix", "")), r"No Op.*Nix"),
    "unknown to ONNX Runtime": (model(node=calling("Nix", MS), opsets={"": 21, MS: 1}), r"ONNX Runtime.*Nix"),
    "newer operators": (model(opsets={"": 999}), r"1.*999"),
    "no such input": (model(node=UNKNOWN_INPUT), r"invalid.*'nix'"),
    "dtypes": (model(w=onnx.numpy_helper.from_array(np.arange(3), "w")), r"ONNX Runtime.*Type"),
}

# ---- torch


class Marks:
    """Creates a folder when unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (MARKER,)


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, input: Any, *, mask: Any, cache: Any) -> Any:
        self.seen.add_(1)
        y = input @ self.kernel
        return {"logits": y, "cache": (torch.where(mask[..., None], y, 0.0), cache["k"] * 2), "calls": self.seen + 0}


@pytest.fixture(scope="module")
def program() -> Any:
    sizes = {0: torch.export.Dim("b"), 1: torch.export.Dim("t")}
    kwargs = {"mask": torch.ones(2, 5, dtype=torch.bool), "cache": {"k": torch.ones(2, 2, dtype=torch.bfloat16)}}
    shapes = {"input": sizes, "mask": sizes, "cache": {"k": None}}
    return torch.export.export(Small().eval(), (torch.ones(2, 5, 4),), kwargs, dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def sound(program: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "m.pt2"
    torch.export.save(program, path)
    return path


Edit = Callable[[dict[str, bytes]], None]
WEIGHTS = "data/weights/model_weights_config.json"


def edited(sound: Path, folder: Path, edit: Edit, compression: int = zipfile.ZIP_STORED) -> Path:
    """Writes the archive with changed members."""
    with zipfile.ZipFile(sound) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    edit(members)
    with zipfile.ZipFile(folder / "m.pt2", "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return folder / "m.pt2"


def both(*edits: Edit) -> Edit:
    def edit(members: dict[str, bytes]) -> None:
        for one in edits:
            one(members)

    return edit


def only(content: dict[str, bytes]) -> Edit:
    return both(dict.clear, lambda members: members.update(content))


def put(name: str, content: bytes) -> Edit:
    return lambda members: members.update({f"m/{name}": content})


def without(name: str) -> Edit:
    return lambda members: members.__delitem__(f"m/{name}")


def graph(change: Callable[[Any], Any], file: str = "models/model.json") -> Edit:
    """Returns an edit of a JSON member."""

    def edit(members: dict[str, bytes]) -> None:
        content = json.loads(members[f"m/{file}"])
        change(content)
        members[f"m/{file}"] = json.dumps(content).encode()

    return edit


def calls(target: str) -> Edit:
    return graph(lambda value: value["graph_module"]["graph"]["nodes"][0].update(target=target))


def tensors(change: Callable[[Any], Any]) -> Edit:
    return graph(lambda value: change(value["graph_module"]["graph"]["tensor_values"]))


def guards(text: str) -> Edit:
    return graph(lambda value: value["guards_code"].append(text))


def size(text: str) -> Edit:
    return tensors(lambda values: values["input"]["sizes"][0]["as_expr"].update(expr_str=text))


def signature(change: Callable[[Any], Any]) -> Edit:
    return graph(lambda value: change(value["graph_module"]["module_call_graph"][0]["signature"]))


def spec(kind: str, context: Any) -> Edit:
    text = json.dumps([1, {"type": kind, "context": context, "children_spec": []}])
    return signature(lambda value: value.update(out_spec=text))


def weights(change: Callable[[Any], Any]) -> Edit:
    return graph(lambda value: change(value["config"]["kernel"]), WEIGHTS)


def meta(**changes: Any) -> Edit:
    return weights(lambda kernel: kernel["tensor_meta"].update(changes))


def of_torch(value: Any) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def bomb() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(of_torch((torch.ones(9),)))) as old, zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, bytes(1 << 20) if name.endswith("data/0") else old.read(name))
    return content.getvalue()


def renamed_tensor(values: Any) -> None:
    """A tensor's name claims that its sizes are metadata, from which nothing is allocated."""
    values["metadata"] = values["custom"] = json.loads(json.dumps(values["input"]))
    values["metadata"]["sizes"][0] = {"as_expr": {"expr_str": CODE, "hint": None}}


CODE = f"__import__('os').mkdir('{MARKER}')"
ONES = [{"as_int": HUGE}, {"as_int": 3}]
OPERATOR = {"as_string_to_argument": {"metadata": {"as_operator": "torch.os.mkdir"}}}
DEFAULT = {"default_factory_module": "this", "default_factory_name": "os", "dict_context": []}
PICKLE = of_torch(Marks())
ENUMERATION = '[{"__enum__": 1, "fqn": "this:a", "name": "b"}]'
SCHEMA = b'{"schema_version": {"major": 8, "minor": 1}}'
ARCHIVES: dict[str, tuple[Edit, str]] = {
    "operator of Python": (calls("torch.os.mkdir"), r"operators.*'torch\.os"),
    "custom operator": (calls("torch.ops.mylib.mark.default"), r"mark.*registers mylib"),
    "an operator that writes": (calls("torch.ops.aten.from_file.default"), "call"),
    "an operator of TorchScript": (calls("torch.ops.aten.save"), r"aten\.save.*no kernel"),
    "an operator as an argument": (
        graph(lambda value: value["graph_module"]["graph"]["nodes"][0]["inputs"][0].update(arg=OPERATOR)),
        r"call.*operators",
    ),
    "code for a size": (size(CODE), r"arithmetic.*__import__"),
    "an attribute for a size": (size("Symbol('s0').__class__"), "arithmetic"),
    "a size without end": (size("9**9**9**9"), "arithmetic"),
    "a power without end": (size("Pow(Integer(9), Integer(999999999))"), "arithmetic"),
    "a count without end": (
        graph(lambda value: value["range_constraints"].update(u99999999999={"min_val": 0, "max_val": 1})),
        "name",
    ),
    "code for a size, hidden": (tensors(renamed_tensor), "arithmetic"),
    "code for a condition": (guards(CODE), r"guard.*comparison"),
    "a call in a condition": (guards("torch.os.mkdir('x') is None"), r"input guard"),
    "code for a name": (
        signature(lambda value: value["forward_arg_names"].append(f"x={CODE}")),
        r"name.*x=__import__",
    ),
    "code for a tensor": (tensors(lambda values: values.update({f"a\n{CODE}": {}})), "name"),
    "a module to import": (spec("collections.defaultdict", DEFAULT), r"collections\.defaultdict.*import"),
    "an enumeration": (spec("builtins.dict", ENUMERATION), "import a module"),
    "no structure": (signature(lambda value: value.update(out_spec="[")), r"description.*inputs"),
    "newer schema": (graph(lambda value: value["schema_version"].update(major=99)), r"schema 8.*99"),
    "no graph": (put("models/model.json", b"[]"), r"torch\.export graph; got TypeError"),
    "half a graph": (put("models/model.json", b'{"graph_module": {"gra'), "model.json in .* JSON"),
    "graph without parts": (put("models/model.json", SCHEMA), r"cannot load the program"),
    "pickled inputs": (put("data/sample_inputs/model.pt", of_torch(((Marks(),), {}))), r"asks.*posix\.mkdir"),
    "plainly pickled inputs": (put("data/sample_inputs/model.pt", pickle.dumps(Marks())), r"tensors.*torch\.save"),
    "pickled weight": (
        both(put("data/weights/weight_0", PICKLE), weights(lambda said: said.update(use_pickle=True))),
        r"weight_0.*posix.mkdir",
    ),
    "older weights": (put("data/weights/model.pt", of_torch({"kernel": Marks()})), r"asks.*posix\.mkdir"),
    "script object": (put("data/constants/custom_obj_0", b"?"), r"custom_obj_0.*pickled"),
    "opaque object": (
        graph(
            lambda value: value["config"].update(a={"path_name": "opaque_obj_0", "use_pickle": True}),
            "data/constants/model_constants_config.json",
        ),
        "the tensor 'a' of .* data/constants/tensor_0, 1, ...; got 'opaque_obj_0'",
    ),
    "bomb in a member": (put("data/sample_inputs/model.pt", bomb()), r"stored.*members"),
    "huge weight": (meta(sizes=ONES), f"the tensor kernel of .* needs {(HUGE * 3) * 4} bytes .* weight_0 has 48"),
    "negative stride": (meta(strides=[{"as_int": -3}, {"as_int": 1}]), r"negative.*-3"),
    "weight elsewhere": (
        weights(lambda kernel: kernel.update(path_name="../../models/model.json")),
        r"kernel.* data/weights/weight_0.*models/model\.json",
    ),
    "no weights": (without(WEIGHTS), rf"member.*{WEIGHTS}"),
    "no inputs": (without("data/sample_inputs/model.pt"), r"member.*data/sample_inputs/model\.pt"),
    "no program": (without("models/model.json"), r"torch\.export program"),
    "no format": (without("archive_format"), r"without.*archive_format"),
    "another format": (put("archive_format", b"pt3"), r"torch\.export archive"),
    "newer archive": (put("archive_version", b"7"), r"archive.* must be 0"),
    "a way out": (put("../../out", b""), r"folder.*'m/\.\./\.\./out'"),
    "two folders": (lambda members: members.update({"n/x": b""}), "folder"),
    "a library next to": (put("data/aotinductor/model/a.so", b"ELF"), r"AOTInductor.*rights"),
    "older export": (only({"serialized_exported_program.json": b"{}", "version": b"5.1"}), r"2\.8.*again"),
    "TorchScript": (only({"m/constants.pkl": b"", "m/data.pkl": b""}), r"torch\.export.*TorchScript"),
    "torch.save": (only({"m/data.pkl": pickle.dumps(Marks())}), r"pickle.*torch\.save"),
}
BYTES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", r"torch\.export.*damaged"),
    "truncated": (lambda content: content[:-100], r"damaged.*contents"),
    "front cut off": (lambda content: content[500:], "damaged"),
    "damaged table": (lambda content: content.replace(b"PK\x01\x02", b"PK\x09\x02"), r"export.*damaged"),
    "damaged weight": (
        lambda content: content.replace(np.float32(11).tobytes(), b"\x55\x55\x55\x55", 1),
        r"checksum.*m/data/weights/weight_0",
    ),
}


@pytest.fixture
def refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, str], None]]:
    """Yields a check that the file is rejected in one sentence with its name, and nothing changes here or in the temporary folder."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TMPDIR", str(work))

    def check(path: Path, sentence: str) -> None:
        before = tree(tmp_path)
        with pytest.raises(ValueError, match=sentence) as refused:
            open_artefact(path)
        message = str(refused.value)
        assert "\n" not in message and len(message) < 700 and (path.name in message or "sparse" in message)
        assert tree(tmp_path) == before
        assert sys.modules.pop("this", None) is None

    yield check


@pytest.mark.parametrize("name", ONNX)
def test_a_damaged_or_hostile_onnx_file_is_refused(name: str, tmp_path: Path, refuses: Callable[[Path, str], None]) -> None:
    content, sentence = ONNX[name]
    refuses(content(tmp_path) if callable(content) else saved(tmp_path, content), sentence)


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_hostile_archive_is_refused(name: str, sound: Path, tmp_path: Path, refuses: Callable[[Path, str], None]) -> None:
    edit, sentence = ARCHIVES[name]
    refuses(edited(sound, tmp_path, edit), sentence)


@pytest.mark.parametrize("name", BYTES)
def test_a_damaged_archive_is_refused(name: str, sound: Path, tmp_path: Path, refuses: Callable[[Path, str], None]) -> None:
    change, sentence = BYTES[name]
    (tmp_path / "m.pt2").write_bytes(change(sound.read_bytes()))
    refuses(tmp_path / "m.pt2", sentence)


def test_an_archive_larger_than_its_file_is_refused(sound: Path, tmp_path: Path, refuses: Callable[[Path, str], None]) -> None:
    path = edited(sound, tmp_path, put("data/weights/weight_0", bytes(1 << 20)), zipfile.ZIP_DEFLATED)
    refuses(path, "stored")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_two_members_of_a_name_is_refused(sound: Path, tmp_path: Path, refuses: Callable[[Path, str], None]) -> None:
    path = edited(sound, tmp_path, lambda members: None)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("m/models/model.json", b"{}")
    refuses(path, "'m/models/model.json' appears twice")


# ---- sound files


def test_an_onnx_file_says_what_it_takes_and_runs(tmp_path: Path) -> None:
    """Its weights are in a file next to it, one operator is its own function, and its suffix is meaningless."""
    (tmp_path / "w.bin").write_bytes(bytes(4) + np.float32([1, 2, 3]).tobytes())
    made = external("w.bin", offset=4)
    made.graph.node[0].output[0] = "z"
    made.graph.node.append(onnx.helper.make_node("F", ["z"], ["y"], domain="own"))
    made.functions.append(function("F", ["Relu"]))
    path = saved(tmp_path, made, "m.bin")
    artefact = open_artefact(path)
    entry = artefact.entries["forward"]
    assert (entry.inputs, entry.outputs) == ((Tensor("x", "float32", ("b", 3)),), (Tensor("y", "float32", ("b", 3)),))
    got = artefact.run("forward", {"x": np.float32([[-9, 0, 1]])})
    np.testing.assert_array_equal(got["y"], [[0, 2, 4]])


def test_a_file_in_the_cache_of_huggingface_hub_is_opened_where_it_lies(tmp_path: Path) -> None:
    path = cached(tmp_path)
    found = open_artefact(path).run("forward", {"x": np.ones((1, 3), np.float32)})
    np.testing.assert_array_equal(found["y"], np.float32([[2, 3, 4]]))
    (value,) = (value for place, value in constants(path).values if place == "w")
    np.testing.assert_array_equal(value, np.float32([1, 2, 3]))
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(onnx_model.whole(path).graph.initializer[0]), np.float32([1, 2, 3]))


@pytest.mark.parametrize("rows", [2, 0])
def test_bfloat16_goes_into_an_onnx_file_and_out(rows: int, tmp_path: Path) -> None:
    kind, helper = onnx.TensorProto.BFLOAT16, onnx.helper
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=FLOAT),
        helper.make_node("Add", ["f", "f"], ["g"]),
        helper.make_node("Cast", ["g"], ["y"], to=kind),
    ]
    made = model(nodes=nodes)
    for tensor in (*made.graph.input, *made.graph.output):
        tensor.type.tensor_type.elem_type = kind
    artefact = open_artefact(saved(tmp_path, made))
    assert artefact.entries["forward"].inputs[0].dtype == "bfloat16"
    got = artefact.run("forward", {"x": np.full((rows, 3), 1.5, ml_dtypes.bfloat16)})["y"]
    assert got.dtype == ml_dtypes.bfloat16 and np.array_equal(got, np.full((rows, 3), 3.0))


def fed(first: str) -> dict[str, np.ndarray]:
    mask = np.array([[True], [False], [True]])
    return {first: np.ones((3, 1, 4), np.float32), "mask": mask, "cache_k": np.full((2, 2), 1.5, ml_dtypes.bfloat16)}


def answers(artefact: Artefact, first: str, calls: list[float]) -> None:
    """Asserts the program's outputs. calls: the counts in two calls."""
    logits = np.broadcast_to(np.float32([18, 22, 26]), (3, 1, 3))
    for count in calls:
        got = artefact.run("forward", fed(first))
        assert [*got] == [tensor.name for tensor in artefact.entries["forward"].outputs]
        np.testing.assert_array_equal(got["logits"], logits)
        np.testing.assert_array_equal(got["cache.0"], logits * fed(first)["mask"][..., None])
        assert got["cache.1"].dtype == ml_dtypes.bfloat16 and (got["cache.1"] == 3).all()
        assert got["calls"] == count


@pytest.mark.parametrize("container", ["builtins.dict", "elsewhere.modeling.Output"])
def test_a_program_says_what_it_takes_and_runs(container: str, sound: Path, tmp_path: Path) -> None:
    """The class of its outputs need not be installed; state kept between calls is reset."""

    edit = signature(lambda said: said.update(out_spec=said["out_spec"].replace("builtins.dict", container)))
    artefact = open_artefact(edited(sound, tmp_path, edit))
    entry = artefact.entries["forward"]
    (b, t, _), (_, _, three) = entry.inputs[0].shape, entry.outputs[0].shape
    assert isinstance(b, str) and isinstance(t, str) and b != t and three == 3
    assert entry.inputs == (Tensor("input", "float32", (b, t, 4)), Tensor("mask", "bool", (b, t)), Tensor("cache_k", "bfloat16", (2, 2)))
    assert [(tensor.name, tensor.dtype) for tensor in entry.outputs] == [
        *(("logits", "float32"), ("cache.0", "float32"), ("cache.1", "bfloat16"), ("calls", "float32"))
    ]
    answers(artefact, "input", [1, 1])


@pytest.mark.conformance
def test_a_package_is_opened_where_its_code_is_allowed(program: Any, tmp_path: Path, refuses: Callable[[Path, str], None]) -> None:
    """Otherwise it is rejected; its sizes are checked, although its code does not; and torch's unpacked files are removed."""
    path = Path(torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "m.pt2")))
    assert kind_of(path) == "aoti"
    refuses(path, "AOTInductor.*--allow-code")
    before = tree(tmp_path)
    artefact = open_artefact(path, allow_code=True)
    assert [str(tensor) for tensor in artefact.entries["forward"].inputs] == [
        "arg0 float32[?, ?, 4]",
        "mask bool[?, ?]",
        "cache_k bfloat16[2, 2]",
    ]
    answers(artefact, "arg0", [1, 1])
    with pytest.raises(ValueError, match=r"the package takes arg0 float32\[\?, \?, 4\]; got \[3, 1, 9\]"):
        artefact.run("forward", {**fed("arg0"), "arg0": np.ones((3, 1, 9), np.float32)})
    assert tree(tmp_path) == before
