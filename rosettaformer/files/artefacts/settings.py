"""What the process of an artefact is told: the config that its weights are of, what its names mean, and whether its code may run."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reference_numpy import TransformerConfig

VARIABLE = "ROSETTAFORMER_ARTEFACT"


@dataclass(frozen=True)
class Settings:
    """config: of the checkpoint, as a mapping. declared: its config.json, if it has one. tensors: see `meanings`. function: see `Calls`.
    allow_code: compiled code is loaded. expect: the precision by which its error is judged; empty for that of its outputs.
    checkpoint: its path; and what of it is not read, see `checkpoints.load`.
    """

    config: Mapping[str, Any]
    declared: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    function: str = ""
    allow_code: bool = False
    expect: str = ""
    checkpoint: str = ""
    ignore: Sequence[str] = ()

    @property
    def model(self) -> TransformerConfig:
        """The config."""
        return TransformerConfig.from_dict(dict(self.config))


@contextlib.contextmanager
def told(settings: Settings) -> Iterator[None]:
    """Tells every process that is started meanwhile, by a file: a variable has no room for a long config.json."""
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.json"
        file.write_text(json.dumps(asdict(settings)), encoding="utf-8")
        os.environ[VARIABLE] = str(file)
        try:
            yield
        finally:
            os.environ.pop(VARIABLE) if before is None else os.environ.update({VARIABLE: before})


def heard() -> Settings:
    """Returns what this process was told. Raises ValueError if it was told nothing: an artefact has weights of its own."""
    if not (file := os.environ.get(VARIABLE)):
        raise ValueError("an artefact has weights of its own: --checkpoint says which they are, a canonical file or a Hugging Face folder")
    return Settings(**json.loads(Path(file).read_text(encoding="utf-8")))
