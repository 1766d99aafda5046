"""Determines what inputs and outputs of an exported model mean.

A table decides, or else their names, or else their dtypes and shapes. The meanings:

source, target                      token ids; models with one stack have only one of the two
source_mask, target_mask            True at real tokens; for a step, at all tokens so far
source_padding, target_padding      True at padding
segments, source_positions, target_positions, cache_positions, uses_cache
logits_to_keep                      number of last tokens whose logits to return; 0 means all
keys, values, cross_keys, cross_values      all layers, `l b s g k`; key.N, value.N, ...: one layer
memory, logits, hidden, pooled, classes
mean, first                         mean of the real tokens' vectors; vector of the first token
unit_mean, unit_first               the same scaled to length 1
ignored                             not judged; its name may be a pattern such as `present.*`
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.suggestions import nearest

from ...common.modules import arguments
from .signature import Entry, Tensor

MEANINGS = (
    "source", "target", "source_mask", "target_mask", "source_padding", "target_padding", "segments", "source_positions",
    "target_positions", "cache_positions", "uses_cache", "logits_to_keep", "keys", "values", "cross_keys", "cross_values",
    "memory", "logits", "hidden", "pooled", "classes", "mean", "unit_mean", "first", "unit_first",
)  # fmt: skip
IGNORED = "ignored"
UNKNOWN = "unknown: "  # before the name of an output whose meaning is unknown
POOLINGS = {"mean": "the mean of the real tokens' vectors", "first": "the vector of the first token"}
POOLINGS |= {f"unit_{name}": f"{rule}, scaled to length 1" for name, rule in POOLINGS.items()}
WITHIN = 1e-2  # of the largest number of a vector; half precision rounds less, and other poolings differ more
_LAYERS = ("key", "value", "cross_key", "cross_value")
# lower-case name -> meaning
_OWN = {
    "source_mask_bs": "source_mask", "target_mask_bt": "target_mask", "target_mask_bs": "target_mask", "segment_bs": "segments",
    "keys_lbsgk": "keys", "values_lbsge": "values", "cross_keys_lbsgk": "cross_keys", "cross_values_lbsge": "cross_values",
    "memory_bsd": "memory", "logits_btv": "logits", "logits_bsv": "logits", "hidden_bsd": "hidden", "pooled_bd": "pooled",
    "classes_bc": "classes", "src_key_padding_mask": "source_padding", "tgt_key_padding_mask": "target_padding",
    "encoder_hidden_states": "memory", "last_hidden_state": "hidden", "sequence_output": "hidden", "pooler_output": "pooled",
    "pooled_output": "pooled", "prediction_logits": "logits", "cache_position": "cache_positions", "use_cache_branch": "uses_cache",
    "encoder_attention_mask": "source_mask", "num_logits_to_keep": "logits_to_keep",
}  # fmt: skip
_SYNONYMS = (
    (arguments.TARGET, "target"),
    (arguments.TARGET_MASK, "target_mask"),
    (arguments.SEGMENTS, "segments"),
    (arguments.TARGET_POSITIONS, "target_positions"),
)
_PLACE = re.compile(r"^(kw)?args?_?\d*[_.]")  # prefix that torch.export puts before an argument's own name
_OF_TEXT = re.compile(r"sentence|embed|mean|average")  # output names that may mean any vector of a text
_CACHE = re.compile(r"(past_key_values|present|past|past_key_value)[._](\d+)[._](?:(decoder|encoder)[._])?(key|value|0|1)s?")


def parse(declarations: Iterable[str]) -> dict[str, str]:
    """Parses NAME=MEANING texts. Raises ValueError on other texts and on unknown meanings."""
    found = {}
    for text in declarations:
        name, equals, meaning = text.rpartition("=")
        if not equals or not name:
            raise ValueError(f"--tensor must be NAME=MEANING; got {text!r}")
        known = (*MEANINGS, IGNORED)
        if meaning not in known and not re.fullmatch(rf"({'|'.join(_LAYERS)})\.\d+", meaning):
            words = f"{', '.join(known)}, or key.N and so on"
            raise ValueError(f"the meaning of --tensor {name} must be {words}; got {meaning!r}{nearest(meaning, known)}")
        found[name] = meaning
    return found


def of_inputs(entry: Entry, config: TransformerConfig, table: Mapping[str, str]) -> dict[str, str]:
    """Maps the name of every input to its meaning.

    Raises ValueError if a meaning is unknown, ignored or used twice.
    """
    found = {tensor.name: meaning for tensor in entry.inputs if (meaning := _named(tensor.name, config, table))}
    if ignored := [name for name, meaning in found.items() if meaning == IGNORED]:
        raise ValueError(f"the input {ignored[0]} needs a value; only outputs can be {IGNORED}. Give it another meaning with --tensor")
    left = [tensor for tensor in entry.inputs if tensor.name not in found]
    tokens = [side for side in _sides(config, entry) if side not in found.values()]
    flat = [tensor for tensor in left if len(tensor.shape) in (0, 2)]
    for tensor in [tensor for tensor in flat if tensor.dtype.startswith(("int", "uint"))][: len(tokens)]:
        found[tensor.name] = tokens.pop(0)
        left.remove(tensor)
    masks = [f"{side}_mask" for side in _sides(config, entry) if not {f"{side}_mask", f"{side}_padding"} & {*found.values()}]
    unsaid = config.segments > 1 and "segments" not in found.values()  # an input left over may be segments
    may_be = [one for one in flat if one in left and one.dtype.startswith(("int", "uint", "bool", "float"))]
    if left and not unsaid and may_be == left and len(left) == len(masks):
        found |= {tensor.name: mask for tensor, mask in zip(left, masks, strict=True)}
        left = []
    if left:
        raise ValueError(_unknown("input", left, found, entry.inputs, "source, target, source_mask, target_mask, segments, ..."))
    return _single("input", {tensor.name: found[tensor.name] for tensor in entry.inputs})


def of_outputs(entry: Entry, config: TransformerConfig, table: Mapping[str, str]) -> dict[str, str]:
    """Maps the names of outputs to their meanings, as far as they have one.

    Raises ValueError if no output has a meaning.
    """
    found: dict[str, str] = {}
    for tensor in entry.outputs:
        meaning = _named(tensor.name, config, table)
        shaped = ("", "logits", "hidden", "pooled", "classes")
        if meaning in shaped and tensor.name not in table and not _is_of_text(tensor):
            meaning = _by_shape(tensor, config) or meaning
        if meaning == IGNORED or (meaning and meaning not in found.values()):
            found[tensor.name] = meaning
    if not found and len(entry.outputs) == 1 and not _is_of_text(entry.outputs[0]):
        found[entry.outputs[0].name] = "logits" if config.decoder_layers or config.masked_language_head else "hidden"
    if not found:
        raise ValueError(_unknown("output", entry.outputs, {}, entry.outputs, "logits, hidden, pooled, classes, mean, ..."))
    return found


def pooled(outputs: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Maps the names of unknown outputs that equal a pooling of the hidden states to their meanings.

    outputs: by meaning, for texts without padding, where it does not matter whether padding counts.
    """
    hidden_bsd = np.asarray(outputs.get("hidden", np.zeros((0, 1, 0))), np.float64)
    vectors = {"mean": hidden_bsd.mean(axis=1), "first": hidden_bsd[:, 0]}
    vectors |= {f"unit_{name}": y_bd / np.linalg.norm(y_bd, axis=1, keepdims=True) for name, y_bd in vectors.items()}
    return {
        name.removeprefix(UNKNOWN): meaning
        for name, array in outputs.items()
        for meaning, y_bd in vectors.items()
        if name.startswith(UNKNOWN) and array.shape == y_bd.shape and np.abs(array - y_bd).max() <= WITHIN * np.abs(y_bd).max()
    }


