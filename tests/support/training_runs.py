"""Runs small enough to be trained within a test."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polib
from invoke import Outcome, invoke

SIZES = {"model_width": 16, "heads": 2, "feed_forward_width": 32, "encoder_layers": 1, "decoder_layers": 1}
MODEL = tuple(word for field, value in SIZES.items() for word in ("--set", f"{field}={value}"))
DATA = ("--task", "reverse", "--length", "4", "--alphabet", "abcdefgh", "--size", "80", "--held-out", "8", "--batch-tokens", "64")
TINY = (*DATA, *MODEL, "--backend", "numpy", "--warmup", "40", "--dropout", "0.1", "--buckets", "2")


def command(*arguments: object, code: int = 0) -> Outcome:
    """Runs the command in this process, asserts its exit code, and prints what it has printed."""
    found = invoke(*arguments)
    print(found.out, end="")
    print(found.err, end="", file=sys.stderr)
    assert found.code == code, found
    return found


def train(folder: Path, *arguments: object, code: int = 0) -> Outcome:
    """Trains in this process; the arguments come after those of the tiny run, which a resumed one does not repeat."""
    begun = () if "--resume" in arguments else TINY
    return command("train", "--out", folder, *begun, *arguments, code=code)


def process(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    line = [sys.executable, "-m", "rosettaformer", *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def log(folder: Path, event: str = "step") -> list[dict[str, Any]]:
    """The entries of one kind in a run's log, without the times. Raises where a line is none."""
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    times = ("seconds", "tokens_per_second")
    return [{name: value for name, value in entry.items() if name not in times} for entry in entries if entry["event"] == event]


def catalogue(folder: Path, name: str, messages: dict[str, str], language: str = "es") -> Path:
    """Writes a compiled catalogue. A message may begin with its context and "\\x04"; one with plural forms is "singular\\0plural"."""
    compiled = polib.MOFile()
    compiled.metadata = {"Content-Type": "text/plain; charset=UTF-8", "Plural-Forms": "nplurals=2; plural=(n != 1);"}
    for message, translation in messages.items():
        context, _, text = message.rpartition("\x04")
        singular, _, plural = text.partition("\0")
        forms = {"msgstr_plural": dict(enumerate(translation.split("\0"))), "msgid_plural": plural} if plural else {"msgstr": translation}
        compiled.append(polib.MOEntry(msgctxt=context or None, msgid=singular, **forms))
    path = folder / language / "LC_MESSAGES" / f"{name}.mo"
    path.parent.mkdir(parents=True, exist_ok=True)
    compiled.save(str(path))
    return path
