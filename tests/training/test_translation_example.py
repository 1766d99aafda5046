"""examples/translation.py trains once, and translates what it has learned."""

import runpy
from pathlib import Path

import pytest
from training_runs import SIZES

pytest.importorskip("num2words")

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "translation.py"))
FIELDS = [f"{field}={2 * value}" for field, value in SIZES.items() if "layers" not in field and field != "heads"]
FIELDS += ["encoder_layers=1", "decoder_layers=1"]


def test_it_trains_number_words_and_translates_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    recipe = {"dropout": 0.0, "smoothing": 0.0, "warmup": 60, "clip": 1.0, "batch_tokens": 150, "steps": 240}
    SCRIPT["train"](folder, "numpy", {"limit": 12, "held_out": 1}, settings=FIELDS, **recipe)
    assert SCRIPT["is_trained"](folder)
    SCRIPT["main"]([str(folder), "cinco", "once", "--backend", "numpy"])
    assert capsys.readouterr().out.splitlines()[-2:] == ["five", "eleven"]
    assert SCRIPT["translate"](folder, "numpy", ["cinco"], 1) == ["five"]


def test_a_run_that_was_ended_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = {"settings": FIELDS, "steps": 3, "save_every": 2, "sample": 1}
    SCRIPT["train"](folder, "numpy", {"limit": 12, "held_out": 1}, **options)
    last = folder / "checkpoints" / "step-00000003"
    last.rename(tmp_path / "lost")
    assert not SCRIPT["is_trained"](folder)
    SCRIPT["main"]([str(folder), "--backend", "numpy"])
    assert last.is_dir() and SCRIPT["is_trained"](folder)
