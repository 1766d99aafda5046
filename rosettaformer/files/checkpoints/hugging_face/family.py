"""Describes a family of Hugging Face models: config.json entries, classes, heads and tensors."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.fields import is_integer

from ..tables import Table


@dataclass(frozen=True)
class Entry:
    """An entry of config.json that sets one or more fields of the config.

    default: the library's default. words: entry value -> field value; the first
    of several synonyms is written. otherwise: computes the value from all entries if it is null.
    note: a remark for the family's documentation.
    """

    name: str
    default: Any
    fields: tuple[str, ...]
    words: Mapping[str, str] = field(default_factory=dict)
    otherwise: Callable[[Mapping[str, Any]], Any] = lambda entries: None
    note: str = ""


@dataclass(frozen=True)
class Joint:
    """Entries of config.json that set fields of the config together.

    entries: name -> the library's default. fields: name -> the entry to name in messages. read:
    computes the fields from all entries; raises ValueError naming an entry. write: the inverse,
    called with a config and an earlier config.json; entries that it does not return are dropped,
    except for those in `kept`. note: a remark for the family's documentation.
    """

    entries: Mapping[str, Any]
    fields: Mapping[str, str]
    read: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    write: Callable[[TransformerConfig, Mapping[str, Any]], Mapping[str, Any]]
    note: str
    kept: tuple[str, ...] = ()


def starred(name: str) -> str:
    """Returns the name in a table of a tensor: * replaces the layer, and the index of an expert."""
    return re.sub(r"\.\d+(?=\.)", ".*", name)


def head_sizes(width: str, heads: str, own: Mapping[str, Any] | None = None, divides: bool = True) -> Joint:
    """Returns the joint for the head size, which is width / heads unless an entry sets it.

    own: the entry that sets the head size, and its default. divides: whether the library requires
    the number of heads to divide the width.
    """
    own = own or {}
    name = next(iter(own), heads)

    def read(entries: Mapping[str, Any]) -> dict[str, Any]:
        whole, parts, size = entries[width], entries[heads], entries[name] if own else None
        groups: Any = entries.get("num_key_value_heads")
        if not is_integer(whole) or not is_integer(parts) or parts < 1:
            raise ValueError(f"{width} and {heads} must be integers of at least 1; got {whole!r:.50} and {parts!r:.50}")
        if divides and whole % parts:
            raise ValueError(f"{heads} must divide {width}; got {parts} and {whole}")
        if is_integer(groups) and groups > 0 and parts % groups:
            raise ValueError(f"num_key_value_heads must divide {heads}; got {groups} and {parts}")
        return dict.fromkeys(("key_size", "value_size"), whole // parts if size is None else size)

    def write(config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
        return dict.fromkeys(own, config.key_size)

    note = f"null means `{width}` / `{heads}`" if own else ""
    return Joint(own, {"key_size": name, "value_size": name}, read, write, note)


@dataclass(frozen=True)
class Head:
    """A head on top of the last layer.

    tensors: pattern of their names. flag: the config field that enables the head; "" if every
    config has it, None if no config supports it. shown: chooses among heads with equal tensor names
    if config.json names no class, from the tensors' shapes and the number of labels.
    """

    name: str
    tensors: str
    flag: str | None = None
    shown: Callable[[Mapping[str, tuple[int, ...]], int], bool] = lambda shapes, labels: False


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models. Tensor names are those of the base class, without its prefix.

    fixed: config fields with the same value in all models. unused: fields without meaning.
    only: entries with one supported value, or a tuple of them. ignored: entries that the class does
    not read -> why. harmless: entries that do not affect the result. aliases: synonyms of entries.
    prefix: prefix of the base class's tensors in a class with a head, except for `outside`.
    prefixes: alternatives. classes: class -> heads, preferred classes first. older: name endings in
    other versions of the library. buffers: stored tensors that are not parameters. twins: tensors
    equal to another one, in addition to the config's ties. twinned: the entry that must not be
    false if there are twins. sinusoids: tensors that hold the sinusoidal positions. nameless:
    whether tensors identify the family without model_type and class. `beside`: pattern of tensors that belong to other models.
    together: rows that a file may have instead of the table's rows for the same parameters.
    lacking: pattern of the rows that a config does not have.
    marked: end of a tensor's name whose whole layer belongs to another model; empty if there is none.
    padded_by_id: whether positions follow from the padding id, which no real token may then have.
    """

    name: str
    model_type: str
    fixed: Mapping[str, Any]
    unused: tuple[str, ...]
    entries: tuple[Entry, ...]
    joints: tuple[Joint, ...]
    only: Mapping[str, Any] = field(default_factory=lambda: ONLY)
    harmless: frozenset[str] = field(default_factory=lambda: HARMLESS)
    aliases: Mapping[str, str] = field(default_factory=dict)
    prefix: str
    outside: str
    classes: Mapping[str, tuple[str, ...]]
    heads: tuple[Head, ...]
    table: Table
    together: Table = ()
    lacking: Callable[[TransformerConfig], str] = lambda config: ""
    older: Mapping[str, str] = field(default_factory=dict)
    buffers: str
    twins: Mapping[str, str] = field(default_factory=dict)
    twinned: str = ""
    sinusoids: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    nameless: bool = False
    beside: str = r"\Z."
    marked: str = ""
    padded_by_id: bool = False

    @property
    def base(self) -> str:
        """The class without heads, or with only a pooler."""
        return next(name for name, heads in self.classes.items() if {*heads} <= {"pooler"})

    @property
    def encoder_decoder(self) -> bool:
        """Whether its models are encoder-decoders."""
        return self.only.get("is_encoder_decoder") is True

    def native(self, key: str) -> str:
        """Returns the tensor's name in the base class of the current library version."""
        prefix = max((prefix for prefix in (self.prefix, *self.prefixes) if key.startswith(prefix)), key=len, default="")
        name = key.removeprefix(prefix)
        return next((name.removesuffix(old) + new for old, new in self.older.items() if name.endswith(old)), name)

    def rows(self, config: TransformerConfig, names: Iterable[str] = ()) -> Table:
        """Returns the rows of a model's tensors, in the form that is among the native names.

        If two rows of the table hold a parameter, the last counts.
        """
        own, given = self.heads_of(config), {starred(name) for name in names}
        absent = [self.lacking(config), *(head.tensors for head in self.heads if head.flag and head.name not in own)]
        rows = [row for row in self.table if not any(re.fullmatch(pattern, row.name) for pattern in absent)]
        instead = [row for row in self.together if row.name in given]
        last = {row.parts[0].name: row for row in rows} | {part.name: row for row in instead for part in row.parts}
        return tuple(row for row in (*rows, *instead) if last[row.parts[0].name] is row)

    def owns(self, said: Mapping[str, Any], names: Iterable[str]) -> bool:
        """Whether a model without model_type is of this family, judging by class or tensors."""
        if named := said.get("architectures"):
            return isinstance(named, list) and any(name in named for name in self.classes)
        if not self.nameless:
            return False
        natives = {self.native(name) for name in names if name.startswith(self.prefix)}
        heads = "|".join([self.outside, *(head.tensors for head in self.heads)])
        return all(row.name.replace("*", "0") in natives for row in self.table if not re.fullmatch(heads, row.name))

    def stored(self, native: str, prefixed: bool) -> str:
        """Returns the stored name of a tensor, the inverse of `native`."""
        return native if not prefixed or re.fullmatch(self.outside, native) else self.prefix + native

    def entry_names(self) -> dict[str, str]:
        """Maps each field to the entry that sets it."""
        names = {field: name for joint in self.joints for field, name in joint.fields.items() if name.split()[0] in joint.entries}
        return names | {field: entry.name for entry in reversed(self.entries) for field in entry.fields}

    def heads_of(self, config: TransformerConfig) -> set[str]:
        """Returns the heads that the config enables."""
        return {head.name for head in self.heads if head.flag and getattr(config, head.flag)}

    def classes_of(self, config: TransformerConfig) -> list[str]:
        """Returns the classes with exactly the config's heads; an extra pooler is allowed."""
        own, always = self.heads_of(config), {head.name for head in self.heads if head.flag == ""}
        found = [name for name, heads in self.classes.items() if own - {"pooler"} <= {*heads} <= own | always]
        return found or ([] if own else [self.base])


