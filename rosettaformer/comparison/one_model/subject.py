"""The model of a report and its input tokens."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, decoding, parameters
from reference_numpy.strategy import Strategy

from ...common.extras import require
from ...files import checkpoints
from ...files.checkpoints.hugging_face.reading import CONFIG
from ...judge.stored import Stored, in_c_order
from ...use.inference.classification import Labels, labels_of
from ...use.training.checkpoint_files import digest
from ...use.training.checkpoint_store import Store
from ...use.training.manifest import Manifest, read_tokens
from ...use.training.run_log import read_log

LARGE = 20_000_000  # number of parameters from which processes run one at a time
LONGEST = 64  # maximum number of tokens of a text
RANDOM = 24  # number of random tokens without a text
CELLS = 800_000  # maximum number of attention weights on a page
UNLABELLED = Labels((), "none")
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")

Inputs = dict[str, Any]


def numbered(ids: Sequence[int]) -> list[str]:
    """Returns placeholders for tokens without a tokenizer."""
    return [f"#{id_}" for id_ in ids]


@dataclass(frozen=True)
class Subject:
    """A model and one row of tokens.

    file: source of the cases: the folder, or the file of a run's newest model. inputs: see
    `reference_numpy.states`, without None. tokens: token texts, by side. words: converts ids to
    texts. labels: names of the classes. mask_id: the mask token. notes: limits and choices.
    digests: SHA-256 by file name. log: entries of a run's log.
    """

    path: Path
    file: Path
    kind: str
    config: TransformerConfig
    parameters: Mapping[str, np.ndarray]
    inputs: Inputs
    tokens: Mapping[str, Sequence[str]]
    words: Callable[[Sequence[int]], Sequence[str]] = numbered
    labels: Labels = UNLABELLED
    mask_id: int | None = None
    texts: Sequence[str] = ()
    notes: Sequence[str] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    log: Sequence[Mapping[str, Any]] = ()

    @property
    def count(self) -> int:
        """Number of parameters; tied ones count once."""
        return parameters.count(self.config)

    @property
    def dtype(self) -> str:
        return str(next(iter(self.parameters.values())).dtype)


def open_subject(path: Path, text: str | None = None, pair: str | None = None, seed: int = 0, ignore: Sequence[str] = ()) -> Subject:
    """Opens a canonical file, a Hugging Face checkpoint or a run of `rosettaformer train`.

    Tokenizes the texts and keeps the first tokens; without a text, draws random tokens. Raises
    ValueError on an invalid checkpoint, and on a text for a model without a tokenizer.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    opened = _run if path.is_dir() and Manifest.exists(path) else _checkpoint
    if opened is _run and ignore:
        raise ValueError(f"--ignore {ignore[0]} has no effect on a run of `rosettaformer train`")
    subject = opened(path, text, pair, ignore=ignore)
    if text is None:
        subject = _with_random(subject, seed)
    subject = _limited(subject)
    folder = subject.file.is_dir()
    weights = [file for pattern in WEIGHTS for file in subject.file.glob(pattern)] if folder else [subject.file]
    return dataclasses.replace(subject, digests={file.name: digest(file) for file in sorted(weights)})


def _checkpoint(path: Path, text: str | None, pair: str | None, **options: Sequence[str]) -> Subject:
    kind = checkpoints.own_format(path)
    checkpoint = checkpoints.view(path, kind, **options)
    subject = Subject(path, path, kind, *_model(checkpoint), {}, {}, labels=labels_of(checkpoint))
    if text is None:
        return subject
    if kind != "hugging-face":
        raise ValueError(f"--text needs a tokenizer, and {path} is a canonical file without one; use a Hugging Face checkpoint or a run")
    require(f"the tokenizer of {path}", {"inference": ("transformers",)})
    from ...use.inference.attention import inputs_of
    from ...use.inference.tokenizer import Tokenizer

    config = subject.config
    tokenizer = Tokenizer(path, config.source_vocabulary if config.encoder_layers else config.target_vocabulary, checkpoint.foreign[CONFIG])
    inputs, source, target = inputs_of(config, tokenizer, text, pair)
    given = {name: value for name, value in inputs.items() if value is not None}
    tokens = {"source": source, "target": target}
    mask_id, texts = tokenizer.id_of("mask_token"), [text] if pair is None else [text, pair]
    return dataclasses.replace(subject, inputs=given, tokens=tokens, words=tokenizer.words, mask_id=mask_id, texts=texts)


