"""`rosettaformer compare`: models that the reference does not know, on the same weights and inputs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import invoke, refused
from kinds import conformance
from messages import mentions, naming
from published_pairs import MODELS, told

from rosettaformer.comparison import axes
from rosettaformer.comparison.engine import declared_inputs
from rosettaformer.comparison.findings import noise
from rosettaformer.comparison.matching import weight_layout
from rosettaformer.comparison.output import versus

IMAGE = ("--input", "x: b=3 h=14 w=14 c=3 float32")
LARGE = ("--input", "x: b=2 h=32 w=32 c=3 float32")
FORWARD = ("--only", "none")


def compared(left: str, right: str, *options: object, code: int, folder: Path) -> dict[str, Any]:
    report = folder / "report.json"
    found = invoke("compare", MODELS / left, MODELS / right, *options, "-q", "--json", report)
    assert found.code == code, found
    return json.loads(report.read_text())


@pytest.fixture(autouse=True)
def _frameworks() -> None:
    pytest.importorskip("torch")


@pytest.mark.conformance
def test_equal_models_are_equal_in_everything_but_what_drops_at_random_in_training(tmp_path: Path) -> None:
    report = compared("conv_torch.py:trained", "conv_torch.py:Net", *IMAGE, "--time", "eager", code=0, folder=tmp_path)
    assert report["verdict"] == "equal"
    assert report["first"] is None
    assert {row["verdict"] for row in report["gradients"]} == {"equal"}
    assert {row["verdict"] for step in report["steps"].values() for row in step["rows"]} == {"equal"}
    assert [row["left"] for row in report["layers"] if row["leaf"]] == ["conv1", "bn1", "conv2", "fc1", "fc2"]
    assert all(side["median_ms"] > 0 for row in report["timing"] for side in row["sides"])
    report = compared("conv_torch.py:Net", "planted.py:Random", *IMAGE, "--only", "step", code=0, folder=tmp_path)
    assert "random" in report["steps"]["sgd"]["not comparable"]


# a model with a difference -> the layer where it is found, and the text
PLANTED = {
    "planted.py:epsilon": (("bn1",), "epsilon 1e-05 on the left, 0.001 on the right"),
    "planted.py:stride": (("bn1", "conv2"), "right … conv2.0"),
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
    "resnet_keras_planted.py:later": (("layer2.downsample.1", "layer2.conv1"), "stride [2, 2] … [1, 1]"),
    "resnet_keras_planted.py:Early": (("stem", "bn"), ""),
    "private_torch.py:far": (("_blocks.0._norm",), "epsilon"),
}
QUICK = "planted.py:epsilon"
EQUAL = ("resnet_keras.py:ResNet", "private_torch.py:Net")
# the left model and the inputs for files with this prefix
BESIDE = {
    "resnet": ("resnet_torch.py:net", LARGE),
    "private": ("private_keras.py:Net", ("--input", "x: b=3 d=9 float32")),
}


def _beside(name: str) -> tuple[str, tuple[str, str]]:
    pytest.importorskip("flax" if "nnx" in name else "keras" if name[:3] in ("res", "pri") else "torch")
    return BESIDE.get(name.partition("_")[0], ("conv_torch.py:trained", IMAGE))


@pytest.mark.parametrize("name", [name if name == QUICK else conformance(name) for name in PLANTED])
def test_a_planted_difference_is_found_in_its_layer(name: str, tmp_path: Path) -> None:
    where, said = PLANTED[name]
    left, inputs = _beside(name)
    report = compared(left, name, *inputs, *FORWARD, code=1, folder=tmp_path)
    assert (told(report)[0], report.get("gradients", [])) == (where, [])
    assert mentions(report["sentences"][1], said)


# published PyTorch models

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
    assert told(report)[0] == ("up", "down")
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
    assert told(report)[0] == ("parts.down", "")
    models = "foreign_torch.py:Fixed", "foreign_torch.py:Fixed"
    report = compared(*models, *ROWS, code=0, folder=tmp_path)
    assert any("float64: mat1 and mat2" in note for note in report["notes"])
    assert all("float32" in one["note"] for one in report["outputs"])
    narrow = compared(*models, *ROWS, "--dtype", "float32", code=0, folder=tmp_path)
    assert any("--dtype float32" in note for note in narrow["notes"])


@pytest.mark.parametrize(("right", "verdict"), [("Lower", "equal"), ("Upper", "rounding"), ("Sigmoid", "differs")])
def test_near_ties_of_a_router_are_no_difference_and_hide_none(right: str, verdict: str, tmp_path: Path) -> None:
    sides, rows = ("experts_torch.py:Lower", f"experts_torch.py:{right}"), ("--input", "x: b=3 t=5 d=6 float32", "--weights", "left")
    report = compared(*sides, *rows, code=int(verdict == "differs"), folder=tmp_path)
    assert (report["verdict"], "jumps" in report["outputs"][0], "gradients" in report) == (
        verdict,
        *[verdict == "rounding", verdict != "rounding"],
    )


@pytest.mark.conformance
@pytest.mark.parametrize("file", ["conv_nnx.py", "conv_linen.py"])
def test_a_convolutional_network_in_torch_and_flax_is_equal(file: str, tmp_path: Path) -> None:
    pytest.importorskip("flax")
    more = () if file == "conv_nnx.py" else FORWARD
    report = compared("conv_torch.py:trained", f"{file}:Net", *IMAGE, *more, code=0, folder=tmp_path)
    assert report["verdict"] == "equal", report["sentences"]
    assert [len(row["forced"]) for row in report["layers"] if row["leaf"]] == [2] * 5
    conventions = [row for step in report.get("steps", {}).values() for row in step["rows"] if row["verdict"] == "convention"]
    assert all("n/(n-1)" in row["note"] for row in conventions)
    assert bool(conventions) == (file == "conv_nnx.py")


@pytest.mark.conformance
def test_a_side_that_flattens_channels_first_is_seen(tmp_path: Path) -> None:
    pytest.importorskip("flax")
    report = compared(
        "conv_torch.py:trained", "conv_nnx_planted.py:Flattened", *IMAGE, "--axes", "left x: b c h w", *FORWARD, code=0, folder=tmp_path
    )
    assert any("flatten" in note for note in report["notes"])


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
@pytest.mark.parametrize("name", EQUAL)
def test_models_of_two_frameworks_are_equal(name: str, tmp_path: Path) -> None:
    """Layers in private attributes are found."""
    left, inputs = _beside(name)
    more = FORWARD if name.startswith("private") else ()
    report = compared(left, name, *inputs, *more, code=0, folder=tmp_path)
    assert (report["verdict"], report["first"]) == ("equal", None), report["sentences"]
    rows = [row["verdict"] for step in report.get("steps", {}).values() for row in step["rows"]]
    assert {*rows} <= {"equal", "convention"}
    if name.startswith("private"):
        blocks = [f"_blocks.{block}.{layer}" for block in (0, 1) for layer in ("_norm", "_hidden")]
        assert [row["left"] for row in report["layers"] if row["leaf"]] == [*blocks, "_head"]


@pytest.mark.conformance
def test_components_of_ports_are_called_with_their_own_arguments_and_mistakes_found_in_their_layers(tmp_path: Path) -> None:
    """The tutorial's layers have other argument names, an inverted mask and all projections in one parameter."""
    ports = [f"../ports/{name}.py" for name in ("torch_nn_transformer", "wild/annotated_transformer")]
    report = compared(*ports, "--component", "encoder_layer", code=0, folder=tmp_path)
    assert report["verdict"] == "equal"
    assert {"mask_bhts", "x_btd"} == report["inputs"].keys()
    names = {row["left"] for row in report["gradients"]}
    assert {"input x_btd", "self_attention.query.kernel", "feed_forward.output.bias"} <= names
    # handwritten_torch.py documents them
    ports = [f"../ports/handwritten_torch{end}.py" for end in ("_correct", "")]
    report = compared(*ports, "--component", "transformer", *FORWARD, code=1, folder=tmp_path)
    assert told(report)[0] == ("decoder.positional_encoding",)
    wrong = {row["left"] for row in report["layers"] if row["leaf"] and any(one["verdict"] == "differs" for one in row["forced"])}
    assert all("norm" in name or "positional_encoding" in name for name in wrong), wrong
    assert "encoder.layers.0.self_attention_norm" in wrong


