"""Compares a config with the tensors of a file, and corrects it by them."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np

from reference_numpy import TransformerConfig, positional_encoding

from ..tables import Native
from .family import Family, starred

_FIELDS = {
    "d": "model_width", "f": "feed_forward_width", "p": "max_positions", "a": "segments", "x": "experts", "m": "expert_width",
    "w": "shared_width",
}  # fmt: skip
_OF_HEADS = {"h": "heads", "g": "key_value_heads", "k": "key_size", "e": "value_size"}
# field -> end of the names of tensors that exist only if the field is set, and its values then and otherwise
_SHOWN = {
    "query_key_value_bias": ("attention.query.bias", True, False), "attention_output_bias": ("attention.output.bias", True, False),
    "feed_forward_bias": ("feed_forward.output.bias", True, False), "query_key_norm": (".query_norm.scale", "head", "none"),
    "norm_placement": (".feed_forward_norm.scale", "pre", "parallel_shared"),
}  # fmt: skip


def contradictions(family: Family, natives: Mapping[str, Native], tensors: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Reports every entry whose axes have a different size in all tensors."""
    entries = family.entry_names()
    entries |= {field: " or ".join(joint.entries) for joint in family.joints for field in joint.fields if field == "key_value_heads"}
    letters = {letter: entries[field] for letter, field in _FIELDS.items() if field in entries} | {"v": "vocab_size", "c": "id2label"}
    if "key_size" not in entries and {"model_width", "heads"} <= entries.keys():
        letters["k"] = f"{entries['model_width']} / {entries['heads']}"
    letters |= {f"({pair})": _together(entries, pair) for pair in ("h k", "h e", "g k", "g e")}
    sizes: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for key, native in natives.items():
        if len(native.parts) > 1 and key in tensors and len(tensors[key].shape) == len(native.shape):
            stacked = [letters.get(_axes(part.axes)[native.axis], "") for part, _, _ in native.parts]
            if all(stacked) and len({*stacked}) > 1:
                sizes[" + ".join(stacked)].add((native.shape[native.axis], tensors[key].shape[native.axis]))
        axes = _axes(native.parts[0][0].axes)
        if len(native.parts) == 1 and key in tensors and len(tensors[key].shape) == len(axes):
            for letter, wanted, got in zip(axes, native.shape, tensors[key].shape, strict=True):
                sizes[letters.get(letter, "")].add((wanted, got))
    sizes.pop("", None)
    for entry, pairs in sizes.items():
        (wanted, got), *others = pairs
        if not others and wanted != got:
            yield f"config.json says {entry} {wanted}, but the tensors have {got}"


