"""What a port is asked, and why the rest is not: decided here alone.

A case is asked with the config that the port fixes, at the sizes that a file fixes, and as far as the port declares to answer. One that is
not asked has the reason, such as "not covered", and never passes.
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
    """A case as one port is asked it, or the reason why it is not asked. hidden: what the port's config hides."""

    case: Case  # in float64
    dtype: str
    device: str
    mode: str
    status: Status | None = None
    reason: str = ""
    hidden: Hidden = field(default_factory=Hidden)

    @property
    def posed(self) -> Case:
        """The case as the port is given it."""
        return self.case.at(self.dtype, self.device, self.mode)

    def row(self, port: str) -> dict[str, Any]:
        """Returns the fields of the port's result that describe the question."""
        where = {"port": port, "dtype": self.dtype, "device": self.device, "mode": self.mode}
        known = {"case": self.case.id, "component": self.case.component, "mesh": str(self.case.mesh or "")}
        return known | where


@dataclass(frozen=True)
class Asked:
    """What a port is asked. cases: as it is asked them; those that its config, its suite release or its declared limits rule out are
    excluded, with the reason. about: what it says of itself.
    """

    cases: Sequence[Case]
    hidden: Hidden
    about: Mapping[str, Any]

    def question(self, case: Case, dtype: str, device: str = "cpu", mode: str = "") -> Question:
        """Returns the question of one of the cases. mode: the port's default one if empty."""
        mode = mode or self.about["modes"][0]
        return Question(case, dtype, device, mode, *self._left_out(case, dtype, device, mode), self.hidden)

    def questions(self, dtypes: Sequence[str], devices: Sequence[str], modes: Sequence[str]) -> list[Question]:
        """Returns the questions of all cases, without those of other layouts than the port's if others remain.

        dtypes: an artefact is asked in its own. modes: "" is the port's default mode, "all" every one; those that it lacks are left out.
        """
        own = self.about["dtypes"] if self.about.get("artefact") else dtypes
        cases = without_other_layouts(self.cases, self.about["components"])
        pairs = [(case, dtype) for case in cases for dtype in own if dtype in case.dtypes]
        if any(case.folder for case in cases) and not self.about.get("artefact"):  # each folder is loaded once
            pairs.sort(key=lambda pair: dtypes.index(pair[1]))
        available = self.about["modes"]
        chosen = [one for mode in modes for one in (available if mode == "all" else [mode or available[0]]) if one in available]
        return [self.question(case, dtype, device, mode) for mode in dict.fromkeys(chosen) for device in devices for case, dtype in pairs]

    def _left_out(self, case: Case, dtype: str, device: str, mode: str) -> tuple[Status | None, str]:
        """Returns the status of a question that the port is not asked, and the reason."""
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
            return Status.SKIPPED, f"the mesh {case.mesh} needs {case.mesh.devices} {kind} devices; the port sees {count}"
        return None, ""


class Suite:
    """The cases of a run, which are fitted once to all ports that fix the same: these are asked the same objects."""

    def __init__(self, cases: Sequence[Case] | None = None) -> None:
        """cases: by default the suite's, with gradients."""
        self.cases = all_cases(grad=True) if cases is None else cases
        self._lock = threading.Lock()
        self._fits: dict[str, tuple[list[Case], Hidden]] = {}

    def fit(self, about: Mapping[str, Any]) -> tuple[list[Case], Hidden]:
        """Returns the cases with the config and the shared kernels of a port, up to the suite release that it pins, and what its config
        hides of them. Raises ValueError if its config fits none.
        """
        config, shared, release = about["config"], about.get("shared", ()), about.get("suite")
        key = repr((sorted(config.items()), *shared, release))
        with self._lock:
            if key not in self._fits:
                try:
                    found = fitted(self.cases, config, shared)
                except ValueError as error:
                    raise ValueError(f"the port's config does not fit: {error}") from None
                if release is not None:
                    newer = f"the port pins suite release {release}; the case is of a later one"
                    found = [dataclasses.replace(case, excluded=newer) if case.release > release else case for case in found]
                self._fits[key] = found, Hidden(found, self.cases)
            return self._fits[key]


def asked(suite: Suite, about: Mapping[str, Any], mesh: Mesh | None = None) -> Asked:
    """Returns what a port that describes itself so is asked on a mesh, or on one device.

    Raises ValueError if its config fits no case, and if it is the port of a whole model and the cases have no folder.
    """
    fit, hidden = suite.fit(about)
    cases = [case for case in fit if case.mesh == mesh]
    if about.get("artefact"):
        return Asked(fixed_cases(cases, about.get("fixed", {})), hidden, about)
    if about.get("whole") and not any(case.folder for case in cases):
        raise ValueError("a port with load(folder) is judged on a folder of Hugging Face: --like FAMILY, or --like DIR")
    return Asked([_limited(case, about.get("limits", {})) if case.folder else case for case in cases], hidden, about)


def fitted(cases: Sequence[Case], fixed: Mapping[str, Any], shared: Sequence[str] = ()) -> list[Case]:
    """Returns the same cases for a port that fixes some config fields, or that has kernels which all heads share: made anew if they are the
    suite's own; cases of a checkpoint are excluded if they differ. Each keeps the dtypes in which it is run.
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
    """Returns a case of a checkpoint, with the reason if it does not fit the fixed fields or kernels that all heads share."""
    if kernels := [name for name in case.parameters if f".{name}".endswith(tuple(f".{end}" for end in shared))]:
        return dataclasses.replace(case, excluded=f"all heads of the port share {kernels[0]}, and the checkpoint has a kernel of each")
    return excluded(case, fixed, "the checkpoint has")


def _limited(case: Case, limits: Mapping[str, Any]) -> Case:
    """Returns a case of a whole model, excluded or compared at the last position alone where the port declares so."""
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
