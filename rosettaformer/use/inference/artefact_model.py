"""Runs an exported model as a `models.Model`, with its own runtime and weights."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ...common.backends import without_greeting
from ...files.artefacts.bundle import Bundle
from ...files.artefacts.calls import Calls, NotShown
from .folder import Folder, open_folder
from .models import Model


class ArtefactModel(Model):
    """`models.Model` of an exported decoder. Without a cache, each token rereads the whole text.

    Raises ValueError if the meaning of an input is unknown, and if the file cannot generate text.
    """

    def __init__(self, bundle: Bundle, config: TransformerConfig, tensors: Mapping[str, str], function: str = "") -> None:
        if config.encoder_layers:
            raise ValueError("an exported model with an encoder generates no text here; leave out --artefact to run the folder itself")
        self.config, self._calls, self._has_run = config, Calls(bundle, config, tensors, function), False
        gives, length = self._calls.gives, self._calls.fixed.get("target")
        if "logits" not in gives:
            given = ", ".join(map(str, gives.values()))
            raise ValueError(f"the file has no output for logits, only {given}; mark it with --tensor NAME=logits")
        self._check_vocabulary((gives["logits"].shape or ("",))[-1])
        if length is not None and not self._calls.step_name:
            raise ValueError(f"the file takes exactly {length} tokens and has no cache; export it with a free length to generate text")

    def _check_vocabulary(self, got: int | str) -> None:
        if isinstance(got, int) and got != self.config.target_vocabulary:
            raise ValueError(f"the file's logits must be for {self.config.target_vocabulary} tokens, as in config.json; got {got}")

    def start(self, rows: int, length: int, source: tuple[np.ndarray, np.ndarray] | None = None) -> Any:
        return self._calls.start(rows) if self._calls.step_name else _Texts(self._calls, rows)

    def read(self, token_bt: np.ndarray, mask_bt: np.ndarray, cache_: Any) -> tuple[np.ndarray, Any]:
        """Raises ValueError if the file has no room or mask for the rows, or its runtime fails."""
        try:
            with contextlib.nullcontext() if self._has_run else without_greeting():
                logits_btv = cache_.read(token_bt, mask_bt)
        except NotShown as error:
            raise ValueError(f"{error}; got {len(token_bt)} rows of {token_bt.shape[1]} new tokens") from None
        except Exception as error:  # runtimes raise many types
            said = " ".join(str(error).split())[:300]
            raise ValueError(
                f"the file cannot read {token_bt.shape[1]} tokens of {len(token_bt)} rows; {type(error).__name__}: {said}"
            ) from None
        self._has_run = True
        self._check_vocabulary(logits_btv.shape[-1])
        return logits_btv[:, -1], cache_

    def reorder(self, cache_: Any, row_b: np.ndarray) -> Any:
        cache_.reorder(row_b)
        return cache_

    def run(self, method: str, **inputs: np.ndarray | None) -> Any:
        raise ValueError(f"an exported model only generates text; it has no {method}")


class _Texts:
    """Rows that are read again as a whole whenever a token is added."""

    def __init__(self, calls: Calls, rows: int) -> None:
        self._calls, self._token_bt, self._mask_bt = calls, np.zeros((rows, 0), np.int64), np.zeros((rows, 0), bool)

    def read(self, token_bt: np.ndarray, mask_bt: np.ndarray) -> np.ndarray:
        """Returns the logits `b t v` of all tokens."""
        self._token_bt = np.concatenate([self._token_bt, token_bt], axis=1)
        self._mask_bt = np.concatenate([self._mask_bt, mask_bt], axis=1)
        return self._calls.forward(target=self._token_bt, target_mask=self._mask_bt)["logits"]

    def reorder(self, row_b: np.ndarray) -> None:
        """Replaces row i by row `row_b[i]`."""
        self._token_bt, self._mask_bt = self._token_bt[row_b], self._mask_bt[row_b]


def open_with_artefact(
    folder: Path, file: Path, allow_code: bool, tensors: Mapping[str, str], function: str = "", **reading: Any
) -> tuple[Folder, ArtefactModel]:
    """Opens a folder, for its tokenizer and options, and the exported model in a file.

    The model's config is that of its manifest, or else the folder's. reading: options of
    `open_folder`. Raises ValueError on every problem, and `opening.Absent`.
    """
    with without_greeting():
        bundle = Bundle(file, allow_code)
    config = TransformerConfig.from_dict(dict(bundle.manifest.config)) if bundle.manifest else None
    found = open_folder(folder, "generate", weights=False, config=config, **reading)
    return found, ArtefactModel(bundle, found.checkpoint.config, tensors, function)
