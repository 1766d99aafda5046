"""`rosettaformer compare`: models that the reference does not know, on the same weights and inputs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import invoke, refused
from kinds import every
from messages import mentions, naming

from rosettaformer.comparison import axes
from rosettaformer.comparison.matching import layer_matching, weight_layout
from rosettaformer.comparison.matching.rename_table import Rename, Row
from rosettaformer.comparison.report import noise, versus
from rosettaformer.comparison.running import declared_inputs

MODELS = Path(__file__).resolve().parents[1] / "compared"
IMAGE = ("--input", "x: b=3 h=14 w=14 c=3 float32")
LARGE = ("--input", "x: b=2 h=32 w=32 c=3 float32")
FORWARD = ("--no-gradients", "--no-step")


def compared(left: str, right: str, *options: object, code: int, folder: Path) -> dict[str, Any]:
    report = folder / "report.json"
    found = invoke("compare", MODELS / left, MODELS / right, *options, "-q", "--json", report)
    assert found.code == code, found
    return json.loads(report.read_text())


def first(report: dict[str, Any]) -> tuple[str, ...]:
    found = report["first"]
    return (found["left"],) if found["what"] == "layer" else (found["after"][0], found["before"][0])


@pytest.fixture(autouse=True)
def _frameworks() -> None:
    pytest.importorskip("torch")


@pytest.mark.conformance
def test_equal_models_are_equal_in_everything_but_what_drops_at_random_in_training(tmp_path: Path) -> None:
    report = compared("conv_torch.py:trained", "conv_torch.py:Net", *IMAGE, "--time", "eager", "--rounds", "1", code=0, folder=tmp_path)
    assert report["verdict"] == "equal"
    assert report["first"] is None
    assert {row["verdict"] for row in report["gradients"]} == {"equal"}
    assert {row["verdict"] for step in report["steps"].values() for row in step["rows"]} == {"equal"}
    assert [row["left"] for row in report["layers"] if row["leaf"]] == ["conv1", "bn1", "conv2", "fc1", "fc2"]
    assert all(side["median_ms"] > 0 for row in report["timing"] for side in row["sides"])
    report = compared("conv_torch.py:Net", "planted.py:Random", *IMAGE, "--no-gradients", code=0, folder=tmp_path)
    assert "random" in report["steps"]["sgd"]["not comparable"]


# a model with a difference -> the layer in which it is found, and what is said
PLANTED = {
    "planted.py:epsilon": (("bn1",), "epsilon 1e-05 on the left, 0.001 on the right"),
    "planted.py:stride": (("bn1", "conv2"), "the right has conv2.0 alone"),
    "planted.py:padding": (("conv1",), ""),
    "planted.py:bias": (("fc1",), "bias"),
    "planted.py:Place": (("conv1", "bn1"), ""),
    "planted.py:Pool": (("bn1", "conv2"), ""),
    "planted.py:Gelu": (("conv2", "fc1"), ""),
    "planted.py:Swapped": (("conv2",), ""),
    "conv_nnx_planted.py:epsilon": (("bn1",), "epsilon"),
    "conv_nnx_planted.py:padding": (("conv1",), "padding"),
    "resnet_keras_planted.py:epsilon": (("layer2.bn1",), "epsilon 1e-05 on the left, 0.001 on the right"),
    "resnet_keras_planted.py:same": (("layer2.conv1",), ""),
    "resnet_keras_planted.py:Early": (("stem", "bn"), ""),
}
SAMPLE = ("planted.py:epsilon", "planted.py:Gelu", "planted.py:bias")


def _planted(name: str, folder: Path) -> None:
    where, said = PLANTED[name]
    pytest.importorskip("keras" if "keras" in name else "flax" if "nnx" in name else "torch")
    left, inputs = ("resnet_torch.py:net", LARGE) if name.startswith("resnet") else ("conv_torch.py:trained", IMAGE)
    report = compared(left, name, *inputs, *FORWARD, code=1, folder=folder)
    assert first(report) == where
    assert mentions(report["sentences"][1], said)


@pytest.mark.conformance
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_found_in_its_layer(name: str, tmp_path: Path) -> None:
    _planted(name, tmp_path)


@pytest.mark.parametrize("name", every(3, SAMPLE))
def test_some_planted_differences_are_found_in_their_layers(name: str, tmp_path: Path) -> None:
    _planted(name, tmp_path)


@pytest.mark.conformance
def test_of_torchvisions_and_kerass_residual_blocks_the_place_of_the_stride_is_found(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    report = compared("bottleneck_torch.py:net", "bottleneck_keras.py:net", *LARGE, *FORWARD, code=1, folder=tmp_path)
    assert (report["first"]["left"], report["first"]["right"]) == ("1.conv1", "conv3_block1_1_conv")
    assert "stride [1, 1] on the left, [2, 2] on the right" in report["sentences"][1]


# PyTorch as it is published

TOKENS = ("--input", "ids: b=3 t=7 int64 <19")
ROWS = ("--input", "x: b=4 d=5 float32")


@pytest.mark.conformance
def test_layers_of_one_name_are_one_also_by_the_table_and_other_shapes_no_divergence(tmp_path: Path) -> None:
    report = compared("foreign_torch.py:Small", "foreign_torch.py:stock", *TOKENS, code=0, folder=tmp_path)
    assert report["verdict"] == "equal"
    assert {"left": "norm", "right": "norm", "how": "name"} in report["layers_matched"]
    table = tmp_path / "table.toml"
    table.write_text('"norm" = "norm"\n')
    report = compared("foreign_torch.py:Small", "foreign_torch.py:stock", *TOKENS, *FORWARD, "--rename", table, code=0, folder=tmp_path)
    assert {"left": "norm", "right": "norm", "how": "renamed"} in report["layers_matched"]
    report = compared("foreign_torch.py:Small", "foreign_torch.py:row", *TOKENS, *FORWARD, code=1, folder=tmp_path)
    assert first(report) == ("up", "down")
    assert next(row for row in report["layers"] if row["left"] == "position")["verdict"] == "equal"


@pytest.mark.conformance
def test_a_tie_that_cannot_be_carried_is_said() -> None:
    left, right = MODELS / "foreign_torch.py:Small", MODELS / "foreign_torch.py:tied"
    said = refused("compare", left, right, *TOKENS, "-q")
    assert "token.weight and head.weight" in said


@pytest.mark.conformance
def test_closures_have_the_weights_that_are_carried_and_what_has_no_float64_is_judged_in_float32(tmp_path: Path) -> None:
    assert compared("foreign_torch.py:Closure", "foreign_torch.py:Closure", *ROWS, code=0, folder=tmp_path)["verdict"] == "equal"
    report = compared("foreign_torch.py:Closure", "foreign_torch.py:other_closure", *ROWS, *FORWARD, code=1, folder=tmp_path)
    assert first(report) == ("parts.down", "")
    models = "foreign_torch.py:Fixed", "foreign_torch.py:Fixed"
    report = compared(*models, *ROWS, code=0, folder=tmp_path)
    assert any("float64: mat1 and mat2" in note for note in report["notes"])
    assert all("float32" in one["note"] for one in report["outputs"])
    narrow = compared(*models, *ROWS, "--dtype", "float32", code=0, folder=tmp_path)
    assert any("--dtype float32 leaves it out" in note for note in narrow["notes"])


@pytest.mark.conformance
@pytest.mark.parametrize("file", ["conv_nnx.py", "conv_linen.py"])
def test_a_convolutional_network_in_torch_and_flax_is_equal(file: str, tmp_path: Path) -> None:
    pytest.importorskip("flax")
    more = () if file == "conv_nnx.py" else FORWARD
    report = compared("conv_torch.py:trained", f"{file}:Net", *IMAGE, *more, code=0, folder=tmp_path)
    assert report["verdict"] == "equal", report["sentences"]
    assert [len(row["forced"]) for row in report["layers"] if row["leaf"]] == [2] * 5
    conventions = [row for step in report.get("steps", {}).values() for row in step["rows"] if row["verdict"] == "convention"]
    assert all("unbiased variance" in row["note"] for row in conventions)
    assert bool(conventions) == (file == "conv_nnx.py")


def test_torch_s_side_is_plain_arithmetic() -> None:
    from rosettaformer.comparison.running.opening import opened
    from rosettaformer.comparison.running.sides import parse

    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((3, 9)).astype(np.float32)}
    side = opened(parse(f"{MODELS / 'private_torch.py'}:Net", {}))
    side.build(inputs)
    side.widen(inputs)
    side.load({name: rng.standard_normal(array.shape).astype(np.float32) for name, array in side.values().items()})
    values, x = {name: array.astype(np.float64) for name, array in side.values().items()}, inputs["x"].astype(np.float64)
    for block in ("blocks.0", "blocks.1"):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = x * values[f"{block}.norm.weight"] + values[f"{block}.norm.bias"]
        x = np.maximum(x @ values[f"{block}.hidden.weight"].T + values[f"{block}.hidden.bias"], 0)
    wanted = x @ values["head.weight"].T + values["head.bias"]
    np.testing.assert_allclose(side.run(inputs, "float64")[-1].outputs[0], wanted, rtol=0, atol=1e-12)


@pytest.mark.conformance
def test_a_side_that_flattens_channels_first_is_seen(tmp_path: Path) -> None:
    pytest.importorskip("flax")
    report = compared("conv_torch.py:trained", "conv_nnx_planted.py:Flattened", *IMAGE, *FORWARD, code=0, folder=tmp_path)
    assert any("flatten" in note for note in report["notes"])


@pytest.mark.conformance
def test_a_residual_network_in_torch_and_keras_is_equal(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    report = compared("resnet_torch.py:net", "resnet_keras.py:ResNet", *LARGE, code=0, folder=tmp_path)
    assert report["verdict"] == "equal", report["sentences"]
    wrong = {row["verdict"] for step in report["steps"].values() for row in step["rows"]} - {"equal", "convention"}
    assert not wrong


@pytest.mark.conformance
@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_folder_of_hugging_face_is_equal_in_torch_and_jax(family: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("flax")
    from hugging_face_folders import drawn, saved

    folder = saved(drawn(family, 1)._replace(dtype="float32"), tmp_path / "folder")
    found = invoke("compare", f"{folder}@torch", f"{folder}@jax", "-q")
    assert found.code == 0, found
    assert found.out.startswith("equal"), found.out


@pytest.mark.conformance
def test_concatenated_channels_are_followed(tmp_path: Path) -> None:
    """All axes of up.conv's input have 16 elements, so that no shape tells which are the channels."""
    pytest.importorskip("flax")
    image = ("--input", "x: b=16 h=16 w=16 c=2 float32")
    report = compared("unet_torch.py:Net", "unet_nnx.py:Net", *image, code=0, folder=tmp_path)
    assert report["verdict"] == "equal"
    report = compared("unet_torch.py:Net", "unet_nnx.py:other", *image, *FORWARD, code=1, folder=tmp_path)
    assert first(report) == ("up.up", "up.conv")


