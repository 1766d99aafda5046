"""Exported models as ports: the file's runtime answers the cases of the original checkpoint.

Findings about the file that need no run are reported as additional rows.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ....files import checkpoints
from ....files.artefacts import meanings
from ....files.artefacts.bundle import Bundle
from ....files.artefacts.calls import Calls, NotShown, unjudged
from ....files.artefacts.constants import constants
from ....files.artefacts.declared import OF_GRAPH, findings, nodes
from ....files.artefacts.settings import Settings, heard
from ....files.checkpoints.strict import numpy_dtype
from ...case import DTYPES, Case
from ...expectation.components import FILES
from ...status import Status
from ...suite.artefact import full, ids_in
from ...suite.like import SHORT, B
from ..port import NotCovered
from ..port import NotShown as NotShownByPort

Rows = dict[str, tuple[str, str]]


def rows(settings: Settings, parameters: Mapping[str, Any], calls: Calls, asked: Collection[str]) -> Rows:
    """Returns the findings: place -> (status, sentence).

    parameters: of the checkpoint; empty if a lower precision explains differing numbers. asked: the
    meanings of the outputs under test.
    """
    found: Rows = {}
    left = ((place, Status.NOT_SHOWN, sentence) for place, sentence in unjudged(calls, asked, bool(settings.function)))
    for place, status, sentence in (*_shown(settings, parameters, calls), *left):
        found[place] = status, "; ".join(filter(None, (found.get(place, ("", ""))[1], sentence)))
    return found


def _shown(settings: Settings, parameters: Mapping[str, Any], calls: Calls) -> Iterator[tuple[str, str, str]]:
    """Yields findings about config.json entries and about the graphs."""
    config, files = settings.model, calls.bundle.files
    for file in files:
        of, held = f"{file.name}: " * (file != files[0]), constants(file)
        whole = file == files[0] or not config.cross_attention  # the files of an encoder-decoder each hold only a part of it
        for entry, sentence in findings(config, held, settings.declared, parameters) if whole else ():
            place = f"graph/{entry}" if entry in OF_GRAPH else f"config.json/{entry}"
            if not (settings.expect and entry in OF_GRAPH):  # a lower precision explains differing numbers
                yield place, Status.DIFFERS, f"{of}{sentence}"
        live = nodes.live(held, calls.signatures(file))
        for sentence in nodes.of_training(held, live):
            yield "graph/randomness", Status.DIFFERS, f"{of}{sentence}"
        for sentence in nodes.masks(held, live):
            yield "graph/mask", Status.TOLD, f"{of}{sentence}"


# component -> the meaning of the output to compare
OF_DECODERS = {"transformer": "logits", "decode_in_steps": "logits"}
OF_ENCODERS = {
    "masked_language_logits": "logits", "classify": "classes", "pool": "pooled", "token_encoder": "hidden",
    **{name: name for name in FILES},
}  # fmt: skip


class Adapter:
    """Runs cases on an exported model.

    Raises ValueError if the file is rejected or the meaning of an input is unknown, and
    `opening.Absent`.
    """

    def __init__(self, path: Path) -> None:
        settings = self._settings = heard()
        self.config = settings.model
        bundle = Bundle(path, settings.allow_code)
        own = OF_DECODERS if self.config.decoder_layers else OF_ENCODERS
        self._calls = Calls(bundle, self.config, settings.tensors, settings.function)
        answer = self._of_full_rows()
        pooled = {} if self.config.decoder_layers else meanings.pooled(answer)
        self._calls = Calls(bundle, self.config, {**settings.tensors, **pooled}, settings.function)
        gives = self._calls.gives
        self.components = tuple(name for name, meaning in own.items() if meaning in gives)
        if not self.components:
            wanted, outputs = " or ".join(dict.fromkeys(own.values())), ", ".join(map(str, self._calls.entry.outputs))
            raise ValueError(f"no output is known to be {wanted}. Declare one with --tensor NAME=MEANING; the outputs are {outputs}")
        meaning = own[self.components[0]]
        answered = answer[meaning].dtype.name if meaning in answer else "float32"  # cases report why a run fails
        self._dtype = "float32" if settings.expect else gives[meaning].dtype or answered
        if self._dtype not in DTYPES:
            raise ValueError(f"the dtype of the file's outputs must be one of {', '.join(DTYPES)}; got {self._dtype}")
        self._findings = rows(settings, self._parameters(), self._calls, self._asked())  # before the first case
        for name, meaning in pooled.items():
            self._findings[f"outputs/{name}"] = Status.TOLD, f"judged as {meaning}, {meanings.POOLINGS[meaning]}"

    def _asked(self) -> set[str]:
        """Returns the meanings of the outputs that the whole model's cases compare."""
        config = self.config
        heads = {"pooled": config.pooler, "classes": config.classes, "logits": config.decoder_layers or config.masked_language_head}
        return {(OF_DECODERS | OF_ENCODERS)[name] for name in self.components} - {meaning for meaning, head in heads.items() if not head}

    def _parameters(self) -> Mapping[str, np.ndarray]:
        settings, path = self._settings, self._settings.checkpoint
        if settings.expect:
            return {}
        return checkpoints.view(path, checkpoints.own_format(path), ignore=settings.ignore).parameters

    def _of_full_rows(self) -> dict[str, np.ndarray]:
        """Returns the outputs for texts without padding; empty if the run fails."""
        config, sizes = self.config, self._calls.fixed
        sides = ("source",) * bool(config.encoder_layers) + ("target",) * bool(config.decoder_layers)
        try:
            return self._calls.forward(**full(config, {side: (sizes.get("rows", B), sizes.get(side, SHORT)) for side in sides}))
        except Exception:  # runtimes raise different errors
            return {}

    def describe(self) -> dict[str, Any]:
        """Returns findings that need no run, fixed sizes, and the runtime's versions."""
        return {
            "artefact": True,
            "components": self.components,
            "dtypes": (self._dtype,),
            "findings": self._findings,
            "fixed": self._calls.fixed,
            "ids": self._calls.bundle.ids,
            "version": dict(self._calls.bundle.versions),
        }

    def run(self, case: Case) -> Any:
        """Returns the outputs. Raises NotCovered or `port.NotShown` for an unusable case."""
        try:
            return self._rounded(self._of_ids(case) if case.outside else self._answer(case), case.dtype)
        except NotShown as error:
            raise NotShownByPort(str(error)) from None

    def _of_ids(self, case: Case) -> np.ndarray:
        """Returns the output for ids out of range. Raises NotShown if ids in range also fail."""
        inside = {case.outside: case.inputs[case.outside].clip(0, ids_in(self.config, case.outside) - 1)}
        try:
            answer = self._answer(dataclasses.replace(case, inputs=dict(case.inputs) | inside))
        except NotShown:
            raise
        except Exception as error:  # runtimes raise different errors
            raise NotShown("the same text with ids in range also fails") from error
        if not np.isfinite(answer.astype(np.float64)).all():
            raise NotShown("the outputs for the same text with ids in range are not finite either")
        return self._answer(case)

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
            raise NotCovered("the file has no function with a key/value cache")
        inputs, splits = case.inputs, case.splits or case.inputs["splits"]
        target, mask_bt = inputs["target"], inputs.get("target_mask_bt")
        steps, logits = self._calls.start(len(target), inputs.get("source"), inputs.get("source_mask_bs")), []
        for end, length in zip(np.cumsum(splits), splits, strict=True):
            part = slice(end - length, end)
            logits.append(steps.read(target[:, part], None if mask_bt is None else mask_bt[:, part]))
        return np.concatenate(logits, axis=1)

    def _rounded(self, array: np.ndarray, dtype: str) -> np.ndarray:
        """Returns the output in the compared dtype, different only for lower precision."""
        return array.astype(numpy_dtype(dtype)) if self._settings.expect and array.dtype.kind in "fV" else array
