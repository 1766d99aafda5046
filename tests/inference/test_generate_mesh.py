"""Generation on a mesh gives the answers and logits of one device."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_folders import FIRST, drawn
from hugging_face_folders import Drawn, made
from invoke import heed_interrupts, invoke, marked, refused
from kinds import conformance
from mesh_answers import Job, answers, found_by
from messages import mentions
from model_folders import modern

from reference_numpy.sharding import Mesh

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
# Effects of another order of sums, for numbers of order 1: in float64, in float32 scores, and over a text in float32.
FLOAT64, FLOAT32, TEXT = 1e-11, 1e-5, 1e-4


def folder(path: Path, family: str, seed: int = 0) -> Path:
    """Saves a random model of 4 heads in groups of two, and 27 tokens: neither 2 nor 4 processes divide everything."""
    if family == "gpt2":
        model = GPT2
    else:
        model = drawn(family, seed)
        sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 12, "vocab_size": 27}
        of_experts = ("moe_intermediate_size", "shared_intermediate_size", "shared_expert_intermediate_size")
        sizes |= {name: 8 for name in of_experts if model.settings.get(name)}
        width = {"hidden_size": 4 * model.settings["head_dim"] if family == "phi3" else 20}
        model = model._replace(settings=model.settings | sizes | width)
    made(model._replace(dtype="float32", options={}), seed).save_pretrained(path)
    return path


def job(path: Path, mesh: str, searches: Any = tuple(SEARCHES), prompts: list[list[int]] = PROMPTS) -> Job:
    settings = {name: SEARCHES[name] for name in searches}
    return {"folder": str(path), "mesh": mesh, "prompts": prompts, "settings": settings, "dtype": "float64"}


def assert_alike(found: dict[str, Any], job: Job, backend: str) -> None:
    wanted, mesh = found_by("torch", job | {"mesh": ""}), Mesh.parse(job["mesh"])
    groups = max(wanted["groups"], mesh.model)  # each device has at least one
    assert found["held"] * mesh.model * wanted["groups"] == wanted["held"] * groups
    if backend == "jax":  # in torch a process may have to read rows of others
        assert found["rows"] == -(-len(job["prompts"]) // mesh.data)
    for got, expected in zip(found["logits"], wanted["logits"], strict=True):
        np.testing.assert_allclose(got, expected, rtol=FLOAT64, atol=FLOAT64, err_msg=f"{job['folder']} {job['mesh']}")
    for name, rows in wanted["answers"].items():
        assert [row[:3] for row in found["answers"][name]] == [row[:3] for row in rows], (job["folder"], job["mesh"], name)
        np.testing.assert_allclose([row[3] for row in found["answers"][name]], [row[3] for row in rows], rtol=FLOAT32)


def assert_all_alike(backend: str, devices: int, jobs: list[Job]) -> None:
    for found, asked in zip(answers(backend, devices, jobs), jobs, strict=True):
        assert_alike(found, asked, backend)


def test_two_processes_give_the_answers_of_one(tmp_path: Path) -> None:
    """Llama, whose frequencies depend on the longest prompt; OLMo 2, with norms over all heads; GPT-2, with biases and tied; gpt-oss,
    with experts, whose biases are split too.
    """
    llama, olmo = folder(tmp_path / "a", "llama", 3), folder(tmp_path / "b", "olmo2")
    others, both = [folder(tmp_path / family, family, 3) for family in ("gpt2", "gpt_oss")], ("greedy", "sampling")
    asked = [job(llama, "data=2", ("beams", "sampling")), job(olmo, "model=2", both), *(job(path, "model=2", FEW) for path in others)]
    assert_all_alike("torch", 2, asked)


FAMILIES = ["gpt2", *FIRST, "gpt_oss", "glm4_moe"]


MESHES = ("model=4", "data=2,model=2", "data=4")


@pytest.mark.parametrize(
    ("mesh", "seed"),
    [conformance(mesh, seed) for mesh in MESHES for seed in range(4)],
)
def test_four_processes_give_the_answers_of_one(tmp_path: Path, mesh: str, seed: int) -> None:
    """Every family: with fewer groups than processes, windows, every type of rotary positions, tied or not; and fewer prompts than rows."""
    own = [folder(tmp_path / family, family, seed) for family in FAMILIES]
    assert_all_alike("torch", 4, [job(path, mesh) for path in own] + [job(path, mesh, prompts=PROMPTS[:1]) for path in own[:2]])


@pytest.mark.conformance
@pytest.mark.parametrize("mesh", ["data=2,model=2", "data=1,model=4", "data=4,model=1"])
def test_devices_of_jax_give_the_answers_of_one(tmp_path: Path, mesh: str) -> None:
    pytest.importorskip("jax")
    asked = [job(folder(tmp_path / family, family, 3), mesh, FEW) for family in ("llama", "olmo2", "gpt2", "gpt_oss", "glm4_moe")]
    asked.append(job(tmp_path / "gpt2", mesh, ("beams",), PROMPTS[:1]))
    assert_all_alike("jax", 4, asked)


COMMAND = (sys.executable, "-m", "rosettaformer", "generate")
LINES = b"the fox\n\xff\nover the lazy\ndog\n"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saves a folder with a tokenizer."""
    path = tmp_path_factory.mktemp("words")
    modern(path, 5)
    return path