@pytest.mark.conformance
@pytest.mark.parametrize(("right", "code"), [("Net", 0), ("narrow", 1)])
def test_a_layer_that_pads_itself_is_compared_as_it_runs(right: str, code: int, tmp_path: Path) -> None:
    pytest.importorskip("flax")
    series = ("--input", "x: b=2 t=17 c=2 float32")
    report = compared("wave_torch.py:Net", f"wave_nnx.py:{right}", *series, *FORWARD, code=code, folder=tmp_path)
    if code:
        assert first(report) == ("filters.2", "gates.2")
        assert "dilation [4] on the left, [2] on the right" in report["sentences"][1]


@pytest.mark.conformance
@pytest.mark.parametrize(("right", "code"), [("Net", 0), ("far", 1)])
def test_layers_in_private_attributes_are_seen(right: str, code: int, tmp_path: Path) -> None:
    pytest.importorskip("keras")
    left = "private_keras.py:Net"
    report = compared(left, f"private_torch.py:{right}", "--input", "x: b=3 d=9 float32", *FORWARD, code=code, folder=tmp_path)
    leaves = ["_blocks.0._norm", "_blocks.0._hidden", "_blocks.1._norm", "_blocks.1._hidden", "_head"]
    assert [row["left"] for row in report["layers"] if row["leaf"]] == leaves
    assert first(report) == ("_blocks.0._norm",) if code else report["first"] is None


