"""Generation on a mesh gives the answers, and the logits, of one device."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_folders import KINDS, drawn
from hugging_face_folders import Drawn, made
from invoke import marked, refused, succeeded
from mesh_answers import Job, answers, found_by
from model_folders import gpt2, modern
from tiers import later

from reference_numpy.presets import preset
from reference_numpy.sharding import Mesh
from rosettaformer.inference.models import check_mesh

pytest.importorskip("torch")
pytest.importorskip("transformers")

PROMPTS = [[5, 1, 12], [7, 8, 9, 0, 11, 12, 13, 2], [6]]
SEARCHES = {
    "greedy": {"max_new_tokens": 10, "eos_token_id": [4, 9], "repetition_penalty": 1.2},
    "beams": {"max_new_tokens": 7, "num_beams": 3, "num_return_sequences": 2, "eos_token_id": [4], "length_penalty": 0.6},
    "sampling": {"max_new_tokens": 8, "do_sample": True, "num_return_sequences": 2, "seed": 3, "temperature": 2.0},
}
GPT2 = Drawn("GPT2LMHeadModel", {"vocab_size": 29, "n_embd": 12, "n_layer": 2, "n_head": 4, "n_positions": 40})
FEW = ("greedy",)


def folder(path: Path, family: str, seed: int = 0) -> Path:
    """A random model of 4 heads, of which groups have two, and 27 tokens: neither 2 nor 4 processes divide all."""
    if family == "gpt2":
        model = GPT2
    else:
        model = drawn(family, seed)
        sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 12, "vocab_size": 27}
        width = {"hidden_size": 4 * model.settings["head_dim"] if family == "phi3" else 20}
        model = model._replace(settings=model.settings | sizes | width)
    made(model._replace(dtype="float32", options={}), seed).save_pretrained(path)
    return path


def job(path: Path, mesh: str, searches: Any = tuple(SEARCHES), prompts: list[list[int]] = PROMPTS) -> Job:
    return {"folder": str(path), "mesh": mesh, "prompts": prompts, "settings": {name: SEARCHES[name] for name in searches}, "dtype": "float64"}


def assert_alike(found: dict[str, Any], job: Job) -> None:
    wanted = found_by("torch", job | {"mesh": ""})
    for got, expected in zip(found["logits"], wanted["logits"], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12, err_msg=f"{job['folder']} {job['mesh']}")
    for name, rows in wanted["answers"].items():
        assert [row[:3] for row in found["answers"][name]] == [row[:3] for row in rows], (job["folder"], job["mesh"], name)
        np.testing.assert_allclose([row[3] for row in found["answers"][name]], [row[3] for row in rows], rtol=1e-5)


def assert_all_alike(backend: str, devices: int, jobs: list[Job]) -> None:
    for found, asked in zip(answers(backend, devices, jobs), jobs, strict=True):
        assert_alike(found, asked)


def test_two_processes_give_the_answers_of_one(tmp_path: Path) -> None:
    """Llama, whose frequencies depend on the longest prompt; OLMo 2, whose norms are over all heads; GPT-2, with biases and tied."""
    llama, olmo = folder(tmp_path / "a", "llama", 3), folder(tmp_path / "b", "olmo2")
    own = folder(tmp_path / "c", "gpt2")
    asked = [job(llama, "data=2"), job(olmo, "model=2"), job(own, "model=2", FEW), job(own, "data=2", ("sampling",), PROMPTS[:1])]
    assert_all_alike("torch", 2, asked)


FAMILIES = ["gpt2", *KINDS]


@pytest.mark.second
@pytest.mark.parametrize("seed", [0, 1, 3])
@pytest.mark.parametrize("mesh", ["model=4", "data=2,model=2", "data=4"])
def test_four_processes_give_the_answers_of_one(tmp_path: Path, mesh: str, seed: int) -> None:
    """Every family: with fewer groups than processes, windows, every kind of rotary positions, tied or not; and fewer prompts than rows."""
    own = [folder(tmp_path / family, family, seed) for family in FAMILIES]
    assert_all_alike("torch", 4, [job(path, mesh) for path in own] + [job(path, mesh, prompts=PROMPTS[:1]) for path in own[:2]])


@pytest.mark.second
@pytest.mark.parametrize("mesh", ["data=2,model=2", "data=1,model=4", "data=4,model=1"])
def test_devices_of_jax_give_the_answers_of_one(tmp_path: Path, mesh: str) -> None:
    pytest.importorskip("jax")
    asked = [job(folder(tmp_path / family, family, 3), mesh, FEW) for family in ("llama", "olmo2", "gpt2")]
    asked.append(job(tmp_path / "gpt2", mesh, ("beams",), PROMPTS[:1]))
    assert_all_alike("jax", 4, asked)
