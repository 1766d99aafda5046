"""`rosettaformer translate`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click

from ..atomic import require as writable
from ..backends import BACKENDS
from ..conformance.ports.port import needs_of
from ..extras import require
from ..pictures import SUFFIXES
from ..reading import read_texts
from ..training.backends import trainer
from .lines import Lines
from .options import Choice

CHUNK = 256  # lines that are translated at a time; one in a terminal


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("file", type=click.File("rb"), default="-", metavar="[FILE]")
@click.option("--backend", type=Choice(list(BACKENDS)), help="Backend to translate with. [default: the run's own]")
@click.option("--device", default="cpu", show_default=True, help="cpu, or what the backend calls another.")
@click.option(
    "--dtype", type=Choice(["float32", "int8"]), default="float32", show_default=True, help="Of the model's products; numpy has no int8."
)
@click.option(
    "--checkpoint", type=Choice(["last", "average", "best"]), default="last", show_default=True, help="Which of the run's models."
)
@click.option("--beam", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Beams; 1 is greedy search.")
@click.option("--alpha", type=click.FloatRange(min=0), default=0.6, show_default=True, help="Of the beam search's length penalty.")
@click.option("--scores", is_flag=True, help="Translate the run's own test pairs and print the scores alone.")
@click.option("--attention", metavar="text|FILE", help="Show what each word looked at: as text, or as a picture (.png, .svg, .pdf).")
@click.option(
    "--json", "as_json", is_flag=True, help="Print an object a line: line, source, translation, score (of a beam, log p / penalty)."
)
def translate(folder: Path, file: BinaryIO, attention: str | None, as_json: bool, scores: bool, **options: Any) -> None:
    """Translate lines, from FILE or standard input, with the model of the run in DIR.

    One line out for every line in; an empty line stays one, and one that cannot be read is one. A line that is longer than any in
    training is translated in pieces.
    A picture of attention is that of one line.
    """
    packages = ["matplotlib"] * (attention not in (None, "text")) + ["sacrebleu"] * scores
    require("translate", {"train": ["tokenizers", *packages], **needs_of(options["backend"] or "")})
    if scores and (attention or as_json):
        raise ValueError("--scores prints scores alone: it takes no --attention and no --json")
    show = _attention(attention, as_json)
    session = _open(folder, **options)
    if scores:
        _score(session, folder)
    else:
        _translate(session, file, show, as_json)


@dataclass(frozen=True)
class _Session:
    model: Any
    trainer: Any
    tokens: Any
    decoding: Any
    longest: int


def _attention(choice: str | None, as_json: bool) -> Path | str | None:
    """Returns how to show attention: None, "text" or a picture's path, which is checked before anything is computed."""
    if choice is None or choice == "text":
        if choice and as_json:
            raise ValueError("--attention text and --json both speak on standard output: choose one")
        return choice
    path = Path(choice)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"--attention must be text, or a file that ends in .png, .svg or .pdf; got {choice!r}")
    writable(path)
    return path


def _open(folder: Path, backend: str | None, device: str, dtype: str, checkpoint: str, beam: int, alpha: float) -> _Session:
    from ..training.answers import Decoding
    from ..training.backends import Int8Searches
    from ..training.manifest import Manifest, read_tokens
    from ..training.translator import load_model

    manifest = Manifest.read(folder)
    tokens = read_tokens(folder, manifest)
    backend = backend or manifest.free["backend"]
    require("translate", needs_of(backend))
    model = load_model(folder, manifest, checkpoint)
    made: Any
    if dtype == "int8":
        made = Int8Searches(backend, model.config, model.parameters, device)
    else:
        made = trainer(backend)(model.config, manifest.recipe, model.parameters, device=device)
    return _Session(model, made, tokens, Decoding(manifest.limits, beam, alpha, rows=max(64, beam)), manifest.longest)


def _score(session: _Session, folder: Path) -> None:
    """Yields a line for each measure of the task; the pairs must be those that the run started with."""
    from ..training import answers, run

    found = run.resume(folder, None, {}, {})
    for name, value in answers.scores(session.trainer, found.task, session.tokens, found.data.test, session.decoding).items():
        click.echo(f"{name} {value:.4g}")


def _translate(session: _Session, file: BinaryIO, show: Path | str | None, as_json: bool) -> None:
    from ..training.translator import translate as run

    rows = Lines()
    for lines in read_texts(file, CHUNK):
        for number, text, found, problem in rows.answered(
            lines, lambda texts: run(session.trainer, session.tokens, texts, session.decoding, session.longest)
        ):
            if problem:
                click.echo(json.dumps({"line": number, "source": text, "error": problem}, ensure_ascii=False) if as_json else "")
                continue
            if len(found.sources) > 1:
                parts = f"{len(found.sources)} pieces, since training saw no source of more than {session.longest} tokens"
                click.echo(f"line {number} is translated in {parts}", err=True)
            click.echo(_json(number, text, found, session) if as_json else found.text(session.tokens))
            if isinstance(show, Path) and number > 1:
                raise ValueError(f"a picture shows one line; got more ({show} shows the first)")
            if show:
                _show(session, found, show)
    rows.end()


def _json(number: int, text: str, found: Any, session: _Session) -> str:
    score = sum(answer.score for answer in found.answers)
    return json.dumps({"line": number, "source": text, "translation": found.text(session.tokens), "score": score}, ensure_ascii=False)


def _show(session: _Session, found: Any, show: Path | str) -> None:
    from ..training.tokens import END, START
    from ..training.translator import attention_table, attention_weights, draw_attention

    for source, answer in zip(found.sources, found.answers, strict=True):
        words = session.tokens.words(source), session.tokens.words([*answer.tokens, END])
        weights_ts = attention_weights(session.model, source, [START, *answer.tokens])
        if isinstance(show, Path):
            draw_attention(show, weights_ts, *words)
        else:
            click.echo(attention_table(weights_ts, *words) + "\n")