@pytest.mark.conformance
def test_components_of_ports_are_called_with_their_own_arguments_and_mistakes_found_in_their_layers(tmp_path: Path) -> None:
    """The tutorial's layers have other argument names, a mask in another polarity and all projections in one parameter."""
    ports = [f"../ports/{name}.py" for name in ("torch_nn_transformer", "wild/annotated_transformer")]
    report = compared(*ports, "--component", "encoder_layer", code=0, folder=tmp_path)
    assert report["verdict"] == "equal"
    assert {"mask_bhts", "x_btd"} == report["inputs"].keys()
    names = {row["left"] for row in report["gradients"]}
    assert {"input x_btd", "self_attention.query.kernel", "feed_forward.output.bias"} <= names
    # handwritten_torch.py says of itself what they are
    ports = [f"../ports/handwritten_torch{end}.py" for end in ("_correct", "")]
    report = compared(*ports, "--component", "transformer", *FORWARD, code=1, folder=tmp_path)
    assert first(report) == ("decoder.positional_encoding",)
    wrong = {row["left"] for row in report["layers"] if row["leaf"] and any(one["verdict"] == "differs" for one in row["forced"])}
    assert all("norm" in name or "positional_encoding" in name for name in wrong), wrong
    assert "encoder.layers.0.self_attention_norm" in wrong


