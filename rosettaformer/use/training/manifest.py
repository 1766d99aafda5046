"""The files that define a run: `run.json` and its tokens."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.recipe import Recipe

from ...common.atomic import write_text
from ...common.reading import read_text
from . import options, schema
from .corpus import padded_length
from .tasks import TASKS
from .tokens import Tokens

FORMAT, VERSION = "rosettaformer-run", 1
FILES = ("run.json", "tokens.json", "log.jsonl", "lock", "loss.png", "loss.svg", "best.safetensors", "average.safetensors")
FOLDERS = ("checkpoints", "checkpoints/step-*")
_FILE, _TOKENS = "run.json", "tokens.json"
_FIELDS: schema.Table = {
    "format": schema.choice(FORMAT), "version": schema.choice(VERSION), "tokens": schema.text(), "data": schema.text(),
    **dict.fromkeys(("task", "fixed", "free", "config", "recipe", "limits"), schema.OBJECT),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The definition of a run.

    task: its name and options. fixed, free: options. tokens, data: fingerprints. limits: padded
    source length -> most target tokens.
    """

    task: dict[str, Any]
    fixed: dict[str, Any]
    free: dict[str, Any]
    config: TransformerConfig
    recipe: Recipe
    tokens: str
    data: str
    limits: dict[int, int]

    @property
    def fingerprint(self) -> str:
        """A fingerprint, the same before writing and after reading."""
        return schema.fingerprint(asdict(self))

    @staticmethod
    def exists(folder: Path) -> bool:
        return (folder / _FILE).exists()

    def write(self, folder: Path, tokens: Tokens) -> None:
        """Writes the tokens and the manifest; a failed write leaves neither damaged.

        The manifest comes last, since it makes the folder a run.
        """
        manifest = schema.dump({"format": FORMAT, "version": VERSION} | asdict(self))
        for name, text in ((_TOKENS, str(tokens)), (_FILE, manifest)):
            write_text(folder / name, text)

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads a folder's manifest; raises ValueError if it is missing, damaged or a link."""
        path = folder / _FILE
        check(folder)
        if not path.is_file():
            raise ValueError(f"{folder} holds no run: {path} does not exist")
        try:
            return cls._parse(schema.load(path, _FIELDS))
        except ValueError as error:
            raise ValueError(f"{path} is damaged, or not a run's:\n  {error}") from None

    @classmethod
    def _parse(cls, fields: dict[str, Any]) -> "Manifest":
        del fields["format"], fields["version"]
        fixed, limits = fields["fixed"], fields["limits"]
        problems = schema.problems(fixed, options.FIXED_FIELDS, "fixed") + schema.problems(fields["free"], options.FREE_FIELDS, "free")
        problems += schema.problems({"name": fields["task"].get("name")}, {"name": schema.choice(*TASKS)}, "task")
        schema.refuse(problems or [*_limit_problems(limits, fixed["max_length"])])
        config, recipe = TransformerConfig.from_dict(fields["config"]), Recipe.from_dict(fields["recipe"])
        return cls(**fields | {"limits": {int(length): limit for length, limit in limits.items()}, "config": config, "recipe": recipe})


def _limit_problems(limits: Mapping[str, Any], most: int) -> Iterator[str]:
    """Yields a problem if no training can have produced the limits."""
    lengths = {str(padded_length(length)) for length in range(1, most + 1)}
    good, wanted = schema.integer(1, most)
    if not limits or any(length not in lengths or not good(limit) for length, limit in limits.items()):
        yield f"limits must map padded lengths (16, 32, ...) to {wanted}; got {limits!r:.200}"


def read_tokens(folder: Path, manifest: Manifest) -> Tokens:
    """Reads the tokens of a run; raises ValueError if they are damaged or another run's."""
    path = folder / _TOKENS
    if not path.is_file():
        raise ValueError(f"{folder} holds no tokens: {path} does not exist. Restore it from a copy of the run")
    text = read_text(path)
    if (found := schema.digest(text)) != manifest.tokens:
        raise ValueError(f"{path} is damaged, or another run's: its fingerprint must be {manifest.tokens}; got {found}")
    return Tokens(text)


def check(folder: Path) -> None:
    """Raises ValueError if a file or folder of the run is a link, or of the wrong kind.

    The run's folder itself may be a link.
    """
    folders = [path for pattern in FOLDERS for path in folder.glob(pattern)]
    files = [folder / name for name in FILES] + [*folder.glob("checkpoints/step-*/*")]
    problems = [*_other(folders, Path.is_dir, "a folder"), *_other(files, Path.is_file, "a file")]
    if problems:
        raise ValueError("a run must not contain links or other kinds of files:\n  " + "\n  ".join(problems[:20]))


def _other(paths: Iterable[Path], is_one: Any, wanted: str) -> list[str]:
    return [f"{path} must be {wanted}, not a link" for path in paths if path.is_symlink() or (path.exists() and not is_one(path))]
