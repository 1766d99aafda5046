"""A folder as people have it: a model, its tokenizer, its labels and its generation options. All of its problems are reported at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reference_numpy import TransformerConfig

from ...common.reading import read_object
from ...files import checkpoints
from ...files.checkpoints import Checkpoint, recognise
from ...files.checkpoints.hugging_face.essential import essential
from ...files.checkpoints.hugging_face.reading import CONFIG, GENERATION, described
from .classification import Labels, labels_of
from .options import defaults
from .tokenizer import Tokenizer

# fields that change no answer of a decoder: how its parameters are held, its training, and what other models have
_WITHOUT_EFFECT = {
    "tie_logits", "share_embeddings", "source_vocabulary", "padding_id", "dropout_rate", "attention_dropout_rate", "hidden_dropout_rate",
    "classifier_dropout_rate",
}  # fmt: skip


@dataclass(frozen=True)
class Folder:
    """The content of a folder. defaults: its generation options."""

    path: Path
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    defaults: Mapping[str, Any]
    labels: Labels


def open_folder(path: Path, use: str, ignore: Sequence[str] = (), weights: bool = True, config: TransformerConfig | None = None) -> Folder:
    """Opens the folder for a use: "generate" needs a decoder-only model, "classify" a classification head, "fill" a masked language head,
    "encode" an encoder-only model; "attend" takes any. ignore: see `hugging_face.view`; an unused pooler may be absent.
    weights: whether the model's are in the folder; otherwise the checkpoint has no parameters, and is of the config of an artefact, which
    config.json must not contradict, or, if it says none, of that of config.json.

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
    read = (_checkpoint, use) if weights else (_described, config)
    checkpoint = tried(read[0], path, read[1], ignore)
    config = checkpoint and checkpoint.config
    vocabulary = None if config is None else config.source_vocabulary if config.encoder_layers else config.target_vocabulary
    if config and (problem := _unfit(config, use)):
        problems.append(problem)
    tokenizer = tried(Tokenizer, path, vocabulary, _entries(path, checkpoint))
    given = tried(defaults, checkpoint.foreign) if checkpoint and use == "generate" else {}
    labels = tried(labels_of, checkpoint) if checkpoint and use == "classify" else Labels((), "none")
    refuse(problems)
    return Folder(path, checkpoint, tokenizer, given, labels)


def _checkpoint(path: Path, use: str, ignore: Sequence[str]) -> Checkpoint:
    format = checkpoints.recognised(path)
    spare = ("pooler",) if format == "hugging-face" and use != "classify" else ()
    return checkpoints.view(path, format, ignore=ignore, spare=spare)


def _described(path: Path, config: TransformerConfig | None, ignore: Sequence[str]) -> Checkpoint:
    """Returns what a folder says of a model whose weights lie elsewhere."""
    if config and not (path / CONFIG).exists():
        said = {GENERATION: read_object(path / GENERATION)} if (path / GENERATION).exists() else {}
        return Checkpoint(config, {}, said)
    found = described(path, ignore=ignore)
    if config is None:
        return found
    own, other = essential(config), essential(found.config)
    differing = [name for name in own | other if name not in _WITHOUT_EFFECT and own.get(name) != other.get(name)]
    if differing:
        of = ", ".join(f"{name} {other.get(name)} and {own.get(name)}" for name in differing)
        raise ValueError(f"{path / CONFIG} and the manifest of the artefact must be of the same model; they have {of}")
    return replace(found, config=config)


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