PORTS = [
    ("torch", "jax", "transformer"),
    ("torch", "tf", "classify"),
    ("wild/linen_seq2seq.py", "torch", "multi_head_attention"),
    ("torch_nn_transformer.py", "wild/keras_translation.py", "decoder_layer"),
    ("wild/keras_translation.py", "tf", "encoder_layer"),
    ("transformers_bert.py", "tf", "pool"),
]


@pytest.mark.conformance
@pytest.mark.parametrize(("left", "right", "component"), PORTS)
def test_components_of_correct_ports_are_equal(left: str, right: str, component: str, tmp_path: Path) -> None:
    for module in ("keras_hub", "transformers", "flax"):
        pytest.importorskip(module)
    files = [f"{MODELS.parent / 'ports' / name}" if name.endswith(".py") else name for name in (left, right)]
    found = invoke("compare", *files, "--component", component, "-q")
    assert found.code == 0, found
    assert found.out.startswith("equal"), found.out
    assert found.out.count("agree to rounding") == 4, found.out


@pytest.mark.conformance
def test_weights_of_a_file_are_given_to_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(MODELS))
    from private_torch import Net
    from safetensors.torch import save_file

    save_file({name: tensor * 0 for name, tensor in Net().state_dict().items()}, tmp_path / "zero.safetensors")
    net = MODELS / "private_torch.py:Net"
    said = refused("compare", net, net, "--weights", tmp_path / "zero.safetensors", "--input", "x: b=3 d=9 float32")
    assert "zero" in said


def test_a_missing_framework_ends_with_3_and_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text('raise ModuleNotFoundError("No module named torch", name="torch")\n')
    monkeypatch.syspath_prepend(str(tmp_path))  # torch itself is imported in this process already
    net = MODELS / "private_torch.py:Net"
    found = invoke("compare", net, net, "--input", "x: b=3 d=9 float32")
    assert found.code == 3, found
    assert "[torch]'" in found.err


