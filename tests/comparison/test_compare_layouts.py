"""Models with convolutions: the axis order in which their outputs are compared."""

import importlib
from typing import Any

import numpy as np
import pytest
from kinds import conformance
from published_pairs import MODELS, told

from rosettaformer.comparison import comparing
from rosettaformer.comparison.engine import sides
from rosettaformer.comparison.findings import recorded_calls
from rosettaformer.comparison.matching import layouts

pytestmark = pytest.mark.usefixtures("sides_in_process")

# inputs of the models: with all sizes different, and with sizes that collide (width = length, height = width)
SERIES, SQUARE_SERIES = "x: b=3 t=14 c=5 float32", "x: b=2 t=24 c=5 float32"
IMAGE, SQUARE_IMAGE = "x: b=3 h=8 w=12 c=4 float32", "x: b=2 h=8 w=8 c=4 float32"
INPUTS = {"Series": (SERIES, SQUARE_SERIES), "Dense": (IMAGE, SQUARE_IMAGE)}
# a planted difference -> the layer, or the layers around the place, where it is found
PLACES = {
    "epsilon": ("block.norm2",), "scale": ("block.value", "block.output"), "gelu": ("block.up", "block.down"),
    "dilation": ("", "conv1"), "positions": ("conv2", "block.norm1"),
}  # fmt: skip


