"""`rosettaformer generate`."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click
from click.core import ParameterSource

from ..common.extras import require
from ..common.reading import parse_settings
from ..files.artefacts import meanings
from ..use.inference.options import GenerationOptions, listed
from . import words
from .answer_page import Page
from .artefacts import OPTIONS as OF_ARTEFACTS
from .artefacts import artefact_options
from .lines import Lines, batches
from .meshes import mesh_option, on_mesh
from .options import BATCH_SIZE, MODEL_OPTIONS, Grouped, examples, folder_argument, model_options, open_both, require_model, section

_COUNT, _NATURAL = click.IntRange(min=1), click.IntRange(min=0)
# options that need sampling, and options that need beams
_OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "seed")
_OF_BEAMS = ("length_penalty", "early_stopping")
_FLAGS = ("max_new_tokens", "num_beams", "do_sample", "temperature", "top_k", "top_p", "seed")
_BY_NAME = [field.name for field in dataclasses.fields(GenerationOptions) if field.name not in _FLAGS]


@click.command(
    cls=Grouped,
    epilog=examples("generate llama/ --prompt 'Once upon a time'", "generate llama/ --chat --prompt 'Hello' --do-sample --backend jax"),
)
@folder_argument
@click.argument("file", type=click.File("rb"), required=False, metavar="[FILE]")
@section(
    "Prompts",
    click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="Text to continue; repeatable."),
    click.option("--chat", is_flag=True, help="Treat prompts as chat messages, with the chat template of DIR."),
    click.option("--system", metavar="TEXT", help="System message for --chat."),
    click.option("--batch-size", type=BATCH_SIZE, default=8, show_default=True, metavar="N", help="Prompts per batch."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object per answer: line, answer, prompt, text, tokens, score."),
)
@section(
    "Search",
    click.option("--max-new-tokens", type=_COUNT, metavar="N", help="Maximum length of an answer, with its end token. [default: 20]"),
    click.option("--num-beams", type=_COUNT, metavar="N", help="Number of beams; 1 is greedy search or sampling. [default: 1]"),
    click.option("--do-sample/--no-do-sample", default=None, help="Sample tokens instead of taking the most likely one. [default: no]"),
    click.option("--temperature", type=float, metavar="X", help="Divisor of the logits. [default: 1]"),
    click.option("--top-k", type=_NATURAL, metavar="K", help="Sample from the K most likely tokens; 0 means all. [default: 50]"),
    click.option("--top-p", type=float, metavar="P", help="Sample from the most likely tokens with total probability P. [default: 1]"),
    click.option("--seed", type=_NATURAL, metavar="N", help="Seed for sampling. [default: 0]"),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="Other option of transformers' generate, such as stop_strings=END or bad_words_ids=[[7],[8,9]]; repeatable: "
        f"{', '.join(_BY_NAME)}.",
    ),
)
@model_options
@section("Model", mesh_option)
@section(
    "Exported model",
    click.option("--artefact", type=click.Path(path_type=Path), metavar="FILE", help="Exported model to run; DIR then needs no weights."),
    artefact_options,
)
def generate(system: str | None, chat: bool, mesh: Any, backend: str, device: str, **options: Any) -> None:
    """Generate text with a decoder-only model or an encoder-decoder.

    DIR is a Hugging Face checkpoint of a model such as GPT-2, Llama or BART. The prompts are those
    of --prompt, or the lines of FILE or standard input; an encoder-decoder reads them as sources.
    An empty prompt starts with bos_token_id. With --chat, a prompt is a user message, or a JSON
    list of messages with role and content.

    The options are those of `generate` in transformers; the defaults are those of
    DIR/generation_config.json. If a prompt fails, its output is an error and the exit code is 2.
    """
    if system is not None and not chat:
        raise ValueError("--system has no effect without --chat")
    _refuse_by_artefact(options)
    if chat:
        require("--chat", {"inference": ("transformers", "jinja2")})
    require_model(options["folder"], *([] if options["artefact"] else [backend]))
    on_mesh(mesh, backend, device, lambda: _generate(system=system, chat=chat, mesh=mesh, backend=backend, device=device, **options))


def _generate(
    folder: Path, file: BinaryIO | None, prompts: tuple[str, ...], chat: bool, system: str | None, batch_size: int, as_json: bool,
    artefact: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Continues the prompts. On a mesh, only the first process reads and prints."""
    several = batches("prompt", prompts, file, batch_size)
    chosen = {name: options.pop(name) for name in list(options) if name not in (*MODEL_OPTIONS, *OF_ARTEFACTS)}
    given = _given(chosen)
    found, model = _opened(folder, artefact, **options)
    settings = GenerationOptions(**{**found.defaults, **given})
    _refuse_without_effect(given, settings)
    if "decoder_start_token_id" in given and not model.config.encoder_layers:
        raise ValueError("decoder_start_token_id has no effect on a decoder-only model")
    if outside := [id_ for id_ in settings.eos_token_id if id_ >= model.config.target_vocabulary]:
        said = f"eos_token_id must be in 0 .. {model.config.target_vocabulary - 1}; got {', '.join(map(str, outside))}"
        if "eos_token_id" in given:
            raise ValueError(said)
        if model.speaks:
            click.echo(words.no_end(said, folder), err=True)
    rows, encode = Lines("prompt"), _encoder(found, system) if chat else found.tokenizer.prompt
    for lines in model.shared(several):
        page = Page(
            found.tokenizer,
            settings.num_return_sequences,
            rows.count,
            as_json,
            len(prompts) != 1,
            echo=not (chat or model.config.encoder_layers),
        )
        for line in _answers(model, encode, lines, settings, rows, page, functools.partial(found.tokenizer.text, special=True)):
            if model.speaks:
                click.echo(line, nl=False)
    rows.end()


