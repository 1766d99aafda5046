"""Recognises the format of a file or a folder."""

import itertools
import re
from pathlib import Path

from . import canonical, hugging_face, pickled, recognise


def recognised(path: Path) -> str:
    """Returns the format of a file or folder, from its content; canonical if no other fits, whose reader then says what it is.

    Raises ValueError if there is nothing to read, and ForeignError on another program's file.
    """
    pickle = pickled.weights(path)
    if pickle and recognise.model_type(path) in recognise.converted():
        return "hugging-face"
    if path.is_file() and not pickle and (recognise.kind_of(path) is recognise.TORCH or path.suffix in pickled.SUFFIXES):
        return "torch-transformer"
    source = pickled.read(path)
    if canonical.is_canonical(source):
        return "canonical"
    if hugging_face.family_of(path, source.tensors):
        return "hugging-face"
    names = itertools.islice(source.tensors, recognise.MOST)
    return "torch-transformer" if any(re.fullmatch(recognise.NATIVE, name) for name in names) else "canonical"
