"""How a comparison matches layers and names, without running two models."""

from pathlib import Path
from typing import Any

import flat
import numpy as np
import pytest
from invoke import invoke
from messages import mentions
from published_pairs import MODELS

from reference_numpy import feed_forward, rotary
from reference_numpy.rotary_scaling import RotaryScaling
from rosettaformer.common.modules import arguments
from rosettaformer.comparison.explaining import Explaining
from rosettaformer.comparison.findings import known_parts
from rosettaformer.comparison.matching import fusing, layer_matching, rename_table, value_matching, weight_layout
from rosettaformer.comparison.matching.relations import places
from rosettaformer.comparison.models import behaviour
from rosettaformer.comparison.models.base import Layer, LayerCall, Variable

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 7, 12)).astype(np.float32)
IDS = RNG.integers(0, 9, (2, 7))
SQUARE, HEADS, BIAS = (RNG.standard_normal(shape).astype(np.float32) for shape in ((12, 12), (4, 12, 3), (4, 3)))
SCALE, OFFSET, TABLE = (RNG.standard_normal(shape).astype(np.float32) for shape in ((12,), (12,), (11, 12)))
FUSED = {name: RNG.standard_normal(shape).astype("f") for name, shape in {"down": (4, 12, 5), "b": (4, 10), "up": (4, 10, 12)}.items()}
APART = {name: RNG.standard_normal(shape).astype("f") for name, shape in {"w1": (4, 12, 5), "w2": (4, 5, 12), "gate": (4, 12, 5)}.items()}


def normed(x: np.ndarray, centred: bool) -> np.ndarray:
    away = x - x.mean(-1, keepdims=True) if centred else x
    return away / np.sqrt((away**2).mean(-1, keepdims=True) + 1e-5)


def learned(x: np.ndarray, y: np.ndarray, activation: Any = None, **own: np.ndarray) -> tuple[Layer, dict[str, tuple[str, str]]]:
    """Returns a layer of an unknown class with these variables after one call, and the variables' roles and axes."""
    layer = Layer("a", "", "Own", {}, {"variance_eps": 1e-5})
    variables = [Variable(f"a.{name}", "a", "", "", value.shape, True) for name, value in own.items()]
    values = {f"a.{name}": value for name, value in own.items()}
    activate = (lambda path, arrays: [activation(array) for array in arrays]) if activation else (lambda path, arrays: None)
    behaviour.learn([layer], variables, [LayerCall("a", 0, [x], [y], [None], [None])], values, activate, Explaining())
    return layer, {one.name.removeprefix("a."): (one.role, one.axes) for one in variables if one.required and one.role}


@pytest.mark.parametrize(
    ("y", "own", "kind", "roles"),
    [
        (X @ SQUARE, {"w": SQUARE}, "dense", {"w": ("kernel", "i o")}),
        (X @ SQUARE.T + OFFSET, {"w": SQUARE, "b": OFFSET}, "dense", {"w": ("kernel", "o i"), "b": ("bias", "o")}),
        (np.einsum("btd,hdk->bthk", X, HEADS) + BIAS, {"w": HEADS, "b": BIAS}, "dense", {"w": ("kernel", "p i q"), "b": ("bias", "p q")}),
        (normed(X, True) * SCALE + OFFSET, {"g": SCALE, "b": OFFSET}, "layer_norm", {"g": ("scale", "d"), "b": ("offset", "d")}),
        (normed(X, True) * SCALE + OFFSET, {"b": OFFSET, "g": SCALE}, "layer_norm", {"g": ("scale", "d"), "b": ("offset", "d")}),
        (normed(X, False) * SCALE, {"g": SCALE}, "rms_norm", {"g": ("scale", "d")}),
        (normed(X, False) * (1 + SCALE), {"g": SCALE}, "rms_norm", {"g": ("scale", "d")}),
        (np.broadcast_to(TABLE[2:9], X.shape), {"t": TABLE}, "embedding", {"t": ("table", "v d")}),
        (X * SCALE, {"g": SCALE}, "", {}),
        (np.sin(X @ SQUARE), {"w": SQUARE}, "", {}),
        (X, FUSED, "experts", {"up": ("hidden.kernel", "e o i"), "b": ("hidden.bias", "e o"), "down": ("output.kernel", "e o i")}),
        (X, APART, "experts", {"w1": ("hidden.kernel", "e i o"), "gate": ("gate.kernel", "e i o"), "w2": ("output.kernel", "e i o")}),
        (X, {name: APART[name] for name in ("w1", "w2")}, "", {}),
    ],
    ids=[
        "dense",
        "dense of torch",
        "heads",
        "layer norm",
        "offset first",
        "RMS norm",
        "1 + scale",
        "positions",
        "a scale",
        "no line",
        "fused experts",
        "experts",
        "experts without a gate",
    ],
)
def test_a_layer_is_known_by_what_it_does(y: np.ndarray, own: dict[str, np.ndarray], kind: str, roles: dict[str, Any]) -> None:
    layer, found = learned(X, y, **own)
    assert (layer.kind, found) == (kind, roles)
    if kind.endswith("norm"):
        assert layer.hyperparameters["epsilon"] == 1e-5
        assert layer.hyperparameters["1 + scale"] is bool(np.allclose(y, normed(X, False) * (1 + SCALE), atol=1e-5))
    assert layer.hyperparameters.get("first row") == (2 if kind == "embedding" else None)


