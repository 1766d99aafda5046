"""`run.json`: what the run in a folder is."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.recipe import Recipe

from ..checkpoints.reading import read_text
from ..checkpoints.replacing import replacing
from . import schema, settings
from .answers import padded_length
from .folder import check, dump, load
from .tasks import TASKS
from .tokens import Tokens, digest

__all__ = ["Manifest", "read_tokens", "write_tokens"]

FORMAT, VERSION = "rosettaformer-run", 2
_FILE, _TOKENS = "run.json", "tokens.json"
_FIELDS: schema.Table = {
    "format": schema.choice(FORMAT), "version": schema.choice(VERSION), "tokens": schema.text(), "data": schema.text(),
    "longest": schema.integer(1), **dict.fromkeys(("task", "fixed", "free", "config", "recipe", "limits"), schema.OBJECT),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """task: its name and options. fixed, free: settings. tokens, data: fingerprints. limits: of answers, by padded source length.

    longest: the most tokens of a source in training.
    """

    task: dict[str, Any]
    fixed: dict[str, Any]
    free: dict[str, Any]
    config: TransformerConfig
    recipe: Recipe
    tokens: str
    data: str
    limits: dict[int, int]
    longest: int

    @staticmethod
    def exists(folder: Path) -> bool:
        return (folder / _FILE).exists()

    def write(self, folder: Path) -> None:
        """Writes it into the folder, whole or not at all."""
        fields = asdict(self) | {"config": self.config.to_dict(), "recipe": self.recipe.to_dict()}
        with replacing(folder / _FILE) as temporary:
            temporary.write_text(dump({"format": FORMAT, "version": VERSION} | fields), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of a folder; raises ValueError where there is none, where it is damaged, and where the folder holds links."""
        path = folder / _FILE
        check(folder)
        if not path.is_file():
            raise ValueError(f"{folder} holds no run: {path} does not exist")
        try:
            return cls._parse(load(path, _FIELDS))
        except ValueError as error:
            raise ValueError(f"{path} is damaged or no run's:\n  {error}") from None

    @classmethod
    def _parse(cls, fields: dict[str, Any]) -> "Manifest":
        del fields["format"], fields["version"]
        fixed, limits = fields["fixed"], fields["limits"]
        problems = schema.problems(fixed, settings.FIXED_FIELDS, "fixed") + schema.problems(fields["free"], settings.FREE_FIELDS, "free")
        problems += schema.problems({"name": fields["task"].get("name")}, {"name": schema.choice(*TASKS)}, "task")
        if problems := problems or [*_limit_problems(limits, fields["longest"], fixed["max_length"])]:
            raise ValueError("\n  ".join(problems))
        config, recipe = TransformerConfig.from_dict(fields["config"]), Recipe.from_dict(fields["recipe"])
        return cls(**fields | {"limits": {int(length): limit for length, limit in limits.items()}, "config": config, "recipe": recipe})


def _limit_problems(limits: Mapping[str, Any], longest: int, most: int) -> Iterator[str]:
    """What no training can have seen: an answer or a source that is longer than those that are left out."""
    lengths = {str(padded_length(length)) for length in range(1, most + 1)}
    good, wanted = schema.integer(1, most)
    if not limits or any(length not in lengths or not good(limit) for length, limit in limits.items()):
        yield f"limits must map padded lengths, of which 16 is the least, each to {wanted}; got {limits!r:.200}"
    if longest > most:
        yield f"longest must be at most max_length, {most}; got {longest}"


def write_tokens(folder: Path, tokens: Tokens) -> None:
    """Writes the tokens into the folder, whole or not at all."""
    with replacing(folder / _TOKENS) as temporary:
        temporary.write_text(str(tokens), encoding="utf-8")


def read_tokens(folder: Path, manifest: Manifest) -> Tokens:
    """The tokens of the run; raises ValueError where they are damaged or another run's."""
    path = folder / _TOKENS
    if not path.is_file():
        raise ValueError(f"{folder} holds no tokens: {path} does not exist")
    text = read_text(path)
    if (found := digest(text)) != manifest.tokens:
        raise ValueError(f"{path} is damaged or another run's: its fingerprint must be {manifest.tokens}; got {found}")
    return Tokens(text)
