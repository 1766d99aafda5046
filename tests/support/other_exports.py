"""Files of other exporters, each made from a small random checkpoint with the library's own API, as its users would.

`python tests/support/other_exports.py NAME FOLDER` makes one, in a process with the Keras backend that the file needs.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.numpy import load_file, save_file

from rosettaformer.files.checkpoints.hugging_face import new

OPTIMUM = os.environ.get("ROSETTAFORMER_OPTIMUM", "")  # the Python of an environment with optimum-onnx
ROWS, LENGTH = 2, 7  # sizes of the example that an exporter traces
# optimum-onnx needs a transformers release that does not read rope_parameters
OPTIMUM_SETTINGS = {"llama": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}}
# entries of config.json that KerasHub ignores, with the values it assumes
KERAS = {
    "bert": {"hidden_act": "gelu_new", "layer_norm_eps": 1e-12, "architectures": ["BertModel"]},
    "gpt2": {"n_inner": 192, "layer_norm_epsilon": 1e-5},
    "llama": {"head_dim": 8, "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
}


class Made(NamedTuple):
    """How a file is made. make: writes it, given the checkpoint and its path. family: of the checkpoint; empty if `make` writes the
    checkpoint itself. settings: entries of config.json. keras: the backend. words: further arguments of `check`.
    """

    make: Callable[[Path, Path], None]
    family: str = ""
    settings: Mapping[str, Any] = types.MappingProxyType({})
    keras: str = "tensorflow"
    words: tuple[str, ...] = ()


def made(name: str, folder: Path, planted: bool = False) -> tuple[Path, Path]:
    """Returns the checkpoint and the file of that name, made in its own process. planted: from a copy with one kernel times 3."""
    checkpoint, file = _places(name, folder)
    variables = os.environ | {"KERAS_BACKEND": FILES[name].keras, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, __file__, name, folder, *["planted"] * planted]
    said = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert file.exists(), said.stdout + said.stderr
    return checkpoint, file


def _places(name: str, folder: Path) -> tuple[Path, Path]:
    return folder / ("checkpoint" if FILES[name].family else "checkpoint.safetensors"), folder / name


def _make(name: str, folder: Path, planted: bool) -> None:
    checkpoint, file = _places(name, folder)
    how = FILES[name]
    if how.family:
        new.write(how.family, checkpoint, settings=how.settings)
    how.make(_planted(checkpoint) if planted else checkpoint, file)


def _planted(checkpoint: Path) -> Path:
    copy = shutil.copytree(checkpoint, checkpoint.with_name("planted"))
    tensors = load_file(copy / "model.safetensors")
    kernel = next(name for name in tensors if name.endswith("0.intermediate.dense.weight"))
    save_file(tensors | {kernel: 3 * tensors[kernel]}, copy / "model.safetensors", {"format": "pt"})
    return copy


# --------------------------------------------------------------- torch.nn.Transformer


def _translator() -> Any:
    """A model of both stacks as in tutorials, with its causal mask."""
    import math

    import torch
    from torch import nn

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target = nn.Embedding(37, 12, padding_idx=0), nn.Embedding(31, 12, padding_idx=0)
            self.transformer = nn.Transformer(12, 3, 2, 2, 20, batch_first=True)
            self.generator = nn.Linear(12, 31)
            angle = torch.arange(1024)[:, None] * torch.exp(torch.arange(0, 12, 2) * (-math.log(10000.0) / 12))
            self.register_buffer("pe", torch.stack([angle.sin(), angle.cos()], -1).flatten(1))

        def embedded(self, table: Any, ids: Any) -> Any:
            return table(ids) * math.sqrt(12) + self.pe[: ids.shape[1]]

        def forward(self, src: Any, tgt: Any, src_key_padding_mask: Any, tgt_key_padding_mask: Any) -> Any:
            length = tgt.shape[1]
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            read = self.transformer(
                self.embedded(self.source, src), self.embedded(self.target, tgt), tgt_mask=later, tgt_is_causal=True,
                src_key_padding_mask=src_key_padding_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=src_key_padding_mask,
            )  # fmt: skip
            return self.generator(read)

    torch.manual_seed(0)
    model = Translator()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()


def _of_translator(export: Callable[[Any, dict[str, Any], Path], None]) -> Callable[[Path, Path], None]:
    def make(checkpoint: Path, file: Path) -> None:
        import torch
        from invoke import succeeded

        model, weights = _translator(), checkpoint.with_name("weights.pt")
        torch.save(model.state_dict(), weights)
        names = ("--name", "source_embedding=source", "--name", "target_embedding=target", "--name", "logits=generator")
        words = ("--from", "torch-transformer", "--to", "canonical", "--preset", "nn_transformer", "--set", "heads=3", *names)
        succeeded("convert", weights, checkpoint, *words, "--ignore", "pe")
        sides = {"src": ROWS * (LENGTH + 1), "tgt": ROWS * LENGTH}
        ids = {name: 3 + torch.arange(count).reshape(ROWS, -1) for name, count in sides.items()}
        export(model, ids | {f"{name}_key_padding_mask": one > 15 for name, one in ids.items()}, file)

    return make


# --------------------------------------------------------------- transformers


def _transformers(export: Callable[[Any, dict[str, Any], Path], None], positions: bool = True) -> Callable[[Path, Path], None]:
    """positions: GPT-2 takes its position ids."""

    def make(checkpoint: Path, file: Path) -> None:
        import json

        import torch
        import transformers

        named = json.loads((checkpoint / "config.json").read_text())
        model = getattr(transformers, named["architectures"][0]).from_pretrained(checkpoint, attn_implementation="eager").eval()
        model.config.use_cache = False
        ids = 3 + torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if named["model_type"] == "bert":
            given["token_type_ids"] = ids % 2
        elif named["model_type"] == "gpt2" and positions:
            given["position_ids"] = torch.arange(LENGTH).repeat(ROWS, 1)
        export(model, given, file)

    return make


ROOM = 64  # tokens in a cache of fixed size


def _kept_cache(checkpoint: Path, file: Path) -> None:
    """A program that keeps the cache between its calls, for one row and one token."""
    import torch
    from transformers.integrations import executorch

    model = _with_static_cache(checkpoint)
    model.generation_config.cache_config = {"batch_size": 1, "max_cache_len": ROOM, "device": "cpu"}
    with torch.no_grad():
        torch.export.save(executorch.convert_and_export_with_cache(model, torch.tensor([[3]]), torch.tensor([0])), file)


def _given_cache(checkpoint: Path, file: Path) -> None:
    """A step that takes a preallocated cache and returns it."""
    import torch
    from transformers import StaticCache

    model = _with_static_cache(checkpoint)
    config = model.config
    layers = config.num_hidden_layers
    names = [f"past_key_values.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, cache_position: Any, *past: Any) -> Any:
            cache = StaticCache(config=config, max_cache_len=ROOM)
            cache.early_initialization(len(input_ids), config.num_key_value_heads, config.head_dim, torch.float32, torch.device("cpu"))
            for layer, keys, values in zip(cache.layers, past[::2], past[1::2], strict=True):
                layer.keys, layer.values, layer.cumulative_length = keys.clone(), values.clone(), cache_position[0].clone()
            logits = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache, use_cache=True
            ).logits
            return logits, *(array for layer in cache.layers for array in (layer.keys, layer.values))

    ids = 3 + torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH)
    past = [torch.zeros(ROWS, config.num_key_value_heads, ROOM, config.head_dim) for _ in names]
    mask = (torch.arange(ROOM) < LENGTH).repeat(ROWS, 1).long()
    given = (ids, mask, torch.arange(LENGTH).repeat(ROWS, 1), torch.arange(LENGTH), *past)
    rows, length = torch.export.Dim("rows"), torch.export.Dim("length", max=ROOM)
    tokens, cache = {0: rows, 1: length}, {0: rows}
    torch.onnx.export(
        Step().eval(), given, file, dynamo=True, external_data=False, verbose=False,
        input_names=["input_ids", "attention_mask", "position_ids", "cache_position", *names],
        output_names=["logits", *(name.replace("past_key_values", "present") for name in names)],
        dynamic_shapes=(tokens, cache, tokens, {0: length}, (cache,) * len(names)),
    )  # fmt: skip


def _with_static_cache(checkpoint: Path) -> Any:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    model.generation_config.update(use_cache=True, cache_implementation="static")
    return model


def _dynamic(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns dynamic rows and lengths: one length per side."""
    import torch

    side = {name: name[:3] if name.startswith(("src", "tgt")) else "text" for name in given}
    return {name: {0: torch.export.Dim("rows"), 1: torch.export.Dim(f"{side[name]}_length", max=640)} for name in given}


