"""Opens a folder with a model, tokenizer, labels and options, and reports all problems at once."""

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

# fields that do not affect a decoder's output
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
    """Opens a folder for a use.

    "generate" needs a decoder, "classify" a classification head, "fill" a masked
    language head, "encode" an encoder-only model; "attend" takes any model. ignore: see
    `hugging_face.view`; an unused pooler may be missing. weights: False if an exported model has
    the weights; the result then has no parameters. config: the exported model's, which config.json
    must not contradict; None to use that of config.json. Raises ValueError listing every problem.
    """
    problems: list[str] = []

    def tried(action: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except ValueError as error:
            problems.append(str(error))

    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; name the folder of a model and its tokenizer")
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
    """Returns the config and options of a model whose weights are in another file."""
    if config and not (path / CONFIG).exists():
        said = {GENERATION: read_object(path / GENERATION)} if (path / GENERATION).exists() else {}
        return Checkpoint(config, {}, said)
    found = described(path, ignore=ignore)
    if config is None:
        return found
    own, other = essential(config), essential(found.config)
    differing = [name for name in own | other if name not in _WITHOUT_EFFECT and own.get(name) != other.get(name)]
    if differing:
        of = ", ".join(f"{name} is {other.get(name)} and {own.get(name)}" for name in differing)
        raise ValueError(f"{path / CONFIG} and the exported model's manifest describe different models: {of}. Use the right folder")
    return replace(found, config=config)


def _entries(path: Path, checkpoint: Checkpoint | None) -> Mapping[str, Any]:
    """Returns the entries of config.json, or none if it cannot be read."""
    if checkpoint:
        entries: Mapping[str, Any] = checkpoint.foreign.get(CONFIG, {})
        return entries
    try:
        return recognise.hugging_face_config(path)
    except (OSError, ValueError):
        return {}


def refuse(problems: Iterable[str]) -> None:
    """Raises one ValueError that lists every problem, if there are any."""
    if text := "\n  ".join(problems):
        raise ValueError(text)


def _unfit(config: Any, use: str) -> str:
    """Returns why a model with this config does not support the use; empty if it does."""
    has = f"got encoder_layers={config.encoder_layers}, decoder_layers={config.decoder_layers}"
    if use == "generate" and not config.decoder_layers:
        return f"generating text needs a model with a decoder, such as GPT-2, Llama or BART; {has}"
    if use not in ("generate", "attend") and (config.decoder_layers or not config.encoder_layers):
        return f"this command needs an encoder-only model, such as BERT; {has}"
    if use == "classify" and not config.classes:
        return "classifying needs a classification head; the model has none (classes=0)"
    if use == "fill" and not config.masked_language_head:
        return "filling masks needs a masked language head; the model has none (masked_language_head=False)"
    return ""
