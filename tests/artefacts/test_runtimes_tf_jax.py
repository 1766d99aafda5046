"""The TensorFlow, LiteRT and JAX runtimes: files they open, and damaged or hostile files they reject before running any of it."""

import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
from rosettaformer.files.artefacts.kinds import kind_of
from rosettaformer.files.artefacts.opening import open_artefact
from rosettaformer.files.artefacts.signature import Artefact

X = np.float32([[1, 2], [3, 4]])


def refused(path: Path, why: str) -> None:
    before = sorted(path.parent.rglob("*"))
    with pytest.raises(ValueError, match=why) as found:
        open_artefact(path)
    assert "\n" not in str(found.value)
    assert sorted(path.parent.rglob("*")) == before  # nothing is written


def answered(artefact: Artefact, x: np.ndarray) -> np.ndarray:
    """Returns the output of the file's function, which has one input and one output."""
    (given,), (result,) = artefact.entries["forward"].inputs, artefact.entries["forward"].outputs
    return artefact.run("forward", {given.name: x})[result.name]


# SavedModel


def saved(folder: Path, function: Callable[[Any], Any], held: Any = None) -> Path:
    tf = pytest.importorskip("tensorflow")
    module = tf.Module()
    module.held = held if held is not None else tf.Variable(X)
    spec = tf.TensorSpec([None, 2], tf.float32, "x")
    tf.saved_model.save(module, folder / "model", tf.function(lambda x: {"y": function(x)}).get_concrete_function(spec))
    return folder / "model"


