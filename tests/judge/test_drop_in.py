"""Ports that stand in the place of other projects' checks (docs/drop-in.md, docs/like.md): each is quoted as it is, and conforms."""

import importlib.util
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from examples import HOUSE
from hub_folders import FOLDERS, REFUSED, table
from in_process import InProcess
from tiers import later

from rosettaformer.checkpoints.hugging_face import FAMILIES, new
from rosettaformer.conformance import runner
from rosettaformer.conformance.cases.like_folders import cases_of
from rosettaformer.conformance.result import Result

PORTS = HOUSE / "tests" / "ports" / "drop_in"
PAGES = {page: (HOUSE / "docs" / page).read_text() for page in ("like.md", "drop-in.md")}
# port -> (the family that it is judged on, what it needs, how many prompts conform in float32 of those that it is asked)
CONFORMING = {
    "like_port": ("qwen3", "transformers", 5),
    "jax_port": ("qwen3", "jax", 9),
    "onnx_port": ("qwen3", "onnxruntime", 9),
    "engine_port": ("qwen3", "transformers", 4),
}
PROMPTS = ("short", "medium", "left_padding")


def asked(port: str, like: str, folder: Path, names: tuple[str, ...] = (), start: object = InProcess) -> list[Result]:
    """The results of a port on a family's new folder, or on a folder, in float32, without what it does not cover."""
    cases = [case for case in cases_of(like, folder, ["float32"]) if not names or case.name in names]
    with pytest.MonkeyPatch.context() as patch:
        if start:
            patch.setattr(runner, "open_worker", start)
        results = runner.run(cases, [port], ["float32"])
    return [result for result in results if result.status != "not covered"]


def statuses(results: list[Result]) -> set[str]:
    return {str(result.status) for result in results}


@pytest.mark.parametrize("file", sorted(path.name for path in PORTS.glob("*.py")))
def test_a_page_quotes_the_file_as_it_is(file: str) -> None:
    quoted = f"```python\n{(PORTS / file).read_text()}```\n"
    assert sum(quoted in text for text in PAGES.values()) == 1


@pytest.mark.parametrize("port", [later(port) if port != "jax_port" else port for port in CONFORMING])
def test_a_port_conforms(port: str, tmp_path: Path) -> None:
    family, needs, count = CONFORMING[port]
    pytest.importorskip(needs)
    results = asked(str(PORTS / f"{port}.py"), family, tmp_path, PROMPTS if port == "jax_port" else ())
    assert statuses(results) == {"pass"}, results
    assert len(results) == (len(PROMPTS) if port == "jax_port" else count)


@pytest.mark.second
def test_the_command_conforms(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    line = f"command:{shlex.quote(sys.executable)} {PORTS / 'command_port.py'}"
    results = asked(line, "qwen3", tmp_path, start=None)
    assert (len(results), statuses(results)) == (9, {"pass"}), results


@pytest.mark.second
@pytest.mark.parametrize("family", FAMILIES)
def test_kerashub_conforms_with_the_entries_that_the_page_names_and_needs_each(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    if importlib.util.find_spec("sentencepiece") is None:  # the port's own stand-in would outlive the test
        monkeypatch.setitem(sys.modules, "sentencepiece", SimpleNamespace(SentencePieceProcessor=None))
    port = str(PORTS / f"keras_hub{'_bert' * (family == 'bert')}_port.py")
    if family in REFUSED:
        (refusal,) = {result.message for result in asked(port, family, tmp_path, ("short",))}
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
        else:
            assert FOLDERS[family][without].status in found, (family, without, found)


def test_the_page_has_the_table_of_these_entries() -> None:
    assert {*FOLDERS, *REFUSED} == {*FAMILIES}
    assert table() in PAGES["drop-in.md"]