def _dynamo(model: Any, given: dict[str, Any], file: Path) -> None:
    import torch

    torch.onnx.export(
        model, (), file, kwargs=given, input_names=[*given], dynamic_shapes=_dynamic(given), dynamo=True, external_data=False, verbose=False
    )


def _torchscript(model: Any, given: dict[str, Any], file: Path) -> None:
    import torch

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *arguments: Any) -> Any:
            found = self.model(**dict(zip(given, arguments, strict=True)))
            return found if isinstance(found, torch.Tensor) else found.logits

    axes = {name: {0: "rows", 1: name[:3]} for name in given}
    torch.onnx.export(
        Plain(), tuple(given.values()), str(file), input_names=[*given], output_names=["logits"], dynamic_axes=axes, dynamo=False
    )


def _program(model: Any, given: dict[str, Any]) -> Any:
    import torch

    with torch.no_grad():
        return torch.export.export(model, (), given, dynamic_shapes=_dynamic(given))


def _saved_program(model: Any, given: dict[str, Any], file: Path) -> None:
    import torch

    torch.export.save(_program(model, given), file)


def _compiled(model: Any, given: dict[str, Any], file: Path) -> None:
    import torch

    torch._inductor.aoti_compile_and_package(_program(model, given), package_path=str(file))


def _lower_onnx(precision: str) -> Callable[[Any, dict[str, Any], Path], None]:
    def export(model: Any, given: dict[str, Any], file: Path) -> None:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.transformers.float16 import convert_float_to_float16

        whole = file.with_name("whole.onnx")
        _dynamo(model, given, whole)
        if precision == "int8":
            quantize_dynamic(whole, file, weight_type=QuantType.QUInt8)  # sums of QInt8 saturate on older processors
        else:
            onnx.save(convert_float_to_float16(onnx.load(whole), keep_io_types=True), file)

    return export


