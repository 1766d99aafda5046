"""Writes SavedModels and LiteRT models: one file with a signature per function, for any sizes."""

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impl_tf import weights
from impl_tf.framework import keras
from impl_tf.inputs import sinusoids
from impl_tf.programs import entries
from impl_tf.transformer import Transformer
from reference_numpy import TransformerConfig

from ..signature import Entry
from . import Exported
from .functions import ids_of, of_config

POSITIONS = 4096  # rows of the sinusoid table in a LiteRT model, which has no float64 sine
LIMIT = 1 << 31  # bytes that fit into a LiteRT model, which is a flatbuffer


def write(model: Transformer, config: TransformerConfig, kind: str, path: Path, dtype: str) -> Exported:
    """Writes the folder or file. Raises ValueError if the format cannot hold the model."""
    names = ids_of(config)
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    if kind == "savedmodel":
        functions = of_config(config, dtype)
        _save(model, functions, path)
        ids = dict.fromkeys(names, "refused on a CPU, nan on others")
    else:
        functions = _lite(model, config, path, dtype)
        ids = dict.fromkeys(names, "refused")
        if config.positions == "sinusoidal":
            ids["positions"] = f"refused from {POSITIONS} on"
    return Exported(functions, dict.fromkeys(functions, path.name), ids, versions)


def _save(model: Transformer, functions: dict[str, Entry], path: Path) -> None:
    """Writes a SavedModel with all functions; the first is also the default signature."""
    module = tf.Module()
    module.held = [variable.value for variable in model.variables]
    signatures = {name: _function(model, entry) for name, entry in functions.items()}
    tf.saved_model.save(module, path, signatures | {"serving_default": signatures["forward"]})


def _function(model: Transformer, entry: Entry) -> Any:
    """Returns the graph of a function that takes its inputs by name."""
    function = getattr(entries, entry.name)
    given = {}
    for tensor in entry.inputs:
        shape = [size if isinstance(size, int) else None for size in tensor.shape]
        given[tensor.name] = tf.TensorSpec(shape, tensor.dtype, tensor.name)
    return tf.function(lambda **named: function(model, **named)).get_concrete_function(**given)


def _lite(model: Transformer, config: TransformerConfig, path: Path, dtype: str) -> dict[str, Entry]:
    """Writes a LiteRT model that computes in float32, with float32 or float16 parameters."""
    if dtype not in ("float32", "float16"):
        raise ValueError(
            f"a LiteRT model needs float32 or float16 parameters, since it computes in float32; got {dtype}; see docs/artefacts.md#litert"
        )
    scalings = config.rotary_scaling, config.local_rotary_scaling
    if config.positions == "rotary" and any(scaling.kind == "dynamic" for scaling in scalings):
        raise ValueError("LiteRT has no float64 power, which dynamic scaling needs for its frequencies; see docs/artefacts.md#litert")
    if 4 * sum(int(np.prod(variable.shape)) for variable in model.variables) >= LIMIT:
        raise ValueError("a LiteRT model must be smaller than 2 GiB, including its parameters; see docs/artefacts.md#litert")
    functions = of_config(config, "float32")
    with tempfile.TemporaryDirectory() as folder:
        _save(_of_constants(model, config), functions, Path(folder))
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(functions))
        if dtype == "float16":
            converter.optimizations, converter.target_spec.supported_types = [tf.lite.Optimize.DEFAULT], [tf.float16]
        try:
            path.write_bytes(converter.convert())
        except Exception as error:  # ConverterError, which is not public
            lacking = re.search(r"TF Select ops: (.*)", str(error))
            why = f"LiteRT lacks {lacking[1]}" if lacking else "its converter rejects the graph"
            raise ValueError(
                f"the model cannot be converted to LiteRT for all batch sizes and lengths: {why}; see docs/artefacts.md#litert"
            ) from None
    return functions


def _of_constants(model: Transformer, config: TransformerConfig) -> Transformer:
    """Returns the model in float32, with sinusoids stored as a learned position table."""
    values = {name: np.asarray(array, np.float32) for name, array in weights.export(model, config).items()}
    if config.positions == "sinusoidal":
        table_pd = sinusoids(config, POSITIONS, tf.float32).numpy()
        config = config.replace(positions="learned", max_positions=POSITIONS, position_offset=0)
        sides = [side for side, layers in (("source", config.encoder_layers), ("target", config.decoder_layers)) if layers]
        values |= {f"{side}_position_embedding.table": table_pd for side in sides}
    found = Transformer(config, dtype="float32")
    weights.load(found, values, config)
    return found
