"""Passes settings to the process that runs an exported model."""

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
    """The settings of an exported model.

    config: the checkpoint's config. declared: its config.json, if any. tensors: see `meanings`.
    function: see `Calls`. allow_code: permits compiled code. expect: the precision that sets the
    tolerance; "" for that of the outputs. checkpoint, ignore: see `checkpoints.load`.
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
        """The config of the model."""
        return TransformerConfig.from_dict(dict(self.config))


@contextlib.contextmanager
def told(settings: Settings) -> Iterator[None]:
    """Passes the settings to child processes, in a file, since config.json may be long."""
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
    """Reads this process's settings. Raises ValueError if there are none."""
    if not (file := os.environ.get(VARIABLE)):
        raise ValueError(
            "an exported model has its own weights; pass --checkpoint with the canonical file or Hugging Face folder they are from"
        )
    return Settings(**json.loads(Path(file).read_text(encoding="utf-8")))