def _run(path: Path, text: str | None, pair: str | None, **options: Sequence[str]) -> Subject:
    manifest = Manifest.read(path)
    model = Store(path).load(manifest.config, "last")
    log = read_log(path / "log.jsonl") if (path / "log.jsonl").is_file() else []
    subject = Subject(path, Store(path).models()[-1], "run", *_model(model), {}, {}, log=log)
    if text is None:
        return subject
    from ...use.training.tokens import END, START

    tokens = read_tokens(path, manifest)
    source = np.array(tokens.source([text]))[:, :LONGEST]
    notes: list[str] = []
    if pair is None:
        strategy = Strategy(start_id=START, end_id=END, max_new_tokens=LONGEST)
        nested = parameters.nest(subject.parameters)
        answer = decoding.greedy_search(nested, subject.config, source, strategy)["token_bn"][0].tolist()
        target = [START, *(answer[: answer.index(END) + 1] if END in answer else answer)]
        notes.append("the target is the reference's greedy translation")
    else:
        target = tokens.target([pair])[0]
    inputs: Inputs = {"source": source, "target": np.array([target])}
    words = {"source": tokens.words(source[0].tolist()), "target": tokens.words(target)}
    texts = [text] if pair is None else [text, pair]
    return dataclasses.replace(subject, inputs=inputs, tokens=words, words=tokens.words, texts=texts, notes=notes)


def _model(checkpoint: checkpoints.Checkpoint) -> tuple[TransformerConfig, Mapping[str, np.ndarray]]:
    """Returns the config and the parameters, which are read when needed as contiguous arrays."""
    return checkpoint.config, Stored.of(checkpoint).then(in_c_order)


def random_ids(config: TransformerConfig, side: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Returns random ids from a side's vocabulary, without the padding id."""
    vocabulary = getattr(config, f"{side}_vocabulary")
    ids = rng.integers(0, vocabulary, shape)
    return np.where(ids == config.padding_id, (ids + 1) % vocabulary, ids)


def _with_random(subject: Subject, seed: int) -> Subject:
    """Returns the subject with random ids on every side of the model."""
    config, rng = subject.config, np.random.default_rng(seed)
    length = min(RANDOM, config.max_positions or RANDOM)
    sides = (("source", config.encoder_layers), ("target", config.decoder_layers))
    inputs = {side: random_ids(config, side, (1, length), rng) for side, layers in sides if layers}
    tokens = {side: numbered(ids[0]) for side, ids in inputs.items()}
    notes = [f"without a text, the tokens are {length} random ids (seed {seed})"]
    return dataclasses.replace(subject, inputs=inputs, tokens=tokens, notes=notes)


def _limited(subject: Subject) -> Subject:
    """Returns the subject, truncated to what the page can show and the model has positions for."""
    config = subject.config
    layers = config.encoder_layers + config.decoder_layers * (2 if config.cross_attention else 1)
    most = min(LONGEST, int((CELLS / max(1, layers * config.heads)) ** 0.5), config.max_positions or LONGEST)
    lengths = {side: len(words) for side, words in subject.tokens.items() if len(words)}
    if max(lengths.values()) <= most:
        return subject
    notes = [
        *subject.notes,
        *(f"cut to the first {most} of {count} {side} tokens" for side, count in lengths.items() if count > most),
    ]
    inputs = {name: array[:, :most] for name, array in subject.inputs.items()}
    tokens = {side: words[:most] for side, words in subject.tokens.items()}
    return dataclasses.replace(subject, inputs=inputs, tokens=tokens, notes=notes)
