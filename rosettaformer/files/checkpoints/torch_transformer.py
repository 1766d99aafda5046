"""State dicts of `torch.nn.Transformer` plus source and target embeddings and an output layer."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters
from reference_numpy import preset as preset_of

from ...common.atomic import replacing
from . import Checkpoint, CheckpointError, container, pickled, strict, torch_layout
from .container import Written
from .paper import PAPER
from .torch_names import Names

SAVE_OPTIONS = tuple(field.name for field in dataclasses.fields(Names))
LOAD_OPTIONS = ("key", "preset", "settings", *SAVE_OPTIONS, "ignore", "fresh_embeddings")
_SIZES = ("source_vocabulary", "target_vocabulary", "model_width", "feed_forward_width", "encoder_layers", "decoder_layers")
_PER_HEAD = ("key_value_heads", "key_size", "value_size")


def view(path: str | Path, *, key: str | None = None, **options: Any) -> Checkpoint:
    """Reads a .safetensors file, an index of shards, or a torch.save file.

    key: the entry of a training checkpoint that holds the state dict. options: see
    `import_state_dict`.
    """
    path = Path(path)
    source = pickled.read(path, key)
    if source.problems:
        raise CheckpointError(path, source.problems)
    return import_state_dict(source.tensors, name=str(path), **options)


def save(
    path: str | Path,
    config: TransformerConfig,
    parameters: Mapping[str, np.ndarray],
    *,
    foreign: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    written: Written = lambda count: None,
    **names: Any,
) -> None:
    """Writes the state dict as .safetensors, .pt or .pth; a failed write leaves nothing behind.

    foreign: dropped. names: see `export_state_dict`. dtype, written: see `checkpoints.save`.
    """
    path = Path(path)
    if path.suffix not in (".safetensors", *pickled.SUFFIXES):
        raise ValueError(f"the file name of a state dict must end in .safetensors, {', '.join(pickled.SUFFIXES)}; got {path.name!r}")
    state, kind = export_state_dict(config, parameters, dtype=dtype, **names), dtype and strict.numpy_dtype(dtype)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file")
    with replacing(path) as temporary:
        if path.suffix in pickled.SUFFIXES:
            pickled.write(temporary, {name: array.astype(kind or array.dtype, copy=False) for name, array in state.items()})
        else:
            container.write(temporary, state, {"format": "pt"}, kind, written)  # Hugging Face's readers require it


def import_state_dict(
    state: Mapping[str, np.ndarray],
    *,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    source_embedding: str | None = None,
    target_embedding: str | None = None,
    logits: str | None = None,
    ignore: Sequence[str] = (),
    fresh_embeddings: int | None = None,
    name: str = "the state dict",
) -> Checkpoint:
    """Converts a state dict of NumPy arrays to a checkpoint.

    Sizes come from the shapes. Fields that no shape shows, such as the number of heads, come from
    the preset and settings. prefix, source_embedding, target_embedding, logits: see `Names`.
    ignore: tensors that are not parameters, such as a position table. fresh_embeddings: seed for
    the tables and the output layer, if the state dict lacks them. Raises ValueError listing every
    name, shape, dtype and value that does not fit, and every contradiction with the settings.
    """
    found = Names(prefix, source_embedding, target_embedding, logits).find(name, state, ignore)
    natives = {native: state[key] for native, key in found.keys.items()}
    shown = found.shown(natives, fresh_embeddings is not None)
    config, problems = _resolve(shown, preset, settings)
    problems = found.problems + problems
    tensors = {key: state[key] for key in found.keys.values()}
    if config:
        problems += found.match_problems(config, state, fresh_embeddings is not None)
        problems += [
            f"{found.keys[native]} must equal {found.keys[stored]}, to which the config ties it; untie them or make them equal"
            for native, stored in torch_layout.ties(config).items()
            if native in natives and stored in natives and natives[native].shape == natives[stored].shape
            if natives[native].tobytes() != natives[stored].tobytes()
        ]
    shapes = torch_layout.native_shapes(config) if config else {}
    problems += strict.content_problems(tensors, {key: shapes[native] for native, key in found.keys.items() if native in shapes})
    if problems or config is None:
        raise CheckpointError(name, problems)
    if fresh_embeddings is not None:
        dtype = next(iter(tensors.values())).dtype
        fresh = torch_layout.to_native(parameters.initialise(config, fresh_embeddings, dtype), config)
        natives = {native: fresh[native] for native in torch_layout.OUTER if native in fresh} | natives
    canonical = torch_layout.from_native(natives, config)
    return Checkpoint(config, {each: canonical[each] for each in parameters.axes(config)})


def export_state_dict(
    config: TransformerConfig,
    tensors: Mapping[str, np.ndarray],
    *,
    dtype: str | None = None,
    prefix: str | None = None,
    source_embedding: str | None = None,
    target_embedding: str | None = None,
    logits: str | None = None,
) -> dict[str, np.ndarray]:
    """Converts canonical parameters to a state dict, the inverse of `import_state_dict`.

    A tied tensor appears under each of its names. prefix and the other names: see `Names`. dtype:
    the dtype to round to. Raises ValueError if parameters do not fit the config or overflow the
    dtype, and if nn.Transformer cannot express the config.
    """
    head_size = config.model_width / config.heads
    needed = PAPER | {"key_value_heads": config.heads, "key_size": f"{head_size:g}", "value_size": f"{head_size:g}", "attention_bias": True}
    needed, has = TransformerConfig.apart(needed), config.to_dict()
    # fields without effect in these models
    free = ("position_start", "classifier_dropout_rate", "round_embedding_scale", *(name for name in has if "rotary" in name))
    wrong = {name: value for name, value in needed.items() if name not in free and str(has[name]) != str(value)}
    problems = [f"torch.nn.Transformer needs {name}={value}; got {has[name]}" for name, value in wrong.items()]
    problems += strict.problems(tensors, parameters.shapes(config), dtype)
    if problems:
        raise CheckpointError("the model", problems)
    return Names(prefix, source_embedding, target_embedding, logits).rename(torch_layout.to_native(tensors, config), config)


def _resolve(
    shown: Mapping[str, Any], preset_name: str | None = None, settings: Mapping[str, Any] | None = None
) -> tuple[TransformerConfig | None, list[str]]:
    """Returns the config, and every contradiction between the tensors and the user's claims.

    A preset sets choices but not sizes. Its head count applies only to a model of the preset's own
    width: at another width it would be a guess that no shape can refute.
    """
    told = dict(settings or {})
    base = preset_of(preset_name).to_dict() if preset_name else {}
    if base.get("model_width") != shown["model_width"]:
        base.pop("heads", None)
    for name, together in TransformerConfig.TOGETHER.items():  # one switch in nn.Transformer
        if together[0] in base:
            base = {name: base[together[0]], **{field: value for field, value in base.items() if field not in together}}
    claims = {name: value for name, value in base.items() if name not in (*_SIZES, *_PER_HEAD)} | told
    shown, problems = _split_heads({**PAPER, **shown}, claims)
    problems += [
        f"{name} is {claims[name]!r} in {'--set' if name in told else f'the preset {preset_name}'}, but {value!r} in the tensors"
        for name, value in shown.items()
        if name in claims and claims[name] != value
    ]
    fields = TransformerConfig.apart(claims | shown)
    needed = [field.name for field in dataclasses.fields(TransformerConfig) if field.name not in _PER_HEAD]
    if unknown := [name for name in needed if name not in fields]:
        problems.append(f"the shapes do not determine {', '.join(unknown)}: pass --set FIELD=VALUE for each, or --preset")
    if unknown or "key_size" not in fields:
        return None, problems
    try:
        return TransformerConfig.from_dict(fields), problems
    except ValueError as error:
        return None, [*problems, str(error)]


def _split_heads(shown: Mapping[str, Any], claims: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Adds the head sizes that nn.Transformer fixes: h heads, keys and values of size d / h."""
    width, heads = shown["model_width"], claims.get("heads")
    if "heads" not in claims:
        return dict(shown), []
    if type(heads) is not int or heads < 1 or width % heads:
        return dict(shown), [f"heads must be an integer that divides model_width={width}; got {heads!r}"]
    return {**shown, "key_value_heads": heads, "key_size": width // heads, "value_size": width // heads}, []
