"""Decides which cases a port is asked, and why the others are not.

A case uses the config values that the port fixes, the sizes that a file fixes, and the limits that
the port declares. A case that is not asked has a reason, such as "not covered", and never passes.
"""

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reference_numpy.sharding import Mesh

from ..case import LAST, Case
from ..expectation.components import VJP, forward_of, without_other_layouts
from ..status import ON_ONE_DEVICE, Status, undefined, without
from . import all_cases
from .artefact import fixed_cases
from .build import excluded
from .hidden import Hidden
from .meshes import mesh_cases


@dataclass(frozen=True)
class Question:
    """A case for one port, or the reason for not asking it. hidden: its vacuous cases."""

    case: Case  # in float64
    dtype: str
    device: str
    mode: str
    status: Status | None = None
    reason: str = ""
    hidden: Hidden = field(default_factory=Hidden)

    @property
    def posed(self) -> Case:
        """The case as the port gets it."""
        return self.case.at(self.dtype, self.device, self.mode)

    def row(self, port: str) -> dict[str, Any]:
        """Returns the result's fields that describe the question."""
        where = {"port": port, "dtype": self.dtype, "device": self.device, "mode": self.mode}
        known = {"case": self.case.id, "component": self.case.component, "mesh": str(self.case.mesh or "")}
        return known | where


@dataclass(frozen=True)
class Asked:
    """The questions for a port.

    cases: with the port's values; cases ruled out by its config, suite release or declared limits
    are excluded, with the reason. about: the port's description of itself.
    """

    cases: Sequence[Case]
    hidden: Hidden
    about: Mapping[str, Any]

    def question(self, case: Case, dtype: str, device: str = "cpu", mode: str = "") -> Question:
        """Returns the question of one of the cases. mode: by default the port's own."""
        mode = mode or self.about["modes"][0]
        return Question(case, dtype, device, mode, *self._left_out(case, dtype, device, mode), self.hidden)

    def questions(self, dtypes: Sequence[str], devices: Sequence[str], modes: Sequence[str]) -> list[Question]:
        """Returns the questions of all cases, without layouts that the port does not use.

        dtypes: an exported model is asked in its own dtype instead. modes: "" is the port's default
        mode, "all" all of its modes; modes it lacks are ignored.
        """
        own = self.about["dtypes"] if self.about.get("artefact") else dtypes
        cases = without_other_layouts(self.cases, self.about["components"])
        pairs = [(case, dtype) for case in cases for dtype in own if dtype in case.dtypes]
        if any(case.folder for case in cases) and not self.about.get("artefact"):  # so that each checkpoint is loaded once
            pairs.sort(key=lambda pair: dtypes.index(pair[1]))
        available = self.about["modes"]
        chosen = [one for mode in modes for one in (available if mode == "all" else [mode or available[0]]) if one in available]
        return [self.question(case, dtype, device, mode) for mode in dict.fromkeys(chosen) for device in devices for case, dtype in pairs]

    def _left_out(self, case: Case, dtype: str, device: str, mode: str) -> tuple[Status | None, str]:
        """Returns the status and reason of a question that is not asked; (None, "") otherwise."""
        about = self.about
        if mode not in about["modes"]:
            return Status.NOT_COVERED, f"the port has no mode {mode}"
        if case.mesh and not about.get("on_mesh"):
            return Status.NOT_COVERED, ON_ONE_DEVICE
        if case.component not in about["components"] and (about.get("whole") or not case.mesh):
            return Status.NOT_COVERED, undefined(case.component)
        if case.excluded:
            return Status.NOT_COVERED, case.excluded
        if dtype in case.too_large:
            return Status.TOO_LARGE, case.too_large[dtype]
        if dtype not in about["dtypes"]:
            return Status.NOT_COVERED, without(dtype)
        kind = device.partition("-")[0]
        count = sum(available.startswith(kind) for available in about.get("devices", ["cpu"]))
        if not count:
            return Status.SKIPPED, f"no {kind} device"
        if case.mesh and kind != "cpu" and count < case.mesh.devices:
            return Status.SKIPPED, f"the mesh {case.mesh} needs {case.mesh.devices} {kind} devices; the port has {count}"
        return None, ""


