"""An unsupported family: every command names the missing component, and the way to judge the model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import invoke, refused
from kinds import conformance
from messages import each_mentions, mentions

from rosettaformer.files.checkpoints import container, unsupported
from rosettaformer.files.checkpoints.hugging_face import FAMILIES, new

EXPERTS, RECURRENT, BIASES, PAIR = "experts", "recurrent", "position biases", "decoder"
# model_type and entries of its config.json -> the components it needs
NEEDS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("phimoe", {}, [EXPERTS]),
    ("bloom", {}, ["ALiBi"]),
    ("mamba", {"state_size": 16}, [RECURRENT]),
    ("t5", {"relative_attention_num_buckets": 32, "is_encoder_decoder": True}, [BIASES, PAIR]),
    ("deepseek_v3", {"kv_lora_rank": 512, "n_routed_experts": 256}, [EXPERTS, "latent attention"]),
    ("new_one", {"num_experts": 8, "use_parallel_residual": True}, [EXPERTS]),
    ("new_one", {"num_experts": 1, "layer_types": ["full_attention"]}, []),
    ("new_one", {"layer_types": ["linear_attention"], "vision_config": {"a": 1}}, [RECURRENT, "audio"]),
    ("new_one", {"num_experts": "8", "embedding_size": None, "alibi": "no"}, []),
]
COMMANDS = (
    "inspect DIR", "convert DIR new.safetensors", "check --checkpoint DIR", "check port.py --like DIR", "diagnose port.py --like DIR",
    "generate DIR --prompt x", "classify DIR texts", "embed DIR texts", "fill-mask DIR --text x", "attention DIR --text x --out a.html",
    "report --checkpoint DIR --out a.html", "compare DIR@numpy DIR@torch", "plan DIR --rows 1 --length 8 --mesh model=2",
    "export DIR --to onnx --out a.onnx",
)  # fmt: skip
OF_NAMES = ("new-checkpoint phimoe --out new", "new-port like phimoe", "check port.py --like phimoe", "diagnose port.py --like phimoe")


@pytest.fixture
def phimoe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "config.json").write_text(json.dumps({"model_type": "phimoe", "num_local_experts": 8}))
    container.write(tmp_path / "a b" / "model.safetensors", {"model.embed_tokens.weight": np.ones((3, 2), np.float32)}, {})
    (tmp_path / "port.py").write_text("def load(folder):\n    return None\n")
    (tmp_path / "texts").write_text("x\n")
    return tmp_path / "a b"


@pytest.mark.parametrize(("model_type", "entries", "wanted"), NEEDS)
def test_what_a_model_needs_is_told_by_its_family_and_its_entries(model_type: str, entries: dict[str, Any], wanted: list[str]) -> None:
    assert each_mentions(unsupported.components(model_type, entries), wanted)


def test_no_supported_family_is_listed() -> None:
    for family in FAMILIES:
        unsupported.refuse(family)


@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[3], *map(conformance, (*COMMANDS[1:3], *COMMANDS[4:]))])
def test_every_command_says_what_is_missing_and_what_judges_the_model(phimoe: Path, command: str) -> None:
    found = invoke(*(str(phimoe) + word[3:] if word.startswith("DIR") else word for word in command.split()))
    said = " ".join((found.out + found.err).split())
    assert found.code == 2, said
    assert EXPERTS in said, said
    folder = "".join(str(phimoe).split())  # a terminal wraps a long path
    assert f"comparetransformers:'{folder}'" in "".join(said.split()), said


@pytest.mark.parametrize("command", OF_NAMES)
def test_a_name_is_refused_for_the_same_reason(phimoe: Path, command: str) -> None:
    assert unsupported.reason("phimoe", {}) in refused(*command.split())


def test_inspect_prints_what_it_can_and_the_problem(phimoe: Path) -> None:
    found = invoke("inspect", phimoe, "--json")
    description = json.loads(found.out)
    assert found.code == 2 and len(description["tensors"]) == 1
    assert description["problems"] == [unsupported.reason("phimoe", {"num_local_experts": 8}, phimoe)]


@pytest.mark.conformance
def test_the_named_command_judges_such_a_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.PhimoeConfig(**sizes, intermediate_size=48, num_local_experts=4)
    transformers.PhimoeForCausalLM(config).save_pretrained(tmp_path / "a")
    side = f"transformers:{tmp_path / 'a'}"
    assert invoke("compare", side, side).code == 0


CODE = """
from transformers.models.llama import modeling_llama as llama
raise RuntimeError("this code is not run")
class Base(llama.LlamaForCausalLM): ...
class NewForCausalLM(Base): ...
class Other(Other): ...
"""


@pytest.mark.parametrize(("named", "more", "wanted"), [
    ("NewForCausalLM", {"half_rope": True}, ["LlamaForCausalLM … half_rope … llama"]),
    ("NewForCausalLM", {}, ["LlamaForCausalLM … llama"]),
    ("Other", {}, []),
    ("Absent", {}, []),
])  # fmt: skip
def test_a_class_that_inherits_from_a_known_one_is_told(tmp_path: Path, named: str, more: dict[str, Any], wanted: list[str]) -> None:
    new.write("llama", tmp_path / "a")
    said = json.loads((tmp_path / "a" / "config.json").read_text()) | {"model_type": "new_one", "architectures": [named]} | more
    (tmp_path / "a" / "config.json").write_text(json.dumps(said | {"auto_map": {"AutoModelForCausalLM": f"modeling_new.{named}"}}))
    (tmp_path / "a" / "modeling_new.py").write_text(CODE)
    (tmp_path / "a" / "broken.py").write_text("def")
    problem = refused("convert", tmp_path / "a", tmp_path / "b.safetensors")
    assert all(mentions(problem, words) for words in wanted)
    assert ("LlamaForCausalLM" in problem) == bool(wanted) and ("half_rope" in problem) == bool(more)
