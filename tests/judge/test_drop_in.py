"""Ports that replace checks of other projects (docs/drop-in.md, docs/like.md): each is quoted verbatim and conforms."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from code_blocks import HOUSE
from hub_folders import FOLDERS, REFUSED, UNMEASURED, table
from in_process import InProcess
from invoke import invoke
from kinds import conformance

from rosettaformer.files.checkpoints.hugging_face import FAMILIES, new
from rosettaformer.judge import runner
from rosettaformer.judge.ports import session
from rosettaformer.judge.result import Result
from rosettaformer.judge.suite.like_folders import cases_of

PORTS = HOUSE / "tests" / "ports" / "drop_in"
PAGES = {page: (HOUSE / "docs" / page).read_text() for page in ("like.md", "drop-in.md")}
FAMILY = "qwen3"  # the family on which the ports are judged
PROMPTS = ("short", "medium", "left_padding")
# port -> its requirements, its prompts here (all if empty), and how many of them have outputs
CONFORMING = {
    "jax_port": ("jax", ("left_padding",), 1),  # JAX compiles it for every length
    "like_port": ("transformers", (), 5),
    "onnx_port": ("onnxruntime", PROMPTS, 3),
    "engine_port": ("transformers", (), 4),
}


def asked(
    port: str, like: str, folder: Path, names: tuple[str, ...] = (), start: object = InProcess, dtype: str = "float32"
) -> list[Result]:
    """Returns a port's results on a family's new folder, or on a given folder, without uncovered cases. start: as `session.open_worker`."""
    cases = [case for case in cases_of(like, folder, [dtype]) if not names or case.name in names]
    with pytest.MonkeyPatch.context() as patch:
        if start:
            patch.setattr(session, "open_worker", start)
        results = runner.run(cases, [port], [dtype])
    return [result for result in results if result.status != "not covered"]


def statuses(results: list[Result]) -> set[str]:
    return {str(result.status) for result in results}


@pytest.mark.parametrize("file", sorted(path.name for path in PORTS.glob("*.py")))
def test_a_page_quotes_the_file_as_it_is_or_links_it(file: str) -> None:
    quoted = f"```python\n{(PORTS / file).read_text()}```\n"
    linked = f"[{file}](../tests/ports/drop_in/{file})"
    assert sum((quoted in text) + (linked in text) for text in PAGES.values()) == 1


@pytest.mark.parametrize("port", [conformance(port) if port != "jax_port" else port for port in CONFORMING])
def test_a_port_conforms(port: str, tmp_path: Path) -> None:
    needs, names, count = CONFORMING[port]
    pytest.importorskip(needs)
    results = asked(str(PORTS / f"{port}.py"), FAMILY, tmp_path, names)
    assert (len(results), statuses(results)) == (count, {"pass"}), results


@pytest.mark.conformance
def test_the_command_conforms(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    line = f"command:{shlex.quote(sys.executable)} {shlex.quote(str(PORTS / 'command_port.py'))}"
    results = asked(line, FAMILY, tmp_path, PROMPTS, start=None)
    assert (len(results), statuses(results)) == (len(PROMPTS), {"pass"}), results


@pytest.mark.conformance
@pytest.mark.parametrize("family", [*FOLDERS, *REFUSED])
def test_kerashub_conforms_with_the_entries_that_the_page_names_and_needs_each(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    if importlib.util.find_spec("sentencepiece") is None:  # the port's own stand-in would outlive the test
        monkeypatch.setitem(sys.modules, "sentencepiece", SimpleNamespace(SentencePieceProcessor=None))
    encoder = FAMILIES[family].fixed.get("decoder_layers") == 0
    port = str(PORTS / f"keras_hub{'_bert' * encoder}_port.py")
    if family in REFUSED:
        (refusal,) = {result.message for result in asked(port, family, tmp_path, ("short",)) if result.status != "skipped"}
        assert "no converter" in refusal
        return
    wanted = {name: entry.value for name, entry in FOLDERS[family].items()}
    for without in (None, *wanted):
        settings = {name: value for name, value in wanted.items() if name != without}
        if "layer_types" in settings:
            settings["num_hidden_layers"] = len(settings["layer_types"])
        place = tmp_path / str(without)
        place.mkdir()
        new.write(family, place / "folder", dtype=settings.pop("dtype", "float32"), settings=settings)
        (place / "asked").mkdir()
        found = statuses(asked(port, str(place / "folder"), place / "asked", PROMPTS))
        if without is None:
            assert found == {"pass"}, (family, found)
            half = asked(port, str(place / "folder"), place / "asked", PROMPTS, dtype="bfloat16")
            assert statuses(half) == (set() if encoder else {"pass"}), (family, half)
        else:
            assert FOLDERS[family][without].status in found, (family, without, found)


@pytest.mark.conformance
def test_diagnosis_names_the_causes_that_the_page_quotes(tmp_path: Path) -> None:
    pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    settings = {name: entry.value for name, entry in FOLDERS["bert"].items() if name != "hidden_act"}
    new.write("bert", tmp_path / "bert", settings=settings)
    for port, like in (("keras_hub_port", "qwen2"), ("keras_hub_bert_port", tmp_path / "bert")):
        said = invoke("diagnose", PORTS / f"{port}.py", "--like", like, "--limit", 900).out
        first, *_ = re.findall(r"\b[A-Z]{3}\d+\b", said)
        assert first in PAGES["drop-in.md"], said


def test_the_page_has_the_table_of_these_entries() -> None:
    assert {*FOLDERS, *REFUSED, *UNMEASURED} == {*FAMILIES}
    assert table() in (HOUSE / "docs" / "keras-hub.md").read_text()
