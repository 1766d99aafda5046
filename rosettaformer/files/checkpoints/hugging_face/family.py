"""Describes a family of Hugging Face models: the entries of its config.json, its classes and heads, and its tensors."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.fields import is_integer

from ..tables import Table


@dataclass(frozen=True)
class Entry:
    """An entry of config.json that corresponds to fields of the config.

    default: the library's value if it is absent. words: its values -> values of the fields; of two synonyms the first is written.
    otherwise: computes its value from all entries if it is null. note: what a reader of the table should know.
    """

    name: str
    default: Any
    fields: tuple[str, ...]
    words: Mapping[str, str] = field(default_factory=dict)
    otherwise: Callable[[Mapping[str, Any]], Any] = lambda entries: None
    note: str = ""


@dataclass(frozen=True)
class Joint:
    """Entries of config.json that decide fields of the config together.

    entries: name -> the library's value if it is absent. fields: name -> the entry that messages about it name. read: computes the fields
    from all entries; raises ValueError naming an entry. write: the inverse, given a config and an earlier config.json; entries that it does
    not return are left out of a config.json, but for those in `kept`. note: what a reader of the table should know.
    """

    entries: Mapping[str, Any]
    fields: Mapping[str, str]
    read: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    write: Callable[[TransformerConfig, Mapping[str, Any]], Mapping[str, Any]]
    note: str
    kept: tuple[str, ...] = ()


def head_sizes(width: str, heads: str, own: Mapping[str, Any] | None = None, divides: bool = True) -> Joint:
    """Returns the joint of the size of a head: the width divided by the heads, given these entries, unless an entry of its own says it.

    own: that entry, and its default. divides: whether the library requires that the heads divide the width.
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

    note = f"null: `{width}` / `{heads}`" if own else ""
    return Joint(own, {"key_size": name, "value_size": name}, read, write, note)


@dataclass(frozen=True)
class Head:
    """A head on the last layer. tensors: the pattern of their names. flag: the config field that enables it, "" if every config of the
    family has it, None if no config can. shown: decides between heads with equal tensor names, given the tensors' shapes and the number of
    labels, if config.json names no class.
    """

    name: str
    tensors: str
    flag: str | None = None
    shown: Callable[[Mapping[str, tuple[int, ...]], int], bool] = lambda shapes, labels: False


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models. Tensors are named here as in the base class, without its prefix.

    fixed: config fields that are equal in all its models. unused: fields without meaning in them. only: entries with one supported value,
    or with any of a tuple. ignored: entries that its class does not read -> why. harmless: entries without effect on the result. aliases:
    other names of entries. prefix: of the base class's tensors in a class with a head, except for `outside`; prefixes: others that name the
    same. classes: the heads of each class, preferred ones first. older: suffixes used by earlier versions of
    the library. buffers: stored, but not parameters. twins: tensors equal to another one, beside those that the config ties. nameless:
    whether tensors alone show the family, without a model_type and a class. beside: the pattern of
    tensors that are not the model's and are not read. padded_by_id: whether the library numbers
    positions by the padding id, so that no real token may have it.
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
    older: Mapping[str, str] = field(default_factory=dict)
    buffers: str
    twins: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    nameless: bool = False
    beside: str = r"\Z."
    padded_by_id: bool = False

    @property
    def base(self) -> str:
        """The class without heads, or with a pooler alone."""
        return next(name for name, heads in self.classes.items() if {*heads} <= {"pooler"})

    def native(self, key: str) -> str:
        """Returns the name that a stored tensor has in the base class of this version of the library."""
        prefix = max((prefix for prefix in (self.prefix, *self.prefixes) if key.startswith(prefix)), key=len, default="")
        name = key.removeprefix(prefix)
        return next((name.removesuffix(old) + new for old, new in self.older.items() if name.endswith(old)), name)

    def rows(self, config: TransformerConfig) -> Table:
        """Returns the rows of a model's tensors. Of two that hold the same parameter it has the last whose heads it has."""
        own = self.heads_of(config)
        absent = [head.tensors for head in self.heads if head.flag and head.name not in own]
        rows = [row for row in self.table if not any(re.fullmatch(pattern, row.name) for pattern in absent)]
        last = {row.parts[0].name: row for row in rows}
        return tuple(row for row in rows if last[row.parts[0].name] is row)

    def owns(self, said: Mapping[str, Any], names: Iterable[str]) -> bool:
        """Whether a model without model_type in config.json is of this family: by its class, or by tensors under the prefix."""
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
        """Returns field -> the entry that says it."""
        names = {field: name for joint in self.joints for field, name in joint.fields.items() if name in joint.entries}
        return names | {field: entry.name for entry in reversed(self.entries) for field in entry.fields}

    def heads_of(self, config: TransformerConfig) -> set[str]:
        """Returns the heads that the config enables by its fields."""
        return {head.name for head in self.heads if head.flag and getattr(config, head.flag)}

    def classes_of(self, config: TransformerConfig) -> list[str]:
        """Returns the classes that have exactly the config's heads, or those and a pooler, which some files hold needlessly."""
        own, always = self.heads_of(config), {head.name for head in self.heads if head.flag == ""}
        found = [name for name, heads in self.classes.items() if own - {"pooler"} <= {*heads} <= own | always]
        return found or ([] if own else [self.base])


_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh")
# names of transformers.activations -> ours
GELU = {"gelu": "gelu_erf", "gelu_python": "gelu_erf", **dict.fromkeys(_TANH, "gelu_tanh"), "quick_gelu": "gelu_sigmoid", "relu": "relu"}

# entries of every family that have one supported value
ONLY: dict[str, Any] = {
    "is_encoder_decoder": False, "add_cross_attention": False, "cross_attention_hidden_size": None, "per_layer_config": None,
    "pruned_heads": None, "tie_last_hidden_states": None, "quantization_config": None, "auto_map": None,
}  # fmt: skip
# entries of every family without effect on the result: how a program runs, what it is trained on, what it generates
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
# of programs that train, such as unsloth_version and unsloth_fixed
WRITERS = r"unsloth_\w+"
