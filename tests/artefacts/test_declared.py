"""Entries of config.json that contradict a graph: none for a correct export, and only the changed entry otherwise."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
from messages import each_mentions, mentions
from onnx_exports import exported

from reference_numpy import preset
from reference_numpy.rotary import rotary_frequencies
from reference_numpy.rotary_scaling import RotaryScaling
from rosettaformer.files.artefacts.constants import constants
from rosettaformer.files.artefacts.constants.reading import Constants
from rosettaformer.files.artefacts.declared import findings, weights
from rosettaformer.files.artefacts.export import export
from rosettaformer.files.artefacts.kinds import KINDS
from rosettaformer.files.checkpoints.hugging_face import entries, new, reading
from rosettaformer.files.checkpoints.hugging_face.families import FAMILIES

# changes of config.json next to an unchanged graph -> the field of the only finding, and words of it
CHANGES = {
    "llama": [
        ({"rope_parameters.rope_theta": 10000.0}, "rotary_base", "rope_theta 10000.0 … 10000"),
        ({"rope_parameters.factor": 5.0}, "rotary_scaling", "rope_type llama3 … 5"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 20.0}}, "rotary_scaling", "frequencies"),
        ({"rms_norm_eps": 1e-6}, "epsilon", "rms_norm_eps 1e-06 … 1e-06"),
        ({"hidden_act": "gelu"}, "activation", "hidden_act gelu … erf"),
        ({"num_attention_heads": 8}, "heads", "says num_attention_heads 8"),
        ({"num_key_value_heads": 3}, "key_value_heads", "says num_key_value_heads 3"),
        ({"head_dim": 14}, "key_size", "head_dim 14 … 14"),
        ({"num_hidden_layers": 4}, "decoder_layers", "num_hidden_layers 4 … 12 … 48 and 44 … 9"),
        ({"vocab_size": 97}, "target_vocabulary", "says vocab_size 97"),
        ({"intermediate_size": 52}, "feed_forward_width", "says intermediate_size 52"),
        ({"hidden_size": 66}, "model_width", "says hidden_size 66"),
    ],
    "qwen3": [
        ({"use_sliding_window": True, "sliding_window": 30, "max_window_layers": 0}, "window", "has no 30, 29 or 31"),
        ({"rms_norm_eps": 1e-5}, "epsilon", "says rms_norm_eps 1e-05"),
    ],
    "gemma2": [
        ({"attn_logit_softcapping": 50.0}, "score_cap", "attn_logit_softcapping 50.0 … 50 or 0.02"),
        ({"final_logit_softcapping": 33.0}, "logit_cap", "final_logit_softcapping 33.0 … 33 or 0.030303"),
        ({"query_pre_attn_scalar": 150}, "score_scale", "query_pre_attn_scalar 150 … 0.0816497"),
        ({"sliding_window": 17}, "window", "has no 17, 16 or 18"),
    ],
    "gemma3_text": [
        ({"rope_parameters.full_attention.factor": 5.0}, "rotary_scaling", "linear … 5"),
        ({"rope_parameters.full_attention.rope_theta": 500000.0}, "rotary_base", "says rope_theta of full_attention 500000.0"),
        ({"rope_parameters.sliding_attention.rope_theta": 10000.0}, "local_rotary_base", "says rope_theta of sliding_attention 10000.0"),
    ],
    "phi3": [
        ({"rope_parameters.short_factor": [1.0, 1.3, 1.6]}, "rotary_scaling", "frequencies divided by short_factor"),
        ({"rope_parameters.long_factor": [1.2, 3.5, 19.0]}, "rotary_scaling", "frequencies divided by long_factor"),
        ({"rope_parameters.attention_factor": 1.7}, "rotary_scaling", "factor of 1.7"),
        ({"original_max_position_embeddings": 200, "rope_parameters.attention_factor": 1.3540064}, "rotary_scaling", "no 200, 199 or 201"),
        ({"rope_parameters.rope_theta": 10000.0}, "rotary_base", "says rope_theta 10000.0"),
    ],
    "gpt2": [
        ({"n_positions": 1024}, "max_positions", "says n_positions 1024"),
        ({"layer_norm_epsilon": 1e-5}, "epsilon", "says layer_norm_epsilon 1e-05"),
        ({"n_head": 6}, "heads", "n_head 6 … 8"),
        ({"activation_function": "quick_gelu"}, "activation", "has no 1.702"),
    ],
    "bert": [
        ({"layer_norm_eps": 1e-12}, "epsilon", "says layer_norm_eps 1e-12"),
        ({"hidden_act": "gelu_new"}, "activation", "has no 0.044715"),
        ({"num_hidden_layers": 4}, "encoder_layers", "says num_hidden_layers 4"),
    ],
}  # fmt: skip


def changed(folder, changes):
    """Returns the config of a folder with changed entries, and its config.json."""
    found = reading.view(folder)
    said, family = copy.deepcopy(found.foreign["config.json"]), FAMILIES[found.foreign["config.json"]["model_type"]]
    for name, value in changes.items():
        *outer, last = name.split(".")
        place = said
        for part in outer:
            place = place[part]
        place[last] = value
    if "num_hidden_layers" in changes and "layer_types" in said:
        said["layer_types"] = None
    config, problems = entries.config_of(family, said, family.classes[said["architectures"][0]])
    assert config is not None, problems
    return config, said


def assert_found(path, found, cases):
    """Checks that the folder has no finding, and each change of its config.json only one of its field."""
    config, said = changed(path, {})
    assert findings(config, found, said) == [] and found.weights and found.operations
    for changes, field, words in cases:
        config, said = changed(path, changes)
        told = findings(config, found, said)
        assert [finding.field for finding in told] == [field], (changes, told)
        assert mentions(told[0].sentence, words) and told[0].sentence.startswith("config.json says ")


@pytest.mark.conformance
@pytest.mark.parametrize("family", CHANGES)
def test_the_changed_entry_alone_is_a_finding(family, tmp_path):
    """In an ONNX file that torch exported from a transformers model."""
    for package in ("torch", "transformers", "onnxscript"):
        pytest.importorskip(package)
    path, file = exported(family, tmp_path)
    assert_found(path, constants(file), CHANGES[family])


# exports of our port of Gemma 2, in any format
OF_OURS = [
    *CHANGES["gemma2"][:2],
    ({"sliding_window": 35}, "window", "has no 35, 34 or 36"),
    ({"rope_parameters.rope_theta": 10000.0}, "rotary_base", "says rope_theta 10000.0"),
    ({"rms_norm_eps": 1e-6}, "epsilon", "says rms_norm_eps 1e-06"),
    ({"hidden_activation": "gelu"}, "activation", "has no erf"),
]


@pytest.mark.conformance
@pytest.mark.parametrize("kind", ["pt2", "stablehlo", "savedmodel", "litert"])
def test_every_format_shows_its_constants(kind, tmp_path):
    for package in {"pt2": ("torch",), "stablehlo": ("jax",)}.get(kind, ("tensorflow", "ai_edge_litert")):
        pytest.importorskip(package)
    path, file = tmp_path / "gemma2", tmp_path / f"model{KINDS[kind].suffix}"
    new.write("gemma2", path)
    export(path, kind, file)
    assert_found(path, constants(file), OF_OURS)


# A handwritten graph: every number that a config computes with.


CONFIG = preset(
    "gemma2_2b", decoder_layers=2, model_width=48, heads=6, key_value_heads=2, key_size=10, value_size=10, feed_forward_width=44, window=24,
    source_vocabulary=101, target_vocabulary=101, score_scale=7**-0.5, score_cap=50.0, logit_cap=30.0, epsilon=3e-3, rotary_base=3e3,
    local_rotary_base=3e3,
)  # fmt: skip


def graph(**changes):
    """Returns the constants of a graph of CONFIG. changes: replaces some of them."""
    values = {
        "window": np.int64(24), "scale": 7**-0.5, "cap": 50.0, "last": 1 / 30.0, "epsilon": 3e-3, "root": math.sqrt(48), "tanh": 0.044715,
        "frequencies": rotary_frequencies(10, 3e3, RotaryScaling(), 1), "size": np.array([0, 0, -1, 10]),
    } | changes  # fmt: skip
    found = Constants(longest=None)
    for name, value in values.items():
        if value is not None:
            found.number(name, np.asarray(value, np.float32) if np.asarray(value).dtype.kind == "f" else value)
    shapes = [(101, 48), *[(60, 48), (20, 48), (20, 48), (48, 60), (44, 48), (44, 48), (48, 44)] * 2]
    for number, shape in enumerate(shapes):
        found.weight(f"w{number}", "float32", shape, None)
    return found


def fields(found, config=CONFIG):
    return [finding.field for finding in findings(config, found)]


LACKS = {
    "window": "window", "scale": "score_scale", "cap": "score_cap", "last": "logit_cap", "epsilon": "epsilon", "root": "scale_embedding",
    "tanh": "activation", "frequencies": "rotary_base", "size": "key_size",
}  # fmt: skip


@pytest.mark.parametrize("name", LACKS)
def test_a_number_that_is_nowhere_is_a_finding(name):
    assert fields(graph()) == [] and fields(graph(**{name: None})) == [LACKS[name]]


FOLDED = {
    "window": [np.int64(-24), np.int64(23), np.int64(25)],
    "scale": [7**0.5, 7**-0.5 * math.log2(math.e), 7**-0.25, 7**0.25, np.float16(7**-0.5), np.full((3, 30), 7**-0.5)],
    "cap": [1 / 50.0, np.float32(50.0)],
    "epsilon": [48 * 3e-3, np.float16(3e-3)],
    "root": [float(np.float32(6.9375)), 1 / math.sqrt(48)],  # rounded to bfloat16
    "tanh": [0.044715 * math.sqrt(2 / math.pi)],
    "frequencies": [
        3e3, math.log(3e3), -math.log(3e3) / 5, np.arange(30)[:, None] * rotary_frequencies(10, 3e3, RotaryScaling(), 1),
        np.cos(np.arange(30)[:, None] * np.tile(rotary_frequencies(10, 3e3, RotaryScaling(), 1), 2)),
        np.exp(1j * np.arange(30)[:, None] * rotary_frequencies(10, 3e3, RotaryScaling(), 1)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_a_number_that_a_framework_folded_is_no_finding(name):
    for value in FOLDED[name]:
        found = graph(**{name: None})
        found.number(name, value)
        assert fields(found) == [], value


def test_what_hides_a_number_hides_the_finding():
    lacking = dict.fromkeys(("window", "scale", "cap", "epsilon"))
    for name, value, left in (
        ("opaque", "vendor.Attention", []),
        ("opaque", "com.microsoft.SkipLayerNormalization", ["window", "score_scale", "score_cap"]),
        ("rounded", True, []),
        ("scales_fold", True, ["window", "score_cap", "epsilon"]),
        ("from_shapes", True, ["window", "score_cap", "epsilon"]),
        ("longest", 24, ["score_scale", "score_cap", "epsilon"]),
        ("longest", 25, ["window", "score_scale", "score_cap", "epsilon"]),
        ("sides", {24}, ["score_scale", "score_cap", "epsilon"]),
        ("reason", "compiled", []),
    ):
        found = graph(**lacking)
        setattr(found, name, value)
        assert fields(found) == left, (name, value)


def test_an_epsilon_that_half_precision_makes_nothing_is_no_finding():
    found = graph(epsilon=None)
    config = CONFIG.replace(epsilon=1e-12)
    assert fields(found, config) == ["epsilon"]
    found.weight("half", "float16", (101, 48), None)
    assert fields(found, config) == []


def test_a_compiled_library_says_nothing(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr("model/data/aotinductor/model/model.so", b"")
    assert constants(tmp_path / "model.pt2").reason
    (tmp_path / "port.py").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="exported model"):
        constants(Path(tmp_path / "port.py"))


def test_constants_are_computed_of_constants():
    found = Constants()
    found.number("d", np.int64(48), "d")
    found.number("steps", [0, 10, 2], "steps")
    for name, value in (("start", 0), ("stop", 10), ("step", 2), ("n", 10.0), ("base", 3e3)):
        found.number(name, value, name)
    found.node("Sqrt", "sqrt", ["float"], ["root"])  # before its input
    found.node("Cast", "cast", ["d"], ["float"])
    found.node("Range", "range", ["start", "stop", "step"], ["even"])
    found.node("Div", "div", ["even", "n"], ["share"])
    found.node("Neg", "neg", ["share"], ["down"])
    found.node("Pow", "pow", ["base", "down"], ["w"])
    found.node("Shape", "shape", ["x"], ["sizes"])
    found.node("Gather", "gather", ["sizes", "d"], ["side"])
    assert not found.from_shapes
    found.node("Sqrt", "of a side", ["side"], ["other"])
    found.fold()
    values = dict(found.values)
    assert values["sqrt"] == math.sqrt(48) and found.from_shapes
    np.testing.assert_allclose(values["pow"], rotary_frequencies(10, 3e3, RotaryScaling(), 1))


@pytest.mark.parametrize("given", [{}, {"epsilon": 0.25}])
def test_onnx_shows_the_numbers_that_a_node_leaves_out(tmp_path, given):
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, save

    nodes = [
        helper.make_node("LayerNormalization", ["x", "s"], ["y"], axis=-1, **given),
        helper.make_node("Gelu", ["y"], ["z"]),
        helper.make_node("Attention", ["z"], ["a"], domain="vendor"),
    ]
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 4]) for name in ("x", "a")]
    scale = helper.make_tensor("s", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])
    made = helper.make_graph(nodes, "g", sides[:1], sides[1:], [scale])
    save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("vendor", 1)]), tmp_path / "m.onnx")
    found = constants(tmp_path / "m.onnx")
    numbers = {round(float(number), 9) for _, value in found.values for number in np.ravel(value)}
    assert given.get("epsilon", 1e-5) in numbers and (1e-5 in numbers) == (not given)
    assert found.opaque == "vendor.Attention" and "gelu none" in found.operations and found.longest is None and found.sides == {4}


def test_a_graph_that_cannot_be_read_gives_no_finding(tmp_path):
    pytest.importorskip("onnx")
    (tmp_path / "m.onnx").write_bytes(b"no protocol buffer")
    found = constants(tmp_path / "m.onnx")
    assert "graph" in found.reason and fields(found) == []


def written(tmp_path, nodes, tensors=(), functions=()):
    """Returns an ONNX model of these nodes, from x and whether to y."""
    from onnx import TensorProto, helper, save

    sides = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("x", TensorProto.FLOAT), ("whether", TensorProto.BOOL))]
    ends = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    domains = {"", *(function.domain for function in functions)}
    opsets = [helper.make_opsetid(domain, 1 if domain else 17) for domain in sorted(domains)]
    made = helper.make_graph(nodes, "g", sides, ends, tensors)
    save(helper.make_model(made, opset_imports=opsets, functions=functions), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def layered(tmp_path, *orders, inner=False):
    """Returns the findings of weights next to an ONNX model with an If, whose branches multiply by the kernels of these layers in order.

    inner: the branches contain the kernels, by the indices of the products.
    """
    from onnx import TensorProto, helper, numpy_helper

    kernels = [np.random.default_rng(layer).standard_normal((4, 4)).astype(np.float32) for layer in range(2)]
    branches = []
    for order in orders:
        names = [f"w{place if inner else layer}" for place, layer in enumerate(order)]
        tensors = [numpy_helper.from_array(kernels[layer], name) for layer, name in zip(order, names, strict=True) if inner]
        values = ["x", "h", "out"]
        nodes = [helper.make_node("MatMul", [values[i], name], [values[i + 1]]) for i, name in enumerate(names)]
        branches.append(helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)], tensors))
    node = helper.make_node("If", ["whether"], ["y"], "if", then_branch=branches[0], else_branch=branches[1])
    outer = [] if inner else [numpy_helper.from_array(kernel, f"w{layer}") for layer, kernel in enumerate(kernels)]
    parameters = {f"decoder.layers.{layer}.feed_forward.out.kernel": kernel for layer, kernel in enumerate(kernels)}
    return [finding.sentence for finding in weights.findings(CONFIG, parameters, constants(written(tmp_path, [node], outer)))]


def test_every_branch_of_a_graph_has_an_order_of_its_own(tmp_path):
    pytest.importorskip("onnx")
    assert layered(tmp_path, (0, 1), (0, 1)) == layered(tmp_path, (0, 1), (0, 1), inner=True) == []
    exchanged = ["decoder.layers.N.feed_forward.out.kernel … layers 1, 0"]
    for inner in (False, True):
        assert each_mentions(layered(tmp_path, (0, 1), (1, 0), inner=inner), exchanged)


def test_a_function_s_numbers_are_those_that_its_caller_gives(tmp_path):
    pytest.importorskip("onnx")
    from onnx import AttributeProto, TensorProto, helper

    body = [
        helper.make_node("Cast", ["a"], ["b"]),
        helper.make_node("LayerNormalization", ["b", "scale"], ["c"]),
        helper.make_node("Mul", ["c", "scale"], ["d"]),
    ]
    for node, name, kind in ((body[0], "to", AttributeProto.INT), (body[1], "epsilon", AttributeProto.FLOAT)):
        node.attribute.append(AttributeProto(name=name, type=kind, ref_attr_name=name))
    default = helper.make_attribute("to", TensorProto.DOUBLE)
    function = helper.make_function("ours", "Norm", ["a", "scale"], ["d"], body, [helper.make_opsetid("", 17)], ["epsilon"], [default])
    node = helper.make_node("Norm", ["x", "s"], ["y"], domain="ours", epsilon=0.25)
    found = constants(written(tmp_path, [node], [helper.make_tensor("s", TensorProto.FLOAT, [2], [2.0, 3.0])], [function]))
    assert not found.reason and not found.opaque
    assert [value for _, value in found.epsilons] == [0.25] and [dtype for _, dtype in found.casts] == ["double"]


@pytest.mark.conformance
def test_a_saved_model_as_text_shows_its_constants(tmp_path):
    tf = pytest.importorskip("tensorflow")
    from google.protobuf import text_format
    from tensorflow.core.protobuf import saved_model_pb2

    module = tf.Module()
    module.call = tf.function(lambda x: x * 0.1875, input_signature=[tf.TensorSpec([None], tf.float32)])
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    file = tmp_path / "model" / "saved_model.pb"
    file.with_suffix(".pbtxt").write_text(text_format.MessageToString(saved_model_pb2.SavedModel.FromString(file.read_bytes())))
    file.unlink()
    assert any((value == 0.1875).any() for _, value in constants(tmp_path / "model").values)