@pytest.mark.conformance
def test_what_is_found_before_a_side_ends_is_not_lost(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    found = invoke("compare", MODELS / "conv_torch.py:Net", MODELS / "planted.py:Mortal", *IMAGE, "-q", "--json", report)
    assert found.code == 2, found
    assert mentions(" ".join(found.err.split()), "exit code 7")
    kept = json.loads(report.read_text())
    assert {row["verdict"] for row in (*kept["outputs"], *kept["gradients"])} == {"equal"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing", "nowhere"), "nothing"),
        ((MODELS / "conv_torch.py", "nowhere"), "class or function"),
        ((f"{MODELS / 'conv_torch.py'}:", MODELS), "colon"),
        ((f"{MODELS / 'conv_torch.py'}:Net", MODELS / "nothing.py:Net"), "nothing.py"),
        ((f"{MODELS / 'conv_torch.py'}:Net",) * 2 + ("--input", "x: b=2 h"), "axis"),
        ((f"{MODELS / 'conv_torch.py'}:Net",) * 2 + ("--input", "x: b=2 int64"), "range"),
        ((f"{MODELS / 'conv_torch.py'}:Net",) * 2 + ("--set", "width"), "NAME=VALUE"),
        ((f"{MODELS / 'conv_torch.py'}:Net",) * 2 + ("--weights", "middle"), "--weights"),
        ((f"{MODELS / 'conv_torch.py'}:Net",) * 2 + ("--left-axes", "y: b c"), "whose axes no --input declares"),
    ],
)
def test_what_names_nothing_is_refused_before_any_work(arguments: tuple[object, ...], said: str) -> None:
    assert mentions(refused("compare", *arguments), said)


@pytest.mark.parametrize(
    ("left", "right", "options", "said"),
    [
        ("conv_torch.py:Net", "planted.py:narrow", IMAGE, "fc1 (Linear: weight (12, 144), bias (12,))"),
        ("planted.py:damaged", "conv_torch.py:Net", (*IMAGE, "--weights", "left"), "must be finite; NaN or infinite are fc1.weight"),
        ("conv_torch.py:Net", "planted.py:text", IMAGE, "must build a torch.nn.Module"),
        ("conv_torch.py:Net", "planted.py:Crash", IMAGE, "exit code 7"),
        ("conv_torch.py:Net", "conv_torch.py:Net", (), "inputs are required"),
        ("conv_torch.py:Net", "conv_torch.py:Mesh", IMAGE, "has no Mesh; it has Net, trained"),
        ("conv_torch.py:Net", "conv_torch.py:Net", ("--set", "clases=3", *IMAGE), "takes no clases (nearest: classes)"),
        ("conv_torch.py:Net", "planted.py:Hang", (*IMAGE, "--limit", "8"), "no answer within 8 s"),
    ],
)  # fmt: skip
@pytest.mark.conformance
def test_a_side_that_fails_is_one_message(left: str, right: str, options: tuple[object, ...], said: str) -> None:
    assert mentions(" ".join(refused("compare", MODELS / left, MODELS / right, *options).split()), said)


@pytest.mark.conformance
def test_a_side_whose_process_ends_is_one_message() -> None:
    assert "exit code 7" in refused("compare", MODELS / "conv_torch.py:Net", MODELS / "planted.py:Crash", *IMAGE)


def test_inputs_of_a_file_must_be_finite(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([[1.0, np.nan]]))
    with pytest.raises(ValueError, match=naming("x must be finite; 1 of 2 elements are NaN or infinite")):
        declared_inputs.read(tmp_path / "x.npz")


def test_two_reports_say_what_got_worse(tmp_path: Path) -> None:
    def report(units: float, verdict: str = "equal") -> dict[str, Any]:
        row = {"verdict": verdict, "units": units}
        return {"version": 1, "variables": [], "layers": [], "outputs": [row], "gradients": [{**row, "left": "a", "right": "b"}]}

    for name, found in (("a", report(1.0)), ("b", report(90.0, "differs")), ("c", report(2.0))):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    worse = invoke("compare", tmp_path / "a.json", tmp_path / "b.json")
    assert worse.code == 1 and "2 worse, 0 better" in worse.out
    assert invoke("compare", tmp_path / "b.json", tmp_path / "a.json").code == 0
    assert "0 worse, 0 better, 0 appeared, 0 vanished" in invoke("compare", tmp_path / "a.json", tmp_path / "c.json").out
    changed = versus.versus(report(1.0), {**report(1.0), "gradients": []})
    assert changed["vanished"] == ["gradient a = b"]


