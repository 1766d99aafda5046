"""Writes the Hugging Face checkpoints for ports of whole models, one per dtype."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from reference_numpy import TransformerConfig
from reference_numpy.config import LayerKind
from reference_numpy.sharding import Mesh
from reference_numpy.suggestions import nearest

from ...files.checkpoints import Checkpoint, unsupported, view
from ...files.checkpoints.hugging_face import new, save
from ..case import Case, numpy_dtype
from .checkpoint import usual
from .fitting import fits
from .like import deep_case, like_cases


def cases_of(
    like: str, root: Path, dtypes: Sequence[str], seed: int = 0, meshes: Sequence[Mesh] = (), memory: float | None = None
) -> list[Case]:  # fmt: skip
    """Returns the cases of a new or given model, and writes it into `root` in each dtype.

    like: one of `new.names`, or a Hugging Face checkpoint. In its own dtype, the checkpoint itself
    is used instead of a copy. dtypes: by default the `usual` ones. meshes, memory: see
    `like_cases`.

    Raises ValueError for any other name, and lists everything wrong with a checkpoint.
    """
    if Path(like).is_dir():
        own = Path(like).resolve()
        dtypes = dtypes or usual(_dtype(view(own, "hugging-face")))
        cases = like_cases(root, meshes, own, dtypes, memory)
        _copied(own, root, [dtype for dtype in dtypes if any(dtype in fits(case) for case in cases)])
        return cases
    if like not in new.names():
        unsupported.refuse(like)
        raise ValueError(f"--like must be a folder or one of {', '.join(new.names())}; got {like!r}{nearest(like, new.names())}")
    dtypes = dtypes or usual("float32")
    for dtype in dtypes:
        new.write(like, root / dtype, seed=seed, dtype=dtype)
    if meshes:
        return like_cases(root, meshes)
    (deep := root / "deep").mkdir()
    for dtype in dtypes:
        new.write(like, deep / dtype, seed=seed, dtype=dtype, size=deep.name)
    return [*like_cases(root), deep_case(deep, dtypes)]


def described(config: TransformerConfig) -> str:
    """Describes a model's positions and windows, which differ within a family, in one line."""
    layers: dict[str, list[int]] = {}
    for layer in range(config.encoder_layers or config.decoder_layers):
        layers.setdefault(_attention(config, config.layer_kind(layer)), []).append(layer)
    if len(layers) == 1:
        return next(iter(layers))
    return "; ".join(f"layers {', '.join(map(str, numbers))}: {text}" for text, numbers in layers.items())


def _attention(config: TransformerConfig, kind: LayerKind) -> str:
    text = "no positions" if config.positions == "rotary" else f"{config.positions} positions"
    if kind.rotary:
        said = {name: value for name, value in kind.scaling.to_dict().items() if name in ("factor", "original_length")}
        more = "".join(f", {name.replace('_', ' ')} {value:g}" for name, value in said.items())
        text = f"RoPE with base {kind.base:g}, " + (f"{kind.scaling.kind} scaling{more}" if kind.scaling.kind != "none" else "not scaled")
    return text + (f", a window of {kind.window} tokens" if kind.window else "")


def _dtype(checkpoint: Checkpoint) -> str:
    return str(next(iter(checkpoint.parameters.values())).dtype)


def _copied(folder: Path, root: Path, dtypes: Sequence[str]) -> None:
    checkpoint = view(folder, "hugging-face")
    own = _dtype(checkpoint)
    size = sum(array.size for array in checkpoint.parameters.values())
    others = [dtype for dtype in dtypes if dtype != own]
    needed, free = size * sum(numpy_dtype(dtype).itemsize for dtype in others), shutil.disk_usage(root).free
    if needed > free:
        raise ValueError(
            f"converting {folder} to {', '.join(others)} needs {needed / 1e9:.1f} GB in {root.parent}; {free / 1e9:.1f} GB are free. "
            f"Pass --dtype {own}, or set TMPDIR to a folder on a larger disk"
        )
    for dtype in dtypes:
        if dtype == own:
            (root / dtype).symlink_to(folder, target_is_directory=True)
        else:
            save(root / dtype, checkpoint.config, checkpoint.parameters, foreign=checkpoint.foreign, dtype=dtype, tokenizer=folder)