PORTS = [
    ("torch", "jax", "transformer"),
    ("torch", "tf", "classify"),
    ("torch_nn_transformer.py", "jax", "encoder_layer"),
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
    assert found.out.count("agree") >= 4, found.out


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
    monkeypatch.syspath_prepend(str(tmp_path))  # this process has already imported torch
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
        ((f"{MODELS / 'conv_torch.py'}:Net",) * 2 + ("--input", "x: b=2 h"), "x … b h"),
        ((f"{MODELS / 'conv_torch.py'}:Net",) * 2 + ("--input", "x: b=2 int64"), "range"),
        ((f"{MODELS / 'conv_torch.py'}:Net",) * 2 + ("--set", "width"), "NAME=VALUE"),
        ((f"{MODELS / 'conv_torch.py'}:Net",) * 2 + ("--weights", "middle"), "--weights"),
        ((f"{MODELS / 'conv_torch.py'}:Net",) * 2 + ("--axes", "left y: b c"), "--axes left … y … --input"),
    ],
)
def test_what_names_nothing_is_refused_before_any_work(arguments: tuple[object, ...], said: str) -> None:
    assert mentions(refused("compare", *arguments), said)


@pytest.mark.parametrize(
    ("left", "right", "options", "said"),
    [
        ("conv_torch.py:Net", "planted.py:narrow", IMAGE, "fc1 (Linear: weight (12, 144), bias (12,))"),
        ("planted.py:damaged", "conv_torch.py:Net", (*IMAGE, "--weights", "left"), "fc1.weight"),
        ("conv_torch.py:Net", "odd.py:a_class", IMAGE, "must build a torch.nn.Module"),
        ("conv_torch.py:Net", "planted.py:Crash", IMAGE, "exit code 7"),
        ("conv_torch.py:Net", "conv_torch.py:Net", (), "inputs are required"),
        ("conv_torch.py:Net", "conv_torch.py:Mesh", IMAGE, "has no Mesh; it has Net, trained"),
        ("conv_torch.py:Net", "conv_torch.py:Net", ("--set", "clases=3", *IMAGE), "clases (nearest: classes)"),
        ("conv_torch.py:Net", "planted.py:Hang", (*IMAGE, "--limit", "8"), "no answer within 8 s"),
    ],
)  # fmt: skip
@pytest.mark.conformance
def test_a_side_that_fails_is_one_message(left: str, right: str, options: tuple[object, ...], said: str) -> None:
    assert mentions(" ".join(refused("compare", MODELS / left, MODELS / right, *options).split()), said)


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
    assert noise.difference(*narrow, exact, exact).verdict == "equal"  # the right is noisy only in float32
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


def test_flattened_images_are_turned_there_and_back() -> None:
    image = np.random.default_rng(0).standard_normal((2, 3, 4, 5))  # b c h w
    tag = [[["b", 2]], [["c", 3], ["h", 4], ["w", 5]]]
    common = axes.to_common(image.reshape(2, -1), tag, ["b", "h", "w", "c"])
    np.testing.assert_array_equal(common, image.transpose(0, 2, 3, 1).reshape(2, -1))
    np.testing.assert_array_equal(axes.from_common(common, tag, ["b", "h", "w", "c"]), image.reshape(2, -1))
