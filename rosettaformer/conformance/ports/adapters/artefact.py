"""An artefact as a port: a file with weights of its own, opened by its runtime, answers the cases of the checkpoint that it was made of."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ....artefacts.bundle import Bundle
from ....artefacts.calls import Calls, NotShown
from ....artefacts.constants import constants
from ....artefacts.declared import OF_GRAPH, findings
from ....artefacts.settings import heard
from ....checkpoints.strict import numpy_dtype
from ...case import DTYPES, Case
from ...cases.artefact import opened
from ..port import NotCovered
from ..port import NotShown as NotShownByPort

# component -> what of the outputs answers it
OF_DECODERS = {"transformer": "logits", "decode_in_steps": "logits"}
OF_ENCODERS = {"masked_language_logits": "logits", "classify": "classes", "pool": "pooled", "token_encoder": "hidden"}


class Adapter:
    """Answers cases by an artefact.

    Raises ValueError if the file is refused or an input's meaning is not known, and `opening.Absent`.
    """

    def __init__(self, path: Path) -> None:
        self._settings = heard()
        self.config = self._settings.model
        bundle = Bundle(path, self._settings.allow_code)
        self._findings: dict[str, str] = {}
        for place, sentence in self._shown(path):  # before a case is asked
            self._findings[place] = "; ".join(filter(None, (self._findings.get(place), sentence)))
        self._calls = Calls(bundle, self.config, self._settings.inputs, self._settings.outputs)
        gives = self._calls.gives
        own = OF_DECODERS if self.config.decoder_layers else OF_ENCODERS
        self.components = tuple(name for name, meaning in own.items() if meaning in gives)
        if not self.components:
            wanted, outputs = " or ".join(dict.fromkeys(own.values())), ", ".join(map(str, self._calls.entry.outputs))
            raise ValueError(f"the file must give {wanted}; its outputs are {outputs}: --output NAME=MEANING says what they are")
        floating = [gives[own[name]].dtype for name in self.components if gives[own[name]].dtype]
        self._dtype = "float32" if self._settings.expect or not floating else floating[0]
        if self._dtype not in DTYPES:
            raise ValueError(f"the file must give numbers of {', '.join(DTYPES)}; it gives {self._dtype}")

    def _shown(self, path: Path) -> Iterator[tuple[str, str]]:
        """Yields what the file shows without being run, each with where: an entry of config.json, or something of the graph."""
        settings = self._settings
        parameters = {} if settings.expect else opened(Path(settings.checkpoint), settings.leave_out, settings.ignore).parameters
        for entry, sentence in findings(self.config, constants(path), settings.declared, parameters):
            if entry not in OF_GRAPH:
                yield f"config.json/{entry}", sentence
            elif not settings.expect:  # which explains other numbers
                yield f"graph/{entry}", sentence

    def describe(self) -> dict[str, Any]:
        """Returns what the file shows of itself before it is asked: its sizes that are fixed, and what runs it."""
        return {
            "artefact": True,
            "components": self.components,
            "dtypes": (self._dtype,),
            "findings": self._findings,
            "fixed": self._calls.fixed,
            "version": dict(self._calls.bundle.versions),
        }

    def run(self, case: Case) -> Any:
        """Returns the answer. Raises NotCovered and `port.NotShown` if the file has no input or room for the case."""
        try:
            return self._rounded(self._answer(case), case.dtype)
        except NotShown as error:
            raise NotShownByPort(str(error)) from None

    def _answer(self, case: Case) -> np.ndarray:
        inputs = case.inputs
        if case.splits or case.component == "decode_in_steps":
            return self._in_steps(case)
        given = {name: inputs.get(name) for name in ("source", "target")}
        given |= {
            "source_mask": inputs.get("source_mask_bs"),
            "target_mask": inputs.get("target_mask_bt"),
            "segments": inputs.get("segment_bs"),
        }
        found = self._calls.forward(**given)
        return found[(OF_DECODERS | OF_ENCODERS)[case.component]]

    def _in_steps(self, case: Case) -> np.ndarray:
        if not self._calls.step_name:
            raise NotCovered("the file has no function that takes a cache")
        inputs, splits = case.inputs, case.splits or case.inputs["splits"]
        target, mask_bt = inputs["target"], inputs.get("target_mask_bt")
        steps, logits = self._calls.start(len(target), inputs.get("source"), inputs.get("source_mask_bs")), []
        for end, length in zip(np.cumsum(splits), splits, strict=True):
            part = slice(end - length, end)
            logits.append(steps.read(target[:, part], None if mask_bt is None else mask_bt[:, part]))
        return np.concatenate(logits, axis=1)

    def _rounded(self, array: np.ndarray, dtype: str) -> np.ndarray:
        """Returns an answer in the dtype in which it is judged, which is another only if a lower precision is expected."""
        return array.astype(numpy_dtype(dtype)) if self._settings.expect and array.dtype.kind in "fV" else array
