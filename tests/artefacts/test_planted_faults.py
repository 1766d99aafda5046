"""Bugs planted in exports of transformers models: `check` catches each, and it or `diagnose` names most."""

import json
from pathlib import Path

import numpy as np
import pytest
from messages import each_mentions

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
import onnx
from invoke import invoke
from onnx import helper
from onnx_faults import FAULTS, exported, faulty
from test_graph_evidence import graph as net

from reference_numpy import parameters, preset
from rosettaformer.files.artefacts.constants import constants
from rosettaformer.files.artefacts.declared import findings, weights

# bug -> the row of `check` that names it, or the known bug, setting or condition in `diagnose`
NAMED = {
    "rms_norm_epsilon": "config.json/epsilon", "no_rotary_scaling": "config.json/rotary_base",
    "rotary_angles_in_float16": "graph/precision", "rotary_pairs": "ROT1", "no_causal_mask": "CAU6", "no_padding_mask": "ATT9",
    "key_heads_tiled": "MHA10", "gate_and_up": "FFN8", "gate_and_up_of_one_layer": "graph/weights",
    "no_final_norm": "NRM10", "scores_in_float16": "graph/precision",
    "batch_in_a_shape": "batch is 2", "layer_norm_epsilon": "config.json/epsilon", "attention_scale": "ATT1",
    "transposed_kernel": "graph/weights", "gelu_of_erf": "config.json/activation", "positions_of_the_row": "PE11",
    "untied_head": "graph/weights", "no_bias": "graph/weights", "exchanged_layers": "graph/weights", "float32_norms": "graph/precision",
    "float32_constants": "graph/precision", "mask_of_1e4": "ATT12", "gelu_of_tanh": "config.json/activation", "one_segment": "SEG1",
    "length_in_a_slice": "source length is 7", "no_embedding_scale": "config.json/scale_embedding", "window_of_one_more": "WIN1",
    "no_cap": "CAP1", "norm_offset_twice": "norm.scale=2+", "rotary_base": "config.json/rotary_base",
}  # fmt: skip
SQUARE = preset("gpt2_small").replace(
    model_width=8, heads=2, key_value_heads=2, key_size=4, value_size=4, feed_forward_width=12, target_vocabulary=19, decoder_layers=3,
    max_positions=16,
)  # fmt: skip
KERNELS = [f"decoder.layers.{layer}.{part}.kernel" for layer in range(3) for part in ("self_attention.output", "feed_forward.hidden")]


def graph(held: dict[str, np.ndarray], path: Path, narrow: bool = False) -> Path:
    """Returns a graph that multiplies by matrices, activates every second product, and adds other arrays. narrow: casts to float16."""
    nodes = [helper.make_node("MatMul" if array.ndim == 2 else "Add", ["x", name], [f"y{name}"]) for name, array in held.items()]
    nodes += [helper.make_node("Sigmoid", [f"y{name}"], [f"z{name}"]) for name in ("w1", "w3", "w5")]
    nodes += [helper.make_node("Cast", ["x"], ["z"], name="last", to=onnx.TensorProto.FLOAT16)] * narrow
    matrices = {name: np.ascontiguousarray(array, np.float32) for name, array in held.items()}
    return net(path, nodes, matrices, outputs=())


def test_weights_that_are_not_the_checkpoints_are_told(tmp_path: Path) -> None:
    own = parameters.initialise(SQUARE, 0, np.float32)
    for number, (name, array) in enumerate(own.items()):
        own[name] = array + np.arange(array.size, dtype=np.float32).reshape(array.shape) / (7 + number)
    own = {name: array for name, array in own.items() if name in KERNELS or name.endswith("hidden.bias")}
    right = {f"w{number}": own[name].reshape(-1, own[name].shape[-1]) for number, name in enumerate(KERNELS)}
    right |= {f"b{number}": own[f"decoder.layers.{number}.feed_forward.hidden.bias"] for number in range(3)}

    def said(narrow: bool = False, **changes: np.ndarray) -> list[str]:
        found = constants(graph(right | changes, tmp_path / "net.onnx", narrow))
        return [*(finding.sentence for finding in weights.findings(SQUARE, own, found))] + [
            finding.sentence for finding in findings(SQUARE, found) if finding.field == "precision"
        ]

    assert said() == []
    assert each_mentions(said(w2=right["w2"].T), ["w2 … transposed … decoder.layers.1.self_attention.output.kernel"])
    exchanged = said(w1=right["w3"], w3=right["w1"])
    assert each_mentions(exchanged, ["decoder.layers.N.feed_forward.hidden.kernel … layers 1, 0, 2"])
    absent = "decoder.layers.1.feed_forward.hidden.bias … b1 "
    assert each_mentions(said(b1=0 * right["b1"]), [f"{absent}is zero"])
    assert each_mentions(said(b1=2 * right["b1"]), [f"{absent}is 2 times"])
    assert each_mentions(said(b1=right["b1"] + (np.arange(12) == 3)), [f"{absent}holds other"])
    assert each_mentions(said(w3=right["w3"][:, ::-1]), ["decoder.layers.1.feed_forward.hidden.kernel … w3 … axis 1 … order"])
    assert each_mentions(said(w2=right["w3"], w3=right["w2"]), [f"{KERNELS[2]} and {KERNELS[3]} are exchanged"])
    assert said(b0=2 * right["b0"], b1=2 * right["b1"], b2=2 * right["b2"]) == []  # an exporter may have folded them all
    assert each_mentions(said(narrow=True), ["float32 … float16 in last"])


def test_every_fault_but_fixed_sizes_is_named() -> None:
    assert FAULTS.keys() - NAMED.keys() == {"fixed_sizes"} and NAMED.keys() <= FAULTS.keys()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("transformers", "onnxscript"):
        pytest.importorskip(package)
    return tmp_path_factory.mktemp("faults")


def checked(path: Path, file: Path) -> tuple[int, dict[str, dict]]:
    found = invoke("check", file, "--checkpoint", path, "--json", file.with_suffix(".json"))
    return found.code, {row["case"]: row for row in json.loads(file.with_suffix(".json").read_text())["results"]}


@pytest.mark.conformance
@pytest.mark.parametrize("base", sorted({base for base, _ in FAULTS.values()} - {"gpt2.fixed", "gpt2.float64"}))
def test_an_export_without_a_fault_conforms(base: str, folder: Path) -> None:
    code, rows = checked(*exported(base, folder))
    assert code == 0, [row["message"] for row in rows.values()]


@pytest.mark.conformance
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_and_named(name: str, folder: Path) -> None:
    path, file = faulty(name, folder)
    code, rows = checked(path, file)
    assert code == 1
    wrong = {case for case, row in rows.items() if row["status"] in ("differs", "error", "not shown")}
    assert any(case.partition("/")[2] in ("short", "batch", "left_padding", "long", "two_segments") for case in wrong), wrong
    named = NAMED.get(name, "")
    if "/" in named:
        assert named in wrong
    elif named:
        found = invoke("diagnose", file, "--checkpoint", path, "--limit", "600")
        assert found.code == 1 and named in found.out, found.out
