"""Writes a new Hugging Face folder: config.json, safetensors, tokenizer and generation config."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, positional_encoding
from reference_numpy import parameters as declaration

from ....common.atomic import replacing
from .. import CheckpointError, container, strict, tables
from ..container import Written
from ..tables import Native
from . import entries
from .families import FAMILIES
from .family import Family
from .reading import CONFIG, GENERATION

# tokenizer files, and the folder of additional chat templates
COMPANIONS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt",
    "tokenizer.model", "chat_template.jinja",
)  # fmt: skip
TEMPLATES = "additional_chat_templates"
POSITIONS = 1024  # the library's default of max_position_embeddings


def save(
    path: str | Path,
    config: TransformerConfig,
    parameters: Mapping[str, np.ndarray],
    *,
    foreign: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    written: Written = lambda count: None,
    max_shard_bytes: int | None = None,
    tokenizer: str | Path | None = None,
) -> None:
    """Writes a new folder; a failed write leaves nothing behind.

    foreign, dtype, written: see `checkpoints.save`. tokenizer: the folder to copy tokenizer files
    from. Raises ValueError if no family can express the config, if the parameters do not fit it,
    and if the path exists.
    """
    path, foreign = Path(path), foreign or {}
    family, said = _family(config, foreign.get(CONFIG, {}))
    arrays = tables.arrays(parameters)
    if problems := strict.problems(arrays, declaration.shapes(config), dtype):
        raise CheckpointError(path, problems)
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path} already exists; a Hugging Face model needs a new folder")
    kind, own = dtype and strict.numpy_dtype(dtype), dtype or str(next(iter(arrays.values())).dtype)
    said = {name: value for name, value in said.items() if name != "torch_dtype"} | {"dtype": own}
    natives = _natives(family, config, arrays, said, prefixed=said["architectures"] != [family.base])
    with replacing(path) as temporary:
        temporary.mkdir()
        if max_shard_bytes is None:
            container.write(temporary / "model.safetensors", natives, {"format": "pt"}, kind, written)
        else:
            container.write_shards(temporary, natives, {"format": "pt"}, max_shard_bytes, kind, written)
        for name, value in {**foreign, CONFIG: said}.items():
            if name in (CONFIG, GENERATION):
                (temporary / name).write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        for file in companions(Path(tokenizer) if tokenizer else None):
            copy = temporary / file.relative_to(tokenizer or "")
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)


def companions(folder: Path | None) -> list[Path]:
    """Returns the tokenizer files in a folder."""
    if not folder or not folder.is_dir():
        return []
    return [folder / name for name in COMPANIONS if (folder / name).is_file()] + sorted((folder / TEMPLATES).glob("*.jinja"))


def _family(config: TransformerConfig, said: Mapping[str, Any]) -> tuple[Family, dict[str, Any]]:
    """Returns the family of a config and its config.json, preferring the family in `said`."""
    own, refused = config.to_dict(), list[tuple[int, list[str]]]()
    for kind, family in sorted(FAMILIES.items(), key=lambda item: item[0] != said.get("model_type")):
        if all(family.fixed.get(stack, own[stack]) == own[stack] for stack in ("encoder_layers", "decoder_layers")):
            result, found = entries.entries_of(family, config, said if kind == said.get("model_type") else {})
            if not found:
                return family, result
            refused.append((sum(own.get(name) != value for name, value in family.fixed.items()), found))
    raise CheckpointError("the model", min(refused, key=lambda one: (one[0], len(one[1])))[1])  # the closest family


def _natives(
    family: Family, config: TransformerConfig, arrays: Mapping[str, np.ndarray], said: Mapping[str, Any], prefixed: bool
) -> Mapping[str, np.ndarray]:
    """Returns the tensors as the library stores them, tied tensors once.

    A twin replaces its tensor if the logits are tied, and is stored in addition otherwise.
    """
    found: dict[str, Native] = {}
    for native in tables.natives(family.rows(config), config):
        if all(part.name in arrays for part, _, _ in native.parts):
            twins = [twin for twin, name in family.twins.items() if name == native.name and said.get(family.twinned, True)]
            for name in twins if twins and config.tie_logits else [native.name, *twins]:
                found[family.stored(name, prefixed)] = native
    constants = {family.stored(name, prefixed): name for name in family.sinusoids}

    def make(name: str) -> np.ndarray:
        if name not in constants:
            return tables.merged(found[name], arrays)
        place, dtype = np.arange(said.get("max_position_embeddings", POSITIONS)), next(iter(arrays.values())).dtype
        return positional_encoding.positional_encoding(place, config.model_width, np.float32, config.sinusoid_layout).astype(dtype)

    return tables.Made(make, [*found, *constants])