def test_an_activation_within_is_the_layer_s_own_and_what_is_not_read_needs_no_partner() -> None:
    layer, found = learned(X, np.tanh(X @ SQUARE), np.tanh, w=SQUARE)
    assert (layer.kind, found["w"]) == ("dense", ("kernel", "i o"))
    layer, found = learned(IDS, 3 * TABLE[IDS], t=TABLE, reverse=SQUARE)
    assert found == {"t": ("table", "v d")} and layer.hyperparameters["multiplied by"] == 3
    layer, _ = learned(
        np.where(np.arange(7)[:, None] == 3, 0, X), np.where(np.arange(7)[:, None] == 3, 0, normed(X, False) * SCALE), g=SCALE
    )
    assert layer.kind == "rms_norm"  # a row of zeros proves nothing


def test_rename_tables_have_numbers_parts_and_names_without_a_partner(tmp_path: Path) -> None:
    (tmp_path / "names.toml").write_text(
        '"layers.{n}.up" = "block_{n}.gate"\n'
        '"h.{n}.attn.weight" = [{name = "l{n}.query.kernel", slice = "0:4"}, {name = "l{n}.key.kernel", slice = "4:8"}]\n'
        '"spare.{n}" = ""\n"" = ["unread"]\n'
    )
    table = rename_table.read(tmp_path / "names.toml").numbered(["layers.0.up.weight", "layers.11.up", "h.3.attn.weight"])
    assert table.of("layers.11.up.bias") == "block_11.gate.bias" and table.of("layers.7.up") == "layers.7.up"
    assert table.parts == {"h.3.attn.weight": [("l3.query.kernel", 0, 4), ("l3.key.kernel", 4, 8)]}
    assert table.is_alone(0, "spare.5.weight") and table.is_alone(1, "unread") and not table.is_alone(0, "unread")
    (tmp_path / "names.toml").write_text('"a" = [{name = "b", slice = "0"}]\n')
    with pytest.raises(ValueError, match="'a'"):
        rename_table.read(tmp_path / "names.toml")


def test_a_written_table_serves_other_sizes() -> None:
    """It has {n} where all layers have the same names except for their number, and no row that names and types already imply."""
    pairs = {"h.0.up": "l_0.gate", "h.1.up": "l_1.gate", "h.0.c[q]": "l_0.q", "h.1.c[q]": "l_1.q", "norm": "norm", "head.0": "final"}
    layers = [{"left": left, "right": right} for left, right in pairs.items()]
    row = {"how": "role", "left_axes": "o i", "right_axes": "i o", "sizes": {"o": 3, "i": 4}}
    rows = [row | {"layer": left, "left": f"{left}.w", "right": f"{right}.k"} for left, right in pairs.items() if "[" not in left]
    rows += [row | {"layer": f"h.{n}.c[q]", "left": f"h.{n}.c.w[q]", "right": f"l_{n}.q.k"} for n in (0, 1)]
    flat = {"left_axes": "o (c h)", "right_axes": "(h c) o", "sizes": {"o": 3, "c": 4, "h": 2}, "how": "renamed, flattened"}
    rows += [row | flat | {"layer": "", "left": "x", "right": "y"}, {"left": "spare", "right": "", "layer": ""}]
    text = rename_table.written([*rows, {"left": "", "right": "unread", "layer": ""}], layers)
    assert text.splitlines() == [
        "# layers",
        '"h.{n}.up" = "l_{n}.gate"',
        '"head.0" = "final"',
        "# variables",
        '"x" = {name = "y", left = "o (c h)", right = "(h c) o", c = 4, h = 2}',
        '"h.{n}.c.w" = ["l_{n}.q.k"]',
        '"spare" = ""',
        '"" = ["unread"]',
    ]


@pytest.mark.parametrize("family", rename_table.shipped())
def test_tables_that_are_shipped_are_read(family: str) -> None:
    table = rename_table.read(f"keras-hub:{family}")
    assert len(table.rows) + len(table.parts) >= 10