def test_a_difference_is_judged_by_the_sides_own_noise() -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(100)
    noisy = exact + 1e-6 * rng.standard_normal(100)
    narrow = exact.astype(np.float32), noisy.astype(np.float32)
    assert noise.difference(*narrow, exact, exact).verdict == "equal"  # the right is noisy in float32 alone
    assert noise.difference(*narrow, exact, noisy).verdict == "differs"  # and here it is another function
    assert noise.difference(narrow[0], narrow[0], exact, exact + 1e-8).verdict == "rounding"
    assert noise.difference(narrow[0], np.where(exact > 2, np.nan, narrow[0]), exact, exact).verdict == "differs"
    assert noise.difference(np.zeros(3, "f"), np.zeros(3, "f"), np.zeros(3), np.zeros(3)).verdict == "not comparable"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("o i", (5, 3)), ("i o", (3, 5))),
        (("o i y x", (5, 3, 2, 4)), ("y x i o", (2, 4, 3, 5))),
        (("(i m) 1 y x", (6, 1, 2, 2)), ("y x i m", (2, 2, 3, 2))),
        (("(h k) d", (6, 4)), ("d h k", (4, 3, 2))),
        (("i o y", (3, 5, 2)), ("-y i o", (2, 3, 5))),
    ],
)
def test_kernels_are_carried_there_and_back(left: tuple[str, Any], right: tuple[str, Any]) -> None:
    one, other, sizes = weight_layout.solved(left, right, {"h": 3})
    array = np.random.default_rng(0).standard_normal(left[1])
    there = weight_layout.carried(array, one, other, sizes)
    assert there.shape == right[1]
    np.testing.assert_array_equal(weight_layout.carried(there, other, one, sizes), array)


def test_kernels_and_flattened_images_and_layers_are_matched() -> None:
    image = np.random.default_rng(0).standard_normal((2, 3, 4, 5))  # b c h w
    tag = [[["b", 2]], [["c", 3], ["h", 4], ["w", 5]]]
    common = axes.to_common(image.reshape(2, -1), tag, ["b", "h", "w", "c"])
    np.testing.assert_array_equal(common, image.transpose(0, 2, 3, 1).reshape(2, -1))
    np.testing.assert_array_equal(axes.from_common(common, tag, ["b", "h", "w", "c"]), image.reshape(2, -1))
    left = _network(("conv1", (3, 3)), ("conv2", (3, 3)), ("query", (4, 4)), ("key", (4, 4)), ("head", (3, 9)))
    right = _network(("conv_0", (3, 3)), ("conv_1", (3, 3)), ("k", (4, 4)), ("q", (4, 4)), ("fc", (3, 9)))
    found, problems = layer_matching.layers(left, right, Rename())
    assert not problems
    assert {one: other for one, (other, _) in found.items() if one} == {
        "conv1": "conv_0", "conv2": "conv_1", "query": "q", "key": "k", "head": "fc",
    }  # fmt: skip
    renamed, _ = layer_matching.layers(left, right, Rename({"conv1": Row("conv_1"), "conv2": Row("conv_0")}))
    assert renamed["conv1"][0] == "conv_1"
    _, problems = layer_matching.layers(left, right, Rename({"conv1": Row("conv_7")}))
    assert len(problems) == 1 and mentions(next(iter(problems.values())), "conv1 … conv_7 … nearest: conv_1")


def _network(*rows: tuple[str, tuple[int, ...]]) -> layer_matching.Network:
    about = {
        "layers": [{"path": path, "kind": "dense", "type": "Dense", "hyperparameters": {}} for path, _ in rows],
        "variables": [
            {"name": f"{path}.w", "layer": path, "role": "kernel", "axes": "i o", "shape": shape, "required": True} for path, shape in rows
        ],
    }
    return layer_matching.Network.of(about, [{"path": path, "inputs": [], "outputs": []} for path, _ in rows])