def _torchao(config: str) -> Callable[[Any, dict[str, Any], Path], None]:
    def export(model: Any, given: dict[str, Any], file: Path) -> None:
        import torch
        from torchao import quantization

        quantization.quantize_(model, getattr(quantization, config)())
        torch.export.save(_program(model, given).run_decompositions(), file)  # without decomposition it needs torchao

    return export


def _optimum(task: str) -> Callable[[Path, Path], None]:
    def make(checkpoint: Path, file: Path) -> None:
        command = [OPTIMUM, "-m", "optimum.commands.optimum_cli", "export", "onnx", "--model", checkpoint, "--task", task, file.parent]
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run(command, env=kept, check=True)
        (file.parent / "model.onnx").rename(file)

    return make


# --------------------------------------------------------------- KerasHub


def _lite(precision: str) -> Callable[[Path, Path], None]:
    def make(checkpoint: Path, file: Path) -> None:
        import tensorflow as tf

        whole = file.with_name("bert-saved")
        _keras_hub()(checkpoint, whole)
        converter = tf.lite.TFLiteConverter.from_saved_model(str(whole))
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        file.write_bytes(converter.convert())

    return make


def _keras_hub(fixed: bool = False, **options: Any) -> Callable[[Path, Path], None]:
    """fixed: only for the sizes of the example, otherwise the backend rejects it. options: of `export`."""

    def make(checkpoint: Path, file: Path) -> None:
        if not importlib.util.find_spec("sentencepiece"):  # some converters import it for tokenizers
            sys.modules["sentencepiece"] = types.SimpleNamespace(SentencePieceProcessor=None)
        import keras
        import keras_hub
        import numpy as np

        encoder = "BertModel" in (checkpoint / "config.json").read_text()
        if encoder:
            model = keras_hub.models.Backbone.from_preset(str(checkpoint), dtype="float32")
        else:
            model = keras_hub.models.CausalLM.from_preset(str(checkpoint), preprocessor=None, dtype="float32")
        ids = 3 + np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH)
        given = {"token_ids": ids.astype("int32"), "padding_mask": (ids > 0).astype("int32")}
        given |= {"segment_ids": given["token_ids"] % 2} if encoder else {}
        model(given)  # ONNX export needs one call, and no tensor with a gradient
        model.trainable = False
        if fixed:
            specs = {name: keras.InputSpec(one.dtype.name, one.shape, name=name) for name, one in given.items()}
            options["input_signature"] = [specs]
        model.export(str(file), **options)

    return make