def network(order: dict[str, tuple[int, int]], **places: int) -> layer_matching.Network:
    """Returns dense layers with kernels of these sizes. places: the input value of some; each outputs the next value."""
    kernel = {"role": "kernel", "axes": "i o", "required": True}
    about = {
        "layers": [{"path": path, "kind": "dense", "type": "Dense", "hyperparameters": {}} for path in order],
        "variables": [kernel | {"name": f"{path}.w", "layer": path, "shape": order[path]} for path in order],
    }
    calls = [{"path": path, "inputs": [], "outputs": []} for path in order if path not in places]
    for path, at in places.items():
        calls.append({"path": path, "inputs": [np.array(at)], "outputs": [np.array(at + 1)]})
    return layer_matching.Network.of(about, calls)


def test_layers_are_matched_by_their_names_and_a_table() -> None:
    small, square, wide = (3, 3), (4, 4), (3, 9)
    left = network({"conv1": small, "conv2": small, "query": square, "key": square, "head": wide})
    right = network({"conv_0": small, "conv_1": small, "k": square, "q": square, "fc": wide})
    found, problems = layer_matching.layers(left, right, rename_table.Rename())
    partners = {"": "", "conv1": "conv_0", "conv2": "conv_1", "query": "q", "key": "k", "head": "fc"}
    assert not problems and {one: other for one, (other, _) in found.items()} == partners
    exchanged = {"conv1": rename_table.Row("conv_1"), "conv2": rename_table.Row("conv_0")}
    renamed, _ = layer_matching.layers(left, right, rename_table.Rename(exchanged))
    assert renamed["conv1"][0] == "conv_1"
    wrong = rename_table.Rename({"conv1": rename_table.Row("conv_7")})
    (problem,) = layer_matching.layers(left, right, wrong)[1].values()
    assert mentions(problem, "conv1 … conv_7 … nearest: conv_1")


def test_layers_that_are_alike_are_told_apart_by_their_place() -> None:
    """Two dense layers of one shape feed each other, whatever their names and order."""
    left, right = network({"a": (4, 4), "b": (4, 4)}, b=2, a=1), network({"y": (4, 4), "x": (4, 4)}, y=2, x=1)
    found, problems = layer_matching.layers(left, right, rename_table.Rename())
    assert not problems and {one: other for one, (other, _) in found.items()} == {"": "", "a": "x", "b": "y"}


def test_parts_of_a_variable_stand_for_it() -> None:
    whole = np.arange(12.0).reshape(2, 6)
    found = dict(fusing.views({"w": whole, "b": whole[0]}, {"w": [("w[q]", "l[q]", 1, 0, 4), ("w[k]", "l[k]", 1, 4, 6)]}))
    assert list(found) == ["w[q]", "w[k]", "b"]
    np.testing.assert_array_equal(np.concatenate([found["w[q]"], found["w[k]"]], axis=1), whole)


def test_inputs_are_placed_by_name_by_meaning_and_in_order() -> None:
    ids = np.ones((1, 2), int)
    known = {"token_ids": True, "padding_mask": True, "segment_ids": True, "other": False}
    found = arguments.placed(known, {"input_ids": 3 * ids}, ordered=False)
    assert {name: value.flat[0] for name, value in found.items()} == {"token_ids": 3, "padding_mask": 1, "segment_ids": 0}
    assert list(arguments.placed({"a": True, "b": True}, {"x1": 1, "x2": 2}).values()) == [1, 2]
    given = {"input_ids": ids, "position_ids": 7 * ids, "attention_mask": ids}
    assert [*arguments.placed({"tokens": True, "scale": False, "mask": False}, given)] == ["tokens"]  # no argument replaces another
    assert arguments.beside(["tokens", "scale"], given) == ["position_ids", "attention_mask"]
    assert arguments.placed({"tokens": True, "position_ids": True}, {"input_ids": ids})["position_ids"].tolist() == [[0, 1]]
    with pytest.raises(ValueError, match="token_ids"):
        arguments.placed(known, {"input_ids": ids, "image": ids}, ordered=False)
    with pytest.raises(ValueError, match="arguments b"):
        arguments.placed({"a": True, "b": True}, {"a": ids})


