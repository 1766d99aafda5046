"""Detects the format of a file or folder."""

import itertools
import re
from pathlib import Path

from . import canonical, hugging_face, pickled, recognise


def recognised(path: Path) -> str:
    """Detects the format from the content; "canonical" if nothing else fits.

    Raises ValueError if there is nothing to read, and ForeignError for other programs' files.
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
