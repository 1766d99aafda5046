"""Prompts as files, for a command that reads a Hugging Face checkpoint and writes logits.

A prompt is an npz file with `token_bt`, `mask_bt` (True = a real token) and, for an encoder,
`segment_bt`; for an encoder-decoder with `source_bs`, `target_bt`, `source_mask_bs` and
`target_mask_bt`. The command writes its logits `b t v` to an npy file of the same name; bfloat16, which
NumPy lacks, as float32.
"""

import difflib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...common.processes import Answer, printable
from ...common.processes.wire import answer_limit
from ...common.reading import read_bytes
from ..case import LAST, MASKS, Case, numpy_dtype
from ..status import Kind

SILENCE = "the command wrote no output"
MOST = 100  # the most file names to compare with the expected one
HEADER = 1 << 16  # the most bytes of an npy file before its array
COMPONENTS = ("transformer", "masked_language_logits", "classify")


def is_prompt(case: Case) -> bool:
    """Whether the case compares a whole model's logits."""
    return case.component in COMPONENTS and not case.splits


def write(folder: Path, cases: Mapping[str, Case]) -> dict[str, str]:
    """Writes the cases' prompts into an empty folder and returns their names, by the same keys."""
    names = {}
    for number, (key, case) in enumerate(cases.items(), start=1):
        names[key] = f"{number:04}-{case.name}"
        sides = [side for side in MASKS if case.inputs.get(side) is not None]
        both, arrays = len(sides) > 1, dict[str, Any]()
        for side in sides:
            ids, mask = case.inputs[side], case.inputs.get(MASKS[side])
            own = (f"{side}_{MASKS[side][-2:]}", MASKS[side]) if both else ("token_bt", "mask_bt")
            arrays |= dict(zip(own, (ids, np.ones(ids.shape, bool) if mask is None else mask), strict=True))
        if case.config.encoder_layers and not both:
            segment_bt = case.inputs.get("segment_bs")
            arrays["segment_bt"] = np.zeros_like(arrays["token_bt"]) if segment_bt is None else segment_bt
        np.savez(folder / f"{names[key]}.npz", **arrays)
    return names


def read(files: Mapping[str, Path], cases: Mapping[str, Case], died: bool) -> dict[str, Answer]:
    """Returns the logits by key. If the command died, an unreadable last file is ignored."""
    found: dict[str, Answer] = {}
    for key, file in files.items():
        if not file.exists():
            continue
        try:
            array = _array(file, cases[key])
        except Exception as error:  # NumPy raises many kinds of errors for a damaged header
            if not died:
                found[key] = Kind.ERROR, printable(f"{file.name} is not a valid npy file: {str(error).replace(str(file), file.name)}")
            continue
        found[key] = Kind.OUTPUTS, cases[key].part({"output": _logits(array, cases[key])})
    return found


def silence(folder: Path, files: Sequence[Path], end: str) -> str:
    """Returns why cases have no output although the command succeeded, such as wrong names.

    end: how the command ended.
    """
    missing = [file.name for file in files if not file.exists()]
    try:
        others = sorted({*os.listdir(folder)} - {file.name for file in files})
    except OSError:  # the command removed it
        others = []
    if not missing or (len(missing) < len(files) and not others):
        return SILENCE
    meant = difflib.get_close_matches(missing[0], others[:MOST], n=1, cutoff=0.0)
    name = "".join(meant).replace("\x1b", r"\x1b")  # printable() would remove the escape sequences of a name
    found = printable(name) + f" and {len(others) - 1} more" * (len(others) > 1)
    return f"{SILENCE}: expected LOGITS/{missing[0]}, found {found or 'no file'}; the command ended with {end}"


def _array(file: Path, case: Case) -> np.ndarray:
    """Returns the array in a file. Raises an exception if it is not an npy file or is too large."""
    content = read_bytes(file, answer_limit(case.size) + HEADER)
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


def _logits(array: np.ndarray, case: Case) -> np.ndarray:
    wanted = numpy_dtype(case.dtype)
    wide = array.dtype.kind == "f" and array.dtype.itemsize >= wanted.itemsize
    array = array.astype(wanted) if wide else array
    return array[:, None] if array.ndim == 2 and case.compared == LAST else array