@pytest.mark.conformance  # two torch processes
def test_what_cannot_be_matched_is_written_to_be_filled(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    names = tmp_path / "names.toml"
    sides = MODELS / "conv_torch.py:Net", MODELS / "planted.py:narrow"
    found = invoke("compare", *sides, "--input", "x: b=3 h=14 w=14 c=3 float32", "--write-rename", names)
    assert found.code == 2 and "cannot be matched" in found.err
    text = names.read_text()
    assert "conv1" not in text and '"fc1.weight" = ""' in text and "#   fc1.weight" in text


def test_loaded_numbers_are_found_as_they_are_transposed_split_and_side_by_side() -> None:
    kernel, fused, bias = (RNG.standard_normal(shape).astype(np.float32) for shape in ((12, 6), (6, 9), (9,)))
    ones = np.ones(4, np.float32)
    left = {"same": bias, "dense": kernel, "heads": kernel.T + 1, "fused": fused, "ones": ones}
    left["fused_bias"] = bias * 2
    right = {
        "a": bias, "b": kernel.T, "c": (kernel + 1).reshape(12, 2, 3), "d": ones, "v": fused[:, 6:].T,
        "q": fused[:, :3].reshape(6, 3, 1), "k": fused[:, 3:6], "qb": bias[:4] * 2, "kb": bias[4:] * 2,
    }  # fmt: skip
    found = value_matching.by_value(left, right)
    assert found.rows["same"] == rename_table.Row("a", "A", "A", {"A": 9})
    assert {name: row.name for name, row in found.rows.items()} == {"same": "a", "dense": "b", "heads": "c"}
    for name, row in found.rows.items():
        if row.left:
            np.testing.assert_array_equal(weight_layout.carried(left[name], row.left, row.right, row.sizes), right[row.name])
    assert found.parts == {"fused": [("q", 0, 3), ("k", 3, 6), ("v", 6, 9)], "fused_bias": [("qb", 0, 4), ("kb", 4, 9)]}


def test_it_is_said_where_two_arrays_differ() -> None:
    other = X.copy()
    other[:, 1:3] += 1
    other[:, 5] -= 1
    assert places(X, other) == ["positions 1 to 2, 5 of 7"]
    other[0] = X[0]
    assert places(X.reshape(2, 7, 4, 3), other) == ["rows 1 of 2", "positions 1 to 2, 5 of 7"]
    assert places(X, X + 1) == places(X, X) == places(X, X[:1]) == []
    assert not places(X, X + (np.arange(12) % 2).astype(np.float32))  # six consecutive places prove nothing


def _given(heads: int, groups: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        name: rng.standard_normal((2, 5, 4 * count)).astype(np.float32)
        for name, count in (("query", heads), ("key", groups), ("value", groups))
    }


def _attended(given: dict[str, np.ndarray], heads: int, scale: float, layout: str, groups: int) -> np.ndarray:
    """Computes attention in float32, with rotary positions of an unusual base."""
    angles = np.arange(5.0)[:, None] * rotary.rotary_frequencies(4, 777.0, RotaryScaling(), 5)
    turned = rotary.Rotation(np.cos(angles)[None].astype(np.float32), np.sin(angles)[None].astype(np.float32))
    query, key, value = (array.reshape(2, 5, -1, 4) for array in given.values())
    if layout:
        query, key = (rotary.rotated(array, turned, layout) for array in (query, key))
    if groups:
        key, value = (np.tile(array, (1, 1, heads // array.shape[2], 1)) for array in (key, value))
    return flat.scaled_dot_product_attention(query, key, value, causal=True, scale=scale).reshape(2, 5, -1)


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        ((0.5, "halves", 0), (0.5, "interleaved", 0), "base 777"),
        ((0.25, "halves", 0), (0.5, "halves", 0), "the left has scores over k, the right scores over sqrt(k)"),
        ((0.5, "halves", 1), (0.5, "halves", 0), "tiled … repeated"),
        ((0.5, "", 0), (0.5, "halves", 0), "the left has no rotation, the right rotary positions"),
        ((0.123, "halves", 0), (0.5, "halves", 0), "sqrt(k)"),
        ((0.123, "halves", 0), (0.234, "halves", 0), ""),
    ],
    ids=["layout", "scale", "groups", "no positions", "one side", "neither"],
)
def test_what_the_reference_knows_of_attention_is_said(left: tuple[Any, ...], right: tuple[Any, ...], said: str) -> None:
    given = _given(4, 2)
    sides = [_attended(given, 4, *each) for each in (left, right)]
    found = known_parts.said(given, {name: [name] for name in given}, sides, [777.0])
    assert mentions(found, said) and bool(said) == bool(found)


def test_what_the_reference_knows_of_a_feed_forward_network_is_said() -> None:
    given = {"mlp.gate": X, "mlp.up": X[::-1] + 1}
    sides = [feed_forward.activation(given["mlp.up"], "silu") * X, feed_forward.activation(X, "gelu_tanh") * given["mlp.up"]]
    words = {path: path.split(".") for path in given}
    assert known_parts.said(given, words, sides, []) == "the left has silu(up) * gate, the right gelu_tanh(gate) * up"
    assert mentions(known_parts.said(given, words, [sides[0], X**3], []), "left … silu(up) * gate … right … nothing")
    assert known_parts.said(given, words, [X**3, X**2], []) == ""
