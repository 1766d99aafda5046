"""`rosettaformer generate`."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click

from .lines import Lines, batches
from .options import BATCH_SIZE, MODEL_OPTIONS, Choice, Grouped, folder_argument, model_options, open_both, section

_COUNT, _NATURAL = click.IntRange(min=1), click.IntRange(min=0)
# option -> the option without which it has no effect
_OF_SAMPLING, _OF_BEAMS = ("temperature", "top_k", "top_p", "seed"), ("length_penalty", "early_stopping")


@click.command(cls=Grouped)
@folder_argument
@click.argument("file", type=click.File("rb"), required=False, metavar="[FILE]")
@section(
    "Prompts",
    click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="A text to continue; repeat it for several."),
    click.option("--batch-size", type=BATCH_SIZE, default=8, show_default=True, help="Prompts that are continued together."),
    click.option("--json", "as_json", is_flag=True, help="Print an object an answer: line, answer, prompt, text, tokens, score."),
)
@section(
    "Length",
    click.option("--max-new-tokens", type=_COUNT, help="Tokens of an answer at most, its end token counted. [default: 20]"),
    click.option("--min-new-tokens", type=_NATURAL, help="Tokens before the end token at least. [default: 0]"),
    click.option("--eos-token-id", type=_NATURAL, multiple=True, help="A token that ends an answer; repeat it for several."),
)
@section(
    "Search",
    click.option("--num-beams", type=_COUNT, help="Beams; 1 is greedy search, or sampling. [default: 1]"),
    click.option("--num-return-sequences", type=_COUNT, help="Answers to a prompt, of sampling or beams. [default: 1]"),
    click.option("--length-penalty", type=float, help="A beam of n new tokens has the score log p / n^x. [default: 1]"),
    click.option("--early-stopping", type=Choice(["true", "false", "never"]), help="When beams end. [default: false]"),
)
@section(
    "Sampling",
    click.option("--do-sample/--no-do-sample", default=None, help="Draw tokens; otherwise the likeliest. [default: no]"),
    click.option("--temperature", type=float, help="Divides the logits. [default: 1]"),
    click.option("--top-k", type=_NATURAL, help="Draw from the k likeliest tokens; 0: from all. [default: 50]"),
    click.option("--top-p", type=float, help="Draw from the likeliest tokens of that probability together. [default: 1]"),
    click.option("--seed", type=_NATURAL, help="Of what is drawn. [default: 0]"),
)
@section(
    "Penalties",
    click.option("--repetition-penalty", type=float, help="Makes a token that the text holds less likely. [default: 1]"),
    click.option("--no-repeat-ngram-size", type=_NATURAL, help="No run of this many tokens appears twice; 0: any may. [default: 0]"),
)
@model_options
def generate(folder: Path, file: BinaryIO | None, prompts: tuple[str, ...], batch_size: int, as_json: bool, **options: Any) -> None:
    """Continue texts with the model in DIR: a decoder-only model, such as GPT-2, as Hugging Face folders hold.

    Prompts are --prompt, or the lines of FILE or standard input. Options are those of `generate` of transformers; their defaults are those
    of DIR/generation_config.json, and then those below. Tokens are printed as they come; of beams the answers when they are found.
    An empty prompt begins with the model's bos_token_id. A prompt that cannot be continued has an error in place of an answer, and the
    exit code is 2.
    """
    several = batches("prompt", prompts, file, batch_size)
    chosen = {name: options.pop(name) for name in list(options) if name not in MODEL_OPTIONS}
    given = _given(chosen)
    found, model = open_both(folder, "generate", **options)
    from ..inference.options import GenerationOptions

    settings = GenerationOptions(**{**found.defaults, **given})
    _refuse_without_effect(given, settings)
    if outside := [id_ for id_ in settings.eos_token_id if id_ >= model.config.target_vocabulary]:
        said = f"eos_token_id must lie in 0 .. {model.config.target_vocabulary - 1}; got {', '.join(map(str, outside))}"
        if "eos_token_id" in given:
            raise ValueError(said)
        click.echo(f"note: {said} of {folder}, which ends nothing", err=True)
    rows = Lines("prompt")
    for lines in several:
        for line in _answers(found, model, lines, settings, rows, as_json, len(prompts) != 1):
            click.echo(line, nl=False)
    rows.end()


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that the user gave, as fields of `GenerationOptions`."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if "early_stopping" in given:
        given["early_stopping"] = {"true": True, "false": False}.get(given["early_stopping"], given["early_stopping"])
    return given


def _refuse_without_effect(given: dict[str, Any], settings: Any) -> None:
    """Raises ValueError on an option of another kind of search."""
    idle = [] if settings.do_sample else [name for name in _OF_SAMPLING if name in given]
    idle += [] if settings.num_beams > 1 else [name for name in _OF_BEAMS if name in given]
    if idle:
        name = idle[0]
        needs = "--do-sample" if name in _OF_SAMPLING else "--num-beams of at least 2"
        raise ValueError(f"--{name.replace('_', '-')} has no effect without {needs}")


def _answers(
    found: Any, model: Any, lines: list[tuple[str, str]], settings: Any, rows: Lines, as_json: bool, several: bool
) -> Iterator[str]:
    """Yields what to print of the answers to these texts, in their order, as soon as it is known."""
    from ..inference.generation import Answer
    from ..inference.generation import generate as run

    page = _Page(found.tokenizer, settings.num_return_sequences, rows.count, as_json, several)
    prompts = []
    for text, bad in lines:
        ids, problem = ([], bad) if bad else _prompt(found, model, text, settings)
        page.expect(text, ids, problem)
        rows.add(problem)
        prompts.append(ids)
    yield page.ready()
    good = [place for place, prompt in enumerate(prompts) if prompt]
    for event in run(model, [prompts[place] for place in good], settings) if good else ():
        event = dataclasses.replace(event, prompt=good[event.prompt])
        if isinstance(event, Answer):
            page.end(event)
        else:
            page.add(event.prompt, event.answer, event.id)
        yield page.ready()


def _prompt(found: Any, model: Any, text: str, settings: Any) -> tuple[list[int], str]:
    """Returns the ids of a text, or none and the reason why it cannot be continued."""
    config, first = model.config, settings.bos_token_id
    try:
        ids: list[int] = found.tokenizer.prompt(text)
        if not ids and (first is None or first >= config.target_vocabulary):
            raise ValueError("a prompt must have at least one token; it is empty, and the model has no bos_token_id")
        settings.most(len(ids or [first]), config.max_positions)
    except ValueError as error:
        return [], str(error)
    return ids or [first], ""


class _Page:
    """The answers, each printed after those before it: the first unfinished one as it comes, the others when their turn comes."""

    def __init__(self, tokenizer: Any, answers: int, number: int, as_json: bool, several: bool) -> None:
        self._tokenizer, self._answers, self._number, self._as_json = tokenizer, answers, number, as_json
        self._several = several or answers > 1
        self._texts: list[str] = []
        self._turns: list[tuple[int, int]] = []
        self._pieces: dict[tuple[int, int], Any] = {}
        self._told: dict[tuple[int, int], int] = {}
        self._waiting: dict[tuple[int, int], str] = {}
        self._text: dict[tuple[int, int], str] = {}
        self._ended = set[tuple[int, int]]()

    def expect(self, text: str, prompt: list[int], problem: str) -> None:
        """Makes room for the answers to one more prompt, or for the reason why there is none."""
        from ..inference.tokenizer import Pieces

        place = len(self._texts)
        self._texts.append(text)
        if problem:
            self._turns.append((place, 0))
            self._ended.add((place, 0))
            said = {"line": self._number + place + 1, "prompt": text, "error": problem}
            row = json.dumps(said, ensure_ascii=False) if self._as_json else f"{self._mark(place, 0, 1)}error: {problem}"
            self._waiting[place, 0] = f"{row}\n"
            return
        for turn in ((place, answer) for answer in range(self._answers)):
            self._turns.append(turn)
            self._pieces[turn], self._told[turn], self._text[turn] = Pieces(self._tokenizer, prompt), 0, ""
            self._waiting[turn] = "" if self._as_json else self._mark(*turn, self._answers) + text

    def _mark(self, prompt: int, answer: int, answers: int) -> str:
        which = f"{self._number + prompt + 1}" + (f".{answer + 1}" if answers > 1 else "")
        return f"[{which}] " if self._several else ""

    def add(self, prompt: int, answer: int, id_: int) -> None:
        """Adds a token."""
        self._write((prompt, answer), self._pieces[prompt, answer].add(id_))
        self._told[prompt, answer] += 1

    def end(self, found: Any) -> None:
        """Ends an answer."""
        turn = found.prompt, found.answer
        for id_ in found.tokens[self._told[turn] :]:
            self.add(*turn, id_)
        self._write(turn, self._pieces[turn].end())
        self._ended.add(turn)
        if self._as_json:
            line, answer = self._number + found.prompt + 1, found.answer + 1
            fields = {"line": line, "answer": answer, "prompt": self._texts[found.prompt], "text": self._text[turn]}
            self._waiting[turn] = json.dumps(fields | {"tokens": found.tokens, "score": found.score}, ensure_ascii=False)
        self._waiting[turn] += "\n"

    def ready(self) -> str:
        """Yields what can be printed already."""
        text = ""
        while self._turns:
            turn = self._turns[0]
            text, self._waiting[turn] = text + self._waiting[turn], ""
            if turn not in self._ended:
                break
            self._turns.pop(0)
        return text

    def _write(self, turn: tuple[int, int], piece: str) -> None:
        self._text[turn] += piece
        if not self._as_json:
            self._waiting[turn] += piece
