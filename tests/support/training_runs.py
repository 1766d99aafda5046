"""Runs small enough to train within a test."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from invoke import Outcome, succeeded

from rosettaformer.use.training import schema


def fields(option: str, **values: object) -> tuple[str, ...]:
    """Returns the command-line words that set each of these fields."""
    return tuple(word for name, value in values.items() for word in (option, f"{name}={value}"))


SIZES = {"model_width": 16, "heads": 2, "feed_forward_width": 32, "encoder_layers": 1, "decoder_layers": 1}
MODEL = fields("--set", **SIZES)
DATA = ("--task", "reverse", *fields("--data", length=4, alphabet="abcdefgh", size=80, held_out=8, batch_tokens=64))
TINY = (*DATA, *MODEL, "--backend", "numpy", "--recipe", "warmup=40", "--set", "dropout_rate=0.1", "--data", "buckets=2")


def over(begun: Sequence[str], *arguments: object) -> list[object]:
    """Returns the words of a run and further words, which override fields of the first."""
    said = [(option, str(value).partition("=")[0]) for option, value in itertools.pairwise(arguments)]
    pairs = zip(begun[::2], begun[1::2], strict=True)
    return [word for pair in pairs if (pair[0], pair[1].partition("=")[0]) not in said for word in pair] + list(arguments)


def train(folder: Path, *arguments: object) -> Outcome:
    """Trains in this process; the arguments follow those of the tiny run, which a resumed run does not repeat."""
    begun = () if "--resume" in arguments else TINY
    return succeeded("train", "--out", folder, *over(begun, *arguments))


def process(*arguments: object, module: str = "rosettaformer", **options: Any) -> subprocess.Popen[str]:
    """Runs the command in its own process."""
    line = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def log(folder: Path, event: str = "step") -> list[dict[str, Any]]:
    """Returns the entries of one kind in a run's log, without times. Raises if a line is invalid."""
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    times = ("seconds", "tokens_per_second")
    return [{name: value for name, value in entry.items() if name not in times} for entry in entries if entry["event"] == event]


def tree(folder: Path) -> dict[str, Any]:
    """Returns the kind, size and modification time of everything below a folder except the lock."""
    found = {str(file.relative_to(folder)): file.lstat() for file in folder.rglob("*") if file.name != "lock"}
    return {name: (status.st_mode, status.st_size, status.st_mtime_ns) for name, status in found.items()}


def edit(path: Path, change: Callable[[dict[str, Any]], object] = lambda fields: None) -> None:
    """Changes fields of a run's file and updates its fingerprint."""
    fields = json.loads(path.read_text())
    fields.pop(schema.FINGERPRINT, None)
    change(fields)
    path.write_text(json.dumps(fields | {schema.FINGERPRINT: schema.fingerprint(fields)}))
