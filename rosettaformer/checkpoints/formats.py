"""Of which format a file or a folder is."""

import itertools
import re
from pathlib import Path

from . import canonical, hugging_face, pickled, recognise

__all__ = ["recognised"]


def recognised(path: Path) -> str:
    """The format of a file or folder, by what is there; canonical where it is none of the others, whose reader says what it is.

    Raises ValueError where there is nothing to read, and ForeignError on another program's.
    """
    pickle = pickled.weights(path)
    if pickle and recognise.model_type(path) in hugging_face.FAMILIES:
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
