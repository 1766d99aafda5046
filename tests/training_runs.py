"""Runs small enough to be trained within a test."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rosettaformer.cli import main

SIZES = {"model_width": 16, "heads": 2, "feed_forward_width": 32, "encoder_layers": 1, "decoder_layers": 1}
MODEL = tuple(word for field, value in SIZES.items() for word in ("--set", f"{field}={value}"))
DATA = ("--task", "reverse", "--length", "4", "--alphabet", "abcdefgh", "--size", "80", "--held-out", "8", "--batch-tokens", "64")
TINY = (*DATA, *MODEL, "--backend", "numpy", "--warmup", "40", "--dropout", "0.1", "--buckets", "2")


def command(*arguments: object, code: int = 0) -> None:
    """Runs the command in this process and asserts its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert (ended.value.code or 0) == code


def train(folder: Path, *arguments: object, code: int = 0) -> None:
    """Trains in this process; the arguments come after those of the tiny run, which a resumed one does not repeat."""
    begun = () if "--resume" in arguments else TINY
    command("train", "--out", folder, *begun, *arguments, code=code)


def process(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    line = [sys.executable, "-m", "rosettaformer", *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def log(folder: Path, event: str = "step") -> list[dict[str, Any]]:
    """The entries of one kind in a run's log, without the times. Raises where a line is none."""
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in entries if entry["event"] == event]
