"""Runs small enough to be trained within a test."""

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
    """The words that give an option each of these fields."""
    return tuple(word for name, value in values.items() for word in (option, f"{name}={value}"))


SIZES = {"model_width": 16, "heads": 2, "feed_forward_width": 32, "encoder_layers": 1, "decoder_layers": 1}
MODEL = fields("--set", **SIZES)
DATA = ("--task", "reverse", *fields("--data", length=4, alphabet="abcdefgh", size=80, held_out=8, batch_tokens=64))
TINY = (*DATA, *MODEL, "--backend", "numpy", "--recipe", "warmup=40", "--set", "dropout_rate=0.1", "--data", "buckets=2")


def over(begun: Sequence[str], *arguments: object) -> list[object]:
    """The words of a run and more, without the fields of the first that the second set."""
    said = [(option, str(value).partition("=")[0]) for option, value in itertools.pairwise(arguments)]
    pairs = zip(begun[::2], begun[1::2], strict=True)
    return [word for pair in pairs if (pair[0], pair[1].partition("=")[0]) not in said for word in pair] + list(arguments)


def train(folder: Path, *arguments: object) -> Outcome:
    """Trains in this process; the arguments come after those of the tiny run, which a resumed one does not repeat."""
    begun = () if "--resume" in arguments else TINY
    return succeeded("train", "--out", folder, *over(begun, *arguments))


def process(*arguments: object, module: str = "rosettaformer", **options: Any) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    line = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def log(folder: Path, event: str = "step") -> list[dict[str, Any]]:
    """The entries of one kind in a run's log, without the times. Raises where a line is none."""
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    times = ("seconds", "tokens_per_second")
    return [{name: value for name, value in entry.items() if name not in times} for entry in entries if entry["event"] == event]


def tree(folder: Path) -> dict[str, Any]:
    """What lies below a folder but the lock: the kind, the size and the moment of the last change."""
    found = {str(file.relative_to(folder)): file.lstat() for file in folder.rglob("*") if file.name != "lock"}
    return {name: (status.st_mode, status.st_size, status.st_mtime_ns) for name, status in found.items()}


def edit(path: Path, change: Callable[[dict[str, Any]], object] = lambda fields: None) -> None:
    """Changes the fields of a file of a run, with the fingerprint that fits."""
    fields = json.loads(path.read_text())
    fields.pop(schema.FINGERPRINT, None)
    change(fields)
    path.write_text(json.dumps(fields | {schema.FINGERPRINT: schema.fingerprint(fields)}))
