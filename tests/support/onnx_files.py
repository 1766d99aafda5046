"""ONNX files for tests: our port's Transformer exported by PyTorch, and edits of a graph."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from impl_torch.transformer import Transformer
from impl_torch.values import Text
from reference_numpy import TransformerConfig
from rosettaformer.common.backends import transformer
from rosettaformer.files.checkpoints import save

ROWS, LENGTH = 2, 4


class OfTensors(Transformer):
    """A model whose graph has an input for each mask."""

    def forward(self, source: Any, target: Any = None, source_mask_bs: Any = None, target_mask_bt: Any = None) -> torch.Tensor:
        sides = (source, source_mask_bs), (target, target_mask_bt)
        return super().forward(*(None if ids is None else Text(ids, mask) for ids, mask in sides))


def written(folder: Path, config: TransformerConfig, parameters: dict[str, np.ndarray], fixed: bool = False) -> tuple[Path, Path]:
    """Writes a canonical checkpoint and its ONNX model. fixed: for 2 rows of 4 tokens only."""
    checkpoint, file = folder / "model.safetensors", folder / "model.onnx"
    save(checkpoint, config, parameters)
    model = transformer("torch", config, parameters).eval()
    model.__class__ = OfTensors
    sides = [side for side, layers in (("source", config.encoder_layers), ("target", config.decoder_layers)) if layers]
    ids = {side: torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % 7 for side in sides}
    masks = {f"{side}_mask_{'bs' if side == 'source' else 'bt'}": torch.ones(ROWS, LENGTH, dtype=torch.bool) for side in sides}
    given = {"source": None} | ids | masks
    dynamic = {name: None if value is None else {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for name, value in given.items()}
    options: dict[str, Any] = {} if fixed else {"dynamic_shapes": dynamic}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (), file, kwargs=given, dynamo=True, verbose=False, external_data=False, **options)
    return checkpoint, file


def edited(file: Path, name: str, edit: Callable[[onnx.GraphProto], None]) -> Path:
    """Writes the model after an edit of its graph to the same folder under another name."""
    model = onnx.load(file)
    edit(model.graph)
    onnx.save(model, file.with_name(name))
    return file.with_name(name)


def scaled(graph: onnx.GraphProto, place: int, factor: float) -> None:
    """Scales the initializer at that index among the matrices."""
    matrices = [each for each in graph.initializer if len(each.dims) == 2]
    array = numpy_helper.to_array(matrices[place])
    matrices[place].CopyFrom(numpy_helper.from_array((array * factor).astype(array.dtype), matrices[place].name))