def _named(name: str, config: TransformerConfig, table: Mapping[str, str]) -> str:
    """Returns the meaning that a name implies; empty if none."""
    if name in table:
        return table[name]
    if any(meaning == IGNORED and fnmatch.fnmatchcase(name, pattern) for pattern, meaning in table.items()):
        return IGNORED
    plain = name.removesuffix(":0").removeprefix("serving_default_").removeprefix("serve_").lower()
    plain = _PLACE.sub("", plain.rpartition("/")[2].removeprefix("new_"))
    alone = "source" if config.encoder_layers else "target"
    if plain in _OWN or plain in MEANINGS:
        meaning = _OWN.get(plain, plain)
        return meaning if config.cross_attention else meaning.replace("target" if alone == "source" else "source", alone)
    if cached := _CACHE.fullmatch(plain):
        _, layer, stack, part = cached.groups()
        return f"{'cross_' * (stack == 'encoder')}{'key' if part in ('key', '0') else 'value'}.{layer}"
    for names, meaning in _SYNONYMS:
        if plain in names:
            return meaning if config.cross_attention or meaning == "segments" else meaning.replace("target", alone)
    for names, what in ((arguments.TOKENS, ""), (arguments.MASK, "_mask"), (arguments.POSITIONS, "_positions")):
        if plain in names:
            return alone + what
    return ""


def _sides(config: TransformerConfig, entry: Entry) -> tuple[str, ...]:
    """Returns the stacks whose tokens a function takes."""
    if not config.cross_attention:
        return ("source",) if config.encoder_layers else ("target",)
    return {"encode": ("source",), "step": ("target",)}.get(entry.name, ("source", "target"))


def _is_of_text(tensor: Tensor) -> bool:
    return len(tensor.shape) == 2 and bool(_OF_TEXT.search(tensor.name.lower()))


def _by_shape(tensor: Tensor, config: TransformerConfig) -> str:
    """Returns the meaning that an output's sizes imply; empty if it is ambiguous."""
    last: int | str = (tensor.shape or ("",))[-1]
    vocabulary = config.target_vocabulary if config.decoder_layers else config.source_vocabulary
    sizes = {3: {"logits": vocabulary, "hidden": config.model_width}, 2: {"classes": config.classes, "pooled": config.model_width}}
    found = [meaning for meaning, size in sizes.get(len(tensor.shape), {}).items() if size == last]
    return found[0] if len(found) == 1 else ""


def _unknown(what: str, left: Sequence[Tensor], found: Mapping[str, str], every: Sequence[Tensor], examples: str) -> str:
    known = ", ".join(f"{name} is {meaning}" for name, meaning in found.items())
    return (
        f"the meaning of the {what} {left[0]} is unclear from its name, dtype and axes{f' ({known})' if known else ''}; "
        f"set it with --tensor {left[0].name}=MEANING, such as {examples}"
    )


def _single(what: str, found: dict[str, str]) -> dict[str, str]:
    for name, meaning in found.items():
        if same := [other for other in found if other != name and found[other] == meaning]:
            raise ValueError(f"the {what}s {name} and {same[0]} both seem to be {meaning}; set which is which with --tensor NAME=MEANING")
    return found