_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh")
# activation names of transformers -> names here
GELU = {
    "gelu": "gelu_erf", "gelu_python": "gelu_erf", **dict.fromkeys(_TANH, "gelu_tanh"), "quick_gelu": "gelu_sigmoid",
    "relu": "relu", "relu2": "relu_squared",
}  # fmt: skip

# entries of every family with one supported value
ONLY: dict[str, Any] = {
    "is_encoder_decoder": False, "add_cross_attention": False, "cross_attention_hidden_size": None, "per_layer_config": None,
    "pruned_heads": None, "tie_last_hidden_states": None, "quantization_config": None, "auto_map": None,
}  # fmt: skip
# entries of every family that do not affect the result: runtime, training and generation settings
HARMLESS: frozenset[str] = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "_num_labels", "architectures",
    "assistant_confidence_threshold", "assistant_lookbehind", "attn_implementation", "bad_words_ids", "begin_suppress_tokens",
    "bos_token_id", "chunk_size_feed_forward", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype", "early_stopping",
    "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "eos_token_id", "epsilon_cutoff", "eta_cutoff",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing",
    "id2label", "initializer_range", "label2id", "length_penalty", "max_length", "min_length", "model_type", "name_or_path",
    "no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule", "num_beam_groups", "num_beams", "num_labels",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_past", "output_scores", "pad_token_id", "prefix",
    "problem_type", "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id",
    "suppress_tokens", "target_lookbehind", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder",
    "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p", "use_bfloat16",
    "use_cache", "_flash_attn_2_enabled", "base_model_name_or_path", "loss_type", "max_sequence_length", "model_max_length",
    "pretraining_tp", "transformers.js_config", "use_flash_attention", "use_flash_attention_2", "use_flash_attn",
})  # fmt: skip
# entries of training programs, such as unsloth_version and unsloth_fixed
WRITERS = r"unsloth_\w+"
