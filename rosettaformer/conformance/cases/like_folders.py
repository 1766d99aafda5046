"""The folders that a port of a whole model is given: one model in each dtype, as Hugging Face writes it."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from reference_numpy.sharding import Mesh
from reference_numpy.suggestions import nearest

from ...checkpoints import view
from ...checkpoints.hugging_face import FAMILIES, new, save
from ..case import Case, numpy_dtype
from .fitting import fits
from .like import like_cases


def cases_of(
    like: str, root: Path, dtypes: Sequence[str], seed: int = 0, meshes: Sequence[Mesh] = (), memory: float | None = None
) -> list[Case]:  # fmt: skip
    """Returns the cases of a family's new random model, or of the model in a folder, which is written into `root` in each dtype.

    like: a family, or a folder of Hugging Face. Of a folder the port is given the folder itself in the dtype that it has.
    meshes, memory: see `like_cases`. Raises ValueError if it is neither, and listing everything
    that is wrong with a folder.
    """
    if Path(like).is_dir():
        own = Path(like).resolve()
        cases = like_cases(root, meshes, own, dtypes, memory)
        _copied(own, root, [dtype for dtype in dtypes if any(dtype in fits(case) for case in cases)])
        return cases
    if like in FAMILIES:
        for dtype in dtypes:
            new.write(like, root / dtype, seed=seed, dtype=dtype)
    else:
        families = ", ".join(FAMILIES)
        raise ValueError(f"--like must be a folder, or one of {families}; got {like!r}{nearest(like, FAMILIES)}")
    return like_cases(root, meshes)


def _copied(folder: Path, root: Path, dtypes: Sequence[str]) -> None:
    checkpoint = view(folder, "hugging-face")
    own = str(next(iter(checkpoint.parameters.values())).dtype)
    size = sum(array.size for array in checkpoint.parameters.values())
    others = [dtype for dtype in dtypes if dtype != own]
    needed, free = size * sum(numpy_dtype(dtype).itemsize for dtype in others), shutil.disk_usage(root).free
    if needed > free:
        raise ValueError(
            f"{folder} in {', '.join(others)} takes {needed / 1e9:.1f} GB in {root.parent}, where {free / 1e9:.1f} GB are free: "
            f"give --dtype {own}, or let TMPDIR name a larger disk"
        )
    for dtype in dtypes:
        if dtype == own:
            (root / dtype).symlink_to(folder, target_is_directory=True)
        else:
            save(root / dtype, checkpoint.config, checkpoint.parameters, foreign=checkpoint.foreign, dtype=dtype, tokenizer=folder)
