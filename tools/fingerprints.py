"""The fingerprints of the suite's cases.

python tools/fingerprints.py  # freezes new cases and leaves the others as they were frozen
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from rosettaformer.conformance.case import Case
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.cases.case_files import arrays_of, row_of

__all__ = ["FINGERPRINTS", "changes", "fingerprint"]

FINGERPRINTS = Path(__file__).resolve().parent.parent / "tests" / "data" / "cases.json"


def fingerprint(case: Case) -> dict[str, Any]:
    """What a case is: its config, and a digest of its inputs and parameters."""
    state = hashlib.sha256(json.dumps(row_of(case)["inputs"], sort_keys=True).encode())
    for name, value in sorted(arrays_of(case).items()):
        state.update(f"{name} {value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    return {"release": case.release, "digest": state.hexdigest()[:32], "config": case.config.to_dict()}


def changes(frozen: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The ids whose data differ from what was frozen; fields that the config got later do not count."""

    def same(row: dict[str, Any], other: dict[str, Any]) -> bool:
        return row == other | {"config": {name: other["config"].get(name) for name in row["config"]}}

    return sorted(case_id for case_id, row in frozen.items() if case_id not in found or not same(row, found[case_id]))


def main() -> None:
    """Writes the fingerprints that are missing."""
    before = json.loads(FINGERPRINTS.read_text()) if FINGERPRINTS.exists() else {}
    everything = {case.id: fingerprint(case) for case in all_cases(grad=True)} | before
    rows = (f"{json.dumps(case_id)}: {json.dumps(row)}" for case_id, row in sorted(everything.items()))
    FINGERPRINTS.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
