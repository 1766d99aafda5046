"""A folder as people have it: a model, its tokenizer, its labels and its generation options. All of its problems are reported at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import checkpoints
from ..checkpoints import Checkpoint, recognise
from ..checkpoints.hugging_face.reading import CONFIG
from .labels import Labels, labels_of
from .options import defaults
from .tokenizer import Tokenizer


@dataclass(frozen=True)
class Folder:
    """The content of a folder. defaults: its generation options."""

    path: Path
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    defaults: Mapping[str, Any]
    labels: Labels


def open_folder(path: Path, use: str, leave_out: Sequence[str] = (), ignore: Sequence[str] = ()) -> Folder:
    """Opens the folder for a use: "generate" needs a decoder-only model, "classify" a classification head, "fill" a masked language head,
    "encode" an encoder-only model; "attend" takes any. leave_out, ignore: see `hugging_face.view`; an unused pooler may be absent.

    Raises ValueError listing every problem.
    """
    problems: list[str] = []

    def tried(action: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except ValueError as error:
            problems.append(str(error))

    if not path.is_dir():
        raise ValueError(f"{path} must be a folder with a model and its tokenizer")
    checkpoint = tried(_checkpoint, path, use, leave_out, ignore)
    config = checkpoint and checkpoint.config
    vocabulary = None if config is None else config.source_vocabulary if config.encoder_layers else config.target_vocabulary
    if config and (problem := _unfit(config, use)):
        problems.append(problem)
    tokenizer = tried(Tokenizer, path, vocabulary, _entries(path, checkpoint))
    given = tried(defaults, checkpoint.foreign) if checkpoint and use == "generate" else {}
    labels = tried(labels_of, checkpoint) if checkpoint and use == "classify" else Labels((), "none")
    refuse(problems)
    return Folder(path, checkpoint, tokenizer, given, labels)


def _checkpoint(path: Path, use: str, leave_out: Sequence[str], ignore: Sequence[str]) -> Checkpoint:
    format = checkpoints.recognised(path)
    spare = ("pooler",) if format == "hugging-face" and use != "classify" else ()
    return checkpoints.view(path, format, leave_out=leave_out, ignore=ignore, spare=spare)


def _entries(path: Path, checkpoint: Checkpoint | None) -> Mapping[str, Any]:
    """Returns the entries of config.json, as far as it can be read."""
    if checkpoint:
        entries: Mapping[str, Any] = checkpoint.foreign.get(CONFIG, {})
        return entries
    try:
        return recognise.hugging_face_config(path)
    except (OSError, ValueError):
        return {}


def refuse(problems: Iterable[str]) -> None:
    """Raises one ValueError with every problem, if there are any."""
    if text := "\n  ".join(problems):
        raise ValueError(text)


def _unfit(config: Any, use: str) -> str:
    """Returns why a model of that config cannot be used so; empty if it can."""
    has = f"got encoder_layers={config.encoder_layers}, decoder_layers={config.decoder_layers}"
    if use == "generate" and (config.encoder_layers or not config.decoder_layers):
        return f"prompts are continued by a decoder-only model, as GPT-2 or Llama is; {has}"
    if use not in ("generate", "attend") and (config.decoder_layers or not config.encoder_layers):
        return f"texts are read by an encoder-only model, as BERT is; {has}"
    if use == "classify" and not config.classes:
        return "classes need a classification head; the model has none (classes=0)"
    if use == "fill" and not config.masked_language_head:
        return "masks are filled by a masked language head; the model has none (masked_language_head=False)"
    return ""