def positions(config: TransformerConfig, buffers: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Reports every stored table of sinusoidal positions that does not hold sinusoids."""
    for key, array in buffers.items():
        if config.positions != "sinusoidal" or not key.endswith("embed_positions.weight"):
            continue
        place, near = np.arange(len(array)), array.ndim == 2 and array.shape[1] == config.model_width
        if near:
            exact_pd = positional_encoding.positional_encoding(place, config.model_width, np.float64, config.sinusoid_layout)
            rounding = max(ml_dtypes.finfo(kind).eps for kind in (array.dtype, np.float32))  # the class computes in float32
            near = bool(np.abs(array.astype(np.float64) - exact_pd).max(initial=0.0) <= rounding)
        if not near:
            yield f"{key} must hold sinusoidal positions of width {config.model_width}; got other numbers, of shape {array.shape}"


def _axes(letters: str) -> list[str]:
    """Splits the axes of a tensor; brackets group canonical axes into one."""
    return re.findall(r"\(.*?\)|\w+", letters)


def _together(entries: Mapping[str, str], letters: str) -> str:
    """Names the entries behind a grouped axis; empty if they do not determine it."""
    count, size = (entries.get(_OF_HEADS[letter], "") for letter in letters.split())
    if size:
        return f"{count} x {size}" if count else ""
    width, heads = entries.get("model_width"), entries.get("heads")
    return width or "" if count == heads else f"{count} x {width} / {heads}" if count else ""


def switched(family: Family, config: TransformerConfig, names: Iterable[str]) -> tuple[TransformerConfig, list[str]]:
    """Returns the config with the biases and norms that exist, and a problem for every entry that differs."""
    present, problems, entries = {starred(name) for name in names}, list[str](), defaultdict[str, list[str]](list)
    for field, name in family.entry_names().items():
        if field in _SHOWN:
            entries[name].append(field)
    for name, fields in entries.items():
        own = [row.name for row in family.table if any(row.parts[0].name.endswith(_SHOWN[field][0]) for field in fields)]
        shown, said = not present.isdisjoint(own), getattr(config, fields[0]) != _SHOWN[fields[0]][2]
        if own and said != shown:
            value = str(said != ("norm_placement" in fields)).lower()  # the entry is true without the tensor
            problems.append(f"config.json says {name} {value}, but there is {'a' if shown else 'no'} {own[0]}")
            config = config.replace(**{field: _SHOWN[field][1 if shown else 2] for field in fields})
    return config, problems


def layered(family: Family, config: TransformerConfig, names: Iterable[str]) -> tuple[TransformerConfig, list[str]]:
    """Returns the config with the layers that exist, and a problem if their number differs.

    A layer counts only if it has a tensor, since a file may claim any number.
    """
    names, problems, beginnings = list(names), [], defaultdict[str, set[str]](set)
    entries = family.entry_names()
    for row in (*family.table, *family.together):
        if "*" in row.name:
            beginnings[f"{row.parts[0].name.partition('.')[0]}_layers"].add(re.escape(row.name.partition("*")[0]))
    for field, stack in beginnings.items():
        count, said = _count(names, rf"(?:{'|'.join(stack)})(\d{{1,9}})\."), getattr(config, field)
        if count != said:
            problems.append(f"config.json says {entries[field]} {said}, but the tensors have {count}")
            config = config.replace(**{field: max(count, 1)})
    return config, problems


def _count(names: Sequence[str], pattern: str) -> int:
    """Counts the numbers in names that begin with a pattern; up to a gap if there are few names."""
    present = {int(found[1]) for name in names if (found := re.match(pattern, name))}
    count = max(present, default=-1) + 1
    return count if count <= len(names) else next(index for index in range(len(present) + 1) if index not in present)


def mixed(family: Family, config: TransformerConfig, names: Iterable[str]) -> tuple[TransformerConfig, list[str]]:
    """Returns the config with experts in the layers that have them, and a problem if it differs."""
    rows = {row.name: row.parts[0].name for row in (*family.table, *family.together)}
    said = [config.has_experts(layer) for layer in range(config.decoder_layers)]
    shown, entry = [*said], family.entry_names().get("expert_pattern")
    for name in names if entry else ():
        part = rows.get(starred(name), "").partition(".feed_forward.")[2]
        layer = int(re.findall(r"\d+", name)[0]) if part.endswith("output.kernel") else len(said)
        if layer < len(said):
            shown[layer] = part != "output.kernel"
    if shown == said:
        return config, []
    wanted, got = (", ".join(str(layer) for layer, own in enumerate(flags) if own) or "none" for flags in (said, shown))
    return config.replace(expert_pattern=shown), [f"config.json gives experts to layers {wanted} ({entry}), but the tensors to {got}"]


def counted(family: Family, config: TransformerConfig, names: Iterable[str]) -> tuple[TransformerConfig, list[str]]:
    """Returns the config with the experts that exist, and a problem if their number differs.

    An expert counts only if it has a tensor, since a file may claim any number.
    """
    names, problems, entries = list(names), list[str](), family.entry_names()
    if not any(config.has_experts(layer) for layer in range(config.decoder_layers)):
        return config, []
    shared = [row.name for row in family.table if ".shared." in row.parts[0].name]
    present = not {*shared}.isdisjoint(map(starred, names))
    if shared and present != (config.shared_width > 0):
        said = f"config.json says {entries['shared_width']} {config.shared_width}"
        problems.append(f"{said}, but there is {'a' if present else 'no'} {shared[0]}")
    single = [row.name for row in family.rows(config, names) if row.name.count("*") > 1]
    pattern = re.escape(single[0]).replace(r"\*", r"\d+", 1).replace(r"\*", r"(\d{1,9})", 1) if single else ""
    count = _count(names, pattern) if single else config.experts
    if count != config.experts:
        problems.append(f"config.json says {entries['experts']} {config.experts}, but the tensors have {count}")
        fewer = {"experts": max(count, 1), "experts_per_token": min(max(count, 1), config.experts_per_token)}
        config = config.replace(**fewer, router_groups=1, router_groups_kept=1)
    return config, problems
