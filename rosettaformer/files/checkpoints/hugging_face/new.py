"""Creates small random models that Hugging Face's library can load."""

import copy
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters
from reference_numpy.suggestions import known

from . import entries
from .adversarial import KINDS, changed
from .decisive import decisive
from .families import FAMILIES
from .family import Family
from .reading import CONFIG, GENERATION
from .writing import save

SIZES = ("tiny", "small", "deep", *KINDS)
HEADS = ("language_head", "masked_language_head")  # a new model's class has one of these
IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
GAIN = 1.3  # of kernels, which makes outputs slightly larger than inputs


def write(
    family: str,
    path: str | Path,
    *,
    seed: int = 0,
    size: str = "tiny",
    dtype: str = "float32",
    settings: Mapping[str, Any] | None = None,
    tokenizer: Callable[[Path, Mapping[str, Any]], None] | None = None,
) -> None:
    """Writes a new folder with a random model: config.json, safetensors, generation_config.json.

    Every weight affects the output: norm scales are far from 1, biases are far from 0, and untied
    heads have their own table. A seed gives the same weights in every dtype, up to rounding.
    family: one of `names`. size: one of SIZES; the kinds of `adversarial` are tiny. settings: entries
    of config.json to change; dots reach into nested ones (`rope_parameters.factor`). tokenizer:
    writes tokenizer files into a folder, given config.json.
    Raises ValueError on an unknown family or size, on invalid settings, and if the path exists.
    """
    known("family", [family], names())
    known("size", [size], SIZES)
    said = _said(family, size, settings or {})
    config = _config(family_of(family), said)
    generation = {name: said[name] for name in IDS if said.get(name) is not None}
    foreign = {CONFIG: said, GENERATION: {"_from_model_config": True, **generation}}
    with tempfile.TemporaryDirectory() as place:
        if tokenizer:
            tokenizer(Path(place), said)
        save(path, config, weights(config, seed, size), foreign=foreign, dtype=dtype, tokenizer=place)


def names() -> list[str]:
    """Returns the model names that `write` accepts: the families and variants of some of them."""
    return [*FAMILIES, *(name for name in _tables() if name not in FAMILIES and "like" in _tables()[name])]


def family_of(name: str) -> Family:
    """Returns the family of a model name."""
    return FAMILIES[name if name in FAMILIES else _tables()[name]["like"]]


def architecture(name: str) -> str:
    """Returns the class of a model's new checkpoints."""
    return next(one for one, heads in family_of(name).classes.items() if {*heads} & {*HEADS})


def weights(config: TransformerConfig, seed: int, size: str = SIZES[0]) -> dict[str, np.ndarray]:
    """Returns random float64 parameters by canonical name, scaled to keep activations stable."""
    drawn = {name: _drawn(name, shape, config, seed) for name, shape in parameters.shapes(config).items()}
    return changed(size, drawn, config, seed) if size in KINDS else decisive(drawn, config, seed)


def _drawn(name: str, shape: tuple[int, ...], config: TransformerConfig, seed: int) -> np.ndarray:
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    kind = name.rpartition(".")[2]
    if kind == "scale":
        return generator.uniform(0.4, 1.8, shape) - (1 if config.norm_one_plus_scale else 0)
    drawn = generator.standard_normal(shape)
    if (stream := _stream(config)) < 1 and (kind == "table" or ".output." in name):
        drawn *= stream / (config.model_width**0.5 if name == "target_embedding.table" and config.scale_embedding else 1)
    if kind == "kernel":
        of_heads = len(shape) == 3 and name.endswith("attention.output.kernel")
        own = shape[1:] if ".experts." in name else shape
        return drawn * GAIN / np.sqrt(own[0] * own[1] if of_heads else own[0])
    if kind == "selection_bias":  # negative; one expert is chosen less often than its score asks for
        return 0.1 * drawn - 0.1 * (np.arange(shape[0]) == generator.integers(shape[0])) - 1.0
    large = name.endswith("cross_attention.query.bias")  # the keys of a memory differ little
    return drawn * {"bias": 1.5 if large else 0.5, "offset": 0.5}.get(kind, 1.0)


def _stream(config: TransformerConfig) -> float:
    """Returns the size of the vectors between pre-norm layers of one stack: so small that epsilon shows."""
    return min(1.0, 10 * config.epsilon**0.5) if config.norm_placement == "pre" and not config.cross_attention else 1.0


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _said(name: str, size: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of config.json. Raises ValueError on settings without effect."""
    tables, family = copy.deepcopy(_tables()), family_of(name)
    own = tables.get(tables[name].get("like", ""), {}) | tables[name]
    parts = [tables["model"], *([tables["decoder"]] if "rope_parameters" in own else []), own]
    others = {larger: [part.pop(larger, {}) for part in parts] for larger in SIZES[1:]}
    of_joints = {entry for joint in family.joints for entry in joint.entries}
    known = of_joints | {*own, *IDS, *(entry.name for entry in family.entries)}
    known -= {"like", "without", own.get("without")}
    said: dict[str, Any] = {}
    for table in parts:
        said |= _known(family, table, known)
    entry = next(entry for field, entry in family.entry_names().items() if field in ("decoder_layers", "encoder_layers"))
    layers = said[entry]
    for table in others.get(size, ()):
        said |= _known(family, table, known)
    fixed = {"architectures", *settings}.union(*others.get(size, ()))
    _refuse_beside(said, settings)
    said["architectures"] = [architecture(name)]
    for name, value in settings.items():
        *outer, last = name.split(".")
        held = said
        for depth, part in enumerate(outer, start=1):
            held = held.setdefault(part, {})
            if not isinstance(held, dict):
                raise ValueError(f"{'.'.join(outer[:depth])} must be an object to have {name}; got {held!r:.50}")
        held[last] = value
    # lists with one item per layer are repeated or cut to the new number of layers
    if isinstance(count := said[entry], int):
        for name in said.keys() - fixed:
            if isinstance(value := said[name], list) and len(value) == layers:
                said[name] = [value[layer % len(value)] for layer in range(count)]
    if "model_type" in settings:
        raise ValueError(f"model_type is fixed to the family's, {family.model_type}; choose another family instead")
    return said | {"model_type": family.model_type}


def _known(family: Family, part: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Returns the known entries of a table, under the family's names."""
    named = {family.aliases.get(entry, entry): value for entry, value in part.items()}
    return {entry: value for entry, value in named.items() if entry in known}


def _refuse_beside(said: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raises ValueError on a top-level setting that an entry of rope_parameters overrides."""

    def within(held: Any, path: str) -> Iterator[str]:
        for name, value in held.items() if isinstance(held, Mapping) else ():
            yield f"{path}.{name}"
            yield from within(value, f"{path}.{name}")

    places = [*within(said.get("rope_parameters"), "rope_parameters")]
    for name in settings.keys() - said.keys():
        if own := [place for place in places if place.endswith(f".{name}")]:
            raise ValueError(f"{name} has no effect, because rope_parameters overrides it; set {' or '.join(own)}")


def _config(family: Family, said: Mapping[str, Any]) -> TransformerConfig:
    named = said["architectures"]
    if not (isinstance(named, list) and len(named) == 1 and named[0] in family.classes):
        raise ValueError(f"architectures must name one of the classes {', '.join(family.classes)}; got {named!r:.100}")
    heads = family.classes[named[0]]
    if unsupported := [head.name for head in family.heads if head.name in heads and head.flag is None]:
        raise ValueError(f"{named[0]} has a {unsupported[0]}, which is not supported")
    config, problems = entries.config_of(family, said, heads)
    if config is None:
        raise ValueError("; ".join(problems))
    return config