def test_a_saved_model_s_default_signature_is_its_whole_model(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    variable = tf.Variable(X)
    artefact = open_artefact(saved(tmp_path, lambda x: x @ variable, variable))
    assert [str(one) for one in (*artefact.entries["forward"].inputs, *artefact.entries["forward"].outputs)] == [
        "x float32[?, 2]",
        "y float32[?, 2]",
    ]
    assert list(artefact.entries) == ["forward"]
    np.testing.assert_array_equal(artefact.run("forward", {"x": X})["y"], X @ X)


def _after(tf: Any, x: Any, operation: Any) -> Any:
    with tf.control_dependencies([operation]):
        return tf.identity(x)


def _nested(tf: Any, x: Any) -> Any:
    def written() -> Any:
        return _after(tf, x, tf.raw_ops.WriteFile(filename="written", contents="x"))

    return tf.function(lambda: tf.cond(tf.reduce_any(x > 0), written, lambda: x), autograph=False)()


SAVED: dict[str, Any] = {"prefix": "written", "tensor_names": ["x"], "shape_and_slices": [""]}
DECODED: dict[str, Any] = {"bytes": "", "message_type": "m", "field_names": ["f"], "descriptor_source": "/x"}
HOSTILE: dict[str, Callable[[Any, Any], Any]] = {
    "WriteFile": _nested,
    "MatchingFiles": lambda tf, x: x + tf.cast(tf.size(tf.io.matching_files("/etc/*")), tf.float32),
    "EagerPyFunc": lambda tf, x: tf.py_function(lambda y: y, [x], tf.float32),
    "PrintV2": lambda tf, x: _after(tf, x, tf.print(x, output_stream="file://printed")),
    "SaveV2": lambda tf, x: _after(tf, x, tf.raw_ops.SaveV2(tensors=[x], **SAVED)),
    "DecodeProtoV2": lambda tf, x: x + tf.raw_ops.DecodeProtoV2(output_types=[tf.float32], **DECODED)[1][0],
    "Dataset": lambda tf, x: x + tf.cast(tf.data.TextLineDataset("/etc/hostname").cardinality(), tf.float32),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_saved_model_that_reaches_out_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tf = pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    refused(saved(tmp_path, lambda x: HOSTILE[name](tf, x)), rf"files.*{name}$")


@pytest.mark.parametrize("assign", [lambda held, x: held.assign(held + x), lambda held, x: held.assign_add(x)])
def test_what_a_saved_model_assigns_is_as_in_the_file_whenever_it_is_called(assign: Callable[..., Any], tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    variable = tf.Variable(X)
    artefact = open_artefact(saved(tmp_path, lambda x: tf.identity(assign(variable, x)), variable))
    for _ in range(2):
        np.testing.assert_array_equal(artefact.run("forward", {"x": X})["y"], 2 * X)


def test_a_damaged_saved_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    from tensorflow.core.protobuf import saved_model_pb2

    path = saved(tmp_path, lambda x: x + 0.25)
    file, data = path / "saved_model.pb", path / "variables" / "variables.data-00000-of-00001"
    index = path / "variables" / "variables.index"
    whole, content, places = file.read_bytes(), data.read_bytes(), index.read_bytes()
    for part in (0, 10, len(whole) // 2):
        file.write_bytes(whole[:part])
        refused(path, "a SavedModel")
    message = saved_model_pb2.SavedModel.FromString(whole)
    nodes = [node for function in message.meta_graphs[0].graph_def.library.function for node in function.node_def]
    constant = next(node for node in nodes if node.op == "Const" and node.attr["dtype"].type == 1)
    constant.attr["value"].tensor.tensor_shape.dim.add(size=1 << 50)
    file.write_bytes(message.SerializeToString())
    refused(path, f"memory.*{1 << 50}")
    for name in ("XlaCustomCallV2", "MlirPassthroughOp", "CopyHost", "XlaCallModule"):
        constant.op = name
        file.write_bytes(message.SerializeToString())
        refused(path, f"files.*{name}$")
    constant.op = "Evil"
    file.write_bytes(message.SerializeToString())
    refused(path, "TensorFlow's.*Evil")
    file.write_bytes(whole)
    data.write_bytes(content[:8])
    refused(path, r"\d+ bytes.* 8\.")
    data.write_bytes(content)
    index.write_bytes(places[: len(places) // 2])
    refused(path, "a SavedModel")
    index.unlink()
    refused(path, r"variables\.index.*missing")


# LiteRT


def lite(function: Callable[[Any], Any], folder: Path, examples: Sequence[Any] = (), holder: Any = None) -> Path:
    """examples: inputs for an int8 model. holder: has its variables."""
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("ai_edge_litert")
    program = tf.function(function).get_concrete_function(tf.TensorSpec([None, 2], tf.float32, "x"))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([program], holder)
    if examples:
        converter.optimizations, converter.representative_dataset = [tf.lite.Optimize.DEFAULT], lambda: ([one] for one in examples)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    (folder / "model.tflite").write_bytes(converter.convert())
    return folder / "model.tflite"


def changed(path: Path, change: Callable[[Any], None]) -> Path:
    """Returns the model after a change of its flatbuffer's tables."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    change(model)
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    path.with_name("changed.tflite").write_bytes(builder.Output())
    return path.with_name("changed.tflite")


def test_a_litert_model_with_an_archive_behind_it_is_opened(tmp_path: Path) -> None:
    path = lite(lambda x: x + 0.25, tmp_path)
    assert not zipfile.is_zipfile(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("vocab.txt", "[PAD]\n")
    assert zipfile.is_zipfile(path) and kind_of(path) == "litert"
    assert kind_of(path.rename(tmp_path / "model.onnx")) == "litert"
    assert "forward" in open_artefact(tmp_path / "model.onnx").entries


def test_whole_numbers_with_a_scale_are_what_they_stand_for(tmp_path: Path) -> None:
    path = lite(lambda x: x @ X, tmp_path, examples=[np.full((1, 2), value, np.float32) for value in (-4, 4)])
    artefact = open_artefact(path)
    (given,), (result,) = artefact.entries["forward"].inputs, artefact.entries["forward"].outputs
    assert (given.dtype, result.dtype) == ("float32", "float32")
    found = answered(artefact, X)
    assert found.dtype == np.float32
    # half a unit of the input, 8 / 255, times at most 2 + 4; of the kernel, 4 / 127, times 3 + 4; and of the output, 48 / 255
    np.testing.assert_allclose(found, X @ X, atol=0.5 * (8 / 255 * 6 + 4 / 127 * 7 + 48 / 255))


def test_what_a_litert_model_keeps_is_as_in_the_file_whenever_it_is_run(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    holder = tf.Module()
    holder.held = tf.Variable(X)
    artefact = open_artefact(lite(lambda x: holder.held.assign_add(x) + 0.0, tmp_path, holder=holder))
    for _ in range(2):
        np.testing.assert_array_equal(answered(artefact, X), 2 * X)


def _recurrent(model: Any) -> None:
    """Replaces the model's only operator by a recurrent one that adds its input to its state, a variable tensor."""
    from ai_edge_litert import schema_py_generated as schema

    def tensor(shape: Sequence[int], value: Any = None) -> int:
        buffer, made = schema.BufferT(), schema.TensorT()
        buffer.data = value if value is None else np.frombuffer(np.float32(value).tobytes(), np.uint8)
        made.shape, made.type, made.name = shape, schema.TensorType.FLOAT32, b"own"
        made.buffer, made.isVariable = len(model.buffers), value is None
        model.buffers.append(buffer)
        graph.tensors.append(made)
        return len(graph.tensors) - 1

    graph, code = model.subgraphs[0], model.operatorCodes[0]
    (operator,) = graph.operators
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.RNN
    operator.inputs = [graph.inputs[0], tensor([2, 2], np.eye(2)), tensor([2, 2], np.eye(2)), tensor([2], [0, 0]), tensor([2, 2])]
    operator.builtinOptionsType, operator.builtinOptions = schema.BuiltinOptions.RNNOptions, schema.RNNOptionsT()


def test_a_variable_tensor_is_as_in_the_file_whenever_a_model_is_run(tmp_path: Path) -> None:
    artefact = open_artefact(changed(lite(lambda x: x + 0.25, tmp_path), _recurrent))
    for _ in range(2):
        np.testing.assert_array_equal(answered(artefact, X), X)


def test_a_damaged_litert_model_is_refused(tmp_path: Path) -> None:
    path = lite(lambda x: x @ X + 0.25, tmp_path)
    np.testing.assert_allclose(answered(open_artefact(path), X), X @ X + 0.25, atol=1e-6)
    whole = path.read_bytes()
    for part in (4, 8, 40, len(whole) // 2, len(whole) - 8):
        (tmp_path / "part.tflite").write_bytes(whole[:part])
        refused(tmp_path / "part.tflite", "a LiteRT model")

    def largest(model: Any) -> Any:
        return max(model.subgraphs[0].tensors, key=lambda tensor: np.size(model.buffers[tensor.buffer].data))

    def outside(model: Any) -> None:
        buffer = model.buffers[largest(model).buffer]
        buffer.data, buffer.offset, buffer.size = None, 1 << 20, 16

    def custom(name: bytes) -> Callable[[Any], None]:
        def change(model: Any) -> None:
            code = model.operatorCodes[0]
            code.builtinCode, code.deprecatedBuiltinCode, code.customCode = 32, 32, name

        return change

    changes: dict[str, Callable[[Any], None]] = {
        "memory": lambda model: setattr(largest(model), "shape", [1 << 30, 1 << 30]),
        "24 bytes.*16": lambda model: setattr(largest(model), "shape", [2, 3]),
        r"one of \d+ buffers; got 1000": lambda model: setattr(largest(model), "buffer", 1000),
        "tensors .*; got 1000": lambda model: setattr(model.subgraphs[0], "outputs", [1000]),
        "operator.*got 9": lambda model: setattr(model.subgraphs[0].operators[0], "opcodeIndex", 9),
        "buffer of 16 bytes": outside,
        "LiteRT's own; Evil is a custom": custom(b"Evil"),
        r"FlexAsinh is TensorFlow's \(Flex\)": custom(b"FlexAsinh"),
    }
    for why, change in changes.items():
        refused(changed(path, change), why)


# StableHLO


def exported(
    folder: Path, function: Callable[..., Any], *shapes: Any, checks: tuple[str, ...] = (), platforms: Any = None, **named: Any
) -> Path:
    jax = pytest.importorskip("jax")
    disabled = [jax.export.DisabledSafetyCheck.custom_call(name) for name in checks]
    program = jax.export.export(jax.jit(function), disabled_checks=disabled, platforms=platforms)(*shapes, **named)
    (folder / "model.stablehlo").write_bytes(program.serialize())
    return folder / "model.stablehlo"


def test_the_arguments_of_any_export_of_jax_have_names(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    shape = jax.ShapeDtypeStruct((2, 2), np.float32)
    artefact = open_artefact(exported(tmp_path, lambda x, parts, y: x @ parts["a"] + y, shape, {"a": shape, "b": [shape]}, y=shape))
    assert [one.name for one in artefact.entries["forward"].inputs] == ["0", "a", "b.0", "y"]
    found = artefact.run("forward", {"0": X, "a": X, "b.0": X, "y": X})
    np.testing.assert_array_equal(found["output"], X @ X + X)


def test_an_export_for_other_devices_too_runs_on_the_cpu(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    shape = jax.ShapeDtypeStruct((2, 2), np.float32)
    there = jax.ffi.ffi_call("cu_threefry2x32_ffi", shape)  # jax.random's form if JAX's CUDA package is installed

    def call(x: Any) -> Any:
        return jax.lax.platform_dependent(x, cpu=lambda x: x + 1, cuda=lambda x: there(x + jax.lax.empty((2, 2), np.float32)))

    path = exported(tmp_path, call, shape, platforms=("cpu", "cuda"))
    assert all(name in path.read_bytes() for name in (b"cu_threefry2x32_ffi", b"AllocateBuffer"))
    np.testing.assert_array_equal(open_artefact(path).run("forward", {"0": X})["output"], X + 1)
    with pytest.raises(Exception, match="No FFI handler registered for cu_threefry2x32_ffi"):
        open_artefact(exported(tmp_path, there, shape)).run("forward", {"0": X})


def test_a_stablehlo_export_that_calls_what_jax_does_not_write_is_refused(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    shape = jax.ShapeDtypeStruct((2, 2), np.float32)

    def call(x: Any) -> Any:
        return jax.ffi.ffi_call("evil", shape)(x)

    refused(exported(tmp_path, call, shape, checks=("evil",)), "custom calls.*got evil")


def test_a_parser_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    from rosettaformer.files.artefacts.runtimes import stablehlo

    monkeypatch.setattr(stablehlo, "LIMIT", 0.01)
    (tmp_path / "model.stablehlo").write_bytes(b"")
    refused(tmp_path / "model.stablehlo", "parser.*within")


@pytest.mark.conformance
def test_a_damaged_stablehlo_export_is_refused(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    shape = jax.ShapeDtypeStruct((2, 2), np.float32)
    refused(exported(tmp_path, lambda x: x + jax.numpy.zeros((1 << 30, 1 << 14, 1, 1)).sum(), shape), "memory")
    path = exported(tmp_path, lambda x: x + 1, shape)
    whole = path.read_bytes()
    for part in (0, 100, len(whole) // 2):
        path.write_bytes(whole[:part])
        refused(path, "a StableHLO export that JAX")