class Suite:
    """The cases of a run. Ports with the same fixed fields share the same adapted cases."""

    def __init__(self, cases: Sequence[Case] | None = None) -> None:
        """cases: by default all of the suite, with gradients."""
        self.cases = all_cases(grad=True) if cases is None else cases
        self._lock = threading.Lock()
        self._fits: dict[str, tuple[list[Case], Hidden]] = {}

    def fit(self, about: Mapping[str, Any]) -> tuple[list[Case], Hidden]:
        """Adapts the cases to a port's config, shared kernels and suite release.

        Raises ValueError if its config fits no case.
        """
        config, shared, release = about["config"], about.get("shared", ()), about.get("suite")
        key = repr((sorted(config.items()), *shared, release))
        with self._lock:
            if key not in self._fits:
                try:
                    found = fitted(self.cases, config, shared)
                except ValueError as error:
                    raise ValueError(f"no case can use the port's `config`: {error}") from None
                if release is not None:
                    newer = f"the port pins suite release {release}; this case is newer"
                    found = [dataclasses.replace(case, excluded=newer) if case.release > release else case for case in found]
                self._fits[key] = found, Hidden(found, self.cases)
            return self._fits[key]


def asked(suite: Suite, about: Mapping[str, Any], mesh: Mesh | None = None) -> Asked:
    """Returns the questions for a port that describes itself so, on a mesh or one device.

    Raises ValueError if its config fits no case, or if a port of a whole model gets cases without a
    checkpoint.
    """
    fit, hidden = suite.fit(about)
    cases = [case for case in fit if case.mesh == mesh]
    if about.get("artefact"):
        return Asked(fixed_cases(cases, about.get("fixed", {})), hidden, about)
    if about.get("whole") and not any(case.folder for case in cases):
        raise ValueError("a port with load(folder) needs a checkpoint: add --like FAMILY for a random one, or --like DIR for your own")
    return Asked([_limited(case, about.get("limits", {})) if case.folder else case for case in cases], hidden, about)


def fitted(cases: Sequence[Case], fixed: Mapping[str, Any], shared: Sequence[str] = ()) -> list[Case]:
    """Adapts the cases to a port that fixes config fields or whose heads share kernels.

    The suite's own cases are rebuilt; a checkpoint's cases are excluded if they do not fit. Each
    keeps its dtypes.
    """
    if not fixed and not shared:
        return list(cases)
    if (meshes := list(dict.fromkeys(case.mesh for case in cases if case.mesh))) and not any(case.folder for case in cases):
        of_mesh = {(case.id, case.mesh): case for case in mesh_cases(meshes, fixed, shared)}
        return [dataclasses.replace(of_mesh[case.id, case.mesh], dtypes=case.dtypes) for case in cases]
    own = {case.id: case for case in all_cases(fixed, any(forward_of(case.component) for case in cases), shared)}
    return [
        dataclasses.replace(own[case.id], dtypes=case.dtypes) if case.id in own else _of_checkpoint(case, fixed, shared) for case in cases
    ]


def _of_checkpoint(case: Case, fixed: Mapping[str, Any], shared: Sequence[str]) -> Case:
    """Returns a checkpoint's case, with the reason if the port's fields exclude it."""
    if kernels := [name for name in case.parameters if f".{name}".endswith(tuple(f".{end}" for end in shared))]:
        return dataclasses.replace(case, excluded=f"all heads of the port share {kernels[0]}; the checkpoint has one per head")
    return excluded(case, fixed, "the checkpoint has")


def _limited(case: Case, limits: Mapping[str, Any]) -> Case:
    """Applies the port's declared limits: excludes a case, or compares its last position."""
    token_bt, real_bt = next(case.inputs[side] for side in ("target", "source") if case.inputs.get(side) is not None), case.real_bt
    padded = real_bt is not None and not real_bt.all()
    last = limits.get("positions") == LAST and case.component != "classify"
    if "rows" in limits and len(token_bt) > 1:
        return dataclasses.replace(case, excluded="the port declares rows = 1")
    if "masks" in limits and padded:
        return dataclasses.replace(case, excluded="the port declares masks = False")
    if last and (case.component == "states" or case.component.endswith(VJP)):
        return dataclasses.replace(case, excluded='the port declares positions = "last"')
    if last and real_bt is not None and not real_bt[:, -1].all():
        return dataclasses.replace(case, excluded='the port declares positions = "last", and the last one is padding')
    return dataclasses.replace(case, compared=LAST) if last and case.component != "decode_in_steps" else case
