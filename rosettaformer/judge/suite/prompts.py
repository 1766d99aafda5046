"""Prompts as files, for a command that reads a folder of Hugging Face and writes logits.

A prompt is an npz file with `token_bt`, `mask_bt` (True at real tokens) and, for an encoder, `segment_bt`; its logits `b t v` are expected
in an npy file of the same name. bfloat16, which NumPy has not, is written as float32.
"""

import difflib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ...common.processes import Answer, printable
from ...common.processes.wire import answer_limit
from ...common.reading import read_bytes
from ..case import LAST, Case, numpy_dtype
from ..status import Kind

SILENCE = "the command gave no answer"
MOST = 100  # at most this many files are looked at for the one that was meant
HEADER = 1 << 16  # bytes of an npy file before its array, at most
COMPONENTS = ("transformer", "masked_language_logits", "classify")


def is_prompt(case: Case) -> bool:
    """Whether the case asks a whole model for its logits."""
    return case.component in COMPONENTS


def write(folder: Path, cases: Mapping[str, Case]) -> dict[str, str]:
    """Writes the prompts of these cases into an empty folder; returns each one's name by the same key."""
    names = {}
    for number, (key, case) in enumerate(cases.items(), start=1):
        names[key] = f"{number:04}-{case.name}"
        token_bt = next(case.inputs[side] for side in ("target", "source") if case.inputs.get(side) is not None)
        arrays = {"token_bt": token_bt, "mask_bt": np.ones(token_bt.shape, bool) if case.real_bt is None else case.real_bt}
        if case.config.encoder_layers:
            segment_bt = case.inputs.get("segment_bs")
            arrays["segment_bt"] = np.zeros_like(token_bt) if segment_bt is None else segment_bt
        np.savez(folder / f"{names[key]}.npz", **arrays)
    return names


def read(files: Mapping[str, Path], cases: Mapping[str, Case], died: bool) -> dict[str, Answer]:
    """Returns the logits that were written, by the same keys; if the command died, without a last file that cannot be read."""
    found: dict[str, Answer] = {}
    for key, file in files.items():
        if not file.exists():
            continue
        try:
            array = _array(file, cases[key])
        except Exception as error:  # NumPy raises errors of many kinds on a damaged header
            if not died:
                found[key] = Kind.ERROR, printable(f"{file.name} must be an npy file: {str(error).replace(str(file), file.name)}")
            continue
        found[key] = Kind.OUTPUTS, cases[key].part({"output": _logits(array, cases[key])})
    return found


def silence(folder: Path, files: Sequence[Path], end: str) -> str:
    """Returns why cases have no answer, of a command that did not fail: which file was expected where others are found in the folder, or
    where there is none of those expected. end: how the command ended.
    """
    missing = [file.name for file in files if not file.exists()]
    try:
        others = sorted({*os.listdir(folder)} - {file.name for file in files})
    except OSError:  # the command removed it
        others = []
    if not missing or (len(missing) < len(files) and not others):
        return SILENCE
    meant = difflib.get_close_matches(missing[0], others[:MOST], n=1, cutoff=0.0)
    name = "".join(meant).replace("\x1b", r"\x1b")  # a name is shown whole, although codes are taken out of messages
    found = printable(name) + f" and {len(others) - 1} more" * (len(others) > 1)
    return f"{SILENCE}: LOGITS/{missing[0]} was expected, and there is {found or 'nothing'}; the command ended with {end}"


def _array(file: Path, case: Case) -> np.ndarray:
    """Returns the array of a file. Raises an exception if it is no npy file, or too large."""
    content = read_bytes(file, answer_limit(case.size) + HEADER)
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


def _logits(array: np.ndarray, case: Case) -> np.ndarray:
    wanted = numpy_dtype(case.dtype)
    wide = array.dtype.kind == "f" and array.dtype.itemsize >= wanted.itemsize
    array = array.astype(wanted) if wide else array
    return array[:, None] if array.ndim == 2 and case.compared == LAST else array
