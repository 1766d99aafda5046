"""Bugs of cached steps alone: known bugs and settings that apply only after the first step, or only
in steps of one token, for which ports often have code of their own.
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
    """An alteration of later steps. single: only of those with one token."""

    single: bool

    @contextlib.contextmanager
    def altering(self, paths: Paths) -> Iterator[None]:
        """Patches the reference; the altered functions run in the meant steps only."""
        meant = False

        def step(original: Callable, parameters: Any, config: Any, target: Any, cache: Any, *given: Any, **options: Any) -> Any:
            nonlocal meant
            meant = cache.target_mask_bt.shape[1] > 0 and (target.shape[1] == 1 or not self.single)
            try:
                return original(parameters, config, target, cache, *given, **options)
            finally:
                meant = False

        def there(altered: Callable) -> Callable:
            return lambda original, *args, **options: altered(original, *args, **options) if meant else original(*args, **options)

        with patched({name: there(altered) for name, altered in self.replaces.items()} | {STEP: step}):
            yield


def in_steps(alterations: Iterable[Alteration]) -> Iterator[Alteration]:
    """Each of these alterations only after the first step, and only in steps of one token."""
    for one in alterations:
        if one.replaces and STEP not in one.replaces and not (one.of_case or one.reads or one.rounding):
            own = {field.name: getattr(one, field.name) for field in dataclasses.fields(Alteration)}
            for single, where in ((False, "after the first step"), (True, "in steps of one token")):
                yield InSteps(**own | {"title": f"{one.title}, only {where}", "variants": {}}, single=single)
