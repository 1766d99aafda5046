"""Fingerprints of the suite's cases.

python tools/fingerprints.py  # adds new cases and leaves the others as they are
"""

import hashlib
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rosettaformer.judge.case import Case
from rosettaformer.judge.suite import all_cases
from rosettaformer.judge.suite.case_files import arrays_of, row_of

FINGERPRINTS = Path(__file__).resolve().parent.parent / "tests" / "data" / "cases.json"


class Frozen(NamedTuple):
    """Frozen fingerprints. fields: of the config, as added over time. digests: by case id."""

    fields: Sequence[Sequence[str]]
    digests: Mapping[str, str]


def read() -> Frozen:
    """Returns the frozen fingerprints."""
    said = json.loads(FINGERPRINTS.read_text())
    rows = ((f"{component}/{name}", own[name]) for component, own in said["cases"].items() for name in own)
    return Frozen(said["fields"], dict(rows))


def fingerprint(case: Case, fields: Iterable[str]) -> str:
    """Returns a digest of a case: its release, these config fields, its inputs and parameters."""
    config = case.config.to_dict()
    said = {"release": case.release, "config": {name: config.get(name) for name in fields}}
    said["inputs"] = row_of(case)["inputs"]
    state = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name, value in sorted(arrays_of(case).items()):
        state.update(f"{name} {value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    return state.hexdigest()[:16]


def changes(frozen: Frozen, cases: Iterable[Case]) -> list[str]:
    """Returns the ids of cases that differ. Config fields added later are ignored."""
    found = {case.id: case for case in cases}
    known = [*accumulate(frozen.fields, lambda first, more: [*first, *more])]

    def same(case_id: str, digest: str) -> bool:
        return case_id in found and any(fingerprint(found[case_id], fields) == digest for fields in known)

    return sorted(case_id for case_id, digest in frozen.digests.items() if not same(case_id, digest))


def main() -> None:
    """Writes the missing fingerprints."""
    fields, digests = read()
    new = [case for case in all_cases(grad=True) if case.id not in digests]
    known = [name for some in fields for name in some]
    if more := [name for case in new[:1] for name in case.config.to_dict() if name not in known]:
        fields = [*fields, more]
    found = dict(digests) | {case.id: fingerprint(case, [*known, *more]) for case in new}
    components: dict[str, dict[str, str]] = {}
    for case_id, digest in sorted(found.items()):
        component, _, name = case_id.partition("/")
        components.setdefault(component, {})[name] = digest
    rows = (f"{json.dumps(component)}: {_compact(own)}" for component, own in components.items())
    parts = '{"fields": [', _wrapped(map(_compact, fields)), '], "cases": {', _wrapped(rows), "}}\n"
    FINGERPRINTS.write_text("\n".join(parts))


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(", ", ":"))


def _wrapped(rows: Iterable[str]) -> str:
    wrap = textwrap.TextWrapper(110, subsequent_indent=" ", break_long_words=False, break_on_hyphens=False)
    return ",\n".join(map(wrap.fill, rows))


if __name__ == "__main__":
    main()