def _refuse_by_artefact(options: dict[str, Any]) -> None:
    """Raises ValueError on options that --artefact excludes or requires."""
    if options["artefact"] is None:
        if idle := [name for name in OF_ARTEFACTS if options[name]]:
            raise ValueError(f"--{idle[0].removesuffix('s').replace('_', '-')} has no effect without --artefact")
        return
    source = click.get_current_context().get_parameter_source
    if given := [name for name in ("backend", "dtype", "mesh") if source(name) is ParameterSource.COMMANDLINE]:
        raise ValueError(f"--{given[0]} cannot be used with --artefact: an exported model has its own runtime and dtype")


def _opened(
    folder: Path, artefact: Path | None, tensors: tuple[str, ...], function: str, allow_code: bool, **options: Any
) -> tuple[Any, Any]:
    """Returns the folder and its model, or the exported model.

    Raises MissingBackend if its runtime is not installed.
    """
    if artefact is None:
        return open_both(folder, "generate", **options)
    from ..use.inference.artefact_model import open_with_artefact

    return open_with_artefact(folder, artefact, allow_code, meanings.parse(tensors), function, ignore=options["ignore"])


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options given by the user, as fields of `GenerationOptions`."""
    given = {name: value for name, value in options.items() if name != "settings" and value is not None}
    told = parse_settings(options["settings"], GenerationOptions, "generation option")
    if twice := [name for name in told if name in given]:
        raise ValueError(f"{twice[0]} is set twice: by --{twice[0].replace('_', '-')} and by --set")
    return listed(given | told)


def _refuse_without_effect(given: dict[str, Any], settings: Any) -> None:
    """Raises ValueError on an option that has no effect in this kind of search."""
    idle = [] if settings.do_sample else [name for name in _OF_SAMPLING if name in given]
    idle += [] if settings.num_beams > 1 else [name for name in _OF_BEAMS if name in given]
    if idle:
        name = idle[0]
        needs = "--do-sample" if name in _OF_SAMPLING else "--num-beams 2 or more"
        raise ValueError(f"{name} has no effect without {needs}")


def _answers(
    model: Any, encode: Callable[[str], list[int]], lines: list[tuple[str, str]], settings: Any, rows: Lines, page: Page, text: Any
) -> Iterator[str]:
    """Yields the output for these texts, in order and as early as possible.

    text: converts ids to text.
    """
    from ..use.inference.generation import Answer
    from ..use.inference.generation import generate as run

    prompts = []
    for line, bad in lines:
        ids, problem = ([], bad) if bad else _prompt(model, encode, line, settings)
        page.expect(line, [settings.start_id] if ids and model.config.encoder_layers else ids, problem)
        rows.add(problem)
        prompts.append(ids)
    yield page.ready()
    good = [place for place, prompt in enumerate(prompts) if prompt]
    events = run(model, [prompts[place] for place in good], settings, text) if good else ()
    for event in events:
        event = dataclasses.replace(event, prompt=good[event.prompt])
        if isinstance(event, Answer):
            page.end(event)
        else:
            page.add(event.prompt, event.answer, event.id)
        yield page.ready()


def _prompt(model: Any, encode: Callable[[str], list[int]], text: str, settings: Any) -> tuple[list[int], str]:
    """Returns the ids of a prompt, or no ids and the problem."""
    from ..use.inference.generation import check_sources

    config, first = model.config, settings.bos_token_id
    try:
        ids = encode(text)
        if not ids and (first is None or first >= config.target_vocabulary):
            raise ValueError("the prompt is empty and the model has no bos_token_id")
        if config.encoder_layers:
            check_sources(config, [ids or [first]])
        settings.most(1 if config.encoder_layers else len(ids or [first]), config.max_positions)
    except ValueError as error:
        return [], str(error)
    return ids or [first], ""


def _encoder(found: Any, system: str | None) -> Callable[[str], list[int]]:
    """Returns a function from a user message, or a conversation, to ids."""
    from ..use.inference.tokenizer import messages_of

    if not found.tokenizer.chat:
        raise ValueError(f"{found.path} has no chat template: add chat_template.jinja, or an entry in tokenizer_config.json")
    return lambda text: list(found.tokenizer.conversation(messages_of(text, system)))
