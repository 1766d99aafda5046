"""ONNX files of small models, written by torch's exporter."""

import contextlib
import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rosettaformer.files.checkpoints.hugging_face import new


def exported(family: str, folder: Path) -> tuple[Path, Path]:
    """Returns the folder and the file of a random transformers model of a family and its export."""
    import torch
    import transformers

    path, file = folder / family, folder / f"{family}.onnx"
    if not file.exists():
        new.write(family, path)
        named = transformers.AutoConfig.from_pretrained(path).architectures[0]
        model = getattr(transformers, named).from_pretrained(path, attn_implementation="eager", dtype="float32").eval()
        model.config.use_cache = False
        ids = torch.arange(14).reshape(2, 7) + 3
        export(model, file, {"input_ids": ids, "attention_mask": ids * 0 + 1})
    return path, file


def export(model: Any, file: Path, inputs: Mapping[str, Any], dynamic: bool = True) -> None:
    """Exports a module. dynamic: rows and positions are not fixed."""
    import torch

    dims = [torch.export.Dim("b"), torch.export.Dim("t")] if dynamic else []
    options: dict[str, Any] = {"dynamic_shapes": {name: dict(enumerate(dims)) for name in inputs}} if dynamic else {}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (), str(file), kwargs=dict(inputs), input_names=[*inputs], dynamo=True, external_data=False, verbose=False, **options
        )


def export_with_cache(model: Any, file: Path) -> None:
    """Exports a decoder of transformers whose keys and values are inputs and outputs, under the names used in practice."""
    import torch
    from transformers import DynamicCache

    layers, heads, size = model.config.num_hidden_layers, model.config.num_key_value_heads, model.config.head_dim

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: list[Any]) -> tuple[Any, ...]:
            cache = DynamicCache(config=model.config)
            for layer in range(layers):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            found = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache, use_cache=True
            )
            return (found.logits, *(each for layer in found.past_key_values.layers for each in (layer.keys, layer.values)))

    model.set_attn_implementation("eager")
    free, past = torch.export.Dim.DYNAMIC, [torch.randn(2, heads, 5, size) for _ in range(2 * layers)]
    given = (torch.ones(2, 3, dtype=torch.long), torch.ones(2, 8, dtype=torch.long), torch.arange(5, 8)[None].repeat(2, 1), past)
    names = [f"past_key_values.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Step().eval(), given, str(file), dynamo=True, external_data=False, verbose=False,
            dynamic_shapes=(*({0: free, 1: free},) * 3, [{0: free, 2: free}] * len(past)),
            input_names=["input_ids", "attention_mask", "position_ids", *names],
            output_names=["logits", *(name.replace("past_key_values", "present") for name in names)],
        )  # fmt: skip