# --------------------------------------------------------------- Flax


def _flax(family: str) -> Callable[[Path, Path], None]:
    def make(checkpoint: Path, file: Path) -> None:
        import flax_models
        import jax
        import jax.numpy as jnp

        sizes = jax.export.symbolic_shape("b, t")
        given = (jax.ShapeDtypeStruct(sizes, jnp.int32), jax.ShapeDtypeStruct(sizes, jnp.bool))
        file.write_bytes(jax.export.export(jax.jit(getattr(flax_models, family)(checkpoint)))(*given).serialize())

    return make


# --------------------------------------------------------------- the files


def _files() -> Iterator[tuple[str, Made]]:
    yield "transformer-dynamo.onnx", Made(_of_translator(_dynamo))
    yield "transformer-torchscript.onnx", Made(_of_translator(_torchscript))
    for family in ("bert", "gpt2", "llama"):
        yield f"{family}-dynamo.onnx", Made(_transformers(_dynamo), family)
        yield f"{family}-torchscript.onnx", Made(_transformers(_torchscript), family)
        task = "fill-mask" if family == "bert" else "text-generation-with-past"
        yield f"{family}-optimum.onnx", Made(_optimum(task), family, OPTIMUM_SETTINGS.get(family, {}))
        yield f"{family}-keras", Made(_keras_hub(), family, KERAS[family])
        yield f"{family}-keras.tflite", Made(_keras_hub(format="litert"), family, KERAS[family])
        yield f"{family}-keras.onnx", Made(_keras_hub(fixed=True, format="onnx"), family, KERAS[family], "torch")
        yield f"{family}-keras.pt2", Made(_keras_hub(fixed=True, format="torch"), family, KERAS[family], "torch")
    yield "gpt2-without-positions.onnx", Made(_transformers(_dynamo, positions=False), "gpt2")
    yield "gpt2-export.pt2", Made(_transformers(_saved_program), "gpt2")
    yield "gpt2-inductor.pt2", Made(_transformers(_compiled), "gpt2", words=("--allow-code",))
    yield "llama-static.pt2", Made(_kept_cache, "llama")
    yield "llama-static.onnx", Made(_given_cache, "llama")
    yield "gpt2-flax.stablehlo", Made(_flax("gpt2"), "gpt2")
    yield "llama-flax.stablehlo", Made(_flax("llama"), "llama")
    for precision in ("int8", "float16"):
        words = ("--expect", precision)
        yield f"bert-{precision}.onnx", Made(_transformers(_lower_onnx(precision)), "bert", words=words)
        yield f"bert-{precision}.tflite", Made(_lite(precision), "bert", KERAS["bert"], words=words)
    for name, config in {"weights": "Int8WeightOnlyConfig", "dynamic": "Int8DynamicActivationInt8WeightConfig"}.items():
        yield f"bert-int8-{name}.pt2", Made(_transformers(_torchao(config)), "bert", words=("--expect", "int8"))


FILES: Mapping[str, Made] = dict(_files())

if __name__ == "__main__":
    _make(sys.argv[1], Path(sys.argv[2]), len(sys.argv) > 3)
