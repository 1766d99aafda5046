"""`check --checkpoint`: the cases of every kind of model, also on Hugging Face checkpoints."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import invoke, succeeded
from kinds import conformance
from messages import mentions
from model_folders import bert, gpt2

from reference_numpy import parameters, preset
from rosettaformer.files.checkpoints import save
from rosettaformer.judge.expectation.tolerance import expect
from rosettaformer.judge.suite.checkpoint import checkpoint_cases
from rosettaformer.judge.suite.gradients import gradients

TINY: dict[str, Any] = {
    "source_vocabulary": 40, "target_vocabulary": 40, "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4,
    "feed_forward_width": 20,
}  # fmt: skip
ROWS = ["checkpoint", "checkpoint_right_padding", "checkpoint_left_padding", "checkpoint_long"]
SEGMENTS = [*ROWS, "checkpoint_two_segments"]


def saved(folder: Path, name: str, **changes: Any) -> Path:
    """Saves a model with random parameters."""
    config = preset(name, **TINY | changes)
    save(folder / "model.safetensors", config, parameters.initialise(config, seed=0, dtype=np.float32))
    return folder / "model.safetensors"


def cases(*model: Any, **changes: Any) -> dict[str, list[str]]:
    """Returns the names of a model's cases by component, each of which the reference can compute."""
    found: dict[str, list[str]] = {}
    for case in (every := checkpoint_cases(saved(*model, **changes))):
        found.setdefault(case.component, []).append(case.name)
        assert all(np.isfinite(one.reference).all() for one in expect(case.at("float32")).values()), case.id
    assert all(case.component.endswith("_vjp") for case in gradients(every))
    assert {dtype for case in every for dtype in case.dtypes} == {"float32"}  # the dtype of the checkpoint
    return found


def test_an_encoder_is_asked_for_what_each_of_its_heads_gives(tmp_path: Path) -> None:
    sizes = {"encoder_layers": 1, "max_positions": 200}
    both = cases(tmp_path, "bert_base", **sizes, classes=3)
    assert both == dict.fromkeys(("pool", "classify", "masked_language_logits", "states"), both["states"])
    assert sorted(both["states"]) == sorted(SEGMENTS)
    bare = cases(tmp_path, "bert_base", **sizes, pooler=False, masked_language_head=False, segments=0)
    assert bare == {"states": ROWS}


def test_a_decoder_is_asked_for_steps_and_a_search(tmp_path: Path) -> None:
    found = cases(tmp_path, "gpt2_small", decoder_layers=1, max_positions=200)
    assert found == {"transformer": ROWS, "states": ROWS, "decode_in_steps": ["checkpoint"], "greedy_search": ["checkpoint"]}


@pytest.mark.parametrize("positions", [2, 5, 20])
def test_few_positions_are_enough(positions: int, tmp_path: Path) -> None:
    assert len(cases(tmp_path, "gpt2_small", decoder_layers=1, max_positions=positions)) == 4
    assert len(cases(tmp_path, "bert_base", encoder_layers=1, max_positions=positions)) == 3


def test_padding_is_the_padding_id_where_there_is_one(tmp_path: Path) -> None:
    for case in checkpoint_cases(saved(tmp_path, "bert_base", encoder_layers=1, max_positions=20, padding_id=7)):
        mask = case.inputs.get("source_mask_bs", True)
        np.testing.assert_array_equal(case.inputs["source"] != 7, np.broadcast_to(mask, case.inputs["source"].shape))


@pytest.mark.parametrize(
    ("made", "choices", "components"),
    [
        (gpt2, {"tokenizer": False, "n_positions": 24}, {"transformer": 4, "states": 4, "decode_in_steps": 1, "greedy_search": 1}),
        conformance((bert, {"kind": "BertForMaskedLM", "num_hidden_layers": 1}, {"masked_language_logits": 5, "states": 5})),
        conformance((bert, {"num_hidden_layers": 1}, {"pool": 5, "classify": 5, "states": 5})),
    ],
)
def test_a_folder_of_hugging_face_conforms(
    made: Callable[..., Any], choices: dict[str, Any], components: dict[str, int], tmp_path: Path
) -> None:
    made(tmp_path, **choices)
    results = json.loads(succeeded("check", "torch", "--checkpoint", tmp_path, "--dtype", "float32", "--json", "-").out)["results"]
    assert {result["status"] for result in results} == {"pass"}
    assert Counter(result["component"] for result in results) == components


@pytest.mark.conformance
def test_what_a_port_fixes_and_the_checkpoint_has_is_said(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    port = Path(__file__).parents[1] / "ports" / "torch_nn_transformer.py"
    outcome = invoke("check", port, "--checkpoint", saved(tmp_path, "gpt2_small", decoder_layers=1, max_positions=20))
    assert outcome.code == 1
    assert mentions(outcome.out, "tie_logits=False … tie_logits=True (14)")
    assert mentions(outcome.out, "3 … states … decode_in_steps … greedy_search … (11)")
