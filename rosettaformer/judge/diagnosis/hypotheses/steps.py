"""Bugs of cached steps alone: known bugs, settings and code changes that apply only after the first
step, or only in steps of one token, for which ports often have code of their own.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ...catalogue import Alteration
from ...expectation.patching import patched
from ...expectation.paths import Paths

STEP = "cache.decode_step"


@dataclass(frozen=True, kw_only=True, eq=False)
class InSteps(Alteration):
    """An alteration of later steps. base: that of all steps. single: only steps of one token."""

    base: Alteration
    single: bool

    writes = True

    @contextlib.contextmanager
    def altering(self, paths: Paths) -> Iterator[None]:
        """Patches the reference in the meant steps only."""

        def step(original: Callable, parameters: Any, config: Any, target: Any, cache: Any, *given: Any, **options: Any) -> Any:
            meant = cache.target_mask_bt.shape[1] > 0 and (target.shape[1] == 1 or not self.single)
            with self.base.altering(paths) if meant else contextlib.nullcontext():
                return original(parameters, config, target, cache, *given, **options)

        with patched({STEP: step}):
            yield


def in_steps(alterations: Iterable[Alteration]) -> Iterator[Alteration]:
    """Each of these alterations only after the first step, and only in steps of one token."""
    for one in alterations:
        if STEP not in one.replaces and not (one.reads or one.rounding):
            own = {field.name: getattr(one, field.name) for field in dataclasses.fields(Alteration)}
            for single, where in ((False, "after the first step"), (True, "in steps of one token")):
                title = f"{one.title}, only {where}"
                yield _of_case(InSteps(**own | {"title": title, "variants": {}, "of_case": None}, base=one, single=single))


def _of_case(limited: InSteps) -> InSteps:
    """With a base that depends on the case, so does this."""
    if not limited.base.of_case:
        return limited
    return dataclasses.replace(limited, of_case=lambda case: dataclasses.replace(limited, base=limited.base.on(case)))