def compared(framework: str, model: str, declared: str, gradients: bool = False, **settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the report on a torch model on the left and another framework's model. settings: of the left and of the right."""
    pytest.importorskip("torch")
    pytest.importorskip({"nnx": "flax"}.get(framework, framework))
    files = {"left": "stems_torch.py", "right": f"stems_{framework}.py"}
    pair = [sides.parse(f"{MODELS / files[side]}:{model}", settings.get(side, {})) for side in files]
    report = comparing.between(pair, comparing.Options([declared], gradients=gradients, step=False))
    assert not report["left_out"]
    return report


PAIRS = [("nnx", "Series", 0), *map(conformance, [("nnx", "Series", 1), ("keras", "Series", 0), ("keras", "Series", 1)])]
PAIRS += [conformance((framework, "Dense", number)) for framework in ("nnx", "keras") for number in (0, 1)]


@pytest.mark.parametrize(("framework", "model", "number"), PAIRS)
def test_a_convolution_anywhere_leaves_equal_models_equal(framework: str, model: str, number: int) -> None:
    report = compared(framework, model, INPUTS[model][number])
    assert report["verdict"] in ("equal", "rounding") and report["first"] is None, report["outputs"]
    # on the left, or on the right of Keras, the model pads before its layer, instead of the layer
    padded = {"conv1", "conv2", "down"} if framework == "keras" else {"conv1"}
    assert all(len(row["forced"]) == 2 for row in report["layers"] if row["leaf"] and row["left"] not in padded)


@pytest.mark.conformance
@pytest.mark.parametrize("planted", PLACES)
@pytest.mark.parametrize(("framework", "model", "number"), [("nnx", "Series", 1), ("keras", "Series", 0)])
def test_a_difference_behind_a_convolution_is_found_in_its_layer(framework: str, model: str, number: int, planted: str) -> None:
    report = compared(framework, model, INPUTS[model][number], right={"planted": planted})
    assert (report["verdict"], told(report)[0]) == ("differs", PLACES[planted])
    assert planted != "dilation" or "dilation [1] on the left, [2] on the right" in told(report)[1]
    assert planted != "positions" or report["first"]["relation"] == "table"


@pytest.mark.conformance
@pytest.mark.parametrize("framework", ["nnx", "keras"])
def test_concatenated_channels_are_followed(framework: str) -> None:
    """All axes of the last layer's input have 16 elements, so shapes cannot identify the channels."""
    image = "x: b=16 h=16 w=16 c=4 float32"
    assert compared(framework, "Dense", image)["verdict"] in ("equal", "rounding")
    report = compared(framework, "Dense", image, right={"planted": "skip"})
    assert (report["verdict"], told(report)[0]) == ("differs", ("up", "out"))


TURNED = [("Series", 0), conformance("Series", 1), conformance("Dense", 1)]


@pytest.mark.parametrize(("model", "number"), TURNED)
def test_a_transposed_output_differs_and_is_called_transposed(model: str, number: int) -> None:
    report = compared("nnx", model, INPUTS[model][number], gradients=True, right={"turned": True})
    order = [0, 2, 1, 3] if model == "Dense" else [0, 2, 1]
    assert (report["verdict"], [row["transposed"] for row in report["outputs"]]) == ("differs", [order])
    assert told(report)[0][1] == "" and " ".join(map(str, order)) in report["first"]["how"]
    assert {row["verdict"] for row in report["gradients"]} <= {"equal", "rounding"}  # the cotangents are transposed as well


@pytest.mark.conformance
def test_outputs_of_one_convention_are_compared_as_they_are_and_rows_and_columns_are_never_exchanged() -> None:
    report = compared("torch", "Dense", SQUARE_IMAGE, right={"turned": True})
    assert (report["verdict"], report["outputs"][0]["transposed"]) == ("differs", [0, 1, 3, 2])
    report = compared("nnx", "Dense", SQUARE_IMAGE, left={"turned": True})
    assert report["verdict"] == "differs" and "transposed" in report["outputs"][0]
    for number, settings in ((0, {}), (1, {"planted": "epsilon"})):  # channels first on both sides
        report = compared("keras", "Dense", SQUARE_IMAGE, right={"first": True, **settings})
        found = report["verdict"], report["first"] and told(report)[0]
        assert found == [("equal", None), ("differs", ("norm",))][number]


@pytest.mark.conformance
@pytest.mark.parametrize("declared", ["x: b=3 t=14 d=5 float32", "x: b=2 t=24 d=5 float32"])
def test_channels_that_are_declared_by_another_name_are_known_by_the_convolution(declared: str) -> None:
    """Both sides take `b t d`, which torch's transposes itself."""
    assert compared("nnx", "Series", declared, left={"last": True})["verdict"] == "equal"
    report = compared("nnx", "Series", declared, left={"last": True}, right={"planted": "gelu"})
    assert told(report)[0] == PLACES["gelu"]


def test_an_order_of_axes_is_found_by_numbers() -> None:
    array = np.random.default_rng(0).standard_normal((3, 4, 4, 5)).astype(np.float32)
    assert layouts.transposition(array, array) is None
    assert layouts.transposition(array, array.transpose(0, 2, 1, 3)) == (0, 2, 1, 3)
    assert layouts.transposition(array, array.transpose(3, 0, 1, 2)) == (1, 2, 3, 0)
    assert layouts.transposition(array, array[:1]) is layouts.transposition(array, -array) is None
    assert layouts.transposition(array, -array.transpose(0, 3, 1, 2)) == (0, 2, 3, 1)  # the shape determines it
    assert recorded_calls._alike([[array], [-array, array]], layouts.fit) == [(0, 1)]  # outputs of one shape
    infinite = np.where(array > 2, np.inf, array)
    assert layouts.agree(infinite, infinite) and not layouts.agree(infinite, -infinite)


def test_the_axes_of_a_property_and_of_a_convolution_are_followed() -> None:
    torch: Any = pytest.importorskip("torch")
    followed = importlib.import_module("rosettaformer.comparison.models.torch_axes").Followed
    x = torch.zeros(2, 12, 12)
    with followed([(x, ("b", "m", "t"))]) as tags:
        turned = x.mT
        assert [group[0][0] for group in tags.of(turned)] == ["b", "t", "m"]
        y = torch.nn.functional.conv1d(x, torch.zeros(12, 12, 1))
        assert [group[0][0] for group in tags.of(y)] == ["b", "c", "t"]
        tags.assume(x, True)
        assert [group[0][0] for group in tags.of(x)] == ["b", "c", "t"]