@pytest.mark.conformance
@pytest.mark.parametrize("launcher", [(), ("-m", "torch.distributed.run", "--nproc-per-node", "2")])
def test_the_command_prints_once_what_it_prints_on_one_device(words: Path, launcher: tuple[str, ...]) -> None:
    """Standard input, which one process reads; started directly, with a bad line, and by torchrun, which reports exit codes."""
    lines = LINES.replace(b"\xff", b"quick") if launcher else LINES
    options = (words, "--batch-size", "3", "--max-new-tokens", "6", "--do-sample", "--seed", "4", "--json")
    line = (COMMAND[0], *launcher, *COMMAND[1:], *options, "--mesh", "data=2")
    found = subprocess.run(line, input=lines, capture_output=True)
    wanted = invoke("generate", *options, stdin=lines)
    rows = [json.loads(row) for row in found.stdout.splitlines()]
    for row, other in zip(rows, wanted.rows, strict=True):
        assert row.pop("score", 0) == pytest.approx(other.pop("score", 0), rel=TEXT)
        assert row == other
    assert found.returncode == wanted.code == (0 if launcher else 2)
    assert "Error" not in found.stderr.decode() if launcher else found.stderr.decode() == wanted.err


@pytest.mark.conformance
def test_an_interrupt_ends_all_processes_without_a_word(words: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("the fox\n" * 5000)
    line = (*COMMAND, words, lines, "--mesh", "model=2")
    begun = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_interrupts)
    assert begun.stdout is not None and begun.stdout.read(1)
    begun.send_signal(signal.SIGINT)
    _, said = begun.communicate(timeout=30)
    assert (begun.returncode, said.strip()) == (130, b"")
    assert marked(f"ROSETTAFORMER_LAUNCHER={begun.pid}") == []


@pytest.mark.conformance
def test_an_output_that_nobody_reads_ends_all(words: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("the fox\n" * 5000)
    begun = subprocess.Popen((*COMMAND, words, tmp_path / "lines.txt", "--mesh", "data=2"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert begun.stdout is not None and begun.stdout.readline()
    begun.stdout.close()
    assert begun.stderr is not None and begun.stderr.read() == b""
    assert begun.wait(60) == 141


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mesh", "data=2", "--backend", "tf"), "a mesh needs backend torch or jax; got tf"),
        (("--mesh", "model=3", "--backend", "jax"), "mesh's … h=4 … model=3"),
        (("--mesh", "data=64,model=4", "--backend", "jax"), "the mesh data=64,model=4 needs 256 devices; JAX sees "),
        (("--mesh", "model=2", "--backend", "jax", "--dtype", "int8"), "int8 … model=1"),
    ],
)
def test_a_mesh_that_cannot_be_is_one_message(words: Path, options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # the command appends to it
    if "jax" in options:
        jax = pytest.importorskip("jax")
        jax.devices()  # all devices present now
    assert mentions(refused("generate", words, "--prompt", "the", *options), message)
