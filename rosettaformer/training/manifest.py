"""`run.json`: what the run in a folder is."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.recipe import Recipe

from ..checkpoints.replacing import replacing
from .tokens import Tokens

__all__ = ["Manifest", "read_tokens", "write_tokens"]

FORMAT, VERSION = "rosettaformer-run", 1
_FILE, _TOKENS = "run.json", "tokens.json"


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
        text = json.dumps({"format": FORMAT, "version": VERSION} | fields, indent=2)
        with replacing(folder / _FILE) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of a folder; raises ValueError where there is none or it is damaged."""
        path = folder / _FILE
        if not path.is_file():
            raise ValueError(f"{folder} holds no run: {path} does not exist")
        try:
            return cls._parse(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is damaged or no run's: {error}") from None

    @classmethod
    def _parse(cls, fields: Mapping[str, Any]) -> "Manifest":
        found = dict(fields)
        if (kind := (found.pop("format", None), found.pop("version", None))) != (FORMAT, VERSION):
            raise ValueError(f"format and version must be {FORMAT} and {VERSION}; got {kind[0]} and {kind[1]}")
        limits = {int(length): int(limit) for length, limit in found["limits"].items()}
        config, recipe = TransformerConfig.from_dict(found["config"]), Recipe.from_dict(found["recipe"])
        return cls(**{**found, "limits": limits, "config": config, "recipe": recipe})


def write_tokens(folder: Path, tokens: Tokens) -> None:
    """Writes the tokens into the folder, whole or not at all."""
    with replacing(folder / _TOKENS) as temporary:
        temporary.write_text(str(tokens), encoding="utf-8")


def read_tokens(folder: Path, manifest: Manifest) -> Tokens:
    """The tokens of the run; raises ValueError where they are damaged or another run's."""
    path = folder / _TOKENS
    if not path.is_file():
        raise ValueError(f"{folder} holds no tokens: {path} does not exist")
    tokens = Tokens(path.read_text(encoding="utf-8"))
    if tokens.digest != manifest.tokens:
        raise ValueError(f"{path} is damaged or another run's: its fingerprint must be {manifest.tokens}; got {tokens.digest}")
    return tokens
